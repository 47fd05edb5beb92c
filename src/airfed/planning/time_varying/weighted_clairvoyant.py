"""Clairvoyant plans over all amplitudes: all gains are known beforehand. docs/fading.md has the problem.

It is convex, so that the best dual value is the optimum. If the total power is the only budget over several rounds, the
plan is a convex combination of the solutions at two neighbouring multipliers, of which one overspends. With budgets of
single devices, dual ascent multiplies each dual variable by a power of (spent/budget), as for aligned plans, and L-BFGS
continues where this leaves a gap. In small instances Newton's method then closes the gap, and every number of rounds
whose dual value is below the best plan is solved.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize

from airfed import bounds
from airfed.planning.amplitudes import Amplitudes
from airfed.planning.limits import Floats
from airfed.planning.time_varying.clairvoyant import DualSearch
from airfed.planning.time_varying.device_budgets import Budgets, dual_values
from airfed.planning.time_varying.instance import Instance, Solution
from airfed.planning.time_varying.one_round import RoundSolutions, parts
from airfed.planning.time_varying.weighted_round import TOO_FAR_APART, WeightedRounds
from airfed.problem import InfeasibleError

_RTOL = 1e-11  # relative tolerance of the dual value
_FREE = 1e-15  # share of the error C/D² that counts as no cost
_SLACK = 1e-12  # share of a budget left unspent, for rounding
_ULP = 2.0**-52
_LEAST_POWER = 1e-280  # [W] below which a device is not scheduled
_CLOSE = 1e-4  # relative difference of the dual value that justifies another I
_GAP = 1e-5  # relative gap that ends an ascent
_SMALL, _FEW = 1024, 40  # amplitudes and budgets of an instance that Newton's method solves
_SMALL_GAP = 1e-11  # the same gaps in a small instance
_NEWTON = 12  # steps of Newton's method
_PARTS = (1.0, 0.5, 0.1, 0.01)  # of a step
_UNUSED = 1e-6  # least multiplier times budget, of their sum, for a derivative
_SPENT = 1e-13  # relative error of a budget that counts as spent
_DIFFERENCE = 1e-5  # relative change of a multiplier for a derivative
_FIRST, _STEPS, _LAST = 40, 100, 20  # evaluations of an ascent
_LEAST = 1e-7  # smallest multiplier times budget in L-BFGS, of their sum
_SMALLEST = 1e-12  # smallest multiplier times budget, of the largest
_LARGEST_STEP = 1.5  # of ln(multiplier) in one step of an ascent


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
    error = bounds.weighted_sum(weights, errors(instance, table))
    objective = float(instance.offsets()[rounds - 1]) + error
    return Solution(Amplitudes.of_table(table), objective, lower_bound)


def errors(instance: Instance, table: Floats) -> Floats:
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
        if number in ascent.tried or lower >= ascent.objective * (1 - ascent.close):
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
        self.small = rounds * instance.num_devices <= _SMALL and self.amounts.size <= _FEW
        self.close = _SMALL_GAP if self.small else _CLOSE
        self._evaluate(np.zeros(self.amounts.size), rounds)
        self.worth = np.full(self.amounts.size, 0.1 * float(self.best.min()) / self.amounts.size)

    def ascend(self, rounds: int) -> None:
        """Improve D_I and the best plan."""
        self.tried.add(rounds)
        worth = self._multiply(self.worth, rounds, _FIRST)
        if self._gap(rounds) > _GAP:
            unit = float(self.best[rounds - 1])

            def negative(scaled: Floats) -> tuple[float, Floats]:
                dual, used = self._evaluate(scaled * unit, rounds)
                return -dual / unit, 1.0 - used

            limits = [(_LEAST / worth.size, None)] * worth.size
            options = {"maxfun": _STEPS, "ftol": 1e-9, "gtol": 1e-6, "maxcor": 30}
            found = minimize(negative, worth / unit, jac=True, method="L-BFGS-B", bounds=limits, options=options)
            worth = self._multiply(found.x * unit, rounds, _LAST)
        self.worth = worth
        if self.small:
            worth = self._newton(worth, rounds)
        self._evaluate(worth, self.rounds, at=rounds)

    def _gap(self, rounds: int) -> float:
        return self.objective / float(self.best[rounds - 1]) - 1.0

    def _newton(self, worth: Floats, rounds: int) -> Floats:
        """Return the multipliers of the largest D_I: spent = budget where they are positive, spent ≤ budget elsewhere.

        D_I has the gradient spent/budget − 1. Its derivatives are those of differences.
        """
        used = self._evaluate(worth, rounds)[1]
        for _ in range(_NEWTON):
            if self._gap(rounds) <= _SMALL_GAP:
                break
            unused = (worth < worth.sum() * (1.0 - used)) & (worth > 0)
            if unused.any():
                worth = np.where(unused, 0.0, worth)
                used = self._evaluate(worth, rounds)[1]
            free = np.flatnonzero(((worth > 0) & (np.abs(used - 1) > _SPENT)) | (used > 1 + _SPENT))
            if not (free.size and worth.any()):
                break
            steps = _DIFFERENCE * np.maximum(worth[free], _UNUSED * worth.sum())
            moved = worth + steps[:, None] * np.eye(worth.size)[free]
            spent = np.array([self._evaluate(each, rounds)[1] for each in moved])
            curvature = (spent - used)[:, free] / steps[:, None]
            change = np.linalg.lstsq(curvature + curvature.T, 2.0 * (1.0 - used[free]), rcond=1e-14)[0]
            for part in _PARTS:
                following = worth.copy()
                following[free] = np.maximum(following[free] + part * change, 0.0)
                spent = self._evaluate(following, rounds)[1]
                if _residual(following, spent) < _residual(worth, used):
                    break
            else:
                break
            worth, used = following, spent
        return worth

    def _keep(self, amplitude: Floats) -> None:
        """Keep a plan, reduced to the budgets, if it is the best."""
        plan = within(self.instance, np.sqrt(self.solver.seen), amplitude)
        if plan.objective < self.objective:
            self.objective, self.table = plan.objective, plan.amplitudes.dense

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
            self._keep(amplitude)
        used = self.budgets.used(np.square(amplitude), load[:number], seen[:number]) / self.amounts
        return float(dual[number - 1]), used


def _residual(worth: Floats, used: Floats) -> float:
    """Return the largest error of the optimality conditions: min(multiplier, unspent) = 0 of each budget."""
    total = float(worth.sum())
    return float(np.max(np.abs(np.minimum(worth / total if total else worth, 1.0 - used))))
