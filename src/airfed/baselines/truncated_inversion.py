"""Truncated channel inversion: devices below a cutoff are inactive. `docs/baselines.md` has the source."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Final, final

import numpy as np
from scipy.special import exp1

from airfed import _validate
from airfed.planning.limits import Binding, Devices, alignment_limits
from airfed.planning.method import Method
from airfed.planning.optimal import completed
from airfed.planning.time_varying.planner import Samples, first_sample, gains_of, per_round
from airfed.problem import InfeasibleError, Problem

_CUTOFFS: Final = np.geomspace(0.003, 3.0, 25)


@final
@dataclass(frozen=True, kw_only=True)
class TruncatedInversion(Method):
    """Truncated channel inversion (Zhu, Wang, Huang): devices with |h_k|² ≥ g·m transmit √ρ₀/h_k, no others.

    ρ₀ = P̄·m/E₁(g), so that the *average* power over Rayleigh fading of mean m = E|h|² is P̄ = P_tot/(N·I). Here θ =
    √ρ₀ is reduced to the limits of peak power, total power and privacy.
    """

    name: ClassVar[str] = "truncated_inversion"
    title: ClassVar[str] = "Devices above the cutoff invert their channels; the others are inactive."
    cutoff: float
    mean_square: float

    def schedule(self, problem: Problem) -> Devices:
        """Return the devices above the cutoff, or the strongest device if there are none."""
        gain = problem.fleet.gain
        above = np.flatnonzero((np.square(gain) >= self.cutoff * self.mean_square) & (gain > 0))
        return above if above.size else np.array([int(np.argmax(gain))])

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ under each limit; for the total power at most √ρ₀."""
        found = alignment_limits(problem, devices, rounds)
        average = problem.budget.total_power / (problem.fleet.num_devices * rounds)
        printed = math.sqrt(average * self.mean_square / float(exp1(self.cutoff)))
        return found | {"total_power": min(found["total_power"], printed)}


def truncated_inversion(
    problem: Problem, *, cutoff: float | None = None, rounds: int | None = None, samples: Samples | None = None
) -> TruncatedInversion:
    """Return the method with the given cutoff g, or the g of the smallest bound among values from 0.003 to 3."""
    seen = problem
    if problem.time_varying and samples is not None:
        seen = replace(problem, fleet=problem.fleet.with_gain(first_sample(samples, problem)))
    gains = gains_of(seen) if problem.time_varying else problem.fleet.gain
    mean = float(np.mean(np.square(gains)))
    if cutoff is not None:
        _validate.positive(cutoff=cutoff)
    cutoffs = _CUTOFFS.tolist() if cutoff is None else [float(cutoff)]
    candidates = [TruncatedInversion(cutoff=each, mean_square=mean) for each in cutoffs]
    largest = float(np.max(np.square(gains)))
    if not problem.time_varying:
        candidates = [each for each in candidates if each.cutoff * mean <= largest]
    if not candidates or largest == 0:
        raise InfeasibleError("No plan fits: no |h|² reaches the cutoff.")
    if len(candidates) == 1:
        return candidates[0]
    every = problem.round_candidates(rounds)

    def bound(method: TruncatedInversion) -> float:
        if seen.time_varying:
            return per_round(seen, lambda this, _: method.schedule(this), method=method, rounds=rounds).objective
        return completed(seen, "", method.schedule(seen), method=method, rounds=every).bound.total

    return min(candidates[::3] if problem.time_varying else candidates, key=bound)
