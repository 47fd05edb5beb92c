"""Plans round by round: the gains of a round are known when it comes, of later ones only samples.

From the samples the planner learns, once, what the later rounds are going to spend at each price of a watt (the dual
variable of the total power). In round i it then looks for the price at which this round, whose gains are known, and the
expected rest together spend what is left, and solves the round at that price. What is left also limits the round, so
that the budget is never exceeded. Where devices have budgets of their own, `planner` uses equal shares of what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from airfed.planning.limits import Bools, Floats
from airfed.planning.time_varying.clairvoyant import DualSearch, solver_of, strongest
from airfed.planning.time_varying.device_budgets import one_within
from airfed.planning.time_varying.instance import Instance, Solution
from airfed.planning.time_varying.one_round import Answers
from airfed.problem import InfeasibleError

Sampler = Callable[[Floats], Floats]

_STEP = 0.25  # of ln(price), between the prices at which the rest is known
_FREE = 1 - 1e-6  # of what is spent without a price: the lowest price of interest spends that much
_DEAR = 1e-2  # of the budget: the highest one spends so little
_WIDEST = 60.0
_SHARE = 0.9  # of what is left, that a round before the last may take at most
_SLACK = 1e-12


def _averaged(instances: list[Instance]) -> Callable[[Floats], Answers]:
    """Solve the same rounds in several draws, at one price each: the mean value and the mean power."""
    solvers = [solver_of(instance) for instance in instances]

    def at(price: Floats) -> Answers:
        each = [solver.at(price) for solver in solvers]
        value = np.mean([answers.value for answers in each], axis=0)
        power = np.mean([answers.power for answers in each], axis=0)
        one = np.ones(price.size)
        return Answers(value=value, square=power, size=one.astype(np.intp), load=one, limit=one)

    return at


class Causal:
    """A planner that decides one round after the other, where the total power is all that ties them together.

    Of `instance` only the limits count. `samples` are gains, (samples, R, N), or a function that is asked in each round
    anew, from those seen so far, (i, N), to samples of the rest, (samples, R − i, N). `rounds` None: the best on them.
    """

    def __init__(self, instance: Instance, samples: Floats | Sampler, *, rounds: int | None = None) -> None:
        self._sampler = samples if callable(samples) else None
        first = samples(np.empty((0, instance.num_devices))) if callable(samples) else samples
        draws = np.asarray(first, dtype=np.float64)
        if draws.ndim != 3 or draws.shape[2] != instance.num_devices or not draws.size:
            raise ValueError(f"Expected samples of shape (samples, rounds, {instance.num_devices}); got {draws.shape}.")
        if (rounds or 1) > min(instance.learning.total_steps, draws.shape[1]):
            raise ValueError(
                f"Expected rounds={rounds} <= the rounds of the samples, {draws.shape[1]}, and the local steps."
            )
        units = replace(instance, gain=draws.reshape(-1, instance.num_devices)).units()
        self.field, self.unit = units
        instances = [replace(instance, gain=draw).scaled(units)[0] for draw in draws]
        self.instance = instances[0]
        self._learn(_averaged(instances), rounds)

    @property
    def start(self) -> float:
        """[W] that are left before the first round, in the planner's own units."""
        return self.instance.total_power * (1 - 4 * _SLACK)  # `Solution.within` must find nothing to lower

    def decide(self, seen: Floats, left: float) -> tuple[Bools, float, float]:
        """Return K_i, θ_i and what is left after the round."""
        index = len(seen) - 1
        if not seen[-1].any():
            raise InfeasibleError(f"No plan fits: every gain of round {index + 1} is 0 (peak_power).")
        gain, last = np.ldexp(seen[-1], -self.field), index == self.rounds - 1
        total, free = left * (1.0 if last else _SHARE), np.full(seen.shape[1], np.inf)
        if last:
            member, square = one_within(self.instance, gain, total, free, free)
        else:
            member, square = self._at(index, seen, gain, left)
        load = float(np.sum(np.square(1.0 / gain[member])))
        square = min(square, total / load) * (1 - _SLACK)
        return member, math.sqrt(square) * self.unit, left - square * load

    def _learn(self, at: Callable[[Floats], Answers], rounds: int | None) -> None:
        search = DualSearch(self.instance, at, rounds=rounds)
        self.rounds = search.solve(only=rounds)
        self._slopes = self.instance.slopes(self.rounds)
        price = search.looks[-1].price[self.rounds - 1]
        start = math.log(price) if price > 0 else search.dearer(self.rounds, 0) + float(search.slopes[self.rounds - 1])

        def spend(price: float) -> Floats:
            return at(np.exp(price + self._slopes)).power

        free = float(search.looks[0].spent[self.rounds - 1])
        low, high = start, start
        while low > start - _WIDEST and float(spend(low).sum()) < _FREE * free:
            low -= 1.0
        while high < start + _WIDEST and float(spend(high).sum()) > _DEAR * self.instance.total_power:
            high += 1.0
        self._grid = np.arange(low, high + _STEP, _STEP)
        if self._sampler is None:
            power = [spend(price) for price in self._grid.tolist()]
            self._rest = np.log(np.cumsum(np.array(power)[:, ::-1], axis=1)[:, ::-1])  # from round i on

    def _expected(self, index: int, seen: Floats) -> Callable[[float], float]:
        """What the rounds after this one are expected to spend at a price."""
        if self._sampler is None:
            row, highest = self._rest[:, index + 1], float(self._grid[-1])
            # above the known prices power falls as their root; below them, limits hold it
            return lambda at: math.exp(float(np.interp(at, self._grid, row)) - 0.5 * max(0.0, at - highest))
        draws = np.asarray(self._sampler(seen), dtype=np.float64)[:, : self.rounds - index - 1]
        averaged = _averaged([replace(self.instance, gain=np.ldexp(draw, -self.field)) for draw in draws])
        return lambda at: float(averaged(np.exp(at + self._slopes[index + 1 :])).power.sum())

    def _at(self, index: int, seen: Floats, gain: Floats, left: float) -> tuple[Bools, float]:
        solver = solver_of(replace(self.instance, gain=gain[None]))
        expected = self._expected(index, seen)

        def answer(at: float) -> Answers:
            return solver.at(np.exp([at + self._slopes[index]]))

        low, high = float(self._grid[0]), float(self._grid[-1]) + _WIDEST
        found = answer(low)
        if found.power[0] + expected(low) > left:
            while high - low > 1e-3:
                middle = (low + high) / 2
                if answer(middle).power[0] + expected(middle) > left:
                    low = middle
                else:
                    high = middle
            found = answer(high)
        member = strongest(gain[None], found.size)[0] if found.member is None else found.member[0]
        return member, float(found.square[0])


def causal(instance: Instance, samples: Floats | Sampler, *, rounds: int | None = None) -> Solution:
    """Return what the causal planner decides when the instance's gains come one round after the other."""
    planner = Causal(instance, samples, rounds=rounds)
    left = planner.start
    members, alignment = np.zeros((planner.rounds, instance.num_devices), dtype=np.bool_), np.zeros(planner.rounds)
    for i in range(planner.rounds):
        members[i], alignment[i], left = planner.decide(instance.gain[: i + 1], left)
    return Solution.within(instance, members, alignment)
