"""What a policy leaves open, chosen: the largest feasible θ, the best I and, by a response, whatever it knows of."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from airfed import _validate, convergence
from airfed.planning import limits
from airfed.planning.decision import Decision
from airfed.planning.fading.plan import FadingPlan
from airfed.planning.measured import Design, best_design, thinned
from airfed.planning.plan import FEASIBILITY_RTOL, Plan
from airfed.planning.response import Response
from airfed.planning.uplink import ALIGNED
from airfed.problem import InfeasibleError, Problem

_Plan = TypeVar("_Plan", bound=Plan)
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def by_bound(problem: Problem, decision: Decision, scheduled: NDArray[np.intp], rounds: Integers, policy: str) -> Plan:
    """Return the plan of the smallest bound that a decision leaves open.

    Args:
        problem: what was decided about.
        decision: what was decided, of which
        scheduled: K, ascending.
        rounds: the numbers of rounds to choose from.
        policy: who decided.

    Raises:
        InfeasibleError: the bound is not a finite number.
    """
    learning = problem.learning
    rounds = _in_time(problem, decision, scheduled, rounds)
    if decision.uplink == ALIGNED:
        theta, feasible = _alignments(problem, decision, scheduled, rounds)
        with np.errstate(divide="ignore", over="ignore"):
            noise = problem.link.noise_std / (scheduled.size * theta)
        left_out: Floats | float = convergence.participation_error(scheduled.size, problem.fleet.num_devices)
    else:
        theta, noise, missing = designs(problem, decision, scheduled, rounds)
        feasible, left_out = np.ones(rounds.shape, dtype=bool), 4.0 * np.square(missing)
    with np.errstate(over="ignore"):
        error = left_out + 0.5 * learning.dimension * np.square(noise)
        objective = convergence.round_offsets(learning, rounds)
        objective += convergence.round_scales(learning, rounds) * error
    objective[~feasible & feasible.any()] = np.inf
    best = int(np.argmin(objective))
    if not np.isfinite(objective[best]):
        raise InfeasibleError(
            "No plan fits: the limits leave so little signal that the bound is not a finite number "
            f"(the alignment would be {theta[best]:.3g})."
        )
    plan = Plan(
        problem=problem,
        policy=policy,
        scheduled=scheduled,
        alignment=float(theta[best]),
        rounds=int(rounds[best]),
        notes=decision.notes,
        uplink=decision.uplink,
    )
    return flagged(plan)


def by_response(
    problem: Problem, decision: Decision, scheduled: NDArray[np.intp], rounds: Integers, response: Response, policy: str
) -> Plan:
    """Return the plan of the highest expected accuracy that a decision leaves open.

    Args:
        problem, decision, scheduled, rounds, policy: as in `by_bound`; the problem's ϖ is not looked at.
        response: what training gives.

    Raises:
        InfeasibleError: nothing lies within what was measured.
    """
    rounds = response.known(_in_time(problem, decision, scheduled, rounds))
    best_of = _best_aligned if decision.uplink == ALIGNED else _best_of_scheme
    best = best_of(problem, decision, scheduled, rounds, response)
    plan = Plan(
        problem=replace(problem, learning=replace(problem.learning, clip_norm=best.clip_norm)),
        policy=policy,
        scheduled=scheduled,
        alignment=best.alignment,
        rounds=int(rounds[best.index]),
        notes=decision.notes,
        objective="measured",
        average=best.average,
        uplink=decision.uplink,
    )
    return flagged(predicted(plan, response))


def _best_aligned(
    problem: Problem, decision: Decision, scheduled: NDArray[np.intp], rounds: Integers, response: Response
) -> Design:
    size = np.full((rounds.size, 1), scheduled.size)
    theta, feasible = _alignments(problem, decision, scheduled, rounds)
    try:
        return best_design(problem, rounds, response, size, np.where(feasible, theta, np.nan)[:, None])
    except InfeasibleError:  # no I keeps every limit at the θ that was decided: the plan will say what it breaks
        return best_design(problem, rounds, response, size, theta[:, None])


def _best_of_scheme(
    problem: Problem, decision: Decision, scheduled: NDArray[np.intp], rounds: Integers, response: Response
) -> Design:
    """What is best of another scheme: its noise and the share of the mean that it makes up say what to expect."""
    theta, noise, missing = designs(problem, decision, scheduled, rounds)
    size = (1.0 - missing) * problem.fleet.num_devices  # as many devices, and such a θ, as lead to these errors
    alike = problem.link.noise_std / (size * noise)
    best = best_design(problem, rounds, response, size[:, None], alike[:, None])
    return replace(best, alignment=float(theta[best.index]))


def expected(plan: FadingPlan, response: Response) -> FadingPlan:
    """Return a plan of a decision for each round with the ϖ and the average that a response expects most of.

    Raises:
        InfeasibleError: it lies outside of what was measured.
    """
    noise, share = np.array([plan.noise_share]), np.array([plan.device_share])
    best = response.best(rounds=np.array([plan.rounds]), noise=noise, share=share)
    if not np.isfinite(best.accuracy[0]):
        raise InfeasibleError(f"No plan fits: {response.outside(noise, share)}")
    learning = replace(plan.problem.learning, clip_norm=float(best.clip_norm[0]))
    chosen = replace(
        plan,
        problem=replace(plan.problem, learning=learning),
        objective="measured",
        average=response.averages[best.average[0]],
    )
    return predicted(chosen, response)


def designs(
    problem: Problem, decision: Decision, scheduled: NDArray[np.intp], rounds: Integers
) -> tuple[Floats, Floats, Floats]:
    """Return θ, the noise of the mean as a share of ϖ, and what is missing of it, of another scheme, for each I.

    Args:
        problem, decision, scheduled, rounds: as in `by_bound`.
    """
    gain, peak = problem.fleet.gain[scheduled], problem.fleet.peak_power[scheduled]
    found = []
    for number in rounds.tolist():
        theta = decision.alignment or decision.uplink.largest(problem, scheduled, number)
        uploads = decision.uplink.uploads(problem, gain, peak, theta, number)
        found.append((theta, uploads.noise_share, uploads.missing))
    theta, noise, missing = np.array(found).T
    return theta, noise, missing


def _in_time(problem: Problem, decision: Decision, scheduled: NDArray[np.intp], rounds: Integers) -> Integers:
    """Those numbers of rounds that fit the time on the air, and of other schemes on large fleets some."""
    if decision.uplink != ALIGNED:
        rounds = thinned(rounds, scheduled.size)
    if problem.symbols == np.inf:
        return rounds
    uses = np.full(rounds.shape, float(problem.learning.dimension))
    if decision.uplink != ALIGNED:
        gain, peak = problem.fleet.gain[scheduled], problem.fleet.peak_power[scheduled]
        with np.errstate(divide="ignore", invalid="ignore"):  # somebody whom nobody hears is named by who asks for θ
            every = [decision.uplink.uploads(problem, gain, peak, 1.0, number) for number in rounds.tolist()]
        uses = np.array([each.channel_uses for each in every])
    fits = rounds * uses <= problem.symbols
    if not fits.any():
        seconds = rounds[0] * uses[0] / (problem.link.bandwidth or 1.0)
        raise InfeasibleError(
            f"No plan fits: rounds={rounds[0]} of {decision.uplink.name} access take {seconds:.4g} s on the air, and "
            f"there are {problem.budget.air_time:.4g} s (air_time)."
        )
    return np.asarray(rounds[fits])


def predicted(plan: _Plan, response: Response) -> _Plan:
    """Return the plan with the accuracy that a response expects of it; none outside of what was measured."""
    found = response.prediction(
        rounds=plan.rounds,
        clip_norm=plan.clip_norm,
        noise=plan.noise_share,
        share=plan.device_share,
        average=plan.average,
    )
    return replace(plan, prediction=found)


def _alignments(
    problem: Problem, decision: Decision, scheduled: NDArray[np.intp], rounds: Integers
) -> tuple[Floats, NDArray[np.bool_]]:
    """θ for each number of rounds, the largest unless it was decided, and whether every limit allows it."""
    most = limits.largest_alignment(problem, scheduled, rounds)
    if decision.alignment is None:
        return most, np.ones(rounds.shape, dtype=bool)
    _validate.positive(alignment=decision.alignment)
    theta = np.full(rounds.shape, float(decision.alignment))
    return theta, theta <= most * (1 + FEASIBILITY_RTOL)


def flagged(plan: _Plan) -> _Plan:
    """Return the plan with a note for each limit that it breaks."""
    broken = tuple(
        f"This plan breaks the {name} limit: θ = {plan.alignment:.6g} where {plan.limits[name]:.6g} is allowed."
        for name in plan.violations
    )
    return replace(plan, notes=(*plan.notes, *broken)) if broken else plan
