"""Planning over the whole range of valid problems: a plan with finite values, or one sentence."""

import json
import math
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airfed import Budget, Fleet, InfeasibleError, Learning, Link, Problem, plan
from airfed.planning import Settings, candidates, optimal
from airfed.planning.limits import amplified
from airfed.planning.optimal import effective_peak_power
from airfed.planning.paper import beats_full_participation
from airfed.policies import POLICIES, compare
from brute_force import brute_force_schedule


def decades(low, high):
    """Log-uniform numbers, including both ends."""
    ends = st.sampled_from([10.0**low, 10.0**high, 1.0])
    return st.one_of(st.floats(low, high).map(lambda x: min(max(10.0**x, 10.0**low), 10.0**high)), ends)


EVERY_POLICY = st.sampled_from(list(POLICIES))
WIDE = decades(-100, 100)
NARROW = decades(-3, 3)
DELTA = st.one_of(st.floats(-323, -1).map(lambda x: 10.0**x), st.sampled_from([5e-324, 0.5, 0.999999, 1 - 2**-53]))


@st.composite
def problems(draw, most_devices=7, most_steps=8):
    """Problems of which each part is either ordinary or anywhere in its range."""

    def some(wide=WIDE, narrow=NARROW):
        return draw(wide if draw(st.booleans()) else narrow)

    number = draw(st.integers(1, most_devices))
    gains = st.one_of(st.just(0.0), st.just(1.0), NARROW, WIDE) if draw(st.booleans()) else NARROW
    gain = draw(st.lists(gains, min_size=number, max_size=number))
    powers = st.lists(st.one_of(NARROW, WIDE), min_size=number, max_size=number)
    power = draw(powers) if draw(st.booleans()) else some()
    smoothness = some()
    convexity = draw(st.sampled_from([1.0, 1 - 1e-16, 0.5, 1e-3, 1e-12, 1e-100, 1e-200]))
    scope, formula = draw(st.sampled_from([("round", "classic"), ("round", "exact"), ("total", "exact")]))
    return Problem(
        fleet=Fleet(gain=gain, peak_power=power),
        link=Link(
            noise_std=some(),
            csi_error=draw(st.one_of(st.just(0.0), WIDE, NARROW)),
            csi_failure=draw(DELTA),
            assume_perfect_csi=draw(st.booleans()),
        ),
        learning=Learning(
            dimension=draw(st.sampled_from([1, 21840, 2**53])),
            total_steps=draw(st.one_of(st.integers(1, most_steps), st.sampled_from([1, 200, 3000]))),
            clip_norm=some(),
            learning_rate=some(decades(-30, 30)),
            smoothness=smoothness,
            strong_convexity=min(max(smoothness * convexity, 1e-100), smoothness),
            initial_gap=some(),
        ),
        budget=Budget(
            epsilon=some(decades(-323, 100)),
            delta=draw(DELTA),
            total_power=some(decades(-323, 100)),
            scope=scope,
            formula=formula,
            adjacency=draw(st.sampled_from(["replace_one", "add_remove"])),
        ),
    )


def numbers(value):
    """Every number in nested lists and dictionaries."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [x for item in value for x in numbers(item)]
    return [value] if isinstance(value, int | float) else []


def check_plan(problem, result):
    record = result.to_dict()
    json.dumps(record, allow_nan=False)
    assert all(math.isfinite(x) for x in numbers(record))
    linear = {name: value for name, value in record.items() if not name.endswith("_db")}
    assert all(x >= 0 for x in numbers(linear))
    for name in ("alignment", "alignment_coefficient", "power_total", "mu_round", "mu_total", "amplification"):
        assert record[name] > 0
    assert min(record["power"]) > 0
    assert record["bound"]["total"] > 0
    assert math.isfinite(result.epsilon_paper)
    if not result.violations:
        allowed = 1 + 1e-12
        assert np.all(result.power <= problem.fleet.peak_power[result.scheduled] * allowed)
        assert result.power_total <= problem.budget.total_power * allowed
        budget = problem.budget
        spent = result.epsilon_round if budget.scope == "round" else result.epsilon_total
        assert (result.epsilon_paper if budget.formula == "classic" else spent) <= budget.epsilon * allowed
    assert result.policy == "paper" or not result.violations
    beats_full_participation(
        problem, num_scheduled=result.num_scheduled, alignment=result.alignment, rounds=result.rounds
    )


def check_error(error):
    text = str(error)
    assert re.match(r"No plan fits: |[\w\[\], ]+ must (be|have) |The search over \d+ numbers of rounds stopped ", text)
    assert text.endswith(".")
    assert "\n" not in text
    assert len(text) < 300


def attack(problem, policy, rounds):
    """Plan with the policy; check the plan, or the error."""
    options = {"rounds": rounds} if rounds is not None and rounds <= problem.learning.total_steps else {}
    if policy == "threshold":
        options["threshold"] = float(np.median(problem.fleet.gain))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = plan(problem, policy=policy, **options)
        except ValueError as error:
            check_error(error)
            return None
        check_plan(problem, result)
        if policy == "optimal":
            candidates(result)
        return result


MOST_APART = 40  # numbers of rounds that brute force tries one by one


def check_optimum(problem, result):
    """`optimal` is within rounding of the best of all subsets and numbers of rounds.

    Where each number of rounds has its own peak powers there are thousands of searches: its own and some others then.
    """
    if result is None:
        return
    rounds = np.arange(1, problem.learning.total_steps + 1)
    groups = [rounds]
    if amplified(problem) and problem.budget.scope == "total":
        spread = np.geomspace(1, rounds.size, MOST_APART).astype(int)
        groups = np.union1d(spread, result.rounds)[:, None] if rounds.size > MOST_APART else rounds[:, None]
    best = math.inf
    with np.errstate(all="ignore"):
        for group in groups:
            power = effective_peak_power(problem, int(group[0]))
            best = min(
                best, brute_force_schedule(problem.fleet.gain, power, **optimal.candidates(problem, group)).objective
            )
    assert result.bound.total <= best * (1 + 1e-9)
    assert result.bound.total >= best * (1 - 1e-9)


def examples(count):
    return settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
    )


ONES = {"total_steps": 1, "clip_norm": 1.0, "learning_rate": 1.0, "initial_gap": 1.0}
ONES |= {"smoothness": 1.0, "strong_convexity": 1.0}
FAR_APART = Problem(  # the strong device takes the whole power, up to rounding
    fleet=Fleet(gain=[1.0, 1e-8], peak_power=[1.0, 1.0]),
    link=Link(noise_std=1.0),
    learning=Learning(**ONES, dimension=1),
    budget=Budget(epsilon=10.0, delta=0.1, total_power=1.0, scope="round", formula="classic"),
)


@examples(400)
@given(problem=problems(), policy=EVERY_POLICY, rounds=st.sampled_from([None, None, 1, 2]))
@example(problem=FAR_APART, policy="weighted", rounds=None)
def test_extreme_problems_have_a_plan_or_a_sentence(problem, policy, rounds):
    attack(problem, policy, rounds)


@pytest.mark.slow
@examples(800)
@given(
    problem=problems(most_devices=30),
    policy=EVERY_POLICY,
    rounds=st.sampled_from([None, None, 1, 2]),
)
def test_many_extreme_problems_have_a_plan_or_a_sentence(problem, policy, rounds):
    attack(problem, policy, rounds)


@st.composite
def changing(draw):
    """Problems whose gains change, with or without batteries; and two samples for a causal plan, or None."""
    problem = draw(problems(most_devices=5))
    shape = draw(st.integers(1, 4)), problem.fleet.num_devices
    gains = draw(st.sampled_from([decades(-30, 30), NARROW, st.one_of(NARROW, decades(-12, 12), st.just(0.0))]))

    def table():
        return draw(
            st.lists(st.lists(gains, min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0])
        )

    battery = draw(st.one_of(st.none(), NARROW, WIDE))
    return replace(
        problem,
        fleet=Fleet(gain=table(), peak_power=problem.fleet.peak_power),
        link=replace(problem.link, csi_failure=max(problem.link.csi_failure, 1e-300)),
        learning=replace(problem.learning, total_steps=min(problem.learning.total_steps, 30)),
        budget=replace(problem.budget, device_power=battery),
    ), draw(st.booleans()) and np.array([table(), table()])


def attack_changing(drawn):
    """Plan by `weighted`; whatever comes of it is proper."""
    problem, samples = drawn
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = plan(problem, policy="weighted", samples=None if samples is False else samples)
        except ValueError as error:
            check_error(error)
            return
        json.dumps(result.to_dict(), allow_nan=False)
    assert not result.violations
    assert result.lower_bound <= result.bound.total * (1 + 1e-12)


BEYOND = Problem(  # the bound is beyond the range of float64
    fleet=Fleet(gain=[[1.0, 1e-26, 1e30]], peak_power=1e-2),
    link=Link(noise_std=3.7e99),
    learning=Learning(**ONES | {"clip_norm": 3.4e95, "smoothness": 1e-100, "strong_convexity": 1e-100}, dimension=1),
    budget=Budget(epsilon=1.0, delta=1e-323, total_power=1e100, scope="round"),
)


@examples(25)
@given(drawn=changing())
@example(drawn=(BEYOND, False))
def test_extreme_changing_gains_have_a_weighted_plan_or_a_sentence(drawn):
    attack_changing(drawn)


@examples(150)
@given(problem=problems())
def test_the_optimum_of_extreme_problems_is_that_of_all_subsets(problem):
    check_optimum(problem, attack(problem, "optimal", None))


@pytest.mark.slow
@examples(1000)
@given(problem=problems())
def test_the_optimum_of_many_extreme_problems_is_that_of_all_subsets(problem):
    check_optimum(problem, attack(problem, "optimal", None))


@examples(60)
@given(problem=problems())
def test_comparing_extreme_problems_is_strict_json(problem):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            plans, reasons = compare(problem, Settings())
        except InfeasibleError as error:
            check_error(error)
            return
    for text in reasons.values():
        check_error(text)
    if "optimal" in plans:
        best = plans["optimal"].bound.total
        json.dumps({name: result.bound.total / best - 1 for name, result in plans.items()}, allow_nan=False)
