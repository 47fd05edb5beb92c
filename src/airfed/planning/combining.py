"""The combiner of a receiver with several antennas: a unit vector f, chosen together with the plan.

For a given f everything is as with one antenna of gains |fᴴh_k|, and where every antenna is seen
(`Link.trust = "radio"`) one more factor ‖h_k‖/|fᴴh_k| per device on the privacy limit (`limits.amplifications`). So any
policy plans for a given f, and f is improved for the devices that it chose, in turns; no turn is for the worse. That
finds a good f, not provably the best one: `reach.lower_bound` says how much better any f could be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from airfed import antennas
from airfed.antennas import Complexes, Floats
from airfed.planning import limits, optimal, reach
from airfed.planning.amplitudes import Amplitudes
from airfed.planning.completion import by_bound
from airfed.planning.plan import Plan
from airfed.problem import Combining, InfeasibleError, Problem

Decide = Callable[[Problem], Plan]

_SHARPNESS: Final = (4.0, 32.0, 256.0)  # of the smooth maximum in the search for f, one after the other
_STEPS: Final = 40  # of the search, for each sharpness
_TURNS: Final = 12  # of devices and combiner, at most
_KEPT: Final = 2  # starts that are improved
_KEPT_OF_FEW: Final = 16  # the same, of few devices
_SIZES: Final = 4  # numbers of devices more, and fewer, for whom the combiner is turned
_FEW: Final = 12  # devices whose matched filters are starts, too
_WORTH: Final = 1e-5  # a turn that improves less is the last
MOST_CHOSEN: Final = 256  # rounds whose combiner is searched for: in each of thousands it takes minutes
_SEARCHED: Final = ("optimal", "one")  # ways to combine that leave a choice


def planned(problem: Problem, decide: Decide, *, brief: bool = False) -> Plan:
    """Return the best plan of those that a policy makes for the combiners that are tried.

    Args:
        problem: several antennas, no combiner yet; `link.combining` says which are tried.
        decide: from a problem with a combiner to the policy's plan.
        brief: look for the optimal one from the strongest eigenvector alone, with a single step of improvement.

    Raises:
        InfeasibleError: there is no plan for any of them.
    """
    found = _feasible(problem, _starts(problem, brief=brief), decide)
    found.sort(key=_worth)
    if problem.link.combining != "optimal":
        return found[0]
    if brief:
        return _turned(found[0], decide, found[0].scheduled)
    if _reaches(found[0], reach.lower_bound(problem)):
        return found[0]
    kept = found[: _KEPT if problem.fleet.num_devices > _FEW else _KEPT_OF_FEW]
    kept = sorted((_improved(plan, decide, own=True) for plan in kept), key=_worth)
    distinct = [plan for plan, before in zip(kept, [None, *kept], strict=False) if not _alike(plan, before)]
    return min((_improved(plan, decide, own=False) for plan in distinct[:_KEPT]), key=_worth)


def judged(problem: Problem, seekers: Sequence[Decide], judge: Decide) -> Plan:
    """Return the best plan of those that a policy makes for a few combiners, which others have found.

    Args:
        problem: as in `planned`. Where the optimal combiner is wanted, those of the other ways to combine compete, too.
        seekers: each plans for many combiners, quickly.
        judge: what decides between the best of each way and seeker; by a response, or of a rival, it takes longer.

    Raises:
        InfeasibleError: there is no plan for any of them.
    """
    ways = get_args(Combining) if problem.link.combining == "optimal" else (problem.link.combining,)
    combiners = []
    for way in ways:
        there = replace(problem, link=replace(problem.link, combining=way))
        for decide in seekers:
            try:
                combiner = planned(there, decide).combiner
            except InfeasibleError:  # it may need what the judge does not: channels, say
                combiner = _first(there)
            combiners.append(combiner)
    return min(_feasible(problem, combiners, judge), key=_worth)


def _feasible(problem: Problem, combiners: Iterable[Complexes], decide: Decide) -> list[Plan]:
    """The plans for those combiners for which there is one.

    Raises:
        InfeasibleError: there is none; the reason is the first one's.
    """
    found: list[Plan] = []
    refused: InfeasibleError | None = None
    for combiner in combiners:
        try:
            found.append(decide(problem.heard_by(combiner)))
        except InfeasibleError as error:
            refused = refused or error
    if not found:
        assert refused is not None
        raise refused
    return found


def _alike(plan: Plan, other: Plan | None) -> bool:
    """Whether two plans are the same but for rounding."""
    return other is not None and plan.bound.total <= other.bound.total * (1 + _WORTH)


def _reaches(plan: Plan, least: float) -> bool:
    """Whether no combiner could do noticeably better."""
    return plan.objective == "bound" and plan.bound.total <= least * (1 + _WORTH)


def _starts(problem: Problem, *, brief: bool) -> Iterator[Complexes]:
    """The combiners that are tried."""
    channel, combining = problem.fleet.channel, problem.link.combining
    number = channel.shape[-1]
    if brief and combining == "optimal":
        combining = "strongest_eigenvector"
    if combining in ("optimal", "strongest_eigenvector"):
        vectors = antennas.eigenvectors(channel)
        yield from vectors if combining == "optimal" else vectors[:1]
    if combining in ("optimal", "sum"):
        yield np.full(number, number**-0.5, dtype=np.complex128)
    if combining in ("optimal", "one"):
        yield from np.eye(number, dtype=np.complex128)
    if combining == "optimal" and len(channel) <= _FEW:  # matched filters, and what lies between each two of them
        own = antennas.unit(channel[antennas.strengths(channel) > 0])
        yield from own
        for first, second in combinations(own, 2):
            alike = np.vdot(second, first)
            yield antennas.unit(first + second * (alike / abs(alike) if alike else 1.0))


def _worth(plan: Plan) -> tuple[float, float]:
    """What is minimised: the accuracy to expect, downwards, where a response decides; then the bound."""
    measured = plan.objective == "measured" and plan.predicted_accuracy is not None
    return (-(plan.predicted_accuracy or 0.0) if measured else 0.0), plan.bound.total


def _improved(plan: Plan, decide: Decide, *, own: bool) -> Plan:
    """Devices and combiner in turns, until no turn gains more than next to nothing.

    Args:
        plan: where to start.
        decide: as in `planned`.
        own: turn the combiner to the plan's own devices only, not to more or fewer as well.
    """
    for _ in range(_TURNS):
        before = _worth(plan)
        for devices in [plan.scheduled] if own else _sets(plan):
            other = _turned(plan, decide, devices)
            if _worth(other) < before:
                plan = other
                break
        after = _worth(plan)
        if before[0] - after[0] <= _WORTH and before[1] - after[1] <= _WORTH * before[1]:
            break
    return plan


def _turned(plan: Plan, decide: Decide, devices: NDArray[np.intp]) -> Plan:
    """The plan for the combiner that is best for some devices, if it is better; else the plan as it is."""
    try:
        other = decide(plan.problem.heard_by(_best_for(plan, devices)))
    except InfeasibleError:
        return plan
    return min(plan, other, key=_worth)


def _sets(plan: Plan) -> Iterator[NDArray[np.intp]]:
    """The sets of devices to whom the combiner may turn: the plan's own, then some more or fewer that reach highest."""
    yield plan.scheduled
    fleet = plan.problem.fleet
    reach = fleet.reach
    if plan.problem.seen_by_all and "privacy" in plan.limits:
        reach = np.minimum(reach, _cap(plan) / fleet.exposure)
    highest = np.argsort(-reach, kind="stable")[: np.count_nonzero(fleet.gain)]
    size, most = plan.num_scheduled, highest.size
    steps = np.unique(np.geomspace(1, most, _SIZES).round().astype(int))
    for step in steps.tolist():
        for number in (size + step, size - step):
            if 0 < number <= most:
                yield np.sort(highest[:number])


def _cap(plan: Plan) -> float:
    """The largest θ that privacy allows to a device of which the combiner sees all."""
    return plan.limits["privacy"] * plan.amplification


def _best_for(plan: Plan, devices: NDArray[np.intp]) -> Complexes:
    """The combiner that allows the largest θ to the given devices in the plan's number of rounds, by a local search.

    1/θ² is the largest of w_k/s_k for every k ∈ K and t·Σ 1/s_k, with s_k = |fᴴh_k|², w_k of peak power and privacy, t
    of the total power. That maximum is made smooth, and sharper step by step.
    """
    problem, allowed = plan.problem, plan.limits
    fleet, combiner = problem.fleet, plan.combiner
    devices = devices[antennas.strengths(fleet.channel[devices]) > 0]
    channel = fleet.channel[devices]
    weight = 1.0 / fleet.peak_power[devices]
    if problem.seen_by_all and "privacy" in allowed:
        weight = np.maximum(weight, np.square(antennas.strengths(channel) / _cap(plan)))
    total = 0.0
    if "total_power" in allowed:
        gain = fleet.gain[plan.scheduled]
        total = 1.0 / (allowed["total_power"] ** 2 * float(np.sum(np.square(1.0 / gain[gain > 0]))))
    for sharpness in _SHARPNESS:
        combiner = _searched(combiner, channel, weight, total, sharpness)
    return combiner


def _searched(combiner: Complexes, channel: Complexes, weight: Floats, total: float, sharpness: float) -> Complexes:
    number = combiner.size
    log_weight, log_total = np.log(weight), np.log(total) if total else -np.inf

    def cost(x: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        """ln 1/θ² of f/‖f‖ with the smooth maximum, and its gradient."""
        f = x[:number] + 1j * x[number:]
        size = float(np.sum(np.square(x)))
        amplitude = antennas.heard(channel, f)
        square = np.maximum((np.square(amplitude.real) + np.square(amplitude.imag)) / size, 1e-280)
        each = log_weight - np.log(square)
        inverse = 1.0 / square
        together = log_total + np.log(np.sum(inverse))
        top = max(float(each.max()), float(together))
        share, rest = np.exp(sharpness * (each - top)), np.exp(sharpness * (together - top))
        whole = float(np.sum(share)) + float(rest)
        slope = -(share + rest * inverse / np.sum(inverse)) * inverse / whole  # by s_k
        # s_k by f*: (h_k h_kᴴ f)/‖f‖² − s_k f/‖f‖²
        pull = np.einsum("k,k,ka->a", slope, np.conj(amplitude), channel)
        gradient = 2.0 * (pull - float(np.sum(slope * square)) * f) / size
        return top + np.log(whole) / sharpness, np.concatenate((gradient.real, gradient.imag))

    start = np.concatenate((combiner.real, combiner.imag))
    best = minimize(cost, start, jac=True, method="BFGS", options={"maxiter": _STEPS}).x  # small: no threads
    return antennas.unit(best[:number] + 1j * best[number:])


def aligned(problem: Problem, rounds: NDArray[np.int64] | None = None) -> Plan:
    """Return the joint optimum by the bound, for a given combiner.

    Args:
        problem: with its combiner.
        rounds: the numbers of rounds to choose from; all unless told.
    """
    every = np.arange(1, problem.most_rounds + 1) if rounds is None else rounds
    devices, alignment, number, _ = optimal.joint_optimum(problem, every)
    assert alignment is not None
    table = Amplitudes.aligned(devices, num_devices=problem.fleet.num_devices, level=alignment, rounds=number)
    return Plan(problem=problem, policy="optimal", amplitudes=table)


def everybody(problem: Problem) -> Plan:
    """Return the best plan by the bound with full participation, for a given combiner."""
    rounds = np.arange(1, problem.most_rounds + 1)
    return by_bound(problem, "full", np.arange(problem.fleet.num_devices), rounds=rounds)


def in_rounds(problem: Problem) -> Problem:
    """Return the problem with combiners where each round is decided on its own: one for all, or for each round.

    That of a round is the best for the round alone, if it had as many others beside it as the first round would choose:
    what later rounds bring is not looked at, and batteries neither. After `MOST_CHOSEN` rounds it is the first of those
    that are tried: the strongest eigenvector, where no other way to combine is asked for.

    Raises:
        InfeasibleError: there is no plan for the first round.
    """
    alone = replace(problem, budget=replace(problem.budget, device_power=None))
    first = planned(alone.at(0), aligned)
    if not problem.fleet.changes:
        return problem.heard_by(first.combiner)
    combiners = _firsts(problem)
    combiners[0] = first.combiner
    chosen = np.array([first.rounds])
    for index in range(1, min(problem.most_rounds, len(combiners), MOST_CHOSEN)):
        try:
            found = planned(alone.at(index), lambda there: aligned(there, chosen), brief=True)
        except InfeasibleError:  # nobody can be heard: any combiner of the kind that was asked for does
            continue
        combiners[index] = found.combiner
    return problem.heard_by(combiners)


def noted(plan: Plan) -> Plan:
    """Return a plan for `in_rounds` with a note where combiners were not searched for."""
    if not plan.problem.fleet.changes or plan.rounds <= MOST_CHOSEN or plan.problem.link.combining not in _SEARCHED:
        return plan
    first = "the first antenna" if plan.problem.link.combining == "one" else "the strongest eigenvector"
    note = f"After {MOST_CHOSEN} rounds the combiner is {first}: a search in every round would take minutes."
    return replace(plan, notes=(*plan.notes, note))


def _firsts(problem: Problem) -> Complexes:
    """The first combiner of those that are tried, in every round, (R, A)."""
    channel = problem.fleet.channel
    if problem.link.combining in ("optimal", "strongest_eigenvector"):
        return np.array(antennas.eigenvectors(channel)[..., 0, :])
    return np.tile(_first(problem.at(0)), (len(channel), 1))


def _first(problem: Problem) -> Complexes:
    """The first combiner of those that are tried."""
    return next(_starts(problem, brief=True))


def ceiling(problem: Problem) -> float:
    """Return F, beyond which nobody's ‖h_k‖/|fᴴh_k| may be in rounds that are still to come.

    That of the best plan about the first round, and √A at least: so much the strongest eigenvector leaves to somebody
    in every round.
    """
    first = replace(problem.at(0), budget=replace(problem.budget, device_power=None))
    devices = optimal.joint_optimum(first, np.arange(1, problem.most_rounds + 1)).devices
    most = float(np.max(limits.amplifications(first)[devices]))
    return max(most, float(np.sqrt(problem.fleet.antennas))) * (1 + 1e-9)


def heard_samples(samples: Any, ceiling: float = np.inf) -> Any:
    """Return samples of gains after combining, (samples, rounds, N), made of samples of channels, (…, N, A).

    Each sample is combined by its dominant eigenvector.

    Args:
        samples: of the channels, or a conditional sampler of them.
        ceiling: devices whose ‖h_k‖/|fᴴh_k| exceeds it get the gain 0.
    """

    def gains(draws: Any) -> Floats:
        channel = np.asarray(draws)
        if channel.ndim != 4:
            raise ValueError(f"Expected samples of channels, (samples, rounds, N, A); got shape {channel.shape}.")
        gain = np.abs(antennas.heard(channel, antennas.eigenvectors(channel)[..., 0, :]))
        return np.where(antennas.strengths(channel) <= ceiling * gain, gain, 0.0)

    return (lambda seen: gains(samples(seen))) if callable(samples) else gains(samples)
