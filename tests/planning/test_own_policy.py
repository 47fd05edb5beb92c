"""A policy of the user's own, as a function and as "module:callable" in a scenario."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from airfed import Fleet, InfeasibleError, Plan, Run, load, plan, run
from airfed.explorer.design import from_query, from_scenario
from airfed.planning import Amplitudes, once
from airfed.planning.method import Method, over_the_air
from airfed.policies import POLICIES
from airfed.scenario import ScenarioError

CODE = """
import numpy as np
from airfed import InfeasibleError
import pick

def strongest(problem, *, share=0.5):
    return pick.strongest(problem.fleet.gain, share)

def seeded(problem, seed, size=2):
    return np.random.default_rng(seed).permutation(problem.fleet.num_devices)[:size]

def excessive(problem):
    return 1e3 * (np.arange(problem.fleet.num_devices) < 2)

def fails(problem):
    return problem.fleet.gain[problem.fleet.num_devices]

def declines(problem):
    raise InfeasibleError("No plan fits: not today.")

def needs(problem, order):
    return [order]
"""
HELPER = """
import numpy as np

def strongest(gain, share):
    return np.argsort(gain)[int(gain.size * (1 - share)):]
"""
SCENARIO = (
    (Path(__file__).parents[1] / "eight.toml").read_text()
    + """
[policy]
name = "mine:strongest"
"""
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "pick.py").write_text(HELPER)
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    return tmp_path


@pytest.fixture
def scenario(folder):
    return load(folder / "scenario.toml")


@pytest.fixture
def problem(scenario):
    return scenario.problem()


def strongest(problem, count):
    return sorted(np.argsort(problem.fleet.gain)[-count:].tolist())


def test_a_function_is_a_policy(problem):
    result = plan(problem, policy=lambda problem: problem.fleet.gain > np.median(problem.fleet.gain))
    assert result.scheduled.tolist() == strongest(problem, 4)
    assert result.violations == ()
    assert result.alignment == pytest.approx(min(result.limits.values()), rel=1e-9)


def test_it_may_choose_amplitudes_and_airfed_the_best_feasible_rounds(problem):
    problem = replace(problem, budget=replace(problem.budget, epsilon=1e3, total_power=5.0))  # total power binds
    row = np.zeros(8)
    row[:2] = 0.9 * plan(problem, policy=lambda problem: [0, 1], rounds=4).limits["total_power"] * np.array([1.0, 0.5])
    each = [plan(problem, policy=lambda problem: row, rounds=number) for number in range(1, 13)]
    feasible = [other for other in each if not other.violations]
    assert 0 < len(feasible) < len(each)
    found = plan(problem, policy=lambda problem: row)
    assert found.rounds == min(feasible, key=lambda other: other.bound.total).rounds
    np.testing.assert_allclose(found.amplitude, np.tile(row, (found.rounds, 1)), rtol=4e-16)
    excessive = plan(problem, policy=lambda problem: 1e3 * row)
    assert excessive.violations  # at any number of rounds: the best of all is taken, and flagged


TABLE = np.linspace(0.005, 0.025, 24).reshape(3, 8)


@pytest.mark.parametrize("time_varying", [False, True])
def test_called_once_it_may_return_a_table_or_a_plan(problem, time_varying):
    gain = np.stack([problem.fleet.gain] * 12) if time_varying else problem.fleet.gain
    problem = replace(problem, fleet=Fleet(gain=gain, peak_power=1.0))
    made = Plan(problem=problem, policy="x", amplitudes=Amplitudes.of_table(TABLE), average="tail", notes=("so",))
    calls = []

    @once
    def whole(problem):
        calls.append(problem.fleet.gain.shape)
        return made

    found = plan(problem, policy=whole)
    assert calls == [gain.shape]
    assert (found.rounds, found.notes, found.average) == (3, ("so",), "tail")
    for other in (found, plan(problem, policy=once(lambda problem: TABLE))):
        assert other.policy.startswith("tests.planning") or ":" in other.policy
        np.testing.assert_allclose(other.amplitude, TABLE, rtol=4e-16)
    if time_varying:
        for answer in (made, TABLE):
            with pytest.raises(ValueError, match=r"declare it with airfed\.planning\.once"):
                plan(problem, policy=lambda problem, answer=answer: answer, rounds=3)


def test_the_claims_of_a_user_plan_are_recomputed(problem):
    other = replace(problem, budget=replace(problem.budget, epsilon=1e6), link=replace(problem.link, noise_std=1e3))
    table = Amplitudes.of_table(10 * TABLE)
    lie = Plan(problem=other, policy="optimal", amplitudes=table, lower_bound=1e9, objective="accuracy")
    found = plan(problem, policy=lambda problem: lie)
    assert found.problem is problem
    assert (found.lower_bound, found.objective, found.prediction) == (-np.inf, "bound", None)
    assert found.policy != "optimal"
    assert found.epsilon_total > 1e3 * lie.epsilon_total
    assert "privacy" in found.violations
    assert any("violates the privacy limit" in note for note in found.notes)
    small = Amplitudes.aligned([0], num_devices=3, level=0.1, rounds=2)
    gone = replace(problem, fleet=Fleet(gain=[1.0, 1.0, 1.0], peak_power=1.0))
    with pytest.raises(ValueError, match="amplitudes must have 8 devices, got 3"):
        plan(problem, policy=lambda problem: Plan(problem=gone, policy="", amplitudes=small))
    short = replace(problem, fleet=Fleet(gain=np.ones((2, 8)), peak_power=1.0))
    with pytest.raises(ValueError, match="gain must have 3 rounds as the plan, got 2"):
        plan(short, policy=once(lambda problem: TABLE))


WRONG = {
    "must return distinct device indices from 0 to 7": [
        *([0, 0], [8], [-1], [0.5], "abc", None, [[0], [1, 2]], [[0], [1]], [True, False], {"devices": [0]}),
        *(3, np.ones(7), {1, 2}),
    ],
    "amplitudes must be finite and non-negative": [
        [np.nan] * 8,
        [-0.1] * 8,
        [np.inf] * 8,
        [[np.nan] * 8],
        [[0.1] * 7 + [-1.0]],
    ],
    "amplitudes must have a positive entry in every round": [np.zeros((2, 8)), [[0.1] * 8, [0.0] * 8]],
    "amplitudes must have 8 devices, got": [np.ones((2, 7))],
    "rounds must be at most total_steps, 12; got 13": [np.full((13, 8), 0.1)],
    "^No plan fits: ": [[1e200] * 8, [1e-200] * 8, [], [0.0] * 8, np.zeros(8, bool)],
}


@pytest.mark.parametrize(
    ("message", "answer"), [(message, each) for message, many in WRONG.items() for each in many], ids=str
)
def test_an_invalid_schedule_is_refused_in_one_sentence(problem, message, answer):
    varying = replace(problem, fleet=Fleet(gain=np.stack([problem.fleet.gain] * 12), peak_power=1.0))
    for there, policy in ((problem, lambda problem: answer), (varying, once(lambda problem: answer))):
        with pytest.raises(ValueError, match=message) as error:
            plan(there, policy=policy)
        assert str(error.value).endswith(".")
        assert "\n" not in str(error.value)


def test_a_violated_limit_is_flagged(scenario, problem):
    result = scenario.vary({"policy.name": "mine:excessive"}).plan()
    assert set(result.violations) == {"privacy", "peak_power", "total_power"}
    for name in result.violations:
        assert any(f"violates the {name} limit" in note for note in result.notes)


def test_settings_are_those_that_the_function_names(scenario, problem):
    assert scenario.resolved_policy.settings == {"share"}
    assert scenario.plan().scheduled.tolist() == strongest(problem, 4)
    assert scenario.override({"policy.options": {"share": 0.25}}).plan().scheduled.tolist() == strongest(problem, 2)
    seeded = scenario.vary({"policy.name": "mine:seeded"})
    assert seeded.plan().num_scheduled == 2
    assert seeded.override({"policy.size": 5}).plan().num_scheduled == 5
    assert seeded.override({"seed": 3}).plan(problem).scheduled.tolist() != seeded.plan(problem).scheduled.tolist()


def test_changing_the_policy_drops_settings_that_the_new_policy_lacks(scenario):
    mine = scenario.override({"policy.options": {"share": 0.25}})
    assert mine.vary({"policy.name": "full"}).plan().num_scheduled == 8
    sized = mine.vary({"policy.name": "uniform", "policy.size": 3})
    assert sized.plan().num_scheduled == 3
    assert sized.vary({"policy.name": "mine:strongest"}).plan().num_scheduled == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy.name": "mine:nothing"}, "'nothing' in 'mine' .* must be a callable"),
        ({"policy.name": "mine:fails"}, r"The policy 'mine:fails' failed: IndexError: .* \(mine.py, line 16\)"),
        ({"policy.name": "mine:needs"}, r"a value of order \(policy.options.order in a scenario\)"),
        ({"policy.name": "elsewhere:f"}, "there is no module 'elsewhere'"),
        ({"policy.options": {"shere": 0.3}}, "policy='mine:strongest' has no setting shere: it takes share"),
        ({"policy.size": 3}, "policy='mine:strongest' has no setting size: it takes share"),
        (
            {"policy.name": "full", "policy.options": {"share": 0.3}},
            "policy.options must not be set with policy 'full'",
        ),
    ],
)
def test_mistakes(scenario, changes, message):
    with pytest.raises(ValueError, match=message):
        scenario.override(changes).plan()


@pytest.mark.parametrize("value", [[0, 1], {"a": 1}, float("nan")], ids=str)
def test_an_option_is_a_plain_value(scenario, value):
    with pytest.raises(ScenarioError, match=r"policy\.options\.share must be a number, a text, true or false"):
        scenario.override({"policy.options": {"share": value}})


def test_arguments_without_a_name_are_no_settings(problem):
    assert plan(problem, policy=lambda problem, *more, **others: [0]).num_scheduled == 1
    with pytest.raises(ValueError, match=r"policy=.* has no setting share: it takes no settings"):
        plan(problem, policy=lambda problem, **others: [0], options={"share": 1})


def test_side_effects_of_its_code_do_not_change_the_plan(scenario, folder, capsys):
    (folder / "mine.py").write_text(
        "import sys\nprint('imported')\n"
        "def strongest(problem):\n    print('called')\n    sys.path.pop(0)\n    return [0]\n"
    )
    path = list(sys.path)
    assert scenario.plan().scheduled.tolist() == [0]
    assert sys.path == path
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "imported\ncalled\n" in printed.err


class Tensor:
    """An object that is not a plain array, like a tensor that requires a gradient."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


def test_a_tensor_that_is_no_array_is_refused(problem):
    with pytest.raises(ValueError, match="must return distinct device indices from 0 to 7; got Tensor"):
        plan(problem, policy=lambda problem: Tensor())


@pytest.mark.parametrize("name", ["rounds", "seed", "objective"])
def test_an_option_with_the_name_of_a_setting_is_refused(problem, name):
    def mine(problem, *, rounds=1, seed=0, objective=None):
        return [0]

    with pytest.raises(ValueError, match=f"The option {name} has the name of a setting"):
        plan(problem, policy=mine, options={name: 3})


def test_an_empty_schedule_is_infeasible(scenario, problem):
    with pytest.raises(InfeasibleError, match="schedules no device"):
        plan(problem, policy=lambda problem: [])
    with pytest.raises(InfeasibleError, match="not today"):
        scenario.vary({"policy.name": "mine:declines"}).plan()


def test_it_is_compared_with_the_other_methods(scenario):
    plans, reasons = scenario.compare()
    built_in = {name for name, each in POLICIES.items() if not each.time_varying}
    assert set(plans) | set(reasons) == {*built_in, "mine:strongest"}
    assert plans["mine:strongest"].bound.total >= plans["optimal"].bound.total


def test_it_trains_and_its_record_needs_no_code(scenario, folder):
    trained = run(scenario, folder / "out")
    assert trained.plan.policy == "mine:strongest"
    assert trained.label == "mine:strongest"
    (folder / "mine.py").write_text("raise SystemExit('read me not')")
    again = Run.open(folder / "out")
    assert again.plan.scheduled.tolist() == trained.plan.scheduled.tolist()
    assert again.audit(trials=500).verdict == "pass"
    assert json.loads((folder / "out" / "plan.json").read_text())["policy"] == "mine:strongest"


@pytest.mark.parametrize(
    "line", ["import late", "from late import some", "import package.late as late", "from package import late"]
)
def test_lazy_imports_of_a_policy_are_in_its_digest(scenario, folder, line):
    (folder / "package").mkdir()
    for place in (folder, folder / "package"):
        (place / "late.py").write_text("import later\n")
    (folder / "later.py").write_text("def some(problem): return [0]\n")
    (folder / "unused.py").write_text("")
    (folder / "package" / "__init__.py").write_text("")
    (folder / "mine.py").write_text(f"def strongest(problem):\n    {line}\n    return [0]\n")
    first = scenario.resolved_policy.digest()
    (folder / "unused.py").write_text("# another")
    assert scenario.resolved_policy.digest() == first
    (folder / "later.py").write_text("def some(problem): return [1]\n")
    assert scenario.resolved_policy.digest() != first


def test_a_policy_over_its_budget_transmits_nothing_and_its_record_says_so(scenario, folder):
    trained = run(scenario.vary({"policy.name": "mine:excessive"}), folder / "out")
    assert (trained.problem, trained.ledger.rounds, len(trained.rounds)) == ("", 0, 0)
    assert any("violates the privacy limit" in note for note in trained.checked().plan.notes)


def test_a_run_of_another_plan_is_not_resumed(scenario, folder):
    run(scenario, folder / "out")
    (folder / "mine.py").write_text(CODE.replace("share=0.5", "share=0.25"))
    with pytest.raises(ValueError, match="plan"):
        run(scenario, folder / "out", resume=True)


def test_the_explorer_runs_it_only_if_started_with_it(scenario):
    design = from_scenario(scenario)
    assert design.scenario().plan().policy == "mine:strongest"
    assert design.change("policy.name", "full").scenario().plan().num_scheduled == 8
    with pytest.raises(ScenarioError, match=r"policy.name (must|to) be one of .* in the explorer"):
        from_query({"policy.name": scenario.anchored().policy.name}).scenario()


@pytest.mark.parametrize("changes", [False, True])
def test_a_policy_that_writes_into_its_problem_does_not_move_the_plan(problem, changes):
    def meddle(problem):
        with pytest.raises(ValueError, match="read-only"):
            problem.fleet.gain *= 10
        problem.fleet.gain.flags.writeable = True
        problem.fleet.gain[:] *= 10
        object.__setattr__(problem.link, "noise_std", 100 * problem.link.noise_std)
        object.__setattr__(problem.budget, "epsilon", 100 * problem.budget.epsilon)
        return [0, 1]

    gain = np.stack([problem.fleet.gain] * 12) if changes else problem.fleet.gain.copy()
    problem = replace(problem, fleet=Fleet(gain=gain, peak_power=problem.fleet.peak_power))
    decided, expected = (
        plan(problem, policy=policy, rounds=2).to_dict() for policy in (meddle, lambda problem: [0, 1])
    )
    assert {**decided, "policy": ""} == {**expected, "policy": ""}
    np.testing.assert_array_equal(problem.fleet.gain, gain)


class FalseClaim(Method):
    """A method that claims noise which is not added."""

    name, title = "over_the_air", "A method with a false claim."

    def limits(self, problem, devices, rounds):
        return {"privacy": 1.0}

    def signal(self, problem, *, gain, peak_power, amplitude, rounds):
        return over_the_air(problem, gain=gain, amplitude=amplitude, privacy_noise_std=1e3)


def test_a_method_of_the_users_own_is_refused(random_problem):
    problem = random_problem(np.random.default_rng(0), devices=4)
    with pytest.raises(ValueError, match="must return a method of airfed, got FalseClaim"):
        plan(problem, policy=once(lambda there: FalseClaim()))


def test_a_table_that_takes_longer_than_the_air_time_is_refused(random_problem):
    problem = random_problem(np.random.default_rng(0), devices=3, total_steps=20)
    timed = replace(
        problem,
        link=replace(problem.link, bandwidth=float(problem.learning.dimension)),
        budget=replace(problem.budget, air_time=3.0),
    )
    policy = once(lambda there: np.full((15, 3), 1e-6))
    assert plan(problem, policy=policy).rounds == 15
    with pytest.raises(InfeasibleError, match="air_time"):
        plan(timed, policy=policy)
