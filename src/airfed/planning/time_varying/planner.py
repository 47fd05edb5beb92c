"""Plans where channels vary or devices have batteries: rounds may differ."""

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
from airfed.problem import Fleet, InfeasibleError, Problem

Samples = Floats | Sampler
"""Monte Carlo samples of the gains, (samples, rounds, N), or a conditional sampler."""
Decide = Callable[[Problem, int], NDArray[Any]]  # K_i, or a_ik of all devices as floats

_CEILINGS: Final = 8  # largest amplifications that are tried
_SLACK: Final = 1e-12
_TRIES: Final = 24  # numbers of rounds that are compared, evenly over their logarithm
_MOST_DRAWN: Final = 150_000  # rounds that a conditional sampler draws in all, where it is asked again and again
_LEAST: Final = 1.0 + 1e-12  # a ceiling; 1 stands for none


def instance_of(problem: Problem, gain: Floats | None = None, *, ceiling: float = 1.0) -> Instance:
    """Return what the planners solve."""
    budget, fleet = problem.budget, problem.fleet
    gains = gains_of(problem) if gain is None else gain
    done = gain is not None and fleet.antennas > 1  # by `_combined`
    if limits.amplified(problem) and ceiling > 1.0 and not done:
        gains = np.where(factors(problem, gains) <= ceiling, gains, 0.0)
    cap, every = limits.privacy_cap(problem) / ceiling * (1 - _SLACK), (fleet.num_devices,)
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
    """Return the gains of all rounds that there may be, (R, N)."""
    fleet = problem.fleet
    if fleet.changes:
        return fleet.gain[: problem.most_rounds]
    return np.broadcast_to(fleet.gain, (problem.most_rounds, fleet.num_devices))


def factors(problem: Problem, gains: Floats) -> Floats:
    """Return f of every round and device: how much stronger than θ a device may be seen."""
    if problem.fleet.antennas > 1 or not problem.fleet.changes:
        own = limits.amplifications(problem)
        return np.broadcast_to(own, gains.shape) if own.ndim == 1 else own[: len(gains)]
    failure = problem.link.estimation_failure * (len(gains) / len(problem.fleet.gain))
    there = Fleet(gain=gains, peak_power=problem.fleet.peak_power)
    return limits.amplifications(replace(problem, fleet=there, link=replace(problem.link, estimation_failure=failure)))


def ceiling_of(problem: Problem, samples: Samples | None) -> float:
    """Return F, beyond whose amplification devices are left out: the best of a few; 1 where the channels are known."""
    if not limits.amplified(problem):
        return 1.0
    own = [beamforming.ceiling(problem)] if problem.seen_by_all else []
    if own and samples is not None:
        return own[0]
    draw = None if samples is None else first_sample(samples, problem)
    gains = gains_of(problem) if draw is None else draw
    known = factors(problem, gains)[gains > 0]
    # Of gains that are not known yet: the strongest device of a round is not below their root mean square, whose f is
    # the same in each round, so that with no less than that somebody may always send.
    least = _LEAST if samples is None else float(factors(problem, np.ones_like(gains)).max()) * (1 + 1e-9)
    best, found = np.inf, np.inf
    tried = np.append(np.quantile(known, np.linspace(0.05, 1.0, _CEILINGS)), own)
    for each in np.unique(np.maximum(tried, least)).tolist():
        try:
            there = instance_of(problem, draw, ceiling=each)
            value = clairvoyant(there).objective if there.one_budget else best_rounds(there, rolling=True)[1]
        except InfeasibleError:
            continue
        if value < best:
            best, found = value, each
    if not np.isfinite(found):
        raise InfeasibleError("No plan fits: the privacy budget leaves no signal at all to anybody (privacy).")
    return found


def optimal(problem: Problem, *, rounds: int | None, samples: Samples | None) -> Solution:
    """Return the best plan for what is known: all gains, or with samples those that have come."""
    if samples is None:
        ceiling = ceiling_of(problem, None)
        found = clairvoyant(instance_of(problem, ceiling=ceiling), rounds=rounds)
        exact = ceiling == 1.0 and problem.fleet.antennas == 1
        return found if exact else found._replace(lower_bound=_least(problem, rounds))
    samples = seldom(_in_time(problem, samples), problem)
    # Devices have budgets of their own: equal shares of what is left are as good as dual variables for each of them.
    if problem.budget.scope == "total" or problem.budget.device_power is not None:
        found = equal_shares(problem, rounds=rounds, samples=samples, rolling=True)
    else:
        ceiling = ceiling_of(problem, samples)
        found = causal(instance_of(problem, ceiling=ceiling), _combined(problem, samples, ceiling), rounds=rounds)
    return found._replace(lower_bound=_least(problem, rounds))


def _least(problem: Problem, rounds: int | None) -> float:
    """What no plan can be below, however well channels are known and antennas combined."""
    return clairvoyant(instance_of(beamforming.ideal(problem)), rounds=rounds).lower_bound


def equal_shares(problem: Problem, *, rounds: int | None, samples: Samples | None, rolling: bool = False) -> Solution:
    """Return the plan in which each round spends 1/I of every budget, or of what is left of it an equal share."""
    ceiling = ceiling_of(problem, samples)
    draw = None if samples is None else first_sample(_combined(problem, samples, ceiling), problem)
    return myopic(instance_of(problem, ceiling=ceiling), rounds=rounds, draw=draw, rolling=rolling)


def mean_problem(problem: Problem, samples: Samples | None) -> Problem:
    """Return the problem with one gain for each device and no batteries: the mean over the rounds, or the samples."""
    gains = gains_of(problem) if samples is None else _all_samples(samples, problem)
    mean = gains.reshape(-1, problem.fleet.num_devices).mean(axis=0)
    return replace(
        problem,
        fleet=Fleet(gain=mean, peak_power=problem.fleet.peak_power),
        budget=replace(problem.budget, device_power=None),
    )


def per_round(
    problem: Problem,
    decide: Decide,
    *,
    method: Method = OVER_THE_AIR,
    rounds: int | None = None,
    samples: Samples | None = None,
) -> Solution:
    """Return the plan of a rule that is asked in each round: its devices get an equal share of every budget in each."""
    if rounds is None and samples is not None:
        there = replace(problem, fleet=Fleet(gain=first_sample(samples, problem), peak_power=problem.fleet.peak_power))
        rounds = per_round(there, decide, method=method).amplitudes.rounds
    return _shared(problem, decide, rounds) if method is OVER_THE_AIR else _by_method(problem, decide, method, rounds)


def _by_method(problem: Problem, decide: Decide, method: Method, rounds: int | None) -> Solution:
    """The best of some numbers of rounds, or the one that is fixed, of a method with amplitudes of its own."""
    if problem.budget.device_power is not None:
        raise InfeasibleError(f"No plan fits: {method.name} knows no batteries (device_power).")
    learning, available = problem.learning, len(gains_of(problem))
    asked: dict[int, tuple[Problem, Devices]] = {}  # every round is asked about once

    def one(index: int, number: int) -> tuple[Devices, Floats, float, float, float]:
        """Devices, amplitudes, noise share, shortfall and symbols of round i with 1/I of every budget."""
        if index not in asked:
            asked[index] = problem.at(index), decide(problem.at(index), index)
        there, devices = asked[index]
        amplitude = method.amplitudes(there, devices, number)
        devices, amplitude = devices[amplitude > 0], amplitude[amplitude > 0]
        gain, peak = there.fleet.gain[devices], there.fleet.peak_power[devices]
        signal = method.signal(there, gain=gain, peak_power=peak, amplitude=amplitude, rounds=number)
        symbols = method.symbols(there, devices, number)
        return devices, amplitude, signal.noise_share, signal.shortfall(there.fleet.num_devices), symbols

    def value(number: int) -> float:
        """The bound of I rounds, of long trainings from some of them."""
        places, weights = thinned(learning, number)
        noise, shortfall = np.array([one(place, number)[2:4] for place in places.tolist()]).T
        error = bounds.participation_error(shortfall) + bounds.noise_error(learning, noise)
        return float(bounds.round_offsets(learning, np.array([number]))[0]) + float(np.sum(weights * error))

    def made(number: int) -> Solution:
        if number > available:
            raise InfeasibleError(f"No plan fits: there are gains of {available} rounds, not of {number}.")
        table, noise, shortfall = np.zeros((number, problem.fleet.num_devices)), np.empty(number), np.empty(number)
        symbols = 0.0
        for index in range(number):
            devices, amplitude, noise[index], shortfall[index], uses = one(index, number)
            table[index, devices] = amplitude
            symbols += uses
        if symbols > problem.symbols:
            raise InfeasibleError(
                f"No plan fits: rounds={number} take {symbols / (problem.link.bandwidth or 1.0):.4g} s on the air "
                f"({method.name}), and there are {problem.budget.air_time:.4g} s (air_time)."
            )
        bound = bounds.convex_gap(learning, rounds=number, shortfall=shortfall, noise_share=noise)
        return Solution(Amplitudes.of_table(table), bound.total)

    if rounds is not None:
        return made(rounds)
    values: dict[int, float] = {}
    refused = ""
    for number in np.unique(np.geomspace(1, available, _TRIES).round().astype(int)).tolist():
        try:
            values[number] = value(number)
        except InfeasibleError as error:  # a device is unreachable in some round
            refused = refused or str(error)
    for number in sorted(values, key=values.__getitem__):
        try:
            return made(number)
        except InfeasibleError as error:  # or there is no time for so many rounds
            refused = refused or str(error)
    raise InfeasibleError(refused)


def _shared(problem: Problem, decide: Decide, rounds: int | None) -> Solution:
    """Over the air: K_i by the rule, θ_i the largest within 1/I of every budget, unless the rule gives amplitudes."""
    instance = instance_of(problem)
    most = instance.most_rounds if rounds is None else rounds
    _validate.positive_integer(rounds=most)
    if most > instance.most_rounds:
        raise ValueError(f"Expected rounds={most} <= {instance.most_rounds}, the rounds with gains and local steps.")
    member = np.zeros((most, instance.num_devices), dtype=np.bool_)
    given: dict[int, Floats] = {}
    for index in range(most):
        there = problem.at(index)
        try:
            row = decide(there, index)
            devices = np.flatnonzero(row) if row.dtype == np.float64 else row
            limits.require_reachable(there, devices, f" in round {index + 1}")
        except InfeasibleError:
            if rounds is not None or not index:
                raise
            member = member[:index]
            break
        if row.dtype == np.float64:
            given[index] = row
        member[index, devices] = True
    each, shared = _allowed(problem, instance, member)
    chosen = rounds or 1 + int(np.argmin(_values(instance, member, each, shared)))
    theta = np.sqrt(np.minimum(each[:chosen], shared[:chosen] * ((1 - 4 * _SLACK) / chosen)))
    found = Solution.within(instance, member[:chosen], theta)
    if not given:
        return found
    table = found.amplitudes.dense.copy()
    for index, row in given.items():
        if index < chosen:
            table[index] = row
    return Solution(Amplitudes.of_table(table), found.objective)


def _allowed(problem: Problem, instance: Instance, member: Bools) -> tuple[Floats, Floats]:
    """The largest θ_i² by the limits on one round, and by those on all of them if this round had all, (R,) each."""
    rounds = len(member)
    each, shared = np.full(rounds, instance.cap**2), np.empty(rounds)
    factor = np.ones(member.shape) if not limits.amplified(problem) else factors(problem, gains_of(problem))[:rounds]
    for index, on in enumerate(member):
        square = np.square(instance.gain[index, on])
        loudest = float(factor[index, on].max()) ** 2
        each[index] = min(each[index] / loudest, float(np.min(square * instance.peak_power[on])) * (1 - _SLACK))
        shared[index] = instance.total_power / float(np.sum(1.0 / square))
        if instance.device_power is not None:
            shared[index] = min(shared[index], float(np.min(instance.device_power[on] * square)))
        if instance.device_exposure is not None:
            shared[index] = min(shared[index], float(np.min(instance.device_exposure[on])) / loudest)
    return each, shared


def _values(instance: Instance, member: Bools, each: Floats, shared: Floats) -> Floats:
    """The bounds of 1, 2, … rounds, if each of them has an equal share."""
    most = len(member)
    size = np.count_nonzero(member, axis=1)
    weights = instance.weights(most)  # of fewer rounds they are the last of these
    found = instance.offsets()[:most].copy()
    for number in range(1, most + 1):
        square = np.minimum(each[:number], shared[:number] / number)
        own = weights[most - number :]
        found[number - 1] += np.sum(own * instance.errors(size[:number], square), where=own > 0)
    return found


def _all_samples(samples: Samples, problem: Problem) -> Floats:
    draws = np.asarray(samples(np.empty((0, problem.fleet.num_devices))) if callable(samples) else samples)
    if draws.ndim == 4:
        draws = beamforming.combined_samples(draws)
    return np.asarray(draws, dtype=np.float64)[:, : problem.most_rounds]


def _in_time(problem: Problem, samples: Samples) -> Samples:
    """The samples of the rounds that there is time for."""
    most = problem.most_rounds
    if not callable(samples):
        return np.asarray(samples)[:, :most]
    return lambda seen: np.asarray(samples(seen))[:, : most - len(seen)]


def seldom(samples: Samples, problem: Problem) -> Samples:
    """Return a sampler that draws some 150,000 rounds at most: of many, those in between get what it gave last."""
    if not callable(samples):
        return samples
    stride = -(-(len(gains_of(problem)) ** 2) // (2 * _MOST_DRAWN))
    kept: list[tuple[int, Floats]] = []

    def asked(seen: Floats) -> Floats:
        if not kept or not 0 <= len(seen) - kept[-1][0] < stride:
            kept[:] = [(len(seen), np.asarray(samples(seen)))]
        return kept[-1][1][:, len(seen) - kept[-1][0] :]

    return asked


def first_sample(samples: Samples, problem: Problem) -> Floats:
    """Return the gains of one sample, (R, N)."""
    return np.asarray(_all_samples(samples, problem)[0])


def _combined(problem: Problem, samples: Samples, ceiling: float) -> Samples:
    """The samples after combining, with the gain 0 for devices whose exposure exceeds the ceiling."""
    if problem.fleet.antennas > 1:
        combined: Samples = beamforming.combined_samples(samples, ceiling if problem.seen_by_all else np.inf)
        return combined
    if ceiling == 1.0:
        return samples

    def capped(draws: Floats) -> Floats:
        return np.array([instance_of(problem, draw, ceiling=ceiling).gain for draw in draws])

    if callable(samples):
        return lambda seen: capped(np.asarray(samples(seen)))
    return capped(np.asarray(samples, dtype=np.float64))
