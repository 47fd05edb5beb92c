"""Each round on its own: an equal share of every budget, or of what is left of it, spent as well as that round can."""

from __future__ import annotations

import numpy as np

from airfed.planning._equal import Floats, Integers
from airfed.planning.exact import best_schedule
from airfed.planning.time_varying._cells import Bools
from airfed.planning.time_varying.instance import Instance
from airfed.planning.time_varying.solution import Solution, thinned

_COARSE = 16  # numbers of rounds that are tried first
_SLACK = 4e-12  # more than `Solution.within` leaves: it must not lower an early θ for the sake of later gains


def within(instance: Instance, gain: Floats, total: float, charge: Floats, hidden: Floats) -> tuple[Bools, float]:
    """Return the best K and θ² of one round that may spend so much.

    Args:
        instance: limits, C.
        gain: |h_k| in this round, (N,).
        total: [W] for all.
        charge: [W] for each device.
        hidden: the largest θ² of each device.

    Raises:
        InfeasibleError: nobody can be heard.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = np.where(gain > 0, hidden / np.square(gain), np.inf)  # as a power, like the others
    peak = np.minimum(np.minimum(instance.peak_power, charge), shown)
    one = np.ones(1)
    choice = best_schedule(
        np.where(peak > 0, gain, 0.0),
        np.where(peak > 0, peak, 1.0),
        cap=one * instance.cap,
        round_budget=one * total,
        offset=one * 0.0,
        scale=one,
        noise_weight=instance.noise_weight,
    )
    member = np.zeros(gain.size, dtype=np.bool_)
    member[choice.scheduled] = True
    return member, choice.alignment**2


def myopic(
    instance: Instance, *, rounds: int | None = None, draw: Floats | None = None, rolling: bool = False
) -> Solution:
    """Return the plan in which each of I rounds spends 1/I of every budget.

    Args:
        instance: the gains and the limits.
        rounds: I; None: the best on `draw`, by a search from coarse to fine.
        draw: the gains, (R, N), on which I is chosen where it is open; None: those of the instance.
        rolling: each round gets an equal share of what is *left* of every budget: what one device, or all, did not use
            before, they may use later.

    Raises:
        InfeasibleError: nobody can be heard in one of the rounds.
    """
    if rounds is None:
        rounds = best_rounds(instance if draw is None else instance.with_gain(draw), rolling=rolling)[0]
    instance.require_heard(rounds)
    member, squares = _shares(instance, np.arange(rounds), rounds, rolling=rolling)
    return Solution.within(instance, member, np.sqrt(squares))


def _shares(instance: Instance, places: Integers, rounds: int, *, rolling: bool) -> tuple[Bools, Floats]:
    """K_i and θ_i² of some of I rounds, where each stands for as many as the others and spends as one of them."""
    none = np.full(instance.num_devices, np.inf)
    part = places.size / rounds * (1 - _SLACK)
    total = instance.total_power * part
    charge = none if instance.device_power is None else instance.device_power * part
    hidden = none if instance.device_exposure is None else instance.device_exposure * part
    member, squares = np.zeros((places.size, instance.num_devices), dtype=np.bool_), np.zeros(places.size)
    for index, gain in enumerate(instance.gain[places]):
        share = 1.0 / (places.size - index if rolling else places.size)
        member[index], squares[index] = within(instance, gain, total * share, charge * share, hidden * share)
        if rolling:
            on, square = member[index], float(squares[index])
            power = np.zeros(gain.size)
            power[on] = square / np.square(gain[on])
            total, charge, hidden = total - float(power.sum()), charge - power, hidden - np.where(on, square, 0.0)
    return member, squares


def best_rounds(instance: Instance, *, rolling: bool) -> tuple[int, float]:
    """Return the best number of rounds by a search from coarse to fine, and its objective.

    Of more than 256 rounds, 256 are looked at.
    """
    most = instance.most_rounds
    silent = np.flatnonzero(~instance.gain[:most].any(axis=1))
    most = int(silent[0]) if silent.size else most
    instance.require_heard(max(most, 1))
    offsets = instance.offsets()

    def value(rounds: int) -> float:
        places, weights = thinned(instance.learning, rounds)
        member, squares = _shares(instance, places, rounds, rolling=rolling)
        size = np.count_nonzero(member, axis=1)
        with np.errstate(over="ignore", divide="ignore"):
            error = 4.0 * np.square(1.0 - size / instance.num_devices) + instance.noise_weight / (
                np.square(size) * squares
            )
        return float(offsets[rounds - 1] + np.sum(weights * error, where=weights > 0))

    values: dict[int, float] = {}
    tries = np.unique(np.geomspace(1, most, _COARSE).round().astype(int))
    while True:
        for number in tries.tolist():
            if number not in values:
                values[number] = value(number)
        best = min(values, key=lambda number: (values[number], number))
        known = sorted(values)
        place = known.index(best)
        below, above = known[max(place - 1, 0)], known[min(place + 1, len(known) - 1)]
        tries = np.unique([(below + best) // 2, (best + above) // 2])
        if all(number in values for number in tries.tolist()):
            return best, values[best]
