"""The problem of the time-varying planners as plain arrays, and their solution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from airfed import _validate, bounds
from airfed.planning.amplitudes import Amplitudes
from airfed.planning.limits import Bools, Devices, Floats
from airfed.problem import InfeasibleError, Learning

_LARGEST_DECAY = 50.0  # largest −ln η; beyond it a weight is below the rounding error of the next
_LARGEST_RATIO = 300.0  # largest −ln of the weight of a round, relative to the last
_SLACK = 1e-12  # share of a budget left unspent, for rounding
_ENOUGH = 256  # rounds evaluated to compare numbers of rounds
_COARSE = 16  # numbers of rounds on the first grid


@dataclass(frozen=True, kw_only=True, eq=False)
class Instance:
    """The gains of all rounds and the limits, from a checked `Problem`."""

    gain: Floats  # |h_k^i|, (R, N): row i is round i; 0 marks a device that is unreachable in that round
    peak_power: Floats  # P_k [W], (N,)
    noise_weight: float  # C = dσ²/2
    learning: Learning  # T, ϖ, ζ, ϱ, G
    cap: float  # the largest θ under privacy in any round
    total_power: float  # P_tot [W, summed over devices and rounds]
    device_power: Floats | None = None  # of each device, Σ_{i: k∈K_i} θ_i²/|h_k^i|² at most [W], (N,); None: no limit
    device_exposure: Floats | None = None  # of each device, Σ_{i: k∈K_i} θ_i² ≤ (σμ/2)², (N,); None: no limit

    @property
    def num_devices(self) -> int:
        """N."""
        return int(self.gain.shape[1])

    @property
    def most_rounds(self) -> int:
        """The largest I: limited by the gains and by one local step per round."""
        return min(int(self.gain.shape[0]), self.learning.total_steps)

    @property
    def one_budget(self) -> bool:
        """Whether the total power is the only budget over several rounds."""
        return self.device_power is None and self.device_exposure is None

    @property
    def weight(self) -> float:
        """ϖ²/ζ, the weight of the error of the last round."""
        return self.learning.clip_norm**2 / self.learning.smoothness

    @property
    def decay(self) -> float:
        """−ln η; infinite if η = 0."""
        ratio = self.learning.strong_convexity / self.learning.smoothness
        return -math.log1p(-ratio) if ratio < 1 else math.inf

    def weights(self, rounds: int) -> Floats:
        """Return w_i = (ϖ²/ζ)η^(I−1−i) for i = 0..I−1."""
        return bounds.round_weights(self.learning, rounds)

    def log_ratios(self, rounds: int) -> Floats:
        """Return −ln(w_i/w_{I−1}), the log ratio of the multipliers of round i and the last, limited for float64."""
        return np.minimum(min(self.decay, _LARGEST_DECAY) * np.arange(rounds - 1.0, -1.0, -1.0), _LARGEST_RATIO)

    def offsets(self) -> Floats:
        """Return η^I·G and the local drift for I = 1..most_rounds, the part independent of the schedule."""
        return bounds.round_offsets(self.learning, np.arange(1, self.most_rounds + 1))

    def errors(self, size: Devices, square: Floats) -> Floats:
        """Return terms A and C of Theorem 1 for |K| devices and θ² = `square`."""
        with np.errstate(over="ignore", divide="ignore"):
            missing = 4.0 * np.square(1.0 - size / self.num_devices)
            return np.asarray(missing + self.noise_weight / (np.square(size, dtype=np.float64) * square))

    def require_reachable(self, rounds: int) -> None:
        """Raise unless there are that many rounds, each with a reachable device."""
        _validate.positive_integer(rounds=rounds)
        if rounds > self.most_rounds:
            raise ValueError(
                f"rounds must be at most {self.most_rounds}, the rounds with gains and local steps; got {rounds}."
            )
        for index in np.flatnonzero(~self.gain[:rounds].any(axis=1))[:1]:
            require_gain(self.gain[index], index)

    def best_rounds(self, value: Callable[[int, Devices], Floats]) -> tuple[int, float]:
        """Return the I of the smallest bound, and the bound; `value` gives the errors of some of I rounds.

        The search goes from coarse to fine; between the points of a grid the bound is convex.
        """
        empty = np.flatnonzero(~self.gain[: self.most_rounds].any(axis=1))
        most = int(empty[0]) if empty.size else self.most_rounds
        self.require_reachable(max(most, 1))
        offsets, values = self.offsets(), dict[int, float]()
        trials = np.unique(np.geomspace(1, most, _COARSE).round().astype(int))
        while True:
            for number in trials.tolist():
                if number not in values:
                    indices, weights = thinned(self.learning, number)
                    error = bounds.weighted_sum(weights, value(number, indices))
                    values[number] = float(offsets[number - 1]) + error
            best = min(values, key=lambda number: (values[number], number))
            known = sorted(values)
            index = known.index(best)
            below, above = known[max(index - 1, 0)], known[min(index + 1, len(known) - 1)]
            trials = np.unique([(below + best) // 2, (best + above) // 2])
            if all(number in values for number in trials.tolist()):
                return best, values[best]

    def units(self) -> tuple[int, float]:
        """Return the exponent of two of the strongest gain, and the unit of θ in which P_tot is about 1."""
        field = math.frexp(float(self.gain.max()))[1]
        return field, math.ldexp(1.0, field + self._watt())

    def _watt(self) -> int:
        return (math.frexp(self.total_power)[1] + 1) // 2

    def scaled(self, units: tuple[int, float] | None = None) -> tuple[Instance, float]:
        """Return the instance in units (powers of two) in which gains and P_tot are about 1, and the unit of θ."""
        field, unit = units or self.units()
        twice = -2 * self._watt()
        return replace(
            self,
            gain=np.ldexp(self.gain, -field),
            peak_power=np.ldexp(self.peak_power, twice),
            noise_weight=self.noise_weight / unit / unit,
            cap=self.cap / unit,
            total_power=math.ldexp(self.total_power, twice),
            device_power=None if self.device_power is None else np.ldexp(self.device_power, twice),
            device_exposure=None if self.device_exposure is None else self.device_exposure / unit / unit,
        ), unit


def require_gain(gain: Floats, index: int) -> None:
    """Raise InfeasibleError if every gain of round i is 0."""
    if not gain.any():
        raise InfeasibleError(f"No plan fits: every gain of round {index + 1} is 0 (peak_power).")


class Solution(NamedTuple):
    """Amplitudes of all rounds with their objective and a lower bound."""

    amplitudes: Amplitudes
    objective: float = math.inf
    lower_bound: float = -math.inf

    @property
    def rounds(self) -> int:
        """I."""
        return self.amplitudes.rounds

    @property
    def gap(self) -> float:
        """objective/lower_bound − 1, at least the relative distance to the optimum; infinite if unknown."""
        return math.inf if self.lower_bound == -math.inf else self.objective / self.lower_bound - 1.0

    @classmethod
    def within(cls, instance: Instance, mask: Bools, alignment: Floats, *, lower_bound: float = -math.inf) -> Solution:
        """Return aligned rounds, K_i (I, N), with θ_i (I,) reduced where rounding would violate a limit."""
        rounds = alignment.size
        gain = instance.gain[:rounds]
        ulp = float(np.finfo(np.float64).eps)
        reach = np.min(gain * np.sqrt(instance.peak_power), axis=1, where=mask, initial=np.inf) * (1 - 4 * ulp)
        theta = np.minimum(np.minimum(alignment, instance.cap), reach)
        power, device_power, exposure = spending(gain, mask, theta)
        scale = np.full(rounds, min(1.0, instance.total_power * (1 - _SLACK) / float(power.sum())))
        for spent, budget in ((device_power, instance.device_power), (exposure, instance.device_exposure)):
            if budget is not None:
                with np.errstate(divide="ignore"):
                    ratio = np.broadcast_to(np.minimum(1.0, budget * (1 - _SLACK) / spent), mask.shape)
                np.minimum(scale, np.min(ratio, axis=1, where=mask, initial=1.0), out=scale)
        theta = theta * np.where(scale < 1, np.sqrt(scale) * (1 - 2 * ulp), 1.0)
        error = instance.errors(np.count_nonzero(mask, axis=1), np.square(theta))
        weights = instance.weights(rounds)
        objective = float(instance.offsets()[rounds - 1]) + bounds.weighted_sum(weights, error)
        share = mask[:1] if mask.strides[0] == 0 else mask  # one broadcast row
        return cls(Amplitudes(level=theta, share=share), objective, lower_bound)


def spending(gain: Floats, mask: Bools, alignment: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the power of each round [W], the power of each device [W], and Σ θ_i² of each device."""
    power, device_power, exposure = np.empty(alignment.size), np.zeros(gain.shape[1]), np.zeros(gain.shape[1])
    for i, theta in enumerate(alignment.tolist()):  # row by row, to save memory
        on = mask[i]
        each = np.square(theta / gain[i, on])
        power[i] = each.sum()
        device_power[on] += each
        exposure[on] += theta**2
    return power, device_power, exposure


def thinned(learning: Learning, rounds: int) -> tuple[Devices, Floats]:
    """Return the rounds to evaluate for a plan of I rounds, at most 256, and their weights."""
    weights = bounds.round_weights(learning, rounds)
    if rounds <= _ENOUGH:
        return np.arange(rounds), weights
    edges = np.linspace(0, rounds, _ENOUGH + 1).round().astype(np.intp)
    return (edges[:-1] + edges[1:] - 1) // 2, np.add.reduceat(weights, edges[:-1])
