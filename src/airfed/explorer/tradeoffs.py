"""What the budgets buy: the best plan over ε and total power, and the sensitivity to one more unit of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from airfed.planning import Plan
from airfed.planning.limits import amplified
from airfed.planning.sensitivities import Sensitivities, sensitivities, with_budgets
from airfed.policies import POLICIES
from airfed.problem import InfeasibleError, Problem
from airfed.scenario import Scenario
from airfed.showing.words import number

Floats = NDArray[np.float64]

_SPAN: Final = 1.5  # decades to each side of the present budgets
_POINTS: Final = 15  # of each budget; odd, so that the present one is among them
_FEWER_POINTS: Final = 13  # where limits differ by device, and a plan takes longer to find


@dataclass(frozen=True, kw_only=True, eq=False)
class Front:
    """The best plan for each pair of budgets, by what the scenario's plan is chosen by.

    Every point is Pareto-optimal in (ε, total power, loss) up to budgets that are not used up; a line of equal loss
    is the front of ε against total power at that loss.

    Args:
        of: what the loss is: Theorem 1's "bound", or 1 − the expected "accuracy".
        epsilon: (m,) the privacy budgets, ascending.
        total_power: (n,) the power budgets [W], ascending.
        loss: (n, m), inf where no plan fits.
        binding: (n, m) the limit that holds θ there, "" where no plan fits.
        epsilon_index, power_index: where the present budgets are.
    """

    of: Literal["bound", "accuracy"]
    epsilon: Floats
    total_power: Floats
    loss: Floats
    binding: NDArray[np.str_]
    epsilon_index: int
    power_index: int

    def text(self, loss: float) -> str:
        """Return a loss as the bound, or as the accuracy."""
        return number(loss) if self.of == "bound" else f"{1 - loss:.1%}"


def front(world: Scenario) -> Front:
    """Return the best plan over a grid of ε and total power around the present budgets.

    Raises:
        InfeasibleError: no plan meets the present ones.
    """
    now, planner = _optimum(world)
    problem = now.problem
    points = _POINTS if problem.fleet.equal_peak_power and not amplified(problem) else _FEWER_POINTS
    middle = points // 2
    factors = np.logspace(-_SPAN, _SPAN, points)
    factors[middle] = 1.0
    epsilon, power = problem.budget.epsilon * factors, problem.budget.total_power * factors
    loss = np.full((points, points), np.inf)
    binding = np.full((points, points), "", dtype="<U16")
    for row, watts in enumerate(power):
        for column, allowed in enumerate(epsilon):
            try:
                plan = planner(with_budgets(problem, epsilon=float(allowed), total_power=float(watts)))
            except InfeasibleError:
                continue
            loss[row, column], binding[row, column] = _loss(plan), plan.binding
    return Front(
        of="accuracy" if now.objective == "measured" else "bound",
        epsilon=epsilon,
        total_power=power,
        loss=loss,
        binding=binding,
        epsilon_index=middle,
        power_index=middle,
    )


def sensitivity(world: Scenario) -> Sensitivities:
    """Return what one more watt and one more unit of ε buy, to the exact optimum.

    Raises:
        InfeasibleError: no plan meets every limit.
    """
    now, planner = _optimum(world)
    return sensitivities(now.problem, planner)


def _optimum(world: Scenario) -> tuple[Plan, Callable[[Problem], Plan]]:
    """The optimum at the present budgets, and what plans at others; several antennas keep the present beamformer."""
    settings = replace(world.settings, size=None, threshold=None, options={})
    planner = partial(POLICIES["optimal"].plan, settings=settings)
    return planner(world.problem()), planner


def _loss(plan: Plan) -> float:
    if plan.objective == "measured" and plan.predicted_accuracy is not None:
        return 1.0 - plan.predicted_accuracy
    return plan.bound.total
