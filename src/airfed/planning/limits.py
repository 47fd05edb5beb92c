"""The three limits on the received amplitude of aligned devices, θ: privacy, peak power and total power."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from airfed.privacy import classic_mu, gaussian_epsilon, gaussian_mu
from airfed.privacy.imperfect import amplification
from airfed.problem import Budget, InfeasibleError, Problem

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Devices = NDArray[np.intp]
Binding = Literal["privacy", "peak_power", "total_power", "device_power"]
_ULP = float(np.finfo(np.float64).eps)


def allowed_mu(budget: Budget) -> float:
    """Return the largest μ that the budget allows to what it covers; its ε, rounded up, is within the budget."""
    if budget.formula == "classic":
        mu = classic_mu(budget.epsilon, budget.delta)  # [Yan23, P1]
    else:
        mu = _exact_mu(budget.epsilon, budget.delta)
        if budget.spent:
            left = (mu - budget.spent) * (mu + budget.spent)
            # rounded down by more than the totals of a ledger are rounded up
            mu = math.sqrt(left) * (1 - 64 * _ULP * (mu / (mu - budget.spent))) if left > 0 else 0.0
            if not mu > 0:
                raise InfeasibleError(
                    f"No plan fits: trainings before have spent μ = {budget.spent:.4g}, and "
                    f"epsilon={budget.epsilon:g} at delta={budget.delta:g} leaves nothing for another (privacy)."
                )
    if not mu > 0:
        raise InfeasibleError(
            f"No plan fits: epsilon={budget.epsilon!r} at delta={budget.delta!r} leaves no signal at all (privacy)."
        )
    return mu


@lru_cache(maxsize=1024)  # two inversions in 60-digit arithmetic; a plan, its limits and its picture all ask
def _exact_mu(epsilon: float, delta: float) -> float:
    mu, shrink = gaussian_mu(epsilon, delta), 16 * _ULP
    # Reported figures are rounded up by a few ulp twice (composition and inversion): leave room for that.
    while mu > 0 and gaussian_epsilon(mu * (1 + 8 * _ULP), delta) > epsilon:
        mu *= 1 - shrink
        shrink *= 2
    return mu


def amplifications(problem: Problem) -> Floats:
    """Return f_k of every device: how much stronger than θ somebody may see it; ones where all is known."""
    if problem.seen_by_all:
        return problem.fleet.exposure
    link = problem.link
    nmse = 0.0 if link.trust_estimates else link.estimation_error
    return amplification(problem.fleet.gain, nmse=nmse, failure=link.estimation_failure)


def amplified(problem: Problem) -> bool:
    """Return whether somebody may see a device stronger than θ, and that is to be accounted for."""
    return problem.seen_by_all or (problem.link.estimation_error > 0 and not problem.link.trust_estimates)


def privacy_cap(problem: Problem) -> float:
    """Return σμ/2 (σμ to add or remove), the largest amplitude that the budget allows to what it covers."""
    return problem.link.noise_std * allowed_mu(problem.budget) / problem.budget.sensitivity


def privacy_limits(problem: Problem, rounds: NDArray[np.int64], scheduled: Devices | None = None) -> Floats:
    """Return the largest θ that privacy allows, for each number of rounds.

    θ ≤ σμ/2 where the budget covers one round, σμ/(2√I) where it covers them all (replace-one; without the 2 to add or
    remove one). Where devices may be seen more strongly than θ, `scheduled` lowers it by the largest f_k among them.

    Implements [Yan23, P1].
    Deviations: μ comes from the exact formula unless the budget asks for the classic one.
    """
    cap = privacy_cap(problem) * (1 - 4 * _ULP)
    if scheduled is not None and amplified(problem):
        cap /= float(np.max(amplifications(problem)[scheduled])) * (1 + 4 * _ULP)
    if problem.budget.scope == "total":
        return np.asarray(cap / np.sqrt(rounds))
    return np.full(rounds.shape, cap)


def peak_limit(problem: Problem, scheduled: Devices) -> float:
    """Return min over K of |h_k|√P_k, the largest θ at which no device exceeds its peak power."""
    return float(np.min(problem.fleet.reach[scheduled]))  # [Yan23, (15)]


def total_limits(problem: Problem, scheduled: Devices, rounds: NDArray[np.int64]) -> Floats:
    """Return √(P_tot / (I Σ_K 1/|h_k|²)), the largest θ that the total power allows, for each number of rounds."""
    with np.errstate(divide="ignore", over="ignore"):  # a device that is unreachable leaves θ = 0
        cost = float(np.sum(np.square(1.0 / problem.fleet.gain[scheduled])))  # W per round at θ = 1
        return np.asarray(np.sqrt(problem.budget.total_power / (rounds * cost)))  # [Yan23, (17)]


def alignment_limits(problem: Problem, scheduled: Devices, rounds: int) -> dict[Binding, float]:
    """Return the largest θ that each limit allows to the given devices in the given number of rounds."""
    each = np.array([rounds])
    return {
        "privacy": float(privacy_limits(problem, each, scheduled)[0]),
        "peak_power": peak_limit(problem, scheduled),
        "total_power": float(total_limits(problem, scheduled, each)[0]),
    }


def largest_alignment(problem: Problem, scheduled: Devices, rounds: NDArray[np.int64]) -> Floats:
    """Return the largest θ within all three limits, for each number of rounds."""
    require_reachable(problem, scheduled)
    power = np.minimum(peak_limit(problem, scheduled), total_limits(problem, scheduled, rounds))
    privacy = privacy_limits(problem, rounds, scheduled)
    # Squaring and summing may round up past a power limit: step down by what they can lose.
    slack = 4 * _ULP * (1 + math.log2(scheduled.size))
    return np.minimum(privacy, power * (1 - slack))


def require_reachable(problem: Problem, scheduled: Devices, when: str = "") -> None:
    """Raise InfeasibleError where a scheduled device has gain 0."""
    dead = scheduled[problem.fleet.gain[scheduled] == 0]
    if dead.size:
        raise InfeasibleError(
            f"No plan fits: device {dead[0]} has gain 0{when} and would need infinite power to be heard (peak_power)."
        )
