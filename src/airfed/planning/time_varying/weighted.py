"""Plans over all amplitudes for time-varying channels and batteries: the policy "weighted".

If all gains are known, the plan is that of `weighted_clairvoyant`. Causal plans follow `causal`; with budgets of single
devices, each round gets equal shares of the remaining budgets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from airfed.planning import beamforming
from airfed.planning.limits import Devices as Integers
from airfed.planning.limits import Floats
from airfed.planning.time_varying import planner
from airfed.planning.time_varying.causal import Causal, Sampler, mean_of
from airfed.planning.time_varying.clairvoyant import DualSearch
from airfed.planning.time_varying.device_budgets import Budgets
from airfed.planning.time_varying.instance import Instance, Solution, require_gain
from airfed.planning.time_varying.one_round import RoundSolutions
from airfed.planning.time_varying.planner import Samples
from airfed.planning.time_varying.weighted_clairvoyant import WeightedSolver, clairvoyant, errors, within
from airfed.planning.weighted import or_infeasible
from airfed.problem import Problem

_Factors = Callable[[Floats], Floats]  # from gains to f, (R, N)

_SLACK = 1e-12  # share of a budget left unspent, for rounding
_ULP = 2.0**-52
_SAMPLES = 8  # Monte Carlo samples of a causal plan
_COARSE = 1e-5  # relative tolerance of the dual value of the samples
_STEP = 0.5  # grid spacing of ln(multiplier)
_SPENDING = 3e-3  # relative tolerance of the expected spending, except of the last round
_EXACT = 1e-11  # relative tolerance of the power of a round
_NEVER = -400.0  # ln(multiplier) at which power has no cost
_SHARE = 0.9  # largest share of the remaining budget for a round before the last
_MARGIN = 4e-12  # above the margin of `within`, which must not change an early round afterwards


@or_infeasible
def weighted(problem: Problem, *, rounds: int | None, samples: Samples | None) -> Solution:
    """Return the clairvoyant plan, or the causal plan if samples are given.

    `lower_bound` of a clairvoyant plan holds for all amplitudes, and with several antennas for all beamformers.
    """
    instance, gains = planner.instance_of(problem), planner.gains_of(problem)

    def factor_of(gain: Floats) -> Floats:
        return np.where(gain > 0, planner.factors(problem, gain), 1.0)

    def factor_of_samples(gain: Floats) -> Floats:
        return factor_of(gain) if problem.fleet.antennas == 1 else np.full(gain.shape, exposure)

    factor = factor_of(gains)
    if samples is None:
        found = clairvoyant(instance, factor, rounds=rounds)
        if problem.fleet.antennas == 1:
            return found
        ideal = planner.instance_of(beamforming.ideal(problem))
        return found._replace(lower_bound=clairvoyant(ideal, np.ones(gains.shape), rounds=rounds).lower_bound)
    samples = planner.strided(planner.in_time(problem, samples), problem)
    exposure = beamforming.exposure_cap(problem) if problem.all_antennas_seen and problem.fleet.antennas > 1 else 1.0
    samples = planner.effective_samples(problem, samples, exposure)
    if instance.one_budget:  # with a few samples: a round takes longer to solve than an aligned one
        few = (lambda seen: samples(seen)[:_SAMPLES]) if callable(samples) else samples[:_SAMPLES]
        return _causal(instance, factor, few, factor_of_samples, rounds)
    return _equal_shares(instance, factor, planner.first_sample(samples, problem), factor_of_samples, rounds)


def _log_multipliers(spend: Callable[[Floats], Floats], budget: Floats, start: Floats, rtol: float) -> Floats:
    """Return ln(multiplier) at which each row spends its budget, or a very small one where it cannot."""
    at = last = np.where(start > _NEVER, start, 0.0)
    before = np.full(start.shape, np.nan)
    low, high, free = np.full(start.shape, -np.inf), np.full(start.shape, np.inf), None
    while True:
        error = np.log(np.maximum(spend(at) / budget, _ULP**8))
        low, high = np.where(error > 0, at, low), np.where(error > 0, high, at)
        if free is None and np.any(error < -rtol):
            free = spend(np.full(at.shape, _NEVER)) <= budget
        done = (np.abs(error) <= rtol) | (high - low <= 1e-14 * np.abs(at))
        done |= np.zeros(at.shape, dtype=np.bool_) if free is None else free
        if done.all():
            return at if free is None else np.where(free, _NEVER, at)
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = (error - before) / (at - last)
            newton = at - np.clip(error / np.where((slope > -2) & (slope < -0.02), slope, -0.5), -6.0, 6.0)
            middle = np.where(np.isfinite(high - low), (low + high) / 2, newton)
        last, before = at, error
        at = np.where(done, at, np.where((newton > low) & (newton < high), newton, middle))


class _Causal(Causal):
    """A causal planner over all amplitudes, if the total power is the only budget over several rounds."""

    def __init__(
        self, instance: Instance, samples: Floats | Sampler, factor_of: _Factors, *, rounds: int | None
    ) -> None:
        self._factor_of = factor_of
        self._log_power: dict[int, Floats] = {}
        super().__init__(instance, samples, rounds=rounds)

    def averaged(self, instances: Sequence[Instance]) -> Callable[[Floats], RoundSolutions]:
        """Return a solver of the same rounds in several samples, all at once."""
        gain = np.stack([each.gain for each in instances], axis=1).reshape(-1, self.instance.num_devices)
        factor = np.stack([self._factor_of(each.gain) for each in instances], axis=1).reshape(gain.shape)
        solver, number = WeightedSolver(replace(self.instance, gain=gain), factor), len(instances)

        def at(multiplier: Floats) -> RoundSolutions:
            found = solver.at(np.repeat(multiplier, number))
            return mean_of(found.value.reshape(-1, number).T, found.power.reshape(-1, number).T)

        return at

    def _fit(self, at: Callable[[Floats], RoundSolutions], rounds: int | None) -> None:
        search = DualSearch(self.instance, at, rounds=rounds, rtol=_COARSE)
        self.rounds = search.solve(only=rounds)
        self._log_ratios, self._mean = self.instance.log_ratios(self.rounds), at
        multiplier = float(search.evaluations[max(search.bracket(self.rounds)[0], 0)].multiplier[self.rounds - 1])
        self._at = np.array([math.log(multiplier) if multiplier > 0 else _NEVER])

    def _expected(self, index: int, seen: Floats) -> Callable[[float], float]:
        """Return the expected power of the later rounds as a function of ln(multiplier)."""
        if self._sampler is not None:
            return super()._expected(index, seen)

        def interpolated(at: float) -> float:
            low, share = divmod(at / _STEP, 1.0)
            ends = [self._rest_at(int(low) + each)[index + 1] for each in ((0, 1) if share else (0,))]
            return math.exp(ends[0] * (1 - share) + ends[-1] * share)

        return interpolated

    def _rest_at(self, point: int) -> Floats:
        """Return the log of the expected power from each round on, at a point of the grid of multipliers."""
        if point not in self._log_power:
            power = self._mean(np.exp(np.clip(point * _STEP + self._log_ratios, _NEVER, -_NEVER))).power
            self._log_power[point] = np.log(np.maximum(np.cumsum(power[::-1])[::-1], _ULP**8))
        return self._log_power[point]

    def plan_row(self, seen: Floats, factor: Floats, left: float) -> tuple[Floats, float]:
        """Return the amplitudes of the round and the remaining budget after it."""
        index = len(seen) - 1
        require_gain(seen[-1], index)
        own = WeightedSolver(replace(self.instance, gain=np.ldexp(seen[-1:], -self.field)), factor[None])
        last = index == self.rounds - 1
        expected = (lambda _: 0.0) if last else self._expected(index, seen)

        def spend(at: Floats) -> Floats:
            return own.at(np.exp(at + self._log_ratios[index])).power + expected(float(at[0]))

        self._at = _log_multipliers(spend, np.array([left]), self._at, _EXACT if last else _SPENDING)
        found = own.at(np.exp(self._at + self._log_ratios[index]))
        assert found.amplitude is not None
        power, most = float(found.power[0]), left * (1.0 if last else _SHARE)
        reduced = min(1.0, most * (1 - _SLACK) / power)
        return found.amplitude[0] * math.sqrt(reduced), left - power * reduced


def _causal(
    instance: Instance, factor: Floats, samples: Floats | Sampler, factor_of: _Factors, rounds: int | None
) -> Solution:
    """Return the causal plan for the instance's gains, if the total power is the only budget over several rounds."""
    causal = _Causal(instance, samples, factor_of, rounds=rounds)
    left, table = causal.start, np.zeros((causal.rounds, instance.num_devices))
    for i in range(causal.rounds):
        table[i], left = causal.plan_row(instance.gain[: i + 1], factor[i], left)
    return within(instance, factor, table * causal.unit)


def _equal_shares(
    instance: Instance, factor: Floats, draw: Floats, factor_of: _Factors, rounds: int | None
) -> Solution:
    """Return the plan in which each round spends an equal share of the remaining budgets."""
    if rounds is None:
        rounds = _best_rounds(replace(instance, gain=draw), factor_of(draw))
    instance.require_reachable(rounds)
    scaled, unit = instance.scaled(replace(instance, gain=draw).units())  # no unit may depend on later gains
    budgets = Budgets(scaled)
    left, table, start = budgets.amounts * (1 - _MARGIN), np.zeros((rounds, instance.num_devices)), np.zeros(1)
    for i in range(rounds):
        total, battery, exposure = budgets.split(left / (rounds - i), otherwise=np.inf)
        share = replace(scaled, gain=scaled.gain[i : i + 1], device_power=battery, device_exposure=exposure)
        solver = WeightedSolver(share, factor[i : i + 1])
        table[i : i + 1], start = _rounds_within(solver, total, start)
        left = np.maximum(left - budgets.used(np.square(table[i : i + 1]), solver.load, solver.seen), 0.0)
    return within(instance, factor, table * unit)


def _rounds_within(solver: WeightedSolver, total: float, start: Floats) -> tuple[Floats, Floats]:
    """Return the amplitudes of rounds that each have a budget of power, and ln(multiplier)."""
    at = _log_multipliers(lambda at: solver.at(np.exp(at)).power, np.full(start.shape, total), start, _EXACT)
    found = solver.at(np.exp(at))
    assert found.amplitude is not None
    with np.errstate(divide="ignore"):
        reduced = np.sqrt(np.minimum(1.0, total * (1 - _SLACK) / found.power))
    return found.amplitude * reduced[:, None], at


def _best_rounds(instance: Instance, factor: Floats) -> int:
    """Return the best number of rounds with 1/I of every budget."""

    def found(rounds: int, indices: Integers) -> Floats:
        battery, exposure = (
            None if each is None else each / rounds for each in (instance.device_power, instance.device_exposure)
        )
        own = replace(instance, gain=instance.gain[indices], device_power=battery, device_exposure=exposure)
        share, _ = own.scaled()
        solver = WeightedSolver(share, factor[indices])
        table, _ = _rounds_within(solver, share.total_power / rounds, np.zeros(indices.size))
        return errors(share, table)

    return instance.best_rounds(found)[0]
