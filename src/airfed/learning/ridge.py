"""Ridge regression on data drawn from the seed: convex, with ζ, ϱ, G and the optimum known exactly.

Its data are those of D. Liu, O. Simeone, "Privacy for Free" (arXiv:2006.05459).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed import _validate
from airfed.learning.quadratic import Floats, KnownTask
from airfed.seeds import stream

_WEIGHTS: Final = {1: 1.0, 4: 3.0}  # of the second and the fifth feature in the label
_LABEL_NOISE: Final = 0.2
_MOST_NUMBERS: Final = 20_000_000  # of all features, or of all devices' second moments: some hundred MB


@dataclass(frozen=True, kw_only=True)
class RidgeTask(KnownTask):
    """The task: L = mean over all N devices of L_k(w) = (1/D) Σ ½ (xᵀw − y)² + (λ/2)‖w‖².

    Features are x ~ N(0, I), labels y = x₂ + 3x₅ + 0.2·N(0, 1). Every device has D = ⌊n/N⌋ samples; those left over are
    not used. L_k is ½ (w − b_k)ᵀ A_k (w − b_k) and a constant, with A_k = X_kᵀX_k/D + λ and b_k = A_k⁻¹ X_kᵀy_k/D.

    Args:
        dimension: d ≥ 5.
        num_devices: N.
        samples: n ≥ N.
        l2: λ.
        seed: of the stream "data".

    Raises:
        ValueError: an argument is out of its range.

    >>> task = RidgeTask(num_devices=4, samples=1000)
    >>> [round(float(weight)) for weight in task.optimum]
    [0, 1, 0, 0, 3, 0, 0, 0, 0, 0]
    """

    dimension: int = 10
    num_devices: int
    samples: int = 10_000
    l2: float = 1e-4
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.positive_integer(dimension=self.dimension, num_devices=self.num_devices, samples=self.samples)
        _validate.positive(l2=self.l2)
        if self.dimension < 5:
            raise ValueError(f"Expected dimension={self.dimension} >= 5: the fifth feature is in the labels.")
        if self.samples < self.num_devices:
            raise ValueError(f"Expected samples={self.samples} >= {self.num_devices}, one for each device.")
        if max(self.samples, self.num_devices * self.dimension) * self.dimension > _MOST_NUMBERS:
            raise ValueError(
                f"Expected samples={self.samples}, num_devices={self.num_devices} and dimension={self.dimension} to "
                f"fit into memory: n·d and N·d² of at most {_MOST_NUMBERS:,}."
            )

    @cached_property
    def data(self) -> tuple[Floats, Floats]:
        """Features (N, D, d) and labels (N, D)."""
        rng = stream(self.seed, "data")
        features = rng.standard_normal((self.samples, self.dimension))
        labels = _LABEL_NOISE * rng.standard_normal(self.samples)
        for place, weight in _WEIGHTS.items():
            labels += weight * features[:, place]
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
        values = np.maximum(values, 0.0) + self.l2  # a device with fewer than d samples has zeros
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

    def applied(self, function: Callable[[Floats], Floats], point: Floats, devices: NDArray[np.intp]) -> Floats:
        """Return f(A_k)(w − b_k) of the devices, (m, d); see `KnownTask.applied`.

        Products are those of one device at a time, so that it does not matter who else is asked.
        """
        values, vectors, centers = (part[devices] for part in self._spectra)
        turned = ((point - centers)[:, None, :] @ vectors)[:, 0]
        return np.asarray((vectors @ (function(values) * turned)[..., None])[..., 0])
