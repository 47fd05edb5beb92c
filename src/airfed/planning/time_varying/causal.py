"""Decisions round by round: the gains of a round are known when it comes, of later ones only their law.

The law is known by draws of it. From them the planner learns, once, what the later rounds are going to spend at each
price of a watt. In round i it then looks for the price at which this round, whose gains are known, and the expected
rest together spend what is left; the round is solved at that price. Devices' own budgets have prices of their own,
learned from the same draws and moved with what each device has left. What is left also limits the round itself, so
that no budget is ever exceeded, whatever the gains turn out to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from airfed.planning._equal import Floats
from airfed.planning.time_varying._cells import Bools, cheapest
from airfed.planning.time_varying._many import Budgets, Market
from airfed.planning.time_varying._price import PriceSearch
from airfed.planning.time_varying._round import Answers, Ordered, Unordered
from airfed.planning.time_varying.clairvoyant import clairvoyant, solver_of, strongest
from airfed.planning.time_varying.myopic import within
from airfed.planning.time_varying.solution import Solution
from airfed.planning.time_varying.instance import Instance
from airfed.problem import InfeasibleError

Sampler = Callable[[Floats], Floats]

_STEP = 0.25  # of ln(price), between the prices at which the rest is known
_FREE = 1 - 1e-6  # of what is spent without a price: the lowest price of interest spends that much
_DEAR = 1e-2  # of the budget: the highest one spends so little
_WIDEST = 60.0
_LOOKS = 60  # at prices of many budgets
_SAMPLES = 8  # draws from which those are learned, at most
_SHARE = 0.9  # of what a device, or all of them, have left, that a round before the last may take at most
_FIRMEST = 100.0  # by which factor one price moves at most against the others, with what is left
_FAINT = 1e-3  # of the mean: the least worth of a budget, so that one that turns out to be scarce has a price to raise
_RANGE = 4.0  # of ln(price), around those learned
_FINE = 1e-2
_SLACK = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class Averaged:
    """The same rounds in several draws, at one price each: the mean value and the mean power."""

    solvers: list[Ordered | Unordered]

    def at(self, price: Floats) -> Answers:
        """Solve the rounds in every draw."""
        each = [solver.at(price) for solver in self.solvers]
        one = np.ones(price.size)
        return Answers(
            value=np.mean([answers.value for answers in each], axis=0),
            square=np.mean([answers.power for answers in each], axis=0),
            size=one.astype(np.intp),
            load=one,
            limit=one,
        )


class Causal:
    """A planner that decides one round after the other.

    Args:
        instance: the limits; its gains are not looked at.
        law: draws of the gains, (draws, R, N); or a function that makes some for the rounds to come, given those seen
            so far: from (i, N) to (draws, R − i, N). A function is asked in each round anew; where devices
            have budgets of their own, only before the first.
        rounds: I; None: the best on the draws.

    Raises:
        ValueError: the draws have another number of devices, or too few rounds.
    """

    def __init__(self, instance: Instance, law: Floats | Sampler, *, rounds: int | None = None) -> None:
        self._law = law if callable(law) else None
        draws = np.asarray(law(np.empty((0, instance.num_devices))) if callable(law) else law, dtype=np.float64)
        if draws.ndim != 3 or draws.shape[2] != instance.num_devices or not draws.size:
            raise ValueError(f"Expected draws of shape (draws, rounds, {instance.num_devices}); got {draws.shape}.")
        expected = instance.with_gain(draws.reshape(-1, instance.num_devices))
        if (rounds or 1) > expected.learning.total_steps or (rounds or 1) > draws.shape[1]:
            raise ValueError(
                f"Expected rounds={rounds} <= the rounds of the draws, {draws.shape[1]}, and the local steps."
            )
        self.field, self.unit = expected.units()
        self._instances = [instance.with_gain(draw).scaled(expected.units())[0] for draw in draws]
        self.budgets = Budgets.of(self._instances[0])
        self.instance = self._instances[0]
        if instance.one_price:
            self._learn_one(rounds)
        else:
            self._learn_many(rounds)

    @property
    def start(self) -> Floats:
        """What is left before the first round: total power, batteries, exposures, in the planner's own units."""
        return self.budgets.amounts * (1 - 4 * _SLACK)  # `Solution.within` must find nothing to lower

    def decide(self, seen: Floats, left: Floats) -> tuple[Bools, float, Floats]:
        """Return K_i, θ_i and what is left after the round.

        Args:
            seen: the gains of the rounds up to this one, (i + 1, N).
            left: what is left before it.

        Raises:
            InfeasibleError: nobody can be heard in this round.
        """
        index = len(seen) - 1
        if not seen[-1].any():
            raise InfeasibleError(f"No plan fits: every gain of round {index + 1} is 0 (peak_power).")
        gain = np.ldexp(seen[-1], -self.field)
        last = index == self.rounds - 1
        total, charge, hidden = self.budgets.split(left * (1.0 if last else _SHARE), otherwise=np.inf)
        if last:
            member, square = within(self.instance, gain, total, charge, hidden)
        elif self.instance.one_price:
            member, square = self._at_one(index, seen, gain, float(left[0]))
        else:
            member, square = self._at_many(index, gain, left, charge, hidden, total)
        load = np.square(1.0 / gain[member])
        square = min(square, total / float(load.sum())) * (1 - _SLACK)
        power, exposure = np.zeros(gain.size), np.where(member, square, 0.0)
        power[member] = square * load
        return member, math.sqrt(square) * self.unit, left - self.budgets.joined(power, exposure)

    # the total power only

    def _learn_one(self, rounds: int | None) -> None:
        averaged = Averaged(solvers=[solver_of(instance) for instance in self._instances])
        search = PriceSearch(self.instance, averaged, rounds=rounds)
        self.rounds = search.solve(only=rounds)
        self._slopes = self.instance.slopes(self.rounds)
        price = search.looks[-1].price[self.rounds - 1]
        start = math.log(price) if price > 0 else search.dearer(self.rounds, 0) + float(search.slopes[self.rounds - 1])

        def spend(at: float) -> Floats:
            return averaged.at(np.exp(at + self._slopes)).power

        free = float(search.looks[0].spent[self.rounds - 1])
        low, high = start, start
        while low > start - _WIDEST and float(spend(low).sum()) < _FREE * free:
            low -= 1.0
        while high < start + _WIDEST and float(spend(high).sum()) > _DEAR * self.instance.total_power:
            high += 1.0
        self._grid = np.arange(low, high + _STEP, _STEP)
        if self._law is None:
            power = [spend(at) for at in self._grid.tolist()]
            self._rest = np.log(np.cumsum(np.array(power)[:, ::-1], axis=1)[:, ::-1])  # from round i on

    def _expected(self, index: int, seen: Floats) -> Callable[[float], float]:
        """What the rounds after this one are expected to spend at a price."""
        if self._law is None:
            row = self._rest[:, index + 1]
            return lambda at: math.exp(float(np.interp(at, self._grid, row)) - 0.5 * self._beyond(at))
        draws = np.asarray(self._law(seen), dtype=np.float64)[:, : self.rounds - index - 1]
        averaged = Averaged(solvers=[solver_of(self.instance.with_gain(np.ldexp(draw, -self.field))) for draw in draws])
        return lambda at: float(averaged.at(np.exp(at + self._slopes[index + 1 :])).power.sum())

    def _beyond(self, at: float) -> float:
        """How far a price is above the known ones: there power falls as its root; below them, limits hold it."""
        return max(0.0, at - float(self._grid[-1]))

    def _at_one(self, index: int, seen: Floats, gain: Floats, left: float) -> tuple[Bools, float]:
        solver = solver_of(self.instance.with_gain(gain[None]))
        expected = self._expected(index, seen)

        def answer(at: float) -> Answers:
            return solver.at(np.exp([at + self._slopes[index]]))

        low, high = float(self._grid[0]), float(self._grid[-1]) + _WIDEST
        found = answer(low)
        if found.power[0] + expected(low) > left:
            while high - low > 1e-3:
                middle = (low + high) / 2
                here = answer(middle)
                if here.power[0] + expected(middle) > left:
                    low = middle
                else:
                    high = middle
            found = answer(high)
        member = strongest(gain[None], found.size)[0] if found.member is None else found.member[0]
        return member, float(found.square[0])

    # budgets of devices, too

    def _learn_many(self, rounds: int | None) -> None:
        self.rounds = rounds or clairvoyant(self.instance).rounds
        markets = [Market(instance, self.rounds) for instance in self._instances[:_SAMPLES]]
        worth = self._settle(markets) * self.budgets.amounts
        self._price = np.maximum(worth, _FAINT * worth.mean()) / self.budgets.amounts
        self._steep = np.exp(self.instance.slopes(self.rounds))
        self._grid = np.arange(-_RANGE, _RANGE + _STEP, 2 * _STEP)
        used = np.mean([[self._uses(market, at) for at in self._grid] for market in markets], axis=0)  # (prices, I, …)
        # from round i on: of each budget at the prices learned, and its worth and the total power at all prices
        self._needed = np.cumsum(used[self._grid.size // 2, ::-1], axis=0)[::-1]
        both = np.stack((used @ self._price, used[:, :, 0]), axis=2)
        self._both = np.log(np.cumsum(both[:, ::-1], axis=1)[:, ::-1])

    def _settle(self, markets: list[Market]) -> Floats:
        """The prices at which all draws together spend the budgets in the mean."""
        price, kept, best = markets[0].begin(), markets[0].begin(), -math.inf
        for number in range(_LOOKS):
            spent, dual = np.zeros(price.size), 0.0
            for market in markets:
                square, member = market.look(price, self.rounds)
                spent += self.budgets.used(member, square, market.load) / len(markets)
                dual += float(market.latest[-1])
            if dual > best:
                best, kept = dual, price
            price = self.budgets.moved(price, spent, number)
        return kept

    def _uses(self, market: Market, at: float) -> Floats:
        """What each round spends of each budget at exp(at) times the prices learned."""
        square, member = market.look(self._price * math.exp(at), self.rounds)
        rows = [slice(i, i + 1) for i in range(self.rounds)]
        return np.array([self.budgets.used(member[row], square[row], market.load[row]) for row in rows])

    def _at_many(
        self, index: int, gain: Floats, left: Floats, charge: Floats, hidden: Floats, total: float
    ) -> tuple[Bools, float]:
        """Solve the round at the prices learned, tilted to those who have little left, all of them times one number.

        That number is such that this round and the expected rest spend no more than is left: neither of its worth nor
        of the total power, which all devices share.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            load = np.where(gain > 0, np.square(1.0 / gain), 0.0)
            reach = np.where(gain > 0, np.minimum(np.minimum(charge, total) / load, hidden), 0.0)
        limit = np.minimum(np.square(gain) * self.instance.peak_power, reach)
        worth = float(self._price @ left)
        need = self._needed[index]
        scarce = need / np.maximum(left, 1e-300) * worth / float(self._price @ need)
        tilted = self._price * np.clip(scarce, 1 / _FIRMEST, _FIRMEST) * float(self._steep[index])
        cost = self.budgets.cost(tilted, load)
        cost[limit == 0] = np.inf
        worth_later, power_later = self._both[:, index + 1].T

        def answer(at: float) -> tuple[Bools, float, bool]:
            _, square, member = cheapest(
                cost[None] * math.exp(at),
                limit[None],
                cap=self.instance.cap,
                noise_weight=self.instance.noise_weight,
                rtol=1e-6,
            )
            spent = self.budgets.used(member, square, load[None])
            fall = 0.5 * self._beyond(at)
            dear = float(self._price @ spent) + math.exp(float(np.interp(at, self._grid, worth_later)) - fall)
            power = float(spent[0]) + math.exp(float(np.interp(at, self._grid, power_later)) - fall)
            return member[0], float(square[0]), dear > worth or power > left[0]

        low, high = -_RANGE, 4 * _RANGE
        member, square, over = answer(low)
        if over:
            while high - low > _FINE:
                middle = (low + high) / 2
                if answer(middle)[2]:
                    low = middle
                else:
                    high = middle
            member, square, _ = answer(high)
        return (member, square) if member.any() else within(self.instance, gain, total, charge, hidden)


def causal(instance: Instance, law: Floats | Sampler, *, rounds: int | None = None) -> Solution:
    """Return what the causal planner decides when the instance's gains come one round after the other.

    Args:
        instance: the gains as they turn out to be, and the limits.
        law, rounds: as in `Causal`.

    Raises:
        InfeasibleError: nobody can be heard in one of the rounds.
    """
    planner = Causal(instance, law, rounds=rounds)
    left = planner.start
    members, alignment = np.zeros((planner.rounds, instance.num_devices), dtype=np.bool_), np.zeros(planner.rounds)
    for i in range(planner.rounds):
        members[i], alignment[i], left = planner.decide(instance.gain[: i + 1], left)
    return Solution.within(instance, members, alignment)
