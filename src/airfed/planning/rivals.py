"""The schemes of the field that airfed is compared with, each as a policy. `docs/rivals.md` has their sources.

Each returns who sends and how (`airfed.planning.uplink`); airfed chooses I, and by a response ϖ and an average, as for
its own plans, and accounts for all of them alike.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from airfed import _validate, convergence
from airfed.course import CONSTANT
from airfed.planning import limits, others, varying
from airfed.planning.completion import by_bound
from airfed.planning.decision import Decision
from airfed.planning.fading import Sequence
from airfed.planning.fading._fill import fill
from airfed.planning.response import Response
from airfed.planning.schemes import Exact, Masked, Orthogonal, Precoded, Saturated, Truncated, Wired
from airfed.planning.varying import Draws, Floats
from airfed.problem import Fleet, InfeasibleError, Problem

_NOT_PRIVATE: Final = "Not private: its ε stands for infinity."
_CUTOFFS: Final = np.geomspace(0.003, 3.0, 25)
_SLACK: Final = 1e-12
_LARGEST: Final = 1e100  # of f²: somebody cannot be heard, and no round is planned


def _all(problem: Problem) -> np.ndarray:
    return np.arange(problem.fleet.num_devices)


def noise_free(problem: Problem) -> Decision:
    """Plain FedAvg, the exact mean of updates that nobody clips: the ceiling (`schemes.Exact`)."""
    return Decision(scheduled=_all(problem), uplink=Exact(), notes=(_NOT_PRIVATE,))


def central(problem: Problem) -> Decision:
    """DP-FedAvg with a trusted server: the mean plus N(0, (2ϖ/(Nμ))²) (`schemes.Wired`)."""
    return Decision(scheduled=_all(problem), uplink=Wired())


def digital(problem: Problem, *, bits: int = 8, access: Literal["tdma", "ofdma"] = "tdma") -> Decision:
    """Orthogonal access: each device adds N(0, (2ϖ/μ)²) and sends b bits an entry (`schemes.Orthogonal`)."""
    return Decision(scheduled=_all(problem), uplink=Orthogonal(bits=bits, access=access))


def seif(problem: Problem) -> Decision:
    """Aligned, with artificial noise for what power is left (`schemes.Masked`)."""
    return Decision(scheduled=_all(problem), uplink=Masked())


def cotaf(problem: Problem, *, clipped: bool = False) -> Decision:
    """Precoding by the largest update, not private (`schemes.Precoded`); `clipped` to ϖ it is full participation."""
    _validate.flag(clipped=clipped)
    if clipped:
        return Decision(scheduled=_all(problem))
    return Decision(scheduled=_all(problem), uplink=Precoded(), notes=(_NOT_PRIVATE,))


def threshold_power(problem: Problem, *, shrink: bool = False) -> Decision:
    """a_k = min(√η, |h_k|√P_k): weak devices count less instead of holding everybody back (`schemes.Saturated`)."""
    return Decision(scheduled=_all(problem), uplink=Saturated(shrink=shrink))


def truncated(
    problem: Problem, *, cutoff: float | None = None, rounds: int | None = None, law: Draws | None = None
) -> Decision | Sequence:
    """Who has |h_k|² ≥ g·E|h|² sends √ρ₀/h_k, ρ₀ = P̄·E|h|²/E₁(g) (`schemes.Truncated`).

    Args:
        problem: gains and budgets.
        cutoff: g; the best by the bound of some between 0.003 and 3 unless given.
        rounds: I.
        law: of gains that change.
    """
    if cutoff is not None:
        _validate.positive(cutoff=cutoff)
    choices = _CUTOFFS.tolist() if cutoff is None else [float(cutoff)]
    gains = varying.gains_of(problem) if problem.varies else problem.fleet.gain
    if problem.varies and law is not None:
        gains = varying.first_draw(law, problem)
    mean = float(np.mean(np.square(gains)))
    if problem.varies:
        return _truncated_rounds(problem, choices, mean, rounds=rounds, law=law)
    candidates = np.array([rounds]) if rounds is not None else np.arange(1, problem.most_rounds + 1)
    best, found = math.inf, None
    for each in choices:
        decision = _above(problem, each, mean)
        if decision is not None:
            value = by_bound(problem, decision, np.asarray(decision.scheduled), candidates, CONSTANT, "").bound.total
            if value < best:
                best, found = value, decision
    if found is None:
        raise InfeasibleError(f"No plan fits: no |h|² reaches the cutoff, {min(choices):.4g} of the mean.")
    return found


def _above(problem: Problem, cutoff: float, mean: float) -> Decision | None:
    """Who is above the cutoff; None if nobody is."""
    heard = np.flatnonzero((np.square(problem.fleet.gain) >= cutoff * mean) & (problem.fleet.gain > 0))
    return Decision(scheduled=heard, uplink=Truncated(cutoff=cutoff, mean_square=mean)) if heard.size else None


def _truncated_rounds(
    problem: Problem, choices: list[float], mean: float, *, rounds: int | None, law: Draws | None
) -> Sequence:
    """The plan where rounds differ: g and I are the best on what is known beforehand."""

    def planned(seen: Problem, cutoff: float, number: int | None) -> Sequence:
        def decide(there: Problem, index: int) -> tuple[np.ndarray, Decision]:
            decision = _above(there, cutoff, mean)
            if decision is None:  # a round in which nobody is above: the strongest sends
                decision = Decision(
                    scheduled=[int(np.argmax(there.fleet.gain))], uplink=Truncated(cutoff=cutoff, mean_square=mean)
                )
            return np.asarray(decision.scheduled), decision

        return others.per_round(seen, decide, first=decide(seen.at(0), 0)[1], rounds=number, law=None)

    seen = problem
    if law is not None:
        gain = varying.first_draw(law, problem)
        seen = replace(problem, fleet=Fleet(gain=gain, peak_power=problem.fleet.peak_power))
    known = {each: planned(seen, each, rounds) for each in (choices if len(choices) == 1 else choices[::3])}
    cutoff = min(known, key=lambda each: known[each].objective)
    return known[cutoff] if law is None else planned(problem, cutoff, known[cutoff].rounds)


def liu_simeone(
    problem: Problem,
    *,
    variant: Literal["adaptive", "static"] = "adaptive",
    rounds: int | None = None,
    objective: Response | None = None,
    law: Draws | None = None,
) -> Decision | Sequence:
    """Everybody sends, and a budget for the whole training is spread over the rounds: θ_i² ∝ η^(−i/2) within limits.

    x_i = θ_i² minimises Σ_i η^(I−1−i)/x_i subject to Σ_i x_i ≤ (σμ/2)², x_i ≤ min_k P_k|h_k^i|²: x_i = min{c_i,
    √w_i/κ}, with κ found so that the budget is spent. Their R_dp is replaced by airfed's exact μ (Σμ_i² ≤ 2R_dp becomes
    Σμ_i² ≤ μ²), and each round may spend P_tot/I. With a law the plan is made anew in each round, for what is left,
    with E|h|² for what is to come.

    Args:
        problem: gains and budgets.
        variant: "static" spends the same in each round: full participation.
        rounds: I; None: the best.
        objective: a response, to choose I by.
        law: of gains that change.
    """
    _validate.one_of(("adaptive", "static"), variant=variant)
    if variant == "static" or problem.budget.scope == "round":
        everybody = Decision(scheduled=_all(problem), rounds=rounds)
        if not problem.varies:
            return everybody
        return varying.per_round(
            problem, lambda there, index: (_all(there), everybody), first=everybody, rounds=rounds, law=law
        )
    if problem.budget.device_power is not None:
        raise InfeasibleError("No plan fits: this scheme knows of no batteries (device_power).")
    gains = varying.gains_of(problem)
    seen = gains if law is None else varying.first_draw(law, problem)
    number = rounds or _best_rounds(problem, seen, objective)
    if number > len(gains):
        raise InfeasibleError(
            f"No plan fits: there are gains of, and time on the air for, {len(gains)} rounds, not {number} (air_time)."
        )
    square = _spread(problem, gains, number) if law is None else _online(problem, gains, law, number)
    member = np.ones((number, problem.fleet.num_devices), dtype=np.bool_)
    return Sequence.of(varying.world_of(problem), member, np.sqrt(square))


def _ceilings(problem: Problem, gains: Floats, rounds: int) -> Floats:
    """The largest θ² that peak powers, and an equal share of the total power, allow in each round."""
    square = np.square(gains)
    with np.errstate(divide="ignore"):
        total = problem.budget.total_power / (rounds * np.sum(1.0 / square, axis=1))
    return np.asarray(np.minimum(np.min(square * problem.fleet.peak_power, axis=1), total) * (1 - _SLACK))


def _budget(problem: Problem) -> float:
    """(σμ/2)²: what Σ f_i²θ_i² may be."""
    return (problem.link.noise_std * limits.allowed_mu(problem.budget) / problem.budget.sensitivity) ** 2 * (1 - _SLACK)


def _loads(problem: Problem, gains: Floats) -> Floats:
    """f_i² of each round: how much more of the most visible device is seen than θ_i², (R,)."""
    return np.asarray(np.minimum(np.square(np.max(varying.factors(problem, gains), axis=1)), _LARGEST))


def _spread(problem: Problem, gains: Floats, rounds: int) -> Floats:
    """θ_i² of all rounds, with all gains known."""
    ceilings = _ceilings(problem, gains[:rounds], rounds)
    if not np.all(ceilings > 0):
        raise InfeasibleError(
            "No plan fits: a device has gain 0 and would need infinite power to be heard (peak_power)."
        )
    loads = _loads(problem, gains[:rounds])
    weights = np.sqrt(convergence.round_weights(problem.learning, rounds) / loads)
    return np.asarray(fill(weights, loads, ceilings, _budget(problem))[0])


def _online(problem: Problem, gains: Floats, law: Draws, rounds: int) -> Floats:
    """θ_i² of all rounds, each decided with the gains so far and the mean of |h|² over draws of the rest."""
    aside = 1 - 4 * _SLACK  # more than `Sequence.of` leaves: it must not lower an early θ for the sake of later gains
    left, found = _budget(problem) * aside, np.empty(rounds)
    weights, law = convergence.round_weights(problem.learning, rounds), varying.seldom(law, problem)
    for index in range(rounds):
        expected = gains[index : index + 1]
        if index + 1 < rounds:
            draws = law(gains[: index + 1]) if callable(law) else law[:, index + 1 :]
            rest = np.sqrt(np.mean(np.square(np.asarray(draws)), axis=0))[: rounds - index - 1]
            expected = np.concatenate((expected, rest))
        ceilings = _ceilings(problem, expected, rounds) * aside
        if not ceilings[0] > 0:
            raise InfeasibleError(f"No plan fits: somebody has gain 0 in round {index + 1} (peak_power).")
        loads = _loads(problem, expected)
        pull = np.sqrt(weights[index:] / loads)
        found[index] = fill(pull, loads, np.maximum(ceilings, 1e-300), left)[0][0]
        left = max(left - float(loads[0] * found[index]), 0.0)
    return found


def _best_rounds(problem: Problem, gains: Floats, objective: Response | None) -> int:
    """The best I: of the smallest bound, or of the highest accuracy that a response expects."""
    learning, size = problem.learning, problem.fleet.num_devices
    values: dict[int, float] = {}
    every = np.arange(1, len(gains) + 1)
    for number in (every if objective is None else objective.known(every)).tolist():
        try:
            noise = problem.link.noise_std / (size * np.sqrt(_spread(problem, gains, number)))
        except InfeasibleError:
            if not values:
                raise
            break
        if objective is None:
            weights = convergence.round_weights(learning, number)
            offset = float(convergence.round_offsets(learning, np.array([number]))[0])
            values[number] = offset + float(np.sum(weights * np.square(noise))) * 0.5 * learning.dimension
        else:
            root = np.array([float(np.sqrt(np.mean(np.square(noise))))])
            expected = objective.best(rounds=np.array([number]), noise=root, share=np.ones(1), course=CONSTANT)
            values[number] = -float(expected.accuracy[0])
    if not values or not math.isfinite(best := min(values.values())):
        raise InfeasibleError("No plan fits: no number of rounds is within what was measured.")
    return min(values, key=lambda number: (values[number] != best, number))


SCHEMES: Final = (noise_free, central, digital, truncated, threshold_power, liu_simeone, seif, cotaf)
