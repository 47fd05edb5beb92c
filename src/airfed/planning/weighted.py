"""The optimum over all received amplitudes, in equal rounds over constant channels.

For each number of rounds I the problem is convex (`three_zones`). The dual point of one I bounds all others
(docs/weighted.md); the I of the lowest bound is solved next, until no bound is below the best value. In large fleets
the best I of a sample of the devices is solved first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from airfed.planning import beamforming, limits, optimal
from airfed.planning.amplitudes import Amplitudes
from airfed.planning.exact import RoundCandidates, infeasibility, require_gain, usable_rounds
from airfed.planning.limits import Floats
from airfed.planning.method import effective_participation, thinned
from airfed.planning.plan import SMALLEST_FIGURE
from airfed.planning.surrogate import Surrogate
from airfed.planning.three_zones import Optimum, RoundProblem, ZonePoint, _OutsideError
from airfed.planning.time_varying.instance import Solution
from airfed.problem import InfeasibleError, Problem

Integers = NDArray[np.int64]

_ULP: Final = float(np.finfo(np.float64).eps)
_FAINT: Final = 1e-290  # relative to the largest; a smaller limit or amplitude counts as 0
_LEAST_FIELD: Final = 1e-149  # [√W] of a transmission; plans have no weaker ones
_MOST_NOISE: Final = 1e280  # largest, and 1/smallest, noise weight in the units of the search
_ROUNDING: Final = 1e-12  # relative, subtracted from a lower bound
_EQUAL: Final = 1e-12  # relative difference of amplitudes that may be the rounding of limits
_LARGE: Final = 20_000  # devices of a fleet whose first I is that of a sample
_FEW: Final = 512  # devices in that sample
_CURVE: Final = 16  # values of D for each I among which a surrogate chooses

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


def or_infeasible(function: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
    """Return the function with an InfeasibleError, and without warnings, where gains are too far apart for float64."""

    @wraps(function)
    def solved(*args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        try:
            with np.errstate(all="ignore"):
                return function(*args, **kwargs)
        except (ZeroDivisionError, OverflowError, _OutsideError):
            raise InfeasibleError(
                "No plan fits: the gains are too many orders of magnitude apart for the optimum over all amplitudes; "
                'use policy "optimal".'
            ) from None

    return solved


@dataclass(frozen=True, kw_only=True, eq=False)
class _Devices:
    """The reachable devices in the units of the search."""

    problem: Problem
    index: NDArray[np.intp]  # of the reachable devices
    square: Floats  # |h_k|²
    reach: Floats  # |h_k|√P_k, rounded down
    exposure: Floats | float  # f_k, rounded up
    gain: float  # the unit of gains: the geometric mean of the weakest and the strongest
    unit: float  # the unit of amplitudes: the largest limit

    @classmethod
    def of(cls, problem: Problem, candidates: RoundCandidates) -> _Devices:
        """Return the devices that can transmit for some of the candidates; raise InfeasibleError if none can."""
        fleet, cap, budget = problem.fleet, float(candidates.cap.max()), float(candidates.budget.max())
        require_gain(fleet.gain)
        exposure = limits.amplifications(problem) * (1 + 4 * _ULP) if limits.amplified(problem) else 1.0
        # No device can use more than the power of a round.
        reach = np.minimum(fleet.reach * (1 - 4 * _ULP), fleet.gain * (math.sqrt(budget) * (1 + 1e-9)))
        limit = np.minimum(reach, cap / exposure)
        unit = float(limit.max())
        if unit < SMALLEST_FIGURE:
            raise InfeasibleError(infeasibility(candidates, fleet.gain, fleet.peak_power))
        index = np.flatnonzero(limit > unit * _FAINT)
        gain = fleet.gain[index]
        field = math.sqrt(gain.min()) * math.sqrt(gain.max())
        values: dict[str, Any] = {"square": np.square(gain / field), "reach": reach[index] / unit}
        values["exposure"] = exposure if isinstance(exposure, float) else exposure[index]
        return cls(problem=problem, index=index, **values, gain=field, unit=unit)

    def round(self, cap: float, budget: float) -> RoundProblem:
        """Return the problem of one round, given the largest amplitude under privacy and the power of a round [W]."""
        power = np.float64(budget) * (self.gain / self.unit) * (self.gain / self.unit) * (1 - 1e-14)
        noise = np.float64(self.problem.noise_weight) / self.unit / self.unit
        return RoundProblem.of(
            self.square,
            np.minimum(self.reach, cap / self.unit / self.exposure),
            budget=float(power),
            noise_weight=float(np.clip(noise, 1 / _MOST_NOISE, _MOST_NOISE)),
            num_devices=self.problem.fleet.num_devices,
        )

    def row(self, one: RoundProblem, point: ZonePoint) -> Floats:
        """Return a_k of the whole fleet, (N,), rounded down to every limit."""
        amplitude = point.amplitudes(one.square, one.limit)
        spent = float(np.sum(amplitude * (amplitude / one.square)))
        amplitude *= min(1.0, math.sqrt(one.budget / spent)) * (1 - 4 * _ULP)
        field = amplitude / np.sqrt(one.square) * (self.unit / self.gain)
        amplitude[(amplitude < amplitude.max() * _FAINT) | (field < _LEAST_FIELD)] = 0.0
        row = np.zeros(self.problem.fleet.num_devices)
        row[self.index] = amplitude * self.unit
        if not row.any():
            raise InfeasibleError("No plan fits: the limits allow so little signal that no device can transmit.")
        return row


@or_infeasible
def weighted(problem: Problem, rounds: Integers) -> Solution:
    """Return the plan of the smallest bound over all amplitudes and the candidates `rounds` for I."""
    kept, candidates = usable_rounds(problem.fleet.num_devices, **optimal.candidates(problem, rounds))
    devices = _Devices.of(problem, candidates)
    first = None
    if devices.index.size > _LARGE:
        with suppress(ZeroDivisionError, OverflowError, _OutsideError):
            first = _best_candidate(devices, candidates, sample=_FEW)[1]
    value, index, one, found, lowest = _best_candidate(devices, candidates, first=first)
    chosen = int(rounds[kept[index]])
    table = Amplitudes.of_table(_or_aligned(problem, devices.row(one, found.below), chosen), rounds=chosen)
    least = float(lowest.min()) if 1 / _MOST_NOISE < one.noise_weight < _MOST_NOISE else -math.inf
    return Solution(table, value, min(least, value) * (1 - _ROUNDING))


def _or_aligned(problem: Problem, row: Floats, rounds: int) -> Floats:
    """Return the aligned optimum instead of the row if it has the same devices and no smaller sum of the amplitudes.

    Where the optimum is aligned, `row` is smaller by the rounding of the limits.
    """
    if row.max() > np.min(row, where=row > 0, initial=np.inf) * (1 + _EQUAL):
        return row
    found = optimal.joint_optimum(problem, np.array([rounds]))
    aligned = np.zeros(row.size)
    aligned[found.devices] = found.alignment
    return aligned if np.array_equal(aligned > 0, row > 0) and aligned.sum() >= row.sum() else row


def _best_candidate(
    devices: _Devices, candidates: RoundCandidates, *, first: int | None = None, sample: int | None = None
) -> tuple[float, int, RoundProblem, Optimum, Floats]:
    """Return the bound of the best I, its index, round and optimum; and the lower bounds of all I.

    `first` is solved first; `sample` is the number of devices that represent all.
    """
    every = np.arange(candidates.cap.size)
    lowest, open_ = candidates.total(every, np.zeros(every.size)), np.ones(every.size, dtype=np.bool_)
    best: tuple[float, int, RoundProblem, Optimum] | None = None
    while open_.any():
        index = int(np.argmin(np.where(open_, lowest, np.inf))) if first is None or best else first
        if best is not None and lowest[index] >= best[0]:
            break
        one = devices.round(float(candidates.cap[index]), float(candidates.budget[index]))
        one = one if sample is None else one.sample(sample)
        found = one.solve()
        value = float(candidates.total(index, found.objective))
        if best is None or (value, index) < best[:2]:
            best = value, index, one, found
        np.fmax(lowest, candidates.total(every, _bounds(candidates, index, one, found)), out=lowest)
        open_[index] = False
    assert best is not None  # usable_rounds gives at least one
    return (*best, lowest)


@or_infeasible
def most_accurate(problem: Problem, rounds: Integers, surrogate: Surrogate) -> Solution:
    """Return the plan of the highest expected accuracy among those of least shortfall for their D and I.

    With a surrogate of one participation ratio these are the plans of least noise. In large fleets the surrogate
    chooses D and I for a sample of the devices.
    """
    some = thinned(surrogate.covered(rounds), problem.fleet.num_devices)
    kept, candidates = usable_rounds(problem.fleet.num_devices, **optimal.candidates(problem, some))
    devices = _Devices.of(problem, candidates)
    number = _CURVE if surrogate.participation.size > 1 else 1
    noise, participation, level = np.full((3, kept.size, number), np.nan)
    for index, (cap, budget) in enumerate(zip(candidates.cap.tolist(), candidates.budget.tolist(), strict=True)):
        one = devices.round(cap, budget).sample()
        for column, point in enumerate(one.curve(number)):
            amplitude = point.amplitudes(one.square, one.limit)
            squares = one.weight * float(np.sum(np.square(amplitude)))
            level[index, column] = point.t
            noise[index, column] = problem.update_noise_std / (one.num_devices * point.t * devices.unit)
            participation[index, column] = one.num_devices * point.t**2 / squares
    best = surrogate.best_candidate(some[kept], noise, participation)
    one = devices.round(float(candidates.cap[best.row]), float(candidates.budget[best.row]))
    row, chosen = devices.row(one, one.at(float(level[best.row, best.column]))), int(some[kept[best.row]])
    if number > 1:  # the curve has a few points only
        found = optimal.most_accurate(problem, rounds, surrogate)
        aligned = np.zeros(row.size)
        aligned[found.devices] = limits.largest_alignment(problem, found.devices, np.array([found.rounds]))[0]
        if _expected(problem, surrogate, aligned, found.rounds) > _expected(problem, surrogate, row, chosen):
            row, chosen = aligned, found.rounds
    return Solution(Amplitudes.of_table(row, rounds=chosen))


def _expected(problem: Problem, surrogate: Surrogate, row: Floats, rounds: int) -> float:
    """Return the expected accuracy of amplitudes with the best ϖ and average; −inf outside the surrogate's range."""
    noise, participation = problem.update_noise_std / row.sum(), effective_participation(row)
    return float(surrogate.best(rounds=rounds, noise=noise, participation=participation).accuracy)


def lower_bound(problem: Problem) -> float:
    """Return a lower bound on `bound.total` over all beamformers, amplitudes and I: matched filters for all."""
    alone = optimal.assuming_perfect_csi(beamforming.ideal(problem))
    return weighted(alone, problem.round_candidates()).lower_bound


def _bounds(candidates: RoundCandidates, index: int, one: RoundProblem, found: Optimum) -> Floats:
    """Return lower bounds on Ψ of all candidates, from the dual point of one of them."""
    dual = found.dual
    growth = np.maximum(1.0, candidates.cap / candidates.cap[index])
    budget = one.budget * (candidates.budget / candidates.budget[index])
    rest = dual.support - dual.multiplier * one.budget if dual.multiplier else dual.support
    support = growth * rest + (dual.multiplier * budget / growth if dual.multiplier else 0.0)
    return np.asarray(dual.bound(one.noise_weight, support))
