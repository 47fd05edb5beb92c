"""The best plan of aligned devices: all of it open, by the bound or by accuracy, or for given devices.

`joint_optimum` solves the paper's P1 exactly. Where devices may be seen more strongly than θ (imperfect CSI, or every
antenna is seen), privacy asks θ f_k ≤ cap of every scheduled device, with f_k from `limits.amplifications`. That is one
more limit per device, just like peak power: θ ≤ min(c_k, cap/f_k). The exact search for different peak powers therefore
solves this problem too, for one number of rounds, or for all of them where cap does not depend on it.

`most_accurate` plans by an accuracy surrogate. The limits on θ do not depend on ϖ, and accuracy falls with s/ϖ =
σ/(|K|θ). So for each I the candidate space says which noise every number of devices leads to, and the surrogate which
of them, which ϖ and which average is best. `completed` chooses what a given schedule leaves open.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airfed import bounds
from airfed.planning import limits
from airfed.planning.amplitudes import Amplitudes
from airfed.planning.exact import (
    CandidateSpace,
    Choice,
    best_rounds,
    best_schedule,
    candidate_space,
    largest_alignments,
    require_gain,
    usable_rounds,
)
from airfed.planning.limits import Devices, Floats
from airfed.planning.method import OVER_THE_AIR, Errors, Method, thinned
from airfed.planning.plan import Plan
from airfed.planning.surrogate import Response
from airfed.problem import InfeasibleError, Problem

Integers = NDArray[np.int64]

_MOST_SIZES: Final = 512  # numbers of devices, where the participation ratio makes a difference
_ROOM: Final = 2_000_000  # devices times numbers of rounds in the memory at a time
_MANY: Final = 10_000  # devices of different peak powers from which on one search for each I is faster than all sizes


class Aligned(NamedTuple):
    """One set of aligned devices for all rounds."""

    devices: Devices  # K, ascending
    alignment: float | None  # θ; None: the largest within every limit
    rounds: int  # I
    notes: tuple[str, ...] = ()  # remarks for the plan


def trusting(problem: Problem) -> Problem:
    """Return the problem as the paper sees it: the gains are exact, and one signal is seen."""
    return replace(problem, link=replace(problem.link, trust_estimates=True, trust="combiner"))


def effective_peak_power(problem: Problem, rounds: int) -> Floats:
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


def joint_optimum(problem: Problem, rounds: Integers) -> Aligned:
    """Return the joint optimum of [Yan23, P1] over the given numbers of rounds, with θ f_k ≤ cap for all scheduled.

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


def search(problem: Problem, rounds: Integers, peak_power: Floats) -> Choice:
    """Return the joint optimum over the given numbers of rounds, with the given peak powers."""
    return best_schedule(problem.fleet.gain, peak_power, **candidates(problem, rounds))


def _search_each(problem: Problem, rounds: Integers) -> tuple[Choice, int]:
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


def candidates(problem: Problem, rounds: Integers) -> dict[str, Any]:
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


def most_accurate(problem: Problem, rounds: Integers, surrogate: Response) -> Aligned:
    """Return the devices and the number of rounds of the highest expected accuracy, whatever the problem's ϖ."""
    require_gain(problem.fleet.gain)
    some = thinned(surrogate.known(rounds), problem.fleet.num_devices)
    counts = surrogate.share.size > 1
    cap, budget = limits.privacy_limits(problem, some), problem.budget.total_power / some
    # Unless devices may be seen more strongly than θ, the peak powers are the same for every I.
    together = 1 if limits.amplified(problem) else max(1, _ROOM // problem.fleet.num_devices)
    found = []
    for start in range(0, some.size, together):
        power, part = effective_peak_power(problem, int(some[start])), slice(start, start + together)
        found.append(_sizes(problem, power, cap[part], budget[part], counts=counts))
    size, theta = (np.concatenate([each[place] for each in found]) for place in (0, 1))
    with np.errstate(divide="ignore"):
        noise = np.asarray(problem.link.noise_std / (size * theta))
    best = surrogate.best_design(some, noise, size / problem.fleet.num_devices)
    at, number = (best.place, best.column), int(some[best.place])
    return Aligned(_devices(problem, int(size[at]), float(theta[at]), number), None, number)


def _sizes(
    problem: Problem, peak_power: Floats, cap: Floats, budget: Floats, *, counts: bool
) -> tuple[Integers, Floats]:
    """The numbers of devices worth a look, and their largest θ, a row for each I; of least noise unless it `counts`."""
    gain = problem.fleet.gain
    if not counts and gain.size > _MANY and not np.all(peak_power == peak_power[0]):
        return _least_noise(gain, peak_power, cap, budget)
    theta = largest_alignments(gain, peak_power, cap=cap, round_budget=budget)
    size = np.arange(1, gain.size + 1)
    if not counts:
        best = np.argmax(size * theta, axis=1)[:, None]
        return size[best], np.take_along_axis(theta, best, axis=1)
    most = int(np.count_nonzero(theta[0] > 0))
    some = np.unique(np.linspace(0, most - 1, min(most, _MOST_SIZES)).round().astype(np.int64))
    return np.broadcast_to(size[some], (len(theta), some.size)), theta[:, some]


def _least_noise(gain: Floats, peak_power: Floats, cap: Floats, budget: Floats) -> tuple[Integers, Floats]:
    """Size and θ of the least noise, a row for each I; term A, which the search counts too, weighs below 1e-8 of it."""
    most = gain.size * float((gain * np.sqrt(peak_power)).max())
    found = []
    for row in range(cap.size):
        one = {"cap": cap[[row]], "round_budget": budget[[row]], "offset": np.zeros(1), "scale": np.ones(1)}
        noise = 1e9 * min(most, gain.size * cap[row]) ** 2
        found.append(best_schedule(gain, peak_power, **one, noise_weight=noise))
    return np.array([[choice.size] for choice in found]), np.array([[choice.alignment] for choice in found])


def _devices(problem: Problem, size: int, alignment: float, rounds: int) -> Devices:
    """The strongest devices that reach θ within their peak powers: they cost least."""
    gain = problem.fleet.gain
    reach = gain * np.sqrt(effective_peak_power(problem, rounds))
    able = np.flatnonzero((reach >= alignment * (1 - 1e-12)) & (gain > 0))
    return np.sort(able[np.argsort(-gain[able], kind="stable")[:size]])


def completed(
    problem: Problem,
    policy: str,
    devices: Devices,
    *,
    rounds: Integers,
    method: Method = OVER_THE_AIR,
    alignment: float | None = None,
    notes: tuple[str, ...] = (),
    surrogate: Response | None = None,
) -> Plan:
    """Return the plan of the smallest bound, or of the highest accuracy by a surrogate, for given devices.

    `rounds` are those to choose from; `alignment` fixes θ of aligned devices, else it is the largest within the limits.
    """
    rounds = in_time(problem, method, devices, rounds)
    if surrogate is not None:
        rounds = surrogate.known(rounds)
    fleet, design = problem.fleet, None
    if alignment is None:
        found = method.errors(problem, devices, rounds)
    else:
        with np.errstate(over="ignore"):
            figures = alignment, problem.link.noise_std / (devices.size * np.float64(alignment))
        found = Errors(rounds, *(np.full(rounds.shape, x) for x in (*figures, 1.0 - devices.size / fleet.num_devices)))
    if surrogate is not None:
        design = surrogate.best_design(found.rounds, found.noise_share[:, None], 1.0 - found.shortfall[:, None])
        best = design.place
        problem = replace(problem, learning=replace(problem.learning, clip_norm=design.clip_norm))
    else:
        with np.errstate(over="ignore"):
            error = bounds.participation_error(found.shortfall)
            error = error + bounds.noise_error(problem.learning, found.noise_share)
            objective = bounds.round_offsets(problem.learning, found.rounds)
            objective = objective + bounds.round_scales(problem.learning, found.rounds) * error
        best = int(np.argmin(objective))
        if not np.isfinite(objective[best]):
            raise InfeasibleError(
                "No plan fits: the limits leave so little signal that the bound is not a finite number "
                f"(the alignment would be {found.level[best]:.3g})."
            )
    number = int(found.rounds[best])
    if alignment is None:
        row = np.zeros(fleet.num_devices)
        row[devices] = method.amplitudes(problem, devices, number)
        table = Amplitudes.of_table(row, rounds=number)
    else:
        table = Amplitudes.aligned(devices, num_devices=fleet.num_devices, level=float(alignment), rounds=number)
    plan = Plan(problem=problem, policy=policy, amplitudes=table, method=method, notes=notes)
    if surrogate is not None and design is not None:
        plan = predicted(replace(plan, objective="measured", average=design.average), surrogate)
    return plan.flagged()


def expected(plan: Plan, surrogate: Response) -> Plan:
    """Return a plan with the ϖ and the average of the highest expected accuracy."""
    noise, share = np.array([[plan.noise_share]]), np.array([[plan.device_share]])
    best = surrogate.best_design(np.array([plan.rounds]), noise, share)
    problem = replace(plan.problem, learning=replace(plan.problem.learning, clip_norm=best.clip_norm))
    return predicted(replace(plan, problem=problem, objective="measured", average=best.average), surrogate)


def predicted(plan: Plan, surrogate: Response) -> Plan:
    """Return the plan with its expected accuracy; none outside the surrogate's range."""
    noise, share = plan.noise_share, plan.device_share
    found = surrogate.prediction(
        rounds=plan.rounds, clip_norm=plan.clip_norm, noise=noise, share=share, average=plan.average
    )
    return replace(plan, prediction=found)


def in_time(problem: Problem, method: Method, devices: Devices, rounds: Integers) -> Integers:
    """Return those numbers of rounds that fit the time on the air; InfeasibleError where none does."""
    if problem.symbols == np.inf:
        return rounds
    uses = np.array([number * method.symbols(problem, devices, number) for number in rounds.tolist()])
    fits = uses <= problem.symbols
    if not fits.any():
        seconds = uses[0] / (problem.link.bandwidth or 1.0)
        raise InfeasibleError(
            f"No plan fits: rounds={rounds[0]} take {seconds:.4g} s on the air ({method.name}), and there are "
            f"{problem.budget.air_time:.4g} s (air_time)."
        )
    return np.asarray(rounds[fits])
