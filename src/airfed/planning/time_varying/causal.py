"""Causal plans: each round uses the gains so far and Monte Carlo samples of the later ones.

From the samples the planner computes, once, the expected power of the later rounds as a function of the multiplier (the
dual variable of the total power). A round is solved at the multiplier at which it and the expected later rounds spend
the remaining budget, which also limits the round, so that the total is never exceeded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from airfed.planning.limits import Bools, Floats
from airfed.planning.time_varying.clairvoyant import DualSearch, solver_of, strongest
from airfed.planning.time_varying.device_budgets import best_round_within
from airfed.planning.time_varying.instance import Instance, Solution, require_gain
from airfed.planning.time_varying.one_round import RoundSolutions

Sampler = Callable[[Floats], Floats]

_STEP = 0.25  # grid spacing of ln(multiplier)
_MOST_SPENT = 1 - 1e-6  # share of the power at multiplier 0 that the smallest grid point spends
_LEAST_SPENT = 1e-2  # share of the budget that the largest grid point spends
_WIDEST = 60.0
_SHARE = 0.9  # largest share of the remaining budget for a round before the last
_SLACK = 1e-12


def mean_of(value: Floats | list[Floats], power: Floats | list[Floats]) -> RoundSolutions:
    """Return rounds with the mean value and the mean power of several samples, (samples, R) each."""
    mean = np.asarray(np.mean(power, axis=0))
    one = np.ones(mean.shape)
    return RoundSolutions(
        value=np.asarray(np.mean(value, axis=0)), square=mean, size=one.astype(np.intp), load=one, limit=one
    )


class Causal:
    """A causal planner for problems in which the total power is the only budget over several rounds.

    Only the limits of `instance` are used. `samples` are gains, (samples, R, N), or a conditional sampler, called in
    each round: from the gains so far, (i, N), to samples of the rest, (samples, R − i, N). `rounds` fixes I.
    """

    def __init__(self, instance: Instance, samples: Floats | Sampler, *, rounds: int | None = None) -> None:
        self._sampler = samples if callable(samples) else None
        first = samples(np.empty((0, instance.num_devices))) if callable(samples) else samples
        draws = np.asarray(first, dtype=np.float64)
        if draws.ndim != 3 or draws.shape[2] != instance.num_devices or not draws.size:
            raise ValueError(f"samples must have shape (samples, rounds, {instance.num_devices}), got {draws.shape}.")
        if (rounds or 1) > min(instance.learning.total_steps, draws.shape[1]):
            most = min(instance.learning.total_steps, draws.shape[1])
            raise ValueError(f"rounds must be at most {most}, the rounds with samples and local steps; got {rounds}.")
        units = replace(instance, gain=draws.reshape(-1, instance.num_devices)).units()
        self.field, self.unit = units
        instances = [replace(instance, gain=draw).scaled(units)[0] for draw in draws]
        self.instance = instances[0]
        self._fit(self.averaged(instances), rounds)

    def averaged(self, instances: Sequence[Instance]) -> Callable[[Floats], RoundSolutions]:
        """Return a solver of the same rounds in several samples: the mean value and the mean power."""
        solvers = [solver_of(instance) for instance in instances]

        def at(multiplier: Floats) -> RoundSolutions:
            each = [solver.at(multiplier) for solver in solvers]
            return mean_of([solutions.value for solutions in each], [solutions.power for solutions in each])

        return at

    @property
    def start(self) -> float:
        """The budget before the first round, in the planner's units."""
        return self.instance.total_power * (1 - 4 * _SLACK)  # above the margin of `Solution.within`

    def plan_round(self, seen: Floats, left: float) -> tuple[Bools, float, float]:
        """Return K_i, θ_i and the remaining budget after the round."""
        index = len(seen) - 1
        require_gain(seen[-1], index)
        gain, last = np.ldexp(seen[-1], -self.field), index == self.rounds - 1
        total, free = left * (1.0 if last else _SHARE), np.full(seen.shape[1], np.inf)
        if last:
            mask, square = best_round_within(self.instance, gain, total, free, free)
        else:
            mask, square = self._solve(index, seen, gain, left)
        load = float(np.sum(np.square(1.0 / gain[mask])))
        square = min(square, total / load) * (1 - _SLACK)
        return mask, math.sqrt(square) * self.unit, left - square * load

    def _fit(self, at: Callable[[Floats], RoundSolutions], rounds: int | None) -> None:
        search = DualSearch(self.instance, at, rounds=rounds)
        self.rounds = search.solve(only=rounds)
        self._log_ratios = self.instance.log_ratios(self.rounds)
        multiplier = search.evaluations[-1].multiplier[self.rounds - 1]
        if multiplier > 0:
            start = math.log(multiplier)
        else:
            start = search.larger_multiplier(self.rounds, 0) + float(search.log_ratios[self.rounds - 1])

        def spend(log_multiplier: float) -> Floats:
            return at(np.exp(log_multiplier + self._log_ratios)).power

        free = float(search.evaluations[0].spent[self.rounds - 1])
        low, high = start, start
        while low > start - _WIDEST and float(spend(low).sum()) < _MOST_SPENT * free:
            low -= 1.0
        while high < start + _WIDEST and float(spend(high).sum()) > _LEAST_SPENT * self.instance.total_power:
            high += 1.0
        self._grid = np.arange(low, high + _STEP, _STEP)
        if self._sampler is None:
            power = [spend(point) for point in self._grid.tolist()]
            self._rest = np.log(np.cumsum(np.array(power)[:, ::-1], axis=1)[:, ::-1])  # from round i on

    def _expected(self, index: int, seen: Floats) -> Callable[[float], float]:
        """Return the expected power of the later rounds as a function of ln(multiplier)."""
        if self._sampler is None:
            row, highest = self._rest[:, index + 1], float(self._grid[-1])
            # above the grid power falls as the root of the multiplier; below it is limited
            return lambda at: math.exp(float(np.interp(at, self._grid, row)) - 0.5 * max(0.0, at - highest))
        draws = np.asarray(self._sampler(seen), dtype=np.float64)[:, : self.rounds - index - 1]
        averaged = self.averaged([replace(self.instance, gain=np.ldexp(draw, -self.field)) for draw in draws])
        return lambda at: float(averaged(np.exp(at + self._log_ratios[index + 1 :])).power.sum())

    def _solve(self, index: int, seen: Floats, gain: Floats, left: float) -> tuple[Bools, float]:
        solver = solver_of(replace(self.instance, gain=gain[None]))
        expected = self._expected(index, seen)

        def solution(at: float) -> RoundSolutions:
            return solver.at(np.exp([at + self._log_ratios[index]]))

        low, high = float(self._grid[0]), float(self._grid[-1]) + _WIDEST
        found = solution(low)
        if found.power[0] + expected(low) > left:
            while high - low > 1e-3:
                middle = (low + high) / 2
                if solution(middle).power[0] + expected(middle) > left:
                    low = middle
                else:
                    high = middle
            found = solution(high)
        mask = strongest(gain[None], found.size)[0] if found.mask is None else found.mask[0]
        return mask, float(found.square[0])


def causal(instance: Instance, samples: Floats | Sampler, *, rounds: int | None = None) -> Solution:
    """Return the causal plan for the instance's gains."""
    planner = Causal(instance, samples, rounds=rounds)
    left = planner.start
    masks, alignment = np.zeros((planner.rounds, instance.num_devices), dtype=np.bool_), np.zeros(planner.rounds)
    for i in range(planner.rounds):
        masks[i], alignment[i], left = planner.plan_round(instance.gain[: i + 1], left)
    return Solution.within(instance, masks, alignment)
