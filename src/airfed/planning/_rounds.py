"""The search over numbers of rounds one at a time, where they are many or a search over all of them finds no hold.

Let Ψ_r be the least value of A_K + n_K(r) over all schedules K in candidate r, with A_K = 4(1 − |K|/N)² and
n_K(r) = noise_weight/(|K|θ)² at the largest θ, so that the best W of the candidate is offset_r + scale_r·Ψ_r. That θ
is the smallest of cap_r (over a constant of each device), the peak limit and √(budget_r / S); between two candidates it
changes by no more than these limits do, whatever the schedule. Hence one candidate b bounds all others from below:

    Ψ_r ≥ Ψ_b(x) = min_K {A_K + x·n_K(b)},   x = min{1, (cap_b/cap_r)², budget_b/budget_r}.

Ψ_b(0) ≥ 0, Ψ_b(1) = Ψ_b, and as a minimum of straight lines Ψ_b is concave: it lies above the chord between any two of
its points. The candidate whose bound is lowest is solved next, until none is below the best W seen. A handful of a
million suffice as a rule; where they do not, further points of Ψ_b make the chords short. What float64 cannot tell
apart needs no solving: where W is the same for all, one is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from airfed.planning._equal import Exhausted, Floats, Found, Integers, Rounds

_TOGETHER = 512  # numbers of rounds that are searched together: the memory grows with them
_EASY = 8  # candidates that are solved before more than one point of each Ψ_b is asked for
_MOST = 150  # candidates that are solved before the search is called off; the hardest known take about twenty
_HUGE = 1e300  # in place of an infinite Ψ, of which a share is less

Solution = TypeVar("Solution")


def search_rounds(rounds: Rounds, search: Callable[[Rounds], Found]) -> Found:
    """The best schedule over all candidates: searched together if that is of use, else one by one."""
    if rounds.cap.size <= _TOGETHER:
        try:
            return search(rounds)
        except Exhausted:
            pass

    def solve(index: int, share: float) -> tuple[float, Found]:
        found = search(rounds.alone(index, share))
        return found.objective, found

    index, found = best_rounds(rounds, solve)
    return replace(found, index=index)


def best_rounds(rounds: Rounds, solve: Callable[[int, float], tuple[float, Solution]]) -> tuple[int, Solution]:
    """The candidate of smallest W, and its solution.

    Of equal W the lowest index among those that were solved wins.

    Args:
        rounds: the candidates, at least one.
        solve: Ψ_b(x) of candidate b at a share x of the noise, or infinity, and anything else that belongs to it.

    Raises:
        ValueError: too many candidates are too close to each other to be told apart by bounds.
    """
    open_ = np.arange(rounds.cap.size)
    least = np.zeros(open_.size)  # what Ψ is at least
    solved: dict[int, tuple[float, Solution]] = {}
    points: dict[int, dict[float, float]] = {}
    while open_.size:
        if len(solved) == _MOST:
            raise ValueError(
                f"Expected rounds to be fixed: of {rounds.cap.size} numbers of rounds, {open_.size} are still too close"
                f" to call after {_MOST} have been solved."
            )
        index = int(open_[np.argmin(_objective(rounds, open_, least))])
        value, solution = solve(index, 1.0)
        points[index] = {0.0: 0.0, 1.0: value}
        new = [(index, 0.0), *_chords(rounds, index, list(solved))] if len(solved) >= _EASY else [(index, 0.0)]
        for other, share in new:
            if share not in points[other]:
                points[other][share] = solve(other, share)[0]
            np.maximum(least, _bound(rounds, other, open_, points[other]), out=least)
        solved[index] = float(_objective(rounds, index, value)), solution
        kept = (_objective(rounds, open_, least) < min(total for total, _ in solved.values())) & (open_ != index)
        open_, least = open_[kept], least[kept]
    winner = min(solved, key=lambda index: (solved[index][0], index))
    return winner, solved[winner][1]


def _objective(rounds: Rounds, index: Integers | int, value: Floats | float) -> Floats:
    """W where Ψ is `value`."""
    with np.errstate(over="ignore"):
        return np.asarray(rounds.offset[index] + rounds.scale[index] * value)


def _shares(rounds: Rounds, index: int, others: Integers | int) -> Floats:
    """x of the bounds that candidate `index` sets to `others`."""
    with np.errstate(over="ignore"):
        ratio = rounds.cap[index] / rounds.cap[others]
        return np.asarray(np.minimum(1.0, np.minimum(np.square(ratio), rounds.budget[index] / rounds.budget[others])))


def _bound(rounds: Rounds, index: int, others: Integers, points: dict[float, float]) -> Floats:
    """What Ψ of `others` is at least: the chords between the known points of Ψ_index."""
    share = _shares(rounds, index, others)
    known = sorted(points)
    chord = np.interp(share, known, [min(points[x], _HUGE) for x in known])
    return np.where(share == 1.0, points[1.0], chord)


def _chords(rounds: Rounds, index: int, solved: list[int]) -> list[tuple[int, float]]:
    """The points (b, x) that shorten the chords around `index`: of it, and of the next harder candidate."""
    others = np.array(solved, dtype=np.intp)
    here = _shares(rounds, index, others)  # below 1: easier candidates
    there = np.array([float(_shares(rounds, other, index)) for other in solved])  # below 1: harder ones
    found = []
    if np.any(here < 1):
        found.append((index, float(here[here < 1].max())))
    if np.any(there < 1):
        nearest = int(np.argmax(np.where(there < 1, there, 0.0)))
        found.append((int(others[nearest]), float(there[nearest])))
    return found
