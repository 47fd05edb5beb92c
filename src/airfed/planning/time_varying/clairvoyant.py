"""The optimum when the gains of all rounds are known, and a value that no plan can be below: dual ascent.

For I rounds the plan minimises offset_I + Σ_{i<I} w_i·φ_i with w_i = (ϖ²/ζ)η^(I−1−i), subject to Σ_i power_i ≤ P_tot.
At a price ν per watt (the dual variable of the total power) the rounds fall apart, and

    D_I(ν) = offset_I + Σ_{i<I} w_i·F_i(ν/w_i) − ν·P_tot

is at most what any plan of I rounds attains: a concave function of ν with slope Σ power_i − P_tot. The price that round
i sees, p_i = ν/w_i, falls by the factor η from each round to the next *whatever I is*. So one sequence of prices
p_0, p_1, …, and one solution of each round, gives D_I and the power spent for all I together, ν being (ϖ²/ζ)p_{I−1}:
`DualSearch.look`. Only the I that may still be best are looked at more closely.

Where a round's best schedule changes at a price by several devices, no price spends the budget exactly. The gap closes
when sizes are bounded: for the round in doubt either |K| ≤ m or |K| > m, each with its own dual value (`_close`).
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
from airfed.planning.time_varying.device_budgets import Attempt, dual_values, many_budgets
from airfed.planning.time_varying.instance import Instance, Solution
from airfed.planning.time_varying.one_round import Answers, Mixer, Ordered, Solver, Unordered

_RTOL = 1e-3  # a gap worth closing
_NODES = 400
_WORK = 1 << 28  # pairs of round and device looked at to close it
_LOOKS = 20  # that one node takes, or so
_TRIES = 10  # numbers of rounds for which a plan is made
_SAFE = 1e-12  # a lower bound ends on the safe side
_LARGEST = 460.0  # |ln| of the prices
_DUAL_RTOL = 1e-8  # of W: the dual is then as good as known
_MOST_LOOKS = 200
_NEAR = 3  # sizes on either side of an answer that are tried as well
_FEW = 24  # devices of which every size is tried


def clairvoyant(instance: Instance, *, rounds: int | None = None, rtol: float = _RTOL) -> Solution:
    """Return the best plan over all schedules, alignment factors and numbers of rounds, with its certificate.

        min over I, K_i ≠ ∅, θ_i of offset_I + Σ_{i<I} w_i [4(1 − |K_i|/N)² + C/(|K_i|²θ_i²)]

    within peak power, privacy per round, total power, and the devices' own budgets where there are any. No plan can be
    below `lower_bound`, the Lagrangian dual's best value. With the total power alone, branch and bound closes a gap
    beyond `rtol`, within a limited effort; with devices' own budgets, more than 512 rounds spend equal shares.
    """
    instance.require_reachable(1 if rounds is None else rounds)
    scaled, unit = instance.scaled()
    found, lower = _one_budget(scaled, rounds, rtol) if instance.one_budget else many_budgets(scaled, rounds)
    member = strongest(instance.gain[: found.size.size], found.size) if found.member is None else found.member
    return Solution.within(instance, member, np.sqrt(found.square) * unit, lower_bound=lower)


def solver_of(instance: Instance) -> Solver:
    """What solves the instance's rounds at one price per watt."""
    gain, power = instance.gain[: instance.most_rounds], instance.peak_power
    if np.all(power == power[0]):
        return Ordered(gain, float(power[0]), cap=instance.cap, noise_weight=instance.noise_weight)
    return Unordered(gain, power, cap=instance.cap, noise_weight=instance.noise_weight)


def strongest(gain: Floats, size: Integers) -> Bools:
    """The `size` devices of largest gain in each round; of equal ones those of lower index."""
    member = np.zeros(gain.shape, dtype=np.bool_)
    for row, number, out in zip(gain, size.tolist(), member, strict=True):
        edge = np.partition(row, row.size - number)[row.size - number]
        np.greater(row, edge, out=out)
        out[np.flatnonzero(row == edge)[: number - np.count_nonzero(out)]] = True
    return member


def _one_budget(instance: Instance, rounds: int | None, rtol: float) -> tuple[Attempt, float]:
    """The best plan found and the lower bound, where only the total power ties rounds together."""
    solver = solver_of(instance)
    search = DualSearch(instance, solver.at, rounds=rounds)
    search.solve(only=rounds)
    offsets = instance.offsets()
    found: dict[int, Attempt] = {}
    ceiling = np.inf
    for number in np.argsort(search.best, kind="stable")[:_TRIES] + 1 if rounds is None else [rounds]:
        while search.best[number - 1] < ceiling and search.refine(int(number)):
            pass
        if search.best[number - 1] >= ceiling * (1 - rtol / 100):
            continue
        found[int(number)] = _attempt(instance, solver, search, int(number))
        ceiling = min(ceiling, float(offsets[number - 1] + found[int(number)].value))
    lower = float(np.min(search.best if rounds is None else search.best[rounds - 1 :]))
    if lower < ceiling * (1 - rtol):
        nodes = min(_NODES, _WORK // (_LOOKS * instance.most_rounds * instance.num_devices))
        lower = _close(instance, solver, search, found, rtol=rtol, nodes=nodes, only=rounds)
    best = min(found, key=lambda number: offsets[number - 1] + found[number].value)
    return found[best], lower


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """What one sequence of prices says."""

    price: Floats  # p_i, (R,)
    answers: Answers
    dual: Floats  # D_I for I = 1..R, rounded down
    spent: Floats  # Σ_{i<I} power_i


class DualSearch:
    """The search for the best dual value of every I that matters."""

    def __init__(self, instance: Instance, solve_at: Callable[[Floats], Answers], *, rounds: int | None = None) -> None:
        self.instance, self._solve_at = instance, solve_at
        self.rounds = rounds or instance.most_rounds
        self.slopes = instance.slopes(self.rounds)
        self.offsets = instance.offsets()[: self.rounds]
        self.looks = [self.look(-math.inf)]
        self.at = [-math.inf]  # ln p of the last round, ascending

    def look(self, at: float) -> Look:
        """Solve all rounds where the last one's price is exp(at)."""
        price = np.exp(np.clip(at + self.slopes, -_LARGEST, _LARGEST)) if at > -math.inf else np.zeros(self.rounds)
        answers = self._solve_at(price)
        dual = dual_values(self.instance, self.offsets, answers.value, price * self.instance.total_power)
        with np.errstate(invalid="ignore"):
            return Look(price=price, answers=answers, dual=dual, spent=np.cumsum(answers.power))

    def add(self, at: float) -> None:
        """Look there, and keep what is seen."""
        place = int(np.searchsorted(self.at, at))
        self.at.insert(place, at)
        self.looks.insert(place, self.look(at))

    @property
    def best(self) -> Floats:
        """The largest D_I seen, for every I."""
        return np.asarray(np.max([look.dual for look in self.looks], axis=0))

    def bracket(self, rounds: int) -> tuple[int, int]:
        """The places of the neighbouring looks of which only the cheaper one spends too much, within −1..len."""
        spent = np.array([look.spent[rounds - 1] for look in self.looks])
        over = int(np.count_nonzero(spent > self.instance.total_power))
        return over - 1, over

    def bounded(self, rounds: int, solve_at: Callable[[Floats], Answers]) -> DualSearch:
        """A search for one I with another solver, begun where this one has got to."""
        search = DualSearch(self.instance, solve_at, rounds=rounds)
        for place in self.bracket(rounds):
            if 0 < place < len(self.looks):
                search.add(self.at[place] + float(self.slopes[rounds - 1]))
        return search

    def refine(self, rounds: int) -> bool:
        """Look once more for one I; False where its D_I is as good as known already."""
        low, high = self.bracket(rounds)
        if low < 0 or len(self.looks) >= _MOST_LOOKS:
            return False
        if high == len(self.looks):
            self.add(self.dearer(rounds, low))
            return True
        budget = self.instance.total_power
        cheap, dear = self.looks[low], self.looks[high]
        left, right = self.at[low], self.at[high]
        if right - left <= 1e-12 * max(1.0, abs(right)):
            return False
        over, under = cheap.spent[rounds - 1], dear.spent[rounds - 1]
        p, q = cheap.price[rounds - 1], dear.price[rounds - 1]
        # the tangents meet at price p + shift, above every value of the concave D_I between p and q
        rise, fall = self.instance.weight * (over - budget), self.instance.weight * (budget - under)
        difference = dear.dual[rounds - 1] - cheap.dual[rounds - 1]
        shift = (difference + fall * (q - p)) / (rise + fall)
        top = cheap.dual[rounds - 1] + rise * shift
        if top - max(cheap.dual[rounds - 1], dear.dual[rounds - 1]) <= _DUAL_RTOL * abs(top):
            return False
        meeting = math.log(p + shift) if p + shift > 0 else left
        guess = meeting - self.slopes[rounds - 1]
        if left == -math.inf:
            least = right - 2 * math.log(budget / under) - 2.0 if under else right - 8.0
            guess = max(min(guess, right - 1.0), least)
        else:
            edge = 0.02 * (right - left)
            if not left + edge < guess < right - edge:
                guess = (left + right) / 2
        if guess < -_LARGEST - float(self.slopes.max()):
            return False
        self.add(guess)
        return True

    def dearer(self, rounds: int, low: int) -> float:
        """A price (ln, to the last round of all) at which less is spent: power falls about as its root."""
        if self.at[low] == -math.inf:
            answers = self.looks[0].answers
            size, load = answers.size[rounds - 1], answers.load[rounds - 1]
            guess = self.instance.noise_weight * load * (rounds / (size * self.instance.total_power)) ** 2
            return math.log(guess) - float(self.slopes[rounds - 1])
        spent = self.looks[low].spent[rounds - 1]
        return self.at[low] + 2.2 * math.log(spent / self.instance.total_power) + 0.5

    def solve(self, *, only: int | None = None) -> int:
        """The I of the lowest D_I, once that is known; or I = only."""
        while True:
            rounds = only or int(np.argmin(self.best)) + 1
            if not self.refine(rounds):
                return rounds


def _attempt(instance: Instance, solver: Solver, search: DualSearch, rounds: int) -> Attempt:
    """The best plan of I rounds that the schedules seen on both sides of the price can be made into."""
    low, high = search.bracket(rounds)
    near = [search.looks[place].answers for place in (low, high) if 0 <= place < len(search.looks)]
    every = np.arange(rounds)
    if isinstance(solver, Ordered):
        size = _sizes(instance.num_devices, np.array([each.size[:rounds] for each in near]))
        load, limit = solver.load[every, size - 1], solver.limit[every, size - 1]
    else:
        near += [look.answers for place, look in enumerate(search.looks) if place not in (low, high)]
        size, load, limit = (
            np.array([getattr(each, name)[:rounds] for each in near]) for name in ("size", "load", "limit")
        )
    mixer = Mixer(instance, size, load, limit)
    floor = float(search.best[rounds - 1] - instance.offsets()[rounds - 1])
    tries = [mixer.improve(np.full(rounds, start), floor=floor) for start in range(min(len(near), 2))]
    value, choice = min(tries, key=lambda found: found[0])
    member = None
    if not isinstance(solver, Ordered):
        member = np.array([near[option].member[place] for place, option in enumerate(choice.tolist())])
    return Attempt(value=value, square=mixer.value(choice)[1], size=size[choice, every], member=member)


def _sizes(num_devices: int, size: Integers) -> Integers:
    """The sizes themselves, and others: all of them where devices are few, else those near."""
    if num_devices <= _FEW:
        around = np.repeat(np.arange(1, num_devices + 1)[:, None], size.shape[1], axis=1)
    else:
        around = np.concatenate([size + step for step in range(-_NEAR, _NEAR + 1) if step])
    return np.concatenate((size, np.clip(around, 1, num_devices)))


def _close(
    instance: Instance,
    solver: Solver,
    search: DualSearch,
    found: dict[int, Attempt],
    *,
    rtol: float,
    nodes: int,
    only: int | None,
) -> float:
    """Branch and bound on |K_i|: put better plans into `found`, return a higher lower bound; `only`: I if fixed."""
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
    settled = np.inf  # the lowest dual value of a node that needs no children
    for _ in range(nodes):
        if not heap or heap[0][0] >= ceiling * (1 - rtol):
            break
        dual, _, rounds, least, most, own = heapq.heappop(heap)
        while own.best[rounds - 1] < ceiling and own.refine(rounds):
            pass
        dual = max(dual, float(own.best[rounds - 1]))
        tried = _attempt(instance, solver, own, rounds)
        if rounds not in found or tried.value < found[rounds].value:
            found[rounds] = tried
            ceiling = min(ceiling, float(offsets[rounds - 1] + tried.value))
        cut = _doubt(own, rounds)
        if cut is None or dual >= ceiling:
            settled = min(settled, dual)
            continue
        place, size = cut
        lower, upper = most.copy(), least.copy()
        lower[place], upper[place] = size, size + 1
        for low, high in ((least, lower), (upper, most)):
            child = own.bounded(rounds, partial(solver.at, least=low[:rounds], most=high[:rounds]))
            heapq.heappush(heap, (max(dual, float(child.best[rounds - 1])), next(order), rounds, low, high, child))
    return float(min(settled, ceiling * (1 - _SAFE), heap[0][0] if heap else np.inf))


def _doubt(search: DualSearch, rounds: int) -> tuple[int, int] | None:
    """The round in which the schedules on both sides of the price differ most in power, and a size between them."""
    low, high = search.bracket(rounds)
    if low < 0 or high == len(search.looks):
        return None
    cheap, dear = search.looks[low].answers, search.looks[high].answers
    one, other = cheap.size[:rounds], dear.size[:rounds]
    apart = np.where(one == other, -1.0, np.abs(cheap.power[:rounds] - dear.power[:rounds]))
    place = int(np.argmax(apart))
    return (place, int(one[place] + other[place]) // 2) if apart[place] >= 0 else None
