"""The decision by measurement: the devices, the alignment, the rounds and the clipping norm of highest accuracy.

The limits on θ do not depend on ϖ, and accuracy falls with s/ϖ = σ/(|K|θ). So for each I the candidate space says which
noise every number of devices leads to, and the response which of them, and which ϖ, is worth most.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed.course import CONSTANT, Course
from airfed.planning import limits
from airfed.planning.exact import candidate_space
from airfed.planning.policy import Decision
from airfed.planning.response import Response
from airfed.planning.uncertain import effective_peak_power
from airfed.problem import InfeasibleError, Problem

_MOST_SPACES: Final = 20_000_000  # devices times numbers of rounds that are looked at: some seconds
_FEWEST_ROUNDS: Final = 16
_MOST_SIZES: Final = 512  # numbers of devices, where the share of the fleet makes a difference


def optimal(problem: Problem, rounds: NDArray[np.int64], response: Response, course: Course = CONSTANT) -> Decision:
    """Return (K, I, ϖ) of the highest expected accuracy; the best θ for them is the largest that is feasible.

    Args:
        problem: what is decided about; its ϖ is not looked at.
        rounds: the numbers of rounds to choose from. Of very large fleets only some are looked at, evenly spread over
            their logarithm.
        response: what training gives.
        course: how θ moves over the rounds; what counts as noise is that of θ_rms.

    Raises:
        InfeasibleError: no plan lies within what was measured.
    """
    num_devices, noise_std = problem.fleet.num_devices, problem.link.noise_std
    found = [
        (int(number), *_sizes(problem, int(number), response, course))
        for number in _thinned(response.known(rounds), num_devices)
    ]
    every = np.concatenate([np.full(size.shape, number) for number, size, _ in found])
    size, theta = (np.concatenate([each[place] for each in found]) for place in (1, 2))
    with np.errstate(divide="ignore"):
        noise = noise_std / (size * theta) * course.crests(every)
    accuracy, _ = response.best(rounds=every, noise=noise, share=size / num_devices)
    best = int(np.argmax(accuracy))
    if not np.isfinite(accuracy[best]):
        raise InfeasibleError(f"No plan fits: {response.too_noisy(float(noise.min()))}")
    chosen = int(every[best])
    return Decision(scheduled=_devices(problem, chosen, int(size[best]), float(theta[best]), course), rounds=chosen)


def _thinned(rounds: NDArray[np.int64], num_devices: int) -> NDArray[np.int64]:
    most = max(_FEWEST_ROUNDS, _MOST_SPACES // num_devices)
    if rounds.size <= most:
        return rounds
    places = np.geomspace(1, rounds.size, most).round().astype(np.int64) - 1
    return rounds[np.unique(places)]


def _sizes(
    problem: Problem, rounds: int, response: Response, course: Course
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The numbers of devices worth a look in I rounds, and the largest θ of each."""
    each = np.array([rounds])
    crest = course.crests(each)
    space = candidate_space(
        problem.fleet.gain,
        effective_peak_power(problem, rounds, course),
        cap=float(limits.privacy_limits(problem, each, crest=crest)[0]),
        round_budget=float(limits.round_budgets(problem, each, crest=crest, power_share=course.power_share)[0]),
        noise_weight=1.0,
    )
    if response.share.size == 1:
        chosen = np.array([np.argmax(space.size * space.alignment)])  # the least noise
    else:
        heard = np.flatnonzero(space.alignment > 0)
        chosen = np.unique(heard[np.linspace(0, heard.size - 1, _MOST_SIZES).round().astype(np.int64)])
    return space.size[chosen], space.alignment[chosen]


def _devices(problem: Problem, rounds: int, size: int, alignment: float, course: Course) -> NDArray[np.intp]:
    """The strongest devices that reach θ within their peak powers: they cost least."""
    gain = problem.fleet.gain
    reach = gain * np.sqrt(effective_peak_power(problem, rounds, course))
    able = np.flatnonzero((reach >= alignment * (1 - 1e-12)) & (gain > 0))
    return able[np.argsort(-gain[able], kind="stable")[:size]]
