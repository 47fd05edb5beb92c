"""Algorithms 1 and 2 of [Yan23] as printed, with Sec. IV-E and its errors, for comparison only.

Algorithm 2 stops at a partial optimum, and with different peak powers the printed pairs can violate a limit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from airfed import bounds
from airfed.planning import limits
from airfed.planning.optimal import Aligned
from airfed.problem import InfeasibleError, Problem

_MAX_ITERATIONS = 100
_RTOL = 1e-12  # the paper does not give its convergence threshold


class _Pairs(NamedTuple):
    """Candidate pairs (K_j, θ_j) of Lemma 6 or 10; K_j is `order[start:]` in the order named by `by_gain`."""

    start: NDArray[np.intp]
    by_gain: NDArray[np.bool_]
    theta: NDArray[np.float64]


def alternate(problem: Problem, *, rounds: int | None = None) -> Aligned:
    """Return (K, θ, I) of Algorithm 2: alternate P2 and P3 from I = T until the objective converges.

    With fixed `rounds` it solves P2 once.

    Implements [Yan23, Algorithm 2].
    Deviations: the convergence threshold, which the paper does not give, is 1e-12 relative. With a total privacy
    budget, P3 also keeps θ within the privacy limit of I rounds, which the paper does not consider.
    """
    if np.any(problem.fleet.gain == 0):
        raise InfeasibleError(
            "No plan fits: a device has gain 0, and the paper's algorithm needs a finite 1/|h|² (peak_power)."
        )
    chosen = problem.most_rounds if rounds is None else int(rounds)
    previous = np.inf
    notes: list[str] = []
    for _ in range(_MAX_ITERATIONS):
        scheduled, theta = solve_p2(problem, chosen)
        if rounds is not None:
            break
        chosen, value = solve_p3(problem, scheduled, theta, chosen)
        if not math.isfinite(value):
            raise InfeasibleError("No plan fits: the limits leave so little signal that the bound is not finite.")
        if abs(previous - value) <= _RTOL * value:
            break
        previous = value
    else:
        notes.append(f"Algorithm 2 did not converge in {_MAX_ITERATIONS} iterations.")
    return Aligned(scheduled, theta, chosen, tuple(notes))


def solve_p2(problem: Problem, rounds: int) -> tuple[NDArray[np.intp], float]:
    """Return (K, θ) of Algorithm 1 for a given number of rounds.

    Implements [Yan23, Algorithm 1], [Yan23, P2] for equal peak powers and Sec. IV-E for different ones.
    Deviations: if |Q| = N the last pair of Lemma 6 is the empty set and is omitted.
    """
    fleet, learning = problem.fleet, problem.learning
    num_devices = fleet.num_devices
    by_gain = np.argsort(fleet.gain, kind="stable")
    by_peak = np.argsort(fleet.reach, kind="stable")
    pairs = _candidate_pairs(problem, rounds, by_gain, by_peak)
    size = num_devices - pairs.start
    with np.errstate(divide="ignore", over="ignore"):
        noise = bounds.noise_error(learning, problem.update_noise_std / (size * pairs.theta))
        objective = bounds.participation_error(1 - size / num_devices) + noise
    best = int(np.argmin(objective))
    if not np.isfinite(objective[best]):
        raise InfeasibleError("No plan fits: the limits leave so little signal that the bound is not finite.")
    order = by_gain if pairs.by_gain[best] else by_peak
    return np.sort(order[pairs.start[best] :]), float(pairs.theta[best])


def _candidate_pairs(problem: Problem, rounds: int, by_gain: NDArray[np.intp], by_peak: NDArray[np.intp]) -> _Pairs:
    fleet = problem.fleet
    cap = float(limits.privacy_limits(problem, np.array([rounds]))[0])
    peak = fleet.reach[by_peak]  # c, ascending
    with np.errstate(over="ignore"):
        cost = np.cumsum(np.square(1 / fleet.gain[by_gain])[::-1])[::-1]
        total = np.sqrt(problem.budget.total_power / (rounds * cost))  # q, ascending
    below = max(np.searchsorted(peak, cap), np.searchsorted(total, cap))  # |Q|
    start, by_total = np.arange(below), total[:below] < peak[:below]
    if not fleet.equal_peak_power:
        start = np.where(by_total, start, np.searchsorted(peak, peak[:below]))  # K_c holds all k with c_k ≥ c_j
    pairs = _Pairs(start, by_total, np.minimum(peak, total)[:below])
    if below == fleet.num_devices:
        return pairs
    # If |Q| = 0 this pair is full participation: [Yan23, Lemma 4].
    return _Pairs(np.append(pairs.start, below), np.append(pairs.by_gain, True), np.append(pairs.theta, cap))


def solve_p3(problem: Problem, scheduled: NDArray[np.intp], theta: float, current: int) -> tuple[int, float]:
    """Return (I, W) of P3: the best number of rounds for a given (K, θ), by search over all feasible ones.

    `current`, the I of (K, θ), stays a candidate even if rounding excludes it. Implements [Yan23, P3].
    """
    learning = problem.learning
    rounds = problem.round_candidates()
    total = limits.total_limits(problem, scheduled, rounds)
    feasible = total * (1 + _RTOL) >= theta
    if problem.budget.scope == "total":
        feasible &= limits.privacy_limits(problem, rounds) * (1 + _RTOL) >= theta
    feasible |= rounds == current
    inner = (
        bounds.participation_error(1 - scheduled.size / problem.fleet.num_devices)
        + (learning.total_steps / rounds - 1) ** 2
        + bounds.noise_error(learning, problem.update_noise_std / (scheduled.size * theta))
    )
    remaining = bounds.remaining_gap(learning, rounds)
    with np.errstate(over="ignore"):
        objective = remaining + bounds.round_scales(learning, rounds) * inner
    objective[~feasible] = np.inf
    best = int(np.argmin(objective))
    return int(rounds[best]), float(objective[best])


def beats_full_participation(problem: Problem, *, num_scheduled: int, alignment: float, rounds: int) -> bool:
    """Return whether Lemma 7 guarantees that |K| devices at θ are better than full participation.

    |K|θ ≥ 1 / √(1/(N²m²) − 8/(dσ²)) with m = min{c_1, q_1}. The condition is sufficient, not
    necessary (it replaces 4(1−|K|/N)² by 4), and cannot hold if dσ² ≤ 8N²m².

    Implements [Yan23, Lemma 7].
    Deviations: the factor 1/2 of the full-participation value, and min{c_1, q_1} in place of the printed c_1.
    """
    if np.any(problem.fleet.gain == 0):
        return True  # the full fleet cannot be aligned at all
    devices = np.arange(problem.fleet.num_devices)
    full = min(limits.peak_limit(problem, devices), float(limits.total_limits(problem, devices, np.array([rounds]))[0]))
    # both sides times √(dσ²), against underflow
    spread = math.sqrt(problem.learning.dimension) * problem.update_noise_std
    margin = spread / (devices.size * full) * (spread / (devices.size * full)) - 8 if full > 0 else math.inf
    return margin > 0 and num_scheduled * alignment >= spread / math.sqrt(margin)
