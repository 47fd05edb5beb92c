"""Plans for time-varying channels and batteries, by every policy."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import airfed
import oracle
import problems
from airfed import InfeasibleError, Plan
from airfed.planning import limits
from airfed.planning.policy import next_device
from airfed.planning.time_varying.planner import instance_of
from airfed.policies import POLICIES
from problems import BATTERIES, BUDGETS, make, planned

PROBLEMS = BUDGETS | BATTERIES


def gains(seed, rounds=8, devices=8):
    return problems.gains(seed, rounds, devices)


def make_problem(seed=0, *, gain=None, **rest):
    return make(gains(seed) if gain is None else gain, dimension=500, **rest)


def samples(devices=8, rounds=8):
    return problems.gains(77, 3, rounds, devices)


def check(plan):
    oracle.check(plan)
    oracle.check_limits(plan, allowed=limits.allowed_mu(plan.problem.budget))
    assert plan.violations == ()
    assert plan.bound.total >= plan.lower_bound


@pytest.mark.parametrize("name", ["round", "total", "battery", "imperfect CSI"])
def test_the_clairvoyant_plan_is_best_and_knows_how_good_it_is(name):
    problem = make_problem(**PROBLEMS[name])
    best = airfed.plan(problem)
    assert best.policy == "optimal"
    assert best.to_dict() == {**planned(problem, "clairvoyant").to_dict(), "policy": "optimal"}
    for policy in POLICIES.keys() - {"weighted"}:  # the others align the devices
        for given in (None, samples()):
            plan = planned(problem, policy, samples=given)
            assert plan.bound.total >= best.lower_bound * (1 - 1e-12)
            if name in ("round", "total"):
                assert plan.bound.total >= best.bound.total * (1 - 1e-3)


def test_constant_gains_are_planned_at_least_as_well_as_by_one_plan():
    gain = gains(3)[0]
    one = airfed.plan(make_problem(gain=gain))
    many = airfed.plan(make_problem(gain=np.tile(gain, (8, 1))))
    assert many.bound.total <= one.bound.total * (1 + 1e-9)


def test_a_battery_is_one_more_limit():
    free, tight, empty = (airfed.plan(make_problem(device_power=watts)) for watts in (1e6, 0.5, 0.05))
    assert free.bound.total == pytest.approx(airfed.plan(make_problem()).bound.total, rel=1e-2)
    assert free.bound.total < tight.bound.total < empty.bound.total
    assert tight.binding == "device_power"
    still = make_problem(gain=gains(1)[0], device_power=0.5)  # gains stay, and still the rounds differ
    check(airfed.plan(still))


def test_an_inactive_device_spends_no_privacy():
    problem = make_problem(**PROBLEMS["total"])
    plan = airfed.plan(problem, policy="top_k", rounds=8)
    sends = (plan.amplitude > 0).sum(axis=0)
    assert sends.max() < 8
    exposures = np.zeros(8)
    exposures[plan.scheduled] = plan.sequence.exposures()
    assert np.all((exposures == 0) == (sends == 0))
    assert plan.mu_total < math.sqrt(np.square(plan.sequence.mus).sum())  # of who would send in every round


def test_a_user_defined_rule_is_called_in_each_round():
    calls = []

    def strongest(problem, *, round_index):
        calls.append(round_index)
        return [int(problem.fleet.gain.argmax())]

    problem = make_problem()
    plan = airfed.plan(problem, policy=strongest, rounds=5)
    assert [entry.scheduled.tolist() for entry in plan.sequence] == [
        [int(k)] for k in problem.fleet.gain[:5].argmax(axis=1)
    ]
    assert set(calls) == set(range(5))
    check(plan)


def test_uniform_draws_anew_in_each_round():
    plan = airfed.plan(make_problem(), policy="uniform", rounds=8)
    assert len({tuple(entry.scheduled) for entry in plan.sequence}) > 1


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"rounds": 9}, "rounds must be at most total_steps, 8; got 9"),
        ({"steps": 40}, {"rounds": 20}, "rounds must be at most 8, the rounds with gains and local steps; got 20"),
        ({"device_power": [1.0, 2.0]}, {}, "device_power must have one entry per device"),
        ({"device_power": -1.0}, {}, "device_power"),
        ({}, {"clip_norm": 1.0}, "clip_norm"),
        ({"device_power": math.nan}, {}, "device_power"),
    ],
)
def test_impossible_arguments_are_refused(change, options, message):
    with pytest.raises(ValueError, match=message):
        airfed.plan(make_problem(**change), **options)


def test_a_round_without_a_reachable_device_is_infeasible():
    blocked = gains(0)
    blocked[3] = 0.0
    with pytest.raises(InfeasibleError, match="gain of round 4 is 0"):
        airfed.plan(make_problem(gain=blocked), rounds=6)
    assert airfed.plan(make_problem(gain=blocked)).rounds <= 3
    with pytest.raises(InfeasibleError, match="gain 0 in round 4"):
        planned(make_problem(gain=blocked), "full", rounds=6)
    with pytest.raises(InfeasibleError):
        airfed.plan(make_problem(gain=np.zeros((4, 3))))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("budget", [{}, {"device_power": 0.6}, {"scope": "total"}])
@pytest.mark.parametrize("policy", ["optimal", "myopic"])
@pytest.mark.parametrize("index", [0, 3])
def test_a_causal_plan_names_the_round_without_a_reachable_device(policy, budget, index):
    blocked = gains(0)
    blocked[index] = 0.0
    with pytest.raises(InfeasibleError, match=f"every gain of round {index + 1} is 0"):
        airfed.plan(make_problem(gain=blocked, **budget), policy=policy, samples=samples(), rounds=8)


@pytest.mark.parametrize("causal", [False, True], ids=["known", "samples"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_trace_may_have_fewer_rounds_than_there_are_local_steps(policy, causal):
    problem = make_problem(gain=gains(0, rounds=3), steps=60)
    plan = planned(problem, policy, samples=samples(rounds=3) if causal else None)
    assert plan.rounds <= 3
    check(plan)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("policy", ["optimal", "myopic"])
def test_some_device_transmits_in_each_round_for_any_csi_error(policy, devices):
    for seed in range(8):
        problem = make_problem(gain=gains(seed, devices=devices), csi_error=0.01)
        plan = airfed.plan(problem, policy=policy, samples=samples(devices=devices), rounds=8)
        assert plan.rounds == 8
        check(plan)


def test_a_rule_without_a_device_for_a_late_round_ends_before_it():
    weak = np.full((8, 3), 0.9)
    weak[5] = 0.2
    assert airfed.plan(make_problem(gain=weak), policy="threshold", threshold=0.5).rounds <= 5
    with pytest.raises(InfeasibleError, match="the largest gain is"):
        airfed.plan(make_problem(gain=weak), policy="threshold", threshold=0.5, rounds=6)


def test_no_one_device_is_the_next_where_rounds_differ():
    for problem in (make_problem(), make_problem(gain=gains(0)[0], device_power=0.6)):
        assert next_device(airfed.plan(problem, policy="top_k", size=3)) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alignment", 1.0),
        ("mu_total", 1.0),
        ("sequence", [{"mask": "!", "alignment": 1.0}]),
        ("sequence", []),
    ],
)
def test_an_edited_record_is_refused(field, value):
    problem = make_problem()
    recorded = json.loads(json.dumps(airfed.plan(problem).to_dict()))
    recorded[field] = value
    with pytest.raises(ValueError, match=r"must |not the record of a plan|compressed bits"):
        Plan.from_dict(problem, recorded)


def test_imperfect_csi_costs_privacy_in_every_round():
    known, imperfect = airfed.plan(make_problem()), airfed.plan(make_problem(csi_error=0.01))
    assert imperfect.amplification > 1
    assert imperfect.bound.total > known.bound.total
    adversary = replace(
        make_problem(csi_error=0.01), link=replace(make_problem(csi_error=0.01).link, assume_perfect_csi=True)
    )
    assert airfed.plan(adversary).bound.total == pytest.approx(known.bound.total, rel=1e-9)


def test_more_budget_is_never_much_worse():
    for scale in (0.3, 1.0, 3.0):
        less, more = (airfed.plan(make_problem(total_power=18.0 * factor)).bound.total for factor in (scale, 2 * scale))
        assert more <= less * (1 + 1e-3)


def test_the_instance_has_the_allowance_of_the_budget():
    problem = make_problem(**PROBLEMS["total"])
    made = instance_of(problem)
    assert made.device_exposure is not None
    assert math.isclose(made.cap, 0.3 * limits.allowed_mu(problem.budget) / 2, rel_tol=1e-11)
    assert np.allclose(made.device_exposure, made.cap**2)
