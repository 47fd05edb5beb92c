"""The family of small networks that airfed knows by heart, as numbers only: shapes, sizes, initial values.

[convolution → 2×2 max-pool → ReLU]* → [dense → ReLU]* → dense → softmax cross-entropy.

No torch here: the planner needs the dimension d, and the fused engine needs the shapes. `airfed.learning.models`
turns a `Network` into a torch module with the same parameters in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from airfed import _validate


class Tensor(NamedTuple):
    """One parameter tensor inside the flat parameter vector."""

    name: str
    shape: tuple[int, ...]
    offset: int
    fan_in: int

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network of the family.

    Args:
        input_shape: (channels, height, width) of one image.
        convolutions: (output channels, kernel size) of each convolution (no padding, stride 1); each is followed
            by a 2×2 max-pool (which drops an odd last row or column) and a ReLU.
        hidden: width of each hidden dense layer, each followed by a ReLU.
        classes: number of outputs of the last dense layer.
        l2: λ of the regulariser (λ/2)‖w‖² over all parameters; makes logistic regression strongly convex.

    Raises:
        ValueError: an image becomes empty on its way through the convolutions, or a size is not positive.

    >>> Network(input_shape=(1, 28, 28), convolutions=((10, 5), (20, 5)), hidden=(50,), classes=10).dimension
    21840
    """

    input_shape: tuple[int, int, int]
    convolutions: tuple[tuple[int, int], ...] = ()
    hidden: tuple[int, ...] = ()
    classes: int = 10
    l2: float = 0.0

    def __post_init__(self) -> None:
        channels, height, width = self.input_shape
        _validate.positive_integer(channels=channels, height=height, width=width, classes=self.classes)
        _validate.non_negative(l2=self.l2)
        for index, (outputs, kernel) in enumerate(self.convolutions):
            _validate.positive_integer(**{f"convolutions[{index}]": outputs, f"kernel[{index}]": kernel})
        for index, size in enumerate(self.hidden):
            _validate.positive_integer(**{f"hidden[{index}]": size})
        for index, (_, height, width) in enumerate(self.image_shapes):
            if height < 1 or width < 1:
                raise ValueError(
                    f"Expected images that survive convolution {index} and its pooling: "
                    f"{self.input_shape[1]}×{self.input_shape[2]} is too small."
                )

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
        """(inputs, outputs) of each dense layer, the last one gives the classes."""
        flat = math.prod(self.image_shapes[-1] if self.convolutions else self.input_shape)
        widths = [flat, *self.hidden, self.classes]
        return list(pairwise(widths))

    @property
    def tensors(self) -> list[Tensor]:
        """The parameter tensors in torch's order (weight, then bias, layer by layer) with their offsets."""
        shapes: list[tuple[str, tuple[int, ...], int]] = []
        channels = self.input_shape[0]
        for index, (outputs, kernel) in enumerate(self.convolutions):
            fan_in = channels * kernel * kernel
            shapes.append((f"conv{index}.weight", (outputs, channels, kernel, kernel), fan_in))
            shapes.append((f"conv{index}.bias", (outputs,), fan_in))
            channels = outputs
        for index, (inputs, outputs) in enumerate(self.dense_sizes):
            shapes.append((f"dense{index}.weight", (outputs, inputs), inputs))
            shapes.append((f"dense{index}.bias", (outputs,), inputs))
        tensors, offset = [], 0
        for name, shape, fan_in in shapes:
            tensors.append(Tensor(name, shape, offset, fan_in))
            offset += math.prod(shape)
        return tensors

    @property
    def dimension(self) -> int:
        """d, the number of parameters."""
        return sum(tensor.size for tensor in self.tensors)

    def __str__(self) -> str:
        """Return the layers in a few words.

        >>> print(Network(input_shape=(1, 28, 28), convolutions=((10, 5), (20, 5)), hidden=(50,)))
        network 10c5-20c5-50
        """
        return describe(self.convolutions, self.hidden, self.l2)

    def initial_parameters(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return a fresh flat parameter vector, uniform in ±1/√(fan-in) (PyTorch's default law).

        Logistic regression (no hidden layer) starts at zero, where its loss is ln(classes).
        """
        if not self.convolutions and not self.hidden:
            return np.zeros(self.dimension, np.float32)
        parts = [rng.uniform(-1, 1, t.size) / math.sqrt(t.fan_in) for t in self.tensors]
        return np.concatenate(parts).astype(np.float32)


def describe(convolutions: Sequence[Sequence[int]], hidden: Sequence[int], l2: float) -> str:
    """Return layers in a few words: "network 32c5-64c5-512" has 5×5 convolutions of 32 and 64 channels, then 512 units.

    >>> describe([], [], 0.01)
    'network linear, l2 = 0.01'
    """
    layers = [*(f"{outputs}c{kernel}" for outputs, kernel in convolutions), *map(str, hidden)]
    return f"network {'-'.join(layers) or 'linear'}" + (f", l2 = {l2:g}" if l2 else "")


def builtin(name: str, *, input_shape: tuple[int, int, int], classes: int) -> Network:
    """Return the built-in network `name` ("cnn", "mlp" or "logistic") for images of the given shape.

    `cnn` is the paper's (d = 21840 on 28×28 digits), `mlp` has one hidden layer of 64 units, `logistic` is softmax
    regression with l2 = 0.01.

    Raises:
        ValueError: there is no such network.
    """
    _validate.one_of(("cnn", "mlp", "logistic"), model=name)
    if name == "cnn":
        return Network(input_shape=input_shape, convolutions=((10, 5), (20, 5)), hidden=(50,), classes=classes)
    if name == "mlp":
        return Network(input_shape=input_shape, hidden=(64,), classes=classes)
    return Network(input_shape=input_shape, classes=classes, l2=0.01)
