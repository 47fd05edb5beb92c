"""Secure aggregation with the distributed discrete Gaussian mechanism. `docs/baselines.md` has the source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from airfed.baselines.digital import DigitalMethod, levelled
from airfed.planning.limits import Binding, Devices, Floats
from airfed.planning.method import Signal, received
from airfed.problem import InfeasibleError, Problem

_LOADED: Final = 6.0  # standard deviations of the sum within the range of the modulus
_ROUNDING: Final = 1 / (4 * (1 - math.exp(-0.5)))  # largest variance of a rounding within the norm, over γ²
_LATTICE: Final = 1 / 23  # excess of μ on a lattice over that of a continuous Gaussian, relative, over (γ/σ)²
_FINEST: Final = 2.0  # least noise of one device over γ: sums of discrete Gaussians are Gaussian up to e^(-37)


@final
@dataclass(frozen=True, kw_only=True)
class SecureAggregation(DigitalMethod):
    """Secure aggregation: the server sees only the sum, modulo 2^b, to which each device adds its share of the noise.

    Device k sends θg_k/ϖ, rotated and rounded at random to multiples of γ, plus discrete Gaussian noise of variance
    σ²/m, in b bits per entry (Kairouz, Liu, Steinke 2021). The sum has the noise of DP-FedAvg without a trusted server.
    The modulus covers ±6 standard deviations of an entry: γ·2^b = 12√(m²θ²/d + σ²), where θ is so small that
    γ ≤ σ/(2√m): sums of coarser discrete noise are not Gaussian, and no ε would hold. A device repeats the rounding
    until the norm is at most √(θ² + γθ + γ²(d/4 + √d/2)), with which privacy counts; it succeeds with probability
    1 − e^(−1/2) or more, so that rounding adds a variance of at most 0.64γ² per device. Uploads are digital and take
    the time of `Digital`; the exchange of keys is not counted.

    Noise on a lattice hides slightly less than a continuous Gaussian. Let z_n = Φ⁻¹(P(X < nγ)) for discrete Gaussian
    noise X of variance σ². One entry that changes by γ is (z_{n+1} − z_n)-Gaussian-DP at the worst n, which is n = 0.
    This is below (1 + γ²/(23σ²))·γ/σ for σ ≥ 2γ, and μ² adds up over the entries, so that privacy counts this factor.

    A removed device also removes its noise: replace-one adjacency only.
    """

    name: ClassVar[str] = "secure_aggregation"
    title: ClassVar[str] = "Digital uploads under secure aggregation; the devices' noise adds up to the server's."
    departure: ClassVar[str] = "a removed device also removes its noise"
    bits: int = 20  # b

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ under privacy; power only determines the air time."""
        cap = super().limits(problem, devices, rounds)["privacy"]
        own_noise = problem.link.noise_std / math.sqrt(devices.size)

        def private(theta: float) -> bool:
            noisy = _FINEST * self._step(problem, devices.size, theta) <= own_noise
            return noisy and self._observed(problem, devices.size, theta) <= cap

        low, high = 0.0, cap
        for _ in range(64):
            middle = (low + high) / 2
            low, high = (middle, high) if private(middle) else (low, middle)
        if not low > 0:
            raise InfeasibleError(
                f"No plan fits: bits={self.bits} round too coarsely for {devices.size} devices; use more bits."
            )
        return {"privacy": low}

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        sigma, theta, size = problem.link.noise_std, float(np.max(amplitude)), amplitude.size
        noise_std = math.hypot(sigma, math.sqrt(size * _ROUNDING) * self._step(problem, size, theta))
        hidden = sigma * theta / self._observed(problem, size, theta)
        power = levelled(peak_power, problem.budget.total_power / rounds)
        return received(problem, amplitude, constant_power=power, noise_std=noise_std, privacy_noise_std=hidden)

    def _step(self, problem: Problem, size: int, theta: float) -> float:
        """Return γ."""
        entry = math.hypot(size * theta / math.sqrt(problem.learning.dimension), problem.link.noise_std)
        return 2 * _LOADED * entry / 2.0**self.bits

    def _observed(self, problem: Problem, size: int, theta: float) -> float:
        """Return the largest norm of a rounded update, times the factor for noise on a lattice."""
        step, dimension = self._step(problem, size, theta), problem.learning.dimension
        norm = math.sqrt(theta**2 + step * theta + step**2 * (dimension / 4 + math.sqrt(dimension) / 2))
        return norm * (1 + _LATTICE * (step / problem.link.noise_std) ** 2)
