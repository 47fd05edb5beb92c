"""Register tiles of the processor, and the table of integers that describes a network to the kernels.

One compilation serves all networks: compiled code takes the parameters, a `table` built here, and a workspace of floats
and integers per thread. `docs/fused.md` explains the layouts in the columns.
"""

from __future__ import annotations

import math
import os
from enum import IntEnum
from functools import cache
from typing import NamedTuple

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from airfed.network import Network

SAMPLES = 8
"""Images per block; one vector of the sample-last layout."""
ALIGN = 16
"""Floats in a cache line: every buffer, padded row and padded pixel starts on one."""
SLACK = 64
"""Floats behind every buffer that the last vector of a row may touch."""


class Machine(NamedTuple):
    """A processor by LLVM's names of it and of its instruction-set extensions ("+avx2,-avx512f,...")."""

    cpu: str
    features: str

    @property
    def lanes(self) -> int:
        """Floats in one register: 16 with AVX-512, else 8 (LLVM splits them where registers are shorter)."""
        return 16 if "+avx512f" in self.features.split(",") else 8

    @property
    def registers(self) -> int:
        """Registers that one tile of partial sums may occupy: all but those for the operands."""
        return 25 if self.lanes == 16 else 12

    @property
    def rows(self) -> int:
        """Rows of the tile of a dense product (columns: 4), so that sums and operands stay in registers."""
        return 4 if self.lanes == 16 else 2


@cache
def host() -> Machine:
    """Return this machine, or that of NUMBA_CPU_NAME and NUMBA_CPU_FEATURES, such as an older processor."""
    name = os.environ.get("NUMBA_CPU_NAME")
    features = os.environ.get("NUMBA_CPU_FEATURES", "" if name else llvm.get_host_cpu_features().flatten())
    return Machine(name or llvm.get_host_cpu_name(), features)


class Head(IntEnum):
    """Columns of the first row of the table: the network as a whole."""

    DIMENSION, PIXELS, CLASSES, CONVOLUTIONS, DENSE_LAYERS = range(5)
    CONV_TABLE, DENSE_TABLE = 5, 6  # where in the table their rows begin
    PARAMETERS, GRADIENT = 7, 8  # workspace: local parameters, gradient of one step
    STAGE, STAGE_STRIDE = 9, 10  # workspace: images as they come, [sample][channel][y][x]
    CONV_OUT, TRANSPOSED = 11, 12  # workspace: two rows before pooling; output gradients [unit][sample]
    LIST_VALUES, LIST_PLACES, LIST_COUNTS = 13, 14, 15  # live gradients of each output channel
    BIN_VALUES, BIN_PLACES, BIN_COUNTS = 16, 17, 18  # live channels of each input pixel
    POOL_PLACES = 19  # workspace: index of each maximum, [channel][y][x][sample]


class Conv(IntEnum):
    """Columns of the row of a convolution with its pooling and ReLU."""

    INPUTS, OUTPUTS, KERNEL = range(3)
    HEIGHT, WIDTH, POOL_HEIGHT, POOL_WIDTH, CELLS = range(3, 8)  # CELLS = POOL_HEIGHT · POOL_WIDTH
    WEIGHT, BIAS, TAPS, NUM_TAPS = range(8, 12)  # places in the parameters and in the table
    OUT_STRIDE = 12  # floats of one row of a convolution before pooling
    CHANNELS_LAST_STRIDE = 13  # floats per pixel (inputs, padded)
    SAMPLE_PIXELS = 14  # pixels per sample (padded) of the channels-last input
    RUN = 15  # floats of one kernel row (padded)
    FLAT_CHANNEL, FLAT_SAMPLE = 16, 17  # strides of the flat output [sample][channel][cell]
    GROUP, LIST_CAPACITY = 18, 19  # samples whose live gradients are listed together, and the room for a list
    PLANES, NEXT_PLANES, CHANNELS_LAST, INPUT_GRADIENT = range(20, 24)  # workspace
    FLAT_GRADIENT, FLAT_PLACES = 24, 25  # workspace
    PACKED_WEIGHT, WEIGHT_GRADIENT = 26, 27  # workspace, [output][kernel row][RUN]
    BIAS_GRADIENT = 28  # workspace, [output][lane]: sums by lane, added up at the end


class Dense(IntEnum):
    """Columns of the row of a dense layer."""

    INPUTS, OUTPUTS, WEIGHT, BIAS = range(4)
    IN_STRIDE, OUT_STRIDE = 4, 5  # floats per sample (padded)
    OUTPUTS_PADDED = 6
    INPUT, OUTPUT, INPUT_GRADIENT, OUTPUT_GRADIENT = range(7, 11)  # workspace, [sample][unit]
    PACKED_FORWARD, PACKED_BACKWARD = 11, 12  # workspace: weights as [input][output], [output][input]
    WEIGHT_GRADIENT, BIAS_GRADIENT = 13, 14  # workspace


HEAD_COLUMNS, CONV_COLUMNS, DENSE_COLUMNS = 24, 32, 16


def padded(size: int, multiple: int = ALIGN) -> int:
    """Return the smallest multiple of `multiple` that is at least `size`."""
    return -(-size // multiple) * multiple


class _Allocator:
    """Allocates offsets in a flat array, each on a cache line."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, count: int) -> int:
        offset, self.size = self.size, padded(self.size + count + SLACK)
        return offset


class Tables(NamedTuple):
    """The table of a network and the numbers of float32 and int32 in the workspace of one thread."""

    table: NDArray[np.int64]  # the columns of `Head`, the rows of `Conv` and `Dense`, the taps of convolutions
    floats: int
    integers: int

    def workspace(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Return a fresh workspace of one thread, zeroed, on 64-byte boundaries (NumPy promises 16 bytes only)."""
        raw = [np.zeros(4 * size + 64, np.uint8) for size in (self.floats, self.integers)]
        floats, integers = (a[(start := -a.ctypes.data % 64) : start + len(a) - 64] for a in raw)
        return floats.view(np.float32), integers.view(np.int32)


def build(network: Network, machine: Machine) -> Tables:
    """Return the tables of `network` for the tiles of `machine`."""
    floats, integers = _Allocator(), _Allocator()
    head = np.zeros(HEAD_COLUMNS, np.int64)
    conv = np.zeros((len(network.convolutions), CONV_COLUMNS), np.int64)
    dense = np.zeros((len(network.dense_sizes), DENSE_COLUMNS), np.int64)
    taps = _convolutions(network, machine, conv, floats, integers)
    _dense_layers(network, conv, dense, floats)

    pixels = math.prod(network.input_shape)
    head[[Head.DIMENSION, Head.PIXELS, Head.CLASSES]] = network.dimension, pixels, network.classes
    head[[Head.CONVOLUTIONS, Head.DENSE_LAYERS]] = len(conv), len(dense)
    head[[Head.CONV_TABLE, Head.DENSE_TABLE]] = HEAD_COLUMNS, HEAD_COLUMNS + conv.size
    head[[Head.PARAMETERS, Head.GRADIENT]] = (floats.take(network.dimension), floats.take(network.dimension))
    if not len(conv):  # if the layout is the same, images are loaded into the buffer of the first layer
        stage = dense[0, [Dense.INPUT, Dense.IN_STRIDE]]
    elif network.input_shape[0] == 1:
        stage = conv[0, [Conv.CHANNELS_LAST, Conv.SAMPLE_PIXELS]]
    else:
        stage = np.array([floats.take(SAMPLES * padded(pixels)), padded(pixels)])
    head[[Head.STAGE, Head.STAGE_STRIDE]] = stage
    head[Head.TRANSPOSED] = floats.take(int(dense[:, Dense.OUTPUTS_PADDED].max()) * SAMPLES)
    if len(conv):
        _scratch(head, conv, floats, integers)
    conv[:, Conv.TAPS] += HEAD_COLUMNS + conv.size + dense.size
    table = np.concatenate([head, conv.ravel(), dense.ravel(), *taps])
    return Tables(table, floats.size, integers.size)


def _convolutions(
    network: Network, machine: Machine, conv: NDArray[np.int64], floats: _Allocator, integers: _Allocator
) -> list[NDArray[np.int64]]:
    """Fill the rows of the convolutions; return the taps of each."""
    taps: list[NDArray[np.int64]] = []
    channels, height, width = network.input_shape
    planes = floats.take(padded(channels, SAMPLES) * height * width * SAMPLES) if len(conv) else 0
    for index, (outputs, kernel) in enumerate(network.convolutions):
        row, last = conv[index], index == len(conv) - 1
        weight, bias = network.tensors[2 * index : 2 * index + 2]
        _, pool_height, pool_width = network.image_shapes[index]
        cells = pool_height * pool_width
        stride = channels if channels <= 4 else padded(channels, SAMPLES if channels <= SAMPLES else machine.lanes)
        run = padded(kernel * stride, machine.lanes if kernel * stride > SAMPLES else SAMPLES)
        # Samples start on a cache line, and one vector fits between them.
        pixels = padded(height * width - -SAMPLES // stride, ALIGN // math.gcd(stride, ALIGN))
        next_planes = floats.take(padded(outputs, SAMPLES) * cells * SAMPLES)

        row[[Conv.INPUTS, Conv.OUTPUTS, Conv.KERNEL]] = channels, outputs, kernel
        row[[Conv.HEIGHT, Conv.WIDTH, Conv.RUN]] = height, width, run
        row[[Conv.POOL_HEIGHT, Conv.POOL_WIDTH, Conv.CELLS]] = pool_height, pool_width, cells
        row[[Conv.WEIGHT, Conv.BIAS]] = weight.offset, bias.offset
        row[[Conv.TAPS, Conv.NUM_TAPS]] = sum(map(len, taps)), channels * kernel * kernel
        row[Conv.OUT_STRIDE] = padded((width - kernel + 1) * SAMPLES)
        row[[Conv.CHANNELS_LAST_STRIDE, Conv.SAMPLE_PIXELS]] = stride, pixels
        row[Conv.FLAT_CHANNEL] = cells if last else padded(cells)
        row[Conv.FLAT_SAMPLE] = padded(padded(outputs, SAMPLES) * row[Conv.FLAT_CHANNEL])
        row[Conv.GROUP] = min(SAMPLES, max(1, 32 // cells))
        row[Conv.LIST_CAPACITY] = padded(row[Conv.GROUP] * cells) + ALIGN
        row[[Conv.PLANES, Conv.NEXT_PLANES]] = planes, next_planes
        row[Conv.CHANNELS_LAST] = floats.take(SAMPLES * pixels * stride)
        row[Conv.INPUT_GRADIENT] = floats.take(SAMPLES * pixels * stride)
        if last:
            row[Conv.FLAT_SAMPLE] = padded(outputs * cells)
        else:
            row[Conv.FLAT_GRADIENT] = floats.take(SAMPLES * int(row[Conv.FLAT_SAMPLE]))
        row[Conv.FLAT_PLACES] = integers.take(SAMPLES * int(row[Conv.FLAT_SAMPLE]))
        row[Conv.PACKED_WEIGHT] = floats.take(outputs * kernel * run)
        row[Conv.WEIGHT_GRADIENT] = floats.take(outputs * kernel * run)
        row[Conv.BIAS_GRADIENT] = floats.take(outputs * ALIGN)

        channel, y, x = np.meshgrid(*map(np.arange, (channels, kernel, kernel)), indexing="ij")
        taps.append(((channel * height + y) * width + x).ravel().astype(np.int64) * SAMPLES)
        channels, height, width, planes = outputs, pool_height, pool_width, next_planes
    return taps


def _dense_layers(network: Network, conv: NDArray[np.int64], dense: NDArray[np.int64], floats: _Allocator) -> None:
    """Fill the rows of the dense layers; the flat output of the last convolution is the first input."""
    inputs = padded(network.dense_sizes[0][0])
    value, gradient = (floats.take(SAMPLES * inputs) for _ in range(2))
    if len(conv):
        conv[-1, Conv.FLAT_GRADIENT] = gradient
    for index, (size, outputs) in enumerate(network.dense_sizes):
        row = dense[index]
        weight, bias = network.tensors[2 * (len(conv) + index) :][:2]
        row[[Dense.INPUTS, Dense.OUTPUTS]] = size, outputs
        row[[Dense.WEIGHT, Dense.BIAS]] = weight.offset, bias.offset
        row[[Dense.IN_STRIDE, Dense.OUT_STRIDE]] = padded(size), padded(outputs)
        row[Dense.OUTPUTS_PADDED] = padded(outputs, 4)
        row[[Dense.INPUT, Dense.INPUT_GRADIENT]] = value, gradient
        value, gradient = (floats.take(SAMPLES * padded(outputs)) for _ in range(2))
        row[[Dense.OUTPUT, Dense.OUTPUT_GRADIENT]] = value, gradient
        row[Dense.PACKED_FORWARD] = floats.take(size * padded(outputs))
        row[Dense.PACKED_BACKWARD] = floats.take(outputs * padded(size))
        row[Dense.WEIGHT_GRADIENT] = floats.take(padded(outputs, 4) * padded(size))
        row[Dense.BIAS_GRADIENT] = floats.take(outputs)


def _scratch(head: NDArray[np.int64], conv: NDArray[np.int64], floats: _Allocator, integers: _Allocator) -> None:
    """Allocate the buffers that all convolutions share."""
    outputs, bins = conv[:, Conv.OUTPUTS], conv[:, Conv.GROUP] * conv[:, Conv.SAMPLE_PIXELS]
    head[Head.CONV_OUT] = floats.take(int((2 * outputs * conv[:, Conv.OUT_STRIDE]).max()))
    places = max(padded(int(row[Conv.OUTPUTS]), SAMPLES) * int(row[Conv.CELLS]) * SAMPLES for row in conv)
    head[Head.POOL_PLACES] = integers.take(places)
    entries = int((outputs * conv[:, Conv.LIST_CAPACITY]).max())
    head[[Head.LIST_VALUES, Head.LIST_PLACES]] = floats.take(entries), integers.take(entries)
    head[Head.LIST_COUNTS] = integers.take(int(outputs.max()))
    entries = int((bins * outputs).max())
    head[[Head.BIN_VALUES, Head.BIN_PLACES]] = floats.take(entries), integers.take(entries)
    head[Head.BIN_COUNTS] = integers.take(int(bins.max()))
