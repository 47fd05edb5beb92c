"""Adaptive power control (Liu, Simeone, "Privacy for free"): one privacy budget allocated over the rounds."""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np

from airfed import _validate, bounds
from airfed.planning import limits
from airfed.planning.limits import Floats
from airfed.planning.surrogate import Surrogate
from airfed.planning.time_varying import planner
from airfed.planning.time_varying.instance import Solution
from airfed.planning.time_varying.one_round import water_filling
from airfed.planning.time_varying.planner import Samples, factors, first_sample, gains_of, instance_of, per_round
from airfed.problem import InfeasibleError, Problem

_SLACK: Final = 1e-12
_LARGEST: Final = 1e100  # of f², which is infinite for an unreachable device, and of the ratio of two weights


def liu_simeone(
    problem: Problem,
    *,
    variant: Literal["adaptive", "static"] = "adaptive",
    rounds: int | None = None,
    objective: Surrogate | None = None,
    samples: Samples | None = None,
) -> Solution | np.ndarray:
    """Return the plan of full participation with the total privacy budget allocated over the rounds, θ_i² ∝ η^(−i/2).

    x_i = θ_i² minimises Σ_i η^(I−1−i)/x_i subject to Σ_i x_i ≤ (σμ/2)², x_i ≤ min_k P_k|h_k^i|². Water-filling gives
    x_i = min{c_i, √w_i/κ}, with κ such that the budget is spent. The paper's R_dp is replaced by the exact μ (Σμ_i² ≤
    2R_dp becomes Σμ_i² ≤ μ²), and each round may spend P_tot/I. With `samples` the plan is causal: each round solves
    the problem for the remaining budget, with E|h|² for the later rounds. The variant "static" is the policy "full".
    """
    _validate.one_of(("adaptive", "static"), variant=variant)
    all_devices = np.arange(problem.fleet.num_devices)
    if variant == "static" or problem.budget.scope == "round":
        if not problem.time_varying:
            return all_devices
        return per_round(problem, lambda this, _: all_devices, rounds=rounds, samples=samples)
    if problem.budget.device_power is not None:
        raise InfeasibleError("No plan fits: liu_simeone does not support batteries (device_power).")
    gains = gains_of(problem)
    seen = gains if samples is None else first_sample(samples, problem)
    number = rounds or _best_rounds(problem, seen, objective)
    if number > len(gains):
        raise InfeasibleError(
            f"No plan fits: gains and air time are available for {len(gains)} rounds, not {number} (air_time)."
        )
    square = _spread(problem, gains, number) if samples is None else _causal(problem, gains, samples, number)
    mask = np.broadcast_to(np.True_, (number, problem.fleet.num_devices))
    return Solution.within(instance_of(problem), mask, np.sqrt(square))


def _round_limits(problem: Problem, gains: Floats, rounds: int) -> Floats:
    """Return the largest θ² within the peak powers and an equal share of the total power, for each round."""
    square = np.square(gains)
    with np.errstate(divide="ignore"):
        total = problem.budget.total_power / (rounds * np.sum(1.0 / square, axis=1))
    return np.asarray(np.minimum(np.min(square * problem.fleet.peak_power, axis=1), total) * (1 - _SLACK))


def _budget(problem: Problem) -> float:
    """Return (σμ/2)², the limit on Σ f_i²θ_i²."""
    return limits.privacy_cap(problem) ** 2 * (1 - _SLACK)


def _loads(problem: Problem, gains: Floats) -> Floats:
    """Return f_i² of each round, the largest over the devices, (R,)."""
    return np.asarray(np.minimum(np.square(np.max(factors(problem, gains), axis=1)), _LARGEST))


def _weights(problem: Problem, rounds: int) -> Floats:
    """Return the weights of the rounds in Theorem 1; positive, so that every round has a signal also if η = 0."""
    weights = bounds.round_weights(problem.learning, rounds)
    floored: Floats = np.maximum(weights, weights[-1] / _LARGEST)
    return floored


def _spread(problem: Problem, gains: Floats, rounds: int) -> Floats:
    """Return θ_i² of all rounds, with all gains known."""
    largest = _round_limits(problem, gains[:rounds], rounds)
    if not np.all(largest > 0):
        raise InfeasibleError("No plan fits: a device has gain 0 and would need infinite power (peak_power).")
    loads = _loads(problem, gains[:rounds])
    pull = np.sqrt(_weights(problem, rounds) / loads)
    return water_filling(pull, loads, largest, _budget(problem))


def _causal(problem: Problem, gains: Floats, samples: Samples, rounds: int) -> Floats:
    """Return θ_i² of all rounds, each from the gains so far and the mean of |h|² over samples of the rest."""
    aside = 1 - 4 * _SLACK  # above the margin of `Solution.within`, which must not lower an early θ afterwards
    left, found = _budget(problem) * aside, np.empty(rounds)
    weights, samples = _weights(problem, rounds), planner.strided(samples, problem)
    for index in range(rounds):
        expected = gains[index : index + 1]
        if index + 1 < rounds:
            later = samples(gains[: index + 1]) if callable(samples) else samples[:, index + 1 :]
            rest = np.sqrt(np.mean(np.square(np.asarray(later)), axis=0))[: rounds - index - 1]
            expected = np.concatenate((expected, rest))
        largest = _round_limits(problem, expected, rounds) * aside
        if not largest[0] > 0:
            raise InfeasibleError(f"No plan fits: a device has gain 0 in round {index + 1} (peak_power).")
        loads = _loads(problem, expected)
        pull = np.sqrt(weights[index:] / loads)
        found[index] = water_filling(pull, loads, np.maximum(largest, 1e-300), left)[0]
        left = max(left - float(loads[0] * found[index]), 0.0)
    return found


def _best_rounds(problem: Problem, gains: Floats, objective: Surrogate | None) -> int:
    """Return the I of the smallest bound, or of the highest expected accuracy."""
    learning, size = problem.learning, problem.fleet.num_devices
    values: dict[int, float] = {}
    every = np.arange(1, len(gains) + 1)
    for number in (every if objective is None else objective.covered(every)).tolist():
        try:
            noise = problem.update_noise_std / (size * np.sqrt(_spread(problem, gains, number)))
        except InfeasibleError:
            if not values:
                raise
            break
        if objective is None:
            bound = bounds.convex_gap(learning, rounds=number, shortfall=np.zeros(number), noise_share=noise)
            values[number] = bound.total
        else:
            root = np.array([float(np.sqrt(np.mean(np.square(noise))))])
            expected = objective.best(rounds=np.array([number]), noise=root, participation=np.ones(1))
            values[number] = -float(expected.accuracy[0])
    if not values or not math.isfinite(best := min(values.values())):
        raise InfeasibleError("No plan fits: no number of rounds is within the surrogate's range.")
    return min(values, key=lambda number: (values[number] != best, number))
