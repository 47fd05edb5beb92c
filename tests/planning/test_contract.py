"""One contract for all policies and baselines, on every problem of the catalogue."""

import json
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import oracle
import problems
from airfed import Fleet, InfeasibleError, Plan
from airfed.planning import Policy, limits
from airfed.policies import BASELINES, EVERY, METHODS, POLICIES


def strongest_third(problem):
    """A policy that a user might write."""
    return np.argsort(problem.fleet.gain)[-max(1, problem.fleet.num_devices // 3) :]


OWN = Policy.from_function(strongest_third)
ALL = {**EVERY, OWN.name: OWN}
SEEDS = {"static": 2, "random": 6}
CAUSAL = [name for name in ALL if name != "clairvoyant"]
REPEATED = ("static/total", "varying/total", "antennas/beamformer total", "varying antennas/beamformer round")
SLOW = re.compile(
    r"radio|beamformer round|random/round|static/battery t|varying/(add|battery t|cl|imperfect CSI t|li|tr|un)"
)
QUICK = [(policy, f"{family}antennas/radio round") for policy in ("optimal", "full") for family in ("", "varying ")]
CASES = [
    pytest.param(*case, marks=[pytest.mark.slow] if SLOW.search(case[1]) and case not in QUICK else [])
    for case in product(ALL, problems.CATALOGUE)
]
VARYING = [name for name in problems.CATALOGUE if name.startswith("varying/")]


def planned(problem, policy, **options):
    if policy in EVERY:
        return problems.planned(problem, policy, **options)
    return problems.planned(problem, ALL[policy], **options)


def check(plan, problem, policy):
    """Check the properties of every plan."""
    oracle.check(plan)
    assert plan.policy == policy
    assert plan.sizes.min() >= 1
    assert min(plan.bound.terms.values()) >= 0
    assert plan.lower_bound <= plan.bound.total * (1 + 1e-12)
    assert plan.binding == min(plan.limits, key=plan.limits.get)
    assert any("Not private" in note for note in plan.notes) != plan.private
    if plan.violations:
        assert policy == "paper"
        for name in plan.violations:
            assert any(f"violates the {name} limit" in note for note in plan.notes)
    else:
        oracle.check_limits(plan, allowed=limits.allowed_mu(problem.budget))
    if problem.budget.air_time is not None:
        assert plan.air_time <= problem.budget.air_time * (1 + 1e-9)
    record = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    again = Plan.from_dict(problem, record, METHODS)
    assert again.to_dict() == plan.to_dict() == record
    assert again.method == plan.method
    np.testing.assert_allclose(again.amplitude, plan.amplitude, rtol=1e-15, atol=0)


@pytest.mark.parametrize(("policy", "name"), CASES)
def test_contract(policy, name):
    for seed in range(SEEDS.get(name.partition("/")[0], 1)):
        problem = problems.CATALOGUE[name](seed)
        for causal in {False, problem.fleet.time_varying and policy in CAUSAL}:
            samples = problems.samples(problem) if causal else None
            if words := problems.refusal(policy, name):
                with pytest.raises(ValueError, match=words):
                    planned(problem, policy, samples=samples)
                continue
            plan = planned(problem, policy, samples=samples)
            check(plan, problem, policy)
            if name in REPEATED:
                assert planned(problem, policy, samples=samples).to_dict() == plan.to_dict()


@pytest.mark.parametrize("name", [name for name in problems.CATALOGUE if name.startswith(("static", "random"))])
def test_no_schedule_of_aligned_devices_beats_the_optimum(name):
    for seed in range(1 if "battery" in name else 3):
        problem = problems.CATALOGUE[name](seed)
        best = problems.planned(problem)
        for policy in (*POLICIES, OWN.name):
            if policy == "weighted":  # not aligned
                continue
            plan = planned(problem, policy)
            if not plan.violations:
                assert plan.bound.total >= max(
                    best.bound.total * (1 - 1e-3 * problem.time_varying - 1e-12), best.lower_bound
                )
                if not problem.time_varying:  # nothing is left unused
                    assert plan.alignment == pytest.approx(plan.limits[plan.binding], rel=1e-9)


@pytest.mark.parametrize("name", VARYING)
@pytest.mark.parametrize("policy", CAUSAL)
def test_with_samples_no_round_depends_on_later_gains(policy, name):
    if problems.refusal(policy, name):
        return
    for seed in range(3):
        problem = problems.CATALOGUE[name](seed)
        samples, rounds = problems.samples(problem), min(7, problem.most_rounds)
        later = np.array(problem.fleet.gain)
        later[rounds // 2 :] = problems.gains(50 + seed, *later.shape)[rounds // 2 :]
        other = replace(problem, fleet=Fleet(gain=later, peak_power=problem.fleet.peak_power))
        plans = [planned(each, policy, samples=samples, rounds=rounds) for each in (problem, other)]
        assert np.array_equal(*(plan.amplitude[: rounds // 2] for plan in plans))  # to the last bit
    if name in ("varying/round", "varying/air time"):  # nor does their number
        free = [planned(each, policy, samples=samples).rounds for each in (problem, other)]
        assert free[0] == free[1]


@pytest.mark.parametrize("name", ["static/round", "static/total", "random/total exact replace_one 2", "varying/total"])
@pytest.mark.parametrize("policy", ALL)
def test_rounds_can_be_fixed(policy, name):
    problem = problems.CATALOGUE[name](0)
    most = min(8, problem.learning.total_steps)
    each = {rounds: planned(problem, policy, rounds=rounds) for rounds in range(1, most + 1)}
    assert [plan.rounds for plan in each.values()] == list(each)
    free = planned(problem, policy)
    if policy != "paper" and most == problem.learning.total_steps:  # Algorithm 2 may stop before
        assert free.bound.total <= min(plan.bound.total for plan in each.values()) * (1 + 1e-3)
        if not problem.time_varying and policy != "truncated_inversion":
            assert free.to_dict() == each[free.rounds].to_dict()
    assert planned(problem, policy, rounds=np.int64(1)).to_dict() == each[1].to_dict()


@pytest.mark.parametrize("policy", ALL)
def test_gains_of_zero_and_noise_without_end_are_one_sentence(policy):
    dead = problems.make([0.0, 0.0], scope="total")
    drowned = problems.make(noise=1e100, total_power=5e-324)
    for problem in (dead, drowned):
        for rounds in (None, 3):
            if policy in ("fedavg", "dp_fedavg") or (
                problem is drowned and policy in ("digital", "secure_aggregation")
            ):
                continue
            with pytest.raises(InfeasibleError, match=r"^No plan fits: [^\n]*\.$"):
                planned(problem, policy, rounds=rounds)


@pytest.mark.parametrize("policy", [*BASELINES, "full"])
def test_the_noise_that_hides_a_device_stays_when_it_is_removed(policy):
    for name in ("static/add-remove", "varying/add-remove"):
        if problems.refusal(policy, name):
            continue
        plan = problems.planned(problems.CATALOGUE[name](0), policy)
        for entry in plan.sequence if plan.private else ():
            assert entry.signal.privacy_noise_std == plan.problem.link.noise_std  # the receiver's or the server's
            assert entry.signal.constant_power is None  # nothing that a device sends apart from its update


@pytest.mark.parametrize("policy", problems.REPLACE_ONLY)
def test_no_plan_of_artificial_noise_or_orthogonal_uploads_has_add_remove_adjacency(policy):
    plan = problems.planned(problems.make(scope="total"), policy, rounds=4)
    other = replace(plan.problem, budget=replace(plan.problem.budget, adjacency="add_remove"))
    for attempt in (
        lambda: replace(plan, problem=other),
        lambda: Plan.from_dict(other, plan.to_dict(), METHODS),
        lambda: problems.planned(other, lambda problem: plan),
    ):
        with pytest.raises(InfeasibleError, match=problems.REPLACE_ONLY[policy]):
            attempt()


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("name", ["varying/total", "varying/battery"])
def test_plans_are_finite_where_only_the_last_round_counts(policy, name):
    """With ϱ = ζ all earlier rounds have the weight 0."""
    problem = problems.CATALOGUE[name](0)
    learning = replace(problem.learning, strong_convexity=problem.learning.smoothness)
    for samples in (None, problems.gains(77, 3, 8, 8)):
        try:
            plan = planned(replace(problem, learning=learning), policy, samples=samples)
        except InfeasibleError:
            continue
        json.dumps(plan.to_dict(), allow_nan=False)
        assert np.isfinite(plan.bound.total)
