import numpy as np
import pytest

from airfed import bounds, plan
from airfed.planning.policy import next_device, sensitivities, with_budgets


@pytest.mark.parametrize("seed", range(6))
def test_more_budget_never_hurts_and_is_the_difference_of_two_plans(random_problem, seed):
    problem = random_problem(np.random.default_rng(seed), decades=2.0 * (seed % 2))
    found = sensitivities(problem, plan)
    assert found.now == plan(problem).bound.total
    assert found.binding == plan(problem).binding
    assert max(found.watt, found.epsilon, found.double_power, found.double_epsilon) <= found.now * (1 + 1e-9)
    budget = problem.budget
    more = with_budgets(problem, epsilon=budget.epsilon, total_power=budget.total_power + 1)
    assert found.watt == plan(more).bound.total
    full = sensitivities(problem, lambda other: plan(other, policy="full"))
    assert full.now == plan(problem, policy="full").bound.total


@pytest.mark.parametrize("seed", range(6))
def test_the_next_device_costs_under_the_optimum(random_problem, seed):
    decided = plan(random_problem(np.random.default_rng(seed), devices=9))
    found = next_device(decided)
    gain, size = decided.problem.fleet.gain, decided.num_scheduled
    if size == 9:
        assert found is None
        return
    assert found.gain == np.delete(gain, decided.scheduled).max() == gain[found.device]
    assert found.bound >= decided.bound.total * (1 - 1e-9)
    noise = decided.problem.link.noise_std / ((size + 1) * found.alignment)
    bound = bounds.convex_gap(
        decided.problem.learning, rounds=decided.rounds, shortfall=1 - (size + 1) / 9, noise_share=noise
    )
    assert found.bound == bound.total
