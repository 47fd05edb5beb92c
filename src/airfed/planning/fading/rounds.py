"""The rounds of a plan whose rounds differ in their devices, one by one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from airfed.planning._equal import Floats
from airfed.planning.fading._cells import Bools
from airfed.planning.sequence import Entries, PlannedRound
from airfed.planning.uplink import Uplink, Uploads
from airfed.problem import Problem


@dataclass(frozen=True, kw_only=True, eq=False)
class VaryingSequence(Entries):
    """The rounds of a plan; index it as a list. It answers what `RoundSequence` answers for a constant one.

    Args:
        problem: the gains.
        uplink: how the updates reach the receiver.
        member: who is in K_i, (I, N).
        scheduled: who is in any of them, ascending.
        local_steps: E_i.
        alignments, clip_norms, mus: θ_i, ϖ_i and μ_i, each (I,).
        delta: of the budget.
    """

    problem: Problem
    uplink: Uplink
    member: Bools
    scheduled: NDArray[np.intp]
    local_steps: tuple[int, ...]
    alignments: Floats
    clip_norms: Floats
    mus: Floats
    delta: float

    def _entry(self, place: int) -> PlannedRound:
        power = self._power(place)
        return PlannedRound(
            index=place,
            scheduled=np.flatnonzero(self.member[place]),
            alignment=float(self.alignments[place]),
            local_steps=self.local_steps[place],
            clip_norm=float(self.clip_norms[place]),
            mu=float(self.mus[place]),
            delta=self.delta,
            power_planned=float(self.powers[place]),
            power=power,
        )

    def uploads(self, place: int) -> Uploads:
        """Return how the uploads of a round arrive, and what they cost."""
        fleet, on, theta = self.problem.fleet, self.member[place], float(self.alignments[place])
        return self.uplink.uploads(self.problem, fleet.gain_in(place)[on], fleet.peak_power[on], theta, len(self))

    def _power(self, place: int) -> Floats:
        """[W] of each device of K_i."""
        power = self.uploads(place).power
        power.flags.writeable = False
        return power

    @cached_property
    def powers(self) -> Floats:
        """[W] of each round, at most."""
        with np.errstate(over="ignore"):
            return np.array([float(np.sum(self._power(place))) for place in range(len(self))])

    def power_planned(self, rounds: int) -> float:
        """Return [W] of all devices in the first `rounds` rounds together, at most."""
        with np.errstate(over="ignore"):
            return float(np.sum(self.powers[:rounds]))

    def device_power(self, rounds: int) -> Floats:
        """Return [W] of each scheduled device in the first `rounds` rounds together, at most."""
        total = np.zeros(self.problem.fleet.num_devices)
        for place in range(rounds):  # row by row: what is held does not grow with the rounds
            total[self.member[place]] += self._power(place)
        return total[self.scheduled]

    def largest_power(self) -> Floats:
        """Return [W] of each scheduled device in the round in which it sends most."""
        largest = np.zeros(self.problem.fleet.num_devices)
        for place in range(len(self)):
            on = self.member[place]
            largest[on] = np.maximum(largest[on], self._power(place))
        return largest[self.scheduled]

    def least_power(self) -> tuple[int, float]:
        """Return the device that transmits least in a single round, and how much [W]."""
        entries = (self._power(place) for place in range(len(self)))
        least, place = min((float(power.min()), place) for place, power in enumerate(entries))
        return int(np.flatnonzero(self.member[place])[self._power(place).argmin()]), least

    def exposures(self) -> Floats:
        """Return Σ μ_i² over the rounds in which it sends, of each scheduled device."""
        total = np.zeros(self.problem.fleet.num_devices)
        for place, mu in enumerate(self.mus.tolist()):
            total[self.member[place]] += mu**2
        return total[self.scheduled]
