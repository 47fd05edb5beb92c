"""Receive beamforming: the beamformer of several antennas, a unit vector f, chosen together with the plan.

For a given f the problem is that of one antenna with the effective gains |fᴴh_k| (docs/antennas.md), and any policy can
plan for it. Planning and a local search of f for the scheduled devices alternate. The result is a good f, not provably
the best; `lower_bound` bounds the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from airfed import antennas
from airfed.antennas import Complexes, Floats
from airfed.planning import limits, optimal
from airfed.planning.amplitudes import Amplitudes
from airfed.planning.limits import Devices
from airfed.planning.plan import Plan
from airfed.problem import Beamforming, InfeasibleError, Problem

Planner = Callable[[Problem], Plan]

_SHARPNESS: Final = (4.0, 32.0, 256.0)  # of the smooth maximum in the search of f, in this order
_STEPS: Final = 40  # iterations of the search for each sharpness
_ALTERNATIONS: Final = 12  # of devices and beamformer
_KEPT: Final = 2  # starting points that are improved
_KEPT_OF_FEW: Final = 16  # the same for few devices
_SIZES: Final = 4  # larger and smaller device sets for which f is optimised
_FEW: Final = 12  # devices; their matched filters are further starting points
_IMPROVEMENT: Final = 1e-5  # relative; a smaller improvement ends the alternation
MOST_SEARCHED: Final = 256  # rounds with a search of f; thousands would take minutes
_SEARCH_MODES: Final = ("optimal", "antenna_selection")  # beamforming modes with a search
_LARGEST_TABLE: Final = 20_000_000  # devices times numbers of rounds, for the tighter lower bound


def searched(
    problem: Problem, planner: Planner, *, brief: bool = False, least: Callable[[Problem], float] | None = None
) -> Plan:
    """Return the best plan of a policy over the beamformers of the search.

    `least` is the lower bound of a policy that does not align the devices. Its search also starts from the beamformer
    of the best aligned plan, so that it is no worse.
    """
    starts = _starts(problem, brief=brief)
    if least is not None and problem.link.beamforming == "optimal":
        starts = chain(starts, [searched(problem, aligned).beamformer])
    found = _feasible(problem, starts, planner)
    found.sort(key=_cost)
    if problem.link.beamforming != "optimal":
        return found[0]
    if brief:
        return _with_beamformer_for(found[0], planner, found[0].scheduled)
    if found[0].objective == "bound" and found[0].bound.total <= (least or lower_bound)(problem) * (1 + _IMPROVEMENT):
        return found[0]
    kept = found[: _KEPT if problem.fleet.num_devices > _FEW else _KEPT_OF_FEW]
    kept = sorted((_improved(plan, planner, own=True) for plan in kept), key=_cost)
    totals = [plan.bound.total for plan in kept]
    pairs = zip(kept, [-np.inf, *totals], strict=False)
    distinct = [plan for plan, before in pairs if plan.bound.total > before * (1 + _IMPROVEMENT)]
    return min((_improved(plan, planner, own=False) for plan in distinct[:_KEPT]), key=_cost)


def best_of_few(problem: Problem, proposers: Sequence[Planner], planner: Planner) -> Plan:
    """Return the best plan of a policy over a few beamformers from other policies, the proposers."""
    modes = get_args(Beamforming) if problem.link.beamforming == "optimal" else (problem.link.beamforming,)
    beamformers = []
    for mode in modes:
        variant = replace(problem, link=replace(problem.link, beamforming=mode))
        for proposer in proposers:
            try:
                beamformers.append(searched(variant, proposer).beamformer)
            except InfeasibleError:  # its limits may be stricter
                beamformers.append(_first(variant))
    return min(_feasible(problem, beamformers, planner), key=_cost)


def _feasible(problem: Problem, beamformers: Iterable[Complexes], planner: Planner) -> list[Plan]:
    """Return the plans of the feasible beamformers; raise the first InfeasibleError if there are none."""
    found: list[Plan] = []
    refused: InfeasibleError | None = None
    for beamformer in beamformers:
        try:
            found.append(planner(problem.with_beamformer(beamformer)))
        except InfeasibleError as error:
            refused = refused or error
    if not found:
        assert refused is not None
        raise refused
    return found


def _starts(problem: Problem, *, brief: bool) -> Iterator[Complexes]:
    """Yield the starting points of the search."""
    channel, beamforming = problem.fleet.channel, problem.link.beamforming
    number, covariance = channel.shape[-1], problem.fleet.noise_covariance
    if brief and beamforming == "optimal":
        beamforming = "dominant_eigenvector"
    if beamforming in ("optimal", "dominant_eigenvector"):
        vectors = antennas.eigenvectors(channel)
        yield from vectors if beamforming == "optimal" else vectors[:1]
    if beamforming in ("optimal", "equal_gain"):
        yield antennas.whitened_beamformer(np.full(number, number**-0.5, dtype=np.complex128), covariance)
    if beamforming in ("optimal", "antenna_selection"):
        yield from antennas.whitened_beamformer(np.eye(number, dtype=np.complex128), covariance)
    if beamforming == "optimal" and len(channel) <= _FEW:  # matched filters, and the mean of each two of them
        own = antennas.unit(channel[antennas.norms(channel) > 0])
        yield from own
        for first, second in combinations(own, 2):
            product = np.vdot(second, first)
            yield antennas.unit(first + second * (product / abs(product) if product else 1.0))


def _cost(plan: Plan) -> tuple[float, float]:
    """Return the sort key: minus the expected accuracy for the objective "accuracy", then the bound."""
    by_accuracy = plan.objective == "accuracy" and plan.predicted_accuracy is not None
    return (-(plan.predicted_accuracy or 0.0) if by_accuracy else 0.0), plan.bound.total


def _improved(plan: Plan, planner: Planner, *, own: bool) -> Plan:
    """Alternate devices and beamformer; with `own`, optimise f only for the plan's devices, not for other sets."""
    for _ in range(_ALTERNATIONS):
        before = _cost(plan)
        for devices in [plan.scheduled] if own else _device_sets(plan):
            other = _with_beamformer_for(plan, planner, devices)
            if _cost(other) < before:
                plan = other
                break
        after = _cost(plan)
        if before[0] - after[0] <= _IMPROVEMENT and before[1] - after[1] <= _IMPROVEMENT * before[1]:
            break
    return plan


def _with_beamformer_for(plan: Plan, planner: Planner, devices: Devices) -> Plan:
    """Return the plan with the beamformer optimised for given devices if it is better, else the plan unchanged."""
    try:
        other = planner(plan.problem.with_beamformer(_best_for(plan, devices)))
    except InfeasibleError:
        return plan
    return min(plan, other, key=_cost)


def _device_sets(plan: Plan) -> Iterator[Devices]:
    """Yield device sets to optimise f for: the plan's own, then larger and smaller ones of the largest amplitudes."""
    yield plan.scheduled
    fleet = plan.problem.fleet
    reach = fleet.reach
    if plan.problem.all_antennas_seen and "privacy" in plan.limits:
        reach = np.minimum(reach, plan.limits["privacy"] * plan.amplification / fleet.exposure)
    highest = np.argsort(-reach, kind="stable")[: np.count_nonzero(fleet.gain)]
    size, most = plan.num_scheduled, highest.size
    steps = np.unique(np.geomspace(1, most, _SIZES).round().astype(int))
    for step in steps.tolist():
        for number in (size + step, size - step):
            if 0 < number <= most:
                yield np.sort(highest[:number])


def _best_for(plan: Plan, devices: Devices) -> Complexes:
    """Return the beamformer of the largest θ for given devices and the plan's rounds, by a local search.

    1/θ² is the maximum of w_k/s_k for every k ∈ K and t·Σ r_k²/s_k, with s_k = |fᴴh_k|², w_k from peak power and
    privacy, t from the total power, and r_k = a_k/θ. The search minimises a smooth maximum of increasing sharpness.
    """
    problem, allowed = plan.problem, plan.limits
    fleet, beamformer = problem.fleet, plan.beamformer
    devices = devices[antennas.norms(fleet.channel[devices]) > 0]
    channel = fleet.channel[devices]
    shares = np.where(plan.amplitudes.shares(0) > 0, plan.amplitudes.shares(0), 1.0)  # devices that join are aligned
    load = np.square(shares[devices])
    weight = load / fleet.peak_power[devices]
    if problem.all_antennas_seen and "privacy" in allowed:
        observed = shares[plan.scheduled] * plan.sequence.factors(plan.scheduled, 0)
        cap = allowed["privacy"] * float(np.max(observed))  # of a device with exposure 1
        weight = np.maximum(weight, load * np.square(antennas.norms(channel) / cap))
    total = 0.0
    if "total_power" in allowed:
        gain, share = fleet.gain[plan.scheduled], shares[plan.scheduled]
        total = 1.0 / (allowed["total_power"] ** 2 * float(np.sum(np.square((share / gain)[gain > 0]))))
    for sharpness in _SHARPNESS:
        beamformer = _search(beamformer, channel, weight, load, total, sharpness)
    return beamformer


def _search(
    beamformer: Complexes, channel: Complexes, weight: Floats, load: Floats, total: float, sharpness: float
) -> Complexes:
    number = beamformer.size
    log_weight, log_total = np.log(weight), np.log(total) if total else -np.inf

    def cost(x: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        """Return ln 1/θ² of f/‖f‖ with the smooth maximum, and its gradient."""
        f = x[:number] + 1j * x[number:]
        size = float(np.sum(np.square(x)))
        amplitude = antennas.effective(channel, f)
        square = np.maximum((np.square(amplitude.real) + np.square(amplitude.imag)) / size, 1e-280)
        each = log_weight - np.log(square)
        inverse = 1.0 / square
        each_load = load * inverse
        together = log_total + np.log(np.sum(each_load))
        top = max(float(each.max()), float(together))
        share, rest = np.exp(sharpness * (each - top)), np.exp(sharpness * (together - top))
        whole = float(np.sum(share)) + float(rest)
        slope = -(share + rest * each_load / np.sum(each_load)) * inverse / whole  # d/ds_k
        # ds_k/df*: (h_k h_kᴴ f)/‖f‖² − s_k f/‖f‖²
        pull = np.einsum("k,k,ka->a", slope, np.conj(amplitude), channel)
        gradient = 2.0 * (pull - float(np.sum(slope * square)) * f) / size
        return top + np.log(whole) / sharpness, np.concatenate((gradient.real, gradient.imag))

    start = np.concatenate((beamformer.real, beamformer.imag))
    from scipy.optimize import minimize  # lazy import: it takes a tenth of the time of a plan

    best = minimize(cost, start, jac=True, method="BFGS", options={"maxiter": _STEPS}).x
    return antennas.unit(best[:number] + 1j * best[number:])


def aligned(problem: Problem, rounds: NDArray[np.int64] | None = None) -> Plan:
    """Return the joint optimum by the bound, for a given beamformer and given numbers of rounds (default: all)."""
    every = problem.round_candidates() if rounds is None else rounds
    devices, alignment, number, _ = optimal.joint_optimum(problem, every)
    assert alignment is not None
    table = Amplitudes.aligned(devices, num_devices=problem.fleet.num_devices, level=alignment, rounds=number)
    return Plan(problem=problem, policy="optimal", amplitudes=table)


def full(problem: Problem) -> Plan:
    """Return the best plan by the bound with full participation, for a given beamformer."""
    rounds = problem.round_candidates()
    return optimal.completed(problem, "full", np.arange(problem.fleet.num_devices), rounds=rounds)


def with_round_beamformers(problem: Problem) -> Problem:
    """Return a time-varying problem with beamformers: one for all rounds if channels are constant, else one per round.

    The beamformer of a round is optimised for that round alone, with the number of rounds that is best for the first
    one, without batteries. After `MOST_SEARCHED` rounds it is the first starting point of the search.
    """
    without_batteries = replace(problem, budget=replace(problem.budget, device_power=None))
    first = searched(without_batteries.at(0), aligned)
    if not problem.fleet.time_varying:
        return problem.with_beamformer(first.beamformer)
    channel = problem.fleet.channel
    if problem.link.beamforming in ("optimal", "dominant_eigenvector"):
        beamformers = np.array(antennas.eigenvectors(channel)[..., 0, :])
    else:
        beamformers = np.tile(_first(problem.at(0)), (len(channel), 1))
    beamformers[0] = first.beamformer
    rounds = np.array([first.rounds])
    for index in range(1, min(problem.most_rounds, len(beamformers), MOST_SEARCHED)):
        try:
            found = searched(without_batteries.at(index), lambda this: aligned(this, rounds), brief=True)
        except InfeasibleError:  # no device is reachable: keep the default
            continue
        beamformers[index] = found.beamformer
    return problem.with_beamformer(beamformers)


def noted(plan: Plan) -> Plan:
    """Return the plan with a note if some of its beamformers come without a search."""
    if (
        not plan.problem.fleet.time_varying
        or plan.rounds <= MOST_SEARCHED
        or plan.problem.link.beamforming not in _SEARCH_MODES
    ):
        return plan
    first = "the first antenna" if plan.problem.link.beamforming == "antenna_selection" else "the dominant eigenvector"
    note = f"After {MOST_SEARCHED} rounds the beamformer is {first}, without a search."
    return replace(plan, notes=(*plan.notes, note))


def _first(problem: Problem) -> Complexes:
    """Return the first starting point of the search."""
    return next(_starts(problem, brief=True))


def exposure_cap(problem: Problem) -> float:
    """Return F, the cap on ‖h_k‖/|fᴴh_k| of scheduled devices in later rounds: the maximum in the best plan of round 0.

    It is at least √A, which the dominant eigenvector meets for some device in every round.
    """
    first = replace(problem.at(0), budget=replace(problem.budget, device_power=None))
    devices = optimal.joint_optimum(first, problem.round_candidates()).devices
    largest = float(np.max(limits.amplifications(first)[devices]))
    return max(largest, float(np.sqrt(problem.fleet.antennas))) * (1 + 1e-9)


def effective_samples(problem: Problem, samples: Any, exposure_cap: float = np.inf) -> Any:
    """Return effective gains, (samples, rounds, N), of channel samples (…, N, A) with their dominant eigenvectors.

    The samples are those of the antennas; shared noise is whitened, as in the problem.
    """

    def gains(draws: Any) -> Floats:
        channel = np.asarray(draws)
        if channel.ndim != 4:
            raise ValueError(f"samples must have shape (samples, rounds, N, A), got {channel.shape}.")
        channel = antennas.whitened(channel, problem.fleet.noise_covariance)
        gain = np.abs(antennas.effective(channel, antennas.eigenvectors(channel)[..., 0, :]))
        return np.where(antennas.norms(channel) <= exposure_cap * gain, gain, 0.0)

    return (lambda seen: gains(samples(seen))) if callable(samples) else gains(samples)


def lower_bound(problem: Problem) -> float:
    """Return a lower bound on `bound.total` of aligned plans, over all beamformers, devices, θ and I.

    No f exceeds the matched filter of device k, s_k ≤ ‖h_k‖². For m devices Σ s_k ≤ λ, the largest eigenvalue of
    Σ h_k h_kᴴ over all devices, so that Σ 1/s_k ≥ m²/λ, and the smallest P_k s_k is at most 1/m of the largest
    eigenvalue of Σ P_k h_k h_kᴴ; with the adversary "all_antennas" the same holds for h_k/‖h_k‖.
    """
    fleet = problem.fleet
    channel, strength = fleet.channel, antennas.norms(fleet.channel)
    channel, strength, power = channel[strength > 0], strength[strength > 0], fleet.peak_power[strength > 0]
    rounds = problem.round_candidates()
    if rounds.size * strength.size > _LARGEST_TABLE:
        alone = optimal.assuming_perfect_csi(replace(problem, fleet=ideal(problem).fleet))
        return optimal.search(alone, rounds, alone.fleet.peak_power).objective
    size = np.arange(1, strength.size + 1)
    watts = np.minimum(1.0 / np.cumsum(np.sort(np.square(1.0 / strength))), _largest(channel) / np.square(size))
    peak = np.minimum(np.sort(np.square(strength) * power)[::-1], _largest(channel * np.sqrt(power)[:, None]) / size)
    visible = np.ones(size.shape)
    if problem.all_antennas_seen:
        visible = np.minimum(1.0, _largest(channel / strength[:, None]) / size)
    left_out = 4.0 * np.square(1.0 - size / fleet.num_devices)
    least = np.inf
    known = optimal.candidates(problem, rounds)
    noise = known.pop("noise_weight")
    for cap, budget, offset, scale in zip(*known.values(), strict=True):
        square = np.minimum(np.minimum(cap**2 * visible, peak), budget * watts)
        with np.errstate(over="ignore", divide="ignore"):
            least = min(least, float(offset + scale * np.min(left_out + noise / (np.square(size) * square))))
    return least * (1 - 1e-12)


def _largest(channel: Complexes) -> float:
    """Return the largest eigenvalue of Σ h_k h_kᴴ, rounded up."""
    return float(antennas.eigen(antennas.gram(channel))[0][-1]) * (1 + 1e-10)


def ideal(problem: Problem) -> Problem:
    """Return the problem with a matched filter for every device, which is at least as good as any beamformer."""
    if problem.fleet.antennas == 1:
        return problem
    return replace(problem, fleet=problem.fleet.with_gain(antennas.norms(problem.fleet.channel)))
