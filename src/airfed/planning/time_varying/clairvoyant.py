"""The optimum when the gains of all rounds are known, with a lower bound: dual ascent (docs/fading.md).

The multiplier of round i, p_i = ν/w_i, falls by the factor η from each round to the next *for any I*. So one sequence
of multipliers p_0, p_1, …, and one solution of each round, gives D_I and the spent power for all I together, with ν =
(ϖ²/ζ)p_{I−1} (`DualSearch.evaluate`). Only the I that may still be optimal are refined.

If the best schedule of a round changes by several devices at one multiplier, no multiplier spends the budget exactly.
Branch and bound closes this duality gap: the round has |K| ≤ m or |K| > m, each with its own dual value (`_close`).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from airfed.planning.limits import Bools, Floats
from airfed.planning.limits import Devices as Integers
from airfed.planning.time_varying.device_budgets import PrimalPlan, dual_values, many_budgets
from airfed.planning.time_varying.instance import Instance, Solution
from airfed.planning.time_varying.one_round import EqualPeaks, RoundSolutions, Solver, UnequalPeaks, water_filling

_SolveAt = Callable[[Floats], RoundSolutions]

_RTOL = 1e-3  # the gap above which branch and bound starts
_NODES = 400
_WORK = 1 << 28  # pairs of round and device evaluated by branch and bound
_EVALUATIONS = 20  # evaluations per node, approximately
_TRIES = 10  # numbers of rounds with a feasible plan
_SAFE = 1e-12  # relative rounding margin of a lower bound
_LARGEST = 460.0  # |ln| of the multipliers
_DUAL_RTOL = 1e-8  # relative tolerance of the dual value
_MOST_EVALUATIONS = 200


def clairvoyant(instance: Instance, *, rounds: int | None = None, rtol: float = _RTOL) -> Solution:
    """Return the best plan over all schedules, alignment factors and numbers of rounds, with its certificate.

        min over I, K_i ≠ ∅, θ_i of offset_I + Σ_{i<I} w_i [4(1 − |K_i|/N)² + C/(|K_i|²θ_i²)]

    subject to peak power, privacy per round, total power and the budgets of single devices. No aligned plan can have an
    objective below `lower_bound`, the best dual value. If the total power is the only budget, branch and bound reduces
    a gap above `rtol`; with budgets of single devices, plans of more than 512 rounds spend equal shares.
    """
    instance.require_reachable(1 if rounds is None else rounds)
    scaled, unit = instance.scaled()
    found, lower = _one_budget(scaled, rounds, rtol) if instance.one_budget else many_budgets(scaled, rounds)
    mask = strongest(instance.gain[: found.size.size], found.size) if found.mask is None else found.mask
    return Solution.within(instance, mask, np.sqrt(found.square) * unit, lower_bound=lower)


def solver_of(instance: Instance) -> Solver:
    """Return the solver of single rounds at given multipliers of the total power."""
    gain, power = instance.gain[: instance.most_rounds], instance.peak_power
    if np.all(power == power[0]):
        return EqualPeaks(gain, float(power[0]), cap=instance.cap, noise_weight=instance.noise_weight)
    return UnequalPeaks(gain, power, cap=instance.cap, noise_weight=instance.noise_weight)


def strongest(gain: Floats, size: Integers) -> Bools:
    """Return the mask of the `size` devices of largest gain in each round; ties go to the lower index."""
    mask = np.zeros(gain.shape, dtype=np.bool_)
    for row, number, out in zip(gain, size.tolist(), mask, strict=True):
        edge = np.partition(row, row.size - number)[row.size - number]
        np.greater(row, edge, out=out)
        out[np.flatnonzero(row == edge)[: number - np.count_nonzero(out)]] = True
    return mask


def _one_budget(instance: Instance, rounds: int | None, rtol: float) -> tuple[PrimalPlan, float]:
    """Return the best plan and the lower bound if the total power is the only budget over several rounds."""
    solver = solver_of(instance)
    search = DualSearch(instance, solver.at, rounds=rounds)
    search.solve(only=rounds)
    offsets = instance.offsets()
    found: dict[int, PrimalPlan] = {}
    ceiling = np.inf
    for number in np.argsort(search.best, kind="stable")[:_TRIES] + 1 if rounds is None else [rounds]:
        while search.best[number - 1] < ceiling and search.refine(int(number)):
            pass
        if search.best[number - 1] >= ceiling * (1 - rtol / 100):
            continue
        found[int(number)] = _primal_plan(instance, search, int(number))
        ceiling = min(ceiling, float(offsets[number - 1] + found[int(number)].value))
    lower = float(np.min(search.best if rounds is None else search.best[rounds - 1 :]))
    if lower < ceiling * (1 - rtol):
        nodes = min(_NODES, _WORK // (_EVALUATIONS * instance.most_rounds * instance.num_devices))
        lower = _close(instance, solver, search, found, rtol=rtol, nodes=nodes, only=rounds)
    best = min(found, key=lambda number: offsets[number - 1] + found[number].value)
    return found[best], lower


@dataclass(frozen=True, kw_only=True, eq=False)
class DualEvaluation:
    """The dual function at one sequence of multipliers."""

    multiplier: Floats  # p_i, (R,)
    solutions: RoundSolutions
    dual: Floats  # D_I for I = 1..R, rounded down
    spent: Floats  # Σ_{i<I} power_i


class DualSearch:
    """The search for the largest dual value of every relevant I."""

    def __init__(
        self, instance: Instance, solve_at: _SolveAt, *, rounds: int | None = None, rtol: float = _DUAL_RTOL
    ) -> None:
        self.instance, self._solve_at, self.rtol = instance, solve_at, rtol
        self.rounds = rounds or instance.most_rounds
        self.log_ratios = instance.log_ratios(self.rounds)
        self.offsets = instance.offsets()[: self.rounds]
        self.evaluations = [self.evaluate(-math.inf)]
        self.at = [-math.inf]  # ln p of the last round, ascending

    def evaluate(self, at: float) -> DualEvaluation:
        """Solve all rounds with multiplier exp(at) in the last one."""
        multiplier = np.zeros(self.rounds)
        if at > -math.inf:
            multiplier = np.exp(np.clip(at + self.log_ratios, -_LARGEST, _LARGEST))
        solutions = self._solve_at(multiplier)
        dual = dual_values(self.instance, self.offsets, solutions.value, multiplier * self.instance.total_power)
        with np.errstate(invalid="ignore"):
            spent = np.cumsum(solutions.power)
        return DualEvaluation(multiplier=multiplier, solutions=solutions, dual=dual, spent=spent)

    def add(self, at: float) -> None:
        """Evaluate the dual at this point and store the result."""
        index = int(np.searchsorted(self.at, at))
        self.at.insert(index, at)
        self.evaluations.insert(index, self.evaluate(at))

    @property
    def best(self) -> Floats:
        """The largest D_I so far, for every I."""
        return np.asarray(np.max([each.dual for each in self.evaluations], axis=0))

    def bracket(self, rounds: int) -> tuple[int, int]:
        """Return the indices of two neighbouring evaluations of which only the lower one overspends, within −1..len."""
        spent = np.array([each.spent[rounds - 1] for each in self.evaluations])
        over = int(np.count_nonzero(spent > self.instance.total_power))
        return over - 1, over

    def bounded(self, rounds: int, solve_at: _SolveAt) -> DualSearch:
        """Return a search for one I with another solver, started from the bracket of this one."""
        search = DualSearch(self.instance, solve_at, rounds=rounds)
        for index in self.bracket(rounds):
            if 0 < index < len(self.evaluations):
                search.add(self.at[index] + float(self.log_ratios[rounds - 1]))
        return search

    def refine(self, rounds: int) -> bool:
        """Evaluate once more for one I; return False if its D_I has converged."""
        low, high = self.bracket(rounds)
        if low < 0 or len(self.evaluations) >= _MOST_EVALUATIONS:
            return False
        if high == len(self.evaluations):
            self.add(self.larger_multiplier(rounds, low))
            return True
        budget = self.instance.total_power
        below, above = self.evaluations[low], self.evaluations[high]
        left, right = self.at[low], self.at[high]
        if right - left <= 1e-12 * max(1.0, abs(right)):
            return False
        over, under = below.spent[rounds - 1], above.spent[rounds - 1]
        p, q = below.multiplier[rounds - 1], above.multiplier[rounds - 1]
        # the tangents meet at multiplier p + shift, above every value of the concave D_I between p and q
        rise, fall = self.instance.weight * (over - budget), self.instance.weight * (budget - under)
        difference = above.dual[rounds - 1] - below.dual[rounds - 1]
        shift = (difference + fall * (q - p)) / (rise + fall)
        top = below.dual[rounds - 1] + rise * shift
        if top - max(below.dual[rounds - 1], above.dual[rounds - 1]) <= self.rtol * abs(top):
            return False
        meeting = math.log(p + shift) if p + shift > 0 else left
        guess = meeting - self.log_ratios[rounds - 1]
        if left == -math.inf:
            least = right - 2 * math.log(budget / under) - 2.0 if under else right - 8.0
            guess = max(min(guess, right - 1.0), least)
        else:
            edge = 0.02 * (right - left)
            if not left + edge < guess < right - edge:
                guess = (left + right) / 2
        if guess < -_LARGEST - float(self.log_ratios.max()):
            return False
        self.add(guess)
        return True

    def larger_multiplier(self, rounds: int, low: int) -> float:
        """Return a larger ln(multiplier) of the last round; power falls about as the root of the multiplier."""
        if self.at[low] == -math.inf:
            solutions = self.evaluations[0].solutions
            size, load = solutions.size[rounds - 1], solutions.load[rounds - 1]
            guess = self.instance.noise_weight * load * (rounds / (size * self.instance.total_power)) ** 2
            return math.log(guess) - float(self.log_ratios[rounds - 1])
        spent = self.evaluations[low].spent[rounds - 1]
        return self.at[low] + 2.2 * math.log(spent / self.instance.total_power) + 0.5

    def solve(self, *, only: int | None = None) -> int:
        """Return the I of the smallest converged D_I, or `only`."""
        while True:
            rounds = only or int(np.argmin(self.best)) + 1
            if not self.refine(rounds):
                return rounds


def _primal_plan(instance: Instance, search: DualSearch, rounds: int) -> PrimalPlan:
    """Return the better plan of I rounds of the schedules on both sides of the optimal multiplier."""
    weights = instance.weight * np.exp(-instance.log_ratios(rounds))
    plans = []
    for index in search.bracket(rounds):
        if 0 <= index < len(search.evaluations):
            near = search.evaluations[index].solutions
            size, load, limit = near.size[:rounds], near.load[:rounds], near.limit[:rounds]
            pull = np.sqrt(weights * instance.noise_weight / load) / size
            square = water_filling(pull, load, limit, instance.total_power)
            mask = None if near.mask is None else near.mask[:rounds]
            value = float(np.sum(weights * instance.errors(size, square)))
            plans.append(PrimalPlan(value=value, square=square, size=size, mask=mask))
    return min(plans, key=lambda plan: plan.value)


def _close(
    instance: Instance,
    solver: Solver,
    search: DualSearch,
    found: dict[int, PrimalPlan],
    *,
    rtol: float,
    nodes: int,
    only: int | None,
) -> float:
    """Branch and bound on |K_i|: update `found` with better plans and return a larger lower bound."""
    offsets = instance.offsets()
    order = itertools.count()
    ones, full = np.ones(instance.most_rounds, dtype=np.intp), np.full(instance.most_rounds, instance.num_devices)
    heap = [
        (float(dual), next(order), rounds, ones, full, search)
        for rounds, dual in enumerate(search.best, start=1)
        if only in (None, rounds)
    ]
    heapq.heapify(heap)
    ceiling = min(offsets[rounds - 1] + each.value for rounds, each in found.items())
    settled = np.inf  # the smallest dual value of a node without children
    for _ in range(nodes):
        if not heap or heap[0][0] >= ceiling * (1 - rtol):
            break
        dual, _, rounds, least, most, own = heapq.heappop(heap)
        while own.best[rounds - 1] < ceiling and own.refine(rounds):
            pass
        dual = max(dual, float(own.best[rounds - 1]))
        tried = _primal_plan(instance, own, rounds)
        if rounds not in found or tried.value < found[rounds].value:
            found[rounds] = tried
            ceiling = min(ceiling, float(offsets[rounds - 1] + tried.value))
        branch = _branching(own, rounds)
        if branch is None or dual >= ceiling:
            settled = min(settled, dual)
            continue
        index, size = branch
        lower, upper = most.copy(), least.copy()
        lower[index], upper[index] = size, size + 1
        for low, high in ((least, lower), (upper, most)):
            child = own.bounded(rounds, partial(solver.at, least=low[:rounds], most=high[:rounds]))
            heapq.heappush(heap, (max(dual, float(child.best[rounds - 1])), next(order), rounds, low, high, child))
    return float(min(settled, ceiling * (1 - _SAFE), heap[0][0] if heap else np.inf))


def _branching(search: DualSearch, rounds: int) -> tuple[int, int] | None:
    """Return the round whose two schedules differ most in power, and a size between them."""
    low, high = search.bracket(rounds)
    if low < 0 or high == len(search.evaluations):
        return None
    below, above = search.evaluations[low].solutions, search.evaluations[high].solutions
    one, other = below.size[:rounds], above.size[:rounds]
    apart = np.where(one == other, -1.0, np.abs(below.power[:rounds] - above.power[:rounds]))
    index = int(np.argmax(apart))
    return (index, int(one[index] + other[index]) // 2) if apart[index] >= 0 else None
