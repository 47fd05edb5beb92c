"""The forward pass of a block of 8 samples.

Images and activations of convolutions are planes [channel][y][x][sample]; the backward pass will want them
again as [sample][y][x][channel] (channels last) and flat [sample][channel][y][x], which is also what dense
layers take.
"""

from __future__ import annotations

import numpy as np

from airfed.learning.fused.micro import (
    LANES,
    ONE,
    ZERO,
    Floats,
    Integers,
    Table,
    convolve,
    product,
)
from airfed.learning.fused.tables import CONV_COLUMNS, DENSE_COLUMNS, Conv, Dense, Head
from airfed.learning.fused.tables import SAMPLES as _SAMPLES
from airfed.learning.fused.tile import (
    Count,
    Real,
    add_scaled,
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

SAMPLES = np.int64(_SAMPLES)
CONV_WIDTH, DENSE_WIDTH = np.int64(CONV_COLUMNS), np.int64(DENSE_COLUMNS)
NOTHING = np.float32(0)


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
    source: Floats, row: Count, step: Count, target: Floats, target_row: Count, target_step: Count, n: Count
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
def _planes_to_flat(layer: Table, planes: Floats, flat: Floats) -> None:
    """[channel][cell][sample] to [sample][channel][cell]."""
    channels, cells, step = layer[Conv.OUTPUTS], layer[Conv.CELLS], layer[Conv.FLAT_CHANNEL]
    if step == cells:
        channels, cells = ONE, channels * cells
    for c in range(channels):
        source, target = shift(planes, c * cells * SAMPLES), shift(flat, c * step)
        transpose_squares(source, SAMPLES, SAMPLES * SAMPLES, target, layer[Conv.FLAT_SAMPLE], SAMPLES, cells)


@kernel
def _places_to_flat(layer: Table, planes: Integers, flat: Integers) -> None:
    """As `_planes_to_flat`, for integers."""
    channels, cells, step = layer[Conv.OUTPUTS], layer[Conv.CELLS], layer[Conv.FLAT_CHANNEL]
    if step == cells:
        channels, cells = ONE, channels * cells
    for c in range(channels):
        source, target = shift(planes, c * cells * SAMPLES), shift(flat, c * step)
        for i in range(0, cells, SAMPLES):
            t = transpose(load(8, 1, 8, source, i * SAMPLES, SAMPLES))
            store(t, target, i, layer[Conv.FLAT_SAMPLE])


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
            convolve(weight, bias, channels, taps, n, base, used, shift(z, r * row), 2 * row)
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
    product(out, stride_out, x, stride_in, weight, stride_out, SAMPLES, inputs, stride_out)
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
            _places_to_flat(layer, shift(integers, table[Head.POOL_PLACES]), places)
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
