"""What the budgets buy: the policies side by side, the bound over ε and total power, the price of the next unit."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as replace_values
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed import planning
from airfed.planning import Plan
from airfed.planning.uncertain import matters
from airfed.problem import InfeasibleError, Problem
from airfed.scenario import Scenario

Floats = NDArray[np.float64]

_SPAN: Final = 1.5  # decades to each side of the present budgets
_POINTS: Final = 15  # of each budget; odd, so that the present one is among them
_FEWER_POINTS: Final = 13  # where limits differ by device, and a plan takes longer to find


@dataclass(frozen=True, kw_only=True, eq=False)
class Front:
    """The best bound for each pair of budgets.

    Every point is Pareto-optimal in (ε, total power, bound) up to budgets that are not used up; a line of equal bound
    is the front of ε against total power at that bound.

    Args:
        epsilon: (m,) the privacy budgets, ascending.
        total_power: (n,) the power budgets [W], ascending.
        bound: (n, m), inf where no plan fits.
        binding: (n, m) the limit that holds θ there, "" where no plan fits.
        epsilon_index, power_index: where the present budgets are.
    """

    epsilon: Floats
    total_power: Floats
    bound: Floats
    binding: NDArray[np.str_]
    epsilon_index: int
    power_index: int


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a little more of a budget buys.

    Args:
        now: the present bound.
        watt: the bound with one watt more in total.
        epsilon: the bound with ε one higher.
        double_power: the bound with twice the total power.
        double_epsilon: the bound with twice the ε.
        binding: the present limit.
    """

    now: float
    watt: float
    epsilon: float
    double_power: float
    double_epsilon: float
    binding: str


def front(world: Scenario) -> Front:
    """Return the best bound over a grid of ε and total power around the present budgets."""
    problem, rounds = world.problem(), world.policy.rounds
    points = _POINTS if problem.fleet.equal_peak_power and not matters(problem) else _FEWER_POINTS
    middle = points // 2
    factors = np.logspace(-_SPAN, _SPAN, points)
    factors[middle] = 1.0
    epsilon, power = problem.budget.epsilon * factors, problem.budget.total_power * factors
    bound = np.full((points, points), np.inf)
    binding = np.full((points, points), "", dtype="<U16")
    for row, watts in enumerate(power):
        for column, loss in enumerate(epsilon):
            try:
                plan = planning.plan(_with(problem, float(loss), float(watts)), rounds=rounds)
            except InfeasibleError:
                continue
            bound[row, column], binding[row, column] = plan.bound.total, plan.binding
    return Front(
        epsilon=epsilon,
        total_power=power,
        bound=bound,
        binding=binding,
        epsilon_index=middle,
        power_index=middle,
    )


def price(world: Scenario) -> Price:
    """Return what one more watt and one more unit of ε buy, to the exact optimum.

    Raises:
        InfeasibleError: no plan meets every limit.
    """
    problem, rounds = world.problem(), world.policy.rounds
    epsilon, power = problem.budget.epsilon, problem.budget.total_power

    def at(loss: float, watts: float) -> Plan:
        return planning.plan(_with(problem, loss, watts), rounds=rounds)

    now = at(epsilon, power)
    return Price(
        now=now.bound.total,
        watt=at(epsilon, power + 1.0).bound.total,
        epsilon=at(epsilon + 1.0, power).bound.total,
        double_power=at(epsilon, 2 * power).bound.total,
        double_epsilon=at(2 * epsilon, power).bound.total,
        binding=now.binding,
    )


def _with(problem: Problem, epsilon: float, total_power: float) -> Problem:
    budget = replace_values(problem.budget, epsilon=epsilon, total_power=total_power)
    return Problem(fleet=problem.fleet, link=problem.link, learning=problem.learning, budget=budget)
