"""The frontier of a scenario: what its plan reaches over each budget, and what no linear method can. No matplotlib."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed.planning import converse
from airfed.problem import InfeasibleError
from airfed.scenario import Scenario

EPSILON: Final = "budget.epsilon"
POWER: Final = "budget.total_power"
EPSILONS: Final = tuple(float(f"{0.5 * 2 ** (step / 2):.4g}") for step in range(11))  # 0.5 to 16
FACTORS: Final = tuple(2.0**step for step in range(-4, 5))  # on the scenario's total power


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """The scenario with another value of one budget; None where there is no plan or no expected accuracy."""

    budget: str  # the changed key, EPSILON or POWER
    value: float  # ε, or P_tot [W]
    num_scheduled: int | None = None
    rounds: int | None = None
    noise_share: float | None = None
    noise_floor: float | None = None  # that no linear method can beat in as many rounds
    accuracy: float | None = None  # expected of the plan
    low: float | None = None  # [low, high] is a nominal 90% interval for a single training
    high: float | None = None
    highest: float | None = None  # the expected accuracy that no linear method can exceed
    trained: float | None = None  # the accuracy of a training at this point
    reason: str = ""  # why there is no plan


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """The points of a scenario over ε and over the total power."""

    scenario: Scenario
    points: tuple[FrontierPoint, ...]

    @property
    def by_accuracy(self) -> bool:
        """Whether a surrogate fits, so that points have expected accuracies."""
        return any(point.highest is not None for point in self.points)

    def along(self, budget: str) -> list[FrontierPoint]:
        """Return the points that change a budget, in ascending order."""
        return [point for point in self.points if point.budget == budget]

    def column(self, budget: str, name: str) -> NDArray[np.float64]:
        """Return a field of the points that change a budget; NaN for None."""
        return np.array([getattr(point, name) for point in self.along(budget)], dtype=np.float64)

    def axis(self, budget: str) -> tuple[str, float]:
        """Return the label of a budget's axis, and the factor from values to its unit: J where a bandwidth is known."""
        if budget == EPSILON:
            return f"privacy budget ε, {'per round' if self.scenario.budget.scope == 'round' else 'in total'}", 1.0
        bandwidth = self.scenario.link.bandwidth
        return ("total power [W]", 1.0) if bandwidth is None else ("total energy [J]", 1.0 / bandwidth)

    def own(self, budget: str) -> float:
        """Return the scenario's value of a budget."""
        return float(getattr(self.scenario.budget, budget.partition(".")[2]))

    def rows(self) -> list[dict[str, Any]]:
        """Return the points as plain values."""
        return [asdict(point) for point in self.points]


def frontier(scenario: Scenario) -> Frontier:
    """Return what a scenario's plan reaches over ε from 0.5 to 16 and over 1/16 to 16 times its total power.

    Each point is the plan of the scenario with that one budget changed, on the same channel realisation.
    InfeasibleError if none of them has a plan or an expected accuracy.

    >>> import airfed
    >>> points = frontier(airfed.load("examples/private.toml")).along(EPSILON)
    >>> all(point.accuracy <= point.highest + 1e-12 for point in points if point.accuracy)
    True
    """
    points = tuple(_points(scenario))
    if all(point.rounds is None and point.highest is None for point in points):
        raise InfeasibleError(points[0].reason)
    return Frontier(scenario=scenario, points=points)


def _points(scenario: Scenario) -> Iterator[FrontierPoint]:
    powers = [float(f"{scenario.budget.total_power * factor:.6g}") for factor in FACTORS]
    dimension, surrogate = scenario.dimension, scenario.surrogate
    for budget, values in ((EPSILON, EPSILONS), (POWER, powers)):
        for value in values:
            found: dict[str, Any] = {}
            try:
                changed = scenario.override({budget: value})
                problem = changed.problem(dimension=dimension)
                if surrogate is not None:
                    found["highest"] = converse.highest_accuracy(problem, surrogate)
                plan = changed.plan(problem)
                found |= {"num_scheduled": int(np.max(plan.sizes)), "rounds": plan.rounds}
                found["noise_share"] = plan.noise_share
                found["noise_floor"] = converse.least_noise(plan.problem, plan.rounds)
                if (expected := plan.prediction) is not None:
                    found |= {"accuracy": expected.accuracy, "low": expected.low, "high": expected.high}
            except InfeasibleError as error:
                found["reason"] = str(error)
            yield FrontierPoint(budget=budget, value=value, **found)
