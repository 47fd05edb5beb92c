"""The largest alignment factor of every schedule size, when peak powers differ.

For a fixed θ only devices with c_k = |h_k|√P_k ≥ θ are eligible, and the largest feasible set takes the
eligible devices of smallest load a_k = 1/|h_k|² while θ² Σ a_k stays within the budget. Let E_j be the j
devices of largest c, c₍ⱼ₎ the smallest c among them and P_j(m) the sum of the m smallest loads in E_j. Then

    θ_m = max over j of min{cap, c₍ⱼ₎, √(budget / P_j(m))}.

As j grows the second term falls and the third rises, so the maximum is at the crossing: at the first j whose
greedy set at θ = min{cap, c₍ⱼ₎} has m members, or one before it. Both questions, "how many members fit" and
"what is P_j(m)", are asked of all (j, m, r) at once, by one descent of a binary tree over the devices in
order of load. A node covers a range of loads, and for each prefix of its devices in the order of c it knows
how many lie in its lower half and their sum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from airfed.planning._equal import Floats, Integers

_Fits = Callable[[Integers, Floats], NDArray[np.bool_]]


class Sweep:
    """Devices arranged for questions about greedy sets: n devices, O(n log n) memory.

    Args:
        load: a_k = 1/|h_k|², (n,), n ≥ 1.
        peak: c_k, (n,).
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
        """θ_m and the eligibility threshold c₍ⱼ₎ that attains it, (R, n) each; column i is for i + 1 devices.

        Args:
            cap: (R,) the largest θ that privacy allows.
            budget: (R,) [W per round].
            sure_load: the load of devices that belong to every schedule beside the swept ones.
        """
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
