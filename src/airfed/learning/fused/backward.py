"""The backward pass of a block of samples: dense layers, then convolutions by their live outputs only.

A 2×2 max-pool passes the gradient to one of four pixels and a ReLU stops much of the rest, so at most a
quarter of the outputs of a convolution have a gradient. Those are gathered into lists, and only those are
visited.
"""

from __future__ import annotations

import numpy as np

from airfed.learning.fused.forward import (
    CONV_WIDTH,
    DENSE_WIDTH,
    NOTHING,
    SAMPLES,
    clear,
    transpose_squares,
    winner,
)
from airfed.learning.fused.micro import LANES, ZERO, Floats, Integers, Table, accumulate, product
from airfed.learning.fused.tables import Conv, Dense, Head
from airfed.learning.fused.tile import (
    Count,
    Real,
    add,
    compress,
    keep_first,
    keep_where,
    kernel,
    load,
    shift,
    store,
)


@kernel
def clear_counts(a: Integers, n: Count) -> None:
    """Set n integers to zero."""
    for i in range(n):
        a[i] = np.int32(0)


@kernel
def keep_where_nonzero(gradient: Floats, value: Floats, n: Count) -> None:
    """The backward pass of ReLU: gradient = 0 where value is 0; n a multiple of LANES."""
    for i in range(0, n, LANES):
        t = load(1, 1, LANES, gradient, i, ZERO)
        store(keep_where(t, load(1, 1, LANES, value, i, ZERO)), gradient, i, ZERO)


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
    product(weight, stride_in, by_unit, SAMPLES, x, stride_in, layer[Dense.OUTPUTS_PADDED], SAMPLES, stride_in)
    if inputs_too:
        below = shift(floats, layer[Dense.INPUT_GRADIENT])
        clear(below, SAMPLES * stride_in)
        packed = shift(floats, layer[Dense.PACKED_BACKWARD])
        product(below, stride_in, gradient, stride_out, packed, stride_in, SAMPLES, outputs, stride_in)


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
        sums = load(1, 1, LANES, bias, c * LANES, ZERO)
        for s in range(first, first + samples):
            offset = s * layer[Conv.FLAT_SAMPLE] + c * layer[Conv.FLAT_CHANNEL]
            pixel = np.int32((s - first) * layer[Conv.SAMPLE_PIXELS])
            for i in range(0, cells, LANES):
                t = keep_first(load(1, 1, LANES, gradient, offset + i, ZERO), cells - i)
                sums = add(sums, t)
                n = compress(t, source, offset + i, pixel, values, places, n)
        counts[c] = np.int32(n - c * capacity)
        store(sums, bias, c * LANES, ZERO)


@kernel
def _bin_by_pixel(table: Table, layer: Table, floats: Floats, integers: Integers, samples: Count) -> None:
    """Sort the lists of the channels into one list per input pixel: gradients and their channels."""
    values, places = shift(floats, table[Head.LIST_VALUES]), shift(integers, table[Head.LIST_PLACES])
    counts = shift(integers, table[Head.LIST_COUNTS])
    bin_values, bin_places = shift(floats, table[Head.BIN_VALUES]), shift(integers, table[Head.BIN_PLACES])
    bin_counts = shift(integers, table[Head.BIN_COUNTS])
    channels, capacity = layer[Conv.OUTPUTS], layer[Conv.LIST_CAPACITY]
    clear_counts(bin_counts, samples * layer[Conv.SAMPLE_PIXELS])
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
        accumulate(kernel_size, run, channels, values, places, counts, capacity, gradient, patch, run, x, stride, row)
        if inputs_too:
            below = shift(floats, layer[Conv.INPUT_GRADIENT] + first * pixels * stride)
            bins = samples * pixels
            clear(below, bins * stride)
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
