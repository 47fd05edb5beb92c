"""The rounds of a plan, one by one: whoever handles a round asks for that round's entry, and nobody else.

A constant plan is a sequence of equal entries that share their arrays; entries are made when they are asked for.
"""

from __future__ import annotations

import collections.abc
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from airfed.privacy import gaussian_epsilon

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRound:
    """What a plan decides about one round, and what follows from it.

    Args:
        index: i.
        scheduled: K, ascending device indices.
        alignment: θ_i.
        local_steps: E_i.
        clip_norm: ϖ_i.
        mu: μ_i: the round is μ_i-Gaussian-DP.
        delta: of the budget, at which `epsilon` holds.
        power_planned: [W] of all scheduled devices together, at most.
        power: φ_k P_k [W]: what each scheduled device transmits in this round, at most (‖g_k‖ = ϖ_i).
    """

    index: int
    scheduled: NDArray[np.intp]
    alignment: float
    local_steps: int
    clip_norm: float
    mu: float
    delta: float
    power_planned: float
    power: Floats

    @property
    def alignment_coefficient(self) -> float:
        """ν_i = θ_i/ϖ_i."""
        return self.alignment / self.clip_norm

    @cached_property
    def epsilon(self) -> float:
        """Exact ε of this round at the budget's δ."""
        return gaussian_epsilon(self.mu, self.delta)


class Entries(collections.abc.Sequence[PlannedRound]):
    """Rounds that are made when they are asked for, as many as there are `local_steps`."""

    local_steps: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.local_steps)

    @overload
    def __getitem__(self, index: int) -> PlannedRound: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PlannedRound, ...]: ...
    def __getitem__(self, index: int | slice) -> PlannedRound | tuple[PlannedRound, ...]:
        places = range(len(self))[index]
        return tuple(map(self._entry, places)) if isinstance(places, range) else self._entry(places)

    @abstractmethod
    def _entry(self, place: int) -> PlannedRound:
        """Make one of them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundSequence(Entries):
    """The rounds of a plan that are all alike; index it as a list.

    Args:
        scheduled: K.
        local_steps: E_i.
        alignment, clip_norm, mu: θ, ϖ and μ of a round.
        power: [W] of each scheduled device in a round.
        delta: of the budget.
    """

    scheduled: NDArray[np.intp]
    local_steps: tuple[int, ...]
    alignment: float
    clip_norm: float
    mu: float
    power: Floats
    delta: float

    def _entry(self, place: int) -> PlannedRound:
        return PlannedRound(
            index=place,
            scheduled=self.scheduled,
            alignment=self.alignment,
            local_steps=self.local_steps[place],
            clip_norm=self.clip_norm,
            mu=self.mu,
            delta=self.delta,
            power_planned=self._sum,
            power=self.power,
        )

    @property
    def alignments(self) -> Floats:
        """θ_i, (I,)."""
        return np.broadcast_to(np.float64(self.alignment), len(self))

    @property
    def mus(self) -> Floats:
        """μ_i, (I,)."""
        return np.broadcast_to(np.float64(self.mu), len(self))

    @cached_property
    def _sum(self) -> float:
        with np.errstate(over="ignore"):
            return float(np.sum(self.power))

    def power_planned(self, rounds: int) -> float:
        """Return [W] of all devices in the first `rounds` rounds together, at most."""
        return self._sum * rounds

    def device_power(self, rounds: int) -> Floats:
        """Return [W] of each scheduled device in the first `rounds` rounds together, at most."""
        return self.power * rounds

    def least_power(self) -> tuple[int, float]:
        """Return the device that transmits least in a single round, and how much [W]."""
        weakest = int(np.argmin(self.power))
        return int(self.scheduled[weakest]), float(self.power[weakest])
