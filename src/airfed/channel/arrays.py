"""Several antennas in a line: the vectors h_k ∈ C^A that a fleet's large-scale gains and small-scale fading make.

Every antenna has streams of its own, and covariances are factored into triangles, so that the first antennas of a
longer array receive what a shorter one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from airfed import antennas, seeds
from airfed.antennas import Complexes, Floats

Generators = tuple[np.random.Generator, ...]

_FULL: Final = 1e-9  # share of white noise in a covariance, so that it can be factored
_REACH: Final = 6.5  # standard deviations of the angles that are summed over
_EXACT: Final = 7.0  # beyond the fastest phase, in radians a standard deviation: an error of e^(−7²/2)
_AT_ONCE: Final = 2**20  # phases


@dataclass(frozen=True, kw_only=True, eq=False)
class Array:
    """A receiver's A antennas in a line, equally far apart, and where each device's signal arrives from."""

    number: int
    wave: Complexes  # plane wave from each device's angle φ_k, entry a being exp(j2π·spacing·a·sin φ_k), (N, A)
    factor: Complexes | None = None  # L·Lᴴ = R_k, scattered around that angle, (N, A, A); None: independent antennas

    @classmethod
    def drawn(
        cls, *, number: int, num_devices: int, sector: float, spacing: float, spread: float | None, seed: int
    ) -> Array:
        """Return the array with the devices' angles of arrival drawn from the seed, evenly over the sector [degrees].

        `spacing` is in wavelengths; `spread` is the standard deviation of the angles around the device's [degrees],
        None for independent antennas.
        """
        angle = np.radians(seeds.stream(seed, "array", 0).uniform(-sector / 2, sector / 2, num_devices))
        wave = np.exp(2j * np.pi * spacing * np.arange(number) * np.sin(angle)[:, None])
        if spread is None:
            return cls(number=number, wave=wave)
        matrix = covariance(angle, number=number, spacing=spacing, spread=np.radians(spread))
        full = (1 - _FULL) * matrix + _FULL * np.eye(number)
        return cls(number=number, wave=wave, factor=np.asarray(np.linalg.cholesky(full), dtype=np.complex128))

    def white(self, shape: tuple[int, ...], rngs: Generators) -> Complexes:
        """Return independent CN(0, 1) entries, (*shape, A), each antenna's from its own generator."""
        *draws, num_devices = shape
        found = np.empty((*shape, self.number), dtype=np.complex128)
        for place, rng in enumerate(rngs):
            found[..., place] = rng.standard_normal((*draws, 2 * num_devices)).view(np.complex128)
        found *= np.sqrt(0.5)
        return found

    def scattered(self, white: Complexes, paths: tuple[float, float]) -> Complexes:
        """Return the small-scale vectors of a direct path (a plane wave) and scattered ones L·w, E|·|² = 1 each."""
        direct, spread = paths
        around = white if self.factor is None else np.einsum("kab,...kb->...ka", self.factor, white)
        return np.asarray(direct * self.wave + np.sqrt(2.0) * spread * around)

    def directions(self, white: Complexes) -> Complexes:
        """Return vectors of modulus 1 at every antenna: plane waves where angles spread, else independent phases."""
        return np.asarray(white / np.abs(white)) if self.factor is None else self.wave


def generators(number: int, seed: int, name: str, *key: int) -> Generators:
    """Return one generator per antenna."""
    return tuple(seeds.stream(seed, name, *key, place) for place in range(number))


def covariance(angle: Floats, *, number: int, spacing: float, spread: float) -> Complexes:
    """Return R of local scattering, (N, A, A): R_mn = E[exp(j2π·spacing·(m − n)·sin(φ + δ))], δ ~ N(0, spread²).

    By the trapezoidal rule over ±6.5 standard deviations, with as many points as the fastest phase needs: for a
    Gaussian times a smooth function its error falls as a Gaussian, too, here to 1e-9 or less.
    """
    turns = 2 * np.pi * spacing * (number - 1)
    fastest = spread * (turns + 6 * np.cbrt(turns) + 12)  # Bessel functions of higher orders than that are next to 0
    points = int(np.ceil(2 * _REACH * (fastest + _EXACT) / (2 * np.pi))) + 1
    place = np.linspace(-_REACH, _REACH, points)
    weight = np.exp(-0.5 * np.square(place))
    weight /= weight.sum()
    column = np.empty((angle.size, number), dtype=np.complex128)  # R is the same along diagonals
    for start in range(0, angle.size, block := max(1, _AT_ONCE // points)):
        step = np.exp(2j * np.pi * spacing * np.sin(angle[start : start + block, None] + spread * place))
        phase = np.ones_like(step)
        for lag in range(number):
            column[start : start + block, lag] = np.einsum("kp,p->k", phase, weight)
            phase *= step
    lags = np.subtract.outer(np.arange(number), np.arange(number))
    return np.where(lags >= 0, column[:, np.abs(lags)], np.conj(column[:, np.abs(lags)]))


def raise_vectors(vectors: Complexes, least: Floats) -> Complexes:
    """Return the vectors at given ‖h_k‖/√A, (..., N); one that is 0 gets equal entries."""
    present = rms(vectors)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(present == least, 1.0, least / present)[..., None]
        return np.where((present == 0)[..., None], least[..., None], vectors * factor)


def rms(vectors: Complexes) -> Floats:
    """Return ‖h_k‖/√A, the root mean square of a device's gain over the antennas, (..., N)."""
    return np.asarray(antennas.strengths(vectors) / np.sqrt(vectors.shape[-1]))
