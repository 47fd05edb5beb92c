"""The joint search over rounds, schedules and alignment factors when peak powers differ.

Write a_k = 1/|h_k|² for the load of a device and c_k = |h_k|√P_k for its peak limit. At a given θ only devices with c_k
≥ θ are eligible, and the largest feasible set is greedy: the eligible devices of smallest load, while θ² Σ a_k stays
within the budget. Its size m(θ, r) never grows with θ. So for θ in a cell [lower, upper]

    W ≥ W(size = m(lower, r), θ = min{upper, cap_r}),

while W(m(lower, r), lower) is attained: branch and bound over cells of θ, for all r together. Sizes come from one table
per node, the count and the load of the devices in each cell of c and each column of a. Cumulated over both, its row j
describes the devices eligible at the lower edge of cell j in the order of their load, and a search in the row brackets
m for every r without another look at the devices.

A surviving interval of θ becomes a child that holds only the devices on which the choice still hinges. Those that
cannot be eligible or fit there are out, those that any feasible schedule there includes become a count and a load. A
node small enough is finished by the exact `Sweep`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from airfed.planning.exact import Exhausted, Floats, Found, Integers, Rounds, best_prefix

_Fits = Callable[[Integers, Floats], NDArray[np.bool_]]

_SLACK = 1e-9  # relative; far above the rounding of any sum here, so that bounds stay bounds
_CELLS = 512
_COLUMNS = 128
_TINY = 5e-324  # in place of 0 as the least load of the first column
_LEAF = 1 << 13  # devices × candidates that the sweep takes at once
_PASSES = 1 << 18  # devices looked at to make children
_NARROW = 1 + 16 * _SLACK  # an interval of θ that the bounds cannot resolve further
_HEAVY = 1e290  # so that no sum of loads overflows
_NODE = 1 << 10  # what a node costs beside its devices, for each candidate, in the same unit
_EFFORT = 4  # passes over devices and candidates before bounds are given up; problems with few ties take 0.1 to 5
_FEW = 64  # distinct values of c that are worth one sorted order each


@dataclass(frozen=True, kw_only=True, eq=False)
class Node:
    """An interval of θ, the candidates that may win there, and the devices that are undecided there."""

    low: float  # the interval, both ends included
    high: float
    index: Integers  # candidates r
    bound: Floats  # what W is at least in each
    load: Floats  # a_k of the undecided devices
    peak: Floats  # c_k
    lightest: float  # undecided devices of smaller load are scheduled whenever they are eligible
    heaviest: float  # no undecided device has a larger load
    sure: int  # number and load of the devices that are scheduled throughout
    sure_load: float


def best_subset(rounds: Rounds, load: Floats, peak: Floats) -> Found:
    """The best schedule over all candidates; an infinite objective if there is none."""
    best = Found(objective=math.inf, index=0, size=0, threshold=0.0)
    heard = (load < _HEAVY) & (peak > 0)
    if not heard.all():
        load, peak = load[heard], peak[heard]
    if not load.size:
        return best
    root, ceiling = _root(rounds, load, peak)
    order = itertools.count()
    heap = [(0.0, next(order), root)]
    work = _EFFORT * (load.size + _NODE * rounds.cap.size)
    while heap:
        _, _, node = heapq.heappop(heap)
        alive = node.bound <= _above(ceiling)
        if not alive.any():
            continue
        pairs = int(np.count_nonzero(alive)) * node.load.size
        done = pairs <= _LEAF or (node.high <= node.low * _NARROW and node is not root)  # the root has no bounds yet
        work -= pairs if done else _NODE * int(np.count_nonzero(alive))
        if work < 0:
            if rounds.cap.size > 1:
                raise Exhausted
            return _finish(rounds, root, root.index)
        if done:
            best = min(best, _finish(rounds, node, node.index[alive]), key=Found.rank)
            ceiling = min(ceiling, best.objective)
            continue
        ceiling, children = _split(rounds, node, node.index[alive], ceiling)
        for child in children:
            work -= child.load.size
            heapq.heappush(heap, (float(child.bound.min()), next(order), child))
    return best


def _above(ceiling: float) -> float:
    """The ceiling with room for rounding, so that a tie or the optimum itself is never cut off."""
    return ceiling + _SLACK * abs(ceiling) if math.isfinite(ceiling) else ceiling


def _root(rounds: Rounds, load: Floats, peak: Floats) -> tuple[Node, float]:
    """The whole range of θ that can matter, and the best value with everybody on air."""
    total, num = float(load.sum()), load.size
    theta = np.minimum(np.minimum(rounds.cap, peak.min()), np.sqrt(rounds.budget / total))
    everybody = rounds.objective(np.arange(theta.size), num, theta)
    ceiling = _above(float(everybody.min()))
    index = np.flatnonzero(rounds.offset <= ceiling)
    high = float(min(rounds.cap[index].max(), peak.max()))
    # W ≥ offset + scale·noise_weight/(nθ)², so a smaller θ than this is worse than everybody on air
    gap = (ceiling - rounds.offset[index]) / rounds.scale[index]
    low = float(np.sqrt(np.min(rounds.noise_weight / gap))) / num * (1 - _SLACK)
    low = min(low, high)
    if peak.min() < low:
        kept = np.flatnonzero(peak >= low)
        load, peak = load[kept], peak[kept]
    root = Node(
        low=low,
        high=high,
        index=index,
        bound=np.full(index.size, -math.inf),
        load=load,
        peak=peak,
        lightest=float(load.min()),
        heaviest=float(load.max()),
        sure=0,
        sure_load=0.0,
    )
    return root, ceiling


def _split(rounds: Rounds, node: Node, index: Integers, ceiling: float) -> tuple[float, list[Node]]:
    """A lower ceiling, and the children that may hold something below it."""
    table = Table.of(node)
    lower, upper = table.cells.lower[:, None], table.cells.upper[:, None]
    cap = rounds.cap[index]
    most, least = table.sizes(rounds.budget[index])
    attained = rounds.objective(index, least, lower * (1 - _SLACK))
    bound = rounds.objective(index, most, np.minimum(upper, cap))
    beyond = lower > cap
    attained[beyond] = bound[beyond] = math.inf
    ceiling = min(ceiling, float(attained.min()))
    alive = bound <= _above(ceiling)
    cells = np.flatnonzero(alive.any(axis=1))
    if not cells.size:
        return ceiling, []
    children = []
    for group in np.array_split(cells, _pieces(cells, len(lower), node.load.size, alive.any(axis=0).sum())):
        first, last = int(group[0]), int(group[-1])
        floor = bound[first : last + 1].min(axis=0)
        kept = np.flatnonzero(alive[first : last + 1].any(axis=0))
        for part in _alike(rounds.budget[index], kept, float(upper[last, 0] / lower[first, 0])):
            children.append(_child(rounds, node, table, first, last, index[part], floor[part]))
    return ceiling, children


def _pieces(cells: Integers, num_cells: int, num_devices: int, num_candidates: int) -> int:
    """Into how many children the surviving cells go; each costs a pass over the devices, so a large node has few."""
    if 4 * (cells[-1] - cells[0] + 1) <= num_cells:
        return 1
    wanted = max(num_devices * num_candidates // max(_LEAF, 1), 2)
    return int(min(wanted, max(_PASSES // num_devices, 2), 32, cells.size))


def _alike(budget: Floats, kept: Integers, ratio: float) -> list[Integers]:
    """The candidates `kept`, in two parts if their budgets differ more than the interval makes up for."""
    own = budget[kept]
    least, most = float(own.min()), float(own.max())
    if most <= least * ratio**4:
        return [kept]
    poor = own <= math.sqrt(least) * math.sqrt(most)
    return [kept[poor], kept[~poor]]


def _child(rounds: Rounds, node: Node, table: Table, first: int, last: int, index: Integers, bound: Floats) -> Node:
    """The node of the cells first..last, for the candidates `index`."""
    low = float(table.cells.lower[first])
    high = min(float(table.cells.upper[last]), float(rounds.cap[index].max()))
    budget = rounds.budget[index]
    scarce = budget.min() / np.square(high) * (1 - _SLACK)
    ample = budget.max() / np.square(low) * (1 + _SLACK)
    # columns below `inside` fit even with all who may be eligible; columns from `outside` on never do
    inside = max(int(np.searchsorted(table.load[first], scarce, side="right")) - 1, 0)
    outside = int(np.searchsorted(table.load[last + 1], ample, side="right"))
    open_ = np.zeros((table.count.shape[0], table.count.shape[1] - 1), dtype=np.bool_)
    open_[first : last + 1, :outside] = True
    open_[last + 1 :, inside:outside] = True
    kept = np.flatnonzero(open_.ravel()[table.flat])
    edges = np.append(table.columns.lower[:1], table.columns.lower)
    return Node(
        low=low,
        high=high,
        index=index,
        bound=bound,
        load=node.load[kept],
        peak=node.peak[kept],
        lightest=float(edges[min(inside, edges.size - 1)]),
        heaviest=float(table.columns.upper[max(min(outside, edges.size) - 2, 0)]),
        sure=int(table.count[last + 1, inside]),
        sure_load=float(table.load[last + 1, inside]),
    )


def _finish(rounds: Rounds, node: Node, index: Integers) -> Found:
    """The best schedule of a node, exactly: the sure devices, alone or with any number of the others."""
    rounds = rounds.take(index)
    if index.size * node.load.size > _LEAF:
        thresholds = np.unique(np.append(np.minimum(node.peak, node.high), node.high))
        if thresholds.size <= _FEW:
            found = min((_finish_row(rounds, node, float(x)) for x in thresholds), key=Found.rank)
            return replace(found, index=int(index[found.index]))
    theta = np.minimum(np.minimum(rounds.cap, node.high), np.sqrt(rounds.budget / node.sure_load))
    value = rounds.objective(np.arange(index.size), node.sure, theta)
    r = int(np.argmin(value))
    best = Found(objective=float(value[r]), index=int(index[r]), size=node.sure, threshold=node.high)
    if node.load.size:
        sweep = Sweep(node.load, np.minimum(node.peak, node.high))
        parts = min(index.size, -(-index.size * node.load.size // (1 << 20)))
        for part in np.array_split(np.arange(index.size), parts):
            found = _finish_sweep(rounds, sweep, part, node)
            best = min(best, replace(found, index=int(index[found.index])), key=Found.rank)
    return best


def _finish_row(rounds: Rounds, node: Node, threshold: float) -> Found:
    """The best schedule of devices with c ≥ threshold: one order settles it, as with equal peak powers."""
    others = np.sort(node.load[node.peak >= threshold])
    load = np.cumsum(np.append(node.sure_load, others))
    skip = 0 if node.sure else 1  # without sure devices the first schedule has one of the others
    peak = np.broadcast_to(np.float64(threshold), load.shape)
    return replace(best_prefix(rounds, peak[skip:], load[skip:], beside=node.sure - 1 + skip), threshold=threshold)


def _finish_sweep(rounds: Rounds, sweep: Sweep, part: Integers, node: Node) -> Found:
    """The best schedule of the sure devices and some others, for the candidates `part`."""
    theta, threshold = sweep.alignment(rounds.cap[part], rounds.budget[part], sure_load=node.sure_load)
    size = node.sure + np.arange(1, theta.shape[1] + 1)
    value = rounds.objective(part[:, None], size, theta)
    row = int(np.argmin(value.min(axis=1)))
    column = int(np.flatnonzero(value[row] == value[row].min())[-1])
    return Found(
        objective=float(value[row, column]),
        index=int(part[row]),
        size=int(size[column]),
        threshold=float(threshold[row, column]),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Consecutive ranges of float64 numbers that share their leading bits: no search is needed to place a device."""

    shift: int
    first: int
    lower: Floats
    upper: Floats  # inclusive

    @classmethod
    def between(cls, low: float, high: float, most: int) -> Grid:
        """At most `most` ranges that cover [low, high]."""
        start, stop = int(np.float64(low).view(np.int64)), int(np.float64(high).view(np.int64))
        shift = max(0, (stop - start).bit_length() - most.bit_length())
        while (stop >> shift) - (start >> shift) >= most:
            shift += 1
        begin = np.arange(start >> shift, (stop >> shift) + 1, dtype=np.int64) << shift
        lower = np.maximum(begin, start).view(np.float64)
        upper = np.minimum(begin + ((1 << shift) - 1), stop).view(np.float64)
        return cls(shift=shift, first=start >> shift, lower=lower, upper=upper)

    def place(self, values: Floats) -> NDArray[np.int64]:
        """The range of each value, unclipped."""
        place = values.view(np.int64) >> self.shift
        place -= self.first
        return place


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """The devices of a node by cell of c and column of load."""

    cells: Grid  # the J cells of c; row J is for devices with c ≥ high, which are eligible throughout
    columns: Grid  # the columns of load from 1 on; column 0 is for loads below `lightest`
    flat: NDArray[np.int64]  # row and column of each device, as one index
    count: Integers  # entry [j, b] is over the devices in rows ≥ j and columns < b, and the sure ones
    load: Floats

    @classmethod
    def of(cls, node: Node) -> Table:
        """The table of a node, in one pass over its devices."""
        fine = min(_CELLS, max(32, 1 << (node.load.size // 8).bit_length()))
        cells = Grid.between(node.low, node.high, fine)
        columns = Grid.between(node.lightest, node.heaviest, min(_COLUMNS, fine))
        shape = cells.lower.size + 1, columns.lower.size + 1
        cell = cells.place(node.peak)
        cell[node.peak >= node.high] = shape[0] - 1
        flat = columns.place(node.load)
        flat[node.load < node.lightest] = -1
        flat += 1
        cell *= shape[1]
        flat += cell
        bins = shape[0] * shape[1]
        count = np.zeros((shape[0], shape[1] + 1), dtype=np.intp)
        load = np.zeros(count.shape)
        for table, values in (
            (count, np.bincount(flat, minlength=bins)),
            (load, np.bincount(flat, weights=node.load, minlength=bins)),
        ):
            above = np.cumsum(values.reshape(shape)[::-1], axis=0)[::-1]
            np.cumsum(above, axis=1, out=table[:, 1:])
        count += node.sure
        load += node.sure_load
        return cls(cells=cells, columns=columns, flat=flat, count=count, load=load)

    def sizes(self, budget: Floats) -> tuple[Floats, Floats]:
        """The most members at the lower edge of each cell, and a number that surely fits just below it, (J, R)."""
        room = budget * (1 + _SLACK) / np.square(self.cells.lower)[:, None]
        row = np.arange(room.shape[0])[:, None]
        last = self.load.shape[1] - 1
        full = _search_rows(self.load[:-1], room)  # columns that fit entirely
        spare = room - self.load[row, full]
        here = np.minimum(full, last - 1)
        lightest = np.concatenate(([_TINY], self.columns.lower))[here]
        heaviest = np.concatenate((self.columns.lower[:1], self.columns.upper))[here]
        base, top = self.count[row, full], self.count[row, np.minimum(full + 1, last)]
        most = np.minimum(top, base + np.floor(spare / lightest))
        least = np.minimum(top, base + np.floor(spare / heaviest))
        return most, np.maximum(least, 0)


def _search_rows(table: Floats, wanted: Floats) -> Integers:
    """How many entries of row j after the first are ≤ wanted[j, r]; the rows of `table` rise."""
    last = table.shape[1] - 1
    flat = table.ravel()
    row = np.arange(table.shape[0])[:, None] * table.shape[1]
    found = np.zeros(wanted.shape, dtype=np.intp)
    step = 1 << last.bit_length()
    while step := step >> 1:
        ahead = np.minimum(found + step, last)
        found = np.where(flat[row + ahead] <= wanted, ahead, found)
    return found


class Sweep:
    """The largest alignment factor of every schedule size: n devices, O(n log n) memory.

    Let E_j be the j devices of largest c, c₍ⱼ₎ the smallest c among them and P_j(m) the sum of the m smallest loads in
    E_j. Then

        θ_m = max over j of min{cap, c₍ⱼ₎, √(budget / P_j(m))}.

    As j grows the second term falls and the third rises, so the maximum is at the first j whose greedy set at θ =
    min{cap, c₍ⱼ₎} has m members, or one before it. "How many members fit" and "what is P_j(m)" are asked of all (j, m,
    r) at once, by one descent of a binary tree over the devices in order of load, whose nodes know for each prefix of
    their devices in the order of c how many lie in their lower half, and their sum.
    """

    def __init__(self, load: Floats, peak: Floats) -> None:
        falling = np.argsort(-peak, kind="stable")
        self.peak = peak[falling]
        rising = np.argsort(load[falling], kind="stable")
        depth = max(int(load.size - 1).bit_length(), 0)
        self._load = np.zeros(1 << depth)  # sorted; the padding is never inside a prefix that is asked for
        self._load[: load.size] = load[falling][rising]
        rank = np.arange(1 << depth)
        rank[rising] = np.arange(load.size)
        self._levels = [self._level(rank, depth, level) for level in range(depth)]

    def _level(self, rank: Integers, depth: int, level: int) -> tuple[Integers, Floats]:
        """Count and sum of the lower half for each prefix of each node; `rank` moves on to the next level."""
        half = 1 << (depth - level - 1)
        nodes = rank.reshape(-1, 2 * half)
        lower = (nodes & half) == 0
        count = np.zeros((len(nodes), 2 * half + 1), dtype=np.intp)
        total = np.zeros(count.shape)
        np.cumsum(lower, axis=1, out=count[:, 1:])
        np.cumsum(np.where(lower, self._load[nodes], 0.0), axis=1, out=total[:, 1:])
        within = np.where(lower, count[:, 1:] - 1, half + np.arange(2 * half) - count[:, 1:])
        arranged = np.empty_like(nodes)
        np.put_along_axis(arranged, within, nodes, axis=1)
        nodes[...] = arranged
        return count, total

    def _descend(self, prefix: Integers, fits: _Fits) -> tuple[Integers, Floats]:
        """Count and sum of the smallest loads among the `prefix` devices of largest c: as many as `fits`."""
        count = np.zeros(prefix.shape, dtype=np.intp)
        total = np.zeros(prefix.shape)
        node = np.zeros(prefix.shape, dtype=np.intp)
        within = prefix
        for counts, totals in self._levels:
            place = node * counts.shape[1] + within
            lower = counts.ravel()[place]
            more, sum_ = count + lower, total + totals.ravel()[place]
            upper = fits(more, sum_)
            count, total = np.where(upper, more, count), np.where(upper, sum_, total)
            within = np.where(upper, within - lower, lower)
            node = 2 * node + upper
        more, sum_ = count + within, total + within * self._load[node]
        last = fits(more, sum_)
        return np.where(last, more, count), np.where(last, sum_, total)

    def alignment(self, cap: Floats, budget: Floats, *, sure_load: float = 0.0) -> tuple[Floats, Floats]:
        """θ_m and the eligibility threshold c₍ⱼ₎ that attains it, (R, n) each; column i is for i + 1 devices."""
        n, num = self.peak.size, cap.size
        limit = np.minimum(self.peak, cap[:, None])
        room = budget[:, None] / np.square(limit) - sure_load
        members, _ = self._descend(np.broadcast_to(np.arange(1, n + 1), (num, n)), lambda _, total: total <= room)
        # first[r, i]: how many j have at most i members, that is the first j with i + 1 or more
        row = np.arange(num)[:, None]
        tally = np.bincount((row * (n + 1) + members).ravel(), minlength=num * (n + 1)).reshape(num, n + 1)
        first = np.cumsum(tally, axis=1)[:, :n]
        size = np.arange(1, n + 1)
        theta = np.zeros((num, n))
        threshold = np.zeros((num, n))
        for j in (np.minimum(first, n - 1), np.maximum(first - 1, 0)):
            _, total = self._descend(j + 1, lambda count, _: count <= size)
            here = np.minimum(limit[row, j], np.sqrt(budget[:, None] / (total + sure_load)))
            better = (here > theta) & (j + 1 >= size)
            theta[better], threshold[better] = here[better], self.peak[j[better]]
        return theta, threshold
