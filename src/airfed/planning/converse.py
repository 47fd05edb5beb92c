"""What no linear method over the air can beat: the least noise within the budgets, and the accuracy that it allows.

docs/frontier.md proves that the root mean square over I rounds of the noise share s_i/D_i is at least σ/D, where

    I·D = max Σ_k A_k   subject to   A_k ≤ U_k,   Σ_k A_k²/H_k² ≤ P_tot,   with H_k² = Σ_i |h_ik|²,

and U_k is the largest Σ_i a_ik of device k within its privacy, its peak power and its battery. Water-filling solves it:
A_k = min(U_k, c·H_k²). Methods with a trusted server, digital uploads and methods without privacy are outside.
"""

from __future__ import annotations

import math

import numpy as np

from airfed import antennas
from airfed.planning import limits
from airfed.planning.method import thinned
from airfed.planning.surrogate import Surrogate
from airfed.problem import Problem


def least_noise(problem: Problem, rounds: int) -> float:
    """Return the smallest noise share of any linear method over the air within the budgets, in `rounds` rounds.

    It holds for every beamformer of norm 1: ‖h_k‖ takes the place of |fᴴh_k|. Where σ is measured, it also holds for
    methods that add noise of their own, because their privacy may count with σ. With imperfect CSI, f_k is that of the
    accounting. If the gains vary, the methods may know all of them beforehand.

    >>> from airfed.scenario import load
    >>> plan = load("examples/private.toml").plan()
    >>> bool(abs(plan.noise_share / least_noise(plan.problem, plan.rounds) - 1) < 1e-9)
    True
    """
    fleet, budget = problem.fleet, problem.budget
    gain, factor = fleet.gain, np.ones(fleet.gain.shape)
    if fleet.antennas > 1:
        gain = antennas.norms(fleet.channel)
    elif limits.amplified(problem):
        factor = limits.amplifications(problem)
    gain, inverse = (np.atleast_2d(each)[:rounds] for each in (gain, 1.0 / factor))
    alike = 1 if fleet.time_varying else rounds  # rounds of the same gains
    cap = limits.privacy_cap(problem, analog=False)
    square = alike * np.sum(np.square(gain), axis=0)
    most = alike * np.sum(np.minimum(gain * np.sqrt(fleet.peak_power), cap * inverse), axis=0)
    if budget.scope == "total":
        most = np.minimum(most, cap * np.sqrt(alike * np.sum(np.square(inverse), axis=0)))
    if budget.device_power is not None:
        most = np.minimum(most, np.sqrt(budget.device_power * square))
    most, height = most[most > 0], np.sqrt(square[most > 0])
    if not most.size:
        return math.inf
    # In units of what the strongest device reaches with all power, so that nothing leaves the range of float64.
    unit = math.sqrt(budget.total_power) * float(height.max())
    height /= height.max()
    with np.errstate(over="ignore"):
        most = np.minimum(most / unit, height)
    full, square = np.square(most / height), np.maximum(np.square(height), np.finfo(float).tiny)
    level = math.sqrt(limits.water_level(full / square, square, full, 1.0))
    with np.errstate(over="ignore"):
        return problem.link.noise_std * rounds / (unit * float(np.sum(np.minimum(most, level * square))))


def highest_accuracy(problem: Problem, surrogate: Surrogate) -> float:
    """Return the accuracy that no linear method over the air can be expected to exceed, by a surrogate.

    It is the largest over all I, ϖ, averages and participation ratios of the surrogate, at the least noise. Noise above
    the surrogate's range counts as its largest: more noise never raises the expected accuracy.
    """
    fleet, most = problem.fleet, problem.most_rounds
    every = surrogate.covered(np.arange(1, 1 + (min(most, len(fleet.gain)) if fleet.time_varying else most)))
    some = every if fleet.time_varying else thinned(every, 16 * fleet.num_devices)
    # With constant gains the noise grows with I, so that the I between two of `some` have at least that of the first.
    found = np.array([least_noise(problem, number) for number in some.tolist()])
    noise = np.minimum(found[np.searchsorted(some, every, side="right") - 1], surrogate.noise[-1])
    best = surrogate.best(rounds=every[:, None], noise=noise[:, None], participation=surrogate.participation)
    return float(best.accuracy.max())
