"""Threshold power control: weak devices transmit at their peak power. `docs/baselines.md` has the source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from airfed.planning import limits
from airfed.planning.limits import Binding, Devices, Floats
from airfed.planning.method import Method
from airfed.problem import InfeasibleError, Problem


@final
@dataclass(frozen=True, kw_only=True)
class ThresholdPower(Method):
    """Threshold power control (Cao, Zhu, Xu, Cui): weak devices transmit at peak power, with a smaller amplitude.

    a_k = min(θ, |h_k|√P_k), θ = min(√η, c), √η = min_j (dσ² + Σ_{k≤j} A_k²)/Σ_{k≤j} A_k, weakest first.
    A_k = min(|h_k|√P_k, c), where c is the largest amplitude under privacy and the total power. This minimises the
    mean squared error of the sum for independent updates of norm ϖ.

    Deviations: the printed receiver divides by |K|√η, which scales every step down in strong noise; here D = Σ a_k, a
    weighted mean.
    """

    name: ClassVar[str] = "threshold_power"
    title: ClassVar[str] = "Devices that cannot reach θ transmit at peak power and get a smaller weight."

    def schedule(self, problem: Problem) -> Devices:
        """Return all reachable devices."""
        devices = np.flatnonzero(problem.fleet.gain > 0)
        if not devices.size:
            raise InfeasibleError("No plan fits: every gain is 0 (peak_power).")
        return devices

    def amplitudes(self, problem: Problem, devices: Devices, rounds: int) -> Floats:
        """Return a_k of the given devices; see the class."""
        theta = min(self.limits(problem, devices, rounds).values()) * (1 - 1e-13)
        return np.minimum(theta, problem.fleet.reach[devices])

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ under each limit; for the peak powers the θ of least error."""
        reach = problem.fleet.reach[devices]
        privacy = float(limits.privacy_limits(problem, np.array([rounds]), devices)[0])
        total = _largest_within(problem, devices, problem.budget.total_power / rounds)
        if not min(privacy, total) > 0:
            raise InfeasibleError(f"No plan fits: the limits allow no signal ({self.name}).")
        least_error = _denoising_factor(np.minimum(reach, min(privacy, total)), problem)
        return {"privacy": privacy, "peak_power": min(least_error, float(reach.max())), "total_power": total}


def _denoising_factor(amplitude: Floats, problem: Problem) -> float:
    """Return √η of least error, the minimiser of Σ(min(√η, A_k)/√η − 1)²/d + σ²/η over η."""
    noise = problem.learning.dimension * problem.link.noise_std**2
    ascending = np.sort(amplitude)
    return float(np.min((noise + np.cumsum(np.square(ascending))) / np.cumsum(ascending)))


def _largest_within(problem: Problem, devices: Devices, budget: float) -> float:
    """Return the largest θ for which Σ min(θ²/|h_k|², P_k) is within the budget of a round."""
    gain, peak = problem.fleet.gain[devices], problem.fleet.peak_power[devices]
    square = np.square(gain)
    level = limits.water_level(square * peak, 1.0 / square, peak, budget)
    if level == math.inf:
        return float(np.sqrt(np.max(square * peak)))  # all devices are at peak power
    return math.sqrt(level) * (1 - 1e-12)
