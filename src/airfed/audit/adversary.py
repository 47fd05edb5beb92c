"""Updates that an adversary would send to find a hole in clipping.

Each family is a function (rng, tensor sizes, ϖ, local steps) -> flat update, aimed at one mistake in the clip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed.audit.statistics import norm

Update = NDArray[Any]
Shape = tuple[int, ...]
Family = Callable[[np.random.Generator, Shape, float, int], Update]

SHAPES: Final[tuple[Shape, ...]] = (
    (1,),
    (7,),
    (128, 8, 24, 3),
    (5,) * 20,
    (250, 10, 5000, 20, 16000, 50, 500, 10),  # the paper's network, d = 21840
)
STEPS: Final = (1, 2, 5, 20)


def direction(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """Return a random unit vector."""
    vector = rng.normal(size=size)
    return np.asarray(vector / norm(vector))


def _huge(rng: np.random.Generator, shape: Shape, clip: float, steps: int) -> Update:
    return (1e3 * steps * clip * direction(rng, sum(shape))).astype(np.float32)


def _boundary(rng: np.random.Generator, shape: Shape, clip: float, steps: int) -> Update:
    """Within rounding of the clip norm, on either side."""
    return (clip * (1 + rng.uniform(-1e-7, 1e-7)) * direction(rng, sum(shape))).astype(np.float32)


def _above(rng: np.random.Generator, shape: Shape, clip: float, steps: int) -> Update:
    """Hardly too long: a clip in float32 overshoots here."""
    return (clip * (1 + 2.0**-20) * direction(rng, sum(shape))).astype(np.float32)


def _layers(rng: np.random.Generator, shape: Shape, clip: float, steps: int) -> Update:
    """Every tensor at the clip norm: clipping per layer lets √L times too much through."""
    return np.concatenate([clip * direction(rng, size) for size in shape])


def _accumulated(rng: np.random.Generator, shape: Shape, clip: float, steps: int) -> Update:
    """Every local step at the clip norm, all in one direction: clipping per step lets E times too much through."""
    return steps * clip * direction(rng, sum(shape))


def _spike(rng: np.random.Generator, shape: Shape, clip: float, steps: int) -> Update:
    vector = np.zeros(sum(shape))
    vector[rng.integers(vector.size)] = 1e30
    return vector


def _constant(rng: np.random.Generator, shape: Shape, clip: float, steps: int) -> Update:
    """Every coordinate alike: the squares of the last size overflow in float32."""
    return np.full(sum(shape), rng.choice((0.5 * clip, clip, 3e38)), np.float32)


def _denormal(rng: np.random.Generator, shape: Shape, clip: float, steps: int) -> Update:
    vector = np.full(sum(shape), 5e-324)
    vector[0] = 2 * clip
    return vector


def _nan(rng: np.random.Generator, shape: Shape, clip: float, steps: int) -> Update:
    """min(1, ϖ/NaN) is 1 in some languages, NaN in others: neither is a clip."""
    vector = 1e3 * clip * direction(rng, sum(shape))
    vector[rng.integers(vector.size)] = np.nan
    return vector


def _inf(rng: np.random.Generator, shape: Shape, clip: float, steps: int) -> Update:
    """ϖ/Inf·Inf is NaN."""
    vector = (clip * direction(rng, sum(shape))).astype(np.float32)
    vector[rng.integers(vector.size)] = np.inf
    return vector


FAMILIES: Final[tuple[Family, ...]] = (
    _huge,
    _boundary,
    _above,
    _layers,
    _accumulated,
    _spike,
    _constant,
    _denormal,
    _nan,
    _inf,
)
