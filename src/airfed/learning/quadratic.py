"""Tasks whose ζ, ϱ, G and optimum are known exactly, and the engine that trains them.

Device k has the loss L_k(w) = ½ (w − b_k)ᵀ A_k (w − b_k), up to a constant. In the quadratic task A_k is diagonal, its
entries between ϱ and ζ, and devices cost no memory; `airfed.learning.ridge` has another.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed import _validate
from airfed.learning._common import check_round
from airfed.seeds import stream

_BLOCK: Final = 256  # devices per random stream; part of the task's definition, never change it

Floats = NDArray[np.float64]


class KnownTask(ABC):
    """Quadratic losses L_k of N devices, their mean L, and all that is to be known of it.

    Attributes:
        dimension: d.
        num_devices: N.
    """

    dimension: int
    num_devices: int

    @property
    @abstractmethod
    def curvature_range(self) -> tuple[float, float]:
        """ϱ and ζ of L, exactly."""

    @property
    @abstractmethod
    def optimum(self) -> Floats:
        """w*."""

    @property
    @abstractmethod
    def minimum(self) -> float:
        """L* = L(w*)."""

    @abstractmethod
    def applied(self, function: Callable[[Floats], Floats], point: Floats, devices: NDArray[np.intp]) -> Floats:
        """Return f(A_k)(w − b_k) of the devices, (m, d).

        Args:
            function: f, applied to each eigenvalue of A_k; the identity gives ∇L_k(w).
            point: w, (d,).
            devices: k.
        """

    @abstractmethod
    def loss(self, parameters: NDArray[np.floating]) -> float:
        """Return L(w)."""

    @property
    def initial_parameters(self) -> NDArray[np.float32]:
        """w⁰ = 0."""
        return np.zeros(self.dimension, np.float32)

    @property
    def initial_gap(self) -> float:
        """G = L(0) − L*."""
        return self.loss(self.initial_parameters) - self.minimum


@dataclass(frozen=True, kw_only=True)
class QuadraticTask(KnownTask):
    """The task: L = mean of the L_k over all N devices.

    b_k is uniform in the cube of half-width `spread` around (center, …, center). The first diagonal entry of
    every A_k is ϱ and the last is ζ, so that both constants are tight; with curvature "shared" the entries
    between are spaced geometrically and the same for all devices, with "own" they are uniform in [ϱ, ζ] per
    device. With shared curvature local steps do not drift: the mean of the devices' steps is a step on the
    mean.

    Args:
        dimension: d ≥ 2.
        num_devices: N.
        smoothness: ζ.
        strong_convexity: ϱ.
        spread: heterogeneity of the devices.
        center: where the optimum lies, roughly; training starts at w = 0.
        curvature: "shared" or "own".
        seed: of the stream "data".

    Raises:
        ValueError: an argument is out of its range.

    >>> task = QuadraticTask(dimension=3, num_devices=4, smoothness=2.0, strong_convexity=0.5)
    >>> round(task.loss(task.optimum) - task.minimum, 12)
    0.0
    """

    dimension: int
    num_devices: int
    smoothness: float
    strong_convexity: float
    spread: float = 1.0
    center: float = 1.0
    curvature: str = "shared"
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.positive_integer(dimension=self.dimension, num_devices=self.num_devices)
        _validate.positive(smoothness=self.smoothness, strong_convexity=self.strong_convexity)
        _validate.non_negative(spread=self.spread)
        _validate.number(center=self.center)
        _validate.one_of(("shared", "own"), curvature=self.curvature)
        if not math.isfinite(self.center):
            raise ValueError(f"Expected center={self.center!r} to be finite.")
        if self.dimension < 2:
            raise ValueError(f"Expected dimension={self.dimension} >= 2: one entry is ϱ and one is ζ.")
        if self.strong_convexity > self.smoothness:
            raise ValueError(f"Expected strong_convexity={self.strong_convexity!r} <= smoothness={self.smoothness!r}.")

    @property
    def curvature_range(self) -> tuple[float, float]:
        """ϱ and ζ, which the task is made with."""
        return self.strong_convexity, self.smoothness

    def devices(self, indices: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Return b_k and the diagonals of A_k of the devices, each (m, d); made anew at every call."""
        centers = np.empty((len(indices), self.dimension))
        curvatures = np.empty_like(centers)
        blocks = np.asarray(indices) // _BLOCK
        for block in np.unique(blocks):
            rows = np.flatnonzero(blocks == block)
            b, a = self._block(int(block))
            centers[rows] = b[indices[rows] % _BLOCK]
            curvatures[rows] = a if a.ndim == 1 else a[indices[rows] % _BLOCK]
        return centers, curvatures

    @lru_cache(maxsize=1)  # noqa: B019 - one block, for callers whose chunks are smaller than it
    def _block(self, block: int) -> tuple[Floats, Floats]:
        """Return b (256, d) of the devices 256·block, …, and a, (d,) if shared or (256, d)."""
        rng = stream(self.seed, "data", block)
        b = self.center + self.spread * rng.uniform(-1, 1, (_BLOCK, self.dimension))
        low, high = self.strong_convexity, self.smoothness
        if self.curvature == "shared":
            a = np.geomspace(low, high, self.dimension)
        else:
            a = rng.uniform(low, high, (_BLOCK, self.dimension))
        a[..., 0], a[..., -1] = low, high
        return b, a

    @cached_property
    def _moments(self) -> tuple[Floats, Floats, float]:
        """Return (mean of a, mean of a·(b − c), ½ mean of Σ a·(b − c)²) over all devices, in one pass."""
        first, second, third = np.zeros(self.dimension), np.zeros(self.dimension), 0.0
        for start in range(0, self.num_devices, _BLOCK):
            b, a = self._block(start // _BLOCK)
            count = min(_BLOCK, self.num_devices - start)
            away = b[:count] - self.center  # around the center, so that no digits cancel
            curvature = np.broadcast_to(a, b.shape)[:count]
            first += curvature.sum(axis=0)
            second += (curvature * away).sum(axis=0)
            third += float((curvature * away**2).sum())
        return first / self.num_devices, second / self.num_devices, third / (2 * self.num_devices)

    @cached_property
    def optimum(self) -> Floats:
        """w* = (Σ A_k)⁻¹ Σ A_k b_k."""
        curvature, weighted, _ = self._moments
        return self.center + weighted / curvature

    @cached_property
    def minimum(self) -> float:
        """L* = L(w*)."""
        curvature, weighted, square = self._moments
        return square - float(np.sum(weighted**2 / curvature)) / 2

    def loss(self, parameters: NDArray[np.floating]) -> float:
        """L(w) = L* + ½ (w − w*)ᵀ Ā (w − w*)."""
        away = np.asarray(parameters, np.float64) - self.optimum
        return self.minimum + float(np.sum(self._moments[0] * away**2)) / 2

    def applied(self, function: Callable[[Floats], Floats], point: Floats, devices: NDArray[np.intp]) -> Floats:
        """Return f(A_k)(w − b_k) of the devices, (m, d); see `KnownTask.applied`."""
        centers, curvatures = self.devices(devices)
        return function(curvatures) * (point - centers)

    def gradient_bound(self, radius: float) -> float:
        """Return a bound on ‖∇L_k(w)‖ over all devices and all w within `radius` of w*.

        ‖A_k (w − b_k)‖ ≤ ζ (‖w − w*‖ + ‖w* − c‖ + ‖c − b_k‖), and the cube's corner is spread·√d from its
        center c.
        """
        _validate.non_negative(radius=radius)
        offset = float(np.linalg.norm(self.optimum - self.center))
        return self.smoothness * (radius + offset + self.spread * math.sqrt(self.dimension))


class QuadraticEngine:
    """Local training of a task that is known; see `airfed.learning.engine.Engine`.

    E gradient steps of a quadratic have a closed form: g_k = ((1 − (1 − τA_k)^E)/τ)(w⁰ − b_k), computed in
    float64.

    Args:
        task: the devices.
        learning_rate: τ.
        chunk: devices per yielded chunk.
    """

    name = "quadratic"

    def __init__(self, task: KnownTask, *, learning_rate: float, chunk: int = 4096) -> None:
        _validate.positive(learning_rate=learning_rate)
        _validate.positive_integer(chunk=chunk)
        self.dimension = task.dimension
        self._task, self._learning_rate, self._chunk = task, learning_rate, chunk

    def updates(
        self, parameters: NDArray[np.float32], devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """Yield (devices, updates) chunk by chunk; see `Engine.updates`."""
        check_round(parameters, devices, dimension=self.dimension, num_devices=self._task.num_devices, steps=steps)
        start = parameters.astype(np.float64)
        for first in range(0, len(devices), self._chunk):
            part = devices[first : first + self._chunk]
            with np.errstate(over="ignore", invalid="ignore"):  # a diverging rate is reported by the round loop
                updates = self._task.applied(partial(self._summed, steps), start, part)
                yield part, updates.astype(np.float32)

    def _summed(self, steps: int, curvatures: Floats) -> Floats:
        """(1 − (1 − τa)^E)/τ for each curvature a."""
        return (1 - (1 - self._learning_rate * curvatures) ** steps) / self._learning_rate

    def evaluate(
        self,
        parameters: NDArray[np.float32],
        images: NDArray[np.float32] | None = None,
        labels: NDArray[np.int64] | None = None,
    ) -> tuple[float, float]:
        """Return (L(w), NaN): there are no images, so there is no accuracy."""
        return self._task.loss(parameters), math.nan

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
