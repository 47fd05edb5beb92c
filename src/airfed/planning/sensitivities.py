"""What one more watt, unit of ε or device would buy, in terms of what a plan was chosen by."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from airfed import bounds
from airfed.planning import limits
from airfed.planning.plan import Plan
from airfed.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Sensitivities:
    """What a little more of a budget buys.

    Args:
        of: what the figures are: Theorem 1's "bound", or the expected "accuracy" of a plan that was chosen by it.
        now: the present figure.
        watt: with one watt more in total.
        epsilon: with ε one higher.
        double_power: with twice the total power.
        double_epsilon: with twice the ε.
        binding: the present limit.
    """

    of: Literal["bound", "accuracy"]
    now: float
    watt: float
    epsilon: float
    double_power: float
    double_epsilon: float
    binding: str


@dataclass(frozen=True, kw_only=True)
class NextDevice:
    """The strongest device that is not scheduled, and what keeps it out.

    Args:
        device: its index.
        gain: |h|.
        limit: the limit that would hold θ if it joined.
        alignment: that θ.
        bound: the bound if it joined.
    """

    device: int
    gain: float
    limit: str
    alignment: float
    bound: float


def sensitivities(problem: Problem, planner: Callable[[Problem], Plan]) -> Sensitivities:
    """Return what one more watt and one more unit of ε buy.

    Args:
        problem: the present one; with several antennas its combiner stays, if it has one already.
        planner: the policy.

    Raises:
        InfeasibleError: no plan meets every limit.
    """
    epsilon, power = problem.budget.epsilon, problem.budget.total_power
    now = planner(problem)
    by_accuracy = now.objective == "measured" and now.predicted_accuracy is not None

    def figure(plan: Plan) -> float:
        if not by_accuracy:
            return plan.bound.total
        return math.nan if plan.predicted_accuracy is None else plan.predicted_accuracy

    def at(loss: float, watts: float) -> float:
        return figure(planner(with_budgets(problem, epsilon=loss, total_power=watts)))

    return Sensitivities(
        of="accuracy" if by_accuracy else "bound",
        now=figure(now),
        watt=at(epsilon, power + 1.0),
        epsilon=at(epsilon + 1.0, power),
        double_power=at(epsilon, 2 * power),
        double_epsilon=at(2 * epsilon, power),
        binding=now.binding,
    )


def with_budgets(problem: Problem, *, epsilon: float, total_power: float) -> Problem:
    """Return the problem with other budgets."""
    return replace(problem, budget=replace(problem.budget, epsilon=epsilon, total_power=total_power))


def next_device(plan: Plan) -> NextDevice | None:
    """Return the strongest device that an aligned plan leaves out, and θ and the bound if it joined.

    None with full participation, where rounds differ, and where devices do not arrive equally strong.
    """
    problem = plan.problem
    if problem.varies or not plan.amplitudes.equal or not plan.constant:
        return None
    gain = problem.fleet.gain.copy()
    gain[plan.scheduled] = 0.0
    device = int(np.argmax(gain))
    if gain[device] == 0.0:
        return None
    joined = np.sort(np.append(plan.scheduled, device))
    allowed = limits.alignment_limits(problem, joined, plan.rounds)
    limit = min(allowed, key=allowed.__getitem__)
    bound = bounds.convex_gap(
        problem.learning,
        rounds=plan.rounds,
        shortfall=1.0 - joined.size / problem.fleet.num_devices,
        noise_share=problem.link.noise_std / (joined.size * allowed[limit]),
    ).total
    return NextDevice(
        device=device,
        gain=float(gain[device]),
        limit=limit,
        alignment=allowed[limit],
        bound=bound if math.isfinite(bound) else math.inf,
    )
