"""The rounds of a plan: each within its limits, all together within the budgets."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from airfed.planning.prices import next_device

from airfed import Plan, plan
from airfed.planning import POLICIES, _rounds, candidates, uncertain
from airfed.planning.brute_force import brute_force_schedule
from airfed.planning.limits import allowed_mu
from airfed.planning.uncertain import effective_peak_power
from airfed.privacy import compose_all, gaussian_epsilon
from airfed.privacy.ledger import Ledger


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
        decision = plan(problem, policy=policy)
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
        assert decision.mu_round == max(each.mu for each in decision.sequence)
        assert decision.epsilon_round == decision.sequence[-1].epsilon
        # power: as planned, and within the budget
        assert ledger.power_planned == pytest.approx(decision.power_total, rel=1e-13)
        assert decision.power_total <= problem.budget.total_power * (1 + 1e-12)
        if decision.binding == "total_power":
            assert decision.power_total == pytest.approx(problem.budget.total_power, rel=1e-9)
        # the bound
        assert decision.bound.total == pytest.approx(recursion(decision), rel=1e-10)
        assert not decision.violations
    assert len(bound) == 3


def by_hand(problem, devices, rounds):
    """The plan of some devices and rounds, its θ from the limits written out; None where there is none."""
    budget, gain = problem.budget, problem.fleet.gain[devices]
    covered = rounds if budget.scope == "total" else 1
    theta = min(
        problem.link.noise_std * allowed_mu(budget) / budget.sensitivity / math.sqrt(covered),
        float(np.min(gain * np.sqrt(problem.fleet.peak_power[devices]))),
        math.sqrt(budget.total_power / (rounds * np.sum(gain**-2.0))),
    )
    return Plan(problem=problem, policy="", scheduled=np.array(devices), alignment=theta, rounds=rounds)


@pytest.mark.parametrize("scope", ["round", "total"])
@pytest.mark.parametrize("decades", [0.0, 2.0])
def test_the_optimum_is_that_of_all_devices_and_rounds_by_hand(random_problem, scope, decades):
    rng = np.random.default_rng([len(scope), int(decades)])
    for _ in range(30):
        problem = random_problem(rng, devices=4, total_steps=5, scope=scope, decades=decades)
        every = [
            recursion(by_hand(problem, list(devices), rounds))
            for size in range(1, 5)
            for devices in combinations(range(4), size)
            for rounds in range(1, 6)
        ]
        assert plan(problem).bound.total == pytest.approx(min(every), rel=1e-9)


@pytest.mark.parametrize("together", [0, 512])
@pytest.mark.parametrize("error", [0.0, 0.02])
def test_the_search_over_many_rounds_is_exact(random_problem, monkeypatch, together, error):
    monkeypatch.setattr(_rounds, "_TOGETHER", together)
    rng = np.random.default_rng(together + int(100 * error))
    for case in range(20):
        scope, decades = ("round", "total")[case % 2], float(rng.choice([0.0, 2.0]))
        problem = random_problem(rng, devices=6, total_steps=60, scope=scope, decades=decades)
        problem = replace(problem, link=replace(problem.link, estimation_error=error))
        best = math.inf
        for each in np.split(np.arange(1, 61), 60):
            power = effective_peak_power(problem, int(each[0]))
            found = brute_force_schedule(problem.fleet.gain, power, **uncertain.candidates(problem, each))
            best = min(best, found.objective)
        assert plan(problem).bound.total == pytest.approx(best, rel=1e-9)


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
    decision = plan(random_problem(np.random.default_rng(2), total_steps=9), rounds=9)
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


def test_views_and_prices_agree_with_the_plan(random_problem):
    rng = np.random.default_rng(11)
    found = 0
    for _ in range(40):
        problem = random_problem(rng, devices=8, total_steps=10, scope="total")
        decision = plan(problem, policy="top_k", size=4, rounds=10)
        space = candidates(decision)
        assert space.alignment[3] == pytest.approx(decision.alignment, rel=1e-12)
        waiting = next_device(decision)
        joined = np.sort(np.append(decision.scheduled, waiting.device))
        theta = min(replace(decision, scheduled=joined).limits.values())
        assert waiting.alignment == theta
        assert waiting.bound == replace(decision, scheduled=joined, alignment=theta).bound.total
        found += theta < decision.alignment
    assert found >= 5
