"""Uniform linear array: channel vectors h_k ∈ C^A from large-scale gains and small-scale fading.

Every antenna has its own random streams and covariances have triangular factors, so the first antennas of a longer
array have the channel of a shorter array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from airfed import antennas, seeds
from airfed.antennas import Complexes, Floats

Generators = tuple[np.random.Generator, ...]

_LOADING: Final = 1e-9  # diagonal loading of a covariance, which makes it positive definite
_LIMIT: Final = 6.5  # of the integral over angles, in standard deviations
_MARGIN: Final = 7.0  # above the largest phase rate, in radians per standard deviation: an error of e^(−7²/2)
_BLOCK: Final = 2**20  # phases computed at once


@dataclass(frozen=True, kw_only=True, eq=False)
class Array:
    """Uniform linear array of A antennas, with the angle of arrival of each device."""

    number: int
    wave: Complexes  # steering vectors exp(j2π·spacing·a·sin φ_k), (N, A)
    factor: Complexes | None = (
        None  # L with L·Lᴴ = R_k, local scattering around φ_k, (N, A, A); None: independent antennas
    )

    @classmethod
    def draw(
        cls, *, number: int, num_devices: int, sector: float, spacing: float, spread: float | None, seed: int
    ) -> Array:
        """Draw angles of arrival from the seed, uniformly over the sector [degrees], and return the array.

        `spacing` is in wavelengths; `spread` is the angle spread [degrees], None for independent antennas.
        """
        angle = np.radians(seeds.stream(seed, "array", 0).uniform(-sector / 2, sector / 2, num_devices))
        wave = np.exp(2j * np.pi * spacing * np.arange(number) * np.sin(angle)[:, None])
        if spread is None:
            return cls(number=number, wave=wave)
        matrix = covariance(angle, number=number, spacing=spacing, spread=np.radians(spread))
        full = (1 - _LOADING) * matrix + _LOADING * np.eye(number)
        return cls(number=number, wave=wave, factor=np.asarray(np.linalg.cholesky(full), dtype=np.complex128))

    def white(self, shape: tuple[int, ...], rngs: Generators) -> Complexes:
        """Return independent CN(0, 1) entries, (*shape, A), with one generator per antenna."""
        *draws, num_devices = shape
        entries = np.empty((*shape, self.number), dtype=np.complex128)
        for antenna, rng in enumerate(rngs):
            entries[..., antenna] = rng.standard_normal((*draws, 2 * num_devices)).view(np.complex128)
        entries *= np.sqrt(0.5)
        return entries

    def small_scale(self, white: Complexes, paths: tuple[float, float]) -> Complexes:
        """Return small-scale vectors, a direct path (plane wave) plus scattered paths L·w, with E|·|² = 1 per entry."""
        direct, spread = paths
        scattered = white if self.factor is None else np.einsum("kab,...kb->...ka", self.factor, white)
        return np.asarray(direct * self.wave + np.sqrt(2.0) * spread * scattered)

    def directions(self, white: Complexes) -> Complexes:
        """Return vectors of unit-modulus entries: plane waves with an angle spread, else independent phases."""
        return np.asarray(white / np.abs(white)) if self.factor is None else self.wave


def generators(number: int, seed: int, name: str, *key: int) -> Generators:
    """Return independent generators, such as one per antenna."""
    return tuple(seeds.stream(seed, name, *key, part) for part in range(number))


def covariance(angle: Floats, *, number: int, spacing: float, spread: float) -> Complexes:
    """Return R of local scattering, (N, A, A): R_mn = E[exp(j2π·spacing·(m − n)·sin(φ + δ))], δ ~ N(0, spread²).

    The trapezoidal rule over ±6.5 standard deviations, with enough points for the fastest phase, has an error of at
    most 1e-9: for a Gaussian times a smooth function the error also falls as a Gaussian.
    """
    turns = 2 * np.pi * spacing * (number - 1)
    fastest = spread * (turns + 6 * np.cbrt(turns) + 12)  # Bessel functions of higher order are negligible
    points = int(np.ceil(2 * _LIMIT * (fastest + _MARGIN) / (2 * np.pi))) + 1
    node = np.linspace(-_LIMIT, _LIMIT, points)
    weight = np.exp(-0.5 * np.square(node))
    weight /= weight.sum()
    column = np.empty((angle.size, number), dtype=np.complex128)  # R is a Toeplitz matrix
    for start in range(0, angle.size, block := max(1, _BLOCK // points)):
        step = np.exp(2j * np.pi * spacing * np.sin(angle[start : start + block, None] + spread * node))
        phase = np.ones_like(step)
        for lag in range(number):
            column[start : start + block, lag] = np.einsum("kp,p->k", phase, weight)
            phase *= step
    lags = np.subtract.outer(np.arange(number), np.arange(number))
    return np.where(lags >= 0, column[:, np.abs(lags)], np.conj(column[:, np.abs(lags)]))


def scale_vectors(vectors: Complexes, target: Floats) -> Complexes:
    """Return the vectors scaled to ‖h_k‖/√A = target, (..., N); a zero vector gets equal entries."""
    present = rms(vectors)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(present == target, 1.0, target / present)[..., None]
        return np.where((present == 0)[..., None], target[..., None], vectors * factor)


def rms(vectors: Complexes) -> Floats:
    """Return ‖h_k‖/√A, the root mean square gain of a device over the antennas, (..., N)."""
    return np.asarray(antennas.norms(vectors) / np.sqrt(vectors.shape[-1]))
