"""The decision by measurement: the devices, the alignment, the rounds and all that a response knows of, together.

The limits on θ do not depend on ϖ, and accuracy falls with s/ϖ = σ/(|K|θ). So for each I the candidate space says which
noise every number of devices leads to, and the response which of them, and which ϖ, average and course, is worth most.
Where the budget counts expected power, the limits do depend on ϖ, by the norms that updates have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed.course import CONSTANT, Course
from airfed.planning import limits
from airfed.planning.decision import Average
from airfed.planning.exact import best_schedule, largest_alignments, require_gain
from airfed.planning.response import Response
from airfed.planning.uncertain import effective_peak_power
from airfed.problem import InfeasibleError, Problem

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
# (I, course, q for each I) to the numbers of devices worth a look, in a row for each I, and the largest θ of each.
Alignments = Callable[[Integers, Course, Floats], tuple[Integers | Floats, Floats]]

_MOST_SPACES: Final = 20_000_000  # devices times numbers of rounds that are looked at: some seconds
_FEWEST_ROUNDS: Final = 16
_MOST_SIZES: Final = 512  # numbers of devices, where the share of the fleet makes a difference
_ROOM: Final = 2_000_000  # devices times numbers of rounds in the memory at a time
_MANY: Final = 10_000  # devices of different peak powers from which on one search for each I is faster than all sizes
_SETTLING: Final = 4  # times that the expected power is taken from the noise it leads to


@dataclass(frozen=True, kw_only=True)
class Design:
    """What is best by a response.

    Args:
        index: of the number of rounds among those asked for.
        size: |K|.
        alignment: θ, the largest over the rounds.
        clip_norm, average, course, power_share: as in `Plan`.
        accuracy: what is expected of it.
    """

    index: int
    size: int
    alignment: float
    clip_norm: float
    average: Average
    course: Course
    power_share: float
    accuracy: float


def best_design(problem: Problem, rounds: Integers, response: Response, alignments: Alignments) -> Design:
    """Return what the response expects most of.

    Args:
        problem: what is decided about; its ϖ is not looked at.
        rounds: the numbers of rounds to choose from.
        response: what training gives.
        alignments: what the limits allow.

    Raises:
        InfeasibleError: nothing lies within what was measured.
    """
    expected = problem.budget.power == "expected"
    parts = [response.at(norm) for norm in response.clip_norm] if expected else [response]
    size, theta = alignments(rounds, CONSTANT, np.ones(rounds.shape))
    share, noise = size / problem.fleet.num_devices, _noise(problem, size, theta)
    best: Design | None = None
    for course, part in product(response.courses, parts):
        kept = np.flatnonzero(_hopes(part, rounds, noise, share, course, expected=expected) > _accuracy(best))
        if kept.size:
            found = _weighed(problem, rounds[kept], part, course, alignments, expected=expected)
            if found.accuracy > _accuracy(best):
                best = replace(found, index=int(kept[found.index]))
    if best is None:
        raise InfeasibleError(f"No plan fits: {response.outside(noise, share)}")
    return best


def _accuracy(best: Design | None) -> float:
    return -np.inf if best is None else best.accuracy


def _noise(problem: Problem, size: Integers | Floats, theta: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(problem.link.noise_std / (size * theta))


def _hopes(
    response: Response, rounds: Integers, noise: Floats, share: Floats, course: Course, *, expected: bool
) -> Floats:
    """For each number of rounds, what can be expected at most, from the noise at constant θ and worst-case power.

    Whatever the course, θ_rms is no larger than a constant θ; and power counts at best as the least that was measured.
    """
    if expected:
        least = response.power_share(
            rounds=rounds[:, None], clip_norm=response.clip_norm, noise=response.noise[0], share=share
        )
        noise = noise * np.sqrt(np.where(np.isnan(least), 1.0, least))
    found = response.best(rounds=rounds[:, None], noise=noise, share=share, course=course).accuracy
    hopes: Floats = np.where(np.isnan(noise), np.inf, found).max(axis=1)  # NaN: no plan so, perhaps one on this course
    return hopes


def _weighed(
    problem: Problem, rounds: Integers, response: Response, course: Course, alignments: Alignments, *, expected: bool
) -> Design:
    """The best of one course."""
    row, crest, power_share = np.arange(rounds.size), course.crests(rounds), np.ones(rounds.shape)
    for last in range(_SETTLING if expected else 1, 0, -1):
        size, theta = alignments(rounds, course, power_share)
        noise, share = _noise(problem, size, theta) * crest[:, None], size / problem.fleet.num_devices
        best = response.best(rounds=rounds[:, None], noise=noise, share=share, course=course)
        place = best.accuracy.argmax(axis=1)
        if last > 1:  # less power than the worst case leaves less noise, and that no more power: each step is safe
            there = {"noise": noise[row, place], "share": share[row, place]}
            asked = response.power_share(rounds=rounds, clip_norm=response.clip_norm, **there)
            power_share = np.fmin(power_share, asked)
    index = int(best.accuracy[row, place].argmax())
    at = index, place[index]
    return Design(
        index=index,
        size=int(size[at]),
        alignment=float(theta[at]),
        clip_norm=float(best.clip_norm[at]),
        average=response.averages[best.average[at]],
        course=course,
        power_share=float(power_share[index]),
        accuracy=float(best.accuracy[at]),
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

    def alignments(rounds: Integers, course: Course, power_share: Floats) -> tuple[Integers, Floats]:
        found = [_sizes(problem, *limited, counts=counts) for limited in _limited(problem, rounds, course, power_share)]
        size, theta = (np.concatenate([each[place] for each in found]) for place in (0, 1))
        return size, theta

    best = best_design(problem, some, response, alignments)
    number = int(some[best.index])
    return _devices(problem, best, number), number


def thinned(rounds: Integers, num_devices: int) -> Integers:
    """Return those numbers of rounds that are looked at: of very large fleets some, evenly over their logarithm."""
    most = max(_FEWEST_ROUNDS, _MOST_SPACES // num_devices)
    if rounds.size <= most:
        return rounds
    places = np.geomspace(1, rounds.size, most).round().astype(np.int64) - 1
    return rounds[np.unique(places)]


def _limited(
    problem: Problem, rounds: Integers, course: Course, power_share: Floats
) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Peak powers, caps and budgets, of some numbers of rounds at a time."""
    crest, num_devices = course.crests(rounds), problem.fleet.num_devices
    cap = limits.privacy_limits(problem, rounds, crest=crest)
    budget = limits.round_budgets(problem, rounds, crest=crest, power_share=power_share)
    # Unless devices may be seen more strongly than θ, the peak powers are the same for every I.
    together = 1 if limits.amplified(problem) else max(1, _ROOM // num_devices)
    for start in range(0, rounds.size, together):
        some = slice(start, start + together)
        yield effective_peak_power(problem, int(rounds[start]), course), cap[some], budget[some]


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
    reach = gain * np.sqrt(effective_peak_power(problem, rounds, best.course))
    able = np.flatnonzero((reach >= best.alignment * (1 - 1e-12)) & (gain > 0))
    return able[np.argsort(-gain[able], kind="stable")[: best.size]]
