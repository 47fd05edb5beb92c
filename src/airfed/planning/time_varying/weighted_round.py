"""Exact solution of single rounds over all amplitudes at given dual variables, for many rounds at once.

In units of the round's weight the problem of a round is

    F = min over 0 ≤ a_k ≤ u_k of 4m² + C/D² + Σ_k q_k a_k²,   D = Σ_k a_k,   m = Σ_k (1/N − a_k/D)₊,

with C = dσ²/2 and costs q_k > 0 from the dual variables; it is convex (docs/fading.md). The KKT conditions have two
thresholds of the cost, r ≤ s. With v_k = Na_k/D and c_k = Nu_k/D

    v_k = min{c_k, median(r/q_k, 1, s/q_k)},   Σ_k (v_k − 1)₊ = Σ_k (1 − v_k)₊,   s − r = (4/D²)·Σ_k (1 − v_k)₊:

devices of cost below r exceed their share, those between r and s are aligned at D/N, and those above s send like a
matched filter. At a given D these are piecewise linear equations, with s a function of r. D is optimal if Σ_k v_k π_k =
CN²/D⁴, with π_k = r where v_k > 1, s where v_k < 1, and q_k where v_k = 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from airfed.planning.limits import Bools, Floats
from airfed.planning.limits import Devices as Integers
from airfed.problem import InfeasibleError

_BALANCED = 1e-13  # |Σ_k (v_k − 1)|/N that counts as 0
_STATIONARY = 1e-11  # relative error of the condition on D; the relative error of F is about its square
_CLOSE = 1e-15  # relative distance of F to the intersection of its tangents; D may be at a kink of F
_TIE = 1e-14
_ULP = 2.0**-52
_LARGEST_STEP = 2.0  # of ln D
_MOST_STEPS = 20_000  # far more than any search with finite values takes
TOO_FAR_APART = "No plan fits: gains, powers and noise of the rounds are too many orders of magnitude apart."
_LARGEST_RATIO = 1e100  # of the costs in a round; a larger one is reduced, which can only lower F


class _Balanced(NamedTuple):
    """Rounds whose equations at a given D are solved."""

    cost: Floats  # (R, N), as cap and v
    cap: Floats  # c
    v: Floats
    r: Floats  # (R,), as all others
    s: Floats
    shortfall: Floats  # Σ (1 − v)₊
    scale: Floats  # 4/D²
    free_above: Floats  # Σ 1/q of the devices with v = r/q
    free_below: Floats  # Σ 1/q of the devices with v = s/q

    @property
    def slope(self) -> Floats:
        """The derivative of Σ v in r, with s as its function."""
        return self.free_above + self.free_below / (1.0 + self.scale * self.free_below)


class WeightedRounds:
    """Newton's method within brackets for rounds of costs q and limits u, (R, N), each with a positive limit.

    Each round has an outer unknown, δ = D/Σu, and an inner one, r. A pass makes an inner step of every round that
    is not solved, and an outer step of those whose inner equations are. Costs and D are in units of Σu.

    Args:
        cost: q.
        limit: u; 0 for an unreachable device.
        noise_weight: C.
        start: δ, r and s of the solution at similar costs (r and s over the lowest cost), (3, R); NaN: none.
    """

    def __init__(self, cost: Floats, limit: Floats, noise_weight: float, start: Floats) -> None:
        self.num, self.limit, self.unit = limit.shape[1], limit, limit.sum(axis=1)
        self.cap = limit * (self.num / self.unit)[:, None]  # c at δ = 1
        lowest = np.min(cost, axis=1, where=limit > 0, initial=np.inf)[:, None]
        own = np.where(limit > 0, np.minimum(cost, lowest * _LARGEST_RATIO), lowest)
        self.cost = own * np.square(self.unit)[:, None]
        self.inverse, self.noise = 1.0 / self.cost, noise_weight / np.square(self.unit)
        self.least = self.cost.min(axis=1)
        self.delta, self.r, self.s = start[0].copy(), start[1] * self.least, start[2] * self.least
        fresh = np.isnan(self.delta)
        self.delta[fresh] = np.minimum((self.noise * self.inverse.sum(axis=1)) ** 0.25, 0.9)[fresh]
        self.r[fresh] = self.s[fresh] = (np.sqrt(self.least) * np.sqrt(self.cost.max(axis=1)))[fresh]
        num = len(limit)
        self.r_low, self.r_high = np.empty(num), np.empty(num)
        # the range of δ, with F and its derivative in t at both ends
        self.low, self.top, self.tangents = np.zeros(num), np.ones(num), np.full((4, num), np.nan)
        self.value, self.best, self.v = np.full(num, np.inf), np.ones(num), np.ones(limit.shape)

    def solve(self) -> tuple[Floats, Floats, Floats]:
        """Return F, the amplitudes, and the start of the next search."""
        rows = self._below_limits()
        self._restart(rows)
        for _ in range(_MOST_STEPS):
            if not rows.size:
                break
            rows = self._advance(rows)
        else:  # NaN from values beyond the range of float64
            raise InfeasibleError(TOO_FAR_APART)
        amplitude = np.minimum(self.limit, self.v * (self.best * self.unit / self.num)[:, None])
        return self.value, amplitude, np.array([self.best, self.r / self.least, self.s / self.least])

    def _below_limits(self) -> Integers:
        """Solve the rounds in which every device sends at its limit, and return the others."""
        cap, product = self.cap, self.cost * self.cap
        above = cap > 1 + _TIE
        shortfall = np.sum(1.0 - cap, axis=1, where=cap < 1)
        r = np.maximum(
            np.max(product, axis=1, where=above, initial=0.0),
            np.max(product, axis=1, where=~above, initial=0.0) - 4.0 * shortfall,
        )
        total = _products(self.cost, cap, r, r + 4.0 * shortfall)
        value = self._values(slice(None), shortfall, np.ones(r.shape), self.cost, cap)
        gradient = self.noise - total / self.num**2
        done = gradient >= 0
        self.value[done], self.v[done], self.tangents[2:] = value[done], cap[done], (value, gradient)
        self.delta = np.minimum(self.delta, 1 - 1e-3)
        return np.flatnonzero(~done)

    def _values(self, rows: Integers | slice, shortfall: Floats, delta: Floats, cost: Floats, v: Floats) -> Floats:
        """Return 4m² + C/D² + Σ q a²."""
        square = np.square(delta)
        costs = np.sum(cost * np.square(v), axis=1) * square
        return np.asarray((4.0 * np.square(shortfall) + costs) / self.num**2 + self.noise[rows] / square)

    def _restart(self, rows: Integers) -> None:
        """Start the inner search of the rounds at their new D."""
        largest = np.max(self.cost[rows] * self.cap[rows], axis=1) / self.delta[rows]  # then all are at their limits
        low = self.r_low[rows] = self.least[rows] * (1 - 4 * _ULP)
        high = self.r_high[rows] = np.maximum(largest, self.least[rows]) * (1 + 4 * _ULP)
        self.r[rows] = np.clip(self.r[rows], low, high)

    def _advance(self, rows: Integers) -> Integers:
        """Make one inner step of each round, and an outer one where possible; return the rounds that are not solved."""
        r, inverse, cap = self.r[rows], self.inverse[rows], self.cap[rows] / self.delta[rows, None]
        scale = 4.0 / np.square(self.delta[rows])
        upper = r[:, None] * inverse
        above = np.minimum(upper, cap)
        s, below, free_below = self._lower(r, self.s[rows], scale, inverse, cap)
        shortfall = np.sum(1.0 - below, axis=1)
        now = _Balanced(
            cost=self.cost[rows],
            cap=cap,
            v=np.maximum(below, above),
            r=r,
            s=s,
            shortfall=shortfall,
            scale=scale,
            free_above=np.sum(inverse, axis=1, where=(above > 1) & (upper < cap)),
            free_below=free_below,
        )
        excess = np.sum(above - 1.0, axis=1, where=above > 1) - shortfall
        low = self.r_low[rows] = np.where(excess < 0, r, self.r_low[rows])
        high = self.r_high[rows] = np.where(excess > 0, r, self.r_high[rows])
        solved = (np.abs(excess) <= _BALANCED * self.num) | (high - low <= 4 * _ULP * high)
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = r - excess / now.slope
        middle = np.sqrt(low) * np.sqrt(high)
        self.r[rows] = np.where(solved, r, np.where((newton > low) & (newton < high), newton, middle))
        self.s[rows] = s
        if not solved.any():
            return rows
        done = np.zeros(rows.size, dtype=np.bool_)
        done[solved] = self._step(rows[solved], _Balanced(*(each[solved] for each in now)))
        return rows[~done]

    @staticmethod
    def _lower(r: Floats, s: Floats, scale: Floats, inverse: Floats, cap: Floats) -> tuple[Floats, Floats, Floats]:
        """Return s = r + scale·Σ (1 − v)₊ with v = min{1, c, s/q}, these v, and Σ 1/q of those with v = s/q.

        s − scale·Σ (1 − v)₊ is concave, so that Newton's method exceeds the solution, after its first step, by rounding
        alone.
        """
        limit = np.minimum(cap, 1.0)
        first = True
        while True:
            own = s[:, None] * inverse
            v = np.minimum(own, limit)
            free = np.sum(inverse, axis=1, where=own < limit)
            error = s - r - scale * np.sum(1.0 - v, axis=1)
            slope = 1.0 + scale * free
            on = (np.abs(error) > 4 * _ULP * s * slope) & ((error < 0) | first)
            if not on.any():
                return s, v, free
            s, first = np.where(on, np.maximum(s - error / slope, r), s), False

    def _step(self, rows: Integers, now: _Balanced) -> Bools:
        """Move D of the rounds; return which of them are solved."""
        delta, noise = self.delta[rows], self.noise[rows]
        total = _products(now.cost, now.v, now.r, now.s)
        error = np.log(total) + 4 * np.log(delta) - np.log(noise) - 2 * np.log(self.num)
        value = self._values(rows, now.shortfall, delta, now.cost, now.v)
        better = value <= self.value[rows]
        self.value[rows[better]], self.v[rows[better]], self.best[rows[better]] = (
            value[better],
            now.v[better],
            delta[better],
        )
        # D is too small if the error is negative
        small = error < 0
        low = self.low[rows] = np.where(small, delta, self.low[rows])
        top = self.top[rows] = np.where(small, self.top[rows], delta)
        tangent = (value, -noise * np.expm1(error))
        known = self.tangents[:, rows] = np.where(
            np.array([small, small, ~small, ~small]), (*tangent, *tangent), self.tangents[:, rows]
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            first, last = 1.0 / np.square(low), 1.0 / np.square(top)
            meeting = (known[2] - known[0] + known[1] * first - known[3] * last) / (known[1] - known[3])
            least = known[0] + known[1] * (meeting - first)
            kink, middle = 1.0 / np.sqrt(meeting), np.where(low > 0, np.sqrt(low) * np.sqrt(top), top / 4)
        change, of_r, of_s = self._derivatives(now, total)
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = delta * np.exp(np.clip(-error / change, -_LARGEST_STEP, _LARGEST_STEP))
        following = np.where((kink > low) & (kink < top), kink, middle)
        following = np.where((newton > low) & (newton < top), newton, following)
        best = self.value[rows]
        done = (np.abs(error) <= _STATIONARY) | (top - low <= 8 * _ULP * top) | (best - least <= _CLOSE * best)
        on, ahead = rows[~done], np.log(following / delta)[~done]
        self.delta[on] = following[~done]
        for unknown, derivative in ((self.r, of_r), (self.s, of_s)):
            predicted = unknown[on] + derivative[~done] * ahead
            unknown[on] = np.where(predicted > 0, predicted, unknown[on])
        self._restart(on)
        return np.asarray(done)

    @staticmethod
    def _derivatives(now: _Balanced, total: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the derivatives in ln D of the error of D, and of r and s."""
        capped_above = np.sum(now.cap, axis=1, where=(now.v > 1) & (now.v >= now.cap))
        capped_below = np.sum(now.cap, axis=1, where=(now.v < 1) & (now.v >= now.cap))
        pull = now.scale * (capped_below - 2.0 * now.shortfall)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            response = 1.0 + now.scale * now.free_below
            of_r = (capped_above + capped_below - now.free_below / response * pull) / now.slope
            of_s = (of_r + pull) / response
            change = (2.0 * now.r * now.free_above + capped_above) * of_r - now.r * capped_above
            change += (2.0 * now.s * now.free_below + capped_below) * of_s - now.s * capped_below
            return change / total + 4.0, of_r, of_s


def _products(cost: Floats, v: Floats, r: Floats, s: Floats) -> Floats:
    """Return Σ v_k π_k."""
    r, s = r[:, None], s[:, None]
    middle = np.where(np.abs(v - 1.0) <= _TIE, np.clip(cost, r, s), s)
    return np.asarray(np.sum(np.where(v > 1.0 + _TIE, r, middle) * v, axis=1))
