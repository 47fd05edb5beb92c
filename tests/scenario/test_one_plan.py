"""A scenario has one plan: the command, the library, the page, comparisons and runs give it to the bit."""

import contextlib
import functools
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import airfed
from airfed import policies, scenario
from airfed.cli import main
from airfed.experiments import benchmark as benchmark
from airfed.explorer import design
from airfed.problem import InfeasibleError
from airfed.scenario import presets
from airfed.training.execution import execute
from airfed.training.setup import prepare

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    file.stem for file in (ROOT / "examples").glob("*.toml") if "base =" not in file.read_text(encoding="utf-8")
)
TINY = ROOT / "tests" / "tiny.toml"


SLOW = {"fading", "liu-lmc", "pomfl", "ris-fl"}  # time-varying channels, or antennas


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in (*EXAMPLES, *presets.NAMES)],
)
def file(request, tmp_path_factory):
    """Every example and every preset, as a file."""
    if request.param in EXAMPLES:
        return ROOT / "examples" / f"{request.param}.toml"
    path = tmp_path_factory.mktemp("preset") / f"{request.param}.toml"
    path.write_text(presets.preset(request.param), encoding="utf-8")
    return path


def printed(*arguments):
    """Return the JSON output of a command."""
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(stream.getvalue())


def bits(plan):
    """The plan as JSON holds it: all digits of every number."""
    return json.loads(json.dumps(plan.to_dict()))


@functools.cache
def planned(file):
    """The plan of a file."""
    return bits(airfed.load(file).plan())


def test_there_are_examples_of_each_kind():
    assert {"paper", "private", "fading"} <= set(EXAMPLES)


def test_every_way_to_plan_gives_the_same_plan(file):
    loaded = airfed.load(file)
    expected = planned(file)
    assert bits(airfed.plan(loaded)) == expected
    assert bits(design.from_scenario(loaded).scenario().plan()) == expected  # the page
    command = printed("plan", file)
    assert command.pop("scenario") == loaded.name
    listed = command.pop("scheduled_listed", False)
    for row in command.get("sequence", ()):  # what JSON has beyond the record
        assert row.pop("epsilon") > 0
        if listed:
            row.pop("scheduled")
    assert command == expected


def test_a_comparison_has_the_same_plan(file):
    loaded = airfed.load(file)
    few = {"rounds": 6} if file.stem in SLOW else {}  # a comparison plans all policies
    options = [word for name, value in few.items() for word in (f"--{name}", value)]
    compared = printed("compare", file, *options)["policies"][loaded.policy.name]
    del compared["excess"]
    assert compared == (bits(loaded.plan(**few)) if few else planned(file))


def test_a_run_gets_the_same_plan(file):
    loaded = airfed.load(file).override({"learning.dataset": "mnist-5k"})
    if loaded.learning.synthetic:
        loaded = airfed.load(file)
    if not loaded.learning.synthetic:  # enough images for all devices
        loaded = loaded.override({"learning.images": None})
    assert bits(prepare(loaded).plan) == bits(loaded.plan())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"channel.coherence_rounds": 1, "policy.name": "optimal", "policy.size": None},
        {"budget.device_power": 400.0, "policy.name": "optimal", "policy.size": None},
        {"policy.average": "tail"},
        {"link.antennas": 3},
        {"policy.name": "truncated_inversion", "policy.size": None},
    ],
    ids=["constant", "fading", "batteries", "average", "antennas", "baseline"],
)
def test_a_run_records_and_executes_it(changes, tmp_path):
    loaded = airfed.load(TINY).override(changes)
    expected = bits(loaded.plan())
    outcome = execute(loaded, tmp_path / "run")
    assert bits(outcome.setup.plan) == expected
    assert json.loads((tmp_path / "run" / "plan.json").read_text()) == expected
    run = airfed.Run.open(tmp_path / "run")
    assert bits(run.plan) == expected
    assert len(run.rounds) == expected["rounds"]
    assert run.ledger.power_planned == pytest.approx(expected["power_total"], rel=1e-12)


def test_a_benchmark_runs_it_for_each_policy(tmp_path):
    loaded = airfed.load(TINY).override({"policy.name": "optimal", "policy.size": None})
    table = benchmark.run(loaded, tmp_path, seeds=1, policies=["optimal", "full"])
    assert {entry.policy for entry in table.results} == {"optimal", "full"}
    for path in tmp_path.rglob("plan.json"):
        recorded = json.loads(path.read_text())
        assert recorded == bits(loaded.plan(policy=recorded["policy"]))


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({"policy": "full"}, ["--policy", "full"]),
        ({"rounds": 7}, ["--rounds", 7]),
        ({"seed": 11}, ["--seed", 11]),
        ({"policy": "top_k", "rounds": 5, "seed": 2}, ["--policy", "top_k", "--rounds", 5, "--seed", 2]),
    ],
)
def test_arguments_mean_the_same_as_options_and_keys(arguments, options):
    loaded = airfed.load(TINY).override({"policy.rounds": None})
    keys = {"policy": "policy.name", "rounds": "policy.rounds", "seed": "seed"}
    changed = loaded.vary({keys[name]: value for name, value in arguments.items()})
    expected = bits(changed.plan())
    assert bits(airfed.plan(loaded, **arguments)) == bits(loaded.plan(**arguments)) == expected
    command = printed("plan", TINY, *options)
    if "rounds" in arguments:  # the file fixes them
        assert {name: command[name] for name in expected} == expected


def test_other_keys_of_the_policy_are_arguments_too():
    loaded = airfed.load(TINY)
    found = airfed.plan(loaded, size=2, average="tail")
    assert (found.num_scheduled, found.average) == (2, "tail")
    assert bits(found) == bits(loaded.override({"policy.size": 2, "policy.average": "tail"}).plan())
    with pytest.raises(scenario.ScenarioError, match="breadth"):
        loaded.plan(breadth=3)
    with pytest.raises(ValueError, match="objective and samples cannot be given with a scenario"):
        airfed.plan(loaded, samples=np.ones((2, 12, 6)))
    with pytest.raises(TypeError, match="problem must be a Scenario or a Problem, got str"):
        airfed.plan("tiny.toml")


def test_a_function_is_a_policy_of_a_scenario_too():
    def strongest(problem, *, share=0.5):
        return np.argsort(-problem.fleet.gain)[: round(share * problem.fleet.num_devices)]

    loaded = airfed.load(TINY)  # its size is not for this policy
    assert airfed.plan(loaded, policy=strongest).num_scheduled == 3
    found = airfed.plan(loaded, policy=strongest, options={"share": 0.34}, rounds=5)
    assert (found.num_scheduled, found.rounds) == (2, 5)
    assert bits(airfed.plan(loaded, policy=policies.EVERY["full"])) == bits(loaded.plan(policy="full"))


def test_a_plan_of_a_scenario_knows_no_gains_before_their_round():
    loaded = airfed.load(ROOT / "examples" / "fading.toml").override({"policy.rounds": 6})
    plan, clairvoyant = loaded.plan(), airfed.plan(loaded.problem(), rounds=6)
    assert clairvoyant.bound.total < plan.bound.total
    assert bits(airfed.plan(loaded, policy="clairvoyant"))["sequence"] == bits(clairvoyant)["sequence"]


def test_a_plan_of_the_problem_may_differ_as_the_docstring_states():
    loaded = airfed.load(ROOT / "examples" / "private.toml")
    plan, by_hand = loaded.plan(), airfed.plan(loaded.problem())
    assert (plan.rounds, plan.average, by_hand.rounds, by_hand.average) == (56, "exponential", 53, "none")
    said = re.sub(r"\s+", " ", scenario.Scenario.problem.__doc__)
    assert "To plan a scenario, call its `plan`:" in said
    assert "`airfed.plan(problem)` is clairvoyant where channels vary" in said


def test_the_expected_accuracy_comes_with_it():
    loaded = airfed.load(ROOT / "examples" / "paper.toml")
    assert f"{loaded.plan().predicted_accuracy:.1%}" == "88.5%"
    assert loaded.plan(policy="fedavg").predicted_accuracy is None  # a surrogate is about noise within a budget
    assert all(plan.predicted_accuracy for plan in loaded.compare()[0].values())


MODEL = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.ReLU(), nn.Linear(3, 2))
"""


def test_the_size_of_an_own_model_on_data_in_a_file_is_found(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(MODEL)
    images, labels = np.zeros((40, 8, 8), np.float32), np.arange(40) % 2
    np.savez(tmp_path / "own.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    text = TINY.read_text().replace('model = "quadratic"\ndimension = 50', 'model = "mine:make"\ndataset = "own.npz"')
    (tmp_path / "own.toml").write_text(text)
    loaded = airfed.load(tmp_path / "own.toml")
    expected = bits(loaded.plan())
    assert expected["dimension"] == loaded.dimension == 64 * 3 + 3 + 3 * 2 + 2
    assert bits(airfed.plan(loaded)) == bits(prepare(loaded).plan) == expected
    assert printed("plan", tmp_path / "own.toml") == {"scenario": loaded.name, **expected}


def test_an_audit_of_a_scenario_attacks_its_plan():
    loaded = airfed.load(TINY)
    found = loaded.audit(trials=2000)
    assert found.verdict == "pass"
    assert found.to_dict()["mu_claimed"] == loaded.plan().mu_round
    with pytest.raises(ValueError, match="is not private, so there is no privacy claim to audit"):
        loaded.vary({"policy.name": "fedavg"}).audit()


def test_where_there_is_no_plan_all_say_the_same():
    loaded = airfed.load(TINY).override({"budget.total_power": 1e-200})
    said = set()
    for ask in (loaded.plan, lambda: airfed.plan(loaded), lambda: prepare(loaded)):
        with pytest.raises(InfeasibleError) as caught:
            ask()
        said.add(str(caught.value))
    assert len(said) == 1


def test_planning_and_auditing_need_no_torch(tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    program = (
        "import sys\n"
        "sys.modules |= {'torch': None, 'numba': None, 'matplotlib': None}\n"
        "import airfed\n"
        f"scenario = airfed.load({str(TINY)!r})\n"
        "assert airfed.plan(scenario).rounds == 4\n"
        "assert scenario.audit(trials=2000).verdict == 'pass'\n"
        "own = scenario.override({'learning.model': 'mine:make', 'learning.dimension': None})\n"
        "try:\n"
        "    airfed.plan(own)\n"
        "except airfed._extras.MissingExtra as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path, timeout=300
    )
    assert done.stdout == "This needs airfed[sim] (torch is missing): pip install 'airfed[sim]'.\n"
