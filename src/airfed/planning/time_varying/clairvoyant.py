"""The optimum when the gains of all rounds are known, and a value that no plan can be below."""

from __future__ import annotations

import math

import numpy as np

from airfed.planning._equal import Floats, Integers
from airfed.planning.time_varying._branch import Attempt, Rounds, attempt, close
from airfed.planning.time_varying._cells import Bools
from airfed.planning.time_varying._many import Market
from airfed.planning.time_varying._pack import packed
from airfed.planning.time_varying._price import PriceSearch
from airfed.planning.time_varying._round import Ordered, Unordered
from airfed.planning.time_varying.instance import Instance
from airfed.planning.time_varying.myopic import myopic
from airfed.planning.time_varying.solution import Solution

_RTOL = 1e-3  # a gap worth closing
_NODES = 400
_WORK = 1 << 28  # pairs of round and device looked at to close it
_LOOKS = 20  # that one node takes, or so
_TRIES = 10  # numbers of rounds for which a plan is made
_FIRST, _NEXT = (
    80,
    25,
)  # looks at prices of many budgets for the first of them or one that is still in doubt, and for others
LONG = 512  # rounds, beyond which prices of many budgets take too long to turn into a plan
_CLOSE = 1e-3  # by how much the bound of one more I must be lower to be worth that


def clairvoyant(instance: Instance, *, rounds: int | None = None, rtol: float = _RTOL) -> Solution:
    """Return the best plan over all schedules, alignment factors and numbers of rounds, with its certificate.

        min over I, K_i ≠ ∅, θ_i of offset_I + Σ_{i<I} w_i [4(1 − |K_i|/N)² + C/(|K_i|²θ_i²)]

    within peak power, privacy per round, total power, and the devices' own budgets where there are any. The
    `lower_bound` is the Lagrangian dual's best value: no plan can be below it. Where the total power is the only budget
    that ties rounds together, a gap beyond `rtol` is closed by branch and bound, within a limited effort. Where devices
    have budgets of their own, plans of more than 512 rounds spend equal shares of what is left.

    Args:
        instance: the gains and the limits.
        rounds: I, where it is fixed; None: every I from 1 to `instance.most_rounds`.
        rtol: the gap at which to stop.

    Raises:
        InfeasibleError: in the first round, or in one of the `rounds`, nobody can be heard.
        ValueError: rounds is out of range.

    Deviations: [Yan23] knows one channel for the whole training, one schedule and one θ.
    """
    instance.require_heard(1 if rounds is None else rounds)
    scaled, unit = instance.scaled()
    if not instance.one_price:
        found, lower = _many_prices(scaled, rounds)
    else:
        found, lower = _one_price(scaled, rounds, rtol)
    member = strongest(instance.gain[: found.size.size], found.size) if found.member is None else found.member
    return Solution.within(instance, member, np.sqrt(found.square) * unit, lower_bound=lower)


def solver_of(instance: Instance) -> Rounds:
    """What solves the instance's rounds at one price per watt."""
    gain = instance.gain[: instance.most_rounds]
    if instance.equal_peak_power:
        return Ordered(gain, float(instance.peak_power[0]), cap=instance.cap, noise_weight=instance.noise_weight)
    return Unordered(gain, instance.peak_power, cap=instance.cap, noise_weight=instance.noise_weight)


def _one_price(instance: Instance, rounds: int | None, rtol: float) -> tuple[Attempt, float]:
    """The best plan found and the lower bound, where only the total power ties rounds together."""
    solver = solver_of(instance)
    search = PriceSearch(instance, solver, rounds=rounds)
    search.solve(only=rounds)
    offsets = instance.offsets()
    found: dict[int, Attempt] = {}
    ceiling = np.inf
    for number in np.argsort(search.best, kind="stable")[:_TRIES] + 1 if rounds is None else [rounds]:
        while search.best[number - 1] < ceiling and search.refine(int(number)):
            pass
        if search.best[number - 1] >= ceiling * (1 - rtol / 100):
            continue
        found[int(number)] = attempt(instance, solver, search, int(number))
        ceiling = min(ceiling, float(offsets[number - 1] + found[int(number)].value))
    allowed = search.best if rounds is None else search.best[rounds - 1 :]
    lower = float(np.min(allowed))
    if lower < ceiling * (1 - rtol):
        nodes = min(_NODES, _WORK // (_LOOKS * instance.most_rounds * instance.num_devices))
        lower, found = close(instance, solver, search, found, rtol=rtol, nodes=nodes, only=rounds)
    best = min(found, key=lambda number: offsets[number - 1] + found[number].value)
    return found[best], lower


def _many_prices(instance: Instance, rounds: int | None) -> tuple[Attempt, float]:
    """The best plan found and the lower bound, where devices have budgets of their own."""
    market = Market(instance, rounds or instance.most_rounds)
    allowed = slice(rounds - 1, rounds) if rounds else slice(0, market.rounds)
    plans: dict[int, Attempt] = {}
    thorough: set[int] = set()  # those I whose prices were looked for as long as it may take
    price, ceiling, settled = market.begin(), math.inf, math.inf
    market.look(np.zeros(price.size), market.rounds)  # free of charge: a first bound for every I
    if market.rounds > LONG:  # equal shares of what is left say which I need not be looked at
        shares = myopic(instance, rounds=rounds, rolling=True)
        table = shares.amplitudes
        value = shares.objective - float(market.offsets[shares.rounds - 1])
        member = np.broadcast_to(table.share > 0, (table.rounds, table.num_devices))
        plans[shares.rounds] = Attempt(value=value, square=np.square(table.level), size=table.sizes, member=member)
        ceiling = shares.objective
    near = slice(allowed.start, min(allowed.stop, LONG))
    for turn in range(_TRIES if max(plans, default=1) <= LONG else 0):
        number = int(np.argmin(market.best[near])) + near.start + 1
        if turn == 0 and plans:  # what is free of charge says little of many rounds
            number = next(iter(plans))
        enough = ceiling if number in plans else min(settled * (1 - _CLOSE), ceiling)
        if number in thorough or market.best[number - 1] >= enough:
            break
        looks = _FIRST if number in plans or not plans else _NEXT
        thorough |= {number} if looks == _FIRST else set()
        reach = int(np.flatnonzero(market.best < ceiling)[-1]) + 1 if rounds is None else rounds
        price, square, member = market.settle(number, price, looks, reach)
        plan = packed(market, number, price, square, member)
        plans[number] = min(plans.get(number, plan), plan, key=lambda each: each.value)
        ceiling = min(ceiling, float(market.offsets[number - 1]) + plans[number].value)
        settled = min(settled, float(market.best[number - 1]))
    best = min(plans, key=lambda number: market.offsets[number - 1] + plans[number].value)
    return plans[best], float(np.min(market.best[allowed]))


def strongest(gain: Floats, size: Integers) -> Bools:
    """The `size` devices of largest gain in each round; of equal ones those of lower index."""
    member = np.zeros(gain.shape, dtype=np.bool_)
    for row, number, out in zip(gain, size.tolist(), member, strict=True):
        edge = np.partition(row, row.size - number)[row.size - number]
        np.greater(row, edge, out=out)
        out[np.flatnonzero(row == edge)[: number - np.count_nonzero(out)]] = True
    return member
