"""The entry point of compiled code: local steps of one device, or the evaluation of some images.

Pointers come from `shift(workspace, table[column])`; the layouts are described in `docs/fused.md`.
"""

from __future__ import annotations

import numpy as np

from airfed.learning.fused.backward import backward, softmax_backward
from airfed.learning.fused.forward import (
    CONV_WIDTH,
    DENSE_WIDTH,
    SAMPLES,
    clear,
    copy,
    forward,
    load_images,
    taint_of,
    winner,
)
from airfed.learning.fused.micro import LANES, ONE, ZERO, Floats, Integers, Table
from airfed.learning.fused.tables import Conv, Dense, Head
from airfed.learning.fused.tile import Count, Real, kernel, load, shift, total


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
            bias[c] = total(load(1, 1, LANES, sums, c * LANES, ZERO))
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
def _gradient(
    table: Table,
    parameters: Floats,
    images: Floats,
    labels: Table,
    indices: Table,
    batch: Count,
    floats: Floats,
    integers: Integers,
    gradient: Floats,
) -> None:
    """Mean gradient of the cross-entropy over a batch; NaN if a parameter or an image is not finite."""
    dense = shift(table, table[Head.DENSE_TABLE])
    last = shift(dense, (table[Head.DENSE_LAYERS] - 1) * DENSE_WIDTH)
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
def _evaluate(
    table: Table,
    parameters: Floats,
    images: Floats,
    labels: Table,
    indices: Table,
    batch: Count,
    floats: Floats,
    integers: Integers,
    result: Floats,
) -> None:
    """result[0] = Σ cross-entropy, result[1] = number of right predictions, over a batch."""
    dense = shift(table, table[Head.DENSE_TABLE])
    last = shift(dense, (table[Head.DENSE_LAYERS] - 1) * DENSE_WIDTH)
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

    update = Σ_e ∇L(w_e) over the local steps, w ← w − τ ∇L(w), each on the `batch` images that
    indices[e·indices_step :] names.
    """
    if steps == 0:
        _evaluate(table, parameters, images, labels, indices, batch, floats, integers, result)
        return
    dimension = table[Head.DIMENSION]
    local, gradient = shift(floats, table[Head.PARAMETERS]), shift(floats, table[Head.GRADIENT])
    copy(parameters, local, dimension)
    clear(update, dimension)
    for step in range(steps):
        batch_indices = shift(indices, step * indices_step)
        _gradient(table, local, images, labels, batch_indices, batch, floats, integers, gradient)
        for i in range(dimension):
            g = gradient[i] + l2 * local[i]
            update[i] += g  # [Yan23, (5)]
            local[i] -= learning_rate * g  # [Yan23, (4)]
