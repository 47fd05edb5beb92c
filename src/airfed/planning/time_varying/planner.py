"""Plans where channels vary or devices have batteries: rounds may differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed import _validate, convergence
from airfed.planning import combining, limits, reach
from airfed.planning.amplitudes import Amplitudes, Bools
from airfed.planning.method import OVER_THE_AIR, Method
from airfed.planning.time_varying.causal import Sampler, causal
from airfed.planning.time_varying.clairvoyant import clairvoyant
from airfed.planning.time_varying.myopic import myopic
from airfed.planning.time_varying.solution import Solution
from airfed.planning.time_varying.world import World
from airfed.problem import Fleet, InfeasibleError, Problem

Floats = NDArray[np.float64]
Samples = Floats | Sampler
Decide = Callable[[Problem, int], NDArray[Any]]  # K_i, or a_ik of all devices as floats

_CEILINGS: Final = 8  # largest amplifications that are tried
_SLACK: Final = 1e-12
_TRIES: Final = 24  # numbers of rounds that are compared, evenly over their logarithm
_LEAST: Final = 1.0 + 1e-12  # a ceiling; 1 stands for none


def world_of(problem: Problem, gain: Floats | None = None, *, ceiling: float = 1.0) -> World:
    """Return what plans for channels that change depend on.

    Args:
        problem: gains, limits, learning constants.
        gain: other gains than the problem's, (R, N).
        ceiling: F ≥ 1: nobody may arrive more than F times stronger than θ. Who might cannot be heard, and privacy
            allows 1/F of what it would.
    """
    budget, fleet = problem.budget, problem.fleet
    gains = gains_of(problem) if gain is None else gain
    silenced = gain is not None and fleet.antennas > 1  # as `_heard` has done
    if limits.amplified(problem) and ceiling > 1.0 and not silenced:
        gains = np.where(factors(problem, gains) <= ceiling, gains, 0.0)
    cap = limits.privacy_cap(problem) / ceiling * (1 - _SLACK)
    return World(
        gain=gains,
        peak_power=fleet.peak_power,
        noise_std=problem.link.noise_std,
        learning=problem.learning,
        cap=cap,
        total_power=budget.total_power,
        device_power=budget.device_power,
        device_exposure=cap**2 if budget.scope == "total" else None,
    )


def gains_of(problem: Problem) -> Floats:
    """Return the gains of all rounds that there may be, (R, N)."""
    fleet = problem.fleet
    if fleet.changes:
        return fleet.gain[: problem.most_rounds]
    return np.broadcast_to(fleet.gain, (problem.most_rounds, fleet.num_devices))


def factors(problem: Problem, gains: Floats) -> Floats:
    """Return f of every round and device: how much stronger than θ a device may be seen.

    Args:
        problem: how well channels are known, and who sees what. What may fail is shared by all of its rounds.
        gains: of some rounds, the problem's own from the first on or, with one antenna, samples.
    """
    if problem.fleet.antennas > 1 or not problem.fleet.changes:
        own = limits.amplifications(problem)
        return np.broadcast_to(own, gains.shape) if own.ndim == 1 else own[: len(gains)]
    failure = problem.link.estimation_failure * (len(gains) / len(problem.fleet.gain))
    there = Fleet(gain=gains, peak_power=problem.fleet.peak_power)
    return limits.amplifications(replace(problem, fleet=there, link=replace(problem.link, estimation_failure=failure)))


def ceiling_of(problem: Problem, samples: Samples | None) -> float:
    """Return the best largest amplification to allow; 1 where the channels are known.

    Weak devices may arrive many times stronger than planned, and the strongest of all holds everybody's privacy; so
    those beyond some F are left out. A few F are compared, on a sample if there is one.
    """
    if not limits.amplified(problem):
        return 1.0
    own = [combining.ceiling(problem)] if problem.seen_by_all else []
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
            there = world_of(problem, draw, ceiling=each)
            value = (clairvoyant(there) if there.one_price else myopic(there, rolling=True)).objective
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
        return everything_known(problem, rounds=rounds)
    samples = _in_time(problem, samples)
    if problem.budget.scope == "total":  # of devices' own privacy, equal shares of what is left are worth more
        found = equal_shares(problem, rounds=rounds, samples=samples, rolling=True)
    else:
        ceiling = ceiling_of(problem, samples)
        found = causal(world_of(problem, ceiling=ceiling), _heard(problem, samples, ceiling), rounds=rounds)
    return found._replace(lower_bound=_least(problem, rounds))


def _least(problem: Problem, rounds: int | None) -> float:
    """What no plan can be below, however well channels are known and antennas combined."""
    return clairvoyant(world_of(reach.ideal(problem)), rounds=rounds).lower_bound


def everything_known(problem: Problem, *, rounds: int | None) -> Solution:
    """Return the optimum where all gains are known, with its certificate."""
    ceiling = ceiling_of(problem, None)
    found = clairvoyant(world_of(problem, ceiling=ceiling), rounds=rounds)
    if ceiling == 1.0 and problem.fleet.antennas == 1:
        return found
    return found._replace(lower_bound=_least(problem, rounds))


def equal_shares(problem: Problem, *, rounds: int | None, samples: Samples | None, rolling: bool = False) -> Solution:
    """Return the plan in which each round spends 1/I of every budget, or of what is left of it an equal share."""
    ceiling = ceiling_of(problem, samples)
    draw = None if samples is None else first_sample(_heard(problem, samples, ceiling), problem)
    return myopic(world_of(problem, ceiling=ceiling), rounds=rounds, draw=draw, rolling=rolling)


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
    """Return the plan of a rule that is asked in each round: its devices get an equal share of every budget in each.

    Args:
        problem: gains of all rounds.
        decide: from the problem as round i shows it, and i, to K_i or to a_ik of all devices.
        method: how updates reach the receiver.
        rounds: I; None: the best, on a sample of the gains if there are any.
        samples: of the gains.

    Raises:
        InfeasibleError: a scheduled device is unreachable, no number of rounds fits, or another method than
            over-the-air aggregation is asked to heed batteries.
    """
    shared = _shared if method is OVER_THE_AIR else partial(_shared_by_method, method)
    if rounds is None and samples is not None:
        there = replace(problem, fleet=Fleet(gain=first_sample(samples, problem), peak_power=problem.fleet.peak_power))
        rounds = shared(there, decide, None).amplitudes.rounds
    return shared(problem, decide, rounds)


def _shared_by_method(method: Method, problem: Problem, decide: Decide, rounds: int | None) -> Solution:
    """The best of some numbers of rounds, or the one that is fixed, of a method with amplitudes of its own."""
    if problem.budget.device_power is not None:
        raise InfeasibleError(f"No plan fits: {method.name} knows no batteries (device_power).")
    if rounds is not None:
        return _by_method(method, problem, decide, rounds)
    most = len(gains_of(problem))
    found: list[Solution] = []
    refused: InfeasibleError | None = None
    for number in np.unique(np.geomspace(1, most, _TRIES).round().astype(int)).tolist():
        try:
            found.append(_by_method(method, problem, decide, number))
        except InfeasibleError as error:  # a device is unreachable in some round, or there is no time for more
            refused = refused or error
    if not found:
        assert refused is not None
        raise refused
    return min(found, key=lambda each: each.objective)


def _by_method(method: Method, problem: Problem, decide: Decide, rounds: int) -> Solution:
    """The plan of I rounds, each with 1/I of every budget."""
    num_devices, available = problem.fleet.num_devices, len(gains_of(problem))
    if rounds > available:
        raise InfeasibleError(f"No plan fits: there are gains of {available} rounds, not of {rounds}.")
    table, noise, shortfall, symbols = np.zeros((rounds, num_devices)), np.empty(rounds), np.empty(rounds), 0.0
    for index in range(rounds):
        there = problem.at(index)
        devices = decide(there, index)
        table[index, devices] = method.amplitudes(there, devices, rounds)
        on = np.flatnonzero(table[index])
        fleet = there.fleet
        signal = method.signal(
            there, gain=fleet.gain[on], peak_power=fleet.peak_power[on], amplitude=table[index, on], rounds=rounds
        )
        noise[index], shortfall[index] = signal.noise_share, signal.shortfall(num_devices)
        symbols += method.symbols(there, on, rounds)
    if symbols > problem.symbols:
        raise InfeasibleError(
            f"No plan fits: rounds={rounds} take {symbols / (problem.link.bandwidth or 1.0):.4g} s on the air "
            f"({method.name}), and there are {problem.budget.air_time:.4g} s (air_time)."
        )
    bound = convergence.convex_gap(problem.learning, rounds=rounds, shortfall=shortfall, noise_share=noise)
    return Solution(Amplitudes.of_table(table), bound.total, -np.inf)


def _shared(problem: Problem, decide: Decide, rounds: int | None) -> Solution:
    """Over the air: K_i by the rule, θ_i the largest within 1/I of every budget, unless the rule gives amplitudes."""
    world = world_of(problem)
    most = world.most_rounds if rounds is None else rounds
    _validate.positive_integer(rounds=most)
    if most > world.most_rounds:
        raise ValueError(f"Expected rounds={most} <= {world.most_rounds}, the rounds with gains and local steps.")
    member = np.zeros((most, world.num_devices), dtype=np.bool_)
    given: dict[int, Floats] = {}
    for index in range(most):
        try:
            row = decide(problem.at(index), index)
        except InfeasibleError:
            if rounds is not None or not index:
                raise
            member = member[:index]
            break
        if row.dtype == np.float64:
            given[index] = row
            row = np.flatnonzero(row)
        member[index, row] = True
    heard = _heard_rounds(world, member, most if rounds is not None else 1)
    each, shared = _allowed(problem, world, member[:heard])
    values = [_value(world, member[:number], each, shared) for number in range(1, heard + 1)] if rounds is None else []
    chosen = rounds or 1 + int(np.argmin(values))
    theta = np.sqrt(np.minimum(each[:chosen], shared[:chosen] * ((1 - 4 * _SLACK) / chosen)))
    found = Solution.within(world, member[:chosen], theta)
    if not given:
        return found
    table = found.amplitudes.dense.copy()
    for index, row in given.items():
        if index < chosen:
            table[index] = row
    return Solution(Amplitudes.of_table(table), found.objective, -np.inf)


def _heard_rounds(world: World, member: Bools, needed: int) -> int:
    """How many rounds there are before somebody who is scheduled cannot be heard."""
    deaf = (member & (world.gain[: len(member)] == 0)).any(axis=1)
    heard = int(np.argmax(deaf)) if deaf.any() else len(member)
    if heard < needed:
        device = int(np.flatnonzero(member[heard] & (world.gain[heard] == 0))[0])
        raise InfeasibleError(
            f"No plan fits: device {device} has gain 0 in round {heard + 1} and would need infinite power to be heard "
            "(peak_power)."
        )
    return heard


def _allowed(problem: Problem, world: World, member: Bools) -> tuple[Floats, Floats]:
    """The largest θ_i² by the limits on one round, and by those on all of them if this round had all, (R,) each."""
    rounds = len(member)
    each, shared = np.full(rounds, world.cap**2), np.empty(rounds)
    factor = np.ones(member.shape) if not limits.amplified(problem) else factors(problem, gains_of(problem))[:rounds]
    for index, on in enumerate(member):
        square = np.square(world.gain[index, on])
        loudest = float(factor[index, on].max()) ** 2
        each[index] = min(each[index] / loudest, float(np.min(square * world.peak_power[on])) * (1 - _SLACK))
        shared[index] = world.total_power / float(np.sum(1.0 / square))
        if world.device_power is not None:
            shared[index] = min(shared[index], float(np.min(world.device_power[on] * square)))
        if world.device_exposure is not None:
            shared[index] = min(shared[index], float(np.min(world.device_exposure[on])) / loudest)
    return each, shared


def _value(world: World, member: Bools, each: Floats, shared: Floats) -> float:
    """The bound if each of the rounds has an equal share."""
    rounds = len(member)
    square = np.minimum(each[:rounds], shared[:rounds] / rounds)
    size = np.count_nonzero(member, axis=1)
    with np.errstate(over="ignore", divide="ignore"):
        error = 4.0 * np.square(1.0 - size / world.num_devices) + world.noise_weight / (np.square(size) * square)
    weights = world.weights(rounds)
    return float(world.offsets()[rounds - 1] + np.sum(weights * error, where=weights > 0))


def _all_samples(samples: Samples, problem: Problem) -> Floats:
    draws = np.asarray(samples(np.empty((0, problem.fleet.num_devices))) if callable(samples) else samples)
    if draws.ndim == 4:
        draws = combining.heard_samples(draws)
    return np.asarray(draws, dtype=np.float64)[:, : problem.most_rounds]


def _in_time(problem: Problem, samples: Samples) -> Samples:
    """The samples of the rounds that there is time for."""
    most = problem.most_rounds
    if not callable(samples):
        return np.asarray(samples)[:, :most]
    return lambda seen: np.asarray(samples(seen))[:, : most - len(seen)]


def first_sample(samples: Samples, problem: Problem) -> Floats:
    """Return the gains of one sample, (R, N)."""
    return np.asarray(_all_samples(samples, problem)[0])


def _heard(problem: Problem, samples: Samples, ceiling: float) -> Samples:
    """The samples, with the gain 0 for devices whose exposure exceeds the ceiling."""
    if problem.fleet.antennas > 1:
        heard: Samples = combining.heard_samples(samples, ceiling if problem.seen_by_all else np.inf)
        return heard
    if ceiling == 1.0:
        return samples

    def silenced(draws: Floats) -> Floats:
        return np.array([world_of(problem, draw, ceiling=ceiling).gain for draw in draws])

    if callable(samples):
        return lambda seen: silenced(np.asarray(samples(seen)))
    return silenced(np.asarray(samples, dtype=np.float64))
