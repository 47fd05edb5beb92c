"""The joint search over rounds and schedule sizes, when one order of the devices settles every schedule.

With equal peak powers the best schedule of size m holds the m devices of largest gain, and its alignment
factor is

    θ(m, r) = min{cap_r, c_m, √(budget_r / S_m)},   S_m = Σ of 1/|h|² over those m devices,

which never grows with m [Yan23, Lemma 3]. So on a block m₁ ≤ m ≤ m₂ the objective is at least its value at
size m₂ and alignment θ(m₁, r). Blocks that cannot beat the best value seen so far, over all candidate numbers
of rounds at once, are dropped; the others are split until they hold one size. Of R·N pairs only a few
thousand are ever looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

_FIRST_BLOCKS = 64  # blocks per number of rounds at the coarsest level
_SPLIT = 16  # pieces into which a surviving block is cut
_MOST_PAIRS = 1 << 20  # (rounds, block) pairs held at once, a bound on memory when little can be dropped
_WORK = 1 << 20  # (rounds, block) pairs looked at before the candidates are taken one by one instead


class Exhausted(Exception):
    """The bounds separate too little for a search over all candidates together."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A best schedule: the `size` devices of smallest load among those with c_k ≥ threshold."""

    objective: float
    index: int
    size: int
    threshold: float = 0.0

    def rank(self) -> tuple[float, int, int]:
        """What decides between two: the objective, then the lower index, then the larger size."""
        return self.objective, self.index, -self.size


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The candidate numbers of rounds, and the objective they share.

    Args:
        cap: (R,) the largest θ that privacy allows.
        budget: (R,) P_tot/I [W per round].
        offset, scale: (R,) W = offset + scale·Ψ.
        noise_weight: dσ²/2.
        num_devices: N.
    """

    cap: Floats
    budget: Floats
    offset: Floats
    scale: Floats
    noise_weight: float
    num_devices: int

    def objective(self, index: Integers | int, size: NDArray[Any] | float, alignment: Floats | float) -> Floats:
        """W of scheduling `size` devices at θ = `alignment` in candidate `index`; the arrays broadcast."""
        participation = 4.0 * np.square(1.0 - size / self.num_devices)
        noise = self.noise_weight / np.square(size * alignment)
        value: Floats = self.offset[index] + self.scale[index] * (participation + noise)  # [Yan23, P1]
        return value

    def take(self, index: Integers) -> Rounds:
        """The candidates `index` alone."""
        arrays = {name: getattr(self, name)[index] for name in ("cap", "budget", "offset", "scale")}
        return replace(self, **arrays)

    def alone(self, index: int, share: float = 1.0) -> Rounds:
        """The candidate `index` by itself, at a share of the noise, with Ψ as its objective.

        W would hide what Ψ still tells apart.
        """
        one = replace(self.take(np.array([index])), offset=np.zeros(1), scale=np.ones(1))
        return replace(one, noise_weight=share * one.noise_weight)


def prefix_alignment(rounds: Rounds, index: Integers, size: Integers, peak: Floats, load: Floats) -> Floats:
    """θ(m, r) of the m strongest devices, from `peak` (c_m) and `load` (S_m)."""
    own = np.minimum(rounds.cap[index], peak[size - 1])
    return np.minimum(own, np.sqrt(rounds.budget[index] / load[size - 1]))  # [Yan23, Lemma 3]


def best_prefix(rounds: Rounds, peak: Floats, load: Floats, *, beside: int = 0) -> Found:
    """The smallest W over all candidates r and schedules of the first 1..len(peak) devices.

    Of equal W the lowest r wins, then the largest m.

    Args:
        rounds: the candidate numbers of rounds.
        peak: c_m, the smallest |h|√P among the m strongest devices; never rises.
        load: S_m, the sum of their 1/|h|²; never falls.
        beside: devices that are in every schedule besides; they count in the size m.

    Raises:
        Exhausted: nearly all of many pairs are as good as tied; a single candidate never is too much.
    """
    most = peak.size
    width = _SPLIT ** max(0, math.ceil(math.log(most / _FIRST_BLOCKS, _SPLIT)))
    start = np.arange(1, most + 1, width)
    index = np.repeat(np.arange(rounds.cap.size), start.size)
    best = (math.inf, 0, 0)
    work = 0
    stack = [(width, index, np.tile(start, rounds.cap.size))]
    while stack:
        width, index, start = stack.pop()
        if index.size > _MOST_PAIRS:
            half = index.size // 2
            stack += [(width, index[half:], start[half:]), (width, index[:half], start[:half])]
            continue
        end = np.minimum(start + (width - 1), most)
        value = rounds.objective(index, beside + end, prefix_alignment(rounds, index, end, peak, load))
        best = min(best, _first(value, index, end))
        if width > 1:
            bound = rounds.objective(index, beside + end, prefix_alignment(rounds, index, start, peak, load))
            kept = np.flatnonzero(bound <= best[0] + 1e-12 * abs(best[0]))
            work += kept.size * _SPLIT
            if work > _WORK and rounds.cap.size > 1:
                raise Exhausted
            index, start = np.repeat(index[kept], _SPLIT), start[kept]
            width //= _SPLIT
            start = (start[:, None] + width * np.arange(_SPLIT)).ravel()
            inside = start <= most
            stack.append((width, index[inside], start[inside]))
    return Found(objective=best[0], index=best[1], size=beside - best[2])


def _first(value: Floats, index: Integers, size: Integers) -> tuple[float, int, int]:
    """The smallest (value, index, −size)."""
    if not value.size:
        return (math.inf, 0, 0)
    lowest = float(value.min())
    tied = np.flatnonzero(value == lowest)
    pick = tied[np.lexsort((-size[tied], index[tied]))[0]]
    return (lowest, int(index[pick]), -int(size[pick]))
