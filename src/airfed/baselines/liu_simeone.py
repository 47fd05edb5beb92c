"""Adaptive power control (Liu, Simeone, "Privacy for free"): a total privacy budget is spread over the rounds."""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np

from airfed import _validate, bounds
from airfed.planning import limits
from airfed.planning.limits import Floats
from airfed.planning.surrogate import Response
from airfed.planning.time_varying import planner
from airfed.planning.time_varying.instance import Solution
from airfed.planning.time_varying.one_round import fill
from airfed.planning.time_varying.planner import Samples, factors, first_sample, gains_of, instance_of, per_round
from airfed.problem import InfeasibleError, Problem

_SLACK: Final = 1e-12
_LARGEST: Final = 1e100  # of f²: a device is unreachable, and no round is planned


def liu_simeone(
    problem: Problem,
    *,
    variant: Literal["adaptive", "static"] = "adaptive",
    rounds: int | None = None,
    objective: Response | None = None,
    samples: Samples | None = None,
) -> Solution | np.ndarray:
    """Full participation; a budget for the whole training is spread over the rounds: θ_i² ∝ η^(−i/2) within limits.

    x_i = θ_i² minimises Σ_i η^(I−1−i)/x_i subject to Σ_i x_i ≤ (σμ/2)², x_i ≤ min_k P_k|h_k^i|²: x_i = min{c_i,
    √w_i/κ}, with κ found so that the budget is spent. Their R_dp is replaced by airfed's exact μ (Σμ_i² ≤ 2R_dp becomes
    Σμ_i² ≤ μ²), and each round may spend P_tot/I. Where gains are not known beforehand the plan is made anew in each
    round, for what is left, with E|h|² for the rounds to come.
    The variant "static" spends the same in each round: full participation.
    """
    _validate.one_of(("adaptive", "static"), variant=variant)
    everybody = np.arange(problem.fleet.num_devices)
    if variant == "static" or problem.budget.scope == "round":
        if not problem.varies:
            return everybody
        return per_round(problem, lambda there, _: everybody, rounds=rounds, samples=samples)
    if problem.budget.device_power is not None:
        raise InfeasibleError("No plan fits: Liu and Simeone's power control knows no batteries (device_power).")
    gains = gains_of(problem)
    seen = gains if samples is None else first_sample(samples, problem)
    number = rounds or _best_rounds(problem, seen, objective)
    if number > len(gains):
        raise InfeasibleError(
            f"No plan fits: there are gains of, and time on the air for, {len(gains)} rounds, not {number} (air_time)."
        )
    square = _spread(problem, gains, number) if samples is None else _online(problem, gains, samples, number)
    member = np.broadcast_to(np.True_, (number, problem.fleet.num_devices))
    return Solution.within(instance_of(problem), member, np.sqrt(square))


def _ceilings(problem: Problem, gains: Floats, rounds: int) -> Floats:
    """The largest θ² that peak powers, and an equal share of the total power, allow in each round."""
    square = np.square(gains)
    with np.errstate(divide="ignore"):
        total = problem.budget.total_power / (rounds * np.sum(1.0 / square, axis=1))
    return np.asarray(np.minimum(np.min(square * problem.fleet.peak_power, axis=1), total) * (1 - _SLACK))


def _budget(problem: Problem) -> float:
    """(σμ/2)²: what Σ f_i²θ_i² may be."""
    return limits.privacy_cap(problem) ** 2 * (1 - _SLACK)


def _loads(problem: Problem, gains: Floats) -> Floats:
    """f_i² of each round: how much more of the most visible device is seen than θ_i², (R,)."""
    return np.asarray(np.minimum(np.square(np.max(factors(problem, gains), axis=1)), _LARGEST))


def _spread(problem: Problem, gains: Floats, rounds: int) -> Floats:
    """θ_i² of all rounds, with all gains known."""
    ceilings = _ceilings(problem, gains[:rounds], rounds)
    if not np.all(ceilings > 0):
        raise InfeasibleError(
            "No plan fits: a device has gain 0 and would need infinite power to be heard (peak_power)."
        )
    loads = _loads(problem, gains[:rounds])
    weights = np.sqrt(bounds.round_weights(problem.learning, rounds) / loads)
    return np.asarray(fill(weights, loads, ceilings, _budget(problem))[0])


def _online(problem: Problem, gains: Floats, samples: Samples, rounds: int) -> Floats:
    """θ_i² of all rounds, each decided with the gains so far and the mean of |h|² over samples of the rest."""
    aside = 1 - 4 * _SLACK  # more than `Solution.within` leaves: it must not lower an early θ because of later gains
    left, found = _budget(problem) * aside, np.empty(rounds)
    weights, samples = bounds.round_weights(problem.learning, rounds), planner.seldom(samples, problem)
    for index in range(rounds):
        expected = gains[index : index + 1]
        if index + 1 < rounds:
            later = samples(gains[: index + 1]) if callable(samples) else samples[:, index + 1 :]
            rest = np.sqrt(np.mean(np.square(np.asarray(later)), axis=0))[: rounds - index - 1]
            expected = np.concatenate((expected, rest))
        ceilings = _ceilings(problem, expected, rounds) * aside
        if not ceilings[0] > 0:
            raise InfeasibleError(f"No plan fits: a device has gain 0 in round {index + 1} (peak_power).")
        loads = _loads(problem, expected)
        pull = np.sqrt(weights[index:] / loads)
        found[index] = fill(pull, loads, np.maximum(ceilings, 1e-300), left)[0][0]
        left = max(left - float(loads[0] * found[index]), 0.0)
    return found


def _best_rounds(problem: Problem, gains: Floats, objective: Response | None) -> int:
    """The best I: of the smallest bound, or of the highest expected accuracy."""
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
            bound = bounds.convex_gap(learning, rounds=number, shortfall=np.zeros(number), noise_share=noise)
            values[number] = bound.total
        else:
            root = np.array([float(np.sqrt(np.mean(np.square(noise))))])
            expected = objective.best(rounds=np.array([number]), noise=root, share=np.ones(1))
            values[number] = -float(expected.accuracy[0])
    if not values or not math.isfinite(best := min(values.values())):
        raise InfeasibleError("No plan fits: no number of rounds is within the surrogate's range.")
    return min(values, key=lambda number: (values[number] != best, number))
