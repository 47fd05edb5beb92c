"""The table of received amplitudes a_ik of a plan, and its rounds one by one."""

from __future__ import annotations

import collections.abc
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _validate
from airfed.planning import limits
from airfed.planning.limits import Bools, Devices, Floats
from airfed.planning.method import Signal
from airfed.privacy import gaussian_epsilon
from airfed.privacy.exposure import ParticipationMask

if TYPE_CHECKING:
    from airfed.planning.plan import Plan

_SHARE_SLACK: Final = 2.0**-49  # of μ_ik/μ_i: more than the rounding of amplitudes, factors and their quotient


@dataclass(frozen=True, kw_only=True, eq=False)
class Amplitudes:
    """Received amplitudes a_ik = θ_i · share_ik of I rounds and N devices; 0 means that a device is not scheduled.

    Equal rows are stored once: a plan of equal rounds has one row of shares and a broadcast level, so that 10⁶ devices
    and 200 rounds take one row of booleans.

    >>> table = Amplitudes.aligned([0, 2], num_devices=3, level=0.5, rounds=4)
    >>> table.dense.shape, table.dense[0], table.constant
    ((4, 3), array([0.5, 0. , 0.5]), True)
    """

    level: Floats  # θ_i > 0, the largest amplitude of each round, (I,)
    share: Bools | Floats  # a_ik/θ_i in [0, 1], (I, N), or (1, N) for equal rounds; booleans for aligned devices

    def __post_init__(self) -> None:
        level, share = np.asarray(self.level, dtype=np.float64), np.asarray(self.share)
        if share.dtype != np.bool_:
            share = share.astype(np.float64, copy=False)
        if level.ndim != 1 or share.ndim != 2 or not level.size or len(share) not in (1, level.size):
            raise ValueError(f"share must have shape (1 or rounds, N), got {share.shape} for {level.size} rounds.")
        if not np.all((level > 0) & np.isfinite(level)):
            raise ValueError("level must be positive and finite in every round.")
        if not share.any(axis=1).all():
            raise ValueError("share must have a scheduled device in every round.")
        if share.dtype != np.bool_:
            if not (share.min() >= 0 and np.all(share.max(axis=1) == 1.0)):
                raise ValueError("share must lie between 0 and 1, and its largest entry in each round must be 1.")
            if np.all((share == 0) | (share == 1)):
                share = share == 1
        if all(np.array_equal(row, share[0]) for row in share[1:]):
            share = share[:1]
        for name, array in (("level", level), ("share", share)):
            array = array.copy() if array.flags.writeable else array  # so that it is immutable
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @classmethod
    def aligned(cls, devices: ArrayLike, *, num_devices: int, level: float, rounds: int) -> Amplitudes:
        """Return equal rounds of the given devices with amplitude θ = level."""
        _validate.positive_integer(rounds=rounds)
        share = np.zeros((1, num_devices), dtype=np.bool_)
        share[0, indices(devices, num_devices)] = True
        return cls(level=np.broadcast_to(np.float64(level), (rounds,)), share=share)

    @classmethod
    def of_table(cls, table: Floats, *, rounds: int | None = None) -> Amplitudes:
        """Return the compact form of a_ik, (I, N), or of one row (N,) for all `rounds`."""
        rows = np.atleast_2d(np.asarray(table, dtype=np.float64))
        if rows.ndim != 2 or not rows.size or not (np.all(rows >= 0) and np.all(np.isfinite(rows))):
            raise ValueError(f"amplitudes must be finite and non-negative, (rounds, N); got shape {rows.shape}.")
        level = rows.max(axis=1)
        if not np.all(level > 0):
            raise ValueError("amplitudes must have a positive entry in every round.")
        share = rows / level[:, None]
        if np.count_nonzero(share) != np.count_nonzero(rows):
            raise ValueError("amplitudes of one round must lie within 300 orders of magnitude of each other.")
        return cls(level=level if rounds is None else np.broadcast_to(level[0], (rounds,)), share=share)

    @property
    def rounds(self) -> int:
        """I."""
        return self.level.size

    @property
    def num_devices(self) -> int:
        """N."""
        return int(self.share.shape[1])

    @property
    def equal(self) -> bool:
        """Whether all devices scheduled in a round have the same amplitude (the paper's alignment)."""
        return self.share.dtype == np.bool_

    @cached_property
    def constant(self) -> bool:
        """Whether all rounds are equal."""
        return len(self.share) == 1 and bool(np.all(self.level == self.level[0]))

    @cached_property
    def scheduled(self) -> Devices:
        """The devices scheduled in at least one round, ascending."""
        devices = np.flatnonzero(self.share.any(axis=0))
        devices.flags.writeable = False
        return devices

    @cached_property
    def sizes(self) -> NDArray[np.intp]:
        """|K_i|, (I,)."""
        return np.broadcast_to(np.count_nonzero(self.share, axis=1), (self.rounds,))

    def shares(self, index: int) -> Bools | Floats:
        """Return a_ik/θ_i of round i, (N,)."""
        return np.asarray(self.share[index if len(self.share) > 1 else 0])

    def devices(self, index: int) -> Devices:
        """Return K_i, ascending."""
        return self.scheduled if len(self.share) == 1 else np.flatnonzero(self.share[index])

    def received(self, index: int) -> Floats:
        """Return a_ik of the scheduled devices of round i, (|K_i|,)."""
        share = self.shares(index)[self.devices(index)]
        return np.asarray(share * self.level[index], dtype=np.float64)

    def rounds_of(self, device: int) -> NDArray[np.intp]:
        """Return the rounds in which a device is scheduled."""
        column = self.share[:, device] > 0
        return np.flatnonzero(np.broadcast_to(column, (self.rounds,)))

    @property
    def dense(self) -> Floats:
        """a_ik, (I, N), read-only; one row is broadcast if all rounds are equal."""
        if self.constant:
            return np.broadcast_to(self.share[0] * self.level[0], (self.rounds, self.num_devices))
        table = self.share * self.level[:, None]
        table.flags.writeable = False
        return table


def indices(devices: ArrayLike, num_devices: int) -> Devices:
    """Return device indices, ascending; raise ValueError unless they are distinct and from 0 to N − 1."""
    found = np.asarray(devices)
    if found.ndim != 1 or found.dtype.kind not in "iu" or not found.size:
        raise ValueError(f"scheduled must be a list of device indices, got {devices!r:.80}.")
    found = np.sort(found)
    if found[0] < 0 or found[-1] >= num_devices or np.any(found[1:] == found[:-1]):
        raise ValueError(f"scheduled must be distinct indices from 0 to {num_devices - 1}, got {devices!r:.80}.")
    return found.astype(np.intp, copy=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRound:
    """One round of a plan."""

    index: int  # i
    scheduled: Devices  # K_i, ascending device indices
    local_steps: int  # E_i
    clip_norm: float  # ϖ_i
    signal: Signal  # the transmitted and received signal
    mu: float  # μ_i: the round is μ_i-Gaussian-DP for every scheduled device
    device_mu: Floats  # μ_ik ≤ μ_i of the scheduled devices, (|K_i|,)
    delta: float  # δ of the budget, for `epsilon`

    @property
    def amplitude(self) -> Floats:
        """a_ik of the scheduled devices, (|K_i|,)."""
        return self.signal.amplitude

    @cached_property
    def alignment(self) -> float:
        """θ_i, the largest amplitude; for aligned devices the amplitude of all."""
        return float(np.max(self.signal.amplitude))

    @property
    def power(self) -> Floats:
        """φ_k P_k [W]: the transmit power of each scheduled device, for ‖g_k‖ = ϖ_i."""
        return self.signal.power

    @cached_property
    def power_planned(self) -> float:
        """The sum of `power` [W]."""
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
    """Sums and extremes over the rounds, from one pass."""

    mu: Floats  # of each round, (I,)
    power: Floats
    divisor: Floats
    noise_std: Floats
    shortfall: Floats
    device_power: Floats  # of each device scheduled in any round, (|K|,)
    largest_power: Floats
    exposure: Floats  # Σ μ_ik² over its rounds
    least_power: float  # [W], the smallest of any device in any round
    weakest: int  # the device of `least_power`


class RoundSequence(collections.abc.Sequence[PlannedRound]):
    """The rounds of a plan, indexed as a list. Plans of equal rounds need no pass over the rounds."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __len__(self) -> int:
        return self._plan.rounds

    @overload
    def __getitem__(self, index: int) -> PlannedRound: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PlannedRound, ...]: ...
    def __getitem__(self, index: int | slice) -> PlannedRound | tuple[PlannedRound, ...]:
        selected = range(len(self))[index]
        return tuple(map(self._round, selected)) if isinstance(selected, range) else self._round(selected)

    def _round(self, index: int) -> PlannedRound:
        plan = self._plan
        return PlannedRound(
            index=index,
            scheduled=plan.amplitudes.devices(index),
            local_steps=plan.local_steps[index],
            clip_norm=plan.clip_norm,
            signal=self.signal(index),
            mu=float(self.mus[index]),
            device_mu=self.device_mus(index),
            delta=plan.problem.budget.delta,
        )

    def signal(self, index: int) -> Signal:
        """Return the transmitted and received signal of round i."""
        return self._first if self._plan.constant else self._signal(index)

    @cached_property
    def _first(self) -> Signal:
        return self._signal(0)

    def _signal(self, index: int) -> Signal:
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
    def mus(self) -> Floats:
        """μ_i, (I,)."""
        return self.totals.mu

    @property
    def powers(self) -> Floats:
        """Transmit power of each round [W], for ‖g_k‖ = ϖ, (I,)."""
        return self.totals.power

    @cached_property
    def totals(self) -> Totals:
        """Sums and extremes over the rounds."""
        plan = self._plan
        table, rounds, num_devices = plan.amplitudes, plan.rounds, plan.problem.fleet.num_devices
        of_rounds, least = np.empty((5, 1 if plan.constant else rounds)), (math.inf, 0)
        of_devices: Floats | tuple[Floats, ...] = np.zeros((3, 0 if plan.constant else num_devices))
        with np.errstate(over="ignore"):
            for index in range(of_rounds.shape[1]):
                signal, devices = self.signal(index), table.devices(index)
                mu, power, shortfall = self._mu(signal, devices, index), signal.power, signal.shortfall(num_devices)
                of_rounds[:, index] = (mu, float(np.sum(power)), signal.divisor, signal.noise_std, shortfall)
                least = min(least, (float(np.min(power)), int(devices[np.argmin(power)])))
                exposed = np.square(mu * self.mu_shares(index))
                if plan.constant:  # without a pass over the fleet
                    of_devices = (power * rounds, power, np.broadcast_to(exposed * rounds, power.shape))
                    continue
                spent, largest, exposure = of_devices
                spent[devices] += power
                largest[devices] = np.maximum(largest[devices], power)
                exposure[devices] += exposed
        if not plan.constant:
            of_devices = tuple(each[plan.scheduled] for each in of_devices)
        return Totals._make((*np.broadcast_to(of_rounds, (5, rounds)), *of_devices, *least))

    def _mu(self, signal: Signal, devices: Devices, index: int) -> float:
        """Return μ_i: the largest sensitivity of an observed device over the noise standard deviation."""
        observed = signal.amplitude * self.factors(devices, index)
        return self._plan.problem.budget.sensitivity * float(np.max(observed)) / signal.privacy_noise_std

    def mu_shares(self, index: int) -> Floats:
        """Return μ_ik/μ_i of the scheduled devices of round i, (|K_i|,), rounded up; (1,) if the plan is aligned.

        Device k is exposed by a_ik f_ik. In an aligned plan every device is charged the largest f_ik, an upper bound.
        """
        table = self._plan.amplitudes
        if self._plan.equal_mu:
            return np.ones(1)
        devices = table.devices(index)
        observed = table.shares(index)[devices] * self.factors(devices, index)
        return np.asarray(np.minimum(observed / observed.max() * (1 + _SHARE_SLACK), 1.0))

    def device_mus(self, index: int) -> Floats:
        """Return μ_ik of the scheduled devices of round i, (|K_i|,); the largest is μ_i."""
        return np.broadcast_to(self.mus[index] * self.mu_shares(index), self._plan.amplitudes.devices(index).shape)

    def mask(self, index: int) -> ParticipationMask:
        """Return the devices of round i, with μ_ik/μ_i of each where they differ."""
        return self._first_mask if self._plan.constant else self._mask(index)

    @cached_property
    def _first_mask(self) -> ParticipationMask:
        return self._mask(0)

    def _mask(self, index: int) -> ParticipationMask:
        plan, shares = self._plan, None if self._plan.equal_mu else self.mu_shares(index)
        return ParticipationMask.of(plan.amplitudes.devices(index), plan.problem.fleet.num_devices, shares)

    def factors(self, devices: Devices, index: int) -> Floats:
        """Return f_k of devices in round i: the amplitude that the adversary may observe over a_ik."""
        problem = self._plan.problem
        if not (self._plan.method.analog and self._plan.method.private and limits.amplified(problem)):
            return np.ones(devices.shape)
        found = limits.amplifications(problem)
        return np.asarray((found if found.ndim == 1 else found[index])[devices])

    def power_planned(self, rounds: int) -> float:
        """Return the power of all devices in the first `rounds` rounds [W], for ‖g_k‖ = ϖ."""
        with np.errstate(over="ignore"):
            if self._plan.constant:
                return rounds * float(self.powers[0])
            return float(np.sum(self.powers[:rounds]))

    def device_power(self, rounds: int) -> Floats:
        """Return the power of each scheduled device in the first `rounds` rounds [W], for ‖g_k‖ = ϖ."""
        if rounds == len(self):
            return self.totals.device_power
        if self._plan.constant:
            return rounds * self._first.power
        spent = np.zeros(self._plan.problem.fleet.num_devices)
        for planned in self[:rounds]:
            spent[planned.scheduled] += planned.power
        return spent[self._plan.scheduled]

    def exposures(self) -> Floats:
        """Return Σ μ_ik² over the rounds of each scheduled device."""
        return self.totals.exposure
