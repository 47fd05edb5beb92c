"""Quadratic tasks with exactly known ζ, ϱ, G and optimum, and their engine.

Device k has the loss L_k(w) = ½ (w − b_k)ᵀ A_k (w − b_k), up to a constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed import _validate
from airfed.learning.engine import Devices, Parameters, Updates, check_round
from airfed.seeds import stream

_BLOCK: Final = 256  # devices per random stream; part of the definition of the task, do not change
_WEIGHTS: Final = {1: 1.0, 4: 3.0}  # of the second and the fifth feature in the labels of ridge regression
_LABEL_NOISE: Final = 0.2
_MAX_NUMBERS: Final = 20_000_000  # in all features, or in the second moments of all devices: some hundred MB

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class QuadraticTask:
    """L = mean of the L_k over all N devices, with diagonal A_k; devices need no memory.

    b_k is uniform in the cube of half-width `spread` around (center, …, center); training starts at w = 0. The first
    diagonal entry of every A_k is ϱ and the last is ζ, so that both constants are tight. With curvature "shared" the
    others are spaced geometrically and equal for all devices, with "own" they are uniform in [ϱ, ζ] per device.

    >>> task = QuadraticTask(dimension=3, num_devices=4, smoothness=2.0, strong_convexity=0.5)
    >>> round(task.loss(task.optimum) - task.minimum, 12)
    0.0
    """

    dimension: int  # d ≥ 2
    num_devices: int
    smoothness: float  # ζ
    strong_convexity: float  # ϱ
    spread: float = 1.0
    center: float = 1.0
    curvature: str = "shared"
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.positive_integer(dimension=self.dimension, num_devices=self.num_devices)
        _validate.positive(smoothness=self.smoothness, strong_convexity=self.strong_convexity)
        _validate.non_negative(spread=self.spread)
        _validate.one_of(("shared", "own"), curvature=self.curvature)
        if not math.isfinite(self.center):
            raise ValueError(f"center must be finite, got {self.center!r}.")
        if self.dimension < 2:
            raise ValueError(f"dimension must be at least 2, got {self.dimension}: one entry is ϱ and one is ζ.")
        if self.strong_convexity > self.smoothness:
            raise ValueError(
                f"strong_convexity must be at most smoothness={self.smoothness!r}, got {self.strong_convexity!r}."
            )

    @property
    def curvature_range(self) -> tuple[float, float]:
        """ϱ and ζ."""
        return self.strong_convexity, self.smoothness

    def devices(self, indices: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Return b_k and the diagonals of A_k of the devices, each (m, d); drawn at every call."""
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

    @property
    def initial_gap(self) -> float:
        """G = L(0) − L*."""
        return self.loss(np.zeros(self.dimension)) - self.minimum

    def applied(self, function: Callable[[Floats], Floats], point: Floats, devices: NDArray[np.intp]) -> Floats:
        """Return f(A_k)(w − b_k) of the devices, (m, d), f of each eigenvalue of A_k; the identity gives ∇L_k(w)."""
        centers, curvatures = self.devices(devices)
        return function(curvatures) * (point - centers)


@dataclass(frozen=True, kw_only=True)
class RidgeTask:
    """Ridge regression: L = mean over all N devices of L_k(w) = (1/D) Σ ½ (xᵀw − y)² + (λ/2)‖w‖².

    The data are those of D. Liu, O. Simeone, "Privacy for Free" (arXiv:2006.05459): features x ~ N(0, I), labels y =
    x₂ + 3x₅ + 0.2·N(0, 1). Every device has D = ⌊n/N⌋ samples; those left over are not used.
    L_k is ½ (w − b_k)ᵀ A_k (w − b_k) and a constant, with A_k = X_kᵀX_k/D + λ and b_k = A_k⁻¹ X_kᵀy_k/D.

    >>> task = RidgeTask(num_devices=4, samples=1000)
    >>> [round(float(weight)) for weight in task.optimum]
    [0, 1, 0, 0, 3, 0, 0, 0, 0, 0]
    """

    dimension: int = 10  # d ≥ 5
    num_devices: int
    samples: int = 10_000  # n ≥ N
    l2: float = 1e-4  # λ
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.positive_integer(dimension=self.dimension, num_devices=self.num_devices, samples=self.samples)
        _validate.positive(l2=self.l2)
        if self.dimension < 5:
            raise ValueError(f"dimension must be at least 5, got {self.dimension}: labels depend on the fifth feature.")
        if self.samples < self.num_devices:
            raise ValueError(f"samples must be at least {self.num_devices}, one per device, got {self.samples}.")
        if max(self.samples, self.num_devices * self.dimension) * self.dimension > _MAX_NUMBERS:
            raise ValueError(
                f"The data do not fit into memory with samples={self.samples}, num_devices={self.num_devices} and "
                f"dimension={self.dimension}: n·d and N·d² must be at most {_MAX_NUMBERS:,}."
            )

    @cached_property
    def data(self) -> tuple[Floats, Floats]:
        """Features (N, D, d) and labels (N, D)."""
        rng = stream(self.seed, "data")
        features = rng.standard_normal((self.samples, self.dimension))
        labels = _LABEL_NOISE * rng.standard_normal(self.samples)
        for feature, weight in _WEIGHTS.items():
            labels += weight * features[:, feature]
        each = self.samples // self.num_devices
        used = each * self.num_devices
        return features[:used].reshape(self.num_devices, each, -1), labels[:used].reshape(self.num_devices, each)

    @cached_property
    def _moments(self) -> tuple[Floats, Floats]:
        """X_kᵀX_k/D, (N, d, d), and X_kᵀy_k/D, (N, d)."""
        features, labels = self.data
        turned = features.transpose(0, 2, 1)
        each = labels.shape[1]
        return turned @ features / each, (turned @ labels[..., None])[..., 0] / each

    @cached_property
    def _spectra(self) -> tuple[Floats, Floats, Floats]:
        """Eigenvalues (N, d) and eigenvectors (N, d, d) of A_k, and b_k, (N, d)."""
        gram, products = self._moments
        values, vectors = np.linalg.eigh(gram)
        values = np.maximum(values, 0.0) + self.l2  # zeros for a device with fewer than d samples
        own = (products[:, None, :] @ vectors)[:, 0] / values
        return values, vectors, (vectors @ own[..., None])[..., 0]

    @cached_property
    def hessian(self) -> Floats:
        """∇²L, (d, d)."""
        return np.asarray(self._moments[0].mean(axis=0) + self.l2 * np.eye(self.dimension))

    @cached_property
    def curvatures(self) -> Floats:
        """Smoothness of each L_k, (N,): the largest eigenvalue of A_k."""
        return np.asarray(self._spectra[0].max(axis=1))

    @cached_property
    def curvature_range(self) -> tuple[float, float]:
        """ϱ and ζ, the smallest and the largest eigenvalue of ∇²L."""
        values = np.linalg.eigvalsh(self.hessian)
        return float(values[0]), float(values[-1])

    @cached_property
    def optimum(self) -> Floats:
        """w* = (∇²L)⁻¹ × the mean of X_kᵀy_k/D."""
        return np.asarray(np.linalg.solve(self.hessian, self._moments[1].mean(axis=0)))

    @cached_property
    def minimum(self) -> float:
        """L* = L(w*)."""
        features, labels = self.data
        residual = features @ self.optimum - labels
        return float(np.mean(residual**2) + self.l2 * np.sum(self.optimum**2)) / 2

    def loss(self, parameters: NDArray[np.floating]) -> float:
        """L(w) = L* + ½ (w − w*)ᵀ ∇²L (w − w*)."""
        away = np.asarray(parameters, np.float64) - self.optimum
        return self.minimum + float(away @ self.hessian @ away) / 2

    @property
    def initial_gap(self) -> float:
        """G = L(0) − L*."""
        return self.loss(np.zeros(self.dimension)) - self.minimum

    def applied(self, function: Callable[[Floats], Floats], point: Floats, devices: NDArray[np.intp]) -> Floats:
        """See `QuadraticTask.applied`. The result of a device does not depend on the other devices."""
        values, vectors, centers = (part[devices] for part in self._spectra)
        turned = ((point - centers)[:, None, :] @ vectors)[:, 0]
        return np.asarray((vectors @ (function(values) * turned)[..., None])[..., 0])


KnownTask = QuadraticTask | RidgeTask


class QuadraticEngine:
    """Local training of a quadratic task, whose E steps have a closed form: g_k = ((1 − (1 − τA_k)^E)/τ)(w⁰ − b_k)."""

    name = "quadratic"

    def __init__(self, task: KnownTask, *, learning_rate: float, chunk: int = 4096) -> None:
        _validate.positive(learning_rate=learning_rate)
        _validate.positive_integer(chunk=chunk)
        self.dimension = task.dimension
        self._task, self._learning_rate, self._chunk = task, learning_rate, chunk

    def updates(self, parameters: Parameters, devices: Devices, *, steps: int, round_index: int) -> Updates:
        """Yield (devices, updates) chunk by chunk; see `Engine.updates`."""
        check_round(parameters, devices, dimension=self.dimension, num_devices=self._task.num_devices, steps=steps)
        start, rate = parameters.astype(np.float64), self._learning_rate
        for first in range(0, len(devices), self._chunk):
            part = devices[first : first + self._chunk]
            with np.errstate(over="ignore", invalid="ignore"):  # a diverging rate is reported by the round loop
                updates = self._task.applied(lambda a: (1 - (1 - rate * a) ** steps) / rate, start, part)
                yield part, updates.astype(np.float32)

    def evaluate(self, parameters: Parameters, images: object = None, labels: object = None) -> tuple[float, float]:
        """Return (L(w), NaN): there is no accuracy without images."""
        return self._task.loss(parameters), math.nan

    def close(self) -> None:
        """Do nothing."""
