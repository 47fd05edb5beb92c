"""Plans for time-varying channels and for devices with batteries, in which rounds may differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed import _validate, bounds
from airfed.planning import beamforming, limits
from airfed.planning.amplitudes import Amplitudes
from airfed.planning.limits import Bools, Devices, Floats
from airfed.planning.method import OVER_THE_AIR, Method
from airfed.planning.time_varying.causal import Sampler, causal
from airfed.planning.time_varying.clairvoyant import clairvoyant
from airfed.planning.time_varying.device_budgets import best_rounds, myopic
from airfed.planning.time_varying.instance import Instance, Solution, thinned
from airfed.problem import InfeasibleError, Problem

Samples = Floats | Sampler
"""Monte Carlo samples of the gains, (samples, rounds, N), or a conditional sampler."""
ScheduleRule = Callable[[Problem, int], NDArray[Any]]  # returns K_i, or a_ik of all devices as floats

_CAPS: Final = 8  # candidates for the cap on the amplification
_SLACK: Final = 1e-12
_TRIES: Final = 24  # numbers of rounds to compare, evenly spaced in the logarithm
_MOST_DRAWN: Final = 150_000  # total number of rounds that a conditional sampler draws
_SMALLEST_CAP: Final = 1.0 + 1e-12  # smallest exposure cap; 1 means no cap


def instance_of(problem: Problem, gain: Floats | None = None, *, exposure_cap: float = 1.0) -> Instance:
    """Return the problem as the planners need it."""
    budget, fleet = problem.budget, problem.fleet
    gains = gains_of(problem) if gain is None else gain
    done = gain is not None and fleet.antennas > 1  # `effective_samples` has applied the cap
    if limits.amplified(problem) and exposure_cap > 1.0 and not done:
        gains = np.where(factors(problem, gains) <= exposure_cap, gains, 0.0)
    cap, every = limits.privacy_cap(problem) / exposure_cap * (1 - _SLACK), (fleet.num_devices,)
    return Instance(
        gain=gains,
        peak_power=fleet.peak_power,
        noise_weight=problem.noise_weight,
        learning=problem.learning,
        cap=cap,
        total_power=budget.total_power,
        device_power=None if budget.device_power is None else np.broadcast_to(budget.device_power, every),
        device_exposure=np.broadcast_to(cap**2, every) if budget.scope == "total" else None,
    )


def gains_of(problem: Problem) -> Floats:
    """Return the gains of all possible rounds, (R, N)."""
    fleet = problem.fleet
    if fleet.time_varying:
        return fleet.gain[: problem.most_rounds]
    return np.broadcast_to(fleet.gain, (problem.most_rounds, fleet.num_devices))


def factors(problem: Problem, gains: Floats) -> Floats:
    """Return f of every round and device: the amplitude that the adversary may observe over θ."""
    if problem.fleet.antennas > 1 or not problem.fleet.time_varying:
        own = limits.amplifications(problem)
        return np.broadcast_to(own, gains.shape) if own.ndim == 1 else own[: len(gains)]
    failure = problem.link.csi_failure * (len(gains) / len(problem.fleet.gain))
    fleet = problem.fleet.with_gain(gains)
    return limits.amplifications(replace(problem, fleet=fleet, link=replace(problem.link, csi_failure=failure)))


def exposure_cap_of(problem: Problem, samples: Samples | None) -> float:
    """Return F, the largest amplification of a scheduled device: the best of a few; 1 with perfect CSI."""
    if not limits.amplified(problem):
        return 1.0
    own = [beamforming.exposure_cap(problem)] if problem.all_antennas_seen else []
    if own and samples is not None:
        return own[0]
    draw = None if samples is None else first_sample(samples, problem)
    gains = gains_of(problem) if draw is None else draw
    known = factors(problem, gains)[gains > 0]
    # In later rounds the strongest gain is at least the root mean square, whose f is the same in each round. A cap of
    # at least this f leaves a device in every round.
    least = _SMALLEST_CAP if samples is None else float(factors(problem, np.ones_like(gains)).max()) * (1 + 1e-9)
    best, found = np.inf, np.inf
    tried = np.append(np.quantile(known, np.linspace(0.05, 1.0, _CAPS)), own)
    for each in np.unique(np.maximum(tried, least)).tolist():
        try:
            instance = instance_of(problem, draw, exposure_cap=each)
            value = clairvoyant(instance).objective if instance.one_budget else best_rounds(instance, rolling=True)[1]
        except InfeasibleError:
            continue
        if value < best:
            best, found = value, each
    if not np.isfinite(found):
        raise InfeasibleError("No plan fits: the privacy budget allows no signal of any device (privacy).")
    return found


def optimal(problem: Problem, *, rounds: int | None, samples: Samples | None) -> Solution:
    """Return the clairvoyant plan, or the causal plan if samples are given."""
    if samples is None:
        exposure_cap = exposure_cap_of(problem, None)
        found = clairvoyant(instance_of(problem, exposure_cap=exposure_cap), rounds=rounds)
        exact = exposure_cap == 1.0 and problem.fleet.antennas == 1
        return found if exact else found._replace(lower_bound=_lower_bound(problem, rounds))
    samples = strided(in_time(problem, samples), problem)
    # With budgets of single devices, dual variables for each of them gave no better causal plans than equal shares.
    if problem.budget.scope == "total" or problem.budget.device_power is not None:
        found = equal_shares(problem, rounds=rounds, samples=samples, rolling=True)
    else:
        exposure_cap = exposure_cap_of(problem, samples)
        effective = effective_samples(problem, samples, exposure_cap)
        found = causal(instance_of(problem, exposure_cap=exposure_cap), effective, rounds=rounds)
    return found._replace(lower_bound=_lower_bound(problem, rounds))


def _lower_bound(problem: Problem, rounds: int | None) -> float:
    """Return the lower bound on aligned plans with perfect CSI and matched filters."""
    return clairvoyant(instance_of(beamforming.ideal(problem)), rounds=rounds).lower_bound


def equal_shares(problem: Problem, *, rounds: int | None, samples: Samples | None, rolling: bool = False) -> Solution:
    """Return the plan in which each round spends 1/I of every budget, or an equal share of the rest (`rolling`)."""
    exposure_cap = exposure_cap_of(problem, samples)
    draw = None if samples is None else first_sample(effective_samples(problem, samples, exposure_cap), problem)
    return myopic(instance_of(problem, exposure_cap=exposure_cap), rounds=rounds, draw=draw, rolling=rolling)


def mean_problem(problem: Problem, samples: Samples | None) -> Problem:
    """Return the problem with constant gains and no batteries: the mean over the rounds or the samples."""
    gains = gains_of(problem) if samples is None else _all_samples(samples, problem)
    mean = gains.reshape(-1, problem.fleet.num_devices).mean(axis=0)
    return replace(
        problem,
        fleet=problem.fleet.with_gain(mean),
        budget=replace(problem.budget, device_power=None),
    )


def per_round(
    problem: Problem,
    schedule: ScheduleRule,
    *,
    method: Method = OVER_THE_AIR,
    rounds: int | None = None,
    samples: Samples | None = None,
) -> Solution:
    """Return the plan of a rule that is called in each round; each round gets an equal share of every budget."""
    if rounds is None and samples is not None:
        fleet = problem.fleet.with_gain(first_sample(samples, problem))
        rounds = per_round(replace(problem, fleet=fleet), schedule, method=method).amplitudes.rounds
    return (
        _aligned(problem, schedule, rounds) if method is OVER_THE_AIR else _by_method(problem, schedule, method, rounds)
    )


def _by_method(problem: Problem, schedule: ScheduleRule, method: Method, rounds: int | None) -> Solution:
    """Return the plan of a method with its own amplitudes, for the best or a fixed number of rounds."""
    if problem.budget.device_power is not None:
        raise InfeasibleError(f"No plan fits: {method.name} does not support batteries (device_power).")
    learning, available = problem.learning, len(gains_of(problem))
    cached: dict[int, tuple[Problem, Devices]] = {}  # the rule is called once for every round

    def one(index: int, number: int) -> tuple[Devices, Floats, float, float, float]:
        """Return devices, amplitudes, noise share, shortfall and symbols of round i with 1/I of every budget."""
        if index not in cached:
            cached[index] = problem.at(index), schedule(problem.at(index), index)
        this_round, devices = cached[index]
        amplitude = method.amplitudes(this_round, devices, number)
        devices, amplitude = devices[amplitude > 0], amplitude[amplitude > 0]
        gain, peak = this_round.fleet.gain[devices], this_round.fleet.peak_power[devices]
        signal = method.signal(this_round, gain=gain, peak_power=peak, amplitude=amplitude, rounds=number)
        symbols = method.symbols(this_round, devices, number)
        return devices, amplitude, signal.noise_share, signal.shortfall(this_round.fleet.num_devices), symbols

    def value(number: int) -> float:
        """Return the bound of I rounds, from a subset of them in long trainings."""
        indices, weights = thinned(learning, number)
        noise, shortfall = np.array([one(index, number)[2:4] for index in indices.tolist()]).T
        error = bounds.participation_error(shortfall) + bounds.noise_error(learning, noise)
        return float(bounds.round_offsets(learning, np.array([number]))[0]) + float(np.sum(weights * error))

    def plan_of(number: int) -> Solution:
        if number > available:
            raise InfeasibleError(f"No plan fits: gains are available for {available} rounds, not for {number}.")
        table, noise, shortfall = np.zeros((number, problem.fleet.num_devices)), np.empty(number), np.empty(number)
        symbols = 0.0
        for index in range(number):
            devices, amplitude, noise[index], shortfall[index], uses = one(index, number)
            table[index, devices] = amplitude
            symbols += uses
        problem.require_time(symbols, f"with {method.name} rounds={number} take")
        bound = bounds.convex_gap(learning, rounds=number, shortfall=shortfall, noise_share=noise)
        return Solution(Amplitudes.of_table(table), bound.total)

    if rounds is not None:
        return plan_of(rounds)
    values: dict[int, float] = {}
    refused = ""
    for number in np.unique(np.geomspace(1, available, _TRIES).round().astype(int)).tolist():
        try:
            values[number] = value(number)
        except InfeasibleError as error:  # a device is unreachable in some round
            refused = refused or str(error)
    for number in sorted(values, key=values.__getitem__):
        try:
            return plan_of(number)
        except InfeasibleError as error:  # or so many rounds exceed the air time
            refused = refused or str(error)
    raise InfeasibleError(refused)


def _aligned(problem: Problem, schedule: ScheduleRule, rounds: int | None) -> Solution:
    """Return K_i of the rule with the largest θ_i within 1/I of every budget, or with the rule's amplitudes."""
    instance = instance_of(problem)
    most = instance.most_rounds if rounds is None else rounds
    _validate.positive_integer(rounds=most)
    if most > instance.most_rounds:
        instance.require_reachable(most)
    mask = np.zeros((most, instance.num_devices), dtype=np.bool_)
    given: dict[int, Floats] = {}
    for index in range(most):
        this_round = problem.at(index)
        try:
            row = schedule(this_round, index)
            devices = np.flatnonzero(row) if row.dtype == np.float64 else row
            limits.require_reachable(this_round, devices, f" in round {index + 1}")
        except InfeasibleError:
            if rounds is not None or not index:
                raise
            mask = mask[:index]
            break
        if row.dtype == np.float64:
            given[index] = row
        mask[index, devices] = True
    each, shared = _allowed(problem, instance, mask)
    chosen = rounds or 1 + int(np.argmin(_values(instance, mask, each, shared)))
    theta = np.sqrt(np.minimum(each[:chosen], shared[:chosen] * ((1 - 4 * _SLACK) / chosen)))
    found = Solution.within(instance, mask[:chosen], theta)
    if not given:
        return found
    table = found.amplitudes.dense.copy()
    for index, row in given.items():
        if index < chosen:
            table[index] = row
    return Solution(Amplitudes.of_table(table), found.objective)


def _allowed(problem: Problem, instance: Instance, mask: Bools) -> tuple[Floats, Floats]:
    """Return the largest θ_i² under the limits on one round, and under the total budgets if it had them alone."""
    rounds = len(mask)
    each, shared = np.full(rounds, instance.cap**2), np.empty(rounds)
    factor = np.ones(mask.shape) if not limits.amplified(problem) else factors(problem, gains_of(problem))[:rounds]
    for index, on in enumerate(mask):
        square = np.square(instance.gain[index, on])
        largest_factor = float(factor[index, on].max()) ** 2
        each[index] = min(each[index] / largest_factor, float(np.min(square * instance.peak_power[on])) * (1 - _SLACK))
        shared[index] = instance.total_power / float(np.sum(1.0 / square))
        if instance.device_power is not None:
            shared[index] = min(shared[index], float(np.min(instance.device_power[on] * square)))
        if instance.device_exposure is not None:
            shared[index] = min(shared[index], float(np.min(instance.device_exposure[on])) / largest_factor)
    return each, shared


def _values(instance: Instance, mask: Bools, each: Floats, shared: Floats) -> Floats:
    """Return the bounds of 1, 2, … rounds with equal shares."""
    most = len(mask)
    size = np.count_nonzero(mask, axis=1)
    weights = instance.weights(most)  # for fewer rounds, the last of these
    found = instance.offsets()[:most].copy()
    for number in range(1, most + 1):
        square = np.minimum(each[:number], shared[:number] / number)
        own = weights[most - number :]
        found[number - 1] += np.sum(own * instance.errors(size[:number], square), where=own > 0)
    return found


def _all_samples(samples: Samples, problem: Problem) -> Floats:
    draws = np.asarray(samples(np.empty((0, problem.fleet.num_devices))) if callable(samples) else samples)
    if draws.ndim == 4:
        draws = beamforming.effective_samples(problem, draws)
    return np.asarray(draws, dtype=np.float64)[:, : problem.most_rounds]


def in_time(problem: Problem, samples: Samples) -> Samples:
    """Return the samples of the rounds within the air time."""
    most = problem.most_rounds
    if not callable(samples):
        return np.asarray(samples)[:, :most]
    return lambda seen: np.asarray(samples(seen))[:, : most - len(seen)]


def strided(samples: Samples, problem: Problem) -> Samples:
    """Return a sampler that draws at most about 150,000 rounds: it reuses each draw for a stride of rounds."""
    if not callable(samples):
        return samples
    stride = -(-(len(gains_of(problem)) ** 2) // (2 * _MOST_DRAWN))
    kept: list[tuple[int, Floats]] = []

    def cached(seen: Floats) -> Floats:
        if not kept or not 0 <= len(seen) - kept[-1][0] < stride:
            kept[:] = [(len(seen), np.asarray(samples(seen)))]
        return kept[-1][1][:, len(seen) - kept[-1][0] :]

    return cached


def first_sample(samples: Samples, problem: Problem) -> Floats:
    """Return the gains of one sample, (R, N)."""
    return np.asarray(_all_samples(samples, problem)[0])


def effective_samples(problem: Problem, samples: Samples, exposure_cap: float) -> Samples:
    """Return samples of effective gains, with gain 0 for devices whose exposure exceeds the cap."""
    if problem.fleet.antennas > 1:
        cap = exposure_cap if problem.all_antennas_seen else np.inf
        effective: Samples = beamforming.effective_samples(problem, samples, cap)
        return effective
    if exposure_cap == 1.0:
        return samples

    def capped(draws: Floats) -> Floats:
        return np.array([instance_of(problem, draw, exposure_cap=exposure_cap).gain for draw in draws])

    if callable(samples):
        return lambda seen: capped(np.asarray(samples(seen)))
    return capped(np.asarray(samples, dtype=np.float64))
