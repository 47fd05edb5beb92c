"""The receiver's noise, drawn once per round, which in a deployment is the receiver's thermal noise.

`SeededNoise` repeats exactly for the same signal and round, and never for another signal: its key contains a digest of
the exact sum. Since the seed is known, its privacy is *simulated*. `SecureNoise` uses the system's entropy.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Vector = NDArray[np.float64]


class NoiseSource(Protocol):
    """Draws the noise of a round."""

    @property
    def privacy(self) -> str:
        """The kind of privacy: "simulated" or "secure"."""

    @property
    def repeatable(self) -> bool:
        """Whether the noise of a round can be drawn again."""

    def draw(self, round_index: int, dimension: int, noise_std: float, *, transmission: str = "") -> Vector:
        """Return d values of N(0, noise_std²), 2Ad with A antennas; `transmission` names this one (`Recorder.send`)."""
        ...


@dataclass(frozen=True)
class SeededNoise:
    """Noise keyed by (`noise_key`, round, σ, transmission)."""

    key: bytes
    privacy: ClassVar[str] = "simulated"
    repeatable: ClassVar[bool] = True

    def draw(self, round_index: int, dimension: int, noise_std: float, *, transmission: str = "") -> Vector:
        """Return the noise of the round; the same for the same key, round, σ and transmission."""
        named = f"{float(noise_std).hex()} {transmission}"  # two multiples of one noise would reveal the signal
        digest = hashlib.sha256(self.key + round_index.to_bytes(8, "little") + named.encode()).digest()
        rng = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
        return rng.normal(0.0, noise_std, dimension)


@dataclass(frozen=True)
class SecureNoise:
    """Noise from the operating system's entropy; it is not stored and cannot be repeated."""

    privacy: ClassVar[str] = "secure"
    repeatable: ClassVar[bool] = False

    def draw(self, round_index: int, dimension: int, noise_std: float, *, transmission: str = "") -> Vector:
        """Return fresh noise."""
        # 52 bits: adding ½ is exact and the result strictly inside (0, 1); with 53 bits the largest would round to 1.
        bits = np.frombuffer(os.urandom(8 * dimension), dtype=np.uint64) >> np.uint64(12)
        uniform = (bits.astype(np.float64) + 0.5) * 2.0**-52
        normal: Vector = ndtri(uniform)
        return noise_std * normal


def noise_key(signal: Mapping[str, str]) -> bytes:
    """Return the key of a run's noise, from digests by name: if any of them changes, all noise changes."""
    content = json.dumps(dict(signal), sort_keys=True)
    return hashlib.sha256(f"airfed noise 3\n{content}".encode()).digest()
