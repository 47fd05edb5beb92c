"""One round at given prices, exactly, for many rounds at once.

In units of the round's weight w, and with x = θ², the round's problem is

    F = min over K ≠ ∅, x of 4(1 − |K|/N)² + C/(|K|²x) + x·Σ_{k∈K} p_k,   x ≤ min{cap², c_k² for k ∈ K},

C = dσ²/2, c_k = |h_k|√P_k, and p_k ≥ 0 the price of x to device k: p·a_k with a_k = 1/|h_k|² and one price p per
watt, or (ν + β_k)·a_k + λ_k where a device pays for its battery and for its privacy, too. For given |K| and Σ p_k the
best x is √(C/Σ p_k)/|K|, cut to its range.

`Ordered` solves it where one order settles the schedule: with equal peak powers and one price the m strongest devices
are both the cheapest and those of the highest limit, so that every m is looked at once.

`Unordered` solves it for different peak powers, and `_cells.cheapest` for prices of any kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airfed.planning._equal import Floats, Integers
from airfed.planning.time_varying._cells import Bools, cheapest, parts


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """The solutions of R rounds.

    Args:
        value: F, or where a tolerance was allowed a lower bound of it.
        square: x = θ².
        size: |K|.
        load: Σ_{k∈K} a_k [W at θ = 1].
        limit: the largest x that privacy and the peak powers allow to K.
        member: who is in K, (R, N); None where those are the |K| strongest.
    """

    value: Floats
    square: Floats
    size: Integers
    load: Floats
    limit: Floats
    member: Bools | None = None

    @property
    def power(self) -> Floats:
        """x·Σ_{k∈K} a_k [W]."""
        return self.square * self.load


class Ordered:
    """Rounds whose devices one order settles: equal peak powers, one price per watt.

    Args:
        gain: |h_k| in each round, (R, N); gain 0 is never scheduled.
        peak_power: P_k, one for all [W].
        cap: the largest θ that privacy allows in a round.
        noise_weight: C = dσ²/2.
    """

    def __init__(self, gain: Floats, peak_power: float, *, cap: float, noise_weight: float) -> None:
        self.noise_weight = noise_weight
        self._size = np.arange(1, gain.shape[1] + 1)
        self._missing = 4.0 * np.square(1.0 - self._size / gain.shape[1])
        self.load, self.limit = np.empty(gain.shape), np.empty(gain.shape)  # Σ a_k and the largest x of the m strongest
        for rows in parts(*gain.shape):
            square = np.square(-np.sort(-gain[rows], axis=1))
            np.minimum(square * peak_power, cap**2, out=self.limit[rows])
            with np.errstate(divide="ignore"):
                np.cumsum(1.0 / square, axis=1, out=self.load[rows])

    def at(self, price: Floats, *, least: Integers | None = None, most: Integers | None = None) -> Answers:
        """Solve the rounds 0..len(price)−1 at a price per watt each.

        Args:
            price: p, (≤ R,).
            least, most: bounds on |K| in each round, for a search that branches on them.
        """
        num = price.size
        value, size = np.empty(num), np.empty(num, dtype=np.intp)
        for rows in parts(num, self._size.size):
            total = self.values(rows, price[rows, None])
            if least is not None:
                total[self._size < least[rows, None]] = np.inf
            if most is not None:
                total[self._size > most[rows, None]] = np.inf
            best = np.argmin(total, axis=1)
            size[rows] = best + 1
            value[rows] = total[np.arange(best.size), best]
        return self.answers(price, value, size)

    def values(self, rows: slice, price: Floats) -> Floats:
        """The value of every size m = 1..N at its best x, in the given rounds."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            cost = self.load[rows] * price
            square = np.sqrt(self.noise_weight / cost)
            square /= self._size
            np.minimum(square, self.limit[rows], out=square)
            cost *= square
            np.multiply(square, np.square(self._size, dtype=np.float64), out=square)
            np.divide(self.noise_weight, square, out=square)
            square += cost
            square += self._missing
        square[np.isnan(square)] = np.inf  # a device of gain 0
        return square

    def answers(self, price: Floats, value: Floats, size: Integers) -> Answers:
        """The answers of given sizes."""
        rows = np.arange(size.size)
        load, limit = self.load[rows, size - 1], self.limit[rows, size - 1]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            square = np.minimum(np.sqrt(self.noise_weight / (price * load)) / size, limit)
        return Answers(value=value, square=square, size=size, load=load, limit=limit)


class Unordered:
    """Rounds whose devices differ in peak power, at one price per watt: the order of their cost is always the same.

    Args:
        gain, cap, noise_weight: as in `Ordered`.
        peak_power: P_k [W], (N,).
        rtol: how far F may be below what is attained.
    """

    def __init__(
        self, gain: Floats, peak_power: Floats, *, cap: float, noise_weight: float, rtol: float = 1e-13
    ) -> None:
        self.cap, self.noise_weight, self.rtol = cap, noise_weight, rtol
        with np.errstate(divide="ignore"):
            self.cost = 1.0 / np.square(gain)
        self.limit = np.square(gain) * peak_power

    def at(self, price: Floats, *, least: Integers | None = None, most: Integers | None = None) -> Answers:
        """Solve the rounds 0..len(price)−1 at a price per watt each, with sizes between `least` and `most`."""
        num = price.size
        with np.errstate(over="ignore", invalid="ignore"):
            cost = np.where(self.limit[:num] > 0, self.cost[:num] * price[:, None], np.inf)
        value, square, member = cheapest(
            cost,
            self.limit[:num],
            cap=self.cap,
            noise_weight=self.noise_weight,
            rtol=self.rtol,
            sizes=None if least is None or most is None else (least, most),
        )
        return described(value, square, member, self.cost[:num], self.limit[:num], self.cap)


def described(value: Floats, square: Floats, member: Bools, load: Floats, limit: Floats, cap: float) -> Answers:
    """Answers from who is in K."""
    return Answers(
        value=value,
        square=square,
        size=np.count_nonzero(member, axis=1),
        load=np.sum(load, axis=1, where=member),
        limit=np.minimum(np.min(limit, axis=1, where=member, initial=np.inf), cap**2),
        member=member,
    )
