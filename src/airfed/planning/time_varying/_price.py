"""The price of a watt, for every number of rounds at once.

For I rounds the plan minimises offset_I + Σ_{i<I} w_i·φ_i with w_i = (ϖ²/ζ)η^(I−1−i), subject to Σ_i power_i ≤ P_tot.
At a price ν per watt the rounds fall apart, and

    D_I(ν) = offset_I + Σ_{i<I} w_i·F_i(ν/w_i) − ν·P_tot

is at most what any plan of I rounds attains: a concave function of ν with slope Σ power_i − P_tot. The price that round
i sees, p_i = ν/w_i, falls by the factor η from each round to the next *whatever I is*. So one sequence of prices
p_0, p_1, …, and one solution of each round, gives D_I and the power spent for all I together, ν being (ϖ²/ζ)p_{I−1}:
`PriceSearch.look`. Only the I that may still be best are looked at more closely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from airfed.planning._equal import Floats
from airfed.planning.time_varying._round import Answers
from airfed.planning.time_varying.instance import Instance

SAFE = 1e-12  # of everything that was added up: a lower bound ends on the safe side
_ULP = 2.0**-52
_LARGEST = 460.0  # |ln| of the prices
_RTOL = 1e-8  # of W: the dual is then as good as known
_MOST_LOOKS = 200


class Solver(Protocol):
    """What solves rounds at one price per watt each."""

    def at(self, price: Floats) -> Answers:
        """Solve the rounds 0..len(price)−1."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """What one sequence of prices says.

    Args:
        price: p_i, (R,).
        answers: the rounds' solutions.
        dual: D_I for I = 1..R, rounded down.
        spent: Σ_{i<I} power_i.
    """

    price: Floats
    answers: Answers
    dual: Floats
    spent: Floats


class PriceSearch:
    """The search for the best dual value of every I that matters.

    Args:
        instance: in units in which P_tot is about 1.
        solver: of the instance's rounds.
        rounds: the largest I to think of; None: as many as the instance has.
    """

    def __init__(self, instance: Instance, solver: Solver, *, rounds: int | None = None) -> None:
        self.instance, self.solver = instance, solver
        self.rounds = rounds or instance.most_rounds
        self.slopes = instance.slopes(self.rounds)
        self.offsets = instance.offsets()[: self.rounds]
        self.looks = [self.look(-math.inf)]
        self.at = [-math.inf]  # ln p of the last round, ascending

    def look(self, at: float) -> Look:
        """Solve all rounds where the last one's price is exp(at)."""
        price = np.exp(np.clip(at + self.slopes, -_LARGEST, _LARGEST)) if at > -math.inf else np.zeros(self.rounds)
        answers = self.solver.at(price)
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

    def bounded(self, rounds: int, solver: Solver) -> PriceSearch:
        """A search for one I with another solver, begun where this one has got to."""
        search = PriceSearch(self.instance, solver, rounds=rounds)
        for place in self.bracket(rounds):
            if 0 < place < len(self.looks):
                search.add(self.at[place] + float(self.slopes[rounds - 1]))
        return search

    def refine(self, rounds: int, *, rtol: float = _RTOL) -> bool:
        """Look once more for one I; False where its D_I is known to `rtol` already."""
        low, high = self.bracket(rounds)
        if low < 0 or len(self.looks) >= _MOST_LOOKS:
            return False
        budget = self.instance.total_power
        if high == len(self.looks):
            self.add(self.dearer(rounds, low))
            return True
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
        if top - max(cheap.dual[rounds - 1], dear.dual[rounds - 1]) <= rtol * abs(top):
            return False
        meeting = math.log(p + shift) if p + shift > 0 else left
        offset = self.slopes[rounds - 1]
        if left == -math.inf:
            guess = max(
                min(meeting - offset, right - 1.0), right - 2 * math.log(budget / under) - 2.0 if under else right - 8.0
            )
        else:
            guess = meeting - offset
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


def dual_values(instance: Instance, offsets: Floats, value: Floats, paid: Floats) -> Floats:
    """D_I for I = 1..R, rounded down.

    Args:
        instance: weights.
        offsets: of the objective, (R,).
        value: F_i, (R,).
        paid: what the budgets are worth at the prices of round I−1, in units of its weight, (R,).
    """
    shrink = math.exp(-instance.decay)
    total, sums = 0.0, np.empty(value.size)
    for i, each in enumerate(value.tolist()):
        total = total * shrink + each if shrink else each
        sums[i] = total
    size = instance.weight * (sums + paid) + offsets
    with np.errstate(invalid="ignore"):
        dual = offsets + instance.weight * (sums - paid) - (SAFE + value.size * _ULP) * size
    return np.where(np.isinf(sums), np.inf, dual)
