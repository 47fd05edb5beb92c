"""What one more watt, unit of ε or device would buy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as replace_values

import numpy as np

from airfed import convergence
from airfed.planning import limits
from airfed.planning.plan import Plan
from airfed.problem import Problem


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


@dataclass(frozen=True, kw_only=True)
class NextDevice:
    """The strongest device that stays out, and what keeps it out.

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


def price(problem: Problem, decide: Callable[[Problem], Plan]) -> Price:
    """Return what one more watt and one more unit of ε buy to whoever decides.

    Args:
        problem: the present one; with several antennas its combiner stays, if it has one already.
        decide: the policy.

    Raises:
        InfeasibleError: no plan meets every limit.
    """
    epsilon, power = problem.budget.epsilon, problem.budget.total_power

    def bound(loss: float, watts: float) -> float:
        return decide(with_budgets(problem, epsilon=loss, total_power=watts)).bound.total

    now = decide(problem)
    return Price(
        now=now.bound.total,
        watt=bound(epsilon, power + 1.0),
        epsilon=bound(epsilon + 1.0, power),
        double_power=bound(epsilon, 2 * power),
        double_epsilon=bound(2 * epsilon, power),
        binding=now.binding,
    )


def with_budgets(problem: Problem, *, epsilon: float, total_power: float) -> Problem:
    """Return the problem with other budgets."""
    return replace_values(problem, budget=replace_values(problem.budget, epsilon=epsilon, total_power=total_power))


def next_device(plan: Plan) -> NextDevice | None:
    """Return the strongest device that a plan leaves out, and what would become of θ and the bound with it.

    None where everybody sends, and where rounds differ in who does.
    """
    problem = plan.problem
    if problem.varies:
        return None
    gain = problem.fleet.gain.copy()
    gain[plan.scheduled] = 0.0
    device = int(np.argmax(gain))
    if gain[device] == 0.0:
        return None
    joined = np.sort(np.append(plan.scheduled, device))
    values = limits.alignment_limits(problem, joined, plan.rounds)
    limit = min(values, key=values.__getitem__)
    alignment = values[limit]
    bound = convergence.convex_gap(
        problem.learning,
        num_scheduled=joined.size,
        num_devices=problem.fleet.num_devices,
        alignment=alignment,
        noise_std=problem.link.noise_std,
        rounds=plan.rounds,
    ).total
    return NextDevice(
        device=device,
        gain=float(gain[device]),
        limit=limit,
        alignment=alignment,
        bound=bound if math.isfinite(bound) else math.inf,
    )
