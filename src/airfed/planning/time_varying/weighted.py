"""Plans over all amplitudes for time-varying channels and batteries: the policy "weighted".

    min over I, a_ik ≥ 0 of offset_I + Σ_{i<I} w_i [4m_i² + C/D_i²],   D_i = Σ_k a_ik,   m_i = Σ_k (1/N − a_ik/D_i)₊,

subject to a_ik ≤ |h_ik|√P_k, privacy (a_ik f_ik in each round, or √Σ_i (a_ik f_ik)² over all rounds), the total power
Σ a_ik²/|h_ik|² and the batteries. With w = a/D, t = 1/D² and the spent amounts as variables the problem is convex
(`weighted_round`), so that the best dual value is the optimum. If the total power is the only budget over several
rounds, the plan is a convex combination of the solutions at two neighbouring multipliers, of which one overspends. With
budgets of single devices, dual ascent multiplies each dual variable by a power of (spent/budget), as for aligned plans,
and L-BFGS continues where this leaves a gap: the dual function is concave and smooth.

Causal plans follow `causal`; with budgets of single devices, each round gets equal shares of the remaining budgets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import minimize

from airfed import bounds
from airfed.planning import beamforming
from airfed.planning.amplitudes import Amplitudes
from airfed.planning.limits import Floats
from airfed.planning.time_varying import planner
from airfed.planning.time_varying.causal import Causal, Sampler, mean_of
from airfed.planning.time_varying.clairvoyant import DualSearch
from airfed.planning.time_varying.device_budgets import Budgets, coarse_to_fine, dual_values
from airfed.planning.time_varying.instance import Instance, Solution, thinned
from airfed.planning.time_varying.one_round import RoundSolutions, parts
from airfed.planning.time_varying.planner import Samples
from airfed.planning.time_varying.weighted_round import TOO_FAR_APART, WeightedRounds
from airfed.problem import InfeasibleError, Problem

_Factors = Callable[[Floats], Floats]  # from gains to f, (R, N)

_RTOL = 1e-11  # relative tolerance of the dual value
_FREE = 1e-15  # share of the error C/D² that counts as no cost
_SLACK = 1e-12  # share of a budget left unspent, for rounding
_ULP = 2.0**-52
_LEAST_POWER = 1e-280  # [W] below which a device is not scheduled
_CLOSE = 1e-4  # relative difference of the dual value that justifies another I
_GAP = 1e-5  # relative gap that ends an ascent
_FIRST, _STEPS, _LAST = 40, 100, 20  # evaluations of an ascent
_LEAST = 1e-7  # smallest multiplier times budget in L-BFGS, of their sum
_SMALLEST = 1e-12  # smallest multiplier times budget, of the largest
_LARGEST_STEP = 1.5  # of ln(multiplier) in one step of an ascent
_SAMPLES = 8  # Monte Carlo samples of a causal plan
_COARSE = 1e-5  # relative tolerance of the dual value of the samples
_STEP = 0.5  # grid spacing of ln(multiplier)
_SPENDING = 3e-3  # relative tolerance of the expected spending, except of the last round
_EXACT = 1e-11  # relative tolerance of the power of a round
_NEVER = -400.0  # ln(multiplier) at which power has no cost
_SHARE = 0.9  # largest share of the remaining budget for a round before the last
_MARGIN = 4e-12  # above the margin of `within`, which must not change an early round afterwards


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
    if instance.one_budget:
        return _causal(instance, factor, _few(samples), factor_of_samples, rounds)
    return _equal_shares(instance, factor, planner.first_sample(samples, problem), factor_of_samples, rounds)


def _few(samples: Samples) -> Samples:
    """Return at most a few of the samples: a round takes longer to solve than an aligned one."""
    return (lambda seen: samples(seen)[:_SAMPLES]) if callable(samples) else samples[:_SAMPLES]


class WeightedSolver:
    """The rounds of an instance at given costs; `factor` is f_ik, (R, N)."""

    def __init__(self, instance: Instance, factor: Floats) -> None:
        gain = instance.gain
        self.noise_weight, self.seen = instance.noise_weight, np.square(factor)
        with np.errstate(divide="ignore"):
            self.load = np.where(gain > 0, np.square(1.0 / gain), 0.0)
        self.limit = _largest(instance, factor)
        total = self.limit.sum(axis=1)
        self.reachable = total > 0
        self._free = np.zeros(total.size)  # a multiplier of the power so small that it does not matter
        most = np.sum(self.load * np.square(self.limit), axis=1)
        np.divide(_FREE * self.noise_weight, np.square(total) * most, out=self._free, where=self.reachable)
        self._most_power = most
        self._start = np.full((3, total.size), np.nan)

    def solve(self, cost: Floats) -> tuple[Floats, Floats]:
        """Return F, rounded down, and the amplitudes of the rounds 0..len(cost)−1."""
        value, amplitude = np.full(len(cost), np.inf), np.zeros(cost.shape)
        free = self._free[: len(cost), None]
        cost = np.maximum(cost, free * self.load[: len(cost)])
        for block in parts(*cost.shape):
            rows = np.arange(block.start, block.stop)[self.reachable[block]]
            if rows.size:
                search = WeightedRounds(cost[rows], self.limit[rows], self.noise_weight, self._start[:, rows])
                value[rows], amplitude[rows], self._start[:, rows] = search.solve()
                value[rows] -= (self._free * self._most_power)[rows]
        return value, amplitude

    def at(self, multiplier: Floats) -> RoundSolutions:
        """Solve the rounds 0..len(multiplier)−1 at one multiplier of the total power each."""
        load = self.load[: multiplier.size]
        value, amplitude = self.solve(multiplier[:, None] * load)
        square = np.square(amplitude)
        power, largest = np.sum(square * load, axis=1), np.where(self.reachable[: len(load)], square.max(axis=1), 1.0)
        return RoundSolutions(
            value=value,
            square=largest,
            size=np.maximum(np.rint(amplitude.sum(axis=1) / np.sqrt(largest)), 1).astype(np.intp),
            load=power / largest,
            limit=largest,
            amplitude=amplitude,
        )


def _largest(instance: Instance, factor: Floats) -> Floats:
    """Return the largest a_ik in one round, (R, N)."""
    power, cap = instance.peak_power, np.full(instance.num_devices, instance.cap)
    if instance.device_power is not None:
        power = np.minimum(power, instance.device_power)
    if instance.device_exposure is not None:
        cap = np.minimum(cap, np.sqrt(instance.device_exposure))
    return np.minimum(instance.gain * np.sqrt(power) * (1 - 4 * _ULP), cap / factor)


def clairvoyant(instance: Instance, factor: Floats, *, rounds: int | None = None) -> Solution:
    """Return the best plan over all amplitudes and numbers of rounds, and the best dual value as its lower bound."""
    instance.require_reachable(1 if rounds is None else rounds)
    scaled, unit = instance.scaled()
    solver = WeightedSolver(scaled, factor)
    find = _one_budget if instance.one_budget else _many_budgets
    table, lower = find(scaled, solver, rounds)
    return within(instance, factor, table * unit, lower_bound=lower)


def _one_budget(instance: Instance, solver: WeightedSolver, rounds: int | None) -> tuple[Floats, float]:
    search = DualSearch(instance, solver.at, rounds=rounds, rtol=_RTOL)
    number = search.solve(only=rounds)
    lower = float(np.min(search.best if rounds is None else search.best[rounds - 1 :]))
    low, high = search.bracket(number)
    tables = [search.evaluations[index].solutions.amplitude for index in (max(low, 0), min(high, len(search.at) - 1))]
    under, over = (np.asarray(table)[:number] for table in reversed(tables))
    if low < 0 or high == len(search.at):
        return under, lower
    spent = [search.evaluations[index].spent[number - 1] for index in (low, high)]
    share = (instance.total_power - spent[1]) / (spent[0] - spent[1])
    return combined(over, under, float(share)), lower


def combined(one: Floats, other: Floats, share: float) -> Floats:
    """Return the convex combination of two tables in (w, t), whose power is at most that of the combined powers."""
    first, last = one.sum(axis=1, keepdims=True), other.sum(axis=1, keepdims=True)
    weights = share * one / first + (1 - share) * other / last
    return np.asarray(weights / np.sqrt(share / np.square(first) + (1 - share) / np.square(last)))


def within(instance: Instance, factor: Floats, table: Floats, *, lower_bound: float = -math.inf) -> Solution:
    """Return the plan of amplitudes (I, N), reduced where rounding would violate a limit, with its objective."""
    rounds = len(table)
    gain = instance.gain[:rounds]
    table = np.minimum(table, _largest(instance, factor)[:rounds])
    with np.errstate(divide="ignore", invalid="ignore"):
        table[~(np.square(table / gain) > _LEAST_POWER)] = 0.0
        power = np.where(table > 0, np.square(table / gain), 0.0)
        for used, budget in (
            (power, instance.device_power),
            (np.square(table * np.where(table > 0, factor[:rounds], 0.0)), instance.device_exposure),
        ):
            if budget is not None:
                ratio = budget * (1 - 2 * _SLACK) / used.sum(axis=0)
                reduced = np.where(ratio < 1, np.sqrt(ratio), 1.0)
                table, power = table * reduced, power * np.square(reduced)
        ratio = instance.total_power * (1 - _SLACK) / power.sum()
    table = table * min(1.0, math.sqrt(ratio))
    weights = instance.weights(rounds)
    error = np.sum(weights * _errors(instance, table), where=weights > 0)
    objective = float(instance.offsets()[rounds - 1]) + float(error)
    return Solution(Amplitudes.of_table(table), objective, lower_bound)


def _errors(instance: Instance, table: Floats) -> Floats:
    """Return terms A and C of Theorem 1 of each round."""
    divisor = table.sum(axis=1)
    shortfall = np.sum(np.maximum(1.0 / instance.num_devices - table / divisor[:, None], 0.0), axis=1)
    return np.asarray(bounds.participation_error(shortfall) + instance.noise_weight / np.square(divisor))


def _many_budgets(instance: Instance, solver: WeightedSolver, rounds: int | None) -> tuple[Floats, float]:
    """Return the best plan and the lower bound, with budgets of single devices."""
    ascent = _Ascent(instance, solver, rounds or instance.most_rounds)
    allowed = slice(rounds - 1, rounds) if rounds else slice(0, ascent.rounds)
    while True:
        number = int(np.argmin(ascent.best[allowed])) + allowed.start + 1
        lower = float(ascent.best[number - 1])
        if number in ascent.tried or lower >= ascent.objective * (1 - _CLOSE):
            if not ascent.table.size:
                raise InfeasibleError(TOO_FAR_APART)
            return ascent.table, float(np.min(ascent.best[allowed]))
        ascent.ascend(number)


class _Ascent:
    """Dual ascent with all budgets. Multipliers are in units of the objective, times their budgets."""

    def __init__(self, instance: Instance, solver: WeightedSolver, rounds: int) -> None:
        self.instance, self.solver, self.rounds = instance, solver, rounds
        self.budgets, self.offsets = Budgets(instance), instance.offsets()[:rounds]
        self.amounts, self.ratio = self.budgets.amounts, np.exp(instance.log_ratios(rounds))
        self.best, self.objective, self.table = np.full(rounds, -math.inf), math.inf, np.empty((0, 0))
        self.tried: set[int] = set()
        self._evaluate(np.zeros(self.amounts.size), rounds)
        self.worth = np.full(self.amounts.size, 0.1 * float(self.best.min()) / self.amounts.size)

    def ascend(self, rounds: int) -> None:
        """Improve D_I and the best plan."""
        self.tried.add(rounds)
        worth = self._multiply(self.worth, rounds, _FIRST)
        if self.objective > self.best[rounds - 1] * (1 + _GAP):
            unit = float(self.best[rounds - 1])

            def negative(scaled: Floats) -> tuple[float, Floats]:
                dual, used = self._evaluate(scaled * unit, rounds)
                return -dual / unit, 1.0 - used

            limits = [(_LEAST / worth.size, None)] * worth.size
            options = {"maxfun": _STEPS, "ftol": 1e-9, "gtol": 1e-6, "maxcor": 30}
            found = minimize(negative, worth / unit, jac=True, method="L-BFGS-B", bounds=limits, options=options)
            worth = self._multiply(found.x * unit, rounds, _LAST)
        self.worth = worth
        self._evaluate(worth, self.rounds, at=rounds)

    def _multiply(self, worth: Floats, rounds: int, steps: int) -> Floats:
        """Multiply each dual variable by a power of (spent/budget); return those of the largest D_I."""
        best, kept = -math.inf, worth
        for number in range(steps):
            dual, used = self._evaluate(worth, rounds)
            if dual > best:
                best, kept = dual, worth
            power = 1.0 / (1.0 + max(0, number - 20) / 20)
            worth = worth * np.exp(np.clip(power * np.log(np.maximum(used, _ULP)), -_LARGEST_STEP, _LARGEST_STEP))
            worth = np.maximum(worth, _SMALLEST * worth.max())
        return kept

    def _evaluate(self, worth: Floats, rounds: int, *, at: int | None = None) -> tuple[float, Floats]:
        """Solve the rounds at the multipliers of I = `at`; return D_I and the spent shares of the budgets."""
        number = at or rounds
        multiplier = worth / self.amounts / (self.instance.weight * float(self.ratio[number - 1]))
        load, seen = self.solver.load[:rounds], self.solver.seen[:rounds]
        value, amplitude = self.solver.solve(self.budgets.cost(multiplier, load, seen) * self.ratio[:rounds, None])
        budget_term = self.ratio[:rounds] * float(multiplier @ self.amounts)
        dual = dual_values(self.instance, self.offsets[:rounds], value, budget_term)
        np.maximum(self.best[:rounds], dual, out=self.best[:rounds])
        amplitude = amplitude[:number]
        if np.all(amplitude.any(axis=1)):
            plan = within(self.instance, np.sqrt(self.solver.seen), amplitude)
            if plan.objective < self.objective:
                self.objective, self.table = plan.objective, plan.amplitudes.dense
        used = self.budgets.used(np.square(amplitude), load[:number], seen[:number])
        return float(dual[number - 1]), used / self.amounts


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
        if not seen[-1].any():
            raise InfeasibleError(f"No plan fits: every gain of round {index + 1} is 0 (peak_power).")
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
    empty = np.flatnonzero(~instance.gain[: instance.most_rounds].any(axis=1))
    most = int(empty[0]) if empty.size else instance.most_rounds
    instance.require_reachable(max(most, 1))
    offsets = instance.offsets()

    def value(rounds: int) -> float:
        indices, weights = thinned(instance.learning, rounds)
        battery, exposure = (
            None if each is None else each / rounds for each in (instance.device_power, instance.device_exposure)
        )
        own = replace(instance, gain=instance.gain[indices], device_power=battery, device_exposure=exposure)
        share, _ = own.scaled()
        solver = WeightedSolver(share, factor[indices])
        table, _ = _rounds_within(solver, share.total_power / rounds, np.zeros(indices.size))
        return float(offsets[rounds - 1] + np.sum(weights * _errors(share, table), where=weights > 0))

    return coarse_to_fine(value, most)[0]
