"""The paper's P1, exactly: which aligned devices, with which θ, in how many rounds.

Where devices may be seen more strongly than θ (imperfect CSI, or every antenna is seen), privacy asks θ f_k ≤ cap of
every scheduled device, with f_k from `limits.amplifications`. That is one more limit per device, just like peak power:
θ ≤ min(c_k, cap/f_k). The exact search for different peak powers therefore solves this problem too, for one number of
rounds, or for all of them where cap does not depend on it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airfed import bounds
from airfed.planning import limits
from airfed.planning._rounds import best_rounds
from airfed.planning.exact import CandidateSpace, Choice, best_schedule, candidate_space, usable_rounds
from airfed.planning.plan import Plan
from airfed.problem import InfeasibleError, Problem


class Aligned(NamedTuple):
    """One set of aligned devices for all rounds.

    Args:
        devices: K, ascending.
        alignment: θ; None: the largest within every limit.
        rounds: I.
        notes: remarks for the plan.
    """

    devices: NDArray[np.intp]
    alignment: float | None
    rounds: int
    notes: tuple[str, ...] = ()


def trusting(problem: Problem) -> Problem:
    """Return the problem as the paper sees it: the gains are exact, and one signal is seen."""
    return replace(problem, link=replace(problem.link, trust_estimates=True, trust="combiner"))


def effective_peak_power(problem: Problem, rounds: int) -> NDArray[np.float64]:
    """Return P_k, lowered where θ ≤ cap/f_k says more than θ ≤ |ĥ_k|√P_k [W]."""
    fleet = problem.fleet
    if not limits.amplified(problem):
        return fleet.peak_power
    cap = float(limits.privacy_limits(problem, np.array([rounds]))[0])
    heard = fleet.gain > 0
    allowed = cap / limits.amplifications(problem)[heard]
    power = np.array(fleet.peak_power)
    with np.errstate(over="ignore"):
        power[heard] = np.minimum(power[heard], np.square(allowed / fleet.gain[heard]))
    return power


def joint_optimum(problem: Problem, rounds: NDArray[np.int64]) -> Aligned:
    """Return the joint optimum of [Yan23, P1] over the given numbers of rounds, with θ f_k ≤ cap for all scheduled.

    Raises:
        InfeasibleError: no plan meets every limit.

    Deviations: the paper takes the channels for known.
    """
    if limits.amplified(problem) and problem.budget.scope == "total":
        best, chosen = _search_each(problem, rounds)
    else:
        best = search(problem, rounds, effective_peak_power(problem, 1))
        chosen = int(rounds[best.round_index])
    alignment, devices = best.alignment, np.sort(best.scheduled)
    if limits.amplified(problem):
        alignment = min(alignment, float(limits.largest_alignment(problem, devices, np.array([chosen]))[0]))
    return Aligned(devices, alignment, chosen)


def backed_off(problem: Problem, found: Aligned) -> Aligned:
    """Return the schedule with θ lowered, if need be, to what privacy allows its devices; a note says so."""
    if not limits.amplified(problem) or found.alignment is None:
        return found
    allowed = float(limits.privacy_limits(problem, np.array([found.rounds]), found.devices)[0])
    if found.alignment <= allowed:
        return found
    why = "all antennas together see more of it" if problem.seen_by_all else "the CSI is imperfect"
    note = (
        f"θ lowered from {found.alignment:.6g} to {allowed:.6g}: a device may be seen "
        f"{np.max(limits.amplifications(problem)[found.devices]):.4g} times stronger than planned, because {why} "
        "(the paper does not consider this)."
    )
    return found._replace(alignment=allowed, notes=(*found.notes, note))


def search(problem: Problem, rounds: NDArray[np.int64], peak_power: NDArray[np.float64]) -> Choice:
    """Return the joint optimum over the given numbers of rounds, with the given peak powers."""
    return best_schedule(problem.fleet.gain, peak_power, **candidates(problem, rounds))


def _search_each(problem: Problem, rounds: NDArray[np.int64]) -> tuple[Choice, int]:
    """The limit per device changes with I: one search for each I that could still win."""
    kept, usable = usable_rounds(problem.fleet.num_devices, **candidates(problem, rounds))

    def solve(index: int, share: float) -> tuple[float, Choice | None]:
        alone = usable.alone(index, share)
        arguments = {"cap": alone.cap, "round_budget": alone.budget, "offset": alone.offset, "scale": alone.scale}
        power = effective_peak_power(problem, int(rounds[kept[index]]))
        try:
            choice = best_schedule(problem.fleet.gain, power, **arguments, noise_weight=alone.noise_weight)
        except InfeasibleError:
            return math.inf, None
        return choice.objective, choice

    index, choice = best_rounds(usable, solve)
    if choice is None:
        raise InfeasibleError("No plan fits: the privacy budget leaves no signal at all to anybody (privacy).")
    return choice, int(rounds[kept[index]])


def candidates(problem: Problem, rounds: NDArray[np.int64]) -> dict[str, Any]:
    """Return what `best_schedule` needs to know of the numbers of rounds."""
    return {
        "cap": limits.privacy_limits(problem, rounds),
        "round_budget": problem.budget.total_power / rounds,
        "offset": bounds.round_offsets(problem.learning, rounds),
        "scale": bounds.round_scales(problem.learning, rounds),
        "noise_weight": problem.noise_weight,
    }


def space_of(plan: Plan) -> CandidateSpace:
    """Return the candidate space of a plan (the paper's Fig. 2): the largest θ of each size, at the plan's rounds."""
    problem = plan.problem
    return candidate_space(
        problem.fleet.gain,
        effective_peak_power(problem, plan.rounds),
        cap=float(limits.privacy_limits(problem, np.array([plan.rounds]))[0]),
        round_budget=problem.budget.total_power / plan.rounds,
        noise_weight=problem.noise_weight,
    )
