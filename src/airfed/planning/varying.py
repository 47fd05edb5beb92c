"""Policies where rounds differ: what each decides, and with how much of the budgets.

A policy that names `law` sees the whole problem, and returns a decision for each round. Any other is asked in each
round anew, with the gains of that round; its devices get an equal share of every budget in each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed import _validate
from airfed.planning import combining, limits, reach
from airfed.planning.decision import Decision
from airfed.planning.fading import Sequence, World, causal, clairvoyant, myopic
from airfed.planning.fading._cells import Bools
from airfed.planning.fading.causal import Law
from airfed.planning.fading.clairvoyant import LONG
from airfed.planning.fading.myopic import best_rounds
from airfed.problem import Fleet, InfeasibleError, Problem

Floats = NDArray[np.float64]
Draws = Floats | Law

_CEILINGS: Final = 8  # largest amplifications that are tried
_SLACK: Final = 1e-12
_MOST_DRAWN: Final = 150_000  # rounds that a law draws in all, where it is asked again and again
_LEAST: Final = 1.0 + 1e-12  # a ceiling; 1 stands for none


def world_of(problem: Problem, gain: Floats | None = None, *, ceiling: float = 1.0) -> World:
    """Return what plans for channels that change depend on.

    Args:
        problem: gains, limits, learning constants.
        gain: other gains than the problem's, (R, N).
        ceiling: F ≥ 1: nobody may arrive more than F times stronger than θ. Who might cannot be heard, and privacy
            allows 1/F of what it would.

    Raises:
        ValueError: power is to be counted as expected.
    """
    budget, fleet = problem.budget, problem.fleet
    if budget.power == "expected":
        raise ValueError('Expected power="worst" where each round is decided on its own.')
    gains = gains_of(problem) if gain is None else gain
    silenced = gain is not None and fleet.antennas > 1  # as `_heard` has done
    if limits.amplified(problem) and ceiling > 1.0 and not silenced:
        gains = np.where(factors(problem, gains) <= ceiling, gains, 0.0)
    cap = problem.link.noise_std * limits.allowed_mu(budget) / budget.sensitivity / ceiling * (1 - _SLACK)
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
        gains: of some rounds, the problem's own from the first on or, with one antenna, others of the law.
    """
    if problem.fleet.antennas > 1 or not problem.fleet.changes:
        own = limits.amplifications(problem)
        return np.broadcast_to(own, gains.shape) if own.ndim == 1 else own[: len(gains)]
    failure = problem.link.estimation_failure * (len(gains) / len(problem.fleet.gain))
    there = Fleet(gain=gains, peak_power=problem.fleet.peak_power)
    return limits.amplifications(replace(problem, fleet=there, link=replace(problem.link, estimation_failure=failure)))


def ceiling_of(problem: Problem, law: Draws | None) -> float:
    """Return the best largest amplification to allow; 1 where the channels are known.

    Weak devices may arrive many times stronger than planned, and the strongest of all holds everybody's privacy; so
    those beyond some F are left out. A few F are compared, on a draw of the law if there is one.
    """
    if not limits.amplified(problem):
        return 1.0
    own = [combining.ceiling(problem)] if problem.seen_by_all else []
    if own and law is not None:
        return own[0]
    draw = None if law is None else first_draw(law, problem)
    gains = gains_of(problem) if draw is None else draw
    known = factors(problem, gains)[gains > 0]
    # Of gains that are not known yet: the strongest device of a round is not below their root mean square, whose f is
    # the same in each round, so that with no less than that somebody may always send.
    least = _LEAST if law is None else float(factors(problem, np.ones_like(gains)).max()) * (1 + 1e-9)
    best, found = np.inf, np.inf
    tried = np.append(np.quantile(known, np.linspace(0.05, 1.0, _CEILINGS)), own)
    for each in np.unique(np.maximum(tried, least)).tolist():
        try:
            there = world_of(problem, draw, ceiling=each)
            value = clairvoyant(there).objective if there.one_price else best_rounds(there, rolling=True)[1]
        except InfeasibleError:
            continue
        if value < best:
            best, found = value, each
    if not np.isfinite(found):
        raise InfeasibleError("No plan fits: the privacy budget leaves no signal at all to anybody (privacy).")
    return found


def optimal(problem: Problem, *, rounds: int | None, law: Draws | None) -> Sequence:
    """Return the best plan for what is known: all gains, or with a law those that have come."""
    if law is None:
        return everything_known(problem, rounds=rounds)
    law = seldom(_in_time(problem, law), problem)
    batteries = problem.budget.device_power is not None
    # equal shares of what is left are worth more of devices' own privacy, and quicker of batteries over many rounds
    if problem.budget.scope == "total" or (batteries and len(gains_of(problem)) > LONG):
        found = equal_shares(problem, rounds=rounds, law=law, rolling=True)
    else:
        ceiling = ceiling_of(problem, law)
        found = causal(world_of(problem, ceiling=ceiling), _heard(problem, law, ceiling), rounds=rounds)
    return replace(found, lower_bound=_least(problem, rounds))


def _least(problem: Problem, rounds: int | None) -> float:
    """What no plan can be below, however well channels are known and antennas combined."""
    return clairvoyant(world_of(reach.ideal(problem)), rounds=rounds).lower_bound


def everything_known(problem: Problem, *, rounds: int | None) -> Sequence:
    """Return the optimum where all gains are known, with its certificate."""
    ceiling = ceiling_of(problem, None)
    found = clairvoyant(world_of(problem, ceiling=ceiling), rounds=rounds)
    if ceiling == 1.0 and problem.fleet.antennas == 1:
        return found
    return replace(found, lower_bound=_least(problem, rounds))


def equal_shares(problem: Problem, *, rounds: int | None, law: Draws | None, rolling: bool = False) -> Sequence:
    """Return the plan in which each round spends 1/I of every budget, or of what is left of it an equal share."""
    ceiling = ceiling_of(problem, law)
    draw = None if law is None else first_draw(_heard(problem, law, ceiling), problem)
    return myopic(world_of(problem, ceiling=ceiling), rounds=rounds, draw=draw, rolling=rolling)


def mean_problem(problem: Problem, law: Draws | None) -> Problem:
    """Return the problem with one gain for each device and no batteries: the mean over the rounds, or the law."""
    gains = gains_of(problem) if law is None else _all_draws(law, problem)
    mean = gains.reshape(-1, problem.fleet.num_devices).mean(axis=0)
    return replace(
        problem,
        fleet=Fleet(gain=mean, peak_power=problem.fleet.peak_power),
        budget=replace(problem.budget, device_power=None),
    )


def per_round(
    problem: Problem,
    decide: Callable[[Problem, int], tuple[NDArray[np.intp], Decision]],
    *,
    first: Decision,
    rounds: int | None,
    law: Draws | None,
) -> Sequence:
    """Return the plan of a rule that is asked in each round.

    Args:
        problem: gains of all rounds.
        decide: from the problem as round i shows it, and i, to K_i and the decision.
        first: what the rule decides about the first round.
        rounds: I; None: what the rule says of it in the first round, or the best, on a draw of the law if there is one.
        law: of the gains.

    Raises:
        InfeasibleError: somebody who is scheduled cannot be heard.
    """
    rounds = rounds if first.rounds is None else first.rounds
    if rounds is None and law is not None:
        gains = first_draw(law, problem)
        there = replace(problem, fleet=Fleet(gain=gains, peak_power=problem.fleet.peak_power))
        rounds = _shared(there, decide, None).rounds
    return _shared(problem, decide, rounds)


def _shared(
    problem: Problem,
    decide: Callable[[Problem, int], tuple[NDArray[np.intp], Decision]],
    rounds: int | None,
) -> Sequence:
    world = world_of(problem)
    most = world.most_rounds if rounds is None else rounds
    _validate.positive_integer(rounds=most)
    if most > world.most_rounds:
        raise ValueError(f"Expected rounds={most} <= {world.most_rounds}, the rounds with gains and local steps.")
    member = np.zeros((most, world.num_devices), dtype=np.bool_)
    decided = np.full(most, np.nan)
    for index in range(most):
        try:
            scheduled, decision = decide(problem.at(index), index)
        except InfeasibleError:
            if rounds is not None or not index:
                raise
            member, decided = member[:index], decided[:index]
            break
        member[index, scheduled] = True
        if decision.alignment is not None:
            _validate.positive(alignment=decision.alignment)
            decided[index] = decision.alignment
    heard = _heard_rounds(world, member, most if rounds is not None else 1)
    each, shared = _allowed(problem, world, member[:heard])
    chosen = rounds or 1 + int(np.argmin(_values(world, member[:heard], each, shared)))
    theta = np.sqrt(np.minimum(each[:chosen], shared[:chosen] * ((1 - 4 * _SLACK) / chosen)))
    own = np.where(np.isnan(decided[:chosen]), theta, decided[:chosen])
    found = Sequence.of(world, member[:chosen], theta)
    return found if np.isnan(decided[:chosen]).all() else replace(found, alignment=own)


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


def _values(world: World, member: Bools, each: Floats, shared: Floats) -> Floats:
    """The bounds of 1, 2, … rounds, if each of them has an equal share."""
    most = len(member)
    size = np.count_nonzero(member, axis=1)
    missing, noise = 4.0 * np.square(1.0 - size / world.num_devices), world.noise_weight / np.square(size)
    weights = world.weights(most)  # of fewer rounds they are the last of these
    found = world.offsets()[:most].copy()
    for number in range(1, most + 1):
        square = np.minimum(each[:number], shared[:number] / number)
        with np.errstate(over="ignore", divide="ignore"):
            error = missing[:number] + noise[:number] / square
        own = weights[most - number :]
        found[number - 1] += np.sum(own * error, where=own > 0)
    return found


def _all_draws(law: Draws, problem: Problem) -> Floats:
    draws = np.asarray(law(np.empty((0, problem.fleet.num_devices))) if callable(law) else law)
    if draws.ndim == 4:
        draws = combining.heard_law(draws)
    return np.asarray(draws, dtype=np.float64)[:, : problem.most_rounds]


def _in_time(problem: Problem, law: Draws) -> Draws:
    """The law of the rounds that there is time for."""
    most = problem.most_rounds
    if not callable(law):
        return np.asarray(law)[:, :most]
    return lambda seen: np.asarray(law(seen))[:, : most - len(seen)]


def seldom(law: Draws, problem: Problem) -> Draws:
    """Return a law that is not asked in every one of many rounds: those in between are told what it said last.

    It draws all the rounds to come each time. So that this does not grow with their square, it draws some 150,000
    rounds at most; up to 547 rounds it is asked in each.
    """
    if not callable(law):
        return law
    stride = -(-(len(gains_of(problem)) ** 2) // (2 * _MOST_DRAWN))
    kept: list[tuple[int, Floats]] = []

    def asked(seen: Floats) -> Floats:
        if not kept or not 0 <= len(seen) - kept[-1][0] < stride:
            kept[:] = [(len(seen), np.asarray(law(seen)))]
        return kept[-1][1][:, len(seen) - kept[-1][0] :]

    return asked


def first_draw(law: Draws, problem: Problem) -> Floats:
    """Return the gains of one draw of the law, (R, N)."""
    return np.asarray(_all_draws(law, problem)[0])


def _heard(problem: Problem, law: Draws, ceiling: float) -> Draws:
    """The law of the gains, with those silenced who may be seen too strongly."""
    if problem.fleet.antennas > 1:
        heard: Draws = combining.heard_law(law, ceiling if problem.seen_by_all else np.inf)
        return heard
    if ceiling == 1.0:
        return law

    def silenced(draws: Floats) -> Floats:
        return np.array([world_of(problem, draw, ceiling=ceiling).gain for draw in draws])

    if callable(law):
        return lambda seen: silenced(np.asarray(law(seen)))
    return silenced(np.asarray(law, dtype=np.float64))
