"""Algorithms 1 and 2 of [Yan23] as printed, Sec. IV-E included, with its errors: for comparison only.

Algorithm 2 stops at a partial optimum, and with different peak powers the printed pairs can break a limit.
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
_RTOL = 1e-12  # the print's convergence threshold ε is not given


class _Pairs(NamedTuple):
    """Candidate pairs (K_j, θ_j) of Lemma 6 or 10; K_j is `order[start:]` in the order named by `by_gain`."""

    start: NDArray[np.intp]
    by_gain: NDArray[np.bool_]
    theta: NDArray[np.float64]


def alternate(problem: Problem, *, rounds: int | None = None) -> Aligned:
    """Return (K, θ, I) of Algorithm 2: P2 and P3 in turn, from I = T, until the objective rests.

    With `rounds` given only P2 is solved, once.

    Implements [Yan23, Algorithm 2].
    Deviations: the convergence threshold, not given in the print, is 1e-12 relative. Where the budget covers the whole
    training, P3 also keeps θ within the privacy limit of I rounds, which the print does not consider.
    """
    if np.any(problem.fleet.gain == 0):
        raise InfeasibleError(
            "No plan fits: a device has gain 0, and the paper's pairs take every 1/|h|² for finite (peak_power)."
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
        notes.append(f"Algorithm 2 had not come to rest after {_MAX_ITERATIONS} iterations.")
    return Aligned(scheduled, theta, chosen, tuple(notes))


def solve_p2(problem: Problem, rounds: int) -> tuple[NDArray[np.intp], float]:
    """Return (K, θ) of Algorithm 1 for a given number of rounds.

    Implements [Yan23, Algorithm 1], [Yan23, P2] for equal peak powers and Sec. IV-E for different ones.
    Deviations: if |Q| = N the last pair is the empty set and is left out (Lemma 6's edge).
    """
    fleet, learning = problem.fleet, problem.learning
    num_devices = fleet.num_devices
    by_gain = np.argsort(fleet.gain, kind="stable")
    by_peak = np.argsort(fleet.reach, kind="stable")
    pairs = _candidate_pairs(problem, rounds, by_gain, by_peak)
    size = num_devices - pairs.start
    with np.errstate(divide="ignore", over="ignore"):
        noise = bounds.noise_error(learning, problem.link.noise_std / (size * pairs.theta))
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
    # With no pair before it (|Q| = 0) this one is everybody: [Yan23, Lemma 4].
    return _Pairs(np.append(pairs.start, below), np.append(pairs.by_gain, True), np.append(pairs.theta, cap))


def solve_p3(problem: Problem, scheduled: NDArray[np.intp], theta: float, current: int) -> tuple[int, float]:
    """Return (I, W) of P3: the best number of rounds for a given (K, θ), by search over all feasible ones.

    Implements [Yan23, P3]. `current`, for which (K, θ) was found, stays a candidate even where rounding excludes it.
    """
    learning = problem.learning
    rounds = np.arange(1, problem.most_rounds + 1)
    total = limits.total_limits(problem, scheduled, rounds)
    feasible = total * (1 + _RTOL) >= theta
    if problem.budget.scope == "total":
        feasible &= limits.privacy_limits(problem, rounds) * (1 + _RTOL) >= theta
    feasible |= rounds == current
    inner = (
        bounds.participation_error(1 - scheduled.size / problem.fleet.num_devices)
        + (learning.total_steps / rounds - 1) ** 2
        + bounds.noise_error(learning, problem.link.noise_std / (scheduled.size * theta))
    )
    remaining = bounds.remaining_gap(learning, rounds)
    with np.errstate(over="ignore"):
        objective = remaining + bounds.round_scales(learning, rounds) * inner
    objective[~feasible] = np.inf
    best = int(np.argmin(objective))
    return int(rounds[best]), float(objective[best])


def beats_full_participation(problem: Problem, *, num_scheduled: int, alignment: float, rounds: int) -> bool:
    """Return whether Lemma 7 promises that |K| devices at θ do better than full participation.

    |K|θ ≥ 1 / √(1/(N²m²) − 8/(dσ²)) with m = min{c_1, q_1}. True is a promise; False says nothing: the condition is
    sufficient, not necessary (it replaces 4(1−|K|/N)² by 4), and void where dσ² ≤ 8N²m².

    Implements [Yan23, Lemma 7].
    Deviations: the factor 1/2 of the full-participation value, and min{c_1, q_1} where the print has c_1.
    """
    if np.any(problem.fleet.gain == 0):
        return True  # the full fleet cannot be aligned at all
    everyone = np.arange(problem.fleet.num_devices)
    full = min(
        limits.peak_limit(problem, everyone), float(limits.total_limits(problem, everyone, np.array([rounds]))[0])
    )
    # both sides times √(dσ²), so that nothing underflows
    spread = math.sqrt(problem.learning.dimension) * problem.link.noise_std
    margin = spread / (everyone.size * full) * (spread / (everyone.size * full)) - 8 if full > 0 else math.inf
    return margin > 0 and num_scheduled * alignment >= spread / math.sqrt(margin)
