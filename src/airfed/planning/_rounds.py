"""The search over numbers of rounds one at a time, where they are many or a search over all of them finds no hold.

Let Ψ_r be the least value of 4(1 − |K|/N)² + noise_weight/(|K|θ)² over all schedules in candidate r, so that its best
W is offset_r + scale_r·Ψ_r. The largest θ of a schedule is the smallest of cap_r (over a constant of each device), its
peak limit and √(budget_r / S); between two candidates it changes by no more than these limits do, whatever the
schedule. Hence one Ψ bounds all others from below:

    Ψ_r ≥ Ψ_b · min{1, (cap_b/cap_r)², budget_b/budget_r}.

The candidate whose bound is lowest is solved next, until none is below the best W seen. A handful of a million suffice
as a rule. What float64 cannot tell apart needs no solving: where W is the same for all, one is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from airfed.planning._equal import Floats, Integers, Rounds

_MOST = 1000  # candidates that are solved before the search is called off; hard problems take about a hundred

_HUGE = 1e300  # in place of an infinite Ψ, of which a share is less

Solution = TypeVar("Solution")


def best_rounds(rounds: Rounds, solve: Callable[[int], tuple[float, Solution]]) -> tuple[int, Solution]:
    """The candidate of smallest W, and its solution.

    Of equal W the lowest index among those that were solved wins.

    Args:
        rounds: the candidates, at least one.
        solve: Ψ_r of a candidate, or infinity, and anything else that belongs to it.

    Raises:
        ValueError: too many candidates are too close to each other to be told apart by bounds.
    """
    open_ = np.arange(rounds.cap.size)
    least = np.zeros(open_.size)  # what Ψ is at least
    solved: list[tuple[float, int, Solution]] = []
    while open_.size:
        if len(solved) == _MOST:
            raise ValueError(
                f"Expected rounds to be fixed: of {rounds.cap.size} numbers of rounds, {open_.size} are still too close"
                f" to call after {_MOST} have been solved."
            )
        bound = _objective(rounds, open_, least)
        place = int(np.argmin(bound))
        index = int(open_[place])
        value, solution = solve(index)
        solved.append((float(_objective(rounds, index, value)), index, solution))
        with np.errstate(over="ignore"):
            ratio = rounds.cap[index] / rounds.cap[open_]
            share = np.minimum(np.square(ratio), rounds.budget[index] / rounds.budget[open_])
        share[place] = 1.0
        np.maximum(least, np.where(share >= 1.0, value, min(value, _HUGE) * np.minimum(share, 1.0)), out=least)
        kept = _objective(rounds, open_, least) < min(solved, key=_rank)[0]
        open_, least = open_[kept], least[kept]
    _, index, solution = min(solved, key=_rank)
    return index, solution


def _objective(rounds: Rounds, index: Integers | int, value: Floats | float) -> Floats:
    """W where Ψ is `value`."""
    with np.errstate(over="ignore"):
        return np.asarray(rounds.offset[index] + rounds.scale[index] * value)


def _rank(solved: tuple[float, int, object]) -> tuple[float, int]:
    return solved[:2]
