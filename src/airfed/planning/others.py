"""Other schemes where rounds differ: in each round everybody's θ within an equal share of every budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed import convergence
from airfed.planning.decision import Decision
from airfed.planning.fading import Sequence, thinned
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
    asked = _Asked(problem, decide)
    if fixed is None:
        if law is not None:
            there = Fleet(gain=first_draw(law, problem), peak_power=problem.fleet.peak_power)
            drawn = _Asked(replace(problem, fleet=there), decide)
            return _shared(asked, first.uplink, _best(drawn, first.uplink).rounds)
        return _best(asked, first.uplink)
    return _shared(asked, first.uplink, fixed)


class _Asked:
    """A problem as each of its rounds shows it, and who sends then; every round is asked about once."""

    def __init__(self, problem: Problem, decide: Decide) -> None:
        self.problem, self._decide = problem, decide
        self._known: dict[int, tuple[Problem, NDArray[np.intp]]] = {}

    def __call__(self, index: int) -> tuple[Problem, NDArray[np.intp]]:
        """Return the problem in round i, and K_i."""
        if index not in self._known:
            there = self.problem.at(index)
            self._known[index] = there, self._decide(there, index)[0]
        return self._known[index]


def _best(asked: _Asked, uplink: Uplink) -> Sequence:
    """The best plan of some numbers of rounds. Of long ones only some rounds are looked at before one is chosen."""
    problem = asked.problem
    most = min(len(gains_of(problem)), problem.learning.total_steps)
    values: dict[int, float] = {}
    refused = ""
    for number in np.unique(np.geomspace(1, most, _TRIES).round().astype(int)).tolist():
        try:
            values[number] = _value(asked, uplink, number)
        except InfeasibleError as error:  # too few rounds are heard, or there is no time for more
            refused = refused or str(error)
    for number in sorted(values, key=values.__getitem__):
        try:
            return _shared(asked, uplink, number)
        except InfeasibleError as error:
            refused = refused or str(error)
    raise InfeasibleError(refused)


def _value(asked: _Asked, uplink: Uplink, rounds: int) -> float:
    """The bound of I rounds, each with 1/I of every budget, from some of them."""
    learning = asked.problem.learning
    places, weights = thinned(learning, rounds)
    error = np.array([_upload(asked, uplink, place, rounds)[2] for place in places.tolist()])
    return float(convergence.round_offsets(learning, np.array([rounds]))[0]) + float(np.sum(weights * error))


def _upload(asked: _Asked, uplink: Uplink, index: int, rounds: int) -> tuple[float, float, float]:
    """θ, the symbols on the air and the error of round i with 1/I of every budget."""
    there, scheduled = asked(index)
    theta = uplink.largest(there, scheduled, rounds)
    uploads = uplink.uploads(there, there.fleet.gain[scheduled], there.fleet.peak_power[scheduled], theta, rounds)
    error = 4.0 * uploads.missing**2 + 0.5 * there.learning.dimension * uploads.noise_share**2
    return theta, uploads.channel_uses, error


def _shared(asked: _Asked, uplink: Uplink, rounds: int) -> Sequence:
    """The plan of I rounds, each with 1/I of every budget."""
    problem = asked.problem
    learning, num_devices = problem.learning, problem.fleet.num_devices
    if rounds > len(gains_of(problem)):
        raise InfeasibleError(f"No plan fits: there are gains of {len(gains_of(problem))} rounds, not of {rounds}.")
    found = np.array([_upload(asked, uplink, index, rounds) for index in range(rounds)])
    theta, symbols, error = found[:, 0], float(found[:, 1].sum()), found[:, 2]
    member = np.zeros((rounds, num_devices), dtype=np.bool_)
    for index in range(rounds):
        member[index, asked(index)[1]] = True
    if symbols > problem.symbols:
        raise InfeasibleError(
            f"No plan fits: rounds={rounds} of {uplink.name} access take "
            f"{symbols / (problem.link.bandwidth or 1.0):.4g} s on the air, and there are "
            f"{problem.budget.air_time:.4g} s (air_time)."
        )
    weights = convergence.round_weights(learning, rounds)
    offset = float(convergence.round_offsets(learning, np.array([rounds]))[0])
    return Sequence(member=member, alignment=theta, objective=offset + float(np.sum(weights * error)))
