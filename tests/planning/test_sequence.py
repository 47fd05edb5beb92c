"""Plans whose θ grows and whose ϖ falls: every round within its limits, all together within the budgets."""

import json
import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from airfed import Plan, plan
from airfed.course import Course
from airfed.planning import POLICIES, Settings, _rounds, candidates, uncertain
from airfed.planning.brute_force import brute_force_schedule
from airfed.planning.limits import allowed_mu
from airfed.planning.prices import next_device
from airfed.planning.uncertain import effective_peak_power
from airfed.privacy import compose_all, gaussian_epsilon
from airfed.privacy.ledger import Ledger

GROWTHS, DECAYS, SHARES = (1.0, 1.5, 4.0, 1e3, 1e6), (1.0, 0.5, 1e-3), (1.0, 0.5, 0.05)


def random_course(rng, *, share=True):
    return Course(
        growth=rng.choice(GROWTHS), clip_decay=rng.choice(DECAYS), power_share=rng.choice(SHARES) if share else 1.0
    )


def decide(problem, course, policy="optimal", **more):
    settings = Settings(growth=course.growth, clip_decay=course.clip_decay, power_share=course.power_share, **more)
    return POLICIES[policy].plan(problem, settings)


def recursion(decision):
    """Theorem 1, round by round, from the sequence."""
    problem, learning = decision.problem, decision.problem.learning
    gap = learning.initial_gap
    for each in decision.sequence:
        size = each.scheduled.size
        error = 4 * (1 - size / problem.fleet.num_devices) ** 2 + (each.local_steps - 1) ** 2
        error += 0.5 * learning.dimension * (problem.link.noise_std / (size * each.alignment)) ** 2
        gap = (1 - learning.strong_convexity / learning.smoothness) * gap
        gap += each.clip_norm**2 / learning.smoothness * error
    return gap


@pytest.mark.parametrize("scope", ["round", "total"])
@pytest.mark.parametrize("relation", ["replace", "add_remove"])
@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "threshold"])
def test_every_round_and_all_of_them_keep_their_budgets(random_problem, tmp_path, scope, relation, policy):
    rng = np.random.default_rng([len(scope), len(relation), len(policy)])
    bound = set()
    for case in range(25):
        problem = random_problem(rng, scope=scope, relation=relation, decades=float(rng.choice([0.0, 2.0])))
        course = random_course(rng)
        decision = decide(problem, course, policy)
        if policy == "paper" and decision.violations:
            continue
        bound.add(decision.binding)
        ledger = Ledger(path=tmp_path / f"{case}", header={"delta": problem.budget.delta})
        for each in decision.sequence:  # what the books charge, without the disk
            ledger.check(replace(problem.budget, total_power=1e100), mu=each.mu, power=each.power_planned)
            charged = ledger._charged(
                round_index=each.index, attempt=0, devices=each.scheduled.size, alignment=each.alignment, mu=each.mu,
                power_planned=each.power_planned,
            )  # fmt: skip
            ledger._enter(*charged)
            assert np.all(each.power <= problem.fleet.peak_power[each.scheduled] * (1 + 1e-12))
            assert each.mu == pytest.approx(problem.budget.sensitivity * each.alignment / problem.link.noise_std)
            np.testing.assert_allclose(each.power, np.square(each.alignment / problem.fleet.gain[each.scheduled]))
            assert each.power.sum() == pytest.approx(each.power_planned)
        # privacy: composed by the ledger, and within the budget without any tolerance
        assert ledger.mu_total == decision.mu_total
        assert ledger.epsilon_total == decision.epsilon_total
        assert (decision.epsilon_total if scope == "total" else decision.epsilon_round) <= problem.budget.epsilon
        assert decision.mu_round == max(each.mu for each in decision.sequence) == decision.sequence[-1].mu
        assert decision.epsilon_round == decision.sequence[-1].epsilon
        # power: as planned, and what counts of it within the budget
        assert ledger.power_planned == pytest.approx(decision.power_total, rel=1e-13)
        last = decision.sequence[-1].power_planned
        counted = course.power_share * (decision.power_total - last) + last
        assert counted <= problem.budget.total_power * (1 + 1e-12)
        if decision.binding == "total_power":
            assert counted == pytest.approx(problem.budget.total_power, rel=1e-9)
        # the bound
        assert decision.bound.total == pytest.approx(recursion(decision), rel=1e-10)
        assert not decision.violations
    assert len(bound) == 3


def by_hand(problem, course, devices, rounds):
    """The plan of some devices and rounds, its θ from the limits written out; None where there is none."""
    budget, gain = problem.budget, problem.fleet.gain[devices]
    rising = course.growth ** ((np.arange(rounds) - (rounds - 1)) / rounds)  # (θ_i/θ)²
    covered = rising.sum() if budget.scope == "total" else 1.0
    counted = course.power_share * (rising.sum() - 1) + 1
    theta = min(
        problem.link.noise_std * allowed_mu(budget) / budget.sensitivity / math.sqrt(covered),
        float(np.min(gain * np.sqrt(problem.fleet.peak_power[devices]))),
        math.sqrt(budget.total_power / (counted * np.sum(gain**-2.0))),
    )
    shape = {"growth": course.growth, "clip_decay": course.clip_decay, "power_share": course.power_share}
    return Plan(problem=problem, policy="", scheduled=np.array(devices), alignment=theta, rounds=rounds, **shape)


@pytest.mark.parametrize("scope", ["round", "total"])
@pytest.mark.parametrize("decades", [0.0, 2.0])
def test_the_optimum_is_that_of_all_devices_and_rounds_by_hand(random_problem, scope, decades):
    rng = np.random.default_rng([len(scope), int(decades)])
    for _ in range(30):
        problem = random_problem(rng, devices=4, total_steps=5, scope=scope, decades=decades)
        course = random_course(rng)
        every = [
            recursion(by_hand(problem, course, list(devices), rounds))
            for size in range(1, 5)
            for devices in combinations(range(4), size)
            for rounds in range(1, 6)
        ]
        assert decide(problem, course).bound.total == pytest.approx(min(every), rel=1e-9)


@pytest.mark.parametrize("together", [0, 512])
@pytest.mark.parametrize("error", [0.0, 0.02])
def test_the_search_over_many_rounds_is_exact(random_problem, monkeypatch, together, error):
    monkeypatch.setattr(_rounds, "_TOGETHER", together)
    rng = np.random.default_rng(together + int(100 * error))
    for case in range(20):
        scope, decades = ("round", "total")[case % 2], float(rng.choice([0.0, 2.0]))
        problem = random_problem(rng, devices=6, total_steps=60, scope=scope, decades=decades)
        problem = replace(problem, link=replace(problem.link, estimation_error=error))
        course, rounds = random_course(rng), np.arange(1, 61)
        best = math.inf
        for each in np.split(rounds, 60):
            power = effective_peak_power(problem, int(each[0]), course)
            found = brute_force_schedule(problem.fleet.gain, power, **uncertain.candidates(problem, each, course))
            best = min(best, found.objective)
        assert decide(problem, course).bound.total == pytest.approx(best, rel=1e-9)


def test_the_same_budgets_buy_more_where_theta_may_grow(random_problem):
    """With a total budget a growing θ ends above the constant one, and begins below it."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        problem = random_problem(rng, scope="total")
        flat, steep = (decide(problem, Course(growth=growth), "full", rounds=1) for growth in (1.0, 4.0))
        assert flat.alignment == pytest.approx(steep.alignment)  # one round cannot grow
    problem = random_problem(rng, total_steps=12, scope="total")
    problem = replace(problem, fleet=replace_power(problem.fleet))
    flat, steep = (decide(problem, Course(growth=growth), "full", rounds=12) for growth in (1.0, 4.0))
    assert steep.sequence[0].alignment < flat.alignment < steep.alignment
    assert steep.noise_share == pytest.approx(flat.noise_share)  # it is that of θ_rms
    assert steep.crest == pytest.approx(steep.alignment / flat.alignment)


def replace_power(fleet):
    return type(fleet)(gain=fleet.gain, peak_power=1e6)


# The sequence of a constant plan


def test_a_constant_plan_is_one_decision_repeated(random_problem):
    rng = np.random.default_rng(4)
    for _ in range(30):
        decision = plan(random_problem(rng, scope="total"))
        assert len(decision.sequence) == decision.rounds
        for index, each in enumerate(decision.sequence):
            assert each.scheduled is decision.scheduled
            assert each.power is decision.power
            assert (each.index, each.local_steps) == (index, decision.local_steps[index])
            figures = (each.alignment, each.clip_norm, each.mu, each.alignment_coefficient)
            assert figures == (
                decision.alignment, decision.clip_norm, decision.mu_round, decision.alignment_coefficient
            )  # fmt: skip
            assert each.power_planned == float(np.sum(decision.power))
        assert decision.power_total == decision.rounds * float(np.sum(decision.power))
        assert decision.mu_total == compose_all([decision.mu_round] * decision.rounds)
        assert decision.sequence.power_planned(1) == decision.sequence[0].power_planned


def test_a_sequence_is_indexed_as_a_list(random_problem):
    decision = plan(random_problem(np.random.default_rng(2), total_steps=9), rounds=9, growth=9.0, clip_decay=0.5)
    entries = list(decision.sequence)
    assert [each.index for each in decision.sequence[2:5]] == [2, 3, 4]
    assert decision.sequence[-1].alignment == entries[8].alignment == decision.alignment
    assert entries[0].clip_norm == decision.clip_norm
    assert entries[0].epsilon == gaussian_epsilon(entries[0].mu, decision.problem.budget.delta)
    total = decision.sequence.device_power(4)
    np.testing.assert_allclose(total, sum(each.power for each in entries[:4]), rtol=1e-13)
    for index in (9, -10):
        with pytest.raises(IndexError):
            decision.sequence[index]
    with pytest.raises(ValueError, match="read-only"):
        entries[0].power[0] = 1.0


# Records, views


def test_a_record_says_how_they_move_and_an_older_one_is_constant(random_problem):
    problem = random_problem(np.random.default_rng(7), total_steps=10)
    decision = decide(problem, Course(growth=4.0, clip_decay=0.5, power_share=0.7), rounds=5)
    written = json.loads(json.dumps(decision.to_dict()))
    again = Plan.from_dict(problem, written)
    assert again.to_dict() == decision.to_dict()
    assert again.course == decision.course
    for name in ("growth", "clip_decay", "power_share"):
        del written[name]
    with pytest.raises(ValueError, match="Expected"):  # its totals are not those of a constant plan
        Plan.from_dict(problem, written)
    constant = plan(problem).to_dict()
    older = {name: value for name, value in constant.items() if name not in ("growth", "clip_decay", "power_share")}
    assert Plan.from_dict(problem, older).to_dict() == constant


def test_views_and_prices_know_the_course(random_problem):
    rng = np.random.default_rng(11)
    found = 0
    for _ in range(40):
        problem = random_problem(rng, devices=8, total_steps=10, scope="total")
        decision = decide(problem, random_course(rng), "top_k", size=4, rounds=10)
        space = candidates(decision)
        assert space.alignment[3] == pytest.approx(decision.alignment, rel=1e-12)
        waiting = next_device(decision)
        joined = np.sort(np.append(decision.scheduled, waiting.device))
        theta = min(replace(decision, scheduled=joined).limits.values())
        assert waiting.alignment == theta
        assert waiting.bound == replace(decision, scheduled=joined, alignment=theta).bound.total
        found += theta < decision.alignment
    assert found >= 5


def test_a_plan_says_how_they_move_only_where_they_do(random_problem):
    problem = random_problem(np.random.default_rng(3), total_steps=10)
    texts = {
        (growth, decay): " ".join(str(plan(problem, rounds=5, growth=growth, clip_decay=decay)).split())
        for growth in (1.0, 4.0)
        for decay in (1.0, 0.5)
    }
    for (growth, decay), text in texts.items():
        assert ("θ grows from" in text) == ("√Σμ²" in text) == (growth != 1.0)
        assert ("ϖ falls from" in text) == (decay != 1.0)
    assert "Over the rounds" not in texts[1.0, 1.0]


def test_what_no_plan_has_is_said(random_problem):
    problem = random_problem(np.random.default_rng(1), total_steps=4)
    for name, value in (("growth", 0.5), ("growth", 1e7), ("clip_decay", 2.0), ("clip_decay", 0.0)):
        with pytest.raises(ValueError, match=f"Expected {name}"):
            plan(problem, **{name: value})
