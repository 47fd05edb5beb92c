"""The best amplitudes of one round of equal rounds, without alignment: a convex problem with a solution in three zones.

    minimise   Ψ = 4m² + q/D²,   D = Σ_k a_k,   m = Σ_k (1/N − a_k/D)₊,   q = dσ²/2
    subject to 0 ≤ a_k ≤ u_k,   Σ_k a_k²/|h_k|² ≤ B

docs/weighted.md has the zones, a_k = min{u_k, max(|h_k|²α₂, min(t, |h_k|²α₁))} with t = D/N, and the dual bound. Ψ is
convex in 1/D, so that the search for t has one root. It may be at a jump, at t = u_k or where α₁ or α₂ is not unique;
then the dual variables of both sides are combined.

A large fleet is solved on a sample first. Devices whose zone is the same for all (t, α₁, α₂) near that solution enter
by their sums, and only the others are searched. If the solution is inside that box, it is the exact one.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_WEAK_LIMIT, _WEAK, _EQUAL, _STRONG, _STRONG_LIMIT = range(5)  # zones: columns of a table of sums
_COUNT, _LIMIT, _SQUARE, _POWER, _LOAD = range(5)  # rows: 1, u_k, |h_k|², u_k²/|h_k|², 1/|h_k|²
_SAMPLE: Final = 4096  # devices that are searched directly
_WIDTHS: Final = (0.03, 0.2)  # relative half widths of the box around the solution of a sample of all devices
_ROUGH: Final = 1e-3  # relative error of t in that sample
_LOWEST: Final = 0.02  # of the largest D on a curve
_GAP: Final = 1e-13  # relative distance to the dual bound at which a search ends


class Dual(NamedTuple):
    """A point of the dual problem; points form a convex cone."""

    value: float  # β + Σ z_k/N
    spread: float  # ζ
    multiplier: float  # λ, of the power
    support: float  # G

    def bound(self, noise_weight: float, support: Any = None) -> Any:
        """Return the lower bound on Ψ, also for other values of G."""
        support = self.support if support is None else support
        with np.errstate(divide="ignore", over="ignore"):
            return self.value**2 / (0.25 * self.spread**2 + np.square(support) / noise_weight)


class ZonePoint(NamedTuple):
    """Amplitudes min{u, max(|h|²α₂, min(t, |h|²α₁))} with the sums over each zone."""

    t: float
    inverse: float  # 1/α₁; 0 if the power does not bind
    strong: float  # α₂
    table: Floats  # sums by row and zone, (5, 5)
    ratio: float  # α₂/α₁ of the dual variables

    @property
    def weak(self) -> float:
        """α₁."""
        return 1.0 / self.inverse if self.inverse else math.inf

    @property
    def missing(self) -> float:
        """mD, the sum of t − a_k over the weak devices."""
        count, received = self.table[_COUNT, _WEAK_LIMIT] + self.table[_COUNT, _WEAK], self.received[0]
        return max(0.0, float(self.t * count - received))

    @property
    def received(self) -> tuple[float, float]:
        """The sums of a_k over the weak and over the strong devices."""
        matched = self.table[_SQUARE, _WEAK] / self.inverse if self.inverse else 0.0
        strong = self.table[_LIMIT, _STRONG_LIMIT] + self.strong_part(self.strong)
        return float(self.table[_LIMIT, _WEAK_LIMIT] + matched), float(strong)

    def amplitudes(self, square: Floats, limit: Floats) -> Floats:
        """Return a_k for |h_k|² and u_k, (N,)."""
        with np.errstate(over="ignore"):
            return np.minimum(limit, np.maximum(square * self.strong, np.minimum(self.t, square * self.weak)))

    def strong_part(self, factor: float) -> float:
        """Return `factor` times Σ|h_k|² over the strong devices below their limits."""
        square = float(self.table[_SQUARE, _STRONG])
        return factor * square if square else 0.0

    def dual(self, num_devices: float, budget: float) -> Dual:
        """Return the dual variables of these amplitudes, scaled to β + ζ = 1."""
        table, t, ratio = self.table, self.t, self.ratio
        count = float(table[_COUNT, _WEAK_LIMIT] + table[_COUNT, _WEAK])
        weak, strong = self.received
        multiplier, load = 0.5 * self.inverse, float(table[_LOAD, _EQUAL])
        power = float(table[_POWER, _WEAK_LIMIT] + table[_POWER, _STRONG_LIMIT]) + t * (t * load)
        power += self.strong_part(self.strong) * self.strong
        power += table[_SQUARE, _WEAK] / self.inverse / self.inverse if self.inverse else 0.0
        aligned = self.inverse * t * load - ratio * table[_COUNT, _EQUAL]
        return Dual(
            value=ratio + ((1 - ratio) * count + aligned) / num_devices,
            spread=1 - ratio,
            multiplier=multiplier,
            support=weak
            + t * (self.inverse * t * load)
            + ratio * strong
            + (multiplier * (budget - power) if multiplier else 0.0),
        )


class Optimum(NamedTuple):
    """The best amplitudes: the solution between two points that differ by rounding or in the dual variables."""

    below: ZonePoint
    above: ZonePoint
    dual: Dual
    objective: float  # Ψ

    def box(self, width: float) -> Box:
        """Return the box around the solution with the given relative half width."""
        ends = [(point.t, point.weak, point.strong) for point in (self.below, self.above)]
        return Box(np.min(ends, axis=0) / (1 + width), np.max(ends, axis=0) * (1 + width))


class Box(NamedTuple):
    """Intervals of (t, α₁, α₂)."""

    low: Floats
    high: Floats

    def contains(self, found: Optimum) -> bool:
        """Return whether a solution is inside."""
        ends = [(point.t, point.weak, point.strong) for point in (found.below, found.above)]
        return bool(np.all((np.array(ends) >= self.low) & (np.array(ends) <= self.high)))


EVERYTHING: Final = Box(np.zeros(3), np.full(3, np.inf))


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundProblem:
    """The problem of one round, with some devices represented by sums."""

    square: Floats  # |h_k|² > 0, (n,)
    limit: Floats  # u_k > 0, (n,)
    budget: float  # B
    noise_weight: float  # q
    num_devices: float  # N
    decided: Floats  # sums over the other devices, (5, 5)
    weight: float = 1.0  # number of devices that each of the n represents
    box: Box = EVERYTHING  # in which the zones of the other devices are decided

    @classmethod
    def of(cls, square: Floats, limit: Floats, *, budget: float, noise_weight: float, num_devices: int) -> RoundProblem:
        """Return the problem of the given devices; the others of the fleet are unreachable."""
        decided = np.zeros((5, 5))
        decided[_COUNT, _WEAK_LIMIT] = num_devices - square.size
        values: dict[str, Any] = {"budget": budget, "noise_weight": noise_weight, "num_devices": float(num_devices)}
        return cls(square=square, limit=limit, decided=decided, **values)

    def solve(self) -> Optimum:
        """Return the exact optimum."""
        with np.errstate(all="ignore"):  # infinite factors, and sums far below the largest
            return self._solve()

    def curve(self, number: int) -> list[ZonePoint]:
        """Return amplitudes of least shortfall from the largest D on downwards, `number` of them at most."""
        with np.errstate(all="ignore"):
            largest = self._largest()
            assert largest is not None  # nothing is decided
            levels = largest[1].t * np.geomspace(1.0, _LOWEST, number)[1:]
            return [largest[1], *filter(None, map(self._at, levels.tolist()))]

    def sample(self, size: int = _SAMPLE) -> RoundProblem:
        """Return the same problem with a sample of a large fleet, `size` devices at most."""
        step = -(-self.square.size // size)
        weight = self.weight * self.square.size / self.square[::step].size
        return replace(self, square=self.square[::step], limit=self.limit[::step], weight=weight)

    def at(self, t: float) -> ZonePoint:
        """Return the amplitudes of least shortfall for D = Nt, or for the largest D below."""
        with np.errstate(all="ignore"):
            found, largest = self._at(t), self._largest()
            assert largest is not None  # nothing is decided
            return largest[1] if found is None or t >= largest[1].t else found

    def _solve(self) -> Optimum:
        if self.square.size <= _SAMPLE:
            return self._search(4e-16)
        share = self.weight * self.square.size / self.num_devices
        try:
            rough = self.sample()._search(_ROUGH * share)
            for width in _WIDTHS:
                reduced = self._reduced(rough.box(width * share))
                if reduced.square.size > self.square.size // 2:
                    break
                with suppress(_OutsideError):
                    return reduced._solve()
        except _OutsideError:
            pass
        return self._search(4e-16)

    def _reduced(self, box: Box) -> RoundProblem:
        """Return the same problem with the devices whose zone is decided within a box represented by their sums."""
        low, high = np.maximum(box.low, self.box.low), np.minimum(box.high, self.box.high)
        if self.box is EVERYTHING:  # D ≤ Σ u_k
            high[0] = min(high[0], float(self.limit.sum()) / self.num_devices * (1 + 1e-9))
        (t_low, weak_low, strong_low), (t_high, weak_high, strong_high) = low, high
        square, limit = self.square, self.limit
        zone = np.full(square.shape, 5, dtype=np.int8)
        least, most = square * weak_low, square * weak_high
        zone[(limit < t_low) & (limit <= least)] = _WEAK_LIMIT
        zone[(most < t_low) & (most < limit)] = _WEAK
        level = (limit >= t_high) & (least >= t_high)
        least, most = square * strong_low, square * strong_high
        zone[level & (most <= t_low)] = _EQUAL
        zone[(least > t_high) & (most < limit)] = _STRONG
        zone[(limit > t_high) & (limit <= least)] = _STRONG_LIMIT
        open_ = zone == 5
        decided = self.decided + self.weight * _sums(zone, square, limit, 6)[:, :5]
        return replace(self, square=square[open_], limit=limit[open_], decided=decided, box=Box(low, high))

    def _table(self, weak: float, strong: float, t: float, *, ties_weak: bool = False) -> Floats:
        """Return the sums over each zone; `ties_weak`: devices with u_k = t count as weak, not as aligned."""
        square, limit = self.square, self.limit
        one, two = square * weak, square * strong
        below = (np.minimum(limit, one) < t) | (ties_weak & (limit == t) & (limit <= one))
        zone = np.where(below, np.where(limit <= one, _WEAK_LIMIT, _WEAK), _EQUAL)
        above = ~below & (np.minimum(limit, two) > t)
        zone[above] = np.where(limit[above] <= two[above], _STRONG_LIMIT, _STRONG)
        return self.decided + self.weight * _sums(zone, square, limit, 5)

    def _at(self, t: float) -> ZonePoint | None:
        """Return the amplitudes of least shortfall for a given t; None if D = Nt is infeasible."""
        weak, missing, weak_power = self._weak_part(t)
        strong, excess, strong_power = self._strong_part(t)
        least = float(missing[-1])
        if least > excess[-1] * (1 + 1e-15):
            return None
        if not self.decided[_SQUARE, _WEAK]:
            factor = float(np.interp(least, excess, strong))
            if weak_power(weak[-1]) + strong_power(np.array([factor]))[0] <= self.budget:
                return self._slack(t, least, strong, excess)
        # The breakpoints of α₁ (descending) and α₂ (ascending), merged by the shortfall. Within one of these intervals
        # the zones do not change.
        missing, weak = missing[::-1], weak[::-1]
        values = np.concatenate((missing, excess))
        one = np.concatenate((weak, np.interp(excess, missing, weak)))
        two = np.concatenate((np.interp(missing, excess, strong), strong))
        order = np.argsort(values, kind="stable")
        order = order[(values[order] >= least) & (values[order] <= min(missing[-1], excess[-1]))]
        one, two = one[order], two[order]
        fits = (weak_power(one) + strong_power(two) <= self.budget) | (one < two)
        index = int(np.argmax(fits))
        if not fits[index]:
            return None
        near = [max(index - 1, 0), index]
        return self._balanced(t, float(one[near].mean()), float(two[near].mean()))

    def _balanced(self, t: float, weak: float, strong: float) -> ZonePoint | None:
        """Return the solution at t, given α₁ and α₂ of the same zones."""
        table = self._table(weak, strong, t)
        one, two = float(table[_SQUARE, _WEAK]), float(table[_SQUARE, _STRONG])
        if one and two:
            outer = [_WEAK_LIMIT, _WEAK, _STRONG, _STRONG_LIMIT]
            limits = [_WEAK_LIMIT, _STRONG_LIMIT]
            amount = float(t * table[_COUNT, outer].sum() - table[_LIMIT, limits].sum())  # α₁Σ|h|² + α₂Σ|h|²
            rest = self.budget - float(table[_POWER, limits].sum() + t * (t * table[_LOAD, _EQUAL]))
            mean = amount / (one + two)
            spare = rest - amount * mean
            if spare < -1e-14 * self.budget:
                return None
            step = math.sqrt(max(spare, 0.0) / (one + two))
            weak, strong = mean + step * math.sqrt(two / one), max(0.0, mean - step * math.sqrt(one / two))
        return ZonePoint(t, 1 / weak, strong, table, min(1.0, strong / weak))

    def _slack(self, t: float, least: float, strong: Floats, excess: Floats) -> ZonePoint:
        """Return the solution at t if the power does not bind: α₁ = ∞."""
        index = min(max(int(np.searchsorted(excess, least)), 1), strong.size - 1)
        table = self._table(math.inf, float(0.5 * (strong[index - 1] + strong[index])), t)
        square, factor = float(table[_SQUARE, _STRONG]), float(np.interp(least, excess, strong))
        if square:
            above = t * float(table[_COUNT, _STRONG:].sum()) - float(table[_LIMIT, _STRONG_LIMIT])
            factor = (least + above) / square
        return ZonePoint(t, 0.0, factor, table, 0.0)

    def _weak_part(self, t: float) -> tuple[Floats, Floats, Any]:
        """Return breakpoints of α₁ from 0, Σ(t − a_k)₊ there, and Σ min{u_k, t, |h_k|²α₁}²/|h_k|² as a function."""
        decided, weight = self.decided, self.weight
        top = np.minimum(self.limit, t)
        points = top / self.square
        order = np.argsort(points)
        points, top, square = points[order], top[order], self.square[order]
        full = np.concatenate(([0.0], np.cumsum(top))) * weight
        full += decided[_LIMIT, _WEAK_LIMIT] + t * decided[_COUNT, _EQUAL:].sum()
        power = np.concatenate(([0.0], np.cumsum(top * points))) * weight
        power += decided[_POWER, _WEAK_LIMIT] + t * (t * decided[_LOAD, _EQUAL:].sum())
        rest = np.concatenate((np.cumsum(square[::-1])[::-1], [0.0])) * weight + decided[_SQUARE, _WEAK]
        factors = np.concatenate(([0.0], points))
        if decided[_SQUARE, _WEAK]:
            end = max(self.box.high[1], 2 * factors[-1])
            factors = np.append(factors, end)
            full, power, rest = (np.append(each, each[-1]) for each in (full, power, rest))
        missing = self.num_devices * t - (full + factors * rest)

        def spent(factor: Any) -> Any:
            index = np.searchsorted(factors, factor, side="right") - 1
            return power[index] + factor * (factor * rest[index])

        return factors, np.maximum.accumulate(missing[::-1])[::-1], spent

    def _strong_part(self, t: float) -> tuple[Floats, Floats, Any]:
        """Return breakpoints of α₂ from 0, Σ(a_k − t)₊ there, and Σ (a_k² − t²)₊/|h_k|² as a function."""
        decided, weight = self.decided, self.weight
        able = self.limit > t
        square, limit = self.square[able], self.limit[able]
        start, end = t / square, limit / square
        factors = np.concatenate((start, end))
        order = np.argsort(factors)
        steps = [
            np.concatenate(pair)
            for pair in ((square, -square), (np.full(limit.shape, -t), limit), (-t * start, limit * end))
        ]
        first = (
            decided[_SQUARE, _STRONG],
            decided[_LIMIT, _STRONG_LIMIT] - t * decided[_COUNT, _STRONG:].sum(),
            decided[_POWER, _STRONG_LIMIT] - t * (t * decided[_LOAD, _STRONG:].sum()),
        )
        rest, full, power = (
            np.concatenate(([value], value + weight * np.cumsum(each[order])))
            for value, each in zip(first, steps, strict=True)
        )
        factors = np.concatenate(([0.0], factors[order]))
        if decided[_SQUARE, _STRONG]:
            factors = np.append(factors, max(self.box.high[2], 2 * factors[-1]))
            full, power, rest = (np.append(each, each[-1]) for each in (full, power, rest))

        def spent(factor: Any) -> Any:
            index = np.searchsorted(factors, factor, side="right") - 1
            return power[index] + factor * (factor * rest[index])

        return factors, np.maximum.accumulate(full + factors * rest), spent

    def _largest(self) -> tuple[ZonePoint, ZonePoint] | None:
        """Return the amplitudes of the largest D, with the least and the largest α₂; None if outside the box."""
        if self.decided[_COUNT, _EQUAL]:
            return None
        points = self.limit / self.square
        order = np.argsort(points)
        points, square = points[order], self.square[order]
        full = self.decided[_POWER].sum() + self.weight * np.concatenate(([0.0], np.cumsum(self.limit[order] * points)))
        matched = float(self.decided[_SQUARE, [_WEAK, _STRONG]].sum())
        rest = matched + self.weight * np.concatenate((np.cumsum(square[::-1])[::-1], [0.0]))
        power = full[:-1] + points * (points * rest[:-1])
        index = int(np.searchsorted(power, self.budget))
        if index == points.size and (not matched and full[-1] <= self.budget):
            factor = math.inf
        elif self.budget <= full[index]:
            return None
        else:
            factor = math.sqrt((self.budget - full[index]) / rest[index])
        amplitude = np.minimum(self.limit, self.square * factor)
        limits = [_WEAK_LIMIT, _STRONG_LIMIT]
        total = float(self.decided[_LIMIT, limits].sum() + self.weight * amplitude.sum())
        t = (total + (factor * matched if matched else 0.0)) / self.num_devices
        just = t * (1 - 4e-16)  # devices at t count as strong
        above = ZonePoint(t, 1 / factor, factor, self._table(factor, factor, just), 1.0)
        reached = points[(self.limit[order] > just) & (points <= factor)]
        least = max(reached[-1] if reached.size else 0.0, self.box.low[2] * bool(self.decided[_COUNT, _STRONG_LIMIT]))
        return above._replace(ratio=min(1.0, least / factor)), above

    def _side(self, point: ZonePoint) -> float:
        """Return ln(4mD·G) − ln(qζ): negative if a larger t is better, positive if a smaller one is."""
        dual, missing = point.dual(self.num_devices, self.budget), point.missing
        if not missing * dual.support > 0:
            return -math.inf
        if not dual.spread > 0:
            return math.inf
        return math.log(4 * missing) + math.log(dual.support) - math.log(dual.spread) - math.log(self.noise_weight)

    def _search(self, rtol: float) -> Optimum:
        """Return the optimum by a search for t; raise `_OutsideError` if it is not inside the box."""
        low, high = float(self.box.low[0]), float(self.box.high[0])
        above, largest = None, self._largest()
        if largest is not None and largest[0].t <= high:
            least, above = largest
            high = above.t
            if not above.table[_SQUARE, _STRONG] and self._side(least) <= 0:
                return self._checked(least, above)
            start = math.sqrt(self.noise_weight / self._objective(above)) / self.num_devices
            low = max(low, min(start * (1 - 1e-6), high * (1 - 1e-3)))
        elif not math.isfinite(high):
            raise _OutsideError
        else:
            above = self._at(high)
            if above is not None and self._side(above) < 0:
                raise _OutsideError
        below = self._at(low)
        while self.box is EVERYTHING and low > 0 and (below is None or self._side(below) > 0):
            low *= 0.25  # rounding
            below = self._at(low)
        if below is None or self._side(below) > 0:
            raise _OutsideError
        return self._root(below, above, high, rtol)

    def _root(self, below: ZonePoint, above: ZonePoint | None, high: float, rtol: float) -> Optimum:
        """Return the optimum between two values of t; jumps at t = u_k are tried first."""
        sides = [self._side(below), math.inf if above is None else self._side(above)]
        jumps = np.unique(self.limit[(self.limit > below.t) & (self.limit < high)])
        step = 0
        while high > below.t * (1 + rtol) and (above is None or self._gap(below, above) > _GAP):
            step += 1
            middle = math.sqrt(below.t * high)
            if step % 3 and all(map(math.isfinite, sides)):
                middle = below.t * (high / below.t) ** (sides[0] / (sides[0] - sides[1]))
            jumps = jumps[(jumps > below.t) & (jumps < high)]
            if jumps.size:
                index = int(np.searchsorted(jumps, middle)) if step % 3 else jumps.size // 2
                middle = float(jumps[min(index, jumps.size - 1)])
            elif not below.t < middle < high:
                middle = 0.5 * (below.t + high)
                if not below.t < middle < high:
                    break
            point = self._at(middle)
            side = math.inf if point is None else self._side(point)
            if point is None or side > 0:
                above, high = point, middle
                sides = [0.5 * sides[0], side]
                continue
            if jumps.size:
                other = point._replace(table=self._table(point.weak, point.strong, middle, ties_weak=True))
                side = self._side(other)
                if side > 0:
                    return self._checked(point, other)
                point = other
            below = point
            sides = [side, 0.5 * sides[1]]
        return self._checked(below, below if above is None else above)

    def _combined(self, below: ZonePoint, above: ZonePoint) -> Dual:
        """Return the dual point between those of two amplitudes with the largest bound."""
        one, two = (point.dual(self.num_devices, self.budget) for point in (below, above))
        missing = below.missing
        rates = [4 * missing * dual.support - self.noise_weight * dual.spread for dual in (one, two)]
        share = min(1.0, max(0.0, rates[0] / (rates[0] - rates[1]))) if rates[0] < rates[1] else 0.0
        return Dual(*((1 - share) * x + share * y for x, y in zip(one, two, strict=True)))

    def _gap(self, below: ZonePoint, above: ZonePoint) -> float:
        """Return the relative distance between the objective of the first point and the dual bound of both."""
        return float(self._objective(below) / self._combined(below, above).bound(self.noise_weight)) - 1.0

    def _objective(self, point: ZonePoint) -> float:
        total = self.num_devices * point.t
        return 4 * (point.missing / total) ** 2 + self.noise_weight / total / total

    def _checked(self, below: ZonePoint, above: ZonePoint) -> Optimum:
        """Return the optimum with its dual point; raise `_OutsideError` if it is not inside the box."""
        found = Optimum(below, above, self._combined(below, above), self._objective(below))
        if not self.box.contains(found):
            raise _OutsideError
        return found


class _OutsideError(Exception):
    """Raised if the solution is not inside the box in which the zones of other devices are decided."""


def _sums(zone: NDArray[Any], square: Floats, limit: Floats, number: int) -> Floats:
    """Return the sums of 1, u_k, |h_k|², u_k²/|h_k|² and 1/|h_k|² over each zone."""
    inverse = 1.0 / square
    rows = (None, limit, square, limit * (limit * inverse), inverse)
    return np.array([np.bincount(zone, weights=row, minlength=number) for row in rows], dtype=np.float64)
