"""The forward pass of a block of 8 samples, and two of the three inner loops that do all the multiplications.

Images and activations of convolutions are planes [channel][y][x][sample]; `docs/fused.md` describes the other layouts.
Inner loops (`convolve`, `product`; `accumulate` in the backward pass) hold a tile of sums in registers. Shapes of tiles
are constants of compiled code, so each loop is made for several shapes and the largest that fits is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airfed.learning.fused import tables
from airfed.learning.fused.tables import Conv, Dense, Head, host
from airfed.learning.fused.tile import (
    Count,
    Real,
    add_outer,
    add_scaled,
    fill_rows,
    kernel,
    load,
    pool,
    rectify,
    shift,
    store,
    total,
    transpose,
    zeros,
)

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]
Table = NDArray[np.int64]
Sizes = tuple[Count, Count, Count]
Kernel = Callable[..., Any]

# NumPy scalars: numba would compile every kernel anew for each Python integer passed to it.
ZERO, ONE, SAMPLES = np.int64(0), np.int64(1), np.int64(tables.SAMPLES)
CONV_WIDTH, DENSE_WIDTH = np.int64(tables.CONV_COLUMNS), np.int64(tables.DENSE_COLUMNS)
NOTHING = np.float32(0)
LANES, ROWS = host().lanes, host().rows
BLOCK = np.int64(64)  # rows of the right factor of a product that stay in the first-level cache


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
    def strip(weight: Floats, bias: Floats, size: Sizes, taps: Table, x: Floats, i: Count, z: Floats) -> None:
        channels, n, stride = size
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
def convolve(weight: Floats, bias: Floats, size: Sizes, taps: Table, x: Floats, width: Count, z: Floats) -> None:
    """One output row of all channels: z[c·stride + i] = bias[c] + Σ_k weight[c, k]·x[taps[k] + i], i < width.

    `size` is the number of channels, of taps, and the stride. Up to one vector past `width` is written as well.
    """
    i = ZERO
    while i + 3 * LANES < width:
        _strip4(weight, bias, size, taps, x, i, z)
        i += 4 * LANES
    while i + LANES < width:
        _strip2(weight, bias, size, taps, x, i, z)
        i += 2 * LANES
    if i < width:
        _strip1(weight, bias, size, taps, x, i, z)


def _product(columns: Count) -> Kernel:
    """`columns` vectors of all rows of a product, n terms of each sum."""

    @kernel
    def block(c: Floats, g: Floats, b: Floats, size: Sizes, strides: Sizes) -> None:
        (m, n, _), (c_stride, g_stride, b_stride) = size, strides
        for r in range(0, m, ROWS):
            t = load(ROWS, columns, LANES, c, r * c_stride, c_stride)
            for k in range(n):
                x = load(1, columns, LANES, b, k * b_stride, ZERO)
                t = add_outer(t, g, r * g_stride + k, g_stride, x)
            store(t, c, r * c_stride, c_stride)

    return block


_product4, _product2, _product1 = (_product(columns) for columns in (4, 2, 1))


@kernel
def product(c: Floats, g: Floats, b: Floats, size: Sizes, strides: Sizes) -> None:
    """C += G B for G of m × n and B of n × width, size = (m, n, width); m a multiple of ROWS, width of LANES."""
    m, n, width = size
    for k in range(0, n, BLOCK):
        part = (m, BLOCK if k + BLOCK <= n else n - k, width)
        left, right = shift(g, k), shift(b, k * strides[2])
        i = ZERO
        while i + 3 * LANES < width:
            _product4(shift(c, i), left, shift(right, i), part, strides)
            i += 4 * LANES
        while i + LANES < width:
            _product2(shift(c, i), left, shift(right, i), part, strides)
            i += 2 * LANES
        if i < width:
            _product1(shift(c, i), left, shift(right, i), part, strides)


@kernel
def clear(a: Floats, n: Count) -> None:
    """Set n floats to zero."""
    for i in range(n):
        a[i] = NOTHING


@kernel
def copy(source: Floats, target: Floats, n: Count) -> None:
    """Copy n floats and touch nothing behind them."""
    whole = n - n % LANES
    for i in range(0, whole, LANES):
        store(load(1, 1, LANES, source, i, ZERO), target, i, ZERO)
    for i in range(whole, n):
        target[i] = source[i]


@kernel
def taint_of(a: Floats, n: Count) -> Real:
    """0 if all n floats are finite, else NaN."""
    t = zeros(1, 1, LANES)
    whole = n - n % LANES
    for i in range(0, whole, LANES):
        t = add_scaled(t, NOTHING, a, i, ZERO)
    taint: Real = total(t)
    for i in range(whole, n):
        taint += NOTHING * a[i]
    return taint


@kernel
def transpose_squares(
    source: Floats | Integers,
    row: Count,
    step: Count,
    target: Floats | Integers,
    target_row: Count,
    target_step: Count,
    n: Count,
) -> None:
    """Transpose the 8×8 squares that hold n columns of 8 rows; the last one is transposed whole.

    Square k is read at source[k·step :] with rows `row` apart, and its transpose written to target likewise.
    """
    for k in range((n + SAMPLES - 1) // SAMPLES):
        store(transpose(load(8, 1, 8, source, k * step, row)), target, k * target_step, target_row)


@kernel
def load_images(table: Table, images: Floats, indices: Table, n: Count, floats: Floats, train: Count) -> Real:
    """Fetch 8 images (the last one again if there are fewer); return NaN if one is not finite, else 0."""
    size, stride = table[Head.PIXELS], table[Head.STAGE_STRIDE]
    stage = shift(floats, table[Head.STAGE])
    taint = NOTHING
    for s in range(SAMPLES):
        image = shift(images, indices[s if s < n else n - 1] * size)
        copy(image, shift(stage, s * stride), size)
        taint += taint_of(image, size)
    if table[Head.CONVOLUTIONS] > 0:
        layer = shift(table, table[Head.CONV_TABLE])
        planes = shift(floats, layer[Conv.PLANES])
        transpose_squares(stage, stride, SAMPLES, planes, SAMPLES, SAMPLES * SAMPLES, size)
        if train and layer[Conv.INPUTS] > 1:
            _planes_to_channels_last(layer, planes, shift(floats, layer[Conv.CHANNELS_LAST]))
    return taint


@kernel
def _planes_to_channels_last(layer: Table, planes: Floats, pixels: Floats) -> None:
    """[channel][pixel][sample] to [sample][pixel][channel]; padded channels are zero in both."""
    n, stride = layer[Conv.HEIGHT] * layer[Conv.WIDTH], layer[Conv.CHANNELS_LAST_STRIDE]
    sample = layer[Conv.SAMPLE_PIXELS] * stride
    for p in range(n):  # ascending: what a narrow pixel writes past its end, the next one overwrites
        source, target = shift(planes, p * SAMPLES), shift(pixels, p * stride)
        transpose_squares(source, n * SAMPLES, n * SAMPLES * SAMPLES, target, sample, SAMPLES, layer[Conv.INPUTS])


@kernel
def _planes_to_flat(layer: Table, planes: Floats | Integers, flat: Floats | Integers) -> None:
    """[channel][cell][sample] to [sample][channel][cell], of floats or of integers of the same size."""
    channels, cells, step = layer[Conv.OUTPUTS], layer[Conv.CELLS], layer[Conv.FLAT_CHANNEL]
    if step == cells:
        channels, cells = ONE, channels * cells
    for c in range(channels):
        source, target = shift(planes, c * cells * SAMPLES), shift(flat, c * step)
        transpose_squares(source, SAMPLES, SAMPLES * SAMPLES, target, layer[Conv.FLAT_SAMPLE], SAMPLES, cells)


@kernel
def _convolution_forward(table: Table, layer: Table, parameters: Floats, floats: Floats, integers: Integers) -> None:
    """Convolution, 2×2 max-pool and ReLU, two output rows at a time; planes to planes."""
    weight, bias = shift(parameters, layer[Conv.WEIGHT]), shift(parameters, layer[Conv.BIAS])
    taps, n = shift(table, layer[Conv.TAPS]), layer[Conv.NUM_TAPS]
    x, out = shift(floats, layer[Conv.PLANES]), shift(floats, layer[Conv.NEXT_PLANES])
    z, places = shift(floats, table[Head.CONV_OUT]), shift(integers, table[Head.POOL_PLACES])
    channels, width, row = layer[Conv.OUTPUTS], layer[Conv.WIDTH], layer[Conv.OUT_STRIDE]
    cells, pool_width = layer[Conv.CELLS], layer[Conv.POOL_WIDTH]
    for y in range(layer[Conv.POOL_HEIGHT]):
        for r in range(2):
            base = shift(x, (2 * y + r) * width * SAMPLES)
            used = 2 * pool_width * SAMPLES  # an odd last column is dropped by the pooling
            convolve(weight, bias, (channels, n, 2 * row), taps, base, used, shift(z, r * row))
        for c in range(channels):
            o = (c * cells + y * pool_width) * SAMPLES
            p = 2 * y * width
            for i in range(2 * c * row, 2 * c * row + 2 * pool_width * SAMPLES, 2 * SAMPLES):
                pool(z, i, row, out, places, o, np.int32(p), np.int32(width))
                o += SAMPLES
                p += 2


@kernel
def _dense_forward(layer: Table, parameters: Floats, floats: Floats, last: bool) -> None:
    """Outputs = bias + inputs · weightsᵀ, then ReLU unless it is the last layer; [sample][unit]."""
    inputs, outputs = layer[Dense.INPUTS], layer[Dense.OUTPUTS]
    stride_in, stride_out = layer[Dense.IN_STRIDE], layer[Dense.OUT_STRIDE]
    x, out = shift(floats, layer[Dense.INPUT]), shift(floats, layer[Dense.OUTPUT])
    bias, weight = shift(parameters, layer[Dense.BIAS]), shift(floats, layer[Dense.PACKED_FORWARD])
    for s in range(SAMPLES):
        for j in range(outputs):
            out[s * stride_out + j] = bias[j]
        for j in range(outputs, stride_out):
            out[s * stride_out + j] = NOTHING
    product(out, x, weight, (SAMPLES, inputs, stride_out), (stride_out, stride_in, stride_out))
    if not last:
        for i in range(0, SAMPLES * stride_out, LANES):
            store(rectify(load(1, 1, LANES, out, i, ZERO)), out, i, ZERO)


@kernel
def forward(table: Table, parameters: Floats, floats: Floats, integers: Integers, train: Count) -> None:
    """All layers for the images that are loaded."""
    convolutions, dense_layers = table[Head.CONVOLUTIONS], table[Head.DENSE_LAYERS]
    dense = shift(table, table[Head.DENSE_TABLE])
    for index in range(convolutions):
        layer = shift(table, table[Head.CONV_TABLE] + index * CONV_WIDTH)
        _convolution_forward(table, layer, parameters, floats, integers)
        planes = shift(floats, layer[Conv.NEXT_PLANES])
        if index + 1 == convolutions:
            _planes_to_flat(layer, planes, shift(floats, dense[Dense.INPUT]))
        elif train:
            above = shift(layer, CONV_WIDTH)
            _planes_to_channels_last(above, planes, shift(floats, above[Conv.CHANNELS_LAST]))
        if train:
            places = shift(integers, layer[Conv.FLAT_PLACES])
            _planes_to_flat(layer, shift(integers, table[Head.POOL_PLACES]), places)
    for index in range(dense_layers):
        layer = shift(dense, index * DENSE_WIDTH)
        _dense_forward(layer, parameters, floats, index + 1 == dense_layers)


@kernel
def winner(logits: Floats, n: Count) -> Count:
    """Index of the first largest entry; a NaN is larger than any number."""
    best: Count = ZERO
    for j in range(ONE, n):
        if logits[j] > logits[best] or (np.isnan(logits[j]) and not np.isnan(logits[best])):
            best = j
    return best
