"""One round at given dual variables, exactly, for many rounds at once; and the best θ of given schedules.

In units of the round's weight w, and with x = θ², the round's problem is

    F = min over K ≠ ∅, x of 4(1 − |K|/N)² + C/(|K|²x) + x·Σ_{k∈K} p_k,   x ≤ min{cap², c_k² for k ∈ K},

C = dσ²/2, c_k = |h_k|√P_k, and p_k ≥ 0 the cost of x to device k: p·a_k with a_k = 1/|h_k|² and one price p per watt,
or (ν + β_k)·a_k + λ_k where a device has a battery and a privacy budget of its own, too. For given |K| and Σ p_k the
best x is √(C/Σ p_k)/|K|, cut to its range. `Ordered` looks at every |K| once, `Unordered` is for different peak powers,
and `cheapest` for costs of any kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airfed.planning.limits import Bools, Floats
from airfed.planning.limits import Devices as Integers
from airfed.planning.time_varying.instance import Instance

_AT_ONCE = 1 << 16  # pairs of round and device that are worked on together, so that they stay in the cache
_MOST_EXCHANGES = 50
_NEAR = 1e-7  # as good as the best
_MOST_MOVES = 500  # exchanges that are weighed at once
_MOVES_AT_ONCE = 1 << 18


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """The solutions of R rounds, (R,) each."""

    value: Floats  # F, or where a tolerance was allowed a lower bound of it
    square: Floats  # x = θ²
    size: Integers  # |K|
    load: Floats  # Σ_{k∈K} a_k [W at θ = 1]
    limit: Floats  # the largest x that privacy and the peak powers allow to K
    member: Bools | None = None  # who is in K, (R, N); None where those are the |K| strongest

    @property
    def power(self) -> Floats:
        """x·Σ_{k∈K} a_k [W]."""
        return self.square * self.load


class Ordered:
    """Rounds at one price per watt with equal peak powers: the m strongest devices are the best m."""

    def __init__(self, gain: Floats, peak_power: float, *, cap: float, noise_weight: float) -> None:
        self.noise_weight = noise_weight
        self._size = np.arange(1, gain.shape[1] + 1)
        self._missing = 4.0 * np.square(1.0 - self._size / gain.shape[1])
        self.load, self.limit = np.empty(gain.shape), np.empty(gain.shape)  # Σ a_k and the largest x of the m strongest
        for rows in _parts(*gain.shape):
            square = np.square(-np.sort(-gain[rows], axis=1))
            np.minimum(square * peak_power, cap**2, out=self.limit[rows])
            with np.errstate(divide="ignore"):
                np.cumsum(1.0 / square, axis=1, out=self.load[rows])

    def at(self, price: Floats, *, least: Integers | None = None, most: Integers | None = None) -> Answers:
        """Solve the rounds 0..len(price)−1 at a price per watt each, with sizes between `least` and `most`."""
        value, size = np.empty(price.size), np.empty(price.size, dtype=np.intp)
        for rows in _parts(price.size, self._size.size):
            total = self._values(rows, price[rows, None])
            if least is not None and most is not None:
                total[(self._size < least[rows, None]) | (self._size > most[rows, None])] = np.inf
            best = np.argmin(total, axis=1)
            size[rows] = best + 1
            value[rows] = total[np.arange(best.size), best]
        every = np.arange(size.size)
        load, limit = self.load[every, size - 1], self.limit[every, size - 1]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            square = np.minimum(np.sqrt(self.noise_weight / (price * load)) / size, limit)
        return Answers(value=value, square=square, size=size, load=load, limit=limit)

    def _values(self, rows: slice, price: Floats) -> Floats:
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


class Unordered:
    """Rounds at one price per watt whose devices differ in peak power."""

    def __init__(
        self, gain: Floats, peak_power: Floats, *, cap: float, noise_weight: float, rtol: float = 1e-13
    ) -> None:
        self.cap, self.noise_weight, self.rtol = cap, noise_weight, rtol
        with np.errstate(divide="ignore"):
            self.cost = 1.0 / np.square(gain)
        self.limit = np.square(gain) * peak_power

    def at(self, price: Floats, *, least: Integers | None = None, most: Integers | None = None) -> Answers:
        """Solve the rounds 0..len(price)−1 at a price per watt each, with sizes between `least` and `most`."""
        load, limit = self.cost[: price.size], self.limit[: price.size]
        with np.errstate(over="ignore", invalid="ignore"):
            cost = np.where(limit > 0, load * price[:, None], np.inf)
        sizes = None if least is None or most is None else (least, most)
        value, square, member = cheapest(
            cost, limit, cap=self.cap, noise_weight=self.noise_weight, rtol=self.rtol, sizes=sizes
        )
        return Answers(
            value=value,
            square=square,
            size=np.count_nonzero(member, axis=1),
            load=np.sum(load, axis=1, where=member),
            limit=np.minimum(np.min(limit, axis=1, where=member, initial=np.inf), self.cap**2),
            member=member,
        )


Solver = Ordered | Unordered


def _parts(rounds: int, devices: int) -> list[slice]:
    """The rounds in parts that stay in the cache."""
    step = max(1, _AT_ONCE // devices)
    return [slice(start, min(start + step, rounds)) for start in range(0, rounds, step)]


def cheapest(
    cost: Floats,
    limit: Floats,
    *,
    cap: float,
    noise_weight: float,
    rtol: float = 1e-13,
    sizes: tuple[Integers, Integers] | None = None,
) -> tuple[Floats, Floats, Bools]:
    """Solve rounds of any costs p_k ≥ 0 and limits c_k² (0: out), (R, N): F (never too large), x and the members of K.

    `rtol` is how far F may be below what K and x attain, `sizes` bounds |K| in each round, (R,) each.
    """
    num, devices = cost.shape
    value, square, member = np.empty(num), np.empty(num), np.zeros((num, devices), dtype=np.bool_)
    for rows in _parts(num, devices):
        order = np.argsort(cost[rows], axis=1, kind="stable")
        own = None if sizes is None else (sizes[0][rows], sizes[1][rows])
        arranged = (np.take_along_axis(each[rows], order, axis=1) for each in (cost, limit))
        search = _Cells(*arranged, cap=cap, noise_weight=noise_weight, rtol=rtol, sizes=own)
        value[rows], square[rows], chosen = search.solve()
        np.put_along_axis(member[rows], order, chosen, axis=1)
    return value, square, member


class _Cells:
    """Branch and bound over x = θ², for some rounds whose devices stand in the order of their cost.

    In a cell l ≤ x ≤ u the m cheapest of the devices with c_k² ≥ l bound the round's problem from below. Where those
    chosen also reach the x chosen, the bound is attained and the cell is done; else it is cut at the limit of one of
    those that fall short: above the cut they are not eligible, below it x is smaller. A cell within which no c_k² lies
    is always done, so that the search ends.
    """

    def __init__(
        self,
        cost: Floats,
        limit: Floats,
        *,
        cap: float,
        noise_weight: float,
        rtol: float,
        sizes: tuple[Integers, Integers] | None,
    ) -> None:
        self.cost, self.limit, self.cap, self.noise, self.rtol = cost, limit, cap**2, noise_weight, rtol
        self.sizes = sizes
        num, devices = cost.shape
        self.missing = 4.0 * np.square(1.0 - np.arange(devices + 1.0) / devices)  # by |K|
        self.best, self.square = np.full(num, np.inf), np.zeros(num)
        self.low, self.last = np.zeros(num), np.full(num, -1)  # the best schedule: eligible from, up to which place

    def solve(self) -> tuple[Floats, Floats, Bools]:
        """F, x and the members of K in the order of cost."""
        high = np.minimum(self.cap, self.limit.max(axis=1))
        rows = np.flatnonzero(high > 0)
        bound = np.full(len(self.cost), np.inf)  # of the cells that were given up
        low, high = np.full(rows.size, np.nextafter(0.0, 1.0)), high[rows]
        while rows.size:
            below, cut = np.empty(rows.size), np.zeros(rows.size)
            for part in _parts(rows.size, self.cost.shape[1]):
                below[part], cut[part] = self._look(rows[part], low[part, None], high[part, None])
            worth = below < self.best[rows] * (1 - self.rtol)
            np.minimum.at(bound, rows[~worth], below[~worth])
            worth &= cut > 0
            rows, low, high, cut = rows[worth], low[worth], high[worth], cut[worth]
            rows = np.concatenate((rows, rows))
            low, high = np.concatenate((low, np.nextafter(cut, np.inf))), np.concatenate((cut, high))
        place = np.arange(self.cost.shape[1])
        member = (place <= self.last[:, None]) & (self.limit >= self.low[:, None])
        return np.minimum(self.best, bound), self.square, member

    def _look(self, rows: Integers, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """The lower bound of each cell low ≤ x ≤ high, and where to cut it: 0 where the bound is attained."""
        cost, limit = self.cost[rows], self.limit[rows]
        every = np.arange(rows.size)
        eligible = limit >= low
        size = np.cumsum(eligible, axis=1)
        total = np.cumsum(np.where(eligible, cost, 0.0), axis=1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            square = np.clip(np.sqrt(self.noise / total) / size, low, high)
            value = self.missing[size] + self.noise / (np.square(size, dtype=np.float64) * square) + square * total
        value[~eligible | np.isnan(value)] = np.inf
        if self.sizes is not None:
            value[(size < self.sizes[0][rows, None]) | (size > self.sizes[1][rows, None])] = np.inf
        last = np.argmin(value, axis=1)
        below, wanted = value[every, last], square[every, last]
        chosen = eligible & (np.arange(cost.shape[1]) <= last[:, None])
        short = chosen & (limit < wanted[:, None])
        reach = np.min(limit, axis=1, where=chosen, initial=np.inf)
        attained = np.minimum(wanted, reach)
        number, price = size[every, last], total[every, last]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            worth = self.missing[number] + self.noise / (np.square(number, dtype=np.float64) * attained)
            worth = np.where(short.any(axis=1) & np.isfinite(below), worth + attained * price, below)
        order = np.argsort(-worth, kind="stable")  # of several cells of one round the best is written last
        order = order[worth[order] < self.best[rows[order]]]
        to = rows[order]
        self.best[to], self.square[to] = worth[order], attained[order]
        self.low[to], self.last[to] = low[order, 0], last[order]
        # cut at one of those limits that are in the way, near the middle of them
        few = np.flatnonzero(short.any(axis=1))
        cut = np.zeros(rows.size)
        if few.size:
            scale = np.log(np.where(short[few], limit[few], 1.0))
            middle = scale.sum(axis=1) / short[few].sum(axis=1)
            near = short[few] & (scale <= middle[:, None])
            cut[few] = np.maximum(np.max(limit[few], axis=1, where=near, initial=0.0), reach[few])
        return below, cut


def fill(pull: Floats, load: Floats, limit: Floats, budget: float) -> tuple[Floats, Floats]:
    """Return the best x_i = θ_i² of given schedules by water-filling, (…, I), and κ = √ν, (…,).

    min Σ_i w_i·C/(m_i²x_i) subject to Σ_i x_i·S_i ≤ P, x_i ≤ limit_i is convex: x_i = min{limit_i, r_i/κ}, with one κ
    at which the whole budget is spent; κ = 0 where the budget is no limit.
    `pull` is r_i = √(w_iC/S_i)/m_i, (…, I), and `load` is S_i.
    """
    full = load * limit
    edge = pull / limit  # below this κ round i is at its limit
    order = np.argsort(-edge, axis=-1)
    edge, full, free = (np.take_along_axis(x, order, axis=-1) for x in (edge, full, load * pull))
    capped = np.cumsum(full, axis=-1) - full  # of those before
    rest = np.cumsum(free[..., ::-1], axis=-1)[..., ::-1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        kappa = np.where(budget > capped, rest / (budget - capped), np.inf)
        # the first t before which the limits hold and from which on κ is at least every edge
        good = kappa >= edge
    first = np.argmax(good, axis=-1)[..., None]
    found = np.where(good.any(axis=-1), np.take_along_axis(kappa, first, axis=-1)[..., 0], 0.0)
    with np.errstate(divide="ignore"):
        return np.minimum(limit, pull / found[..., None]), found


class Mixer:
    """Chooses one of some schedules, (E, I), for each of I rounds, so that together they are good."""

    def __init__(self, instance: Instance, size: Integers, load: Floats, limit: Floats) -> None:
        weights = instance.weight * np.exp(-instance.slopes(size.shape[1]))
        never = ~np.isfinite(load) | (limit <= 0)  # with a device that is unreachable
        self.load, self.limit = np.where(never, 1.0, load), np.where(never, 1.0, limit)
        self.budget, self.round = instance.total_power, np.arange(weights.size)
        left_out = weights * 4.0 * np.square(1.0 - size / instance.num_devices)
        self.missing = np.where(never, np.inf, left_out)
        self.noise = weights * instance.noise_weight / np.square(size, dtype=np.float64)
        self.pull = np.sqrt(self.noise / self.load)

    def value(self, choice: Integers) -> tuple[Floats, Floats, Floats]:
        """Σ w_iφ_i, x and κ of one choice per round, (…, I)."""
        pick = (choice, self.round)
        square, kappa = fill(self.pull[pick], self.load[pick], self.limit[pick], self.budget)
        with np.errstate(divide="ignore", over="ignore"):
            return np.sum(self.missing[pick] + self.noise[pick] / square, axis=-1), square, kappa

    def improve(self, choice: Integers, *, floor: float) -> tuple[float, Integers]:
        """Exchange single rounds' options, or all at once, as long as that helps; no value is below `floor`."""
        best = float(self.value(choice)[0])
        for _ in range(_MOST_EXCHANGES):
            if best <= floor * (1 + _NEAR):
                break
            moves = self._moves(choice)
            values = self.value(moves)[0]
            place = int(np.argmin(values))
            if not values[place] < best * (1 - 1e-12):
                break
            best, choice = float(values[place]), moves[place]
        return best, choice

    def _moves(self, choice: Integers) -> Integers:
        """The exchanges that promise most at the present price of a watt."""
        _, _, kappa = self.value(choice)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            square = np.minimum(self.limit, self.pull / kappa)
            worth = self.missing + self.noise / square + kappa**2 * square * self.load
            gain = worth - worth[choice, self.round]
        gain[choice, self.round] = np.inf
        most = min(gain.size, max(1, _MOVES_AT_ONCE // self.round.size), _MOST_MOVES)
        flat = np.argpartition(gain, most - 1, axis=None)[:most] if most < gain.size else np.arange(gain.size)
        option, place = np.unravel_index(flat, gain.shape)
        moves = np.repeat(choice[None], flat.size + 1, axis=0)
        moves[np.arange(flat.size), place] = option
        moves[-1] = np.argmin(worth, axis=0)
        return moves
