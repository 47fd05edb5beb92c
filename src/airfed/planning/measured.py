"""The decision by measurement: the devices, the alignment, the rounds and all that a response knows of, together.

The limits on θ do not depend on ϖ, and accuracy falls with s/ϖ = σ/(|K|θ). So for each I the candidate space says which
noise every number of devices leads to, and the response which of them, and which ϖ, average and course, is worth most.
Where the budget counts expected power, the limits do depend on ϖ, by the norms that updates have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed.course import Course
from airfed.planning import limits
from airfed.planning.decision import Average
from airfed.planning.exact import largest_alignments
from airfed.planning.response import Response
from airfed.planning.uncertain import effective_peak_power, matters
from airfed.problem import InfeasibleError, Problem

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
# (I, course, q for each I) to the numbers of devices worth a look, in a row for each I, and the largest θ of each.
Alignments = Callable[[Integers, Course, Floats], tuple[Integers, Floats]]

_MOST_SPACES: Final = 20_000_000  # devices times numbers of rounds that are looked at: some seconds
_FEWEST_ROUNDS: Final = 16
_MOST_SIZES: Final = 512  # numbers of devices, where the share of the fleet makes a difference
_ROOM: Final = 2_000_000  # devices times numbers of rounds in the memory at a time
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
    found, least = [], np.inf
    for course in response.courses:
        for part in parts:
            design, noise = _weighed(problem, rounds, part, course, alignments, expected=expected)
            found.append(design)
            least = min(least, noise)
    best = max(found, key=lambda design: design.accuracy)
    if not np.isfinite(best.accuracy):
        raise InfeasibleError(f"No plan fits: {response.too_noisy(least)}")
    return best


def _weighed(
    problem: Problem,
    rounds: Integers,
    response: Response,
    course: Course,
    alignments: Alignments,
    *,
    expected: bool,
) -> tuple[Design, float]:
    """The best of one course, and the least noise that there is."""
    num_devices, row, crest = problem.fleet.num_devices, np.arange(rounds.size), course.crests(rounds)
    power_share = np.ones(rounds.shape)
    for last in range(_SETTLING if expected else 1, 0, -1):
        size, theta = alignments(rounds, course, power_share)
        with np.errstate(divide="ignore"):
            noise = problem.link.noise_std * crest[:, None] / (size * theta)
        share = size / num_devices
        best = response.best(rounds=rounds[:, None], noise=noise, share=share, course=course)
        place = best.accuracy.argmax(axis=1)
        if last > 1:  # less power than the worst case leaves less noise, and that no more power: each step is safe
            there = noise[row, place], share[row, place]
            asked = response.power_share(rounds=rounds, clip_norm=response.clip_norm, noise=there[0], share=there[1])
            power_share = np.fmin(power_share, asked)
    index = int(best.accuracy[row, place].argmax())
    at = index, place[index]
    design = Design(
        index=index,
        size=int(size[at]),
        alignment=float(theta[at]),
        clip_norm=float(best.clip_norm[at]),
        average=response.averages[best.average[at]],
        course=course,
        power_share=float(power_share[index]),
        accuracy=float(best.accuracy[at]),
    )
    return design, float(np.nanmin(noise, initial=np.inf))


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
    some = _thinned(response.known(rounds), problem.fleet.num_devices)
    counts = response.share.size > 1

    def alignments(rounds: Integers, course: Course, power_share: Floats) -> tuple[Integers, Floats]:
        chosen = [_chosen(theta, counts=counts) for theta in _spaces(problem, rounds, course, power_share)]
        size, theta = (np.concatenate([each[place] for each in chosen]) for place in (0, 1))
        return size, theta

    best = best_design(problem, some, response, alignments)
    number = int(some[best.index])
    return _devices(problem, best, number), number


def _thinned(rounds: Integers, num_devices: int) -> Integers:
    most = max(_FEWEST_ROUNDS, _MOST_SPACES // num_devices)
    if rounds.size <= most:
        return rounds
    places = np.geomspace(1, rounds.size, most).round().astype(np.int64) - 1
    return rounds[np.unique(places)]


def _spaces(problem: Problem, rounds: Integers, course: Course, power_share: Floats) -> Iterator[Floats]:
    """θ_m of every number m of devices, some numbers of rounds at a time."""
    gain, crest = problem.fleet.gain, course.crests(rounds)
    cap = limits.privacy_limits(problem, rounds, crest=crest)
    budget = limits.round_budgets(problem, rounds, crest=crest, power_share=power_share)
    together = 1 if matters(problem) else max(1, _ROOM // gain.size)  # else the peak powers are the same for every I
    for start in range(0, rounds.size, together):
        some = slice(start, start + together)
        peak_power = effective_peak_power(problem, int(rounds[start]), course)
        yield largest_alignments(gain, peak_power, cap=cap[some], round_budget=budget[some])


def _chosen(theta: Floats, *, counts: bool) -> tuple[Integers, Floats]:
    """The numbers of devices worth a look, and their θ, in each row; the least noise where only that counts."""
    size = np.arange(1, theta.shape[1] + 1)
    if not counts:
        best = np.argmax(size * theta, axis=1)[:, None]
        return size[best], np.take_along_axis(theta, best, axis=1)
    heard = int(np.count_nonzero(theta[0] > 0))
    some = np.unique(np.linspace(0, heard - 1, min(heard, _MOST_SIZES)).round().astype(np.int64))
    return np.broadcast_to(size[some], (len(theta), some.size)), theta[:, some]


def _devices(problem: Problem, best: Design, rounds: int) -> NDArray[np.intp]:
    """The strongest devices that reach θ within their peak powers: they cost least."""
    gain = problem.fleet.gain
    reach = gain * np.sqrt(effective_peak_power(problem, rounds, best.course))
    able = np.flatnonzero((reach >= best.alignment * (1 - 1e-12)) & (gain > 0))
    return able[np.argsort(-gain[able], kind="stable")[: best.size]]
