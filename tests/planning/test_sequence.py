"""The rounds of a plan: each within its limits, all together within the budgets."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import oracle
import problems
from airfed import Plan, plan
from airfed.planning import Amplitudes, candidates, exact, optimal
from airfed.planning.limits import allowed_mu
from airfed.planning.optimal import effective_peak_power
from airfed.planning.policy import next_device
from airfed.policies import EVERY
from airfed.privacy import gaussian_epsilon
from airfed.privacy.ledger import Ledger
from brute_force import brute_force_schedule


@pytest.mark.parametrize("policy", EVERY)
def test_the_ledger_totals_equal_the_plan(tmp_path, policy):
    for name in ("static/total", "varying/total"):
        plan = problems.planned(problems.CATALOGUE[name](0), policy, rounds=6)
        ledger = Ledger(path=tmp_path / name[:4], header={"delta": plan.problem.budget.delta})
        for each in plan.sequence:  # what is charged, without the disk
            mask = None if plan.constant and plan.equal_mu else plan.sequence.mask(each.index)
            room = replace(plan.enforced_budget, total_power=1e100)
            ledger.check(room, mu=each.mu, power=each.power_planned, mask=mask)
            charged = ledger._charged(
                round_index=each.index, attempt=0, devices=each.scheduled.size, alignment=each.alignment, mu=each.mu,
                power_planned=each.power_planned, mask=mask,
            )  # fmt: skip
            ledger._enter(*charged)
        if plan.constant and plan.equal_mu:
            assert (ledger.mu_total, ledger.epsilon_total) == (plan.mu_total, plan.epsilon_total)
        assert ledger.mu_total == pytest.approx(plan.mu_total, rel=1e-12)
        assert ledger.power_planned == pytest.approx(plan.power_total, rel=1e-13)


def by_hand(problem, devices, rounds):
    """The plan of some devices and rounds, its θ from the limits written out; None where there is none."""
    budget, gain = problem.budget, problem.fleet.gain[devices]
    covered = rounds if budget.scope == "total" else 1
    theta = min(
        problem.link.noise_std * allowed_mu(budget) / budget.sensitivity / math.sqrt(covered),
        float(np.min(gain * np.sqrt(problem.fleet.peak_power[devices]))),
        math.sqrt(budget.total_power / (rounds * np.sum(gain**-2.0))),
    )
    table = Amplitudes.aligned(devices, num_devices=problem.fleet.num_devices, level=theta, rounds=rounds)
    return Plan(problem=problem, policy="", amplitudes=table)


@pytest.mark.parametrize("scope", ["round", "total"])
@pytest.mark.parametrize("decades", [0.0, 2.0])
def test_the_optimum_is_that_of_all_devices_and_rounds_by_hand(random_problem, scope, decades):
    rng = np.random.default_rng([len(scope), int(decades)])
    for _ in range(30):
        problem = random_problem(rng, devices=4, total_steps=5, scope=scope, decades=decades)
        every = [
            oracle.values(by_hand(problem, list(devices), rounds)).terms.sum()
            for size in range(1, 5)
            for devices in combinations(range(4), size)
            for rounds in range(1, 6)
        ]
        assert plan(problem).bound.total == pytest.approx(min(every), rel=1e-9)


@pytest.mark.parametrize("together", [0, 512])
@pytest.mark.parametrize("error", [0.0, 0.02])
def test_the_search_over_many_rounds_is_exact(random_problem, monkeypatch, together, error):
    monkeypatch.setattr(exact, "_TOGETHER", together)
    rng = np.random.default_rng(together + int(100 * error))
    for case in range(20):
        scope, decades = ("round", "total")[case % 2], float(rng.choice([0.0, 2.0]))
        problem = random_problem(rng, devices=6, total_steps=60, scope=scope, decades=decades)
        problem = replace(problem, link=replace(problem.link, csi_error=error))
        best = math.inf
        for each in np.split(np.arange(1, 61), 60):
            power = effective_peak_power(problem, int(each[0]))
            found = brute_force_schedule(problem.fleet.gain, power, **optimal.candidates(problem, each))
            best = min(best, found.objective)
        assert plan(problem).bound.total == pytest.approx(best, rel=1e-9)


# The sequence of a constant plan


def test_a_sequence_is_indexed_as_a_list(random_problem):
    result = plan(random_problem(np.random.default_rng(2), total_steps=9), rounds=9)
    entries = list(result.sequence)
    assert [each.index for each in result.sequence[2:5]] == [2, 3, 4]
    assert result.sequence[-1].alignment == entries[8].alignment == result.alignment
    assert entries[0].clip_norm == result.clip_norm
    assert entries[0].epsilon == gaussian_epsilon(entries[0].mu, result.problem.budget.delta)
    total = result.sequence.device_power(4)
    np.testing.assert_allclose(total, sum(each.power for each in entries[:4]), rtol=1e-13)
    for index in (9, -10):
        with pytest.raises(IndexError):
            result.sequence[index]


def test_views_and_sensitivities_agree_with_the_plan(random_problem):
    rng = np.random.default_rng(11)
    found = 0
    for _ in range(40):
        problem = random_problem(rng, devices=8, total_steps=10, scope="total")
        result = plan(problem, policy="top_k", size=4, rounds=10)
        space = candidates(result)
        assert space.alignment[3] == pytest.approx(result.alignment, rel=1e-12)
        waiting = next_device(result)
        joined = np.sort(np.append(result.scheduled, waiting.device))
        other = by_hand(problem, joined, 10)
        assert waiting.alignment == pytest.approx(other.alignment, rel=1e-12)
        assert waiting.bound == pytest.approx(other.bound.total, rel=1e-12)
        found += waiting.alignment < result.alignment
    assert found >= 5
