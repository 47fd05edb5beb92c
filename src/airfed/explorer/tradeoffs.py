"""What the budgets buy: the best bound over ε and total power, and the sensitivity to one more unit of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed import policies
from airfed.planning import Plan
from airfed.planning.limits import amplified
from airfed.planning.sensitivities import Sensitivities, sensitivities, with_budgets
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


def front(world: Scenario) -> Front:
    """Return the best bound over a grid of ε and total power around the present budgets.

    Raises:
        InfeasibleError: with several antennas, no plan meets the present ones.
    """
    problem, rounds = _heard(world), world.policy.rounds
    points = _POINTS if problem.fleet.equal_peak_power and not amplified(problem) else _FEWER_POINTS
    middle = points // 2
    factors = np.logspace(-_SPAN, _SPAN, points)
    factors[middle] = 1.0
    epsilon, power = problem.budget.epsilon * factors, problem.budget.total_power * factors
    bound = np.full((points, points), np.inf)
    binding = np.full((points, points), "", dtype="<U16")
    for row, watts in enumerate(power):
        for column, loss in enumerate(epsilon):
            try:
                plan = planning.plan(
                    with_budgets(problem, epsilon=float(loss), total_power=float(watts)), rounds=rounds
                )
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
    return prices.price(_heard(world), partial(planning.plan, rounds=world.policy.rounds))


def _heard(world: Scenario) -> Problem:
    """The realisation; of several antennas with the combiner of the present optimum, which stays where budgets move."""
    problem = world.problem()
    return problem if problem.fleet.antennas == 1 else planning.plan(problem, rounds=world.policy.rounds).problem
