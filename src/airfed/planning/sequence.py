"""The rounds of a plan, one by one: code that handles a round asks for that round's entry."""

from __future__ import annotations

import collections.abc
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np

from airfed.planning import limits
from airfed.planning.amplitudes import Devices, Floats
from airfed.planning.method import Signal
from airfed.privacy import gaussian_epsilon

if TYPE_CHECKING:
    from airfed.planning.plan import Plan


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRound:
    """One round of a plan.

    Args:
        index: i.
        scheduled: K_i, ascending device indices.
        local_steps: E_i.
        clip_norm: ϖ_i.
        signal: what is transmitted and received.
        mu: μ_i: the round is μ_i-Gaussian-DP for every scheduled device.
        delta: of the budget, at which `epsilon` holds.
    """

    index: int
    scheduled: Devices
    local_steps: int
    clip_norm: float
    signal: Signal
    mu: float
    delta: float

    @property
    def amplitude(self) -> Floats:
        """a_ik of the scheduled devices, (|K_i|,)."""
        return self.signal.amplitude

    @cached_property
    def alignment(self) -> float:
        """θ_i, the largest amplitude; where devices are aligned, that of all."""
        return float(np.max(self.signal.amplitude))

    @property
    def power(self) -> Floats:
        """φ_k P_k [W]: what each scheduled device transmits in this round, at most (‖g_k‖ = ϖ_i)."""
        return self.signal.power

    @cached_property
    def power_planned(self) -> float:
        """[W] of all scheduled devices together, at most."""
        with np.errstate(over="ignore"):
            return float(np.sum(self.power))

    @property
    def alignment_coefficient(self) -> float:
        """ν_i = θ_i/ϖ_i."""
        return self.alignment / self.clip_norm

    @cached_property
    def epsilon(self) -> float:
        """Exact ε of this round at the budget's δ."""
        return gaussian_epsilon(self.mu, self.delta)


class Totals(NamedTuple):
    """What one pass over the rounds adds up: (I,) each, and (|K|,) of the devices that are ever scheduled."""

    mu: Floats
    power: Floats
    divisor: Floats
    noise_std: Floats
    shortfall: Floats
    device_power: Floats
    largest_power: Floats
    exposure: Floats


class RoundSequence(collections.abc.Sequence[PlannedRound]):
    """The rounds of a plan; index it as a list. Entries are made when they are asked for.

    Where all rounds are alike they share one signal, and no figure takes a pass over the rounds.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __len__(self) -> int:
        return self._plan.rounds

    @overload
    def __getitem__(self, index: int) -> PlannedRound: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PlannedRound, ...]: ...
    def __getitem__(self, index: int | slice) -> PlannedRound | tuple[PlannedRound, ...]:
        places = range(len(self))[index]
        return tuple(map(self._entry, places)) if isinstance(places, range) else self._entry(places)

    def _entry(self, index: int) -> PlannedRound:
        plan = self._plan
        return PlannedRound(
            index=index,
            scheduled=plan.amplitudes.devices(index),
            local_steps=plan.local_steps[index],
            clip_norm=plan.clip_norm,
            signal=self.signal(index),
            mu=float(self.mus[index]),
            delta=plan.problem.budget.delta,
        )

    def signal(self, index: int) -> Signal:
        """Return what is transmitted and received in round i."""
        return self._first if self._plan.constant else self._made(index)

    @cached_property
    def _first(self) -> Signal:
        return self._made(0)

    def _made(self, index: int) -> Signal:
        plan, fleet = self._plan, self._plan.problem.fleet
        devices = plan.amplitudes.devices(index)
        return plan.method.signal(
            plan.problem,
            gain=fleet.gain_in(index)[devices],
            peak_power=fleet.peak_power[devices],
            amplitude=plan.amplitudes.received(index),
            rounds=plan.rounds,
        )

    @property
    def alignments(self) -> Floats:
        """θ_i, (I,)."""
        return self._plan.amplitudes.level

    @property
    def mus(self) -> Floats:
        """μ_i, (I,)."""
        return self.totals.mu

    @property
    def powers(self) -> Floats:
        """[W] of each round, at most, (I,)."""
        return self.totals.power

    @cached_property
    def totals(self) -> Totals:
        """All that is added up over rounds."""
        plan = self._plan
        table, rounds, num_devices = plan.amplitudes, plan.rounds, plan.problem.fleet.num_devices
        figures = np.empty((5, 1 if plan.constant else rounds))
        of_devices: Floats | tuple[Floats, ...] = np.zeros((3, 0 if plan.constant else num_devices))
        with np.errstate(over="ignore"):
            for place in range(figures.shape[1]):
                signal, devices = self.signal(place), table.devices(place)
                mu, power = self._mu(signal, devices, place), signal.power
                figures[:, place] = (
                    mu,
                    float(np.sum(power)),
                    signal.divisor,
                    signal.noise_std,
                    signal.shortfall(num_devices),
                )
                if plan.constant:  # without a pass over the fleet
                    of_devices = (power * rounds, power, np.full(power.shape, np.square(mu) * rounds))
                    continue
                spent, largest, exposure = of_devices
                spent[devices] += power
                largest[devices] = np.maximum(largest[devices], power)
                exposure[devices] += np.square(mu)
        if not plan.constant:
            of_devices = tuple(each[plan.scheduled] for each in of_devices)
        return Totals._make((*np.broadcast_to(figures, (5, rounds)), *of_devices))

    def _mu(self, signal: Signal, devices: Devices, index: int) -> float:
        """μ_i: the sensitivity of the device that an adversary sees most strongly, over the noise that hides it."""
        seen = signal.amplitude * self.factors(devices, index)
        return self._plan.problem.budget.sensitivity * float(np.max(seen)) / signal.hidden_by

    def factors(self, devices: Devices, index: int) -> Floats:
        """Return f_k of devices in round i: how much more strongly than a_ik an adversary may see them."""
        problem = self._plan.problem
        if not (self._plan.method.radio and self._plan.method.private and limits.amplified(problem)):
            return np.ones(devices.shape)
        found = limits.amplifications(problem)
        return np.asarray((found if found.ndim == 1 else found[index])[devices])

    def power_planned(self, rounds: int) -> float:
        """Return [W] of all devices in the first `rounds` rounds together, at most."""
        with np.errstate(over="ignore"):
            if self._plan.constant:
                return rounds * float(self.powers[0])
            return float(np.sum(self.powers[:rounds]))

    def device_power(self, rounds: int) -> Floats:
        """Return [W] of each device that is ever scheduled in the first `rounds` rounds together, at most."""
        if rounds == len(self):
            return self.totals.device_power
        if self._plan.constant:
            return rounds * self._first.power
        spent = np.zeros(self._plan.problem.fleet.num_devices)
        for entry in self[:rounds]:
            spent[entry.scheduled] += entry.power
        return spent[self._plan.scheduled]

    def least_power(self) -> tuple[int, float]:
        """Return the device that transmits least in a single round, and how much [W]."""
        found = []
        for index in (0,) if self._plan.constant else range(len(self)):
            power, devices = self.signal(index).power, self._plan.amplitudes.devices(index)
            weakest = int(np.argmin(power))
            found.append((float(power[weakest]), int(devices[weakest])))
        least, device = min(found)
        return device, least

    def exposures(self) -> Floats:
        """Return Σ μ_i² over the rounds in which a device is scheduled, of each that ever is."""
        return self.totals.exposure
