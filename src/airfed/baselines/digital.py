"""Orthogonal digital uploads with local differential privacy. `docs/baselines.md` has the source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final

import numpy as np

from airfed import _validate
from airfed.planning import limits
from airfed.planning.limits import Binding, Devices, Floats
from airfed.planning.method import Method, Signal, received
from airfed.problem import InfeasibleError, Problem

_LOADED: Final = 6.0  # standard deviations of the device's noise within the range of the quantiser


@dataclass(frozen=True, kw_only=True)
class DigitalMethod(Method):
    """Orthogonal digital uploads of `bits` per entry at Shannon capacity; replace-one adjacency only."""

    analog: ClassVar[bool] = False
    departure: ClassVar[str]  # why no ε holds for add-remove adjacency
    bits: int
    access: Literal["tdma", "ofdma"] = "tdma"

    def __post_init__(self) -> None:
        _validate.positive_integer(bits=self.bits)
        if self.bits > 64:
            raise ValueError(f"bits must be at most 64, got {self.bits}.")
        _validate.one_of(("tdma", "ofdma"), access=self.access)

    def require_claim(self, problem: Problem) -> None:
        """Raise for add-remove adjacency; see `Method.require_claim`."""
        if problem.budget.adjacency == "add_remove":
            raise InfeasibleError(
                f"No plan fits: {self.departure}, so that no ε holds for add-remove adjacency "
                '(use adjacency = "replace_one").'
            )

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ under privacy; power only determines the air time."""
        limits.require_reachable(problem, devices)
        return {"privacy": float(limits.privacy_limits(problem, np.array([rounds]), analog=False)[0])}

    def symbols(self, problem: Problem, devices: Devices, rounds: int) -> float:
        """Return the number of symbols of one round, at Shannon capacity."""
        gain, dimension = problem.fleet.gain[devices], problem.learning.dimension
        power = levelled(problem.fleet.peak_power[devices], problem.budget.total_power / rounds)
        with np.errstate(divide="ignore"):
            snr = power * np.square(gain) / (2.0 * dimension * problem.link.noise_std**2)
            shared = devices.size if self.access == "ofdma" else 1
            symbols = shared * self.bits * dimension / (np.log1p(shared * snr) / math.log(2.0))
        return float(symbols.max() if self.access == "ofdma" else symbols.sum())


@final
@dataclass(frozen=True, kw_only=True)
class Digital(DigitalMethod):
    """Orthogonal digital uploads, one device at a time (TDMA) or in its own band (OFDMA).

    A device sends g_k + N(0, (2ϖ/μ)²) with b bits per entry: local differential privacy. The quantiser covers ±(ϖ + 6
    standard deviations) in 2^b − 1 steps Δ, with subtractive dither: an error of variance Δ²/12, independent of the
    update. The sum of this noise is drawn as one Gaussian. At Shannon capacity device k takes
    b·d/log₂(1 + Q_k|h_k|²/(2dσ²)) symbols with the power Q_k = min(P_k, p), where p spends P_tot/I per round. With
    OFDMA each device has 1/m of the band, and m times the power density.

    Every upload is received on its own, so that an absent device is visible: replace-one adjacency only.
    """

    name: ClassVar[str] = "digital"
    title: ClassVar[str] = "Orthogonal digital uploads; each device adds noise (local DP)."
    departure: ClassVar[str] = "with orthogonal uploads an absent device is visible"
    bits: int = 8  # b

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        sigma = problem.link.noise_std
        rounding = (float(np.max(amplitude)) + _LOADED * sigma) / (2.0**self.bits - 1.0)
        power = levelled(peak_power, problem.budget.total_power / rounds)
        noise_std = math.sqrt(gain.size * (sigma**2 + rounding**2 / 3.0))
        noise = {"noise_std": noise_std, "privacy_noise_std": sigma}
        return received(problem, amplitude, constant_power=power, orthogonal=True, **noise)


def levelled(peak_power: Floats, budget: float, needed: Floats | float = 0.0) -> Floats:
    """Return min(P_k, max(p, needed_k)), with the largest p whose sum is within the budget."""
    if float(np.sum(peak_power)) <= budget:
        return np.array(peak_power)
    least = np.minimum(peak_power, needed)
    # the sum is piecewise linear in p: its slope grows by one at each `least` and falls by one at each peak
    edges = np.concatenate((np.broadcast_to(least, peak_power.shape), peak_power))
    order = np.argsort(edges, kind="stable")
    edges, slope = edges[order], np.cumsum(np.where(order < peak_power.size, 1, -1))
    spent = np.sum(least) + np.concatenate(([0.0], np.cumsum(slope[:-1] * np.diff(edges))))
    index = int(np.searchsorted(spent, budget, side="right")) - 1
    if index < 0:  # `needed` exceeds the budget
        return np.asarray(least)
    if not slope[index]:  # the budget is the sum of the peak powers up to rounding
        return np.array(peak_power)
    level = (edges[index] + (budget - spent[index]) / slope[index]) * (1 - 1e-14)
    return np.asarray(np.clip(level, least, peak_power))
