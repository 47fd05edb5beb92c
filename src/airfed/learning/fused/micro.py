"""The three inner loops that do all the multiplications, in every tile shape they need.

Each holds a tile of sums in registers while it runs through its operands: `convolve` (outputs of a convolution),
`product` (dense layers) and `accumulate` (the sparse backward pass of convolutions). Shapes of tiles are constants of
compiled code, so each loop is made for several shapes and the largest that fits is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airfed.learning.fused.machine import SAMPLES, host
from airfed.learning.fused.tile import add_outer, add_scaled, fill_rows, kernel, load, shift, store

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]
Table = NDArray[np.int64]

# NumPy scalars: numba would compile every kernel anew for each Python integer passed to it.
ZERO, ONE = np.int64(0), np.int64(1)
LANES = host().lanes
ROWS = host().rows
COLUMNS = 4
MOST_COLUMNS = 6
BLOCK = np.int64(64)  # rows of the right factor of a product that stay in the first-level cache

Kernel = Callable[..., Any]


def _convolve(rows: int, columns: int) -> Kernel:
    """`rows` output channels times `columns` vectors of one output row."""

    @kernel
    def block(
        weight: Floats, bias: Floats, taps: Table, n: int, x: Floats, i: int, z: Floats, stride: int
    ) -> None:
        t = fill_rows(rows, columns, LANES, bias, ZERO, ONE)
        for k in range(n):
            t = add_outer(t, weight, k, n, load(1, columns, LANES, x, taps[k] + i, ZERO))
        store(t, z, i, stride)

    return block


def _convolve_strip(columns: int) -> Kernel:
    """All output channels of `columns` vectors of one output row."""
    full, pair, single = (_convolve(rows, columns) for rows in (ROWS, 2, 1))

    @kernel
    def strip(
        weight: Floats,
        bias: Floats,
        channels: int,
        taps: Table,
        n: int,
        x: Floats,
        i: int,
        z: Floats,
        stride: int,
    ) -> None:
        c = ZERO
        while c + ROWS <= channels:
            full(shift(weight, c * n), shift(bias, c), taps, n, x, i, shift(z, c * stride), stride)
            c += ROWS
        while c + 2 <= channels:
            pair(shift(weight, c * n), shift(bias, c), taps, n, x, i, shift(z, c * stride), stride)
            c += 2
        if c < channels:
            single(shift(weight, c * n), shift(bias, c), taps, n, x, i, shift(z, c * stride), stride)

    return strip


_strip4, _strip2, _strip1 = (_convolve_strip(columns) for columns in (4, 2, 1))


@kernel
def convolve(
    weight: Floats,
    bias: Floats,
    channels: int,
    taps: Table,
    n: int,
    x: Floats,
    width: int,
    z: Floats,
    stride: int,
) -> None:
    """One output row of all channels: z[c·stride + i] = bias[c] + Σ_k weight[c, k]·x[taps[k] + i], i < width.

    Up to one vector past `width` is written as well.
    """
    i = ZERO
    while i + 3 * LANES < width:
        _strip4(weight, bias, channels, taps, n, x, i, z, stride)
        i += 4 * LANES
    while i + LANES < width:
        _strip2(weight, bias, channels, taps, n, x, i, z, stride)
        i += 2 * LANES
    if i < width:
        _strip1(weight, bias, channels, taps, n, x, i, z, stride)


def _product(columns: int) -> Kernel:
    """`columns` vectors of all rows of a product, n terms of each sum."""

    @kernel
    def block(
        c: Floats, c_stride: int, g: Floats, g_stride: int, b: Floats, b_stride: int, m: int, n: int
    ) -> None:
        for r in range(0, m, ROWS):
            t = load(ROWS, columns, LANES, c, r * c_stride, c_stride)
            for k in range(n):
                x = load(1, columns, LANES, b, k * b_stride, ZERO)
                t = add_outer(t, g, r * g_stride + k, g_stride, x)
            store(t, c, r * c_stride, c_stride)

    return block


_product4, _product2, _product1 = (_product(columns) for columns in (4, 2, 1))


@kernel
def product(
    c: Floats, c_stride: int, g: Floats, g_stride: int, b: Floats, b_stride: int, m: int, n: int, width: int
) -> None:
    """C += G B for G of m × n and B of n × width; m a multiple of ROWS, width of LANES."""
    for k in range(0, n, BLOCK):
        terms = min(BLOCK, n - k)
        left = shift(g, k)
        i = ZERO
        while i + 3 * LANES < width:
            right = shift(b, k * b_stride + i)
            _product4(shift(c, i), c_stride, left, g_stride, right, b_stride, m, terms)
            i += 4 * LANES
        while i + LANES < width:
            right = shift(b, k * b_stride + i)
            _product2(shift(c, i), c_stride, left, g_stride, right, b_stride, m, terms)
            i += 2 * LANES
        if i < width:
            right = shift(b, k * b_stride + i)
            _product1(shift(c, i), c_stride, left, g_stride, right, b_stride, m, terms)


def _accumulate(rows: int, columns: int, lanes: int) -> Kernel:
    """A tile of rows × columns vectors for each of the lists."""

    @kernel
    def block(
        lists: int,
        values: Floats,
        places: Integers,
        counts: Integers,
        capacity: int,
        c: Floats,
        c_step: int,
        c_row: int,
        a: Floats,
        a_step: int,
        a_row: int,
    ) -> None:
        for b in range(lists):
            n = np.int64(counts[b])
            if n > 0:
                first = b * capacity
                t = load(rows, columns, lanes, c, b * c_step, c_row)
                for k in range(first, first + n):
                    t = add_scaled(t, values[k], a, places[k] * a_step, a_row)
                store(t, c, b * c_step, c_row)

    return block


def _accumulate_columns(columns: int, lanes: int) -> Kernel:
    """`columns` vectors of all kernel rows, as many rows at a time as the registers hold."""
    fitting = [rows for rows in (5, 3, 2, 1) if rows * columns <= host().registers]
    sizes = np.array(fitting + [1] * (4 - len(fitting)))
    first, second, third, fourth = (int(size) for size in sizes)
    by5, by3, by2, by1 = (_accumulate(int(size), columns, lanes) for size in sizes)

    @kernel
    def strip(
        rows: int,
        lists: int,
        values: Floats,
        places: Integers,
        counts: Integers,
        capacity: int,
        c: Floats,
        c_step: int,
        c_row: int,
        a: Floats,
        a_step: int,
        a_row: int,
    ) -> None:
        r = ZERO
        while r < rows:
            left, cr, ar = rows - r, shift(c, r * c_row), shift(a, r * a_row)
            if left >= first:
                by5(lists, values, places, counts, capacity, cr, c_step, c_row, ar, a_step, a_row)
                r += first
            elif left >= second:
                by3(lists, values, places, counts, capacity, cr, c_step, c_row, ar, a_step, a_row)
                r += second
            elif left >= third:
                by2(lists, values, places, counts, capacity, cr, c_step, c_row, ar, a_step, a_row)
                r += third
            else:
                by1(lists, values, places, counts, capacity, cr, c_step, c_row, ar, a_step, a_row)
                r += fourth

    return strip


_short = _accumulate_columns(1, SAMPLES)
_c1, _c2, _c3, _c4, _c5, _c6 = (_accumulate_columns(columns, LANES) for columns in range(1, MOST_COLUMNS + 1))


@kernel
def accumulate(
    rows: int,
    run: int,
    lists: int,
    values: Floats,
    places: Integers,
    counts: Integers,
    capacity: int,
    c: Floats,
    c_step: int,
    c_row: int,
    a: Floats,
    a_step: int,
    a_row: int,
) -> None:
    """For every list b, C_b += Σ_k values[b, k]·A_place[b, k], where C_b and A_p are patches of rows × run floats.

    Row r of C_b begins at c[b·c_step + r·c_row], row r of A_p at a[p·a_step + r·a_row]; list b has counts[b] entries
    from b·capacity on. `run` is a multiple of LANES, or 8.
    """
    if run == SAMPLES:
        _short(rows, lists, values, places, counts, capacity, c, c_step, c_row, a, a_step, a_row)
        return
    left, i = run // LANES, ZERO
    while left > 0:
        strips = (left + MOST_COLUMNS - 1) // MOST_COLUMNS
        columns = (left + strips - 1) // strips
        ci, ai = shift(c, i), shift(a, i)
        if columns == 6:
            _c6(rows, lists, values, places, counts, capacity, ci, c_step, c_row, ai, a_step, a_row)
        elif columns == 5:
            _c5(rows, lists, values, places, counts, capacity, ci, c_step, c_row, ai, a_step, a_row)
        elif columns == 4:
            _c4(rows, lists, values, places, counts, capacity, ci, c_step, c_row, ai, a_step, a_row)
        elif columns == 3:
            _c3(rows, lists, values, places, counts, capacity, ci, c_step, c_row, ai, a_step, a_row)
        elif columns == 2:
            _c2(rows, lists, values, places, counts, capacity, ci, c_step, c_row, ai, a_step, a_row)
        else:
            _c1(rows, lists, values, places, counts, capacity, ci, c_step, c_row, ai, a_step, a_row)
        left -= columns
        i += columns * LANES
