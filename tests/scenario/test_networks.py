"""A network written in the scenario equals a built-in one; scenarios without it are unchanged."""

import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airfed import scenario
from airfed.cli.app import main
from airfed.explorer.design import from_query, from_scenario
from airfed.network import Network, builtin
from airfed.scenario import ScenarioError, learning_section
from airfed.scenario.learning_section import traits
from airfed.training.directory import RunError
from airfed.training.execution import execute
from airfed.training.setup import build_task

EIGHT = Path(__file__).parents[1] / "eight.toml"
LAYERS = {"convolutions": [[3, 5], [4, 3]], "hidden": [6]}


def make_scenario(**changes):
    plain = scenario.load(EIGHT).override({"learning.model": None, "learning.dimension": None})
    return plain.override({key.replace("__", "."): value for key, value in changes.items()})


def written(**layers):
    return make_scenario(learning__network={**LAYERS, **layers})


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), max_size=2),
    st.lists(st.integers(1, 600), max_size=3),
    st.sampled_from([0.0, 0.01]),
)
def test_it_is_the_network_of_those_sizes(convolutions, hidden, l2):
    found = written(convolutions=[list(pair) for pair in convolutions], hidden=hidden, l2=l2)
    network = Network(
        input_shape=(1, 28, 28), convolutions=tuple(convolutions), hidden=tuple(hidden), classes=10, l2=l2
    )
    assert learning_section.network(found, (1, 28, 28), 10) == network
    assert found.dimension == found.problem().learning.dimension == network.dimension
    again = scenario.parse(tomllib.loads(found.to_toml()))
    assert again.content() == found.content()
    assert again.digest() == found.digest()


def test_planning_it_needs_no_torch(tmp_path):
    file = tmp_path / "written.toml"
    file.write_text(written().to_toml())
    code = (
        "import sys; from airfed.cli.app import main; code = main(['plan', sys.argv[1]]); "
        "assert not {'torch', 'numba'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, check=True
    )
    assert done.stdout


def test_the_model_reads_network_whether_or_not_that_is_written():
    assert written().learning.model == "network"
    assert written().override({"learning.model": "network"}) == written()
    assert written().override({"learning.network.hidden": [7]}).learning.network.hidden == [7]
    assert written().override({"learning.network": None, "learning.model": "mlp"}).learning.model == "mlp"
    assert written().learning.model_title == "network 3c5-4c3-6"


# The digest keys the noise: a key that is added later must not change it.
@pytest.mark.parametrize(
    ("changes", "digest"),
    [
        ({}, "7ea610c2c29cb0dbdb2232baa76a0b46bf3614ac1ade44fc985d9dd896bc2eda"),
        (
            {"learning.model": "cnn", "learning.dimension": None},
            "2367e3eb828cbaf0cf1416d040d1c376164333ae1a148ee60e0f9c24bbb51e47",
        ),
    ],
)
def test_digests_without_a_network_stay_the_same(changes, digest):
    assert scenario.load(EIGHT).override(changes).digest() == digest


def test_digests_know_every_layer():
    scenarios = [
        make_scenario(),
        make_scenario(learning__model="mlp"),
        written(),
        written(convolutions=[[3, 5], [4, 2]]),
        written(convolutions=[[3, 5], [5, 3]]),
        written(convolutions=[]),
        written(hidden=[7]),
        written(hidden=[6, 6]),
        written(l2=0.1),
    ]
    assert len({found.digest() for found in scenarios}) == len(scenarios)
    assert len({str(traits(found.learning)) for found in scenarios}) == len(scenarios)
    assert "network" not in traits(make_scenario().learning)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"learning.model": "cnn"}, r"learning.model or \[learning.network\], not both; got model 'cnn' and network"),
        ({"learning.model": "quadratic"}, "not both"),
        ({"learning.model": "mine:net"}, "not both"),
        ({"learning.network": None}, r'The table \[learning.network\] is missing; learning.model = "network"'),
        ({"learning.network": 3}, "^learning.network must be a table, got 3"),
        ({"learning.network.hiden": [3]}, "Unknown key 'learning.network.hiden'; did you mean 'hidden'"),
        ({"learning.network.hidden": 3}, "^learning.network.hidden must be a list"),
        ({"learning.network.hidden": [0]}, r"learning.network.hidden\[0\] must be at least 1, got 0"),
        ({"learning.network.hidden": [1.5]}, r"learning.network.hidden\[0\] must be a whole number >= 1, got 1.5"),
        ({"learning.network.hidden": [2**53] * 3}, r"dimension must be at most 2\*\*53"),
        (
            {"learning.network.convolutions": [[3, 0]]},
            r"learning.network.convolutions\[0\]\[1\] must be at least 1, got 0",
        ),
        (
            {"learning.network.convolutions": [[3, 5], [3]]},
            r"convolutions\[1\] must be \[channels, kernel size\], got \[3\]",
        ),
        ({"learning.network.convolutions": [[3, 5, 1]]}, r"must be \[channels, kernel size\], got \[3, 5, 1\]"),
        ({"learning.network.convolutions": [3]}, r"learning.network.convolutions\[0\] must be a list"),
        (
            {"learning.network.convolutions": [[3, 5]] * 3},
            "Images of 28×28 are too small for convolution 2 and its pooling",
        ),
        ({"learning.network.l2": -1.0}, "learning.network.l2 must be non-negative, got -1.0"),
    ],
)
def test_mistakes_are_one_sentence(changes, says):
    with pytest.raises(ScenarioError, match=says) as caught:
        written().override(changes).problem()
    assert "\n" not in str(caught.value)


def test_images_too_small_for_it_are_one_sentence(tmp_path):
    images, labels = np.zeros((40, 6, 6), np.float32), np.arange(40) % 2
    np.savez(tmp_path / "tiny.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    small = written().override({"learning.dataset": str(tmp_path / "tiny.npz")})
    for ask in (scenario.Scenario.problem, build_task):
        with pytest.raises(ScenarioError, match="Images of 6×6 are too small"):
            ask(small)
    fits = small.override({"learning.network.convolutions": [[3, 5]]})
    assert fits.dimension == 3 * 25 + 3 + 3 * 6 + 6 + 6 * 2 + 2


def test_a_written_cnn_trains_as_the_built_in_one():
    pytest.importorskip("numba")
    layers = {"convolutions": [[10, 5], [20, 5]], "hidden": [50]}
    tasks = [build_task(make_scenario(learning__model="cnn")), build_task(make_scenario(learning__network=layers))]
    assert tasks[0].model == tasks[1].model == builtin("cnn", input_shape=(1, 28, 28), classes=10)
    updates = []
    for task in tasks:
        ((_, rows),) = task.engine.updates(task.initial_parameters, np.array([0]), steps=2, round_index=0)
        task.engine.close()
        updates.append(rows)
    assert np.array_equal(*updates)


def test_runs_checkpoint_resume_and_are_audited(tmp_path):
    pytest.importorskip("numba")
    small = written().override({"policy.rounds": 3, "run.threads": 1})
    execute(small, tmp_path / "whole")
    stopped = []
    half = execute(small, tmp_path / "half", on_round=stopped.append, stop=lambda: bool(stopped))
    assert half.status == "stopped"
    with pytest.raises(RunError, match=r"scenario \(learning.network.hidden\)"):
        execute(small.override({"learning.network.hidden": [7]}), tmp_path / "half", resume=True)
    execute(small, tmp_path / "half", resume=True)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("half", "whole")]
    assert models[0] == models[1]
    assert main(["audit", str(tmp_path / "half"), "--trials", "1000"]) == 0


def test_the_explorer_shows_a_custom_network_and_takes_none_from_a_link():
    design = from_scenario(written())
    assert design.scenario().problem().learning.dimension == written().dimension
    link = parse_qsl(design.query(), keep_blank_values=True)
    assert from_query(link, design.own).scenario().learning == design.scenario().learning
    for stranger in (design.change("learning.network.hidden", [9999]), from_query(link)):
        with pytest.raises(ScenarioError, match="in the explorer"):
            stranger.scenario()
