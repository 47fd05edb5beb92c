"""Prices of many budgets: the total power, each device's battery, and each device's privacy over the training.

To device k, x = θ² costs (ν + β_k)/|h_k|² + λ_k in a round. As with one price (see `_price`), the prices that round i
sees fall by the factor η from each round to the next whatever I is, so that one sequence of prices gives a dual value
for every I:

    D_I = offset_I + Σ_{i<I} w_i·F_i − (ν·P_tot + Σ_k β_k·battery_k + Σ_k λ_k·exposure_k).

The prices are found as a market finds them: what is overspent becomes dearer, what is left over cheaper, each price by
a power of (spent/budget). Where x is not at a limit, spending falls as the root of its price, so that the power 2 would
settle a single price at once; a smaller power that falls settles many. Any prices give a valid bound; the best is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from airfed.planning._equal import Floats
from airfed.planning.time_varying._cells import Bools, cheapest
from airfed.planning.time_varying._price import dual_values
from airfed.planning.time_varying.instance import Instance

_POWER = 1.5
_BOLDEST = 1.5  # of ln(price), in one look
_RTOL = 1e-6  # of a round's value: what its search may leave open (on the safe side)
_FAINT = 1e-12  # a price relative to the highest, from which it can recover


@dataclass(frozen=True, kw_only=True, eq=False)
class Budgets:
    """The budgets of a instance in one vector: the total power, the batteries if any, the exposures if any."""

    num_devices: int
    amounts: Floats
    batteries: bool
    exposures: bool

    @classmethod
    def of(cls, instance: Instance) -> Budgets:
        """The instance's budgets."""
        parts = [np.array([instance.total_power])]
        parts += [part for part in (instance.device_power, instance.device_exposure) if part is not None]
        return cls(
            num_devices=instance.num_devices,
            amounts=np.concatenate(parts),
            batteries=instance.device_power is not None,
            exposures=instance.device_exposure is not None,
        )

    def split(self, vector: Floats, otherwise: float = 0.0) -> tuple[float, Floats, Floats]:
        """What a vector says of the total, of each battery and of each exposure; `otherwise` where there is none."""
        none = np.full(self.num_devices, otherwise)
        after = 1 + self.num_devices * self.batteries
        return float(vector[0]), vector[1:after] if self.batteries else none, vector[after:] if self.exposures else none

    def joined(self, power: Floats, exposure: Floats) -> Floats:
        """One vector of the power and of the θ² of each device."""
        parts = [np.array([power.sum()])]
        parts += [power] if self.batteries else []
        parts += [exposure] if self.exposures else []
        return np.concatenate(parts)

    def cost(self, price: Floats, load: Floats) -> Floats:
        """What x costs each device: (ν + β_k)·a_k + λ_k."""
        total, battery, exposure = self.split(price)
        return np.asarray((total + battery) * load + exposure)

    def used(self, member: Bools, square: Floats, load: Floats) -> Floats:
        """What some rounds spend of each budget."""
        shown = np.where(member, square[:, None], 0.0)
        return self.joined(np.sum(shown * load, axis=0, where=member), shown.sum(axis=0))

    def moved(self, price: Floats, spent: Floats, number: int) -> Floats:
        """The prices after look `number`: dearer where more than the budget is spent, cheaper where less."""
        power = _POWER / (1 + max(0, number - 10) / 10)
        with np.errstate(divide="ignore"):
            step = np.clip(power * np.log(spent / self.amounts), -_BOLDEST, _BOLDEST)
        worth = price * self.amounts * np.exp(step)
        return np.asarray(np.maximum(worth, _FAINT * worth.max()) / self.amounts)


class Market:
    """The rounds of a instance at prices for every budget.

    Args:
        instance: in units in which P_tot is about 1.
        rounds: the largest I to think of.
    """

    def __init__(self, instance: Instance, rounds: int) -> None:
        self.instance, self.rounds = instance, rounds
        gain = instance.gain[:rounds]
        with np.errstate(divide="ignore"):
            self.load = np.where(gain > 0, np.square(1.0 / gain), 0.0)  # who cannot be heard is kept out by `limit`
        # one round alone may not exceed a battery or an exposure: without a word on this the bound would be lower
        peak = (
            instance.peak_power
            if instance.device_power is None
            else np.minimum(instance.peak_power, instance.device_power)
        )
        self.limit = np.square(gain) * peak
        if instance.device_exposure is not None:
            self.limit = np.where(gain > 0, np.minimum(self.limit, instance.device_exposure), 0.0)
        self.steep = np.exp(instance.slopes(rounds))
        self.offsets = instance.offsets()[:rounds]
        self.budgets = Budgets.of(instance)
        self.best = np.full(rounds, -math.inf)  # D_I

    def look(self, price: Floats, rounds: int) -> tuple[Floats, Bools]:
        """Solve the rounds 0..rounds−1 at the prices of the last of all: x and K. The best D_I are kept."""
        cost = self.budgets.cost(price, self.load[:rounds]) * self.steep[:rounds, None]
        cost[self.limit[:rounds] == 0] = np.inf
        value, square, member = cheapest(
            cost, self.limit[:rounds], cap=self.instance.cap, noise_weight=self.instance.noise_weight, rtol=_RTOL
        )
        paid = self.steep[:rounds] * float(price @ self.budgets.amounts)
        dual = dual_values(self.instance, self.offsets[:rounds], value, paid)
        np.maximum(self.best[:rounds], dual, out=self.best[:rounds])
        self.latest = dual
        return square, member

    def begin(self) -> Floats:
        """Prices to begin with: what the noise would cost everybody on air, shared between the budgets."""
        load = float(np.median(self.load[self.load > 0]))
        amounts = self.budgets.amounts
        worth = math.sqrt(self.instance.noise_weight * load * self.rounds / amounts[0])
        share = np.full(amounts.size, worth / (amounts.size - 1))
        share[0] = worth
        return np.asarray(share / amounts / float(self.steep[0]) ** 0.5)

    def settle(self, rounds: int, price: Floats, looks: int, reach: int) -> tuple[Floats, Floats, Bools]:
        """The prices at which D_I is largest for one I, among so many; and x and K there.

        Args:
            rounds: I.
            price: to begin with.
            looks: how many.
            reach: the largest I whose bound is still of interest.
        """
        best = -math.inf
        kept = (price, np.empty(0), np.empty((0, 0), dtype=np.bool_))
        for number in range(looks):
            square, member = self.look(price, max(rounds, reach))
            if self.latest[rounds - 1] > best:
                best, kept = float(self.latest[rounds - 1]), (price, square[:rounds], member[:rounds])
            spent = self.budgets.used(member[:rounds], square[:rounds], self.load[:rounds])
            price = self.budgets.moved(price, spent, number)
        return kept
