"""The schemes of the field that airfed is compared with: how each of them sends (`airfed.planning.uplink`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import exp1

from airfed import _validate
from airfed.planning import limits
from airfed.planning.limits import Binding
from airfed.planning.uplink import (
    ALIGNED,
    NOT_PRIVATE_MU,
    Aligned,
    Devices,
    Floats,
    Uplink,
    Uploads,
    uploads_of,
)
from airfed.problem import InfeasibleError, Problem

_LOADED: Final = 6.0  # standard deviations of a device's own noise that its quantiser covers


@dataclass(frozen=True, kw_only=True)
class Truncated(Uplink):
    """Truncated channel inversion (Zhu, Wang, Huang): who has |h_k|² ≥ g·m sends √ρ₀/h_k, the others are silent.

    ρ₀ = P̄·m/E₁(g), so that the *average* power over Rayleigh fading of mean m = E|h|² is P̄ = P_tot/(N·I). Here θ =
    √ρ₀ within the peak powers, the total power as it really is, and the cap that makes it private.

    Args:
        cutoff: g.
        mean_square: m.
    """

    name: ClassVar[str] = "truncated"
    title: ClassVar[str] = "Who is above the cutoff inverts its channel, for an average power; the others are silent."
    cutoff: float
    mean_square: float

    def limits(self, problem: Problem, scheduled: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that each limit allows; the total power's is no larger than √ρ₀."""
        found = limits.alignment_limits(problem, scheduled, rounds)
        average = problem.budget.total_power / (problem.fleet.num_devices * rounds)
        printed = math.sqrt(average * self.mean_square / float(exp1(self.cutoff)))
        return found | {"total_power": min(found["total_power"], printed)}


@dataclass(frozen=True, kw_only=True)
class Saturated(Uplink):
    """Threshold power control (Cao, Zhu, Xu, Cui): weak devices send at full power and arrive weaker.

    a_k = min(θ, |h_k|√P_k), θ = min(√η, c), √η = min_j (dσ² + Σ_{k≤j} A_k²)/Σ_{k≤j} A_k, weakest first, where A_k =
    min(|h_k|√P_k, c): the least mean squared error of the sum, for independent updates of norm ϖ. c is the most that
    privacy and the total power allow to anybody.

    In print the receiver divides by |K|√η. Where noise is strong, that shrinks every step towards 0, by a factor that a
    larger learning rate would undo; so D = Σ a_k here, a weighted mean, unless `shrink` is set.

    Args:
        shrink: divide by |K|√η, as printed.
    """

    name: ClassVar[str] = "saturated"
    title: ClassVar[str] = "Who cannot arrive with θ sends at full power, and counts less."
    needs_everybody: ClassVar[bool] = False
    shrink: bool = False

    def __post_init__(self) -> None:
        _validate.flag(shrink=self.shrink)

    @property
    def predictable(self) -> bool:
        """Whether noise and share say what training will give: not if steps shrink, too."""
        return not self.shrink

    def uploads(self, problem: Problem, gain: Floats, peak_power: Floats, alignment: float, rounds: int) -> Uploads:
        """Return what the devices of a round send; see `Uplink.uploads`."""
        level = np.minimum(alignment, gain * np.sqrt(peak_power))
        with np.errstate(divide="ignore", invalid="ignore"):
            amplitude = np.where(gain > 0, np.minimum(alignment / gain, np.sqrt(peak_power)), 0.0)
        divisor = gain.size * denoising_factor(level, problem) if self.shrink else float(np.sum(level))
        return uploads_of(problem, gain.size, level=level, amplitude=amplitude, divisor=divisor)

    def limits(self, problem: Problem, scheduled: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that each limit allows; the peak powers': the one of least error."""
        reach = problem.fleet.gain[scheduled] * np.sqrt(problem.fleet.peak_power[scheduled])
        privacy = float(limits.privacy_limits(problem, np.array([rounds]), _heard(problem, scheduled))[0])
        total = _largest_within(problem, scheduled, problem.budget.total_power / rounds)
        cap = min(privacy, total)
        return {
            "privacy": privacy,
            "peak_power": min(denoising_factor(np.minimum(reach, cap), problem), float(reach.max())),
            "total_power": total,
        }

    def amplification(self, problem: Problem, scheduled: Devices) -> float:
        """Return how much stronger than θ a device may arrive, of those who can be heard: the others send nothing."""
        return super().amplification(problem, _heard(problem, scheduled))


@dataclass(frozen=True, kw_only=True)
class Masked(Uplink):
    """Artificial noise (Seif, Tandon, Li): devices spend what power the update leaves on Gaussian noise.

    x_k = √(α_k Q_k) g_k/ϖ + √(β_k Q_k) n_k, α_k + β_k = 1, |h_k|√(α_k Q_k) = θ, E‖n_k‖² = 1. Q_k = min(P_k, max(p,
    θ²/|h_k|²)) with the p that spends P_tot/I in a round. The receiver's noise has the variance s² = σ² + Σ|h_k|²β_k
    Q_k/d, and μ = 2θ/s. The noise of all devices is drawn at the receiver, where it is the same in law; its power
    counts as expected.
    """

    name: ClassVar[str] = "masked"
    title: ClassVar[str] = "Everybody arrives equally strong, and adds noise with what power is left."
    only_scales: ClassVar[bool] = False

    def uploads(self, problem: Problem, gain: Floats, peak_power: Floats, alignment: float, rounds: int) -> Uploads:
        """Return what the devices of a round send; see `Uplink.uploads`."""
        amplitude = alignment / gain
        needed = np.square(amplitude)
        most = _levelled(peak_power, problem.budget.total_power / rounds, needed)
        rest = np.maximum(most - needed, 0.0)
        added = float(np.sum(np.square(gain) * rest)) / problem.learning.dimension
        noise_std = math.sqrt(problem.link.noise_std**2 + added)
        level = np.full(gain.shape, alignment)
        return uploads_of(
            problem,
            gain.size,
            level=level,
            amplitude=amplitude,
            steady_power=rest,
            noise_std=noise_std,
            hidden=noise_std,
        )

    def limits(self, problem: Problem, scheduled: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that each limit allows, with the noise that it leaves room for."""
        if problem.link.estimation_error and not problem.link.trust_estimates:
            raise ValueError("Expected exact channels with artificial noise: how strongly it arrives must be known.")
        _require_one_signal(problem)
        found = limits.alignment_limits(problem, scheduled, rounds)
        gain, peak = problem.fleet.gain[scheduled], problem.fleet.peak_power[scheduled]
        alone, most = found["privacy"], min(found["peak_power"], found["total_power"])
        if alone < most:  # the more signal, the less power for noise: one θ at which they balance

            def excess(theta: float) -> float:
                hidden = self.uploads(problem, gain, peak, theta, rounds).hidden_by
                return theta - alone * hidden / problem.link.noise_std

            found["privacy"] = (
                most if excess(most) <= 0 else float(brentq(excess, alone, most, rtol=1e-14)) * (1 - 1e-12)
            )
        return found

    def amplification(self, problem: Problem, scheduled: Devices) -> float:
        """Return how much stronger than θ a device may arrive.

        Raises:
            InfeasibleError: every antenna is seen, and the noise is not the same in all directions: no claim is made.
        """
        _require_one_signal(problem)
        return super().amplification(problem, scheduled)


@dataclass(frozen=True, kw_only=True)
class Precoded(Uplink):
    """Precoding by the largest update (COTAF: Sery, Shlezinger, Cohen, Eldar): nothing is clipped.

    x_k = (θ/|h_k|)·g_k/max_j‖g_j‖; the receiver, told the largest norm, undoes it. Its scale depends on the data, and
    the scale itself is told: it has no ε. Clipped to ϖ instead it is `Aligned` with every device.
    """

    name: ClassVar[str] = "precoded"
    title: ClassVar[str] = "Nothing is clipped; the largest update of a round sets the scale of all."
    private: ClassVar[bool] = False
    clips: ClassVar[bool] = False
    only_scales: ClassVar[bool] = False
    by_largest: ClassVar[bool] = True

    def uploads(self, problem: Problem, gain: Floats, peak_power: Floats, alignment: float, rounds: int) -> Uploads:
        """Return what the devices of a round send; see `Uplink.uploads`."""
        hidden = problem.budget.sensitivity * alignment / NOT_PRIVATE_MU
        level = np.full(gain.shape, alignment)
        return uploads_of(problem, gain.size, level=level, amplitude=alignment / gain, hidden=hidden)

    def limits(self, problem: Problem, scheduled: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that each limit allows; privacy has none."""
        found = limits.alignment_limits(problem, scheduled, rounds)
        return {name: value for name, value in found.items() if name != "privacy"}

    def amplification(self, problem: Problem, scheduled: Devices) -> float:
        """Return 1: there is no privacy to account for."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Wired(Uplink):
    """A trusted server that is handed the clipped updates, and adds the noise itself: DP-FedAvg.

    The mean plus N(0, (2ϖ/(Nμ))²): the noise σ of the link at the θ that privacy allows, whatever channels and
    batteries there are. What it loses against the ceiling is the price of privacy, what others lose against it that of
    the radio.
    """

    name: ClassVar[str] = "wired"
    title: ClassVar[str] = "A trusted server is handed the clipped updates, and adds the noise: no radio."
    on_air: ClassVar[bool] = False
    only_scales: ClassVar[bool] = False
    needs_everybody: ClassVar[bool] = False

    def uploads(self, problem: Problem, gain: Floats, peak_power: Floats, alignment: float, rounds: int) -> Uploads:
        """Return what the devices of a round hand over; see `Uplink.uploads`."""
        return uploads_of(problem, gain.size, level=np.full(gain.shape, alignment), channel_uses=0.0)

    def limits(self, problem: Problem, scheduled: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that privacy allows; no other limit concerns it."""
        return {"privacy": float(limits.privacy_limits(problem, np.array([rounds]))[0])}

    def amplification(self, problem: Problem, scheduled: Devices) -> float:
        """Return 1: no channel lies between."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Exact(Wired):
    """Plain FedAvg: the exact mean of updates that are not clipped. No radio, no privacy: the ceiling.

    So that its ε is a number, noise of 2·10⁻⁹ϖ remains in the sum, far below the resolution of the model.
    """

    name: ClassVar[str] = "exact"
    title: ClassVar[str] = "The exact mean of updates that are not clipped: no radio, no noise."
    private: ClassVar[bool] = False
    clips: ClassVar[bool] = False

    def uploads(self, problem: Problem, gain: Floats, peak_power: Floats, alignment: float, rounds: int) -> Uploads:
        """Return what the devices of a round hand over; see `Uplink.uploads`."""
        rest = problem.budget.sensitivity * alignment / NOT_PRIVATE_MU
        level = np.full(gain.shape, alignment)
        return uploads_of(problem, gain.size, level=level, noise_std=rest, hidden=rest, channel_uses=0.0)

    def limits(self, problem: Problem, scheduled: Devices, rounds: int) -> dict[Binding, float]:
        """Return σ as "privacy": any θ does, and it must have a unit."""
        return {"privacy": problem.link.noise_std}


@dataclass(frozen=True, kw_only=True)
class Orthogonal(Wired):
    """Digital uploads, one device at a time or in its own band, each with noise of its own before it is sent.

    A device sends g_k + N(0, (2ϖ/μ)²) in b bits an entry: local privacy, whoever receives it. On the mean of m devices
    the variance is m times that of a trusted server. The quantiser covers ±(ϖ + 6 standard deviations) in 2^b − 1 steps
    Δ, with subtractive dither: an error of variance Δ²/12 that does not depend on the update. The sum of all that noise
    is drawn once, as one Gaussian. Latency, by Shannon: b·d/log₂(1 + Q_k|h_k|²/(2dσ²)) symbols for device k, which
    sends with the watts of an over-the-air upload, Q_k = min(P_k, p), in as many symbols as it takes; p spends P_tot/I
    in a round. With OFDMA each has 1/m of the band, and m times the power density.

    Args:
        bits: b.
        access: "tdma" or "ofdma".
    """

    name: ClassVar[str] = "orthogonal"
    title: ClassVar[str] = "Digital uploads, each with noise of its device's own."
    needs_everybody: ClassVar[bool] = True
    bits: int = 8
    access: Literal["tdma", "ofdma"] = "tdma"

    def __post_init__(self) -> None:
        _validate.positive_integer(bits=self.bits)
        if self.bits > 64:
            raise ValueError(f"Expected bits={self.bits} <= 64.")
        _validate.one_of(("tdma", "ofdma"), access=self.access)

    def uploads(self, problem: Problem, gain: Floats, peak_power: Floats, alignment: float, rounds: int) -> Uploads:
        """Return what the devices of a round send; see `Uplink.uploads`."""
        sigma, size, dimension = problem.link.noise_std, gain.size, problem.learning.dimension
        power = _levelled(peak_power, problem.budget.total_power / rounds)
        rounding = (alignment + _LOADED * sigma) / (2.0**self.bits - 1.0)
        with np.errstate(divide="ignore"):
            snr = power * np.square(gain) / (2.0 * dimension * sigma**2)
            shared = size if self.access == "ofdma" else 1
            symbols = shared * self.bits * dimension / (np.log1p(shared * snr) / math.log(2.0))
        return uploads_of(
            problem,
            size,
            level=np.full(gain.shape, alignment),
            steady_power=power,
            noise_std=math.sqrt(size * (sigma**2 + rounding**2 / 3.0)),
            channel_uses=float(symbols.max() if self.access == "ofdma" else symbols.sum()),
        )


_KINDS: Final = {
    each.name: each for each in (Aligned, Truncated, Saturated, Masked, Precoded, Wired, Exact, Orthogonal)
}


def parse(recorded: dict[str, Any] | None) -> Uplink:
    """Return the uplink that `to_dict` has written down; aligned where nothing was.

    Raises:
        ValueError: there is none of that name, or its settings are none.
    """
    if recorded is None:
        return ALIGNED
    values = dict(recorded)
    kind = _KINDS.get(values.pop("name", ""))
    if kind is None:
        raise ValueError(f"Expected an uplink of {', '.join(_KINDS)}; got {recorded.get('name')!r}.")
    try:
        return kind(**values)
    except TypeError:
        raise ValueError(f"Expected settings of {kind.name} access; got {values!r}.") from None


def _heard(problem: Problem, scheduled: Devices) -> Devices:
    """Those of the scheduled devices who can be heard at all."""
    found = scheduled[problem.fleet.gain[scheduled] > 0]
    if not found.size:
        raise InfeasibleError("No plan fits: nobody can be heard (peak_power).")
    return found


def _require_one_signal(problem: Problem) -> None:
    if problem.seen_by_all:
        raise InfeasibleError(
            "No plan fits: artificial noise comes from its devices' directions, and hides nobody from a server "
            'that keeps every antenna\'s signal (trust = "radio").'
        )


def denoising_factor(level: Floats, problem: Problem) -> float:
    """Return √η of least error, min_j (dσ² + Σ_{k≤j} A_k²)/Σ_{k≤j} A_k, for amplitudes A_k of at most `level`.

    Minimises Σ(min(√η, A_k)/√η − 1)²/d + σ²/η over η.
    """
    noise = problem.learning.dimension * problem.link.noise_std**2
    ascending = np.sort(level[level > 0])
    if not ascending.size:
        raise InfeasibleError("No plan fits: nobody can be heard (peak_power).")
    return float(np.min((noise + np.cumsum(np.square(ascending))) / np.cumsum(ascending)))


def _levelled(peak_power: Floats, budget: float, needed: Floats | float = 0.0) -> Floats:
    """min(P_k, max(p, needed_k)), with the largest p at which they sum to the budget at most."""
    if float(np.sum(peak_power)) <= budget:
        return np.array(peak_power)
    least = np.minimum(peak_power, needed)
    # the sum is piecewise linear in p: one more device rises from each `least` on, one fewer from each peak on
    edges = np.concatenate((np.broadcast_to(least, peak_power.shape), peak_power))
    order = np.argsort(edges, kind="stable")
    edges, slope = edges[order], np.cumsum(np.where(order < peak_power.size, 1, -1))
    spent = np.sum(least) + np.concatenate(([0.0], np.cumsum(slope[:-1] * np.diff(edges))))
    place = int(np.searchsorted(spent, budget, side="right")) - 1
    if place < 0:  # what is needed is more already
        return np.asarray(least)
    level = (edges[place] + (budget - spent[place]) / slope[place]) * (1 - 1e-14)
    return np.asarray(np.clip(level, least, peak_power))


def _largest_within(problem: Problem, scheduled: Devices, budget: float) -> float:
    """The largest θ at which Σ min(θ²/|h_k|², P_k) is within the watts of a round."""
    gain, peak = problem.fleet.gain[scheduled], problem.fleet.peak_power[scheduled]
    heard = gain > 0
    square, peak = np.square(gain[heard]), peak[heard]
    if float(np.sum(peak)) <= budget:
        return float(np.sqrt(np.max(square * peak, initial=0.0)))  # more would change nothing
    order = np.argsort(square * peak, kind="stable")  # θ² at which each saturates
    reach, cost, full = (square * peak)[order], (1.0 / square)[order], np.cumsum(peak[order])
    rest = np.cumsum(cost[::-1])[::-1]  # Σ 1/|h|² over those not yet saturated
    before = np.concatenate(([0.0], full[:-1]))
    spent = before + reach * rest  # where the next one saturates
    place = int(np.argmax(spent > budget))
    return math.sqrt((budget - before[place]) / rest[place]) * (1 - 1e-12)
