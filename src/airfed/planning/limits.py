"""The limits on the received amplitude θ of aligned devices: privacy, peak power and total power."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from airfed.privacy import classic_mu, gaussian_epsilon, gaussian_mu
from airfed.privacy.gaussian import amplification
from airfed.problem import Budget, InfeasibleError, Problem

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Devices = NDArray[np.intp]
Binding = Literal["privacy", "peak_power", "total_power", "device_power"]
_ULP = float(np.finfo(np.float64).eps)


def allowed_mu(budget: Budget) -> float:
    """Return the largest μ within the budget, of one round or of the training; its ε, rounded up, meets the budget."""
    if budget.formula == "classic":
        mu = classic_mu(budget.epsilon, budget.delta)  # [Yan23, P1]
    else:
        mu = _exact_mu(budget.epsilon, budget.delta)
        if budget.spent:
            left = (mu - budget.spent) * (mu + budget.spent)
            # rounded down by more than a ledger rounds its totals up
            mu = math.sqrt(left) * (1 - 64 * _ULP * (mu / (mu - budget.spent))) if left > 0 else 0.0
            if not mu > 0:
                raise InfeasibleError(
                    f"No plan fits: earlier trainings have spent μ = {budget.spent:.4g}, and epsilon="
                    f"{budget.epsilon:g} at delta={budget.delta:g} leaves no privacy budget (privacy)."
                )
    if not mu > 0:
        raise InfeasibleError(
            f"No plan fits: epsilon={budget.epsilon!r} at delta={budget.delta!r} allows no signal (privacy)."
        )
    return mu


@lru_cache(maxsize=1024)  # two inversions in 60-digit arithmetic
def _exact_mu(epsilon: float, delta: float) -> float:
    mu, shrink = gaussian_mu(epsilon, delta), 16 * _ULP
    # Reported values are rounded up by a few ulp twice (composition and inversion).
    while mu > 0 and gaussian_epsilon(mu * (1 + 8 * _ULP), delta) > epsilon:
        mu *= 1 - shrink
        shrink *= 2
    return mu


def amplifications(problem: Problem) -> Floats:
    """Return f_k of every device: the amplitude that the adversary may observe over θ; 1 with perfect CSI."""
    if problem.all_antennas_seen:
        return problem.fleet.exposure
    link = problem.link
    nmse = 0.0 if link.assume_perfect_csi else link.csi_error
    return amplification(problem.fleet.gain, nmse=nmse, failure=link.csi_failure)


def amplified(problem: Problem) -> bool:
    """Return whether the accounting includes f_k > 1: imperfect CSI, or an adversary who observes all antennas."""
    return problem.all_antennas_seen or (problem.link.csi_error > 0 and not problem.link.assume_perfect_csi)


def privacy_cap(problem: Problem, *, analog: bool = True) -> float:
    """Return σμ/2 (σμ for add-remove adjacency), the largest amplitude within the privacy budget.

    σ is the lower confidence limit of a measured noise, except if the noise is generated (not `analog`).
    """
    sigma = problem.link.privacy_noise_std if analog else problem.link.noise_std
    return sigma * allowed_mu(problem.budget) / problem.budget.sensitivity


def privacy_limits(
    problem: Problem, rounds: NDArray[np.int64], scheduled: Devices | None = None, *, analog: bool = True
) -> Floats:
    """Return the largest θ that privacy allows, for each number of rounds.

    θ ≤ σμ/2 for a budget per round, θ ≤ σμ/(2√I) for a total budget (replace-one; twice that for add-remove). With
    `scheduled` it is divided by the largest f_k of these devices.

    Implements [Yan23, P1].
    Deviations: μ is exact unless the budget has the classic formula. The unit of privacy is a device, not a sample.
    """
    cap = privacy_cap(problem, analog=analog) * (1 - 4 * _ULP)
    if scheduled is not None and amplified(problem):
        cap /= float(np.max(amplifications(problem)[scheduled])) * (1 + 4 * _ULP)
    if problem.budget.scope == "total":
        return np.asarray(cap / np.sqrt(rounds))
    return np.full(rounds.shape, cap)


def peak_limit(problem: Problem, scheduled: Devices) -> float:
    """Return min over K of |h_k|√P_k, the largest θ within all peak powers."""
    return float(np.min(problem.fleet.reach[scheduled]))  # [Yan23, (15)]


def total_limits(problem: Problem, scheduled: Devices, rounds: NDArray[np.int64]) -> Floats:
    """Return √(P_tot / (I Σ_K 1/|h_k|²)), the largest θ within the total power, for each number of rounds."""
    with np.errstate(divide="ignore", over="ignore"):  # an unreachable device gives θ = 0
        cost = float(np.sum(np.square(1.0 / problem.fleet.gain[scheduled])))  # W per round at θ = 1
        return np.asarray(np.sqrt(problem.budget.total_power / (rounds * cost)))  # [Yan23, (17)]


def alignment_limits(problem: Problem, scheduled: Devices, rounds: int) -> dict[Binding, float]:
    """Return the largest θ of the given devices under each limit, for a given number of rounds."""
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
    # Squares and sums may round up beyond a power limit.
    slack = 4 * _ULP * (1 + math.log2(scheduled.size))
    return np.minimum(privacy, power * (1 - slack))


def water_level(saturation: Floats, cost: Floats, full: Floats, budget: float) -> float:
    """Return the level x with Σ_k min(cost_k·x, full_k) = budget; infinite if Σ full_k is within the budget.

    `saturation` is full_k/cost_k, the level at which device k is at its limit.
    """
    if float(np.sum(full)) <= budget:
        return math.inf
    order = np.argsort(saturation, kind="stable")
    rest = np.cumsum(cost[order][::-1])[::-1]  # Σ cost of the devices below their limits
    before = np.concatenate(([0.0], np.cumsum(full[order])[:-1]))
    spent = before + saturation[order] * rest  # at the level at which the next device saturates
    index = int(np.argmax(spent > budget)) if spent[-1] > budget else spent.size - 1
    reached = saturation[order[index - 1]] if index else 0.0  # within the budget, whatever rounding says of the rest
    return float(max((budget - before[index]) / rest[index], reached))


def require_reachable(problem: Problem, scheduled: Devices, when: str = "") -> None:
    """Raise InfeasibleError if a scheduled device has gain 0."""
    unreachable = scheduled[problem.fleet.gain[scheduled] == 0]
    if unreachable.size:
        raise InfeasibleError(
            f"No plan fits: device {unreachable[0]} has gain 0{when} and would need infinite power (peak_power)."
        )
