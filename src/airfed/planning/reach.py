"""What no combiner of several antennas can beat."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from airfed import antennas
from airfed.antennas import Complexes
from airfed.planning import optimal
from airfed.problem import Fleet, Problem

_TABLE: Final = 20_000_000  # devices times numbers of rounds that are looked at one by one
_NAMES: Final = ("cap", "round_budget", "offset", "scale")


def lower_bound(problem: Problem) -> float:
    """Return a value that no plan's `bound.total` is below, whatever the combiner, the devices, θ and I are.

    No f hears device k better than its own matched filter, s_k ≤ ‖h_k‖². Nor can f be everybody's: for m devices Σ s_k
    ≤ λ, the largest eigenvalue of Σ h_k h_kᴴ over all devices, so that Σ 1/s_k ≥ m²/λ, and the least P_k s_k is at most
    1/m of the largest eigenvalue of Σ P_k h_k h_kᴴ; where every antenna is seen, the same of h_k/‖h_k‖.

    Args:
        problem: several antennas; its combiner is not looked at.
    """
    fleet = problem.fleet
    channel, strength = fleet.channel, antennas.strengths(fleet.channel)
    channel, strength, power = channel[strength > 0], strength[strength > 0], fleet.peak_power[strength > 0]
    rounds = np.arange(1, problem.most_rounds + 1)
    known = optimal.candidates(problem, rounds)
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
    noise = problem.noise_weight
    for cap, budget, offset, scale in zip(*(known[name] for name in _NAMES), strict=True):
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
