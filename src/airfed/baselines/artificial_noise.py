"""Artificial noise: the power left is transmitted as noise. `docs/rivals.md` has the source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from scipy.optimize import brentq

from airfed.baselines.digital import levelled
from airfed.planning.limits import Binding, Devices, Floats, alignment_limits
from airfed.planning.method import Method, Signal, over_the_air
from airfed.problem import InfeasibleError, Problem


@final
@dataclass(frozen=True, kw_only=True)
class ArtificialNoise(Method):
    """Artificial noise (Seif, Tandon, Li): aligned devices spend what power the update leaves on Gaussian noise.

    x_k = √(α_k Q_k) g_k/ϖ + √(β_k Q_k) n_k, α_k + β_k = 1, |h_k|√(α_k Q_k) = θ, E‖n_k‖² = 1. Q_k = min(P_k, max(p,
    θ²/|h_k|²)) with the p that spends P_tot/I in a round. The received noise has the variance s² = σ² + Σ|h_k|²β_k
    Q_k/d, and μ = 2θ/s. The noise of all devices is drawn at the receiver, where it has the same distribution; its
    power counts as expected.

    s² contains device k's own noise, too, which it takes with it when it is removed: replace-one adjacency only.
    """

    name: ClassVar[str] = "artificial_noise"
    title: ClassVar[str] = "Devices are aligned, and add noise with the power that is left."

    def require_claim(self, problem: Problem) -> None:
        """Raise with add-remove adjacency, or where every antenna is seen; see `Method.require_claim`."""
        if problem.seen_by_all:
            raise InfeasibleError(
                "No plan fits: artificial noise comes from its devices' directions, and hides nobody from a server "
                'that keeps every antenna\'s signal (trust = "radio").'
            )
        if problem.budget.relation == "add_remove":
            raise InfeasibleError(
                "No plan fits: with artificial noise a device that is removed takes its own noise with it, so that no "
                'ε follows for add-remove adjacency (use relation = "replace").'
            )

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        needed = np.square(amplitude / gain)
        rest = np.maximum(levelled(peak_power, problem.budget.total_power / rounds, needed) - needed, 0.0)
        added = float(np.sum(np.square(gain) * rest)) / problem.learning.dimension
        noise_std = math.sqrt(problem.link.noise_std**2 + added)
        return over_the_air(
            problem, gain=gain, amplitude=amplitude, constant_power=rest, noise_std=noise_std, hidden_by=noise_std
        )

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that each limit allows, with the noise that it leaves room for."""
        if problem.link.estimation_error and not problem.link.trust_estimates:
            raise InfeasibleError(
                "No plan fits: artificial noise needs exact CSI, because how strongly it arrives must be known "
                "(estimation_error)."
            )
        self.require_claim(problem)
        found = alignment_limits(problem, devices, rounds)
        gain, peak = problem.fleet.gain[devices], problem.fleet.peak_power[devices]
        alone, most = found["privacy"], min(found["peak_power"], found["total_power"])
        if alone < most:  # the more signal, the less power for noise: one θ at which they balance

            def excess(theta: float) -> float:
                amplitude = np.full(gain.shape, theta)
                signal = self.signal(problem, gain=gain, peak_power=peak, amplitude=amplitude, rounds=rounds)
                return theta - alone * signal.hidden_by / problem.link.noise_std

            if excess(most) <= 0:
                found["privacy"] = most
            else:
                root = float(brentq(excess, alone, most, xtol=1e-14 * alone, rtol=1e-14))
                found["privacy"] = root * (1 - 1e-12)
        return found
