"""The joint search over rounds, schedules and alignment factors when peak powers differ.

Write a_k = 1/|h_k|² for the load of a device and c_k = |h_k|√P_k for its peak limit. At a given θ and r the
best schedule is greedy (see `_sweep`), and its size m(θ, r) never grows with θ. So for θ in a cell [lower,
upper]

    W ≥ W(size = m(lower, r), θ = min{upper, cap_r}),

while W(m(lower, r), lower) is attained: branch and bound over cells of θ, for all r together. Sizes come from
one table per node, the count and the load of the devices in each cell of c and each column of a. Cumulated
over both, its row j describes the devices eligible at the lower edge of cell j in the order of their load,
and a search in the row brackets m for every r without another look at the devices.

A surviving interval of θ becomes a child that holds only the devices on which the decision still hinges.
Devices with c below the interval are out. Devices that any feasible schedule there includes (eligible
throughout, and light enough to fit whichever others are eligible) become a count and a load. Devices that
cannot fit even if nobody else is eligible are out. What is left shrinks with the interval, and a node small
enough is finished by the exact sweep.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import replace

import numpy as np

from airfed.planning._equal import Exhausted, Floats, Found, Integers, Rounds, best_prefix
from airfed.planning._sweep import Sweep
from airfed.planning._table import SLACK, Node, Table

_LEAF = 1 << 13  # devices × candidates that the sweep takes at once
_PASSES = 1 << 18  # devices looked at to make children
_NARROW = 1 + 16 * SLACK  # an interval of θ that the bounds cannot resolve further
_HEAVY = 1e290  # so that no sum of loads overflows
_NODE = 1 << 10  # what a node costs beside its devices, for each candidate, in the same unit
_EFFORT = 4  # passes over devices and candidates before bounds are given up; problems with few ties take 0.1 to 5
_FEW = 64  # distinct values of c that are worth one sorted order each


def best_subset(rounds: Rounds, load: Floats, peak: Floats) -> Found:
    """The best schedule over all candidates; an infinite objective if there is none.

    Args:
        rounds: the candidate numbers of rounds.
        load: a_k, (N,); above 1e290 a device cannot be heard and is left out.
        peak: c_k, (N,); a device of peak 0 is left out.

    Raises:
        Exhausted: the bounds separate too little, because W is nearly the same whatever is done; a single candidate is
            then settled without bounds.
    """
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
    return ceiling + SLACK * abs(ceiling) if math.isfinite(ceiling) else ceiling


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
    low = float(np.sqrt(np.min(rounds.noise_weight / gap))) / num * (1 - SLACK)
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
    attained = rounds.objective(index, least, lower * (1 - SLACK))
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
    """Into how many children the surviving cells go: one if they are few, else enough for small leaves.

    Every child costs a pass over the devices of its parent, so a large parent has few.
    """
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
    scarce = budget.min() / np.square(high) * (1 - SLACK)
    ample = budget.max() / np.square(low) * (1 + SLACK)
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
