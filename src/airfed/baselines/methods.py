"""Methods of other papers, one class each: amplitudes, noise and limits. `docs/rivals.md` has the sources."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal, final

import numpy as np
from scipy.optimize import brentq
from scipy.special import exp1

from airfed import _validate
from airfed.planning import limits
from airfed.planning.limits import Binding, Devices, Floats
from airfed.planning.method import NOT_PRIVATE_MU, UNCLIPPED, Method, Signal, over_the_air, received
from airfed.planning.optimal import completed
from airfed.planning.time_varying.planner import Samples, first_sample, gains_of, per_round
from airfed.problem import Fleet, InfeasibleError, Problem

_LOADED: Final = 6.0  # standard deviations of a device's own noise that a digital quantiser covers
_CUTOFFS: Final = np.geomspace(0.003, 3.0, 25)  # of truncated inversion


@final
@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """FedAvg (McMahan et al.): the exact mean of updates that are not clipped, no radio, no privacy, the ceiling.

    So that its ε is a number, noise of 2·10⁻⁹ϖ remains, far below the resolution of the model.
    """

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "The exact mean of updates that are not clipped: no radio, no noise."
    private: ClassVar[bool] = False
    radio: ClassVar[bool] = False

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return σ as "privacy": any θ does, and it must have a unit."""
        return {"privacy": problem.link.noise_std}

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        rest = problem.budget.sensitivity * float(np.max(amplitude)) / NOT_PRIVATE_MU
        return received(problem, amplitude, noise_std=rest, hidden_by=rest, guard=UNCLIPPED)


@final
@dataclass(frozen=True, kw_only=True)
class DPFedAvg(Method):
    """DP-FedAvg: a trusted server adds N(0, (2ϖ/(Nμ))²) to the mean, the link's σ at the θ that privacy allows.

    Its gap to FedAvg is the cost of privacy; the gap of other methods to it is the cost of the radio.
    """

    name: ClassVar[str] = "dp_fedavg"
    title: ClassVar[str] = "A trusted server receives the clipped updates and adds the noise: no radio."
    radio: ClassVar[bool] = False

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that privacy allows; no other limit applies."""
        return {"privacy": float(limits.privacy_limits(problem, np.array([rounds]))[0])}

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        return received(problem, amplitude)


@final
@dataclass(frozen=True, kw_only=True)
class Cotaf(Method):
    """COTAF (Sery, Shlezinger, Cohen, Eldar): x_k = (θ/|h_k|)·g_k/max_j‖g_j‖, which the receiver undoes.

    The scale depends on the data, and is itself released: there is no ε. Clipped to ϖ instead, it is full participation
    over the air.
    """

    name: ClassVar[str] = "cotaf"
    title: ClassVar[str] = "Nothing is clipped; the largest update of a round sets the scale of all."
    private: ClassVar[bool] = False

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that each limit on power allows."""
        found = super().limits(problem, devices, rounds)
        return {name: value for name, value in found.items() if name != "privacy"}

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        hidden = problem.budget.sensitivity * float(np.max(amplitude)) / NOT_PRIVATE_MU
        return over_the_air(problem, gain=gain, amplitude=amplitude, hidden_by=hidden, guard=UNCLIPPED, by_largest=True)


@final
@dataclass(frozen=True, kw_only=True)
class Digital(Method):
    """Orthogonal digital uploads, one device at a time (TDMA) or in its own band (OFDMA).

    A device sends g_k + N(0, (2ϖ/μ)²) in b bits an entry: local privacy, whoever receives it. The quantiser covers
    ±(ϖ + 6 standard deviations) in 2^b − 1 steps Δ, with subtractive dither: an error of variance Δ²/12 that does not
    depend on the update. The sum of all that noise is drawn once, as one Gaussian.
    Latency, by Shannon: b·d/log₂(1 + Q_k|h_k|²/(2dσ²)) symbols for device k, which
    sends with the watts of an over-the-air upload, Q_k = min(P_k, p), in as many symbols as it takes; p spends P_tot/I
    in a round. With OFDMA each has 1/m of the band, and m times the power density.

    Every upload is received on its own, so that an absent one is visible: replace-one adjacency only.
    """

    name: ClassVar[str] = "digital"
    title: ClassVar[str] = "Digital uploads, each with noise that its device adds."
    radio: ClassVar[bool] = False
    bits: int = 8  # b
    access: Literal["tdma", "ofdma"] = "tdma"

    def __post_init__(self) -> None:
        _validate.positive_integer(bits=self.bits)
        if self.bits > 64:
            raise ValueError(f"Expected bits={self.bits} <= 64.")
        _validate.one_of(("tdma", "ofdma"), access=self.access)

    def require_claim(self, problem: Problem) -> None:
        """Raise with add-remove adjacency; see `Method.require_claim`."""
        if problem.budget.relation == "add_remove":
            raise InfeasibleError(
                "No plan fits: with orthogonal uploads an absent device is visible, so that no ε holds for add-remove "
                'adjacency (use relation = "replace").'
            )

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that privacy allows; power only takes time."""
        limits.require_reachable(problem, devices)
        return {"privacy": float(limits.privacy_limits(problem, np.array([rounds]))[0])}

    def symbols(self, problem: Problem, devices: Devices, rounds: int) -> float:
        """Return how many symbols all uploads of a round take."""
        gain, dimension = problem.fleet.gain[devices], problem.learning.dimension
        power = levelled(problem.fleet.peak_power[devices], problem.budget.total_power / rounds)
        with np.errstate(divide="ignore"):
            snr = power * np.square(gain) / (2.0 * dimension * problem.link.noise_std**2)
            shared = devices.size if self.access == "ofdma" else 1
            symbols = shared * self.bits * dimension / (np.log1p(shared * snr) / math.log(2.0))
        return float(symbols.max() if self.access == "ofdma" else symbols.sum())

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        sigma = problem.link.noise_std
        rounding = (float(np.max(amplitude)) + _LOADED * sigma) / (2.0**self.bits - 1.0)
        power = levelled(peak_power, problem.budget.total_power / rounds)
        noise_std = math.sqrt(gain.size * (sigma**2 + rounding**2 / 3.0))
        return received(problem, amplitude, constant_power=power, noise_std=noise_std, separate=True)


def levelled(peak_power: Floats, budget: float, needed: Floats | float = 0.0) -> Floats:
    """Return min(P_k, max(p, needed_k)), with the largest p at which they sum to the budget at most."""
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
    if not slope[place]:  # the budget is the sum of the peak powers but for rounding
        return np.array(peak_power)
    level = (edges[place] + (budget - spent[place]) / slope[place]) * (1 - 1e-14)
    return np.asarray(np.clip(level, least, peak_power))


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
        found = super().limits(problem, devices, rounds)
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


@final
@dataclass(frozen=True, kw_only=True)
class ThresholdPower(Method):
    """Threshold power control (Cao, Zhu, Xu, Cui): weak devices transmit at full power and arrive weaker.

    a_k = min(θ, |h_k|√P_k), θ = min(√η, c), √η = min_j (dσ² + Σ_{k≤j} A_k²)/Σ_{k≤j} A_k, weakest first.
    A_k = min(|h_k|√P_k, c), and c is the most that privacy and the total power allow to any device: the least mean
    squared error of the sum, for independent updates of norm ϖ.

    Deviations: in print the receiver divides by |K|√η. Where noise is strong, that shrinks every step towards 0, by a
    factor that a larger learning rate would undo; here D = Σ a_k, a weighted mean.
    """

    name: ClassVar[str] = "threshold_power"
    title: ClassVar[str] = "Devices that cannot arrive with θ transmit at full power, and count less."

    def schedule(self, problem: Problem) -> Devices:
        """Return all devices that can be reached at all."""
        devices = np.flatnonzero(problem.fleet.gain > 0)
        if not devices.size:
            raise InfeasibleError("No plan fits: every gain is 0 (peak_power).")
        return devices

    def amplitudes(self, problem: Problem, devices: Devices, rounds: int) -> Floats:
        """Return a_k of the given devices; see the class."""
        theta = min(self.limits(problem, devices, rounds).values()) * (1 - 1e-13)
        return np.minimum(theta, problem.fleet.reach[devices])

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that each limit allows; for the peak powers, the one of least error."""
        reach = problem.fleet.reach[devices]
        privacy = float(limits.privacy_limits(problem, np.array([rounds]), devices)[0])
        total = _largest_within(problem, devices, problem.budget.total_power / rounds)
        if not min(privacy, total) > 0:
            raise InfeasibleError(f"No plan fits: the limits leave no signal at all ({self.name}).")
        least_error = _denoising_factor(np.minimum(reach, min(privacy, total)), problem)
        return {"privacy": privacy, "peak_power": min(least_error, float(reach.max())), "total_power": total}


def _denoising_factor(amplitude: Floats, problem: Problem) -> float:
    """√η of least error, which minimises Σ(min(√η, A_k)/√η − 1)²/d + σ²/η over η."""
    noise = problem.learning.dimension * problem.link.noise_std**2
    ascending = np.sort(amplitude)
    return float(np.min((noise + np.cumsum(np.square(ascending))) / np.cumsum(ascending)))


def _largest_within(problem: Problem, devices: Devices, budget: float) -> float:
    """The largest θ at which Σ min(θ²/|h_k|², P_k) is within the watts of a round."""
    gain, peak = problem.fleet.gain[devices], problem.fleet.peak_power[devices]
    square = np.square(gain)
    if float(np.sum(peak)) <= budget:
        return float(np.sqrt(np.max(square * peak)))  # more would change nothing
    order = np.argsort(square * peak, kind="stable")  # θ² at which each saturates
    reach, cost, full = (square * peak)[order], (1.0 / square)[order], np.cumsum(peak[order])
    rest = np.cumsum(cost[::-1])[::-1]  # Σ 1/|h|² over those not yet saturated
    before = np.concatenate(([0.0], full[:-1]))
    spent = before + reach * rest  # where the next one saturates
    place = int(np.argmax(spent > budget))
    return math.sqrt((budget - before[place]) / rest[place]) * (1 - 1e-12)


@final
@dataclass(frozen=True, kw_only=True)
class TruncatedInversion(Method):
    """Truncated channel inversion (Zhu, Wang, Huang): devices with |h_k|² ≥ g·m transmit √ρ₀/h_k, no others.

    ρ₀ = P̄·m/E₁(g), so that the *average* power over Rayleigh fading of mean m = E|h|² is P̄ = P_tot/(N·I). Here θ =
    √ρ₀ within the peak powers, the total power as it really is, and the cap that makes it private.
    """

    name: ClassVar[str] = "truncated_inversion"
    title: ClassVar[str] = "Devices above the cutoff invert their channels, for an average power; others are inactive."
    cutoff: float
    mean_square: float

    def schedule(self, problem: Problem) -> Devices:
        """Return the devices above the cutoff; in a round without any, the strongest one."""
        gain = problem.fleet.gain
        above = np.flatnonzero((np.square(gain) >= self.cutoff * self.mean_square) & (gain > 0))
        return above if above.size else np.array([int(np.argmax(gain))])

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that each limit allows; the total power's is no larger than √ρ₀."""
        found = super().limits(problem, devices, rounds)
        average = problem.budget.total_power / (problem.fleet.num_devices * rounds)
        printed = math.sqrt(average * self.mean_square / float(exp1(self.cutoff)))
        return found | {"total_power": min(found["total_power"], printed)}


def truncated_inversion(
    problem: Problem, *, cutoff: float | None = None, rounds: int | None = None, samples: Samples | None = None
) -> TruncatedInversion:
    """Return the method with the given cutoff g, or the best by the bound of some between 0.003 and 3."""
    seen = problem
    if problem.varies and samples is not None:
        seen = replace(problem, fleet=Fleet(gain=first_sample(samples, problem), peak_power=problem.fleet.peak_power))
    gains = gains_of(seen) if problem.varies else problem.fleet.gain
    mean = float(np.mean(np.square(gains)))
    if cutoff is not None:
        _validate.positive(cutoff=cutoff)
    cutoffs = _CUTOFFS.tolist() if cutoff is None else [float(cutoff)]
    candidates = [TruncatedInversion(cutoff=each, mean_square=mean) for each in cutoffs]
    largest = float(np.max(np.square(gains)))
    if not problem.varies:
        candidates = [each for each in candidates if each.cutoff * mean <= largest]
    if not candidates or largest == 0:
        raise InfeasibleError("No plan fits: no |h|² reaches the cutoff.")
    if len(candidates) == 1:
        return candidates[0]
    every = np.arange(1, problem.most_rounds + 1) if rounds is None else np.array([rounds])

    def bound(method: TruncatedInversion) -> float:
        if seen.varies:
            return per_round(seen, lambda there, _: method.schedule(there), method=method, rounds=rounds).objective
        return completed(seen, "", method.schedule(seen), method=method, rounds=every).bound.total

    return min(candidates[::3] if problem.varies else candidates, key=bound)
