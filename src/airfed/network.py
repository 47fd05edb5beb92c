"""Built-in family of small networks, without torch: shapes, sizes, initial values.

[convolution → 2×2 max-pool → ReLU]* → [dense → ReLU]* → dense → softmax cross-entropy; a max-pool drops an odd last
row or column. `airfed.learning.models` turns a `Network` into a torch module with the same parameters in this order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airfed import _validate


class Tensor(NamedTuple):
    """A parameter tensor: `size` entries of the flat parameter vector from `offset` on."""

    name: str
    shape: tuple[int, ...]
    size: int
    offset: int
    fan_in: int


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network of the family.

    >>> Network(input_shape=(1, 28, 28), convolutions=((10, 5), (20, 5)), hidden=(50,), classes=10).dimension
    21840
    """

    input_shape: tuple[int, int, int]  # (channels, height, width) of one image
    convolutions: tuple[tuple[int, int], ...] = ()  # (output channels, kernel size); no padding, stride 1
    hidden: tuple[int, ...] = ()  # width of each hidden dense layer
    classes: int = 10
    l2: float = 0.0  # λ of the regulariser (λ/2)‖w‖² over all parameters; makes logistic regression strongly convex

    def __post_init__(self) -> None:
        channels, height, width = self.input_shape
        _validate.positive_integer(channels=channels, height=height, width=width, classes=self.classes)
        _validate.non_negative(l2=self.l2)
        for index, (outputs, kernel) in enumerate(self.convolutions):
            _validate.positive_integer(**{f"convolutions[{index}]": outputs, f"kernel[{index}]": kernel})
        _validate.positive_integer(**{f"hidden[{index}]": size for index, size in enumerate(self.hidden)})
        for index, shape in enumerate(self.image_shapes):
            if min(shape) < 1:
                raise ValueError(f"Images of {height}×{width} are too small for convolution {index} and its pooling.")

    @property
    def image_shapes(self) -> list[tuple[int, int, int]]:
        """(channels, height, width) after each convolution and its pooling."""
        shapes = []
        _, height, width = self.input_shape
        for outputs, kernel in self.convolutions:
            height, width = (height - kernel + 1) // 2, (width - kernel + 1) // 2
            shapes.append((outputs, height, width))
        return shapes

    @property
    def dense_sizes(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of each dense layer; the outputs of the last are the classes."""
        flat = math.prod(self.image_shapes[-1] if self.convolutions else self.input_shape)
        return list(pairwise([flat, *self.hidden, self.classes]))

    @property
    def tensors(self) -> list[Tensor]:
        """The parameter tensors in torch's order (weight, then bias, layer by layer) with their offsets."""
        channels = [self.input_shape[0], *(outputs for outputs, _ in self.convolutions)]
        shapes: dict[str, tuple[int, ...]] = {
            f"conv{i}": (outputs, channels[i], kernel, kernel) for i, (outputs, kernel) in enumerate(self.convolutions)
        }
        shapes |= {f"dense{i}": (outputs, inputs) for i, (inputs, outputs) in enumerate(self.dense_sizes)}
        tensors, offset = [], 0
        for layer, shape in shapes.items():
            for name, part in (("weight", shape), ("bias", shape[:1])):
                tensors.append(Tensor(f"{layer}.{name}", part, math.prod(part), offset, math.prod(shape[1:])))
                offset += tensors[-1].size
        return tensors

    @property
    def dimension(self) -> int:
        """d, the number of parameters."""
        return sum(tensor.size for tensor in self.tensors)

    def __str__(self) -> str:
        return describe(self.convolutions, self.hidden, self.l2)

    def initial_parameters(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return a flat vector, uniform in ±1/√(fan-in) as in PyTorch; logistic regression starts at zero."""
        if not self.convolutions and not self.hidden:
            return np.zeros(self.dimension, np.float32)
        parts = [rng.uniform(-1, 1, t.size) / math.sqrt(t.fan_in) for t in self.tensors]
        return np.concatenate(parts).astype(np.float32)


def describe(convolutions: Sequence[Sequence[int]], hidden: Sequence[int], l2: float) -> str:
    """Return a short name of the layers: "network 32c5-512" has a 5×5 convolution of 32 channels, then 512 units."""
    layers = [*(f"{outputs}c{kernel}" for outputs, kernel in convolutions), *map(str, hidden)]
    return f"network {'-'.join(layers) or 'linear'}" + (f", l2 = {l2:g}" if l2 else "")


_BUILTIN: dict[str, dict[str, Any]] = {
    "cnn": {"convolutions": ((10, 5), (20, 5)), "hidden": (50,)},
    "mlp": {"hidden": (64,)},
    "logistic": {"l2": 0.01},
}


def builtin(name: str, *, input_shape: tuple[int, int, int], classes: int) -> Network:
    """Return "cnn" (the paper's, d = 21840 on 28×28 digits), "mlp" or "logistic" (softmax regression)."""
    _validate.one_of(tuple(_BUILTIN), model=name)
    return Network(input_shape=input_shape, classes=classes, **_BUILTIN[name])
