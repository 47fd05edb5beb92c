"""A decision for each round."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from airfed import convergence
from airfed.planning._equal import Floats, Integers
from airfed.planning.fading._cells import Bools
from airfed.planning.fading.world import World
from airfed.problem import Learning

_SLACK = 1e-12  # of a budget, left unspent: whoever adds up again may do so in another order
_ENOUGH = 256  # rounds that are looked at to judge a number of rounds


@dataclass(frozen=True, kw_only=True, eq=False)
class Sequence:
    """A decision for each of I rounds.

    Args:
        member: who is in K_i, (I, N).
        alignment: θ_i, (I,).
        objective: the bound of Theorem 1, with the offset of I.
        lower_bound: no plan of any number of rounds that was allowed has a smaller objective; −inf where none is known.
    """

    member: Bools
    alignment: Floats
    objective: float
    lower_bound: float = -np.inf

    @property
    def rounds(self) -> int:
        """I."""
        return self.alignment.size

    @property
    def scheduled(self) -> tuple[Integers, ...]:
        """K_i as ascending indices."""
        return tuple(np.flatnonzero(row) for row in self.member)

    @property
    def gap(self) -> float:
        """How far the objective may be above the optimum, as a share of the lower bound; infinite without one."""
        return math.inf if self.lower_bound == -math.inf else self.objective / self.lower_bound - 1.0

    @classmethod
    def of(cls, world: World, member: Bools, alignment: Floats, *, lower_bound: float = -math.inf) -> Sequence:
        """Return the decision with θ lowered where float64 would carry it beyond a limit, and its objective.

        Args:
            world: gains and limits.
            member, alignment: the decision.
            lower_bound: of the objective.
        """
        rounds = alignment.size
        gain = world.gain[:rounds]
        ulp = float(np.finfo(np.float64).eps)
        reach = np.min(gain * np.sqrt(world.peak_power), axis=1, where=member, initial=np.inf) * (1 - 4 * ulp)
        theta = np.minimum(np.minimum(alignment, world.cap), reach)
        power, device_power, exposure = spending(gain, member, theta)
        scale = np.full(rounds, min(1.0, world.total_power * (1 - _SLACK) / float(power.sum())))
        for spent, budget in ((device_power, world.device_power), (exposure, world.device_exposure)):
            if budget is not None:
                with np.errstate(divide="ignore"):
                    ratio = np.minimum(1.0, budget * (1 - _SLACK) / spent)
                np.minimum(
                    scale, np.min(np.broadcast_to(ratio, member.shape), axis=1, where=member, initial=1.0), out=scale
                )
        theta = theta * np.where(scale < 1, np.sqrt(scale) * (1 - 2 * ulp), 1.0)
        size = np.count_nonzero(member, axis=1)
        with np.errstate(over="ignore", divide="ignore"):
            error = 4.0 * np.square(1.0 - size / world.num_devices) + world.noise_weight / np.square(size * theta)
        weights = world.weights(rounds)
        value = float(np.sum(weights * error, where=weights > 0))
        objective = float(world.offsets()[rounds - 1]) + value
        return cls(member=member, alignment=theta, objective=objective, lower_bound=lower_bound)


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
    weights = convergence.round_weights(learning, rounds)
    if rounds <= _ENOUGH:
        return np.arange(rounds), weights
    edges = np.linspace(0, rounds, _ENOUGH + 1).round().astype(np.intp)
    return (edges[:-1] + edges[1:] - 1) // 2, np.add.reduceat(weights, edges[:-1])
