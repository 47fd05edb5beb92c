"""Planning by accuracy: the devices, the alignment, the rounds, ϖ and the average together, by a surrogate.

The limits on θ do not depend on ϖ, and accuracy falls with s/ϖ = σ/(|K|θ). So for each I the candidate space says which
noise every number of devices leads to, and the surrogate which of them, which ϖ and which average is best.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airfed.planning import limits
from airfed.planning.exact import best_schedule, largest_alignments, require_gain
from airfed.planning.method import thinned
from airfed.planning.optimal import Aligned, effective_peak_power
from airfed.planning.response import Average, Response
from airfed.problem import InfeasibleError, Problem

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MOST_SIZES: Final = 512  # numbers of devices, where the participation ratio makes a difference
_ROOM: Final = 2_000_000  # devices times numbers of rounds in the memory at a time
_MANY: Final = 10_000  # devices of different peak powers from which on one search for each I is faster than all sizes


class Design(NamedTuple):
    """The place of the highest expected accuracy.

    Args:
        place: of the number of rounds among those asked for.
        column: of the candidate among those of that number of rounds.
        clip_norm, average: as in `Plan`.
    """

    place: int
    column: int
    clip_norm: float
    average: Average


def best_design(rounds: Integers, noise: Floats, share: Floats, surrogate: Response) -> Design:
    """Return the candidate of the highest expected accuracy.

    Args:
        rounds: I, (R,).
        noise: s/ϖ of the candidates of each I, (R, C); NaN where a candidate is out of the question.
        share: the participation ratio, (R, C).
        surrogate: what accuracy training gives.

    Raises:
        InfeasibleError: no candidate lies within the surrogate's range.
    """
    best = surrogate.best(rounds=rounds[:, None], noise=noise, share=share)
    accuracy = np.where(np.isnan(noise), -np.inf, best.accuracy)
    at = np.unravel_index(int(np.argmax(accuracy)), accuracy.shape)
    if not np.isfinite(accuracy[at]):
        raise InfeasibleError(f"No plan fits: {surrogate.outside(noise, share)}")
    average = surrogate.averages[best.average[at]]
    return Design(int(at[0]), int(at[1]), float(best.clip_norm[at]), average)


def optimal(problem: Problem, rounds: Integers, surrogate: Response) -> Aligned:
    """Return the devices and the number of rounds of the highest expected accuracy.

    Args:
        problem: what is planned; its ϖ is not looked at.
        rounds: the numbers of rounds to choose from. Of very large fleets only some are looked at, evenly spread over
            their logarithm.
        surrogate: what accuracy training gives.

    Raises:
        InfeasibleError: no plan lies within the surrogate's range.
    """
    require_gain(problem.fleet.gain)
    some = thinned(surrogate.known(rounds), problem.fleet.num_devices)
    counts = surrogate.share.size > 1
    found = [_sizes(problem, *limited, counts=counts) for limited in _limited(problem, some)]
    size, theta = (np.concatenate([each[place] for each in found]) for place in (0, 1))
    with np.errstate(divide="ignore"):
        noise = np.asarray(problem.link.noise_std / (size * theta))
    best = best_design(some, noise, size / problem.fleet.num_devices, surrogate)
    at, number = (best.place, best.column), int(some[best.place])
    return Aligned(_devices(problem, int(size[at]), float(theta[at]), number), None, number)


def _limited(problem: Problem, rounds: Integers) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Peak powers, caps and budgets, of some numbers of rounds at a time."""
    cap, budget = limits.privacy_limits(problem, rounds), problem.budget.total_power / rounds
    # Unless devices may be seen more strongly than θ, the peak powers are the same for every I.
    together = 1 if limits.amplified(problem) else max(1, _ROOM // problem.fleet.num_devices)
    for start in range(0, rounds.size, together):
        some = slice(start, start + together)
        yield effective_peak_power(problem, int(rounds[start])), cap[some], budget[some]


def _sizes(
    problem: Problem, peak_power: Floats, cap: Floats, budget: Floats, *, counts: bool
) -> tuple[Integers, Floats]:
    """The numbers of devices worth a look, and the largest θ of each, in a row for each I.

    Args:
        problem, peak_power, cap, budget: as in `exact.best_schedule`.
        counts: whether the share of the fleet makes a difference; else only the least noise is worth a look.
    """
    gain = problem.fleet.gain
    if not counts and gain.size > _MANY and not np.all(peak_power == peak_power[0]):
        return _least_noise(gain, peak_power, cap, budget)
    theta = largest_alignments(gain, peak_power, cap=cap, round_budget=budget)
    size = np.arange(1, gain.size + 1)
    if not counts:
        best = np.argmax(size * theta, axis=1)[:, None]
        return size[best], np.take_along_axis(theta, best, axis=1)
    heard = int(np.count_nonzero(theta[0] > 0))
    some = np.unique(np.linspace(0, heard - 1, min(heard, _MOST_SIZES)).round().astype(np.int64))
    return np.broadcast_to(size[some], (len(theta), some.size)), theta[:, some]


def _least_noise(gain: Floats, peak_power: Floats, cap: Floats, budget: Floats) -> tuple[Integers, Floats]:
    """Size and θ of the least noise, a row for each I, by the search that discards most of the fleet.

    Term A, which it counts too, is made too small to matter: its weight is below 1e-8 of the noise's.
    """
    most = gain.size * float((gain * np.sqrt(peak_power)).max())
    none, one = np.zeros(1), np.ones(1)
    found = [
        best_schedule(
            gain,
            peak_power,
            cap=cap[[row]],
            round_budget=budget[[row]],
            offset=none,
            scale=one,
            noise_weight=1e9 * min(most, gain.size * cap[row]) ** 2,
        )
        for row in range(cap.size)
    ]
    return np.array([[choice.size] for choice in found]), np.array([[choice.alignment] for choice in found])


def _devices(problem: Problem, size: int, alignment: float, rounds: int) -> NDArray[np.intp]:
    """The strongest devices that reach θ within their peak powers: they cost least."""
    gain = problem.fleet.gain
    reach = gain * np.sqrt(effective_peak_power(problem, rounds))
    able = np.flatnonzero((reach >= alignment * (1 - 1e-12)) & (gain > 0))
    return np.sort(able[np.argsort(-gain[able], kind="stable")[:size]])
