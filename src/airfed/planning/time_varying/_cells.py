"""One round at any prices, exactly, for many rounds at once: branch and bound over x = θ².

In a cell l ≤ x ≤ u the m cheapest of the devices with c_k² ≥ l bound the round's problem (see `_round`) from below.
Where those chosen also reach the x chosen, the bound is attained and the cell is done; else the cell is cut at the
limit of one of those that fall short: above the cut they are not eligible, below it x is smaller. A cell within which
no c_k² lies is always done, so that the search ends.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from airfed.planning._equal import Floats, Integers

Bools = NDArray[np.bool_]

_AT_ONCE = 1 << 16  # pairs of round and device that are worked on together, so that they stay in the cache


def parts(rounds: int, devices: int) -> list[slice]:
    """The rounds in parts that stay in the cache."""
    step = max(1, _AT_ONCE // devices)
    return [slice(start, min(start + step, rounds)) for start in range(0, rounds, step)]


def cheapest(
    cost: Floats,
    limit: Floats,
    *,
    cap: float,
    noise_weight: float,
    rtol: float = 1e-13,
    sizes: tuple[Integers, Integers] | None = None,
) -> tuple[Floats, Floats, Bools]:
    """Solve rounds of any prices and limits: F (never above the truth), x and the members of K, (R,), (R,), (R, N).

    Args:
        cost: p_k ≥ 0, (R, N).
        limit: c_k², (R, N); 0 keeps a device out.
        cap: the largest θ that privacy allows.
        noise_weight: C.
        rtol: how far the returned F may be below what the returned K and x attain.
        sizes: bounds on |K| in each round, (R,) each.
    """
    num, devices = cost.shape
    value, square, member = np.empty(num), np.empty(num), np.zeros((num, devices), dtype=np.bool_)
    for rows in parts(num, devices):
        order = np.argsort(cost[rows], axis=1, kind="stable")
        search = Cells(
            np.take_along_axis(cost[rows], order, axis=1),
            np.take_along_axis(limit[rows], order, axis=1),
            cap=cap,
            noise_weight=noise_weight,
            rtol=rtol,
            sizes=None if sizes is None else (sizes[0][rows], sizes[1][rows]),
        )
        value[rows], square[rows], chosen = search.solve()
        np.put_along_axis(member[rows], order, chosen, axis=1)
    return value, square, member


class Cells:
    """Branch and bound over x, for some rounds whose devices stand in the order of their cost."""

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
        size = np.arange(devices + 1.0)
        self.missing = 4.0 * np.square(1.0 - size / devices)  # by |K|
        self.best, self.square = np.full(num, np.inf), np.zeros(num)
        self.low, self.last = np.zeros(num), np.full(num, -1)  # the best schedule: eligible from, up to which place

    def solve(self) -> tuple[Floats, Floats, Bools]:
        """F, x and the members of K in the order of cost."""
        high = np.minimum(self.cap, self.limit.max(axis=1))
        rows = np.flatnonzero(high > 0)
        bound = np.full(len(self.cost), np.inf)  # of the cells that were given up
        low, high = np.full(rows.size, np.nextafter(0.0, 1.0)), high[rows]
        while rows.size:
            below, cut = self._look(rows, low, high)
            worth = below < self.best[rows] * (1 - self.rtol)
            np.minimum.at(bound, rows[~worth], below[~worth])
            worth &= cut > 0
            rows, low, high, cut = rows[worth], low[worth], high[worth], cut[worth]
            rows = np.concatenate((rows, rows))
            low, high = np.concatenate((low, np.nextafter(cut, np.inf))), np.concatenate((cut, high))
        place = np.arange(self.cost.shape[1])
        member = (place <= self.last[:, None]) & (self.limit >= self.low[:, None])
        return np.minimum(self.best, bound), self.square, member

    def _look(self, rows: Integers, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """The lower bound of each cell low ≤ x ≤ high, and where to cut it: 0 where the bound is attained.

        The best schedule of a round is replaced where a better one is met.
        """
        below, cut = np.empty(rows.size), np.zeros(rows.size)
        for part in parts(rows.size, self.cost.shape[1]):
            below[part], cut[part] = self._look_at(rows[part], low[part, None], high[part, None])
        return below, cut

    def _look_at(self, rows: Integers, low: Floats, high: Floats) -> tuple[Floats, Floats]:
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
        number, price = size[every, last], total[every, last]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            worth = self.missing[number] + self.noise / (np.square(number, dtype=np.float64) * attained)
            worth = np.where(short.any(axis=1) & np.isfinite(below), worth + attained * price, below)
        self._keep(rows, worth, attained, low[:, 0], last)
        # cut at one of those limits that are in the way, near the middle of them
        few = np.flatnonzero(short.any(axis=1))
        cut = np.zeros(rows.size)
        if few.size:
            scale = np.log(np.where(short[few], limit[few], 1.0))
            middle = scale.sum(axis=1) / short[few].sum(axis=1)
            near = short[few] & (scale <= middle[:, None])
            cut[few] = np.maximum(np.max(limit[few], axis=1, where=near, initial=0.0), reach[few])
        return below, cut

    def _keep(self, rows: Integers, worth: Floats, square: Floats, low: Floats, last: Integers) -> None:
        order = np.argsort(-worth, kind="stable")  # of several cells of one round the best is written last
        order = order[worth[order] < self.best[rows[order]]]
        to = rows[order]
        self.best[to], self.square[to], self.low[to], self.last[to] = (
            worth[order],
            square[order],
            low[order],
            last[order],
        )
