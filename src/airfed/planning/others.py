"""Other schemes where rounds differ: in each round everybody's θ within an equal share of every budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed import convergence
from airfed.planning.decision import Decision
from airfed.planning.fading import Sequence
from airfed.planning.uplink import Uplink
from airfed.planning.varying import Draws, first_draw, gains_of
from airfed.problem import Fleet, InfeasibleError, Problem

Decide = Callable[[Problem, int], tuple[NDArray[np.intp], Decision]]

_TRIES: Final = 24  # numbers of rounds that are compared, evenly over their logarithm


def per_round(problem: Problem, decide: Decide, *, first: Decision, rounds: int | None, law: Draws | None) -> Sequence:
    """Return the plan of a scheme that is asked in each round who sends.

    Args:
        problem: gains of all rounds.
        decide: from the problem as round i shows it, and i, to K_i and the decision.
        first: what it decides about the first round; its uplink is that of all rounds.
        rounds: I; None: the best of some, on a draw of the law if there is one.
        law: of the gains.

    Raises:
        InfeasibleError: no number of rounds fits, or devices have batteries.
    """
    if problem.budget.device_power is not None:
        raise InfeasibleError("No plan fits: this scheme knows of no batteries (device_power).")
    fixed = rounds or first.rounds
    if fixed is None:
        fleet = problem.fleet
        seen = (
            problem
            if law is None
            else replace(problem, fleet=Fleet(gain=first_draw(law, problem), peak_power=fleet.peak_power))
        )
        fixed = _best_rounds(seen, decide, first.uplink)
    return _shared(problem, decide, first.uplink, fixed)


def _best_rounds(problem: Problem, decide: Decide, uplink: Uplink) -> int:
    most = min(len(gains_of(problem)), problem.learning.total_steps)
    values: dict[int, float] = {}
    refused = ""
    for number in np.unique(np.geomspace(1, most, _TRIES).round().astype(int)).tolist():
        try:
            values[number] = _shared(problem, decide, uplink, number).objective
        except InfeasibleError as error:  # too few rounds are heard, or there is no time for more
            refused = refused or str(error)
    if not values:
        raise InfeasibleError(refused)
    return min(values, key=values.__getitem__)


def _shared(problem: Problem, decide: Decide, uplink: Uplink, rounds: int) -> Sequence:
    """The plan of I rounds, each with 1/I of every budget."""
    learning, num_devices = problem.learning, problem.fleet.num_devices
    if rounds > len(gains_of(problem)):
        raise InfeasibleError(f"No plan fits: there are gains of {len(gains_of(problem))} rounds, not of {rounds}.")
    member, theta = np.zeros((rounds, num_devices), dtype=np.bool_), np.empty(rounds)
    error, symbols = np.empty(rounds), 0.0
    for index in range(rounds):
        there = problem.at(index)
        scheduled, _ = decide(there, index)
        member[index, scheduled] = True
        theta[index] = uplink.largest(there, scheduled, rounds)
        gain, peak = there.fleet.gain[scheduled], there.fleet.peak_power[scheduled]
        uploads = uplink.uploads(there, gain, peak, float(theta[index]), rounds)
        error[index] = 4.0 * uploads.missing**2 + 0.5 * learning.dimension * uploads.noise_share**2
        symbols += uploads.channel_uses
    if symbols > problem.symbols:
        raise InfeasibleError(
            f"No plan fits: rounds={rounds} of {uplink.name} access take "
            f"{symbols / (problem.link.bandwidth or 1.0):.4g} s on the air, and there are "
            f"{problem.budget.air_time:.4g} s (air_time)."
        )
    weights = convergence.round_weights(learning, rounds)
    offset = float(convergence.round_offsets(learning, np.array([rounds]))[0])
    return Sequence(member=member, alignment=theta, objective=offset + float(np.sum(weights * error)))
