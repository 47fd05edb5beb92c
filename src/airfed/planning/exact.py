"""Exact solution of [Yan23, P1]: the optimal devices K, alignment factor θ and number of rounds.

    minimise   W = offset_r + scale_r · Ψ,   Ψ = 4(1 − |K|/N)² + noise_weight/(|K|θ)²
    over       candidates r, nonempty K, θ > 0
    subject to θ ≤ cap_r                        privacy
               θ ≤ c_k = |h_k|√P_k, k ∈ K       peak power
               θ² Σ_{k∈K} 1/|h_k|² ≤ budget_r   total power

With equal peak powers the best schedule of size m holds the m devices of largest gain, and its alignment factor is

    θ(m, r) = min{cap_r, c_m, √(budget_r / S_m)},   S_m = Σ of 1/|h|² over those m devices,

which is non-increasing in m [Yan23, Lemma 3]. So on a block m₁ ≤ m ≤ m₂ the objective is at least its value at size m₂
and alignment θ(m₁, r). Branch and bound drops the blocks that cannot beat the best value so far, over all candidates
together, and splits the others down to single sizes (`best_prefix`). With different peak powers the orders of c and |h|
differ; `unequal` has that search. Both return the global optimum.

With thousands of candidates, or with candidates too similar for the bounds to separate, `best_rounds` solves them one
by one in the order of their lower bounds. For any schedule, θ changes between two candidates by no more than the limits
do. Hence one candidate b bounds all others from below:

    Ψ_r ≥ Ψ_b(x) = min_K {A_K + x·n_K(b)},   x = min{1, (cap_b/cap_r)², budget_b/budget_r},

with A_K = 4(1 − |K|/N)² and n_K the noise term. Ψ_b(0) ≥ 0, Ψ_b(1) = Ψ_b, and as a minimum of straight lines Ψ_b is
concave: it lies above the chord between any two of its points. The candidate of the lowest bound is solved next, until
no bound is below the best W. After many candidates, further points of Ψ_b shorten the chords.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed.planning.limits import Binding
from airfed.problem import InfeasibleError

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]
Solution = TypeVar("Solution")

_FIRST_BLOCKS = 64  # blocks per number of rounds at the coarsest level
_SPLIT = 16  # parts into which a block is split
_WORK = 1 << 20  # (rounds, block) pairs evaluated before the candidates are solved one by one
_TOGETHER = 512  # numbers of rounds that are searched together
_EASY = 8  # candidates solved with one point of each Ψ_b
_MOST = 150  # candidates solved before the search stops; the hardest known problem needs about twenty
_HUGE = 1e300  # replaces an infinite Ψ, so that interpolation is possible


@dataclass(frozen=True, kw_only=True, eq=False)
class OptimalSchedule:
    """An optimal schedule."""

    round_index: int  # r, the index into the candidate arrays
    scheduled: Integers  # K, ascending
    alignment: float  # θ
    binding: Binding  # the smallest limit on θ; of equal limits the first of privacy, peak_power, total_power
    objective: float  # W

    @property
    def size(self) -> int:
        """m = |K|."""
        return self.scheduled.size


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidateSpace:
    """The best schedule of every size m = 1..N for one number of rounds (the paper's Fig. 2)."""

    size: Integers  # m
    alignment: Floats  # θ_m, the largest feasible θ of any schedule of m devices; 0 if fewer are reachable
    privacy_limit: Floats  # the largest θ of m devices under each limit alone
    peak_limit: Floats
    total_limit: Floats
    objective: Floats  # Ψ_m = 4(1 − m/N)² + noise_weight/(mθ_m)²


class WorkLimitExceeded(Exception):
    """Raised when a search over all candidates together exceeds its work limit."""


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The best schedule of a search: the `size` devices of smallest load among those with c_k ≥ threshold."""

    objective: float
    index: int
    size: int
    threshold: float = 0.0

    def rank(self) -> tuple[float, int, int]:
        """Return the sort key: the objective, then the lower index, then the larger size."""
        return self.objective, self.index, -self.size


@dataclass(frozen=True, kw_only=True)
class RoundCandidates:
    """The candidate numbers of rounds, (R,) each, and their common objective."""

    cap: Floats  # the largest θ that privacy allows
    budget: Floats  # P_tot/I [W per round]
    offset: Floats  # W = offset + scale·Ψ
    scale: Floats
    noise_weight: float  # dσ²/2
    num_devices: int  # N

    def objective(self, index: Integers | int, size: NDArray[Any] | float, alignment: Floats | float) -> Floats:
        """Return W of `size` devices at θ = `alignment` in candidate `index`; the arrays broadcast."""
        participation = 4.0 * np.square(1.0 - size / self.num_devices)
        noise = self.noise_weight / np.square(size * alignment)
        value: Floats = self.offset[index] + self.scale[index] * (participation + noise)  # [Yan23, P1]
        return value

    def total(self, index: Integers | int, value: Floats | float) -> Floats:
        """Return W of candidate `index` for Ψ = `value`."""
        with np.errstate(over="ignore"):
            return np.asarray(self.offset[index] + self.scale[index] * value)

    def noise_factors(self, index: int, others: Integers | int) -> Floats:
        """Return x of the bounds that candidate `index` gives for `others`."""
        with np.errstate(over="ignore"):
            ratio = self.cap[index] / self.cap[others]
            return np.asarray(np.minimum(1.0, np.minimum(np.square(ratio), self.budget[index] / self.budget[others])))

    def bound(self, index: int, others: Integers, points: dict[float, float]) -> Floats:
        """Return lower bounds on Ψ of `others`: the chords between the known points of Ψ_index."""
        share, known = self.noise_factors(index, others), sorted(points)
        chord = np.interp(share, known, [min(points[x], _HUGE) for x in known])
        return np.where(share == 1.0, points[1.0], chord)

    def take(self, index: Integers) -> RoundCandidates:
        """Return only the candidates `index`."""
        return replace(self, **{name: getattr(self, name)[index] for name in ("cap", "budget", "offset", "scale")})

    def single(self, index: int, share: float = 1.0) -> RoundCandidates:
        """Return only candidate `index`, with scaled noise and the objective Ψ, which resolves more than W."""
        one = self.take(np.array([index]))
        return replace(one, offset=np.zeros(1), scale=np.ones(1), noise_weight=share * self.noise_weight)


def best_schedule(
    gain: Floats,
    peak_power: ArrayLike,
    *,
    cap: Floats,
    round_budget: Floats,
    offset: Floats,
    scale: Floats,
    noise_weight: float,
) -> OptimalSchedule:
    """Return the joint optimum over all candidate numbers of rounds, schedules and alignment factors.

    Ties in W go to the lowest candidate index, then to the larger schedule; ties in gain to the lower device index. θ
    meets every limit as evaluated in float64.

    Args:
        gain: |h_k| ≥ 0, (N,). A device of gain 0 is not scheduled but counts in N.
        peak_power: P_k > 0 [W], (N,) or one number for all.
        cap: (R,) the largest θ that privacy allows in candidate r.
        round_budget: P_tot/I_r [W per round], (R,).
        offset, scale: (R,) finite, scale > 0.
        noise_weight: dσ²/2 > 0.

    Raises:
        InfeasibleError: no schedule has a finite objective; the message names the limit.

    >>> one = np.ones(1)
    >>> choice = best_schedule(np.array([0.1, 0.9, 1.0]), 1.0, cap=one * 0.5, round_budget=one,
    ...                        offset=one * 0, scale=one, noise_weight=0.5)
    >>> choice.scheduled, choice.alignment, choice.binding
    (array([1, 2]), 0.5, 'privacy')

    Implements [Yan23, P1], [Yan23, Lemma 6] and [Yan23, Sec. IV-E].
    Deviations: jointly optimal over the number of rounds, while Algorithm 2 stops at a partial optimum; feasible and
    optimal for different peak powers, for which the printed algorithm can violate the peak or the total limit.
    """
    gain = np.asarray(gain, dtype=np.float64)
    power, equal = _peak_power(peak_power, gain)
    require_gain(gain)
    candidates, rounds = usable_rounds(
        gain.size, cap=cap, round_budget=round_budget, offset=offset, scale=scale, noise_weight=noise_weight
    )
    eligible = None
    with np.errstate(divide="ignore", over="ignore"):
        if equal:
            strongest = np.sort(gain)[::-1][: np.count_nonzero(gain)]  # values, not indices: several times faster
            peak, load = strongest * math.sqrt(power[0]), np.cumsum(1.0 / np.square(strongest))  # c_m and S_m
            found = _search_rounds(rounds, lambda some: best_prefix(some, peak, load))
            weakest = float(strongest[found.size - 1])
        else:
            from airfed.planning.unequal import best_subset  # imports this module

            peak, load = gain * np.sqrt(power), 1.0 / np.square(gain)
            found = _search_rounds(rounds, lambda some: best_subset(some, load, peak))
            eligible = peak >= found.threshold
            pool, size = gain[eligible], found.size
            weakest = float(np.partition(pool, pool.size - size)[pool.size - size]) if size else 0.0
    if not math.isfinite(found.objective):
        raise InfeasibleError(infeasibility(rounds, gain, power))
    scheduled = _strongest(gain, found.size, weakest, eligible)
    return _feasible_schedule(gain, power, rounds, found.index, scheduled, int(candidates[found.index]))


def candidate_space(
    gain: Floats, peak_power: ArrayLike, *, cap: float, round_budget: float, noise_weight: float
) -> CandidateSpace:
    """Return the largest alignment factor, the three limits and Ψ of every schedule size, for one number of rounds.

    >>> space = candidate_space(np.array([0.1, 0.9, 1.0]), 1.0, cap=0.5, round_budget=1.0, noise_weight=0.5)
    >>> space.alignment.round(4), int(space.size[space.objective.argmin()])
    (array([0.5   , 0.5   , 0.0989]), 2)

    Implements [Yan23, Lemma 3], [Yan23, Lemma 5] and [Yan23, Lemma 6].
    Deviations: with different peak powers θ_m is exact (Sec. IV-E is not).
    """
    gain = np.asarray(gain, dtype=np.float64)
    power, _ = _peak_power(peak_power, gain)
    require_gain(gain)
    num, positive = gain.size, gain > 0
    count = int(np.count_nonzero(positive))
    peak_limit, total_limit = np.zeros(num), np.zeros(num)
    size = np.arange(1, num + 1)
    alignment = largest_alignments(gain, power, cap=np.array([cap]), round_budget=np.array([round_budget]))[0]
    with np.errstate(divide="ignore", over="ignore"):
        peak_limit[:count] = -np.sort(-gain[positive] * np.sqrt(power[positive]))  # [Yan23, Lemma 3]
        total_limit[:count] = np.sqrt(round_budget / np.cumsum(np.sort(1.0 / np.square(gain[positive]))))
        objective = 4.0 * np.square(1.0 - size / num) + noise_weight / np.square(size * alignment)
    limits = {"privacy_limit": np.full(num, float(cap)), "peak_limit": peak_limit, "total_limit": total_limit}
    return CandidateSpace(size=size, alignment=alignment, objective=objective, **limits)


def largest_alignments(gain: Floats, peak_power: ArrayLike, *, cap: Floats, round_budget: Floats) -> Floats:
    """Return the largest feasible θ of any schedule of m = 1..N devices, (R, N); 0 if fewer are reachable.

    >>> largest_alignments(np.array([0.1, 0.9, 1.0]), 1.0, cap=np.full(1, 0.5), round_budget=np.ones(1)).round(4)
    array([[0.5   , 0.5   , 0.0989]])
    """
    power, equal = _peak_power(peak_power, gain)
    positive = gain > 0
    found = np.zeros((cap.size, gain.size))
    with np.errstate(divide="ignore", over="ignore"):
        peak, load = gain[positive] * np.sqrt(power[positive]), 1.0 / np.square(gain[positive])
        if equal:
            total = np.sqrt(round_budget[:, None] / np.cumsum(np.sort(load)))  # [Yan23, Lemma 3]
            theta = np.minimum(cap[:, None], np.minimum(-np.sort(-peak), total))  # [Yan23, Lemma 5]
        else:
            from airfed.planning.unequal import Sweep

            theta, _ = Sweep(load, peak).alignment(cap, round_budget)
    found[:, : peak.size] = theta
    return found


def _peak_power(peak_power: ArrayLike, gain: Floats) -> tuple[Floats, bool]:
    """Return one peak power per device, and whether they are all equal."""
    power = np.broadcast_to(np.asarray(peak_power, dtype=np.float64), gain.shape)
    return power, power.strides == (0,) or bool(np.all(power == power[:1]))


def require_gain(gain: Floats) -> None:
    """Raise InfeasibleError if every gain is 0."""
    if not np.any(gain > 0):
        raise InfeasibleError("No plan fits: every device has gain 0, so none can reach the receiver.")


def usable_rounds(
    num_devices: int, *, cap: Floats, round_budget: Floats, offset: Floats, scale: Floats, noise_weight: float
) -> tuple[Integers, RoundCandidates]:
    """Return the indices of the candidates that allow a transmission, and these candidates."""
    arrays = [np.asarray(x, dtype=np.float64) for x in (cap, round_budget, offset, scale)]
    if not np.any(arrays[0] > 0):
        raise InfeasibleError("No plan fits: the privacy budget allows no transmission.")
    if not np.any(arrays[1] > 0):
        raise InfeasibleError("No plan fits: the total power budget leaves no power for any round.")
    kept = np.flatnonzero((arrays[0] > 0) & (arrays[1] > 0) & np.isfinite(arrays[2]) & np.isfinite(arrays[3]))
    if not kept.size:
        raise InfeasibleError("No plan fits: the bound is not a finite number in any number of rounds.")
    usable = dict(zip(("cap", "budget", "offset", "scale"), (x[kept] for x in arrays), strict=True))
    return kept, RoundCandidates(**usable, noise_weight=float(noise_weight), num_devices=num_devices)


def _search_rounds(rounds: RoundCandidates, search: Callable[[RoundCandidates], SearchResult]) -> SearchResult:
    """Return the best schedule over all candidates, which are searched together if possible, else one by one."""
    if rounds.cap.size <= _TOGETHER:
        try:
            return search(rounds)
        except WorkLimitExceeded:
            pass

    def solve(index: int, share: float) -> tuple[float, SearchResult]:
        found = search(rounds.single(index, share))
        return found.objective, found

    index, found = best_rounds(rounds, solve)
    return replace(found, index=index)


def best_rounds(rounds: RoundCandidates, solve: Callable[[int, float], tuple[float, Solution]]) -> tuple[int, Solution]:
    """Return the candidate of smallest W and its solution; ties go to the lowest solved index."""
    open_ = np.arange(rounds.cap.size)
    least = np.zeros(open_.size)  # lower bounds on Ψ
    solved: dict[int, tuple[float, Solution]] = {}
    points: dict[int, dict[float, float]] = {}
    while open_.size:
        if len(solved) == _MOST:
            raise ValueError(
                f"The search over {rounds.cap.size} numbers of rounds stopped after {_MOST} of them. Set rounds."
            )
        index = int(open_[np.argmin(rounds.total(open_, least))])
        value, solution = solve(index, 1.0)
        points[index] = {0.0: 0.0, 1.0: value}
        new = [(index, 0.0), *_chords(rounds, index, list(solved))] if len(solved) >= _EASY else [(index, 0.0)]
        for other, share in new:
            known = points[other]
            if share not in known:
                known[share] = solve(other, share)[0]
            np.maximum(least, rounds.bound(other, open_, known), out=least)
        solved[index] = float(rounds.total(index, value)), solution
        kept = (rounds.total(open_, least) < min(total for total, _ in solved.values())) & (open_ != index)
        open_, least = open_[kept], least[kept]
    winner = min(solved, key=lambda index: (solved[index][0], index))
    return winner, solved[winner][1]


def _chords(rounds: RoundCandidates, index: int, solved: list[int]) -> list[tuple[int, float]]:
    """Return the points (b, x) that shorten the chords around `index`: its own, and those of the next harder one."""
    others = np.array(solved, dtype=np.intp)
    here = rounds.noise_factors(index, others)  # below 1: easier candidates
    there = np.array([float(rounds.noise_factors(other, index)) for other in solved])  # below 1: harder ones
    found = []
    if np.any(here < 1):
        found.append((index, float(here[here < 1].max())))
    if np.any(there < 1):
        nearest = int(np.argmax(np.where(there < 1, there, 0.0)))
        found.append((int(others[nearest]), float(there[nearest])))
    return found


def _prefix_alignment(rounds: RoundCandidates, index: Integers, size: Integers, peak: Floats, load: Floats) -> Floats:
    """Return θ(m, r) of the m strongest devices, from `peak` (c_m) and `load` (S_m)."""
    own = np.minimum(rounds.cap[index], peak[size - 1])
    return np.minimum(own, np.sqrt(rounds.budget[index] / load[size - 1]))  # [Yan23, Lemma 3]


def best_prefix(rounds: RoundCandidates, peak: Floats, load: Floats, *, beside: int = 0) -> SearchResult:
    """Return the smallest W over all candidates r and the first m = 1..len(peak) devices, given c_m and S_m.

    Ties go to the lowest r, then to the largest m. Every schedule contains `beside` further devices.
    """
    most = peak.size
    width = _SPLIT ** max(0, math.ceil(math.log(most / _FIRST_BLOCKS, _SPLIT)))
    start = np.arange(1, most + 1, width)
    index = np.repeat(np.arange(rounds.cap.size), start.size)
    start = np.tile(start, rounds.cap.size)
    best, work = (math.inf, 0, 0), 0
    while start.size:
        end = np.minimum(start + (width - 1), most)
        value = rounds.objective(index, beside + end, _prefix_alignment(rounds, index, end, peak, load))
        lowest = float(value.min())
        tied = np.flatnonzero(value == lowest)
        pick = tied[np.lexsort((-end[tied], index[tied]))[0]]
        best = min(best, (lowest, int(index[pick]), -int(end[pick])))
        if width == 1:
            break
        bound = rounds.objective(index, beside + end, _prefix_alignment(rounds, index, start, peak, load))
        kept = np.flatnonzero(bound <= best[0] + 1e-12 * abs(best[0]))
        work += kept.size * _SPLIT
        if work > _WORK and rounds.cap.size > 1:
            raise WorkLimitExceeded
        width //= _SPLIT
        index, start = np.repeat(index[kept], _SPLIT), (start[kept, None] + width * np.arange(_SPLIT)).ravel()
        index, start = index[start <= most], start[start <= most]
    return SearchResult(objective=best[0], index=best[1], size=beside - best[2])


def _strongest(gain: Floats, size: int, weakest: float, eligible: NDArray[np.bool_] | None) -> Integers:
    """Return the `size` eligible devices of largest gain, ascending; `weakest` is the smallest of these gains."""
    chosen, tied = gain > weakest, gain == weakest
    if eligible is not None:
        chosen &= eligible
        tied &= eligible
    room = size - int(np.count_nonzero(chosen))
    chosen[np.flatnonzero(tied)[:room]] = True
    return np.flatnonzero(chosen)


def _feasible_schedule(
    gain: Floats, power: Floats, rounds: RoundCandidates, index: int, scheduled: Integers, round_index: int
) -> OptimalSchedule:
    """Return the schedule with θ computed from its devices and rounded down to every limit."""
    strength = gain[scheduled]
    peak = strength * np.sqrt(power[scheduled])  # [Yan23, (14)]
    load = float(np.sum(1.0 / np.square(strength)))  # [Yan23, (17)]
    budget = float(rounds.budget[index])
    limits: dict[Binding, float] = {
        "privacy": float(rounds.cap[index]),
        "peak_power": float(peak.min()),
        "total_power": math.sqrt(budget / load),
    }
    binding = min(limits, key=lambda name: limits[name])
    alignment = limits[binding]
    near = peak <= alignment * (1 + 1e-12)
    step = 0.5
    while alignment * alignment * load > budget or np.any((alignment / strength[near]) ** 2 > power[scheduled[near]]):
        # Rounding of the root or the product: an ulp or two; more if a square is subnormal.
        step = max(1.0, 1.5 * step)
        alignment = max(alignment - math.floor(step) * math.ulp(alignment), alignment / 2)
    with np.errstate(over="ignore"):  # near the smallest float64; such a bound is rejected later
        value = float(rounds.objective(index, scheduled.size, alignment))
    return OptimalSchedule(
        round_index=round_index, scheduled=scheduled, alignment=alignment, binding=binding, objective=value
    )


def infeasibility(rounds: RoundCandidates, gain: Floats, power: Floats) -> str:
    """Return the message for an infinite objective: the smallest limit on the best device."""
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        limits = {
            "the privacy budget": float(rounds.cap.max()),
            "the peak power": float((gain * np.sqrt(power)).max()),
            "the total power budget": float(np.sqrt(rounds.budget.max()) * gain.max()),
        }
    name = min(limits, key=lambda key: limits[key])
    return f"No plan fits: {name} limits the alignment to {limits[name]:.3g} √W, too far below the noise."
