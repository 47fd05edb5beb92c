"""Constants from data: against closed forms and dense linear algebra."""

import json
import tomllib

import numpy as np
import pytest

from airfed import scenario
from airfed.cli import main
from airfed.experiments.calibrate import calibrate
from airfed.learning import curvature
from airfed.network import Network
from airfed.scenario import presets

SCENARIO = """
seed = 0
[fleet]
num_devices = 10
peak_power = 1.0
[channel]
model = "rayleigh"
minimum = 0.2
[link]
noise_std = 0.1
[budget]
epsilon = 2.0
delta = 1e-3
total_power = 1000.0
[learning]
dataset = "{dataset}"
model = "logistic"
dimension = 68
total_steps = 12
learning_rate = 0.1
clip_norm = 1.0
smoothness = 10.0
strong_convexity = 0.1
initial_gap = 2.3
[run]
engine = "torch"
"""


def tiny_images(count=40):
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 4
    return rng.normal(0.3 * labels[:, None, None, None], 0.2, (count, 1, 4, 4)).astype(np.float32), labels


@pytest.fixture
def file(tmp_path):
    images, labels = tiny_images()
    np.savez(tmp_path / "tiny.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    (tmp_path / "scenario.toml").write_text(SCENARIO.format(dataset=tmp_path / "tiny.npz"))
    return tmp_path / "scenario.toml"


def dense_hessian(loss, point):
    columns = [loss.hessian_product(point, direction) for direction in np.eye(point.size)]
    return np.array(columns).T


@pytest.mark.parametrize("hidden", [(), (5,)])
def test_products_are_those_of_a_symmetric_matrix_that_differences_confirm(hidden, monkeypatch):
    network = Network(input_shape=(1, 4, 4), hidden=hidden, classes=4, l2=0.01)
    loss = curvature.Loss(network, *tiny_images())
    rng = np.random.default_rng(1)
    point = rng.normal(0, 0.3, network.dimension)
    matrix = dense_hessian(loss, point)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-10)
    direction = rng.normal(size=point.size)
    step = 1e-5
    ahead, behind = (loss.value_and_gradient(point + sign * step * direction)[1] for sign in (1, -1))
    np.testing.assert_allclose(matrix @ direction, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-7)
    monkeypatch.setattr(curvature, "_RTOL", 1e-8)
    monkeypatch.setattr(curvature, "_MOST", 2000)
    value, _, _ = curvature.spectral_norm(lambda v: matrix @ v, point.size, rng)
    assert value == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-3)


def test_logistic_regression_has_its_known_constants(file):
    loaded = scenario.load(file)
    found = calibrate(loaded)
    assert found.strong_convexity == 0.01
    assert found.optimum + found.initial_gap == pytest.approx(np.log(4), rel=1e-5)  # it starts at w = 0
    images, labels = tiny_images()
    network = Network(input_shape=(1, 4, 4), classes=4, l2=0.01)
    start = np.linalg.norm(dense_hessian(curvature.Loss(network, images, labels), np.zeros(68)), 2)
    inputs = np.column_stack([images.reshape(len(images), -1), np.ones(len(images))])
    most = 0.5 * np.linalg.norm(inputs.T @ inputs / len(inputs), 2) + 0.01  # no softmax Hessian is above this
    assert 0.98 * start <= found.smoothness <= most
    assert [norm.local_steps for norm in found.norms] == [1, 2, 5, 10, 20]
    assert all(a.mean < b.mean for a, b in zip(found.norms, found.norms[1:], strict=False))


def test_the_quadratic_task_knows_itself(file):
    loaded = scenario.load(file).override({"learning.model": "quadratic", "run.engine": "auto"})
    found = calibrate(loaded)
    assert (found.smoothness, found.strong_convexity) == (10.0, 0.1)
    assert found.initial_gap > 0


def test_the_constants_of_the_known_scenario_are_exact():
    known = scenario.parse(tomllib.loads(presets.preset("liu-simeone")))
    found, learning = calibrate(known), known.learning
    for name in ("smoothness", "strong_convexity", "initial_gap"):
        assert getattr(learning, name) == pytest.approx(getattr(found, name), rel=1e-6)
    assert learning.learning_rate == pytest.approx(1 / found.smoothness, rel=1e-6)
    assert found.apply(known).learning.smoothness == found.smoothness


def test_the_command_writes_a_scenario_that_says_how(file, tmp_path, capsys):
    out = tmp_path / "calibrated.toml"
    assert main(["calibrate", str(file), "--out", str(out), "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    found = json.loads(shown.out)
    text = out.read_text()
    written = tomllib.loads(text)["learning"]
    assert written["smoothness"] == found["smoothness"]
    assert written["initial_gap"] == found["initial_gap"]
    assert "power iteration" in text
    assert "E = 20: mean" in text
    scenario.load(out)
    assert main(["calibrate", str(file), "--out", str(out)]) == 2
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert out.read_text() == text
    assert main(["calibrate", str(file)]) == 0
    shown = capsys.readouterr()
    assert "power iteration" in " ".join(shown.out.split())
    assert "95% below" in shown.out


@pytest.mark.parametrize("rate", [1e10, 1e30])
def test_a_training_that_diverges_is_one_sentence(file, rate, capsys):
    file.write_text(file.read_text().replace("learning_rate = 0.1", f"learning_rate = {rate}"))
    assert main(["calibrate", str(file), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "is too large: a noise-free training diverges" in err
    assert err.count("\n") == 1
