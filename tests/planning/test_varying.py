"""Plans where rounds differ: gains that change, batteries, and every policy about them."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from airfed.planning.fading import Sequence
from airfed.planning.varying import world_of

import airfed
from airfed import Budget, Decision, Fleet, InfeasibleError, Learning, Link, Problem
from airfed.planning import POLICIES, FadingPlan, limits, prices

WORLDS = {
    "round": {},
    "total": {"scope": "total", "epsilon": 8.0},
    "battery": {"device_power": 0.6},
    "both": {"scope": "total", "epsilon": 8.0, "device_power": [0.5, 2.0] * 4},
    "rough": {"error": 0.01},
    "rough total": {"error": 0.01, "scope": "total", "epsilon": 20.0, "relation": "add_remove"},
}


def gains(seed, rounds=8, devices=8):
    return np.maximum(np.random.default_rng(seed).rayleigh(np.sqrt(0.5), (rounds, devices)), 0.1)


def world(seed=0, *, gain=None, error=0.0, steps=8, power=1.0, **budget):
    return Problem(
        fleet=Fleet(gain=gains(seed) if gain is None else gain, peak_power=power),
        link=Link(noise_std=0.3, estimation_error=error),
        learning=Learning(
            dimension=500,
            total_steps=steps,
            clip_norm=2.0,
            learning_rate=0.1,
            smoothness=10.0,
            strong_convexity=1.0,
            initial_gap=2.3,
        ),
        budget=Budget(**{"epsilon": 5.0, "delta": 1e-3, "total_power": 18.0} | budget),
    )


def decided(problem, policy, **options):
    options |= {"threshold": 0.3} if policy == "threshold" else {}
    return airfed.plan(problem, policy=policy, **options)


def law(seed=77, draws=3, rounds=8, devices=8):
    return np.stack([gains((seed, draw), rounds, devices) for draw in range(draws)])


def by_hand(plan):
    """Every limit, added up here; and Theorem 1's recursion."""
    problem = plan.problem
    learning, budget, sigma = problem.learning, problem.budget, problem.link.noise_std
    factors = np.broadcast_to(limits.amplifications(problem), plan.problem.fleet.gain.shape)
    spent, shown = np.zeros(problem.fleet.num_devices), np.zeros(problem.fleet.num_devices)
    allowed = limits.allowed_mu(budget)
    gap = learning.initial_gap
    eta = 1 - learning.strong_convexity / learning.smoothness
    for index, entry in enumerate(plan.sequence):
        gain = problem.fleet.gain_in(index)[entry.scheduled]
        power = np.square(entry.alignment / gain)
        assert np.allclose(entry.power, power, rtol=1e-12)
        assert np.all(power <= problem.fleet.peak_power[entry.scheduled] * (1 + 1e-12))
        assert math.isclose(entry.power_planned, power.sum(), rel_tol=1e-12)
        loudest = np.max((factors[index] if factors.ndim == 2 else factors)[entry.scheduled])
        mu = budget.sensitivity * entry.alignment * loudest / sigma
        assert math.isclose(entry.mu, mu, rel_tol=1e-12)
        assert mu <= allowed * (1 + 1e-12)
        spent[entry.scheduled] += power
        shown[entry.scheduled] += mu**2
        size = entry.scheduled.size
        error = 4 * (1 - size / problem.fleet.num_devices) ** 2 + (entry.local_steps - 1) ** 2
        error += learning.dimension * sigma**2 / (2 * size**2 * entry.alignment**2)
        gap = eta * gap + learning.clip_norm**2 / learning.smoothness * error
    assert math.isclose(plan.bound.total, gap, rel_tol=1e-9)
    assert math.isclose(sum(plan.bound.terms.values()), plan.bound.total, rel_tol=1e-12)
    assert spent.sum() <= budget.total_power * (1 + 1e-12)
    assert math.isclose(plan.power_total, spent.sum(), rel_tol=1e-12)
    if budget.device_power is not None:
        assert np.all(spent <= np.asarray(budget.device_power) * (1 + 1e-12))
    assert math.isclose(plan.mu_total, math.sqrt(shown.max()), rel_tol=1e-12)
    assert shown[plan.most_exposed] == pytest.approx(shown.max(), rel=1e-12)
    if budget.scope == "total":
        assert plan.epsilon_total <= budget.epsilon * (1 + 1e-12)
    assert plan.violations == ()
    assert plan.bound.total >= plan.lower_bound


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("causal", [False, True], ids=["known", "law"])
def test_contract(policy, name, causal):
    problem = world(**WORLDS[name])
    plan = decided(problem, policy, law=law() if causal else None)
    assert isinstance(plan, FadingPlan)
    assert sum(plan.local_steps) == problem.learning.total_steps
    assert np.array_equal(plan.scheduled, np.unique(np.concatenate([entry.scheduled for entry in plan.sequence])))
    by_hand(plan)
    again = FadingPlan.from_dict(problem, json.loads(json.dumps(plan.to_dict())))
    assert again.to_dict() == plan.to_dict()


@pytest.mark.parametrize("name", ["round", "total", "battery", "rough"])
def test_the_clairvoyant_plan_is_best_and_knows_how_good_it_is(name):
    problem = world(**WORLDS[name])
    best = airfed.plan(problem)
    assert best.policy == "optimal"
    assert best.to_dict() == {**decided(problem, "clairvoyant").to_dict(), "policy": "optimal"}
    for policy in POLICIES:
        for given in (None, law()):
            plan = decided(problem, policy, law=given)
            assert plan.bound.total >= best.lower_bound * (1 - 1e-12)
            if name in ("round", "total"):
                assert plan.bound.total >= best.bound.total * (1 - 1e-3)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "clairvoyant"])
@pytest.mark.parametrize("name", ["round", "total", "battery"])
def test_with_a_law_no_decision_looks_ahead(policy, name):
    one, other = gains(0), gains(0)
    other[4:] = gains(5)[4:]
    plans = [decided(world(gain=gain, **WORLDS[name]), policy, law=law(), rounds=7) for gain in (one, other)]
    assert np.array_equal(plans[0].member[:4], plans[1].member[:4])
    assert np.array_equal(plans[0].alignments[:4], plans[1].alignments[:4])
    assert plans[0].rounds == plans[1].rounds == 7


@pytest.mark.parametrize(
    "budget", [{"total_power": 2.0}, {"scope": "total", "epsilon": 8.0}, {"device_power": 0.1}], ids=str
)
@pytest.mark.parametrize("policy", ["optimal", "myopic", "paper", "full"])
def test_not_even_the_last_bit_of_a_decision_depends_on_later_gains(policy, budget):
    for seed in range(10):
        one, other = gains(seed), gains(seed)
        other[4:] = gains(seed + 50)[4:]
        plans = [decided(world(gain=gain, **budget), policy, law=law(), rounds=7) for gain in (one, other)]
        assert plans[0].alignments[:4].tolist() == plans[1].alignments[:4].tolist()


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "clairvoyant"])
def test_with_a_law_the_number_of_rounds_is_chosen_without_the_gains(policy):
    plans = [decided(world(gain=gains(seed)), policy, law=law()) for seed in (0, 5)]
    assert plans[0].rounds == plans[1].rounds


def test_gains_that_stay_are_planned_at_least_as_well_as_by_one_decision():
    gain = gains(3)[0]
    one = airfed.plan(world(gain=gain))
    many = airfed.plan(world(gain=np.tile(gain, (8, 1))))
    assert many.bound.total <= one.bound.total * (1 + 1e-9)


def test_a_battery_is_one_more_limit():
    free, tight, empty = (airfed.plan(world(device_power=watts)) for watts in (1e6, 0.5, 0.05))
    assert free.bound.total == pytest.approx(airfed.plan(world()).bound.total, rel=1e-2)
    assert free.bound.total < tight.bound.total < empty.bound.total
    assert tight.binding == "device_power"
    still = world(gain=gains(1)[0], device_power=0.5)  # gains stay, and still the rounds differ
    by_hand(airfed.plan(still))


def test_a_silent_device_spends_no_privacy():
    problem = world(**WORLDS["total"])
    plan = airfed.plan(problem, policy="top_k", rounds=8)
    sends = plan.member.sum(axis=0)
    assert sends.max() < 8
    exposures = np.zeros(8)
    exposures[plan.scheduled] = plan.sequence.exposures()
    assert np.all((exposures == 0) == (sends == 0))
    assert plan.mu_total < math.sqrt(np.square(plan.sequence.mus).sum())  # of who would send in every round


def test_ones_own_rule_is_asked_in_each_round():
    asked = []

    def strongest(problem, *, round_index):
        asked.append(round_index)
        return [int(problem.fleet.gain.argmax())]

    problem = world()
    plan = airfed.plan(problem, policy=strongest, rounds=5)
    assert [entry.scheduled.tolist() for entry in plan.sequence] == [
        [int(k)] for k in problem.fleet.gain[:5].argmax(axis=1)
    ]
    assert set(asked) == set(range(5))
    by_hand(plan)


def test_what_a_rule_decides_beyond_a_limit_is_flagged():
    plan = airfed.plan(world(), policy=lambda problem: Decision(scheduled=[0, 1], alignment=50.0, rounds=3))
    assert plan.rounds == 3
    assert np.all(plan.alignments == 50.0)
    assert {"privacy", "peak_power", "total_power"} <= set(plan.violations)
    assert any("breaks the privacy limit" in note for note in plan.notes)


def test_uniform_draws_anew_in_each_round():
    plan = airfed.plan(world(), policy="uniform", rounds=8)
    assert len({tuple(entry.scheduled) for entry in plan.sequence}) > 1


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({}, {"rounds": 9}, "rounds=9"),
        ({"steps": 40}, {"rounds": 20}, "rounds=20"),
        ({"device_power": [1.0, 2.0]}, {}, "one device_power per device"),
        ({"device_power": -1.0}, {}, "device_power"),
        ({}, {"clip_norm": 1.0}, "clip_norm"),
        ({"device_power": math.nan}, {}, "device_power"),
    ],
)
def test_what_cannot_be_is_said(change, options, said):
    with pytest.raises(ValueError, match=said):
        airfed.plan(world(**change), **options)


def test_nobody_can_be_heard():
    silent = gains(0)
    silent[3] = 0.0
    with pytest.raises(InfeasibleError, match="gain of round 4 is 0"):
        airfed.plan(world(gain=silent), rounds=6)
    assert airfed.plan(world(gain=silent)).rounds <= 3
    with pytest.raises(InfeasibleError, match="gain 0 in round 4"):
        decided(world(gain=silent), "full", rounds=6)
    with pytest.raises(InfeasibleError):
        airfed.plan(world(gain=np.zeros((4, 3))))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("budget", [{}, {"device_power": 0.6}, {"scope": "total"}])
@pytest.mark.parametrize("policy", ["optimal", "myopic"])
@pytest.mark.parametrize("place", [0, 3])
def test_a_causal_plan_says_in_which_round_nobody_can_be_heard(policy, budget, place):
    silent = gains(0)
    silent[place] = 0.0
    with pytest.raises(InfeasibleError, match=f"every gain of round {place + 1} is 0"):
        airfed.plan(world(gain=silent, **budget), policy=policy, law=law(), rounds=8)


@pytest.mark.parametrize("causal", [False, True], ids=["known", "law"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_trace_may_have_fewer_rounds_than_there_are_local_steps(policy, causal):
    problem = world(gain=gains(0, rounds=3), steps=60)
    plan = decided(problem, policy, law=law(rounds=3) if causal else None)
    assert plan.rounds <= 3
    by_hand(plan)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("policy", ["optimal", "myopic"])
def test_however_rough_the_channels_somebody_sends_in_each_round(policy, devices):
    for seed in range(8):
        problem = world(gain=gains(seed, devices=devices), error=0.01)
        plan = airfed.plan(problem, policy=policy, law=law(devices=devices), rounds=8)
        assert plan.rounds == 8
        by_hand(plan)


def test_a_rule_that_has_nobody_for_a_late_round_ends_before_it():
    weak = np.full((8, 3), 0.9)
    weak[5] = 0.2
    assert airfed.plan(world(gain=weak), policy="threshold", threshold=0.5).rounds <= 5
    with pytest.raises(InfeasibleError, match="the largest gain is"):
        airfed.plan(world(gain=weak), policy="threshold", threshold=0.5, rounds=6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lower_bound": 1e9}, "lower_bound"),
        ({"lower_bound": math.nan}, "lower_bound"),
        ({"member": np.ones((0, 8), bool), "alignment": np.ones(0)}, "of one round or more"),
        ({"member": np.ones(8, bool)}, "of one round or more"),
    ],
)
def test_a_sequence_of_ones_own_that_cannot_be_is_refused(change, said):
    fine = {"member": [[True] * 8] * 2, "alignment": [0.01, 0.02], "objective": 1.0}

    def mine(problem, *, law):
        return Sequence(**fine | change)

    def good(problem, *, law):
        return Sequence(**fine)

    by_hand(airfed.plan(world(), policy=good))
    with pytest.raises(ValueError, match=said):
        airfed.plan(world(), policy=mine)


def test_no_one_device_is_the_next_where_rounds_differ():
    for problem in (world(), world(gain=gains(0)[0], device_power=0.6)):
        assert prices.next_device(airfed.plan(problem, policy="top_k", size=3)) is None


def test_a_constant_plan_about_gains_that_change_is_refused():
    from airfed.planning import Plan

    with pytest.raises(ValueError, match="a decision for each round"):
        Plan(problem=world(), policy="mine", scheduled=np.array([0]), alignment=0.1, rounds=3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alignment", 1.0),
        ("mu_total", 1.0),
        ("sequence", [{"members": "!", "alignment": 1.0}]),
        ("sequence", []),
    ],
)
def test_an_edited_record_is_refused(field, value):
    problem = world()
    recorded = json.loads(json.dumps(airfed.plan(problem).to_dict()))
    recorded[field] = value
    with pytest.raises(ValueError, match="Expected"):
        FadingPlan.from_dict(problem, recorded)


def test_uncertain_channels_cost_privacy_in_every_round():
    known, rough = airfed.plan(world()), airfed.plan(world(error=0.01))
    assert rough.amplification > 1
    assert rough.bound.total > known.bound.total
    trusted = replace(world(error=0.01), link=replace(world(error=0.01).link, trust_estimates=True))
    assert airfed.plan(trusted).bound.total == pytest.approx(known.bound.total, rel=1e-9)


def test_more_budget_is_never_much_worse():
    for scale in (0.3, 1.0, 3.0):
        less, more = (airfed.plan(world(total_power=18.0 * factor)).bound.total for factor in (scale, 2 * scale))
        assert more <= less * (1 + 1e-3)


def test_the_world_has_what_the_budget_allows():
    problem = world(**WORLDS["total"])
    made = world_of(problem)
    assert made.device_exposure is not None
    assert math.isclose(made.cap, 0.3 * limits.allowed_mu(problem.budget) / 2, rel_tol=1e-11)
    assert np.allclose(made.device_exposure, made.cap**2)


def test_the_binding_limit_is_the_smallest_one():
    plan = airfed.plan(world())
    plan.__dict__["limits"] = {"privacy": 0.66199, "peak_power": 1.0, "total_power": 0.662}
    assert plan.binding == "privacy"
    plan.__dict__["limits"] = {"privacy": 0.662, "peak_power": 1.0, "total_power": 0.662 * (1 + 1e-12)}
    assert plan.binding == "total_power"  # they differ by rounding: the one that ties the rounds together
