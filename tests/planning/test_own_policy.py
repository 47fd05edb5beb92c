"""A policy of the user's own, as a function and as "module:callable" in a scenario."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from airfed import Decision, Fleet, InfeasibleError, Run, load, plan, run
from airfed.explorer.design import from_query, from_scenario
from airfed.planning import POLICIES
from airfed.scenario import ScenarioError

CODE = """
import numpy as np
from airfed import Decision, InfeasibleError
import pick

def strongest(problem, *, share=0.5):
    return pick.strongest(problem.fleet.gain, share)

def seeded(problem, seed, size=2):
    return np.random.default_rng(seed).permutation(problem.fleet.num_devices)[:size]

def loud(problem):
    return Decision(scheduled=[0, 1], alignment=1e3)

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
WORLD = (
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
    (tmp_path / "world.toml").write_text(WORLD)
    return tmp_path


@pytest.fixture
def world(folder):
    return load(folder / "world.toml")


@pytest.fixture
def problem(world):
    return world.problem()


def strongest(problem, count):
    return sorted(np.argsort(problem.fleet.gain)[-count:].tolist())


def test_a_function_decides(problem):
    decision = plan(problem, policy=lambda problem: problem.fleet.gain > np.median(problem.fleet.gain))
    assert decision.scheduled.tolist() == strongest(problem, 4)
    assert decision.violations == ()
    assert decision.alignment == pytest.approx(min(decision.limits.values()), rel=1e-9)


def test_it_may_decide_the_rounds_and_the_alignment(problem):
    decision = plan(problem, policy=lambda problem: Decision(scheduled=[5, 2], alignment=0.01, rounds=3, notes=("so",)))
    assert (decision.scheduled.tolist(), decision.alignment, decision.rounds) == ([2, 5], 0.01, 3)
    assert decision.notes == ("so",)


def test_of_the_rounds_it_leaves_open_the_best_feasible_ones_are_taken(problem):
    problem = replace(problem, budget=replace(problem.budget, epsilon=1e3, total_power=5.0))  # total power binds
    theta = 0.9 * plan(problem, policy=lambda problem: [0, 1], rounds=4).limits["total_power"]
    decision = plan(problem, policy=lambda problem: Decision(scheduled=[0, 1], alignment=theta))
    each = [
        plan(problem, policy=lambda problem, i=i: Decision(scheduled=[0, 1], alignment=theta, rounds=i))
        for i in range(1, 13)
    ]
    feasible = [other for other in each if not other.violations]
    assert 0 < len(feasible) < len(each)
    assert decision.rounds == min(feasible, key=lambda other: other.bound.total).rounds
    loud = plan(problem, policy=lambda problem: Decision(scheduled=[0, 1], alignment=1e3))
    assert loud.violations  # at any number of rounds: the best of all is taken, and flagged


def test_a_broken_limit_is_flagged(world, problem):
    decision = world.vary({"policy.name": "mine:loud"}).plan()
    assert set(decision.violations) == {"privacy", "peak_power", "total_power"}
    for name in decision.violations:
        assert any(f"breaks the {name} limit" in note for note in decision.notes)


def test_settings_are_those_that_the_function_names(world, problem):
    assert world.decider.settings == {"share"}
    assert world.plan().scheduled.tolist() == strongest(problem, 4)
    assert world.override({"policy.options": {"share": 0.25}}).plan().scheduled.tolist() == strongest(problem, 2)
    seeded = world.vary({"policy.name": "mine:seeded"})
    assert seeded.plan().num_scheduled == 2
    assert seeded.override({"policy.size": 5}).plan().num_scheduled == 5
    assert seeded.override({"seed": 3}).plan(problem).scheduled.tolist() != seeded.plan(problem).scheduled.tolist()


def test_varying_the_policy_drops_what_the_new_one_does_not_take(world):
    mine = world.override({"policy.options": {"share": 0.25}})
    assert mine.vary({"policy.name": "full"}).plan().num_scheduled == 8
    sized = mine.vary({"policy.name": "uniform", "policy.size": 3})
    assert sized.plan().num_scheduled == 3
    assert sized.vary({"policy.name": "mine:strongest"}).plan().num_scheduled == 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"policy.name": "mine:nothing"}, "to have a callable 'nothing'"),
        ({"policy.name": "mine:fails"}, r"policy 'mine:fails' to decide; IndexError: .* \(mine.py, line 16\)"),
        ({"policy.name": "mine:needs"}, r"a value of order \(policy.options.order in a scenario\)"),
        ({"policy.name": "elsewhere:f"}, "there is no module 'elsewhere'"),
        ({"policy.options": {"shere": 0.3}}, "no shere with policy='mine:strongest': it takes share"),
        ({"policy.size": 3}, "no size with policy='mine:strongest': it takes share"),
        ({"policy.name": "full", "policy.options": {"share": 0.3}}, "no policy.options with policy 'full'"),
    ],
)
def test_mistakes(world, changes, says):
    with pytest.raises(ValueError, match=says):
        world.override(changes).plan()


@pytest.mark.parametrize(
    "returned", [[0, 0], [8], [-1], [0.5], "abc", None, [[0], [1]], [[0], [1, 2]], [True, False], {"devices": [0]}]
)
def test_what_is_no_decision_is_refused(problem, returned):
    with pytest.raises(ValueError, match="to return device indices from 0 to 7, each once"):
        plan(problem, policy=lambda problem: returned)


@pytest.mark.parametrize("decision", [{"alignment": 0.0}, {"alignment": np.nan}, {"rounds": 0}, {"rounds": 13}])
def test_what_is_no_figure_is_refused(problem, decision):
    with pytest.raises(ValueError, match=r"Expected (0 < )?(alignment|rounds|1 <= rounds)"):
        plan(problem, policy=lambda problem: Decision(scheduled=[0], **decision))


@pytest.mark.parametrize("value", [[0, 1], {"a": 1}, float("nan")], ids=str)
def test_an_option_is_a_plain_value(world, value):
    with pytest.raises(ScenarioError, match=r"Expected policy\.options\.share to be a number, a text or true or false"):
        world.override({"policy.options": {"share": value}})


def test_arguments_without_a_name_are_no_settings(problem):
    assert plan(problem, policy=lambda problem, *more, **others: [0]).num_scheduled == 1
    with pytest.raises(ValueError, match=r"Expected no share with policy=.*: it takes no settings"):
        plan(problem, policy=lambda problem, **others: [0], options={"share": 1})


def test_what_its_code_does_to_the_process_does_not_matter(world, folder, capsys):
    (folder / "mine.py").write_text(
        "import sys\nprint('imported')\n"
        "def strongest(problem):\n    print('asked')\n    sys.path.pop(0)\n    return [0]\n"
    )
    path = list(sys.path)
    assert world.plan().scheduled.tolist() == [0]
    assert sys.path == path
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "imported\nasked\n" in printed.err


class Tensor:
    """What is no plain array, as a tensor that requires a gradient."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


def test_a_tensor_that_is_no_array_is_refused(problem):
    with pytest.raises(ValueError, match="to return device indices from 0 to 7, each once; got Tensor"):
        plan(problem, policy=lambda problem: Tensor())


@pytest.mark.parametrize(
    "notes", [None, "one", (1,), ("x" * 1001,), ("\udc80",), iter(["a"])], ids=lambda notes: repr(notes)[:12]
)
def test_what_a_record_cannot_hold_is_no_note(notes):
    with pytest.raises(ValueError, match="Expected notes to be texts of at most 1000 characters"):
        Decision(scheduled=[0], notes=notes)


@pytest.mark.parametrize("name", ["rounds", "seed", "objective"])
def test_an_option_that_would_be_overruled_is_refused(problem, name):
    def mine(problem, *, rounds=1, seed=0, objective=None):
        return [0]

    with pytest.raises(ValueError, match=f"Expected no option {name}"):
        plan(problem, policy=mine, options={name: 3})


def test_nobody_is_infeasible(world, problem):
    with pytest.raises(InfeasibleError, match="schedules no device"):
        plan(problem, policy=lambda problem: [])
    with pytest.raises(InfeasibleError, match="not today"):
        world.vary({"policy.name": "mine:declines"}).plan()


def test_it_stands_beside_the_others(world):
    plans, reasons = world.compare()
    built_in = {name for name, each in POLICIES.items() if not each.for_varying}
    assert set(plans) | set(reasons) == {*built_in, "mine:strongest"}
    assert plans["mine:strongest"].bound.total >= plans["optimal"].bound.total


def test_it_trains_and_its_record_needs_no_code(world, folder):
    trained = run(world, folder / "out")
    assert trained.plan.policy == "mine:strongest"
    assert trained.label == "mine:strongest"
    (folder / "mine.py").write_text("raise SystemExit('read me not')")
    again = Run.open(folder / "out")
    assert again.plan.scheduled.tolist() == trained.plan.scheduled.tolist()
    assert again.audit().verdict == "pass"
    assert json.loads((folder / "out" / "plan.json").read_text())["policy"] == "mine:strongest"


@pytest.mark.parametrize(
    "line", ["import late", "from late import some", "import package.late as late", "from package import late"]
)
def test_what_it_imports_only_when_it_decides_is_in_its_digest(world, folder, line):
    (folder / "package").mkdir()
    for place in (folder, folder / "package"):
        (place / "late.py").write_text("import later\n")
    (folder / "later.py").write_text("def some(problem): return [0]\n")
    (folder / "unused.py").write_text("")
    (folder / "package" / "__init__.py").write_text("")
    (folder / "mine.py").write_text(f"def strongest(problem):\n    {line}\n    return [0]\n")
    first = world.decider.digest()
    (folder / "unused.py").write_text("# another")
    assert world.decider.digest() == first
    (folder / "later.py").write_text("def some(problem): return [1]\n")
    assert world.decider.digest() != first


def test_a_policy_over_its_budget_transmits_nothing_and_its_record_says_so(world, folder):
    trained = run(world.vary({"policy.name": "mine:loud"}), folder / "out")
    assert (trained.problem, trained.ledger.rounds, len(trained.rounds)) == ("", 0, 0)
    assert any("breaks the privacy limit" in note for note in trained.checked().plan.notes)


def test_another_decision_is_not_resumed(world, folder):
    run(world, folder / "out")
    (folder / "mine.py").write_text(CODE.replace("share=0.5", "share=0.25"))
    with pytest.raises(ValueError, match="plan"):
        run(world, folder / "out", resume=True)


def test_the_page_computes_it_only_where_it_was_started_with_it(world):
    design = from_scenario(world)
    assert design.world().plan().policy == "mine:strongest"
    assert design.change("policy.name", "full").world().plan().num_scheduled == 8
    with pytest.raises(ScenarioError, match=r"policy.name to be one of .* in the explorer"):
        from_query({"policy.name": world.anchored().policy.name}).world()


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
