"""Planning where devices may be seen stronger than θ: channels are known only roughly, or every antenna is seen.

Privacy then asks θ f_k ≤ cap of every scheduled device, with f_k from `limits.amplifications`. That is one more limit
per device, just like peak power: θ ≤ min(c_k, cap/f_k). The exact search for different peak powers therefore solves
this problem too, for one number of rounds, or for all of them where cap does not depend on it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airfed import convergence
from airfed.planning import limits
from airfed.planning._rounds import best_rounds
from airfed.planning.decision import Decision
from airfed.planning.exact import Choice, best_schedule, usable_rounds
from airfed.problem import InfeasibleError, Problem


def trusting(problem: Problem) -> Problem:
    """Return the problem as the paper sees it: the gains are exact, and one signal is seen."""
    return replace(problem, link=replace(problem.link, trust_estimates=True, trust="combiner"))


def effective_peak_power(problem: Problem, rounds: int) -> NDArray[np.float64]:
    """Return P_k, lowered where θ ≤ cap/f_k says more than θ ≤ |ĥ_k|√P_k [W]."""
    fleet = problem.fleet
    if not limits.amplified(problem):
        return fleet.peak_power
    each = np.array([rounds])
    cap = float(limits.privacy_limits(problem, each)[0])
    heard = fleet.gain > 0
    allowed = cap / limits.amplifications(problem)[heard]
    power = np.array(fleet.peak_power)
    with np.errstate(over="ignore"):
        power[heard] = np.minimum(power[heard], np.square(allowed / fleet.gain[heard]))
    return power


def optimal(problem: Problem, rounds: NDArray[np.int64]) -> Decision:
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
    alignment = best.alignment
    if limits.amplified(problem):
        each = np.array([chosen])
        alignment = min(alignment, float(limits.largest_alignment(problem, best.scheduled, each)[0]))
    return Decision(scheduled=best.scheduled, alignment=alignment, rounds=chosen)


def backed_off(problem: Problem, decision: Decision) -> Decision:
    """Return the decision with θ lowered, if need be, to what privacy allows its devices; a note says so."""
    if not limits.amplified(problem):
        return decision
    scheduled, theta = np.asarray(decision.scheduled), decision.alignment
    assert theta is not None  # the paper decides it
    assert decision.rounds is not None
    each = np.array([decision.rounds])
    allowed = float(limits.privacy_limits(problem, each, scheduled)[0])
    if theta <= allowed:
        return decision
    why = "all antennas together see more of it" if problem.seen_by_all else "its channel is known only roughly"
    note = (
        f"θ lowered from {theta:.6g} to {allowed:.6g}: a device may be seen "
        f"{np.max(limits.amplifications(problem)[scheduled]):.4g} times stronger than planned, because {why} "
        "(the paper does not speak of this)."
    )
    return replace(decision, alignment=allowed, notes=(*decision.notes, note))


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
    learning = problem.learning
    return {
        "cap": limits.privacy_limits(problem, rounds),
        "round_budget": limits.round_budgets(problem, rounds),
        "offset": convergence.round_offsets(learning, rounds),
        "scale": convergence.round_scales(learning, rounds),
        "noise_weight": 0.5 * learning.dimension * problem.link.noise_std**2,
    }
