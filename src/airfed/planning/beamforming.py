"""Receive beamforming: the beamformer of several antennas, a unit vector f, chosen together with the plan.

For a given f everything is as with one antenna of gains |fᴴh_k|, and where every antenna is seen one more factor
‖h_k‖/|fᴴh_k| per device on the privacy limit. So any policy plans for a given f, and f is improved for the devices that
it chose, in turns. That finds a good f, not provably the best: `lower_bound` says how much better any f could be.
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
from airfed.planning import limits, optimal
from airfed.planning.amplitudes import Amplitudes
from airfed.planning.limits import Devices
from airfed.planning.plan import Plan
from airfed.problem import Combining, Fleet, InfeasibleError, Problem

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
_TABLE: Final = 20_000_000  # devices times numbers of rounds that are looked at one by one


def planned(problem: Problem, decide: Decide, *, brief: bool = False) -> Plan:
    """Return the best plan of those that a policy makes for the beamformers that are tried."""
    found = _feasible(problem, _starts(problem, brief=brief), decide)
    found.sort(key=_worth)
    if problem.link.combining != "optimal":
        return found[0]
    if brief:
        return _turned(found[0], decide, found[0].scheduled)
    if found[0].objective == "bound" and found[0].bound.total <= lower_bound(problem) * (1 + _WORTH):
        return found[0]
    kept = found[: _KEPT if problem.fleet.num_devices > _FEW else _KEPT_OF_FEW]
    kept = sorted((_improved(plan, decide, own=True) for plan in kept), key=_worth)
    totals = [plan.bound.total for plan in kept]
    distinct = [
        plan for plan, before in zip(kept, [-np.inf, *totals], strict=False) if plan.bound.total > before * (1 + _WORTH)
    ]
    return min((_improved(plan, decide, own=False) for plan in distinct[:_KEPT]), key=_worth)


def judged(problem: Problem, seekers: Sequence[Decide], judge: Decide) -> Plan:
    """Return the best plan of those that a policy makes for a few beamformers, which others have found."""
    ways = get_args(Combining) if problem.link.combining == "optimal" else (problem.link.combining,)
    combiners = []
    for way in ways:
        there = replace(problem, link=replace(problem.link, combining=way))
        for decide in seekers:
            try:
                combiners.append(planned(there, decide).combiner)
            except InfeasibleError:  # it may need what the judge does not: channels, say
                combiners.append(_first(there))
    return min(_feasible(problem, combiners, judge), key=_worth)


def _feasible(problem: Problem, combiners: Iterable[Complexes], decide: Decide) -> list[Plan]:
    """The plans for those beamformers for which there is one; without any, the first one's reason is raised."""
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
    """Devices and beamformer in turns; with `own`, the beamformer only for the plan's devices, not more or fewer."""
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


def _turned(plan: Plan, decide: Decide, devices: Devices) -> Plan:
    """The plan for the combiner that is best for some devices, if it is better; else the plan as it is."""
    try:
        other = decide(plan.problem.heard_by(_best_for(plan, devices)))
    except InfeasibleError:
        return plan
    return min(plan, other, key=_worth)


def _sets(plan: Plan) -> Iterator[Devices]:
    """The sets of devices to whom the combiner may turn: the plan's own, then some more or fewer that reach highest."""
    yield plan.scheduled
    fleet = plan.problem.fleet
    reach = fleet.reach
    if plan.problem.seen_by_all and "privacy" in plan.limits:
        reach = np.minimum(reach, plan.limits["privacy"] * plan.amplification / fleet.exposure)
    highest = np.argsort(-reach, kind="stable")[: np.count_nonzero(fleet.gain)]
    size, most = plan.num_scheduled, highest.size
    steps = np.unique(np.geomspace(1, most, _SIZES).round().astype(int))
    for step in steps.tolist():
        for number in (size + step, size - step):
            if 0 < number <= most:
                yield np.sort(highest[:number])


def _best_for(plan: Plan, devices: Devices) -> Complexes:
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
        cap = allowed["privacy"] * plan.amplification  # to a device of which the combiner sees all
        weight = np.maximum(weight, np.square(antennas.strengths(channel) / cap))
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
    """Return the joint optimum by the bound, for a given beamformer and some numbers of rounds, by default all."""
    every = np.arange(1, problem.most_rounds + 1) if rounds is None else rounds
    devices, alignment, number, _ = optimal.joint_optimum(problem, every)
    assert alignment is not None
    table = Amplitudes.aligned(devices, num_devices=problem.fleet.num_devices, level=alignment, rounds=number)
    return Plan(problem=problem, policy="optimal", amplitudes=table)


def full(problem: Problem) -> Plan:
    """Return the best plan by the bound with full participation, for a given beamformer."""
    rounds = np.arange(1, problem.most_rounds + 1)
    return optimal.completed(problem, "full", np.arange(problem.fleet.num_devices), rounds=rounds)


def in_rounds(problem: Problem) -> Problem:
    """Return the problem with combiners where each round is decided on its own: one for all, or for each round.

    That of a round is the best for it alone, with as many others beside it as the first round would choose, and no
    batteries. After `MOST_CHOSEN` rounds it is the first of those that are tried.
    """
    alone = replace(problem, budget=replace(problem.budget, device_power=None))
    first = planned(alone.at(0), aligned)
    if not problem.fleet.changes:
        return problem.heard_by(first.combiner)
    channel = problem.fleet.channel
    if problem.link.combining in ("optimal", "strongest_eigenvector"):
        combiners = np.array(antennas.eigenvectors(channel)[..., 0, :])
    else:
        combiners = np.tile(_first(problem.at(0)), (len(channel), 1))
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


def _first(problem: Problem) -> Complexes:
    """The first combiner of those that are tried."""
    return next(_starts(problem, brief=True))


def ceiling(problem: Problem) -> float:
    """Return F, beyond which nobody's ‖h_k‖/|fᴴh_k| may be in rounds to come: that of the best plan of the first.

    It is √A at least: so much the strongest eigenvector leaves to somebody in every round.
    """
    first = replace(problem.at(0), budget=replace(problem.budget, device_power=None))
    devices = optimal.joint_optimum(first, np.arange(1, problem.most_rounds + 1)).devices
    most = float(np.max(limits.amplifications(first)[devices]))
    return max(most, float(np.sqrt(problem.fleet.antennas))) * (1 + 1e-9)


def combined_samples(samples: Any, ceiling: float = np.inf) -> Any:
    """Return samples of gains, (samples, rounds, N), of samples of channels, (…, N, A), by their eigenvectors."""

    def gains(draws: Any) -> Floats:
        channel = np.asarray(draws)
        if channel.ndim != 4:
            raise ValueError(f"Expected samples of channels, (samples, rounds, N, A); got shape {channel.shape}.")
        gain = np.abs(antennas.heard(channel, antennas.eigenvectors(channel)[..., 0, :]))
        return np.where(antennas.strengths(channel) <= ceiling * gain, gain, 0.0)

    return (lambda seen: gains(samples(seen))) if callable(samples) else gains(samples)


def lower_bound(problem: Problem) -> float:
    """Return a value that no plan's `bound.total` is below, whatever the combiner, the devices, θ and I are.

    No f hears device k better than its own matched filter, s_k ≤ ‖h_k‖². Nor can f be everybody's: for m devices Σ s_k
    ≤ λ, the largest eigenvalue of Σ h_k h_kᴴ over all devices, so that Σ 1/s_k ≥ m²/λ, and the least P_k s_k is at most
    1/m of the largest eigenvalue of Σ P_k h_k h_kᴴ; where every antenna is seen, the same of h_k/‖h_k‖.
    """
    fleet = problem.fleet
    channel, strength = fleet.channel, antennas.strengths(fleet.channel)
    channel, strength, power = channel[strength > 0], strength[strength > 0], fleet.peak_power[strength > 0]
    rounds = np.arange(1, problem.most_rounds + 1)
    if rounds.size * strength.size > _TABLE:
        alone = optimal.trusting(replace(problem, fleet=ideal(problem).fleet))
        return optimal.search(alone, rounds, alone.fleet.peak_power).objective
    size = np.arange(1, strength.size + 1)
    watts = np.minimum(1.0 / np.cumsum(np.sort(np.square(1.0 / strength))), _largest(channel) / np.square(size))
    peak = np.minimum(np.sort(np.square(strength) * power)[::-1], _largest(channel * np.sqrt(power)[:, None]) / size)
    seen = np.ones(size.shape)
    if problem.seen_by_all:
        seen = np.minimum(1.0, _largest(channel / strength[:, None]) / size)
    left_out = 4.0 * np.square(1.0 - size / fleet.num_devices)
    least = np.inf
    known = optimal.candidates(problem, rounds)
    noise = known.pop("noise_weight")
    for cap, budget, offset, scale in zip(*known.values(), strict=True):
        square = np.minimum(np.minimum(cap**2 * seen, peak), budget * watts)
        with np.errstate(over="ignore", divide="ignore"):
            least = min(least, float(offset + scale * np.min(left_out + noise / (np.square(size) * square))))
    return least * (1 - 1e-12)


def _largest(channel: Complexes) -> float:
    """The largest eigenvalue of Σ h_k h_kᴴ, rounded up."""
    return float(antennas.eigen(antennas.gram(channel))[0][-1]) * (1 + 1e-10)


def ideal(problem: Problem) -> Problem:
    """Return the problem in which every device is heard by its own matched filter: better than any combiner."""
    if problem.fleet.antennas == 1:
        return problem
    fleet = Fleet(gain=antennas.strengths(problem.fleet.channel), peak_power=problem.fleet.peak_power)
    return replace(problem, fleet=fleet)
