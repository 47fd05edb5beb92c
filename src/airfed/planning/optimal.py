"""The best plan of aligned devices, by the bound or by an accuracy surrogate, jointly or for given devices.

`joint_optimum` solves the paper's P1 exactly. With imperfect CSI, or an adversary who observes all antennas, device k
may be observed with amplitude f_k θ (`limits.amplifications`): privacy is then a limit per device, like its peak power,
θ ≤ min(|h_k|√P_k, cap/f_k), with the largest amplitude `cap` within the budget.

`most_accurate` plans by an accuracy surrogate, which selects I, |K|, ϖ and the model average by the least noise per
entry of the mean update, σ/(|K|θ), for each I and |K|. `completed` chooses I, θ and ϖ for a given schedule.
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
    OptimalSchedule,
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
from airfed.planning.surrogate import Surrogate
from airfed.problem import InfeasibleError, Problem

Integers = NDArray[np.int64]

_MOST_SIZES: Final = 512  # candidates for |K|, if the surrogate depends on the participation ratio
_MOST_PAIRS: Final = 2_000_000  # devices times candidates for I, in memory at once
_LARGE_FLEET: Final = 10_000  # devices; above, with different peak powers, one search per I is faster


class Aligned(NamedTuple):
    """One set of aligned devices for all rounds."""

    devices: Devices  # K, ascending
    alignment: float | None  # θ [√W]; None: the largest feasible
    rounds: int  # I, the number of rounds
    notes: tuple[str, ...] = ()  # printed with the plan


def assuming_perfect_csi(problem: Problem) -> Problem:
    """Return the problem with perfect CSI and an adversary who observes the combined signal, as in the paper."""
    return replace(problem, link=replace(problem.link, assume_perfect_csi=True, adversary="combined"))


def effective_peak_power(problem: Problem, rounds: int) -> Floats:
    """Return P_k [W], reduced if θ ≤ cap/f_k is tighter than θ ≤ |ĥ_k|√P_k."""
    fleet = problem.fleet
    if not limits.amplified(problem):
        return fleet.peak_power
    cap = float(limits.privacy_limits(problem, np.array([rounds]))[0])
    reachable = fleet.gain > 0
    allowed = cap / limits.amplifications(problem)[reachable]
    power = np.array(fleet.peak_power)
    with np.errstate(over="ignore"):
        power[reachable] = np.minimum(power[reachable], np.square(allowed / fleet.gain[reachable]))
    return power


def joint_optimum(problem: Problem, rounds: Integers) -> Aligned:
    """Return the joint optimum of [Yan23, P1] over the candidates `rounds` for I, with f_k θ ≤ cap for all scheduled.

    Deviations: the paper assumes perfect CSI (f_k = 1).
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
    """Return the schedule with θ reduced to the privacy limit of its devices if it is exceeded, and a note."""
    if not limits.amplified(problem) or found.alignment is None:
        return found
    allowed = float(limits.privacy_limits(problem, np.array([found.rounds]), found.devices)[0])
    if found.alignment <= allowed:
        return found
    why = "the adversary observes all antennas" if problem.all_antennas_seen else "the CSI is imperfect"
    note = (
        f"θ was reduced from {found.alignment:.6g} to {allowed:.6g}: the observed amplitude may be "
        f"{np.max(limits.amplifications(problem)[found.devices]):.4g} times the planned one, because {why} "
        "(the paper does not consider this)."
    )
    return found._replace(alignment=allowed, notes=(*found.notes, note))


def search(problem: Problem, rounds: Integers, peak_power: Floats) -> OptimalSchedule:
    """Return the joint optimum over the candidates `rounds` for I, with the given peak powers [W]."""
    return best_schedule(problem.fleet.gain, peak_power, **candidates(problem, rounds))


def _search_each(problem: Problem, rounds: Integers) -> tuple[OptimalSchedule, int]:
    """Return the joint optimum and its I. Each I has its own search, because cap/f_k depends on I."""
    kept, usable = usable_rounds(problem.fleet.num_devices, **candidates(problem, rounds))

    def solve(index: int, share: float) -> tuple[float, OptimalSchedule | None]:
        single = usable.single(index, share)
        arguments = {"cap": single.cap, "round_budget": single.budget, "offset": single.offset, "scale": single.scale}
        power = effective_peak_power(problem, int(rounds[kept[index]]))
        try:
            choice = best_schedule(problem.fleet.gain, power, **arguments, noise_weight=single.noise_weight)
        except InfeasibleError:
            return math.inf, None
        return choice.objective, choice

    index, choice = best_rounds(usable, solve)
    if choice is None:
        raise InfeasibleError("No plan fits: the privacy budget allows no signal of any device (privacy).")
    return choice, int(rounds[kept[index]])


def candidates(problem: Problem, rounds: Integers) -> dict[str, Any]:
    """Return the arguments of `best_schedule` for the candidates `rounds` for I, one value per candidate."""
    return {
        "cap": limits.privacy_limits(problem, rounds),
        "round_budget": problem.budget.total_power / rounds,
        "offset": bounds.round_offsets(problem.learning, rounds),
        "scale": bounds.round_scales(problem.learning, rounds),
        "noise_weight": problem.noise_weight,
    }


def space_of(plan: Plan) -> CandidateSpace:
    """Return the candidate space of a plan (the paper's Fig. 2): the largest θ for each |K|, at the plan's I."""
    problem = plan.problem
    return candidate_space(
        problem.fleet.gain,
        effective_peak_power(problem, plan.rounds),
        cap=float(limits.privacy_limits(problem, np.array([plan.rounds]))[0]),
        round_budget=problem.budget.total_power / plan.rounds,
        noise_weight=problem.noise_weight,
    )


def most_accurate(problem: Problem, rounds: Integers, surrogate: Surrogate) -> Aligned:
    """Return the devices and I with the highest expected accuracy, with the surrogate's best ϖ, not the problem's."""
    require_gain(problem.fleet.gain)
    some = thinned(surrogate.covered(rounds), problem.fleet.num_devices)
    by_participation = surrogate.participation.size > 1
    cap, budget = limits.privacy_limits(problem, some), problem.budget.total_power / some
    # With f_k = 1 the effective peak powers are the same for every I.
    together = 1 if limits.amplified(problem) else max(1, _MOST_PAIRS // problem.fleet.num_devices)
    found = []
    for start in range(0, some.size, together):
        power, part = effective_peak_power(problem, int(some[start])), slice(start, start + together)
        found.append(_sizes(problem, power, cap[part], budget[part], by_participation=by_participation))
    size, theta = (np.concatenate([each[part] for each in found]) for part in (0, 1))
    with np.errstate(divide="ignore"):
        noise = np.asarray(problem.update_noise_std / (size * theta))
    best = surrogate.best_candidate(some, noise, size / problem.fleet.num_devices)
    at, number = (best.row, best.column), int(some[best.row])
    return Aligned(_devices(problem, int(size[at]), float(theta[at]), number), None, number)


def _sizes(
    problem: Problem, peak_power: Floats, cap: Floats, budget: Floats, *, by_participation: bool
) -> tuple[Integers, Floats]:
    """Return |K| of least noise and its largest θ, one row per I; `by_participation`: many |K|, each with its θ."""
    gain = problem.fleet.gain
    if not by_participation and gain.size > _LARGE_FLEET and not np.all(peak_power == peak_power[0]):
        return _least_noise(gain, peak_power, cap, budget)
    theta = largest_alignments(gain, peak_power, cap=cap, round_budget=budget)
    size = np.arange(1, gain.size + 1)
    if not by_participation:
        best = np.argmax(size * theta, axis=1)[:, None]
        return size[best], np.take_along_axis(theta, best, axis=1)
    most = int(np.count_nonzero(theta[0] > 0))
    some = np.unique(np.linspace(0, most - 1, min(most, _MOST_SIZES)).round().astype(np.int64))
    return np.broadcast_to(size[some], (len(theta), some.size)), theta[:, some]


def _least_noise(gain: Floats, peak_power: Floats, cap: Floats, budget: Floats) -> tuple[Integers, Floats]:
    """Return |K| and θ of least noise, one row per I, by a noise weight so large that participation is negligible."""
    most = gain.size * float((gain * np.sqrt(peak_power)).max())
    found = []
    for row in range(cap.size):
        one = {"cap": cap[[row]], "round_budget": budget[[row]], "offset": np.zeros(1), "scale": np.ones(1)}
        noise = 1e9 * min(most, gain.size * cap[row]) ** 2
        found.append(best_schedule(gain, peak_power, **one, noise_weight=noise))
    return np.array([[choice.size] for choice in found]), np.array([[choice.alignment] for choice in found])


def _devices(problem: Problem, size: int, alignment: float, rounds: int) -> Devices:
    """Return the `size` strongest devices that reach θ within their peak powers; they need the least power."""
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
    surrogate: Surrogate | None = None,
) -> Plan:
    """Return the plan with the smallest bound, or the highest expected accuracy by a surrogate, for given devices.

    `rounds` are the candidates for I. `alignment` [√W] fixes θ of aligned devices; default: the largest feasible.
    """
    rounds = in_time(problem, method, devices, rounds)
    if surrogate is not None:
        rounds = surrogate.covered(rounds)
    fleet, candidate = problem.fleet, None
    if alignment is None:
        found = method.errors(problem, devices, rounds)
    else:
        with np.errstate(over="ignore"):
            values = alignment, problem.update_noise_std / (devices.size * np.float64(alignment))
        missing = 1.0 - devices.size / fleet.num_devices
        found = Errors(rounds, *(np.full(rounds.shape, x) for x in (*values, missing, 1.0 - missing)))
    if surrogate is not None:
        candidate = surrogate.best_candidate(found.rounds, found.noise_share[:, None], found.participation[:, None])
        best = candidate.row
        problem = replace(problem, learning=replace(problem.learning, clip_norm=candidate.clip_norm))
    else:
        with np.errstate(over="ignore"):
            error = bounds.participation_error(found.shortfall)
            error = error + bounds.noise_error(problem.learning, found.noise_share)
            objective = bounds.round_offsets(problem.learning, found.rounds)
            objective = objective + bounds.round_scales(problem.learning, found.rounds) * error
        best = int(np.argmin(objective))
        if not np.isfinite(objective[best]):
            raise InfeasibleError(
                "No plan fits: the limits allow so little signal that the bound is not finite "
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
    if surrogate is not None and candidate is not None:
        plan = predicted(replace(plan, objective="accuracy", average=candidate.average), surrogate)
    return plan.flagged()


def with_best_clipping(plan: Plan, surrogate: Surrogate) -> Plan:
    """Return the plan with the ϖ and the model average of the highest expected accuracy."""
    noise, participation = np.array([[plan.noise_share]]), np.array([[plan.participation]])
    best = surrogate.best_candidate(np.array([plan.rounds]), noise, participation)
    problem = replace(plan.problem, learning=replace(plan.problem.learning, clip_norm=best.clip_norm))
    return predicted(replace(plan, problem=problem, objective="accuracy", average=best.average), surrogate)


def predicted(plan: Plan, surrogate: Surrogate) -> Plan:
    """Return the plan with its expected accuracy, or without one outside the surrogate's range."""
    noise, participation = plan.noise_share, plan.participation
    found = surrogate.prediction(
        rounds=plan.rounds, clip_norm=plan.clip_norm, noise=noise, participation=participation, average=plan.average
    )
    return replace(plan, prediction=found)


def in_time(problem: Problem, method: Method, devices: Devices, rounds: Integers) -> Integers:
    """Return the candidates for I within the budget's air time; raise InfeasibleError if there are none."""
    if problem.symbols == np.inf:
        return rounds
    uses = np.array([number * method.symbols(problem, devices, number) for number in rounds.tolist()])
    fits = uses <= problem.symbols
    if not fits.any():
        problem.require_time(uses[0], f"rounds={rounds[0]} with {method.name} take")
    return np.asarray(rounds[fits])
