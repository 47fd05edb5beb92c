"""Exact solution of single rounds at given dual variables, for many rounds at once, and water-filling of θ.

In units of the round's weight w, and with x = θ², the problem of a round is

    F = min over K ≠ ∅, x of 4(1 − |K|/N)² + C/(|K|²x) + x·Σ_{k∈K} p_k,   x ≤ min{cap², c_k² for k ∈ K},

with C = dσ²/2, c_k = |h_k|√P_k and costs p_k ≥ 0: p·a_k with a_k = 1/|h_k|² and the multiplier p of the total power, or
(ν + β_k)·a_k + λ_k with multipliers of the battery and the privacy budget of each device, too. For given |K| and Σ p_k
the best x is √(C/Σ p_k)/|K|, clipped to its range. `EqualPeaks` evaluates every |K| once, `UnequalPeaks` is
for different peak powers, and `solve_rounds` for general costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airfed.planning.limits import Bools, Floats
from airfed.planning.limits import Devices as Integers

_BLOCK = 1 << 16  # pairs of round and device per block, sized for the cache


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundSolutions:
    """The solutions of R rounds, (R,) each."""

    value: Floats  # F, or a lower bound of it if a tolerance is allowed
    square: Floats  # x = θ²
    size: Integers  # |K|
    load: Floats  # Σ_{k∈K} a_k [W at θ = 1]
    limit: Floats  # the largest x of K under privacy and the peak powers
    mask: Bools | None = None  # participation mask of K, (R, N); None if K is the |K| strongest devices
    amplitude: Floats | None = None  # a_k of rounds that are not aligned, (R, N); θ is then the largest

    @property
    def power(self) -> Floats:
        """x·Σ_{k∈K} a_k [W]."""
        return self.square * self.load


class EqualPeaks:
    """Rounds with equal peak powers at one multiplier: the best m devices are the m strongest."""

    def __init__(self, gain: Floats, peak_power: float, *, cap: float, noise_weight: float) -> None:
        self.noise_weight = noise_weight
        self._size = np.arange(1, gain.shape[1] + 1)
        self._missing = 4.0 * np.square(1.0 - self._size / gain.shape[1])
        self.load, self.limit = np.empty(gain.shape), np.empty(gain.shape)  # Σ a_k and largest x of the m strongest
        for rows in parts(*gain.shape):
            square = np.square(-np.sort(-gain[rows], axis=1))
            np.minimum(square * peak_power, cap**2, out=self.limit[rows])
            with np.errstate(divide="ignore"):
                np.cumsum(1.0 / square, axis=1, out=self.load[rows])

    def at(self, multiplier: Floats, *, least: Integers | None = None, most: Integers | None = None) -> RoundSolutions:
        """Solve the rounds 0..len(multiplier)−1 at one multiplier each, with sizes between `least` and `most`."""
        value, size = np.empty(multiplier.size), np.empty(multiplier.size, dtype=np.intp)
        for rows in parts(multiplier.size, self._size.size):
            total = self._values(rows, multiplier[rows, None])
            if least is not None and most is not None:
                total[(self._size < least[rows, None]) | (self._size > most[rows, None])] = np.inf
            best = np.argmin(total, axis=1)
            size[rows] = best + 1
            value[rows] = total[np.arange(best.size), best]
        every = np.arange(size.size)
        load, limit = self.load[every, size - 1], self.limit[every, size - 1]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            square = np.minimum(np.sqrt(self.noise_weight / (multiplier * load)) / size, limit)
        return RoundSolutions(value=value, square=square, size=size, load=load, limit=limit)

    def _values(self, rows: slice, multiplier: Floats) -> Floats:
        """Return the value of every size m = 1..N at its best x, in the given rounds."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            cost = self.load[rows] * multiplier
            square = np.sqrt(self.noise_weight / cost)
            square /= self._size
            np.minimum(square, self.limit[rows], out=square)
            cost *= square
            np.multiply(square, np.square(self._size, dtype=np.float64), out=square)
            np.divide(self.noise_weight, square, out=square)
            square += cost
            square += self._missing
        square[np.isnan(square)] = np.inf  # a device of gain 0
        return square


class UnequalPeaks:
    """Rounds with different peak powers at one multiplier."""

    def __init__(
        self, gain: Floats, peak_power: Floats, *, cap: float, noise_weight: float, rtol: float = 1e-13
    ) -> None:
        self.cap, self.noise_weight, self.rtol = cap, noise_weight, rtol
        with np.errstate(divide="ignore"):
            self.cost = 1.0 / np.square(gain)
        self.limit = np.square(gain) * peak_power

    def at(self, multiplier: Floats, *, least: Integers | None = None, most: Integers | None = None) -> RoundSolutions:
        """Solve the rounds 0..len(multiplier)−1 at one multiplier each, with sizes between `least` and `most`."""
        load, limit = self.cost[: multiplier.size], self.limit[: multiplier.size]
        with np.errstate(over="ignore", invalid="ignore"):
            cost = np.where(limit > 0, load * multiplier[:, None], np.inf)
        sizes = None if least is None or most is None else (least, most)
        value, square, mask = solve_rounds(
            cost, limit, cap=self.cap, noise_weight=self.noise_weight, rtol=self.rtol, sizes=sizes
        )
        return RoundSolutions(
            value=value,
            square=square,
            size=np.count_nonzero(mask, axis=1),
            load=np.sum(load, axis=1, where=mask),
            limit=np.minimum(np.min(limit, axis=1, where=mask, initial=np.inf), self.cap**2),
            mask=mask,
        )


Solver = EqualPeaks | UnequalPeaks


def parts(rounds: int, devices: int) -> list[slice]:
    """Return the rounds in blocks that fit into the cache."""
    step = max(1, _BLOCK // devices)
    return [slice(start, min(start + step, rounds)) for start in range(0, rounds, step)]


def solve_rounds(
    cost: Floats,
    limit: Floats,
    *,
    cap: float,
    noise_weight: float,
    rtol: float = 1e-13,
    sizes: tuple[Integers, Integers] | None = None,
) -> tuple[Floats, Floats, Bools]:
    """Solve rounds of costs p_k ≥ 0 and limits c_k² (0: unreachable), (R, N): a lower bound on F, x and the mask of K.

    `rtol` limits the distance of F to the value of K and x; `sizes` are the bounds on |K| in each round, (R,) each.
    """
    num, devices = cost.shape
    value, square, mask = np.empty(num), np.empty(num), np.zeros((num, devices), dtype=np.bool_)
    for rows in parts(num, devices):
        order = np.argsort(cost[rows], axis=1, kind="stable")
        own = None if sizes is None else (sizes[0][rows], sizes[1][rows])
        arranged = (np.take_along_axis(each[rows], order, axis=1) for each in (cost, limit))
        search = _IntervalSearch(*arranged, cap=cap, noise_weight=noise_weight, rtol=rtol, sizes=own)
        value[rows], square[rows], chosen = search.solve()
        np.put_along_axis(mask[rows], order, chosen, axis=1)
    return value, square, mask


class _IntervalSearch:
    """Branch and bound over x = θ², for rounds whose devices are sorted by cost.

    In an interval l ≤ x ≤ u the m devices of lowest cost with c_k² ≥ l give a lower bound. If these devices reach the
    best x, the bound is attained. Otherwise the interval is split at the limit of a device that does not reach x: above
    the split it is not eligible, below it x is smaller. In an interval without any c_k² the bound is always attained,
    so that the search terminates.
    """

    def __init__(
        self,
        cost: Floats,
        limit: Floats,
        *,
        cap: float,
        noise_weight: float,
        rtol: float,
        sizes: tuple[Integers, Integers] | None,
    ) -> None:
        self.cost, self.limit, self.cap, self.noise, self.rtol = cost, limit, cap**2, noise_weight, rtol
        self.sizes = sizes
        num, devices = cost.shape
        self.missing = 4.0 * np.square(1.0 - np.arange(devices + 1.0) / devices)  # for each |K|
        self.best, self.square = np.full(num, np.inf), np.zeros(num)
        self.low, self.last = np.zeros(num), np.full(num, -1)  # best schedule: eligibility limit, last device

    def solve(self) -> tuple[Floats, Floats, Bools]:
        """Return F, x and the mask of K in the order of cost."""
        high = np.minimum(self.cap, self.limit.max(axis=1))
        rows = np.flatnonzero(high > 0)
        bound = np.full(len(self.cost), np.inf)  # lower bounds of the pruned intervals
        low, high = np.full(rows.size, np.nextafter(0.0, 1.0)), high[rows]
        while rows.size:
            below, split = np.empty(rows.size), np.zeros(rows.size)
            for part in parts(rows.size, self.cost.shape[1]):
                below[part], split[part] = self._evaluate(rows[part], low[part, None], high[part, None])
            worth = below < self.best[rows] * (1 - self.rtol)
            np.minimum.at(bound, rows[~worth], below[~worth])
            worth &= split > 0
            rows, low, high, split = rows[worth], low[worth], high[worth], split[worth]
            rows = np.concatenate((rows, rows))
            low, high = np.concatenate((low, np.nextafter(split, np.inf))), np.concatenate((split, high))
        index = np.arange(self.cost.shape[1])
        mask = (index <= self.last[:, None]) & (self.limit >= self.low[:, None])
        return np.minimum(self.best, bound), self.square, mask

    def _evaluate(self, rows: Integers, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Return the lower bound of each interval low ≤ x ≤ high, and where to split it: 0 if the bound is attained."""
        cost, limit = self.cost[rows], self.limit[rows]
        every = np.arange(rows.size)
        eligible = limit >= low
        size = np.cumsum(eligible, axis=1)
        total = np.cumsum(np.where(eligible, cost, 0.0), axis=1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            square = np.clip(np.sqrt(self.noise / total) / size, low, high)
            value = self.missing[size] + self.noise / (np.square(size, dtype=np.float64) * square) + square * total
        value[~eligible | np.isnan(value)] = np.inf
        if self.sizes is not None:
            value[(size < self.sizes[0][rows, None]) | (size > self.sizes[1][rows, None])] = np.inf
        last = np.argmin(value, axis=1)
        below, wanted = value[every, last], square[every, last]
        chosen = eligible & (np.arange(cost.shape[1]) <= last[:, None])
        short = chosen & (limit < wanted[:, None])
        reach = np.min(limit, axis=1, where=chosen, initial=np.inf)
        attained = np.minimum(wanted, reach)
        number, cost_sum = size[every, last], total[every, last]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            worth = self.missing[number] + self.noise / (np.square(number, dtype=np.float64) * attained)
            worth = np.where(short.any(axis=1) & np.isfinite(below), worth + attained * cost_sum, below)
        order = np.argsort(-worth, kind="stable")  # of several intervals of one round the best is written last
        order = order[worth[order] < self.best[rows[order]]]
        to = rows[order]
        self.best[to], self.square[to] = worth[order], attained[order]
        self.low[to], self.last[to] = low[order, 0], last[order]
        # split at one of the violated limits, near their mean
        few = np.flatnonzero(short.any(axis=1))
        split = np.zeros(rows.size)
        if few.size:
            scale = np.log(np.where(short[few], limit[few], 1.0))
            middle = scale.sum(axis=1) / short[few].sum(axis=1)
            near = short[few] & (scale <= middle[:, None])
            split[few] = np.maximum(np.max(limit[few], axis=1, where=near, initial=0.0), reach[few])
        return below, split


def water_filling(pull: Floats, load: Floats, limit: Floats, budget: float) -> Floats:
    """Return the best x_i = θ_i² of given schedules by water-filling, (I,).

    min Σ_i w_i·C/(m_i²x_i) subject to Σ_i x_i·S_i ≤ P, x_i ≤ limit_i is convex: x_i = min{limit_i, r_i/κ}, with one κ
    at which the whole budget is spent; κ = 0 if the budget does not bind.
    `pull` is r_i = √(w_iC/S_i)/m_i and `load` is S_i.
    """
    edge = pull / limit  # below this κ round i is at its limit
    order = np.argsort(-edge)
    edge, full, free = edge[order], (load * limit)[order], (load * pull)[order]
    capped = np.cumsum(full) - full  # power of the earlier rounds at their limits
    rest = np.cumsum(free[::-1])[::-1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        kappa = np.where(budget > capped, rest / (budget - capped), np.inf)
        good = np.flatnonzero(kappa >= edge)  # from the first of them on κ is at least every edge
        return np.minimum(limit, pull / (kappa[good[0]] if good.size else 0.0))
