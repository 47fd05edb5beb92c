"""Ridge regression: its known constants agree with brute force."""

import itertools
import tomllib

import numpy as np
import pytest

import airfed
from airfed import scenario
from airfed.learning.quadratic import QuadraticEngine, RidgeTask
from airfed.scenario import presets
from airfed.training.directory import RunError
from airfed.training.execution import execute
from airfed.training.setup import build_task


def task(**change):
    return RidgeTask(**{"dimension": 6, "num_devices": 7, "samples": 200, "l2": 0.03, "seed": 2} | change)


def loss(t, k, w):
    """L_k(w) from its definition."""
    features, labels = t.data
    return np.mean((features[k] @ w - labels[k]) ** 2) / 2 + t.l2 * np.sum(w**2) / 2


def mean_loss(t, w):
    return np.mean([loss(t, k, w) for k in range(t.num_devices)])


def test_the_optimum_solves_the_normal_equations():
    t = task()
    features, labels = (part.reshape(-1, *part.shape[2:]) for part in t.data)
    assert len(labels) == 7 * 28  # equally many per device; four are not used
    solved = np.linalg.solve(features.T @ features + len(labels) * t.l2 * np.eye(6), features.T @ labels)
    np.testing.assert_allclose(t.optimum, solved, rtol=1e-10)
    rng = np.random.default_rng(0)
    for w in (t.optimum, np.zeros(6), rng.normal(size=6)):
        assert t.loss(w) == pytest.approx(mean_loss(t, w), rel=1e-12)
    assert t.minimum == pytest.approx(mean_loss(t, solved), rel=1e-12)
    assert t.initial_gap == pytest.approx(mean_loss(t, np.zeros(6)) - t.minimum, rel=1e-12)
    assert all(t.loss(t.optimum + rng.normal(size=6) / 100) > t.minimum for _ in range(20))


@pytest.mark.parametrize("samples", [200, 14])  # with two samples of six features a device's own losses are flat
def test_one_step_is_the_gradient_by_finite_differences(samples):
    t = task(samples=samples)
    w = np.random.default_rng(1).normal(size=6).astype(np.float32)
    ((_, rows),) = QuadraticEngine(t, learning_rate=0.3).updates(w, np.arange(7), steps=1, round_index=0)
    for k, (place, direction) in itertools.product(range(7), enumerate(np.eye(6))):
        sides = [loss(t, k, w + sign * 1e-4 * direction) for sign in (1, -1)]
        assert rows[k, place] == pytest.approx((sides[0] - sides[1]) / 2e-4, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("samples", [200, 14])
def test_updates_are_the_sum_of_the_local_gradients(samples):
    t = task(samples=samples)
    start = np.random.default_rng(0).normal(size=6).astype(np.float32)
    devices = np.array([6, 0, 3])
    ((_, updates),) = QuadraticEngine(t, learning_rate=0.2).updates(start, devices, steps=5, round_index=0)
    for k, row in zip(devices, updates, strict=True):
        features, labels = (part[k] for part in t.data)
        w = start.astype(float)
        for _ in range(5):
            w -= 0.2 * (features.T @ (features @ w - labels) / len(labels) + t.l2 * w)
        np.testing.assert_allclose(row, (start - w) / 0.2, rtol=1e-5, atol=1e-6)


def test_smoothness_and_strong_convexity_are_the_ends_of_the_spectrum():
    t = task()
    features = t.data[0]
    values = np.linalg.eigvalsh(np.mean([x.T @ x / len(x) for x in features], axis=0)) + t.l2
    assert t.curvature_range == pytest.approx((values[0], values[-1]), rel=1e-12)
    own = [np.linalg.norm(x.T @ x / len(x) + t.l2 * np.eye(6), 2) for x in features]
    np.testing.assert_allclose(t.curvatures, own, rtol=1e-12)


def test_gradient_descent_contracts_to_the_optimum():
    t = task()
    low, high = t.curvature_range
    w, engine, gaps = np.zeros(t.dimension, np.float32), QuadraticEngine(t, learning_rate=1 / high), []
    for i in range(40):
        gaps.append(engine.evaluate(w)[0] - t.minimum)
        rows = np.concatenate([u for _, u in engine.updates(w, np.arange(7), steps=1, round_index=i)])
        w = (w - rows.mean(axis=0, dtype=np.float64) / high).astype(np.float32)
    assert gaps[0] == pytest.approx(t.initial_gap)
    assert all(b <= (1 - low / high) * a + 1e-9 for a, b in itertools.pairwise(gaps))
    np.testing.assert_allclose(w, t.optimum, atol=1e-3)


def test_labels_follow_their_distribution():
    t = task(num_devices=1, samples=20_000, dimension=5, l2=1e-9)
    features, labels = (part[0] for part in t.data)
    residual = labels - features @ np.array([0, 1, 0, 0, 3])
    assert residual.std() == pytest.approx(0.2, rel=0.03)  # six standard errors of 20,000
    assert abs(features.mean()) < 0.02
    assert features.std() == pytest.approx(1.0, rel=0.02)
    assert np.abs(features.T @ residual).max() / 20_000 < 0.01
    assert not np.array_equal(t.data[1], task(num_devices=1, samples=20_000, dimension=5, seed=3).data[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dimension": 4}, "dimension must be at least 5, got 4"),
        ({"num_devices": 0}, "num_devices must be at least 1, got 0"),
        ({"samples": 6}, "samples must be at least 7, one per device, got 6"),
        ({"l2": 0.0}, "l2 must be positive and finite, got 0.0"),
        ({"samples": 10**7}, "do not fit into memory with samples=10000000"),
        ({"dimension": 10**4}, "do not fit into memory"),
    ],
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        task(**change)


# -- in a scenario


def test_a_scenario_has_it_by_name_by_table_or_both(make_scenario):
    written = {"learning__dimension": None}
    named = make_scenario(learning__model="ridge", **written)
    assert named.dimension == 10
    assert build_task(named).task == RidgeTask(num_devices=6, seed=3)
    table = make_scenario(learning__model="ridge", learning__dimension=5, learning__ridge={"samples": 60, "l2": 0.1})
    assert build_task(table).task == RidgeTask(dimension=5, num_devices=6, samples=60, l2=0.1, seed=3)
    alone = make_scenario(learning__model=None, learning__dimension=5, learning__ridge={"samples": 60, "l2": 0.1})
    assert alone == table
    assert scenario.parse(tomllib.loads(table.to_toml())) == table
    others = [table.override({"learning.ridge.l2": 0.2}), table.override({"learning.ridge.samples": 61}), named]
    assert len({found.digest() for found in (table, *others)}) == 4
    assert len({build_task(found).data_digest for found in (table, *others)}) == 4


def test_its_loss_is_the_gap_and_it_has_no_accuracy(make_scenario):
    learning = build_task(make_scenario(learning__model="ridge", learning__ridge={"samples": 600}))
    assert learning.evaluate(learning.initial_parameters) == {"loss": pytest.approx(learning.task.initial_gap)}
    assert learning.evaluate(learning.task.optimum.astype(np.float32))["loss"] < 1e-9
    assert learning.classes is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"learning__ridge": {"samples": 60}},
            r"learning.model or \[learning.ridge\], not both",
        ),
        ({"learning__model": "ridge", "learning__ridge": {"sample": 60}}, "Unknown key 'learning.ridge.sample'"),
        ({"learning__model": "ridge", "learning__ridge": {"l2": 0.0}}, "learning.ridge.l2 must be positive, got 0.0"),
        ({"learning__model": "ridge", "learning__dimension": 4}, "dimension must be at least 5, got 4"),
        (
            {"learning__model": "ridge", "learning__ridge": {"samples": 5}},
            "samples must be at least 6, one per device, got 5",
        ),
        ({"learning__model": "ridge", "learning__batch_size": 5}, "The ridge model has its own engine"),
        ({"learning__model": "ridge", "run__engine": "torch"}, "The ridge model has its own engine"),
    ],
)
def test_a_wrong_scenario_is_one_sentence(make_scenario, changes, says):
    with pytest.raises(scenario.ScenarioError, match=says):
        build_task(make_scenario(**changes))


def test_runs_are_stopped_and_resumed_to_the_same_bits(make_scenario, tmp_path):
    small = make_scenario(
        learning__model="ridge", learning__dimension=5, learning__ridge={"samples": 60}, policy__rounds=4
    )
    assert execute(small, tmp_path / "whole").status == "finished"
    done = []
    half = execute(small, tmp_path / "half", on_round=done.append, stop=lambda: len(done) >= 2)
    assert half.status == "stopped"
    with pytest.raises(RunError, match=r"scenario \(learning.ridge.samples\)"):
        execute(small.override({"learning.ridge.samples": 61}), tmp_path / "half", resume=True)
    assert execute(small, tmp_path / "half", resume=True).status == "finished"
    for name in ("model.safetensors", "metrics.csv", "ledger.jsonl"):
        assert (tmp_path / "half" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert float((tmp_path / "whole" / "metrics.csv").read_text().splitlines()[1].split(",")[2]) > 0  # loss: L - L*


@pytest.mark.parametrize("seed", range(3))
def test_static_power_trains_the_preset_and_adaptive_power_diverges(seed, tmp_path):
    """The numbers of docs/presets.md and docs/baselines.md: the bound ranks the plans the other way."""
    base = scenario.load(presets.FOLDER / "liu-simeone.toml").override({"seed": seed})
    plans, losses = {}, {}
    for policy in ("optimal", "full", "liu_simeone"):
        chosen = base.vary({"policy.name": policy})
        plans[policy] = chosen.plan()
        losses[policy] = airfed.run(chosen, tmp_path / policy).rounds[-1]["loss"]
    assert losses["optimal"] == losses["full"]
    assert 0.5 < losses["full"] < 1
    assert losses["liu_simeone"] > 1e12
    assert plans["full"].bound.total == pytest.approx(0.79, abs=5e-3)
    assert plans["liu_simeone"].bound.total == pytest.approx(0.05, abs=5e-3)
