"""Each round on its own: an equal share of every budget, or of what is left of it, spent as well as that round can."""

from __future__ import annotations

import numpy as np

from airfed.planning._equal import Floats
from airfed.planning.exact import best_schedule
from airfed.planning.time_varying._cells import Bools
from airfed.planning.time_varying.solution import Solution
from airfed.planning.time_varying.world import World

_COARSE = 16  # numbers of rounds that are tried first
_SLACK = 4e-12  # more than `Solution.within` leaves: it must not lower an early θ for the sake of later gains


def within(world: World, gain: Floats, total: float, charge: Floats, hidden: Floats) -> tuple[Bools, float]:
    """Return the best K and θ² of one round that may spend so much.

    Args:
        world: limits, C.
        gain: |h_k| in this round, (N,).
        total: [W] for all.
        charge: [W] for each device.
        hidden: the largest θ² of each device.

    Raises:
        InfeasibleError: nobody can be heard.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = np.where(gain > 0, hidden / np.square(gain), np.inf)  # as a power, like the others
    peak = np.minimum(np.minimum(world.peak_power, charge), shown)
    one = np.ones(1)
    choice = best_schedule(
        np.where(peak > 0, gain, 0.0),
        np.where(peak > 0, peak, 1.0),
        cap=one * world.cap,
        round_budget=one * total,
        offset=one * 0.0,
        scale=one,
        noise_weight=world.noise_weight,
    )
    member = np.zeros(gain.size, dtype=np.bool_)
    member[choice.scheduled] = True
    return member, choice.alignment**2


def myopic(world: World, *, rounds: int | None = None, draw: Floats | None = None, rolling: bool = False) -> Solution:
    """Return the plan in which each of I rounds spends 1/I of every budget.

    Args:
        world: the gains and the limits.
        rounds: I; None: the best on `draw`, by a search from coarse to fine.
        draw: the gains, (R, N), on which I is chosen where it is open; None: those of the world.
        rolling: each round gets an equal share of what is *left* of every budget: what one device, or all, did not use
            before, they may use later.

    Raises:
        InfeasibleError: nobody can be heard in one of the rounds.
    """
    if rounds is None:
        rounds = _best_rounds(world if draw is None else world.with_gain(draw), rolling=rolling)
    world.require_heard(rounds)
    none = np.full(world.num_devices, np.inf)
    total = world.total_power * (1 - _SLACK)
    charge = none if world.device_power is None else world.device_power * (1 - _SLACK)
    hidden = none if world.device_exposure is None else world.device_exposure * (1 - _SLACK)
    member, squares = np.zeros((rounds, world.num_devices), dtype=np.bool_), np.zeros(rounds)
    for index, gain in enumerate(world.gain[:rounds]):
        share = 1.0 / (rounds - index if rolling else rounds)
        member[index], squares[index] = within(world, gain, total * share, charge * share, hidden * share)
        if rolling:
            on, square = member[index], float(squares[index])
            power = np.zeros(gain.size)
            power[on] = square / np.square(gain[on])
            total, charge, hidden = total - float(power.sum()), charge - power, hidden - np.where(on, square, 0.0)
    return Solution.within(world, member, np.sqrt(squares))


def _best_rounds(world: World, *, rolling: bool) -> int:
    most = world.most_rounds
    silent = np.flatnonzero(~world.gain[:most].any(axis=1))
    most = int(silent[0]) if silent.size else most
    world.require_heard(max(most, 1))
    values: dict[int, float] = {}
    tries = np.unique(np.geomspace(1, most, _COARSE).round().astype(int))
    while True:
        for number in tries.tolist():
            values.setdefault(number, myopic(world, rounds=number, rolling=rolling).objective)
        best = min(values, key=lambda number: (values[number], number))
        known = sorted(values)
        place = known.index(best)
        below, above = known[max(place - 1, 0)], known[min(place + 1, len(known) - 1)]
        tries = np.unique([(below + best) // 2, (best + above) // 2])
        if all(number in values for number in tries.tolist()):
            return best
