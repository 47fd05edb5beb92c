"""The three inner loops that do all the multiplications, in every tile shape they need.

Each holds a tile of sums in registers while it runs through its operands: `convolve` (outputs of a
convolution), `product` (dense layers) and `accumulate` (the sparse backward pass of convolutions). Shapes
of tiles are constants of compiled code, so each loop is made for several shapes and the largest that fits
is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airfed.learning.fused.tables import SAMPLES, host
from airfed.learning.fused.tile import Count, add_outer, add_scaled, fill_rows, kernel, load, shift, store

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]
Table = NDArray[np.int64]

# NumPy scalars: numba would compile every kernel anew for each Python integer passed to it.
ZERO, ONE = np.int64(0), np.int64(1)
LANES = host().lanes
ROWS = host().rows
BLOCK = np.int64(64)  # rows of the right factor of a product that stay in the first-level cache

Kernel = Callable[..., Any]


def _convolve(rows: Count, columns: Count) -> Kernel:
    """`rows` output channels times `columns` vectors of one output row."""

    @kernel
    def block(
        weight: Floats, bias: Floats, taps: Table, n: Count, x: Floats, i: Count, z: Floats, stride: Count
    ) -> None:
        t = fill_rows(rows, columns, LANES, bias, ZERO, ONE)
        for k in range(n):
            t = add_outer(t, weight, k, n, load(1, columns, LANES, x, taps[k] + i, ZERO))
        store(t, z, i, stride)

    return block


def _convolve_strip(columns: Count) -> Kernel:
    """All output channels of `columns` vectors of one output row."""
    full, pair, single = (_convolve(rows, columns) for rows in (ROWS, 2, 1))

    @kernel
    def strip(
        weight: Floats,
        bias: Floats,
        channels: Count,
        taps: Table,
        n: Count,
        x: Floats,
        i: Count,
        z: Floats,
        stride: Count,
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
    channels: Count,
    taps: Table,
    n: Count,
    x: Floats,
    width: Count,
    z: Floats,
    stride: Count,
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


def _product(columns: Count) -> Kernel:
    """`columns` vectors of all rows of a product, n terms of each sum."""

    @kernel
    def block(
        c: Floats, c_stride: Count, g: Floats, g_stride: Count, b: Floats, b_stride: Count, m: Count, n: Count
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
    c: Floats,
    c_stride: Count,
    g: Floats,
    g_stride: Count,
    b: Floats,
    b_stride: Count,
    m: Count,
    n: Count,
    width: Count,
) -> None:
    """C += G B for G of m × n and B of n × width; m a multiple of ROWS, width of LANES."""
    for k in range(0, n, BLOCK):
        terms = BLOCK if k + BLOCK <= n else n - k
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


def _accumulate(rows: Count, columns: Count, lanes: Count) -> Kernel:
    """A tile of rows × columns vectors for each of the lists."""

    @kernel
    def block(
        lists: Count,
        values: Floats,
        places: Integers,
        counts: Integers,
        capacity: Count,
        c: Floats,
        c_step: Count,
        c_row: Count,
        a: Floats,
        a_step: Count,
        a_row: Count,
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


def _accumulate_columns(columns: Count, lanes: Count) -> Kernel:
    """`columns` vectors of all kernel rows, as many rows at a time as the registers hold."""
    most = min(5, host().registers // columns)
    some = min(3, most)
    by_most, by_some, by_one = (_accumulate(rows, columns, lanes) for rows in (most, some, 1))

    @kernel
    def strip(
        rows: Count,
        lists: Count,
        values: Floats,
        places: Integers,
        counts: Integers,
        capacity: Count,
        c: Floats,
        c_step: Count,
        c_row: Count,
        a: Floats,
        a_step: Count,
        a_row: Count,
    ) -> None:
        r = ZERO
        while r < rows:
            left, cr, ar = rows - r, shift(c, r * c_row), shift(a, r * a_row)
            if left >= most:
                by_most(lists, values, places, counts, capacity, cr, c_step, c_row, ar, a_step, a_row)
                r += most
            elif left >= some:
                by_some(lists, values, places, counts, capacity, cr, c_step, c_row, ar, a_step, a_row)
                r += some
            else:
                by_one(lists, values, places, counts, capacity, cr, c_step, c_row, ar, a_step, a_row)
                r += 1

    return strip


_short = _accumulate_columns(1, SAMPLES)
_strips = {columns: _accumulate_columns(columns, LANES) for columns in (1, 2, 3, 5)}
_by1, _by2, _by3, _by5 = _strips.values()


@kernel
def accumulate(
    rows: Count,
    run: Count,
    lists: Count,
    values: Floats,
    places: Integers,
    counts: Integers,
    capacity: Count,
    c: Floats,
    c_step: Count,
    c_row: Count,
    a: Floats,
    a_step: Count,
    a_row: Count,
) -> None:
    """For every list b, C_b += Σ_k values[b, k]·A_p with p = places[b, k]; C_b and A_p are rows × run floats.

    Row r of C_b begins at c[b·c_step + r·c_row], row r of A_p at a[p·a_step + r·a_row]; list b has counts[b]
    entries from b·capacity on. `run` is a multiple of LANES, or 8.
    """
    if run == SAMPLES:
        _short(rows, lists, values, places, counts, capacity, c, c_step, c_row, a, a_step, a_row)
        return
    left, i = run // LANES, ZERO
    while left > 0:
        ci, ai = shift(c, i * LANES), shift(a, i * LANES)
        if left >= 5:
            _by5(rows, lists, values, places, counts, capacity, ci, c_step, c_row, ai, a_step, a_row)
            columns = 5
        elif left >= 3:
            _by3(rows, lists, values, places, counts, capacity, ci, c_step, c_row, ai, a_step, a_row)
            columns = 3
        elif left == 2:
            _by2(rows, lists, values, places, counts, capacity, ci, c_step, c_row, ai, a_step, a_row)
            columns = 2
        else:
            _by1(rows, lists, values, places, counts, capacity, ci, c_step, c_row, ai, a_step, a_row)
            columns = 1
        left -= columns
        i += columns
