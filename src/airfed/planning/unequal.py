"""The joint search over rounds, schedules and alignment factors when peak powers differ.

Write a_k = 1/|h_k|² for the load of a device and c_k = |h_k|√P_k for its peak limit. At a given θ only devices with c_k
≥ θ are eligible, and the largest feasible set is greedy: the eligible devices of smallest load, while θ² Σ a_k stays
within the budget. Its size m(θ, r) is non-increasing in θ. So for θ in an interval [lower, upper]

    W ≥ W(size = m(lower, r), θ = min{upper, cap_r}),

while W(m(lower, r), lower) is attained: the interval of θ is divided, and narrowed to the parts that may contain the
optimum, for all r together. Each node has a table with the count and the load of its devices by interval of c and
column of a, cumulated over both. Row j describes the devices eligible at the lower edge of interval j in the order of
load, and a binary search in it brackets m for every r.

The narrower node has only the undecided devices: those that cannot be eligible or fit are dropped, and those in every
feasible schedule are replaced by a count and a load. The exact `Sweep` solves small nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from airfed.planning.exact import Floats, Integers, RoundCandidates, SearchResult, WorkLimitExceeded, best_prefix

_Fits = Callable[[Integers, Floats], NDArray[np.bool_]]

_SLACK = 1e-9  # relative; far above the rounding error of any sum here, so that the bounds remain valid
_INTERVALS = 512
_COLUMNS = 128
_SMALLEST = 5e-324  # replaces 0 as the smallest load of the first column
_LEAF = 1 << 13  # devices × candidates that one sweep solves
_NARROW = 1 + 16 * _SLACK  # an interval of θ that the bounds cannot resolve further
_LARGEST_LOAD = 1e290  # so that no sum of loads overflows
_NODE = 1 << 10  # cost of a node per candidate, in units of one device
_EFFORT = 4  # passes over devices and candidates before the search stops; problems with few ties take 0.1 to 5
_FEW_PEAKS = 64  # distinct values of c for which each gets its own sorted order


@dataclass(frozen=True, kw_only=True, eq=False)
class Node:
    """An interval of θ, its remaining candidates and its undecided devices."""

    low: float  # the interval, both ends included
    high: float
    index: Integers  # candidates r
    bound: Floats  # lower bound on W of each candidate
    load: Floats  # a_k of the undecided devices
    peak: Floats  # c_k
    min_load: float  # undecided devices of smaller load are scheduled whenever they are eligible
    max_load: float  # no undecided device has a larger load
    fixed: int  # number and load of the devices that are scheduled in the whole interval
    fixed_load: float


def best_subset(rounds: RoundCandidates, load: Floats, peak: Floats) -> SearchResult:
    """Return the best schedule over all candidates; its objective is infinite if there is none."""
    reachable = (load < _LARGEST_LOAD) & (peak > 0)
    if not reachable.all():
        load, peak = load[reachable], peak[reachable]
    if not load.size:
        return SearchResult(objective=math.inf, index=0, size=0)
    root, ceiling = _root(rounds, load, peak)
    node: Node | None = root
    work = _EFFORT * (load.size + _NODE * rounds.cap.size)
    while node is not None:
        index = node.index[node.bound <= _above(ceiling)]
        if not index.size:
            break
        pairs = index.size * node.load.size
        done = pairs <= _LEAF or (node.high <= node.low * _NARROW and node is not root)  # the root has no bounds yet
        work -= pairs if done else _NODE * index.size + node.load.size
        if work < 0:
            if rounds.cap.size > 1:
                raise WorkLimitExceeded
            return _finish(rounds, root, root.index)
        if done:
            return _finish(rounds, node, index)
        ceiling, node = _narrowed(rounds, node, index, ceiling)
    return SearchResult(objective=math.inf, index=0, size=0)


def _above(ceiling: float) -> float:
    """Return the ceiling with a margin for rounding, so that neither the optimum nor a tie is pruned."""
    return ceiling + _SLACK * abs(ceiling) if math.isfinite(ceiling) else ceiling


def _root(rounds: RoundCandidates, load: Floats, peak: Floats) -> tuple[Node, float]:
    """Return the node of all relevant θ, and the best objective with full participation."""
    total, num = float(load.sum()), load.size
    theta = np.minimum(np.minimum(rounds.cap, peak.min()), np.sqrt(rounds.budget / total))
    full = rounds.objective(np.arange(theta.size), num, theta)
    ceiling = _above(float(full.min()))
    index = np.flatnonzero(rounds.offset <= ceiling)
    high = float(min(rounds.cap[index].max(), peak.max()))
    # W ≥ offset + scale·noise_weight/(nθ)², so a smaller θ than this is worse than full participation
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
        min_load=float(load.min()),
        max_load=float(load.max()),
        fixed=0,
        fixed_load=0.0,
    )
    return root, ceiling


def _narrowed(rounds: RoundCandidates, node: Node, index: Integers, ceiling: float) -> tuple[float, Node | None]:
    """Return a lower ceiling, and the node of the interval that may contain a smaller objective, if any."""
    table = LoadTable.of(node)
    lower, upper = table.intervals.lower[:, None], table.intervals.upper[:, None]
    cap = rounds.cap[index]
    most, least = table.sizes(rounds.budget[index])
    attained = rounds.objective(index, least, lower * (1 - _SLACK))
    bound = rounds.objective(index, most, np.minimum(upper, cap))
    beyond = lower > cap
    attained[beyond] = bound[beyond] = math.inf
    ceiling = min(ceiling, float(attained.min()))
    alive = bound <= _above(ceiling)
    intervals = np.flatnonzero(alive.any(axis=1))
    if not intervals.size:
        return ceiling, None
    first, last = int(intervals[0]), int(intervals[-1])
    kept = np.flatnonzero(alive[first : last + 1].any(axis=0))
    return ceiling, _child(rounds, node, table, first, last, index[kept], bound[first : last + 1].min(axis=0)[kept])


def _child(
    rounds: RoundCandidates, node: Node, table: LoadTable, first: int, last: int, index: Integers, bound: Floats
) -> Node:
    """Return the node of the intervals first..last, for the candidates `index`."""
    low = float(table.intervals.lower[first])
    high = min(float(table.intervals.upper[last]), float(rounds.cap[index].max()))
    budget = rounds.budget[index]
    scarce = budget.min() / np.square(high) * (1 - _SLACK)
    ample = budget.max() / np.square(low) * (1 + _SLACK)
    # columns below `inside` always fit; columns from `outside` on never do
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
        min_load=float(edges[min(inside, edges.size - 1)]),
        max_load=float(table.columns.upper[max(min(outside, edges.size) - 2, 0)]),
        fixed=int(table.count[last + 1, inside]),
        fixed_load=float(table.load[last + 1, inside]),
    )


def _finish(rounds: RoundCandidates, node: Node, index: Integers) -> SearchResult:
    """Return the exact best schedule of a node: the fixed devices, with any number of the others."""
    rounds = rounds.take(index)
    if index.size * node.load.size > _LEAF:
        thresholds = np.unique(np.append(np.minimum(node.peak, node.high), node.high))
        if thresholds.size <= _FEW_PEAKS:
            found = min((_finish_row(rounds, node, float(x)) for x in thresholds), key=SearchResult.rank)
            return replace(found, index=int(index[found.index]))
    theta = np.minimum(np.minimum(rounds.cap, node.high), np.sqrt(rounds.budget / node.fixed_load))
    value = rounds.objective(np.arange(index.size), node.fixed, theta)
    r = int(np.argmin(value))
    best = SearchResult(objective=float(value[r]), index=int(index[r]), size=node.fixed, threshold=node.high)
    if node.load.size:
        sweep = Sweep(node.load, np.minimum(node.peak, node.high))
        parts = min(index.size, -(-index.size * node.load.size // (1 << 20)))
        for part in np.array_split(np.arange(index.size), parts):
            found = _finish_sweep(rounds, sweep, part, node)
            best = min(best, replace(found, index=int(index[found.index])), key=SearchResult.rank)
    return best


def _finish_row(rounds: RoundCandidates, node: Node, threshold: float) -> SearchResult:
    """Return the best schedule of devices with c ≥ threshold, by one sorted order as with equal peak powers."""
    others = np.sort(node.load[node.peak >= threshold])
    load = np.cumsum(np.append(node.fixed_load, others))
    skip = 0 if node.fixed else 1  # without fixed devices the first schedule has one of the others
    peak = np.broadcast_to(np.float64(threshold), load.shape)
    return replace(best_prefix(rounds, peak[skip:], load[skip:], beside=node.fixed - 1 + skip), threshold=threshold)


def _finish_sweep(rounds: RoundCandidates, sweep: Sweep, part: Integers, node: Node) -> SearchResult:
    """Return the best schedule of the fixed devices and some others, for the candidates `part`."""
    theta, threshold = sweep.alignment(rounds.cap[part], rounds.budget[part], fixed_load=node.fixed_load)
    size = node.fixed + np.arange(1, theta.shape[1] + 1)
    value = rounds.objective(part[:, None], size, theta)
    row = int(np.argmin(value.min(axis=1)))
    column = int(np.flatnonzero(value[row] == value[row].min())[-1])
    return SearchResult(
        objective=float(value[row, column]),
        index=int(part[row]),
        size=int(size[column]),
        threshold=float(threshold[row, column]),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Consecutive ranges of float64 numbers with common leading bits, so that a value is located without a search."""

    shift: int
    first: int
    lower: Floats
    upper: Floats  # inclusive

    @classmethod
    def between(cls, low: float, high: float, most: int) -> Grid:
        """Return at most `most` ranges that cover [low, high]."""
        start, stop = int(np.float64(low).view(np.int64)), int(np.float64(high).view(np.int64))
        shift = max(0, (stop - start).bit_length() - most.bit_length())
        while (stop >> shift) - (start >> shift) >= most:
            shift += 1
        begin = np.arange(start >> shift, (stop >> shift) + 1, dtype=np.int64) << shift
        lower = np.maximum(begin, start).view(np.float64)
        upper = np.minimum(begin + ((1 << shift) - 1), stop).view(np.float64)
        return cls(shift=shift, first=start >> shift, lower=lower, upper=upper)

    def index(self, values: Floats) -> NDArray[np.int64]:
        """Return the index of the range of each value, unclipped."""
        index = values.view(np.int64) >> self.shift
        index -= self.first
        return index


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadTable:
    """Count and load of the devices of a node by interval of c and column of load."""

    intervals: Grid  # the J intervals of c; row J is for devices with c ≥ high, which are always eligible
    columns: Grid  # the columns of load from 1 on; column 0 is for loads below `min_load`
    flat: NDArray[np.int64]  # row and column of each device, as one index
    count: Integers  # entry [j, b] is over the devices in rows ≥ j and columns < b, and the fixed ones
    load: Floats

    @classmethod
    def of(cls, node: Node) -> LoadTable:
        """Return the table of a node, in one pass over its devices."""
        fine = min(_INTERVALS, max(32, 1 << (node.load.size // 8).bit_length()))
        intervals = Grid.between(node.low, node.high, fine)
        columns = Grid.between(node.min_load, node.max_load, min(_COLUMNS, fine))
        shape = intervals.lower.size + 1, columns.lower.size + 1
        interval = intervals.index(node.peak)
        interval[node.peak >= node.high] = shape[0] - 1
        flat = columns.index(node.load)
        flat[node.load < node.min_load] = -1
        flat += 1
        interval *= shape[1]
        flat += interval
        bins = shape[0] * shape[1]
        count = np.zeros((shape[0], shape[1] + 1), dtype=np.intp)
        load = np.zeros(count.shape)
        for table, values in (
            (count, np.bincount(flat, minlength=bins)),
            (load, np.bincount(flat, weights=node.load, minlength=bins)),
        ):
            above = np.cumsum(values.reshape(shape)[::-1], axis=0)[::-1]
            np.cumsum(above, axis=1, out=table[:, 1:])
        count += node.fixed
        load += node.fixed_load
        return cls(intervals=intervals, columns=columns, flat=flat, count=count, load=load)

    def sizes(self, budget: Floats) -> tuple[Floats, Floats]:
        """Return the largest |K| at the lower edge of each interval, and a size that fits just below it, (J, R)."""
        room = budget * (1 + _SLACK) / np.square(self.intervals.lower)[:, None]
        row = np.arange(room.shape[0])[:, None]
        last = self.load.shape[1] - 1
        full = _search_rows(self.load[:-1], room)  # columns that fit entirely
        spare = room - self.load[row, full]
        here = np.minimum(full, last - 1)
        min_load = np.concatenate(([_SMALLEST], self.columns.lower))[here]
        max_load = np.concatenate((self.columns.lower[:1], self.columns.upper))[here]
        base, top = self.count[row, full], self.count[row, np.minimum(full + 1, last)]
        most = np.minimum(top, base + np.floor(spare / min_load))
        least = np.minimum(top, base + np.floor(spare / max_load))
        return most, np.maximum(least, 0)


def _search_rows(table: Floats, wanted: Floats) -> Integers:
    """Return how many entries of row j after the first are ≤ wanted[j, r]; the rows of `table` are ascending."""
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
    """The largest alignment factor of every schedule size, for n devices in O(n log n) memory.

    Let E_j be the j devices of largest c, c₍ⱼ₎ the smallest c among them and P_j(m) the sum of the m smallest loads in
    E_j. Then

        θ_m = max over j of min{cap, c₍ⱼ₎, √(budget / P_j(m))}.

    As j grows the second term falls and the third rises, so the maximum is at the first j whose greedy set at θ =
    min{cap, c₍ⱼ₎} has m devices, or one before it. Both the size of the greedy set and P_j(m) are computed for all
    (j, m, r) together by one descent of a binary tree over the devices in order of load. For each prefix of its devices
    in the order of c, a node stores the count and the load of those in its lower half.
    """

    def __init__(self, load: Floats, peak: Floats) -> None:
        falling = np.argsort(-peak, kind="stable")
        self.peak = peak[falling]
        rising = np.argsort(load[falling], kind="stable")
        depth = max(int(load.size - 1).bit_length(), 0)
        self._load = np.zeros(1 << depth)  # sorted; no prefix contains the padding
        self._load[: load.size] = load[falling][rising]
        rank = np.arange(1 << depth)
        rank[rising] = np.arange(load.size)
        self._levels = [self._level(rank, depth, level) for level in range(depth)]

    def _level(self, rank: Integers, depth: int, level: int) -> tuple[Integers, Floats]:
        """Return count and sum of the lower half for each prefix of each node; `rank` is updated for the next level."""
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
        """Return count and sum of the smallest loads among the `prefix` devices of largest c, as many as `fits`."""
        count = np.zeros(prefix.shape, dtype=np.intp)
        total = np.zeros(prefix.shape)
        node = np.zeros(prefix.shape, dtype=np.intp)
        within = prefix
        for counts, totals in self._levels:
            index = node * counts.shape[1] + within
            lower = counts.ravel()[index]
            more, sum_ = count + lower, total + totals.ravel()[index]
            upper = fits(more, sum_)
            count, total = np.where(upper, more, count), np.where(upper, sum_, total)
            within = np.where(upper, within - lower, lower)
            node = 2 * node + upper
        more, sum_ = count + within, total + within * self._load[node]
        last = fits(more, sum_)
        return np.where(last, more, count), np.where(last, sum_, total)

    def alignment(self, cap: Floats, budget: Floats, *, fixed_load: float = 0.0) -> tuple[Floats, Floats]:
        """Return θ_m and the eligibility threshold c₍ⱼ₎ that attains it, (R, n) each; column i is for i + 1 devices."""
        n, num = self.peak.size, cap.size
        limit = np.minimum(self.peak, cap[:, None])
        room = budget[:, None] / np.square(limit) - fixed_load
        greedy, _ = self._descend(np.broadcast_to(np.arange(1, n + 1), (num, n)), lambda _, total: total <= room)
        # first[r, i]: how many j have greedy sets of at most i devices, that is the first j with i + 1 or more
        row = np.arange(num)[:, None]
        tally = np.bincount((row * (n + 1) + greedy).ravel(), minlength=num * (n + 1)).reshape(num, n + 1)
        first = np.cumsum(tally, axis=1)[:, :n]
        size = np.arange(1, n + 1)
        theta = np.zeros((num, n))
        threshold = np.zeros((num, n))
        for j in (np.minimum(first, n - 1), np.maximum(first - 1, 0)):
            _, total = self._descend(j + 1, lambda count, _: count <= size)
            here = np.minimum(limit[row, j], np.sqrt(budget[:, None] / (total + fixed_load)))
            better = (here > theta) & (j + 1 >= size)
            theta[better], threshold[better] = here[better], self.peak[j[better]]
        return theta, threshold
