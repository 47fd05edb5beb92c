"""The decision by measurement: the devices, the alignment, the rounds and all that a response knows of, together.

The limits on θ do not depend on ϖ, and accuracy falls with s/ϖ = σ/(|K|θ). So for each I the candidate space says which
noise every number of devices leads to, and the response which of them, and which ϖ and average, is worth most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed.planning import limits
from airfed.planning.decision import Average
from airfed.planning.exact import best_schedule, largest_alignments, require_gain
from airfed.planning.response import Response
from airfed.planning.uncertain import effective_peak_power
from airfed.problem import InfeasibleError, Problem

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MOST_SPACES: Final = 20_000_000  # devices times numbers of rounds that are looked at: some seconds
_FEWEST_ROUNDS: Final = 16
_MOST_SIZES: Final = 512  # numbers of devices, where the share of the fleet makes a difference
_ROOM: Final = 2_000_000  # devices times numbers of rounds in the memory at a time
_MANY: Final = 10_000  # devices of different peak powers from which on one search for each I is faster than all sizes


@dataclass(frozen=True, kw_only=True)
class Design:
    """What is best by a response.

    Args:
        index: of the number of rounds among those asked for.
        size: |K|.
        alignment: θ.
        clip_norm, average: as in `Plan`.
    """

    index: int
    size: int
    alignment: float
    clip_norm: float
    average: Average


def best_design(
    problem: Problem, rounds: Integers, response: Response, size: Integers | Floats, theta: Floats
) -> Design:
    """Return what the response expects most of.

    Args:
        problem: what is decided about; its ϖ is not looked at.
        rounds: the numbers of rounds to choose from.
        response: what training gives.
        size: the numbers of devices worth a look, in a row for each I.
        theta: the largest θ that the limits allow to each of them; NaN where there is none.

    Raises:
        InfeasibleError: nothing lies within what was measured.
    """
    with np.errstate(divide="ignore"):
        noise = np.asarray(problem.link.noise_std / (size * theta))
    share = size / problem.fleet.num_devices
    best = response.best(rounds=rounds[:, None], noise=noise, share=share)
    at = np.unravel_index(np.argmax(best.accuracy), best.accuracy.shape)
    if not np.isfinite(best.accuracy[at]):
        raise InfeasibleError(f"No plan fits: {response.outside(noise, share)}")
    return Design(
        index=int(at[0]),
        size=int(size[at]),
        alignment=float(theta[at]),
        clip_norm=float(best.clip_norm[at]),
        average=response.averages[best.average[at]],
    )


def optimal(problem: Problem, rounds: Integers, response: Response) -> tuple[NDArray[np.intp], int]:
    """Return the devices and the number of rounds of the highest expected accuracy.

    Args:
        problem: what is decided about; its ϖ is not looked at.
        rounds: the numbers of rounds to choose from. Of very large fleets only some are looked at, evenly spread over
            their logarithm.
        response: what training gives.

    Raises:
        InfeasibleError: no plan lies within what was measured.
    """
    require_gain(problem.fleet.gain)
    some = thinned(response.known(rounds), problem.fleet.num_devices)
    counts = response.share.size > 1
    found = [_sizes(problem, *limited, counts=counts) for limited in _limited(problem, some)]
    size, theta = (np.concatenate([each[place] for each in found]) for place in (0, 1))
    best = best_design(problem, some, response, size, theta)
    number = int(some[best.index])
    return _devices(problem, best, number), number


def thinned(rounds: Integers, num_devices: int) -> Integers:
    """Return those numbers of rounds that are looked at: of very large fleets some, evenly over their logarithm."""
    most = max(_FEWEST_ROUNDS, _MOST_SPACES // num_devices)
    if rounds.size <= most:
        return rounds
    places = np.geomspace(1, rounds.size, most).round().astype(np.int64) - 1
    return rounds[np.unique(places)]


def _limited(problem: Problem, rounds: Integers) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Peak powers, caps and budgets, of some numbers of rounds at a time."""
    cap, budget = limits.privacy_limits(problem, rounds), limits.round_budgets(problem, rounds)
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


def _devices(problem: Problem, best: Design, rounds: int) -> NDArray[np.intp]:
    """The strongest devices that reach θ within their peak powers: they cost least."""
    gain = problem.fleet.gain
    reach = gain * np.sqrt(effective_peak_power(problem, rounds))
    able = np.flatnonzero((reach >= best.alignment * (1 - 1e-12)) & (gain > 0))
    return able[np.argsort(-gain[able], kind="stable")[: best.size]]
