"""The layers, forward and backward, for a block of 8 samples; and the one entry point that a thread calls.

Pointers come from `shift(workspace, table[column])`; `docs/fused.md` describes the layouts:
planes [channel][y][x][sample], channels last [sample][y][x][channel], flat [sample][channel][y][x].
"""

from __future__ import annotations

import numpy as np

from airfed.learning.fused.machine import SAMPLES as _SAMPLES
from airfed.learning.fused.micro import LANES, ONE, ZERO, Floats, Integers, Table, accumulate, convolve, product
from airfed.learning.fused.tables import CONV_COLUMNS, DENSE_COLUMNS, Conv, Dense, Head
from airfed.learning.fused.tile import (
    add,
    add_scaled,
    compress,
    keep_where,
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
def _clear(a: Floats, n: int) -> None:
    for i in range(n):
        a[i] = NOTHING


@kernel
def _clear_counts(a: Integers, n: int) -> None:
    for i in range(n):
        a[i] = np.int32(0)


@kernel
def _copy(source: Floats, target: Floats, n: int) -> None:
    whole = n - n % LANES
    for i in range(0, whole, LANES):
        store(load(1, 1, LANES, source, i, ZERO), target, i, ZERO)
    for i in range(whole, n):
        target[i] = source[i]


@kernel
def _taint(a: Floats, n: int) -> float:
    """0 if all n floats are finite, else NaN."""
    t = zeros(1, 1, LANES)
    whole = n - n % LANES
    for i in range(0, whole, LANES):
        t = add_scaled(t, NOTHING, a, i, ZERO)
    taint = total(t)
    for i in range(whole, n):
        taint += NOTHING * a[i]
    return taint


@kernel
def _keep_where(gradient: Floats, value: Floats, n: int) -> None:
    """The backward pass of ReLU: gradient = 0 where value is 0; n a multiple of LANES."""
    for i in range(0, n, LANES):
        t = load(1, 1, LANES, gradient, i, ZERO)
        store(keep_where(t, load(1, 1, LANES, value, i, ZERO)), gradient, i, ZERO)


@kernel
def _transpose(
    source: Floats, row: int, step: int, target: Floats, target_row: int, target_step: int, n: int
) -> None:
    """Transpose the 8×8 squares that hold n columns of 8 rows; the last one is transposed whole.

    Square k is read at source[k·step :] with rows `row` apart, and its transpose written to target likewise.
    """
    for k in range((n + SAMPLES - 1) // SAMPLES):
        store(transpose(load(8, 1, 8, source, k * step, row)), target, k * target_step, target_row)


# ------------------------------------------------------------------------------------------------------------ forward


@kernel
def _load_images(
    table: Table, images: Floats, indices: Table, n: int, floats: Floats, train: int
) -> float:
    """Fetch 8 images (the last one again if there are fewer); return NaN if one is not finite, else 0."""
    size, stride = table[Head.PIXELS], table[Head.STAGE_STRIDE]
    stage = shift(floats, table[Head.STAGE])
    taint = NOTHING
    for s in range(SAMPLES):
        image = shift(images, indices[s if s < n else n - 1] * size)
        _copy(image, shift(stage, s * stride), size)
        taint += _taint(image, size)
    if table[Head.CONVOLUTIONS] > 0:
        layer = shift(table, table[Head.CONV_TABLE])
        planes = shift(floats, layer[Conv.PLANES])
        _transpose(stage, stride, SAMPLES, planes, SAMPLES, SAMPLES * SAMPLES, size)
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
        _transpose(source, n * SAMPLES, n * SAMPLES * SAMPLES, target, sample, SAMPLES, layer[Conv.INPUTS])


@kernel
def _planes_to_flat(layer: Table, planes: Floats, flat: Floats) -> None:
    """[channel][cell][sample] to [sample][channel][cell]."""
    channels, cells, step = layer[Conv.OUTPUTS], layer[Conv.CELLS], layer[Conv.FLAT_CHANNEL]
    if step == cells:
        channels, cells = ONE, channels * cells
    for c in range(channels):
        source, target = shift(planes, c * cells * SAMPLES), shift(flat, c * step)
        _transpose(source, SAMPLES, SAMPLES * SAMPLES, target, layer[Conv.FLAT_SAMPLE], SAMPLES, cells)


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
def _convolution_forward(
    table: Table, layer: Table, parameters: Floats, floats: Floats, integers: Integers
) -> None:
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
def _forward(
    table: Table, parameters: Floats, floats: Floats, integers: Integers, train: int
) -> None:
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
def _largest(logits: Floats, n: int) -> int:
    """Index of the first largest entry; a NaN is larger than any number."""
    best = ZERO
    for j in range(ONE, n):
        if logits[j] > logits[best] or (np.isnan(logits[j]) and not np.isnan(logits[best])):
            best = j
    return best


# ----------------------------------------------------------------------------------------------------------- backward


@kernel
def _softmax_backward(
    table: Table, layer: Table, labels: Table, indices: Table, n: int, scale: float, floats: Floats
) -> None:
    """Gradient of the cross-entropy, softmax − one-hot, times `scale`; zero for the samples past n."""
    classes, stride = table[Head.CLASSES], layer[Dense.OUT_STRIDE]
    for s in range(SAMPLES):
        logits = shift(floats, layer[Dense.OUTPUT] + s * stride)
        gradient = shift(floats, layer[Dense.OUTPUT_GRADIENT] + s * stride)
        if s < n:
            largest, normaliser = logits[_largest(logits, classes)], NOTHING
            for j in range(classes):
                gradient[j] = np.exp(logits[j] - largest)
                normaliser += gradient[j]
            for j in range(classes):
                gradient[j] *= scale / normaliser
            gradient[labels[indices[s]]] -= scale
        else:
            _clear(gradient, classes)


@kernel
def _dense_backward(table: Table, layer: Table, floats: Floats, last: bool, inputs_too: bool) -> None:
    """Add to the gradients of weights and biases; the gradient of the inputs if they have parameters below."""
    inputs, outputs = layer[Dense.INPUTS], layer[Dense.OUTPUTS]
    stride_in, stride_out = layer[Dense.IN_STRIDE], layer[Dense.OUT_STRIDE]
    x, gradient = shift(floats, layer[Dense.INPUT]), shift(floats, layer[Dense.OUTPUT_GRADIENT])
    by_unit, bias = shift(floats, table[Head.TRANSPOSED]), shift(floats, layer[Dense.BIAS_GRADIENT])
    if not last:
        _keep_where(gradient, shift(floats, layer[Dense.OUTPUT]), SAMPLES * stride_out)
    for j in range(outputs):
        t = NOTHING
        for s in range(SAMPLES):
            v = gradient[s * stride_out + j]
            by_unit[j * SAMPLES + s] = v
            t += v
        bias[j] += t
    weight = shift(floats, layer[Dense.WEIGHT_GRADIENT])
    product(weight, stride_in, by_unit, SAMPLES, x, stride_in, layer[Dense.OUTPUTS_PADDED], SAMPLES, stride_in)
    if inputs_too:
        below = shift(floats, layer[Dense.INPUT_GRADIENT])
        _clear(below, SAMPLES * stride_in)
        packed = shift(floats, layer[Dense.PACKED_BACKWARD])
        product(below, stride_in, gradient, stride_out, packed, stride_in, SAMPLES, outputs, stride_in)


@kernel
def _list_live(
    table: Table, layer: Table, floats: Floats, integers: Integers, first: int, samples: int
) -> None:
    """For each output channel, list the gradients that are not zero and the input pixel that each belongs to."""
    gradient = shift(floats, layer[Conv.FLAT_GRADIENT])
    source = shift(integers, layer[Conv.FLAT_PLACES])
    values, places = shift(floats, table[Head.LIST_VALUES]), shift(integers, table[Head.LIST_PLACES])
    counts, bias = shift(integers, table[Head.LIST_COUNTS]), shift(floats, layer[Conv.BIAS_GRADIENT])
    cells, capacity = layer[Conv.CELLS], layer[Conv.LIST_CAPACITY]
    for c in range(layer[Conv.OUTPUTS]):
        start = c * capacity
        n = start
        for s in range(first, first + samples):
            offset = s * layer[Conv.FLAT_SAMPLE] + c * layer[Conv.FLAT_CHANNEL]
            pixel = np.int32((s - first) * layer[Conv.SAMPLE_PIXELS])
            for i in range(0, cells, LANES):
                t = load(1, 1, LANES, gradient, offset + i, ZERO)
                n = compress(t, cells - i, source, offset + i, pixel, values, places, n)
        counts[c] = np.int32(n - start)
        t = zeros(1, 1, LANES)
        whole = n - (n - start) % LANES
        for k in range(start, whole, LANES):
            t = add(t, load(1, 1, LANES, values, k, ZERO))
        bias_sum = total(t)
        for k in range(whole, n):
            bias_sum += values[k]
        bias[c] += bias_sum


@kernel
def _bin_by_pixel(table: Table, layer: Table, floats: Floats, integers: Integers, samples: int) -> None:
    """Sort the lists of the channels into one list per input pixel: gradients and their channels."""
    values, places = shift(floats, table[Head.LIST_VALUES]), shift(integers, table[Head.LIST_PLACES])
    counts = shift(integers, table[Head.LIST_COUNTS])
    bin_values, bin_places = shift(floats, table[Head.BIN_VALUES]), shift(integers, table[Head.BIN_PLACES])
    bin_counts = shift(integers, table[Head.BIN_COUNTS])
    channels, capacity = layer[Conv.OUTPUTS], layer[Conv.LIST_CAPACITY]
    _clear_counts(bin_counts, samples * layer[Conv.SAMPLE_PIXELS])
    for c in range(channels):
        for k in range(c * capacity, c * capacity + counts[c]):
            pixel = np.int64(places[k])
            entry = pixel * channels + bin_counts[pixel]
            bin_values[entry] = values[k]
            bin_places[entry] = np.int32(c)
            bin_counts[pixel] += np.int32(1)


@kernel
def _convolution_backward(
    table: Table, layer: Table, floats: Floats, integers: Integers, n: int, inputs_too: bool
) -> None:
    """Add to the gradients of weights and biases, visiting live outputs only; the gradient of the inputs too."""
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
        accumulate(
            kernel_size, run, channels, values, places, counts, capacity, gradient, patch, run, x, stride, row
        )
        if inputs_too:
            below = shift(floats, layer[Conv.INPUT_GRADIENT] + first * pixels * stride)
            bins = samples * pixels
            _clear(below, bins * stride)
            _bin_by_pixel(table, layer, floats, integers, samples)
            accumulate(
                kernel_size,
                run,
                bins,
                bin_values,
                bin_places,
                bin_counts,
                channels,
                below,
                stride,
                row,
                weight,
                patch,
                run,
            )


@kernel
def _channels_last_to_flat(layer: Table, below: Table, floats: Floats, n: int) -> None:
    """The input gradient of a layer, where its input is not zero, becomes the flat output gradient of the one below."""
    stride, sample = layer[Conv.CHANNELS_LAST_STRIDE], layer[Conv.SAMPLE_PIXELS]
    gradient = shift(floats, layer[Conv.INPUT_GRADIENT])
    flat = shift(floats, below[Conv.FLAT_GRADIENT])
    cells, step = below[Conv.CELLS], below[Conv.FLAT_CHANNEL]
    _keep_where(gradient, shift(floats, layer[Conv.CHANNELS_LAST]), n * sample * stride)
    for s in range(n):
        for c in range(0, layer[Conv.INPUTS], SAMPLES):
            source = shift(gradient, s * sample * stride + c)
            target = shift(flat, s * below[Conv.FLAT_SAMPLE] + c * step)
            _transpose(source, stride, SAMPLES * stride, target, step, SAMPLES, cells)


@kernel
def _backward(table: Table, floats: Floats, integers: Integers, n: int) -> None:
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
            _keep_where(flat, shift(floats, dense[Dense.INPUT]), SAMPLES * dense[Dense.IN_STRIDE])
        else:
            _channels_last_to_flat(shift(layer, CONV_WIDTH), layer, floats, n)
        _convolution_backward(table, layer, floats, integers, n, index > 0)


# --------------------------------------------------------------------------------------- parameters in, gradients out


@kernel
def _pack(table: Table, parameters: Floats, floats: Floats, train: int) -> None:
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
        _clear(shift(floats, layer[Conv.WEIGHT_GRADIENT]), layer[Conv.OUTPUTS] * size * layer[Conv.RUN])
        _clear(shift(floats, layer[Conv.BIAS_GRADIENT]), layer[Conv.OUTPUTS])
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
            _clear(shift(floats, layer[Dense.WEIGHT_GRADIENT]), layer[Dense.OUTPUTS_PADDED] * stride_in)
            _clear(shift(floats, layer[Dense.BIAS_GRADIENT]), layer[Dense.OUTPUTS])


@kernel
def _unpack(table: Table, floats: Floats, gradient: Floats) -> None:
    """Copy the gradients into the order of the parameters."""
    for index in range(table[Head.CONVOLUTIONS]):
        layer = shift(table, table[Head.CONV_TABLE] + index * CONV_WIDTH)
        size, channels, stride = layer[Conv.KERNEL], layer[Conv.INPUTS], layer[Conv.CHANNELS_LAST_STRIDE]
        weight, packed = shift(gradient, layer[Conv.WEIGHT]), shift(floats, layer[Conv.WEIGHT_GRADIENT])
        bias, sums = shift(gradient, layer[Conv.BIAS]), shift(floats, layer[Conv.BIAS_GRADIENT])
        for c in range(layer[Conv.OUTPUTS]):
            bias[c] = sums[c]
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


# --------------------------------------------------------------------------------------------------------- entry point


@kernel
def _gradient(
    table: Table,
    parameters: Floats,
    images: Floats,
    labels: Table,
    indices: Table,
    batch: int,
    floats: Floats,
    integers: Integers,
    gradient: Floats,
) -> None:
    """Mean gradient of the cross-entropy over a batch; NaN throughout if a parameter or an image is not finite."""
    dense = shift(table, table[Head.DENSE_TABLE])
    last = shift(dense, (table[Head.DENSE_LAYERS] - 1) * DENSE_WIDTH)
    scale = np.float32(1) / np.float32(batch)
    taint = _taint(parameters, table[Head.DIMENSION])
    _pack(table, parameters, floats, ONE)
    for first in range(0, batch, SAMPLES):
        block = shift(indices, first)
        n = SAMPLES if first + SAMPLES <= batch else batch - first
        taint += _load_images(table, images, block, n, floats, ONE)
        _forward(table, parameters, floats, integers, ONE)
        _softmax_backward(table, last, labels, block, n, scale, floats)
        _backward(table, floats, integers, n)
    _unpack(table, floats, gradient)
    if taint != 0:
        for i in range(table[Head.DIMENSION]):
            gradient[i] = taint


@kernel
def _evaluate(
    table: Table,
    parameters: Floats,
    images: Floats,
    labels: Table,
    indices: Table,
    batch: int,
    floats: Floats,
    integers: Integers,
    result: Floats,
) -> None:
    """result[0] = Σ cross-entropy, result[1] = number of right predictions, over a batch."""
    dense = shift(table, table[Head.DENSE_TABLE])
    last = shift(dense, (table[Head.DENSE_LAYERS] - 1) * DENSE_WIDTH)
    classes = table[Head.CLASSES]
    loss, right = np.float64(_taint(parameters, table[Head.DIMENSION])), ZERO
    _pack(table, parameters, floats, ZERO)
    for first in range(0, batch, SAMPLES):
        block = shift(indices, first)
        n = SAMPLES if first + SAMPLES <= batch else batch - first
        loss += np.float64(_load_images(table, images, block, n, floats, ZERO))
        _forward(table, parameters, floats, integers, ZERO)
        for s in range(n):
            logits = shift(floats, last[Dense.OUTPUT] + s * last[Dense.OUT_STRIDE])
            label, best = labels[block[s]], _largest(logits, classes)
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
    indices_step: int,
    batch: int,
    steps: int,
    learning_rate: float,
    l2: float,
    floats: Floats,
    integers: Integers,
    update: Floats,
    result: Floats,
) -> None:
    """Everything a thread calls: `steps` local steps of one device, or (steps = 0) an evaluation.

    update = Σ_e ∇L(w_e) over the local steps, w ← w − τ ∇L(w), each on the `batch` images that
    indices[e·indices_step :] names.
    """
    if steps == 0:
        _evaluate(table, parameters, images, labels, indices, batch, floats, integers, result)
        return
    dimension = table[Head.DIMENSION]
    local, gradient = shift(floats, table[Head.PARAMETERS]), shift(floats, table[Head.GRADIENT])
    _copy(parameters, local, dimension)
    _clear(update, dimension)
    for step in range(steps):
        batch_indices = shift(indices, step * indices_step)
        _gradient(table, local, images, labels, batch_indices, batch, floats, integers, gradient)
        for i in range(dimension):
            g = gradient[i] + l2 * local[i]
            update[i] += g  # [Yan23, (5)]
            local[i] -= learning_rate * g  # [Yan23, (4)]
