"""What a time-varying planner returns."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from airfed import bounds
from airfed.planning._equal import Integers
from airfed.planning.amplitudes import Amplitudes, Bools, Floats
from airfed.planning.time_varying.instance import Instance
from airfed.problem import Learning

_SLACK = 1e-12  # of a budget, left unspent: whoever adds up again may do so in another order
_ENOUGH = 256  # rounds that are looked at to judge a number of rounds


class Solution(NamedTuple):
    """Amplitudes of all rounds, and what they are worth.

    Attributes:
        amplitudes: a_ik.
        objective: the bound of Theorem 1; infinite where nobody asked.
        lower_bound: no aligned plan of any number of rounds that was allowed has a smaller objective; −inf where none
            is known.
    """

    amplitudes: Amplitudes
    objective: float
    lower_bound: float

    @classmethod
    def of(cls, amplitudes: Amplitudes) -> Solution:
        """Return amplitudes of which nobody said what they are worth."""
        return cls(amplitudes, math.inf, -math.inf)

    @property
    def rounds(self) -> int:
        """I."""
        return self.amplitudes.rounds

    @property
    def gap(self) -> float:
        """How far the objective may be above the optimum, as a share of the lower bound; infinite without one."""
        return math.inf if self.lower_bound == -math.inf else self.objective / self.lower_bound - 1.0

    @classmethod
    def within(
        cls, instance: Instance, member: Bools, alignment: Floats, *, lower_bound: float = -math.inf
    ) -> Solution:
        """Return aligned rounds with θ lowered where float64 would carry it beyond a limit.

        Args:
            instance: gains and limits.
            member: who is in K_i, (I, N).
            alignment: θ_i, (I,).
            lower_bound: of the objective.
        """
        rounds = alignment.size
        gain = instance.gain[:rounds]
        ulp = float(np.finfo(np.float64).eps)
        reach = np.min(gain * np.sqrt(instance.peak_power), axis=1, where=member, initial=np.inf) * (1 - 4 * ulp)
        theta = np.minimum(np.minimum(alignment, instance.cap), reach)
        power, device_power, exposure = spending(gain, member, theta)
        scale = np.full(rounds, min(1.0, instance.total_power * (1 - _SLACK) / float(power.sum())))
        for spent, budget in ((device_power, instance.device_power), (exposure, instance.device_exposure)):
            if budget is not None:
                with np.errstate(divide="ignore"):
                    ratio = np.minimum(1.0, budget * (1 - _SLACK) / spent)
                np.minimum(
                    scale, np.min(np.broadcast_to(ratio, member.shape), axis=1, where=member, initial=1.0), out=scale
                )
        theta = theta * np.where(scale < 1, np.sqrt(scale) * (1 - 2 * ulp), 1.0)
        size = np.count_nonzero(member, axis=1)
        with np.errstate(over="ignore", divide="ignore"):
            error = 4.0 * np.square(1.0 - size / instance.num_devices) + instance.noise_weight / np.square(size * theta)
        weights = instance.weights(rounds)
        value = float(np.sum(weights * error, where=weights > 0))
        objective = float(instance.offsets()[rounds - 1]) + value
        share = member[:1] if member.strides[0] == 0 else member  # one row was broadcast
        return cls(Amplitudes(level=theta, share=share), objective, lower_bound)


def spending(gain: Floats, member: Bools, alignment: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the power of each round [W], that of each device [W], and each device's Σ θ_i².

    Args:
        gain: |h_k^i|, (I, N).
        member: who is in K_i, (I, N).
        alignment: θ_i, (I,).
    """
    power, device_power, exposure = np.empty(alignment.size), np.zeros(gain.shape[1]), np.zeros(gain.shape[1])
    for i, theta in enumerate(alignment.tolist()):  # row by row: what is held does not grow with the rounds
        on = member[i]
        each = np.square(theta / gain[i, on])
        power[i] = each.sum()
        device_power[on] += each
        exposure[on] += theta**2
    return power, device_power, exposure


def thinned(learning: Learning, rounds: int) -> tuple[Integers, Floats]:
    """Return which rounds are looked at to judge a plan of I rounds, evenly spaced, and the weights they stand for.

    Up to 256 rounds these are all of them. The time to choose I then does not grow with the square of the rounds.
    """
    weights = bounds.round_weights(learning, rounds)
    if rounds <= _ENOUGH:
        return np.arange(rounds), weights
    edges = np.linspace(0, rounds, _ENOUGH + 1).round().astype(np.intp)
    return (edges[:-1] + edges[1:] - 1) // 2, np.add.reduceat(weights, edges[:-1])
