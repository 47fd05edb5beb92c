"""The forward and the backward pass of a block of 8 samples, and `run`, the entry point of compiled code.

Images and activations of convolutions are planes [channel][y][x][sample]; `docs/fused.md` describes the other layouts.
The inner loops that do all the multiplications (`convolve`, `product`, `accumulate`) hold a tile of sums in registers.
Shapes of tiles are constants of compiled code, so each loop is made for several shapes and the largest that fits is
taken. A 2×2 max-pool and a ReLU leave at most a quarter of the outputs of a convolution with a gradient. Those are
gathered into lists, and only those are visited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airfed.learning.fused import tables, tile
from airfed.learning.fused.tables import Conv, Dense, Head, host
from airfed.learning.fused.tile import Count, Real, kernel, shift

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]
Values = Floats | Integers
Table = NDArray[np.int64]
Sizes = tuple[Count, Count, Count]
Lists = tuple[Floats, Integers, Integers, Count, Count]  # values, places, counts, capacity of a list, lists
Rows = tuple[Floats, Count, Count]  # a pointer, from one item to the next, from row to row
Data = tuple[Floats, Table, Floats, Integers]  # images and labels, and the workspace
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
        t = tile.fill_rows(rows, columns, LANES, bias, ZERO, ONE)
        for k in range(n):
            t = tile.add_outer(t, weight, k, n, tile.load(1, columns, LANES, x, taps[k] + i, ZERO))
        tile.store(t, z, i, stride)

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
            t = tile.load(ROWS, columns, LANES, c, r * c_stride, c_stride)
            for k in range(n):
                x = tile.load(1, columns, LANES, b, k * b_stride, ZERO)
                t = tile.add_outer(t, g, r * g_stride + k, g_stride, x)
            tile.store(t, c, r * c_stride, c_stride)

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
    for i in range(n):
        target[i] = source[i]


@kernel
def taint_of(a: Floats, n: Count) -> Real:
    """0 if all n floats are finite, else NaN."""
    t = tile.zeros(1, 1, LANES)
    whole = n - n % LANES
    for i in range(0, whole, LANES):
        t = tile.add_scaled(t, NOTHING, a, i, ZERO)
    taint: Real = tile.total(t)
    for i in range(whole, n):
        taint += NOTHING * a[i]
    return taint


@kernel
def transpose_squares(
    source: Values, row: Count, step: Count, target: Values, target_row: Count, target_step: Count, n: Count
) -> None:
    """Transpose the 8×8 squares that hold n columns of 8 rows; the last one is transposed whole.

    Square k is read at source[k·step :] with rows `row` apart, and its transpose written to target likewise.
    """
    for k in range((n + SAMPLES - 1) // SAMPLES):
        tile.store(tile.transpose(tile.load(8, 1, 8, source, k * step, row)), target, k * target_step, target_row)


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
def _planes_to_flat(layer: Table, planes: Values, flat: Values) -> None:
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
                tile.pool(z, i, row, out, places, o, np.int32(p), np.int32(width))
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
            tile.store(tile.rectify(tile.load(1, 1, LANES, out, i, ZERO)), out, i, ZERO)


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


def _accumulate(rows: Count, columns: Count, lanes: Count) -> Kernel:
    """A tile of rows × columns vectors for each of the lists."""

    @kernel
    def block(lists: Lists, target: Rows, source: Rows, r: Count, i: Count) -> None:
        values, places, counts, capacity, number = lists
        (c, c_step, c_row), (a, a_step, a_row) = target, source
        c, a = shift(c, r * c_row + i), shift(a, r * a_row + i)
        for b in range(number):
            n = np.int64(counts[b])
            if n > 0:
                first = b * capacity
                t = tile.load(rows, columns, lanes, c, b * c_step, c_row)
                for k in range(first, first + n):
                    t = tile.add_scaled(t, values[k], a, places[k] * a_step, a_row)
                tile.store(t, c, b * c_step, c_row)

    return block


def _accumulate_columns(columns: Count, lanes: Count) -> Kernel:
    """`columns` vectors of all kernel rows, as many rows at a time as the registers hold."""
    most = min(5, host().registers // columns)
    some = min(3, most)
    by_most, by_some, by_one = (_accumulate(rows, columns, lanes) for rows in (most, some, 1))

    @kernel
    def strip(rows: Count, lists: Lists, target: Rows, source: Rows, i: Count) -> None:
        r = ZERO
        while r + most <= rows:
            by_most(lists, target, source, r, i)
            r += most
        while r + some <= rows:
            by_some(lists, target, source, r, i)
            r += some
        while r < rows:
            by_one(lists, target, source, r, i)
            r += 1

    return strip


_short = _accumulate_columns(1, 8)
_by1, _by2, _by3, _by5 = (_accumulate_columns(columns, LANES) for columns in (1, 2, 3, 5))


@kernel
def accumulate(rows: Count, run: Count, lists: Lists, target: Rows, source: Rows) -> None:
    """For every list b, C_b += Σ_k values[b, k]·A_p with p = places[b, k]; C_b and A_p are rows × run floats.

    Row r of C_b begins at c[b·c_step + r·c_row], row r of A_p at a[p·a_step + r·a_row]; list b has counts[b]
    entries from b·capacity on. `run` is a multiple of LANES, or 8.
    """
    if run == SAMPLES:
        _short(rows, lists, target, source, ZERO)
        return
    i = ZERO
    while i + 5 * LANES <= run:
        _by5(rows, lists, target, source, i)
        i += 5 * LANES
    if i + 3 * LANES <= run:
        _by3(rows, lists, target, source, i)
        i += 3 * LANES
    if i + 2 * LANES <= run:
        _by2(rows, lists, target, source, i)
    elif i < run:
        _by1(rows, lists, target, source, i)


@kernel
def keep_where_nonzero(gradient: Floats, value: Floats, n: Count) -> None:
    """The backward pass of ReLU: gradient = 0 where value is 0; n a multiple of LANES."""
    for i in range(0, n, LANES):
        t = tile.load(1, 1, LANES, gradient, i, ZERO)
        tile.store(tile.keep_where(t, tile.load(1, 1, LANES, value, i, ZERO)), gradient, i, ZERO)


@kernel
def softmax_backward(
    table: Table, layer: Table, labels: Table, indices: Table, n: Count, scale: Real, floats: Floats
) -> None:
    """Gradient of the cross-entropy, softmax − one-hot, times `scale`; zero for the samples past n."""
    classes, stride = table[Head.CLASSES], layer[Dense.OUT_STRIDE]
    for s in range(SAMPLES):
        logits = shift(floats, layer[Dense.OUTPUT] + s * stride)
        gradient = shift(floats, layer[Dense.OUTPUT_GRADIENT] + s * stride)
        if s < n:
            largest, normaliser = logits[winner(logits, classes)], NOTHING
            for j in range(classes):
                gradient[j] = np.exp(logits[j] - largest)
                normaliser += gradient[j]
            for j in range(classes):
                gradient[j] *= scale / normaliser
            gradient[labels[indices[s]]] -= scale
        else:
            clear(gradient, classes)


@kernel
def _dense_backward(table: Table, layer: Table, floats: Floats, last: bool, inputs_too: bool) -> None:
    """Add to the gradients of weights and biases; with `inputs_too`, the gradient of the inputs."""
    outputs = layer[Dense.OUTPUTS]
    stride_in, stride_out = layer[Dense.IN_STRIDE], layer[Dense.OUT_STRIDE]
    x, gradient = shift(floats, layer[Dense.INPUT]), shift(floats, layer[Dense.OUTPUT_GRADIENT])
    by_unit, bias = shift(floats, table[Head.TRANSPOSED]), shift(floats, layer[Dense.BIAS_GRADIENT])
    if not last:
        keep_where_nonzero(gradient, shift(floats, layer[Dense.OUTPUT]), SAMPLES * stride_out)
    for j in range(outputs):
        t = NOTHING
        for s in range(SAMPLES):
            v = gradient[s * stride_out + j]
            by_unit[j * SAMPLES + s] = v
            t += v
        bias[j] += t
    weight = shift(floats, layer[Dense.WEIGHT_GRADIENT])
    product(weight, by_unit, x, (layer[Dense.OUTPUTS_PADDED], SAMPLES, stride_in), (stride_in, SAMPLES, stride_in))
    if inputs_too:
        below = shift(floats, layer[Dense.INPUT_GRADIENT])
        clear(below, SAMPLES * stride_in)
        packed = shift(floats, layer[Dense.PACKED_BACKWARD])
        product(below, gradient, packed, (SAMPLES, outputs, stride_in), (stride_in, stride_out, stride_in))


@kernel
def _list_live(table: Table, layer: Table, floats: Floats, integers: Integers, first: Count, samples: Count) -> None:
    """For each output channel, list the gradients that are not zero and the input pixel of each."""
    gradient = shift(floats, layer[Conv.FLAT_GRADIENT])
    source = shift(integers, layer[Conv.FLAT_PLACES])
    values, places = shift(floats, table[Head.LIST_VALUES]), shift(integers, table[Head.LIST_PLACES])
    counts, bias = shift(integers, table[Head.LIST_COUNTS]), shift(floats, layer[Conv.BIAS_GRADIENT])
    cells, capacity = layer[Conv.CELLS], layer[Conv.LIST_CAPACITY]
    for c in range(layer[Conv.OUTPUTS]):
        n = c * capacity
        sums = tile.load(1, 1, LANES, bias, c * LANES, ZERO)
        for s in range(first, first + samples):
            offset = s * layer[Conv.FLAT_SAMPLE] + c * layer[Conv.FLAT_CHANNEL]
            pixel = np.int32((s - first) * layer[Conv.SAMPLE_PIXELS])
            for i in range(0, cells, LANES):
                t = tile.keep_first(tile.load(1, 1, LANES, gradient, offset + i, ZERO), cells - i)
                sums = tile.add(sums, t)
                n = tile.compress(t, source, offset + i, pixel, values, places, n)
        counts[c] = np.int32(n - c * capacity)
        tile.store(sums, bias, c * LANES, ZERO)


@kernel
def _bin_by_pixel(table: Table, layer: Table, floats: Floats, integers: Integers, samples: Count) -> None:
    """Sort the lists of the channels into one list per input pixel: gradients and their channels."""
    values, places = shift(floats, table[Head.LIST_VALUES]), shift(integers, table[Head.LIST_PLACES])
    counts = shift(integers, table[Head.LIST_COUNTS])
    bin_values, bin_places = shift(floats, table[Head.BIN_VALUES]), shift(integers, table[Head.BIN_PLACES])
    bin_counts = shift(integers, table[Head.BIN_COUNTS])
    channels, capacity = layer[Conv.OUTPUTS], layer[Conv.LIST_CAPACITY]
    for p in range(samples * layer[Conv.SAMPLE_PIXELS]):
        bin_counts[p] = np.int32(0)
    for c in range(channels):
        for k in range(c * capacity, c * capacity + counts[c]):
            pixel = np.int64(places[k])
            entry = pixel * channels + bin_counts[pixel]
            bin_values[entry] = values[k]
            bin_places[entry] = np.int32(c)
            bin_counts[pixel] += np.int32(1)


@kernel
def _convolution_backward(
    table: Table, layer: Table, floats: Floats, integers: Integers, n: Count, inputs_too: bool
) -> None:
    """As `_dense_backward`, visiting live outputs only."""
    kernel_size, run, channels = layer[Conv.KERNEL], layer[Conv.RUN], layer[Conv.OUTPUTS]
    stride, pixels = layer[Conv.CHANNELS_LAST_STRIDE], layer[Conv.SAMPLE_PIXELS]
    row, patch = layer[Conv.WIDTH] * stride, kernel_size * run
    values, places = shift(floats, table[Head.LIST_VALUES]), shift(integers, table[Head.LIST_PLACES])
    counts, capacity = shift(integers, table[Head.LIST_COUNTS]), layer[Conv.LIST_CAPACITY]
    bin_values, bin_places = shift(floats, table[Head.BIN_VALUES]), shift(integers, table[Head.BIN_PLACES])
    bin_counts = shift(integers, table[Head.BIN_COUNTS])
    weight, gradient = shift(floats, layer[Conv.PACKED_WEIGHT]), shift(floats, layer[Conv.WEIGHT_GRADIENT])
    group = layer[Conv.GROUP]
    for first in range(0, n, group):
        samples = group if first + group <= n else n - first
        x = shift(floats, layer[Conv.CHANNELS_LAST] + first * pixels * stride)
        _list_live(table, layer, floats, integers, first, samples)
        lists = (values, places, counts, capacity, channels)
        accumulate(kernel_size, run, lists, (gradient, patch, run), (x, stride, row))
        if inputs_too:
            below = shift(floats, layer[Conv.INPUT_GRADIENT] + first * pixels * stride)
            bins = samples * pixels
            clear(below, bins * stride)
            _bin_by_pixel(table, layer, floats, integers, samples)
            by_pixel = (bin_values, bin_places, bin_counts, channels, bins)
            accumulate(kernel_size, run, by_pixel, (below, stride, row), (weight, patch, run))


@kernel
def _channels_last_to_flat(layer: Table, below: Table, floats: Floats, n: Count) -> None:
    """The input gradient of a layer becomes the output gradient of the one below, through its ReLU."""
    stride, sample = layer[Conv.CHANNELS_LAST_STRIDE], layer[Conv.SAMPLE_PIXELS]
    gradient = shift(floats, layer[Conv.INPUT_GRADIENT])
    flat = shift(floats, below[Conv.FLAT_GRADIENT])
    cells, step = below[Conv.CELLS], below[Conv.FLAT_CHANNEL]
    keep_where_nonzero(gradient, shift(floats, layer[Conv.CHANNELS_LAST]), n * sample * stride)
    for s in range(n):
        for c in range(0, layer[Conv.INPUTS], SAMPLES):
            source = shift(gradient, s * sample * stride + c)
            target = shift(flat, s * below[Conv.FLAT_SAMPLE] + c * step)
            transpose_squares(source, stride, SAMPLES * stride, target, step, SAMPLES, cells)


@kernel
def backward(table: Table, floats: Floats, integers: Integers, n: Count) -> None:
    """All layers, from the gradient of the outputs down, for n samples."""
    convolutions, dense_layers = table[Head.CONVOLUTIONS], table[Head.DENSE_LAYERS]
    for index in range(dense_layers - 1, -1, -1):
        layer = shift(table, table[Head.DENSE_TABLE] + index * DENSE_WIDTH)
        _dense_backward(table, layer, floats, index + 1 == dense_layers, index + convolutions > 0)
    for index in range(convolutions - 1, -1, -1):
        layer = shift(table, table[Head.CONV_TABLE] + index * CONV_WIDTH)
        if index + 1 == convolutions:
            dense = shift(table, table[Head.DENSE_TABLE])
            flat = shift(floats, layer[Conv.FLAT_GRADIENT])
            keep_where_nonzero(flat, shift(floats, dense[Dense.INPUT]), SAMPLES * dense[Dense.IN_STRIDE])
        else:
            _channels_last_to_flat(shift(layer, CONV_WIDTH), layer, floats, n)
        _convolution_backward(table, layer, floats, integers, n, index > 0)


@kernel
def pack(table: Table, parameters: Floats, floats: Floats, train: Count) -> None:
    """Copy the weights into the orders that the products want; clear the gradients."""
    for index in range(table[Head.CONVOLUTIONS]):
        layer = shift(table, table[Head.CONV_TABLE] + index * CONV_WIDTH)
        size, channels, stride = layer[Conv.KERNEL], layer[Conv.INPUTS], layer[Conv.CHANNELS_LAST_STRIDE]
        weight, packed = shift(parameters, layer[Conv.WEIGHT]), shift(floats, layer[Conv.PACKED_WEIGHT])
        for c in range(layer[Conv.OUTPUTS]):
            for i in range(channels):
                for y in range(size):
                    for x in range(size):
                        target = (c * size + y) * layer[Conv.RUN] + x * stride + i
                        packed[target] = weight[((c * channels + i) * size + y) * size + x]
        clear(shift(floats, layer[Conv.WEIGHT_GRADIENT]), layer[Conv.OUTPUTS] * size * layer[Conv.RUN])
        clear(shift(floats, layer[Conv.BIAS_GRADIENT]), layer[Conv.OUTPUTS] * LANES)
    for index in range(table[Head.DENSE_LAYERS]):
        layer = shift(table, table[Head.DENSE_TABLE] + index * DENSE_WIDTH)
        inputs, stride_in, stride_out = layer[Dense.INPUTS], layer[Dense.IN_STRIDE], layer[Dense.OUT_STRIDE]
        weight = shift(parameters, layer[Dense.WEIGHT])
        forward = shift(floats, layer[Dense.PACKED_FORWARD])
        backward = shift(floats, layer[Dense.PACKED_BACKWARD])
        for j in range(layer[Dense.OUTPUTS]):
            for i in range(inputs):
                forward[i * stride_out + j] = weight[j * inputs + i]
                backward[j * stride_in + i] = weight[j * inputs + i]
        if train:
            clear(shift(floats, layer[Dense.WEIGHT_GRADIENT]), layer[Dense.OUTPUTS_PADDED] * stride_in)
            clear(shift(floats, layer[Dense.BIAS_GRADIENT]), layer[Dense.OUTPUTS])


@kernel
def unpack(table: Table, floats: Floats, gradient: Floats) -> None:
    """Copy the gradients into the order of the parameters."""
    for index in range(table[Head.CONVOLUTIONS]):
        layer = shift(table, table[Head.CONV_TABLE] + index * CONV_WIDTH)
        size, channels, stride = layer[Conv.KERNEL], layer[Conv.INPUTS], layer[Conv.CHANNELS_LAST_STRIDE]
        weight, packed = shift(gradient, layer[Conv.WEIGHT]), shift(floats, layer[Conv.WEIGHT_GRADIENT])
        bias, sums = shift(gradient, layer[Conv.BIAS]), shift(floats, layer[Conv.BIAS_GRADIENT])
        for c in range(layer[Conv.OUTPUTS]):
            bias[c] = tile.total(tile.load(1, 1, LANES, sums, c * LANES, ZERO))
            for i in range(channels):
                for y in range(size):
                    for x in range(size):
                        source = (c * size + y) * layer[Conv.RUN] + x * stride + i
                        weight[((c * channels + i) * size + y) * size + x] = packed[source]
    for index in range(table[Head.DENSE_LAYERS]):
        layer = shift(table, table[Head.DENSE_TABLE] + index * DENSE_WIDTH)
        inputs, stride_in = layer[Dense.INPUTS], layer[Dense.IN_STRIDE]
        weight, packed = shift(gradient, layer[Dense.WEIGHT]), shift(floats, layer[Dense.WEIGHT_GRADIENT])
        bias, sums = shift(gradient, layer[Dense.BIAS]), shift(floats, layer[Dense.BIAS_GRADIENT])
        for j in range(layer[Dense.OUTPUTS]):
            bias[j] = sums[j]
            for i in range(inputs):
                weight[j * inputs + i] = packed[j * stride_in + i]


@kernel
def _gradient(table: Table, parameters: Floats, data: Data, indices: Table, batch: Count, gradient: Floats) -> None:
    """Mean gradient of the cross-entropy over a batch; NaN if a parameter or an image is not finite."""
    images, labels, floats, integers = data
    last = shift(table, table[Head.DENSE_TABLE] + (table[Head.DENSE_LAYERS] - 1) * DENSE_WIDTH)
    scale = np.float32(1) / np.float32(batch)
    taint = taint_of(parameters, table[Head.DIMENSION])
    pack(table, parameters, floats, ONE)
    for first in range(0, batch, SAMPLES):
        block = shift(indices, first)
        n = SAMPLES if first + SAMPLES <= batch else batch - first
        taint += load_images(table, images, block, n, floats, ONE)
        forward(table, parameters, floats, integers, ONE)
        softmax_backward(table, last, labels, block, n, scale, floats)
        backward(table, floats, integers, n)
    unpack(table, floats, gradient)
    if taint != 0:
        for i in range(table[Head.DIMENSION]):
            gradient[i] = taint


@kernel
def _evaluate(table: Table, parameters: Floats, data: Data, indices: Table, batch: Count, result: Floats) -> None:
    """result[0] = Σ cross-entropy, result[1] = number of right predictions, over a batch."""
    images, labels, floats, integers = data
    last = shift(table, table[Head.DENSE_TABLE] + (table[Head.DENSE_LAYERS] - 1) * DENSE_WIDTH)
    classes = table[Head.CLASSES]
    loss, right = np.float64(taint_of(parameters, table[Head.DIMENSION])), ZERO
    pack(table, parameters, floats, ZERO)
    for first in range(0, batch, SAMPLES):
        block = shift(indices, first)
        n = SAMPLES if first + SAMPLES <= batch else batch - first
        loss += np.float64(load_images(table, images, block, n, floats, ZERO))
        forward(table, parameters, floats, integers, ZERO)
        for s in range(n):
            logits = shift(floats, last[Dense.OUTPUT] + s * last[Dense.OUT_STRIDE])
            label, best = labels[block[s]], winner(logits, classes)
            largest, normaliser = np.float64(logits[best]), np.float64(0)
            for j in range(classes):
                normaliser += np.exp(np.float64(logits[j]) - largest)
            loss += np.log(normaliser) + largest - np.float64(logits[label])
            right += best == label
    result[0] = loss
    result[1] = np.float64(right)


@kernel
def run(
    table: Table,
    parameters: Floats,
    images: Floats,
    labels: Table,
    indices: Table,
    indices_step: Count,
    batch: Count,
    steps: Count,
    learning_rate: Real,
    l2: Real,
    floats: Floats,
    integers: Integers,
    update: Floats,
    result: Floats,
) -> None:
    """Everything a thread calls: `steps` local steps of one device, or (steps = 0) an evaluation.

    update = Σ_e ∇L(w_e), w ← w − τ ∇L(w), each on the `batch` images that indices[e·indices_step :] names.
    """
    if steps == 0:
        _evaluate(table, parameters, (images, labels, floats, integers), indices, batch, result)
        return
    dimension = table[Head.DIMENSION]
    local, gradient = shift(floats, table[Head.PARAMETERS]), shift(floats, table[Head.GRADIENT])
    copy(parameters, local, dimension)
    clear(update, dimension)
    for step in range(steps):
        picks = shift(indices, step * indices_step)
        _gradient(table, local, (images, labels, floats, integers), picks, batch, gradient)
        for i in range(dimension):
            g = gradient[i] + l2 * local[i]
            update[i] += g  # [Yan23, (5)]
            local[i] -= learning_rate * g  # [Yan23, (4)]
