"""The value types: checked on construction, frozen, float64."""

import dataclasses

import numpy as np
import pytest

from airfed import Budget, Fleet, InfeasibleError, Learning, Link, Problem, plan

LEARNING = {
    "dimension": 100,
    "total_steps": 20,
    "clip_norm": 1.0,
    "learning_rate": 0.1,
    "smoothness": 10.0,
    "strong_convexity": 0.1,
    "initial_gap": 2.3,
}
BUDGET = {"epsilon": 2.0, "delta": 1e-3, "total_power": 10.0}
NAN, INF = float("nan"), float("inf")


def test_fleet():
    fleet = Fleet(gain=[0.2, 0.5, 0.0], peak_power=2)
    assert fleet.num_devices == 3
    assert fleet.equal_peak_power
    assert fleet.peak_power.tolist() == [2.0, 2.0, 2.0]
    assert fleet.gain.dtype == fleet.peak_power.dtype == np.float64
    assert Fleet(gain=[1.0, 2.0], peak_power=[3.0, 3.0]).equal_peak_power
    assert not Fleet(gain=[1.0, 2.0], peak_power=[3.0, 4.0]).equal_peak_power
    for array in (fleet.gain, fleet.peak_power):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0


@pytest.mark.parametrize(
    ("gain", "peak_power", "named"),
    [
        ([], 1.0, "gain must have at least one entry"),
        ([0.5, -0.5], 1.0, r"gain\[1\] must be non-negative and finite, got -0.5"),
        ([NAN], 1.0, r"gain\[0\] must be non-negative and finite, got nan"),
        ([INF], 1.0, r"gain\[0\] must be non-negative and finite, got inf"),
        ([0.5, 1e-200], 1.0, r"gain\[1\] must be 0 or between 1e-100 and 1e\+100, got 1e-200"),
        ([1e200], 1.0, r"gain\[0\] must be 0 or between 1e-100 and 1e\+100, got 1e\+200"),
        (["a"], 1.0, "gain"),
        ([0.5], 0.0, "peak_power must be positive and finite, got 0.0"),
        ([0.5], -1, "peak_power must be positive and finite, got -1"),
        ([0.5], NAN, "peak_power"),
        ([0.5], True, "peak_power"),
        ([0.5], "1 W", "peak_power"),
        ([0.5], None, "peak_power"),
        ([0.5, 0.5], [1.0], "peak_power must have one entry per device, 2; got 1"),
        ([0.5, 0.5], [1.0, 0.0], r"peak_power\[1\] must be positive and finite, got 0.0"),
        ([0.5, 0.5], [[1.0, 1.0]], "peak_power"),
    ],
)
def test_bad_fleets(gain, peak_power, named):
    with pytest.raises(ValueError, match=named):
        Fleet(gain=gain, peak_power=peak_power)


@pytest.mark.parametrize("noise_std", [0.0, -1.0, NAN, INF, True, "0.1", None, 1e-200, 1e200])
def test_bad_links(noise_std):
    with pytest.raises(ValueError, match="noise_std"):
        Link(noise_std=noise_std)


@pytest.mark.parametrize("name", LEARNING)
@pytest.mark.parametrize("value", [0, -1, NAN, INF, True, "1", None])
def test_bad_learning(name, value):
    with pytest.raises(ValueError, match=name):
        Learning(**{**LEARNING, name: value})


@pytest.mark.parametrize("name", ["dimension", "total_steps"])
@pytest.mark.parametrize("value", [1.0, 2.5, 2**60, 10**400])
def test_counts_are_whole_numbers(name, value):
    with pytest.raises(ValueError, match=name):
        Learning(**{**LEARNING, name: value})


def test_constants_that_contradict_each_other():
    with pytest.raises(ValueError, match=r"strong_convexity must be at most smoothness, 10\.0; got 11\.0"):
        Learning(**{**LEARNING, "strong_convexity": 11.0})
    assert Learning(**{**LEARNING, "strong_convexity": 10.0}).contraction == 0.0
    with pytest.raises(ValueError, match="clip_norm"):
        Learning(**{**LEARNING, "clip_norm": 1e150})
    with pytest.raises(ValueError, match=r"learning_rate must be between 1e-30 and 1e\+30, got 1e\+31"):
        Learning(**{**LEARNING, "learning_rate": 1e31})
    with pytest.raises(ValueError, match="total_steps must be at most 1000000, got 1000001"):
        Learning(**{**LEARNING, "total_steps": 1_000_001})


@pytest.mark.parametrize("value", [0.99e-100, 1.01e100, 5e-324, 1.7e308])
def test_numbers_at_the_edge_of_float64_are_refused(value):
    for name in ("clip_norm", "learning_rate", "smoothness", "initial_gap"):
        with pytest.raises(ValueError, match=name):
            Learning(**{**LEARNING, name: value})
    for power in (value, [1.0, value]):
        with pytest.raises(ValueError, match="peak_power"):
            Fleet(gain=[1.0, 1.0], peak_power=power)
    with pytest.raises(ValueError, match="gain"):
        Fleet(gain=[1.0, value], peak_power=1.0)
    with pytest.raises(ValueError, match="csi_error"):
        Link(noise_std=1.0, csi_error=value)
    for name in ("epsilon", "total_power"):
        if value > 1:  # a budget may be as small as it likes: then no plan fits
            with pytest.raises(ValueError, match=name):
                Budget(**{**BUDGET, name: value})
        else:
            assert getattr(Budget(**{**BUDGET, name: value}), name) == value


@pytest.mark.parametrize("name", ["epsilon", "total_power"])
@pytest.mark.parametrize("value", [0, -1.0, NAN, INF, True, "1", None, 10**400])
def test_bad_budgets(name, value):
    with pytest.raises(ValueError, match=name):
        Budget(**{**BUDGET, name: value})


@pytest.mark.parametrize("delta", [0, 1, 1.5, -0.1, NAN, True, "1e-3"])
def test_delta_lies_between_0_and_1(delta):
    with pytest.raises(ValueError, match="delta"):
        Budget(**{**BUDGET, "delta": delta})


@pytest.mark.parametrize(
    ("name", "value"), [("scope", "all"), ("formula", "best"), ("adjacency", "swap"), ("scope", None)]
)
def test_values_outside_a_list_of_choices_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be one of"):
        Budget(**{**BUDGET, name: value})


def test_the_classic_formula_is_refused_for_totals():
    with pytest.raises(ValueError, match='formula must be "exact" with scope="total"'):
        Budget(**BUDGET, scope="total", formula="classic")
    assert Budget(**BUDGET).formula == "exact"
    assert Budget(**BUDGET).scope == "round"


def test_sensitivity():
    assert Budget(**BUDGET).sensitivity == 2.0
    assert Budget(**BUDGET, adjacency="add_remove").sensitivity == 1.0


def test_parts_must_be_of_their_kind():
    parts = {
        "fleet": Fleet(gain=[1.0], peak_power=1.0),
        "link": Link(noise_std=0.1),
        "learning": Learning(**LEARNING),
        "budget": Budget(**BUDGET),
    }
    Problem(**parts)
    for name in parts:
        with pytest.raises(ValueError, match=f"{name} must be a"):
            Problem(**{**parts, name: {"gain": [1.0]}})
    with pytest.raises(TypeError):
        Problem(*parts.values())  # keywords only


def test_values_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Link(noise_std=0.1).noise_std = 0.2
    with pytest.raises(dataclasses.FrozenInstanceError):
        Fleet(gain=[1.0], peak_power=1.0).gain = [2.0]


def test_single_precision_does_not_spread():
    # float32 in, float64 inside: 0.1 as float32 is 0.100000001490116...
    narrow = {
        name: np.float32(value) if isinstance(value, float) else np.int32(value) for name, value in LEARNING.items()
    }
    learning = Learning(**narrow)
    assert all(type(getattr(learning, name)) is float for name, value in LEARNING.items() if isinstance(value, float))
    assert type(Link(noise_std=np.float32(0.1)).noise_std) is float
    budget = Budget(**{name: np.float32(value) for name, value in BUDGET.items()})
    assert {type(getattr(budget, name)) for name in BUDGET} == {float}
    assert type(learning.dimension) is type(learning.total_steps) is int
    problem = Problem(
        fleet=Fleet(gain=np.array([0.2, 1.0], dtype=np.float32), peak_power=np.float32(1.0)),
        link=Link(noise_std=np.float32(0.1)),
        learning=learning,
        budget=budget,
    )
    result = plan(problem)
    assert type(result.alignment) is float
    assert type(result.bound.total) is float
    assert result.power.dtype == np.float64


def test_an_infeasible_problem_is_a_value_error():
    assert issubclass(InfeasibleError, ValueError)
