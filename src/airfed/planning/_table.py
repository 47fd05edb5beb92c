"""A part of the fleet that is still undecided, counted by peak limit and by load.

`Node` is an interval of θ in the search of `_unequal`; `Table` summarises its devices so that schedule sizes
can be bracketed for many θ and many budgets without another look at them.

Cells and columns are ranges of the leading bits of float64 numbers, whose bit patterns have the order of
their values: no sorting and no search is needed to place a device, the edges are exact, and every level of
the search resolves more bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airfed.planning._equal import Floats, Integers

SLACK = 1e-9  # relative; far above the rounding of any sum here, so that bounds stay bounds
_CELLS = 512
_COLUMNS = 128
_TINY = 5e-324  # in place of 0 as the least load of the first column


@dataclass(frozen=True, kw_only=True, eq=False)
class Node:
    """An interval of θ, the candidates that may win there, and the devices that are undecided there.

    Args:
        low, high: the interval, both ends included.
        index, bound: candidates r, and what W is at least in each.
        load, peak: a_k and c_k of the undecided devices.
        lightest: undecided devices of smaller load are scheduled whenever they are eligible.
        heaviest: no undecided device has a larger load.
        sure, sure_load: number and load of the devices that are scheduled throughout.
    """

    low: float
    high: float
    index: Integers
    bound: Floats
    load: Floats
    peak: Floats
    lightest: float
    heaviest: float
    sure: int
    sure_load: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Consecutive ranges of float64 numbers that share their leading bits, from `low` to `high`."""

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
    """The devices of a node by cell of c and column of load.

    Args:
        cells: the J cells of c; row J is for devices with c ≥ high, which are eligible throughout.
        columns: the columns of load from 1 on; column 0 is for loads below `lightest`.
        flat: row and column of each device, as one index.
        count, load: entry [j, b] is over the devices in rows ≥ j and columns < b, and the sure ones.
    """

    cells: Grid
    columns: Grid
    flat: NDArray[np.int64]
    count: Integers
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
        """The most members at the lower edge of each cell, and a number that surely fits at 1 − SLACK of it.

        Both are (J, R), for R budgets. Where a column fits in part, its lightest and its heaviest load tell
        how many more there can be.
        """
        room = budget * (1 + SLACK) / np.square(self.cells.lower)[:, None]
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
