"""Artificial noise: devices transmit noise with their remaining power. `docs/baselines.md` has the source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from airfed.baselines.digital import levelled
from airfed.planning.limits import Binding, Devices, Floats, alignment_limits
from airfed.planning.method import Method, Signal, over_the_air
from airfed.problem import InfeasibleError, Problem


@final
@dataclass(frozen=True, kw_only=True)
class ArtificialNoise(Method):
    """Artificial noise (Seif, Tandon, Li): aligned devices spend their remaining power on Gaussian noise.

    x_k = √(α_k Q_k) g_k/ϖ + √(β_k Q_k) n_k, α_k + β_k = 1, |h_k|√(α_k Q_k) = θ, E‖n_k‖² = 1. Q_k = min(P_k, max(p,
    θ²/|h_k|²)) with the p that spends P_tot/I in a round. The received noise has the variance s² = σ² + Σ|h_k|²β_k
    Q_k/d, and μ = 2θ/s. The noise of all devices is simulated at the receiver, where it has the same distribution;
    its power counts in expectation.

    s² includes the noise of device k, which vanishes with the device: replace-one adjacency only.
    """

    name: ClassVar[str] = "artificial_noise"
    title: ClassVar[str] = "Devices are aligned and add noise with their remaining power."

    def require_claim(self, problem: Problem) -> None:
        """Raise for add-remove adjacency and for the adversary "all_antennas"; see `Method.require_claim`."""
        if problem.all_antennas_seen:
            raise InfeasibleError(
                "No plan fits: artificial noise arrives from the directions of its devices, and gives no privacy "
                'against an adversary who observes all antennas (adversary = "all_antennas").'
            )
        if problem.budget.adjacency == "add_remove":
            raise InfeasibleError(
                "No plan fits: with artificial noise a removed device also removes its noise, so that no ε holds for "
                'add-remove adjacency (use adjacency = "replace_one").'
            )

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        needed = np.square(amplitude / gain)
        rest = np.maximum(levelled(peak_power, problem.budget.total_power / rounds, needed) - needed, 0.0)
        added = float(np.sum(np.square(gain) * rest)) / problem.learning.dimension
        sigmas = {"noise_std": problem.link.noise_std, "privacy_noise_std": problem.link.privacy_noise_std}
        noise = {name: math.sqrt(sigma**2 + added) for name, sigma in sigmas.items()}
        return over_the_air(problem, gain=gain, amplitude=amplitude, constant_power=rest, **noise)

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ under each limit, with the noise of the remaining power."""
        if problem.link.csi_error and not problem.link.assume_perfect_csi:
            raise InfeasibleError(
                "No plan fits: artificial noise needs perfect CSI, as its received power must be known (csi_error)."
            )
        self.require_claim(problem)
        found = alignment_limits(problem, devices, rounds)
        gain, peak = problem.fleet.gain[devices], problem.fleet.peak_power[devices]
        alone, most = found["privacy"], min(found["peak_power"], found["total_power"])
        if alone < most:  # more signal leaves less power for noise: find the θ that balances them

            def excess(theta: float) -> float:
                amplitude = np.full(gain.shape, theta)
                signal = self.signal(problem, gain=gain, peak_power=peak, amplitude=amplitude, rounds=rounds)
                return theta - alone * signal.privacy_noise_std / problem.link.privacy_noise_std

            if excess(most) <= 0:
                found["privacy"] = most
            else:
                from scipy.optimize import brentq  # lazy import, as in beamforming.py

                root = float(brentq(excess, alone, most, xtol=1e-14 * alone, rtol=1e-14))
                found["privacy"] = root * (1 - 1e-12)
        return found
