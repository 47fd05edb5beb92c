import numpy as np
import pytest

from airfed import InfeasibleError, convergence, planning
from airfed.planning import prices


@pytest.mark.parametrize("seed", range(6))
def test_more_budget_never_hurts_and_is_the_difference_of_two_plans(random_problem, seed):
    problem = random_problem(np.random.default_rng(seed), decades=2.0 * (seed % 2))
    found = prices.price(problem, planning.plan)
    assert found.now == planning.plan(problem).bound.total
    assert found.binding == planning.plan(problem).binding
    assert max(found.watt, found.epsilon, found.double_power, found.double_epsilon) <= found.now * (1 + 1e-9)
    budget = problem.budget
    more = prices.with_budgets(problem, epsilon=budget.epsilon, total_power=budget.total_power + 1)
    assert found.watt == planning.plan(more).bound.total
    assert more.fleet is problem.fleet


def test_the_price_is_that_of_the_policy(random_problem):
    problem = random_problem(np.random.default_rng(1), devices=8)
    found = prices.price(problem, lambda other: planning.plan(other, policy="full"))
    assert found.now == planning.plan(problem, policy="full").bound.total


@pytest.mark.parametrize("seed", range(6))
def test_the_next_device_costs_under_the_optimum(random_problem, seed):
    plan = planning.plan(random_problem(np.random.default_rng(seed), devices=9))
    found = prices.next_device(plan)
    gain = plan.problem.fleet.gain
    if plan.num_scheduled == 9:
        assert found is None
        return
    assert found.gain == np.delete(gain, plan.scheduled).max() == gain[found.device]
    assert found.bound >= plan.bound.total * (1 - 1e-9)
    assert found.bound == convergence.convex_gap(
        plan.problem.learning,
        num_scheduled=plan.num_scheduled + 1,
        num_devices=9,
        alignment=found.alignment,
        noise_std=plan.problem.link.noise_std,
        rounds=plan.rounds,
    ).total  # fmt: skip


def test_without_a_plan_there_is_no_price(random_problem):
    problem = random_problem(np.random.default_rng(0), gain=np.zeros(3))
    with pytest.raises(InfeasibleError):
        prices.price(problem, planning.plan)
