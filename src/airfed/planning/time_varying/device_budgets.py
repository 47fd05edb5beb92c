"""Equal shares of every budget (`myopic`), and dual variables of many budgets (`many_budgets`).

The budgets are the total power, each device's battery, and each device's privacy over the training. With the dual
variables ν, β_k and λ_k, x = θ² costs device k (ν + β_k)/|h_k|² + λ_k in a round. As in `clairvoyant`, prices fall by
the factor η from round to round whatever I is, so that one sequence of prices gives a dual value for every I:

    D_I = offset_I + Σ_{i<I} w_i·F_i − (ν·P_tot + Σ_k β_k·battery_k + Σ_k λ_k·exposure_k).

Dual ascent: the price of what is overspent rises, of what is left over falls, each by a power of (spent/budget). Any
prices give a valid bound; the best is kept. A plan within every budget is then made from the prices (`_Packer`): at
given θ_i each device faces a knapsack of its own, in which rounds to transmit, packed by worth over price. Then θ is
chosen anew for these schedules, and last every round is solved once more within what all others leave over.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np

from airfed.planning.exact import best_schedule
from airfed.planning.limits import Bools, Floats
from airfed.planning.limits import Devices as Integers
from airfed.planning.time_varying.instance import Instance, Solution, thinned
from airfed.planning.time_varying.one_round import cheapest

_COARSE = 16  # numbers of rounds that are tried first
_ASIDE = 4e-12  # more than `Solution.within` leaves: it must not lower an early θ for the sake of later gains
_ULP = 2.0**-52
_SAFE = 1e-12  # of everything that was added up: a lower bound ends on the safe side
_TRIES = 10  # numbers of rounds for which a plan is made
_FIRST, _NEXT = 80, 25  # steps of the ascent for the first of them or one that is still in doubt, and for others
_LONG = 512  # rounds, beyond which prices of many budgets take too long to turn into a plan
_CLOSE = 1e-3  # by how much the bound of one more I must be lower to be worth that
_POWER = 1.5
_BOLDEST = 1.5  # of ln(price), in one step
_RTOL = 1e-6  # of a round's value: what its search may leave open (on the safe side)
_FAINT = 1e-12  # a price relative to the highest, from which it can recover
_SCALES = (1.0, 0.97, 0.85)  # of θ², to begin with
_REPEATS = 2
_FACTORS = (0.9, 1.1, 0.75, 1.3)  # of one θ²
_SEARCHES, _EACH = 400, 16  # changes tried: in all, and per round
_FILLS = 60
_SLACK = 1e-12


def one_within(instance: Instance, gain: Floats, total: float, charge: Floats, hidden: Floats) -> tuple[Bools, float]:
    """Return the best K and θ² of one round of the given gains, (N,), that may spend so much."""
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
    """Return the plan in which each of I rounds spends 1/I of every budget."""
    if rounds is None:
        rounds = best_rounds(instance if draw is None else replace(instance, gain=draw), rolling=rolling)[0]
    instance.require_reachable(rounds)
    member, squares = _shares(instance, np.arange(rounds), rounds, rolling=rolling)
    return Solution.within(instance, member, np.sqrt(squares))


def _shares(instance: Instance, places: Integers, rounds: int, *, rolling: bool) -> tuple[Bools, Floats]:
    """K_i and θ_i² of some of I rounds, where each stands for as many as the others and spends as one of them."""
    none = np.full(instance.num_devices, np.inf)
    part = places.size / rounds * (1 - _ASIDE)
    total = instance.total_power * part
    charge = none if instance.device_power is None else instance.device_power * part
    hidden = none if instance.device_exposure is None else instance.device_exposure * part
    member, squares = np.zeros((places.size, instance.num_devices), dtype=np.bool_), np.zeros(places.size)
    for index, gain in enumerate(instance.gain[places]):
        share = 1.0 / (places.size - index if rolling else places.size)
        member[index], squares[index] = one_within(instance, gain, total * share, charge * share, hidden * share)
        if rolling:
            on, square = member[index], float(squares[index])
            power = np.zeros(gain.size)
            power[on] = square / np.square(gain[on])
            total, charge, hidden = total - float(power.sum()), charge - power, hidden - np.where(on, square, 0.0)
    return member, squares


def best_rounds(instance: Instance, *, rolling: bool) -> tuple[int, float]:
    """Return the best number of rounds with equal shares, by a search from coarse to fine, and its objective."""
    empty = np.flatnonzero(~instance.gain[: instance.most_rounds].any(axis=1))
    most = int(empty[0]) if empty.size else instance.most_rounds
    instance.require_reachable(max(most, 1))
    offsets = instance.offsets()

    def value(rounds: int) -> float:
        places, weights = thinned(instance.learning, rounds)
        member, squares = _shares(instance, places, rounds, rolling=rolling)
        error = instance.errors(np.count_nonzero(member, axis=1), squares)
        return float(offsets[rounds - 1] + np.sum(weights * error, where=weights > 0))

    values: dict[int, float] = {}
    tries = np.unique(np.geomspace(1, most, _COARSE).round().astype(int))
    while True:
        values |= {number: value(number) for number in tries.tolist() if number not in values}
        best = min(values, key=lambda number: (values[number], number))
        known = sorted(values)
        place = known.index(best)
        below, above = known[max(place - 1, 0)], known[min(place + 1, len(known) - 1)]
        tries = np.unique([(below + best) // 2, (best + above) // 2])
        if all(number in values for number in tries.tolist()):
            return best, values[best]


@dataclass(frozen=True, kw_only=True, eq=False)
class Attempt:
    """A plan for I rounds."""

    value: float  # Σ w_iφ_i
    square: Floats  # θ_i²
    size: Integers  # |K_i|
    member: Bools | None  # who is in K_i; None where those are the strongest


def dual_values(instance: Instance, offsets: Floats, value: Floats, paid: Floats) -> Floats:
    """D_I for I = 1..R, rounded down."""
    shrink = math.exp(-instance.decay)
    total, sums = 0.0, np.empty(value.size)
    for i, each in enumerate(value.tolist()):
        total = total * shrink + each if shrink else each
        sums[i] = total
    size = instance.weight * (sums + paid) + offsets
    with np.errstate(invalid="ignore"):
        dual = offsets + instance.weight * (sums - paid) - (_SAFE + value.size * _ULP) * size
    return np.where(np.isinf(sums), np.inf, dual)


def many_budgets(instance: Instance, rounds: int | None) -> tuple[Attempt, float]:
    """The best plan found and the lower bound, where devices have budgets of their own; I where it is fixed."""
    ascent = _Ascent(instance, rounds or instance.most_rounds)
    allowed = slice(rounds - 1, rounds) if rounds else slice(0, ascent.rounds)
    plans: dict[int, Attempt] = {}
    thorough: set[int] = set()  # those I whose prices were looked for as long as it may take
    price, ceiling, settled = ascent.begin(), math.inf, math.inf
    ascent.look(np.zeros(price.size), ascent.rounds)  # free of charge: a first bound for every I
    if ascent.rounds > _LONG:  # equal shares of what is left say which I need not be looked at
        shares = myopic(instance, rounds=rounds, rolling=True)
        table = shares.amplitudes
        value = shares.objective - float(ascent.offsets[shares.rounds - 1])
        member = np.broadcast_to(table.share > 0, (table.rounds, table.num_devices))
        plans[shares.rounds] = Attempt(value=value, square=np.square(table.level), size=table.sizes, member=member)
        ceiling = shares.objective
    near = slice(allowed.start, min(allowed.stop, _LONG))
    for turn in range(_TRIES if max(plans, default=1) <= _LONG else 0):
        number = int(np.argmin(ascent.best[near])) + near.start + 1
        if turn == 0 and plans:  # what is free of charge says little of many rounds
            number = next(iter(plans))
        enough = ceiling if number in plans else min(settled * (1 - _CLOSE), ceiling)
        if number in thorough or ascent.best[number - 1] >= enough:
            break
        steps = _FIRST if number in plans or not plans else _NEXT
        thorough |= {number} if steps == _FIRST else set()
        reach = int(np.flatnonzero(ascent.best < ceiling)[-1]) + 1 if rounds is None else rounds
        price, square, member = ascent.settle(number, price, steps, reach)
        plan = _Packer(ascent, number, price).packed(square, member)
        plans[number] = min(plans.get(number, plan), plan, key=lambda each: each.value)
        ceiling = min(ceiling, float(ascent.offsets[number - 1]) + plans[number].value)
        settled = min(settled, float(ascent.best[number - 1]))
    best = min(plans, key=lambda number: ascent.offsets[number - 1] + plans[number].value)
    return plans[best], float(np.min(ascent.best[allowed]))


class _Budgets:
    """All budgets in one vector: the total power, the batteries if any, the exposures if any."""

    def __init__(self, instance: Instance) -> None:
        self.num_devices = instance.num_devices
        self.batteries, self.exposures = instance.device_power is not None, instance.device_exposure is not None
        parts = [np.array([instance.total_power]), instance.device_power, instance.device_exposure]
        self.amounts = np.concatenate([part for part in parts if part is not None])

    def split(self, vector: Floats, otherwise: float = 0.0) -> tuple[float, Floats, Floats]:
        """What a vector says of the total, of each battery and of each exposure; `otherwise` where there is none."""
        none = np.full(self.num_devices, otherwise)
        after = 1 + self.num_devices * self.batteries
        return float(vector[0]), vector[1:after] if self.batteries else none, vector[after:] if self.exposures else none

    def cost(self, price: Floats, load: Floats) -> Floats:
        """What x costs each device: (ν + β_k)·a_k + λ_k."""
        total, battery, exposure = self.split(price)
        return np.asarray((total + battery) * load + exposure)

    def used(self, member: Bools, square: Floats, load: Floats) -> Floats:
        """What some rounds spend of each budget."""
        shown = np.where(member, square[:, None], 0.0)
        power = np.sum(shown * load, axis=0, where=member)
        parts = [np.array([power.sum()])]
        parts += [power] if self.batteries else []
        parts += [shown.sum(axis=0)] if self.exposures else []
        return np.concatenate(parts)


class _Ascent:
    """The rounds of an instance in units in which P_tot is about 1, up to the largest I to consider."""

    def __init__(self, instance: Instance, rounds: int) -> None:
        self.instance, self.rounds = instance, rounds
        gain = instance.gain[:rounds]
        with np.errstate(divide="ignore"):
            self.load = np.where(gain > 0, np.square(1.0 / gain), 0.0)  # the unreachable are kept out by `limit`
        # one round alone may not exceed a battery or an exposure: otherwise the bound would be lower
        charge = np.inf if instance.device_power is None else instance.device_power
        self.limit = np.square(gain) * np.minimum(instance.peak_power, charge)
        if instance.device_exposure is not None:
            self.limit = np.where(gain > 0, np.minimum(self.limit, instance.device_exposure), 0.0)
        self.steep = np.exp(instance.slopes(rounds))
        self.offsets = instance.offsets()[:rounds]
        self.budgets = _Budgets(instance)
        self.best = np.full(rounds, -math.inf)  # D_I

    def look(self, price: Floats, rounds: int) -> tuple[Floats, Bools]:
        """Solve the rounds 0..rounds−1 at the prices of the last of all: x and K. The best D_I are kept."""
        cost = self.budgets.cost(price, self.load[:rounds]) * self.steep[:rounds, None]
        cost[self.limit[:rounds] == 0] = np.inf
        value, square, member = cheapest(
            cost, self.limit[:rounds], cap=self.instance.cap, noise_weight=self.instance.noise_weight, rtol=_RTOL
        )
        paid = self.steep[:rounds] * float(price @ self.budgets.amounts)
        self.latest = dual_values(self.instance, self.offsets[:rounds], value, paid)
        np.maximum(self.best[:rounds], self.latest, out=self.best[:rounds])
        return square, member

    def begin(self) -> Floats:
        """Prices to begin with: what the noise would cost with full participation, shared between the budgets."""
        load = float(np.median(self.load[self.load > 0]))
        amounts = self.budgets.amounts
        worth = math.sqrt(self.instance.noise_weight * load * self.rounds / amounts[0])
        share = np.full(amounts.size, worth / (amounts.size - 1))
        share[0] = worth
        return np.asarray(share / amounts / float(self.steep[0]) ** 0.5)

    def settle(self, rounds: int, price: Floats, steps: int, reach: int) -> tuple[Floats, Floats, Bools]:
        """The prices at which D_I is largest, and x and K there; `reach`: the largest I whose bound is of interest."""
        best, amounts = -math.inf, self.budgets.amounts
        kept = (price, np.empty(0), np.empty((0, 0), dtype=np.bool_))
        for number in range(steps):
            square, member = self.look(price, max(rounds, reach))
            if self.latest[rounds - 1] > best:
                best, kept = float(self.latest[rounds - 1]), (price, square[:rounds], member[:rounds])
            spent = self.budgets.used(member[:rounds], square[:rounds], self.load[:rounds])
            power = _POWER / (1 + max(0, number - 10) / 10)
            with np.errstate(divide="ignore"):
                step = np.clip(power * np.log(spent / amounts), -_BOLDEST, _BOLDEST)
            worth = price * amounts * np.exp(step)
            price = np.asarray(np.maximum(worth, _FAINT * worth.max()) / amounts)
        return kept


class _Packer:
    """I rounds, in units of the weight of the last one, at the prices of the last one."""

    def __init__(self, ascent: _Ascent, rounds: int, price: Floats) -> None:
        self.instance, self.budgets, self.rounds = ascent.instance, ascent.budgets, rounds
        self.price = price * float(ascent.steep[rounds - 1])
        self.load, self.limit = ascent.load[:rounds], np.minimum(ascent.limit[:rounds], ascent.instance.cap**2)
        self.steep = np.exp(ascent.instance.slopes(rounds))
        self.amounts = ascent.budgets.amounts * (1 - _SLACK)

    def packed(self, square: Floats, member: Bools) -> Attempt:
        """The best of a few plans, from θ² and K at the prices."""
        plans = []
        for scale in _SCALES:
            now, who = square * scale, member
            for _ in range(_REPEATS):
                who = self.pack(now, who)
                who, theta = self.sweep(who, self.fill(who))
                plans.append((self.value(who, theta), theta, who))
                now = (theta + square * scale) / 2
        value, theta, who = self.search(*min(plans, key=lambda plan: plan[0]))
        return Attempt(value=value, square=theta, size=np.count_nonzero(who, axis=1), member=who)

    def value(self, member: Bools, square: Floats) -> float:
        """Σ w_iφ_i."""
        errors = self.instance.errors(np.count_nonzero(member, axis=1), square)
        return float(self.instance.weight * np.sum(errors / self.steep))

    def pack(self, square: Floats, member: Bools) -> Bools:
        """Each device's rounds at given θ: the most worth for the price first, if it fits into what is left."""
        num = self.instance.num_devices
        size = np.maximum(np.count_nonzero(member, axis=1), 1)
        worth = 8.0 / num * (1.0 - (size - 0.5) / num) + 2.0 * self.instance.noise_weight / (size**3.0 * square)
        total, battery, exposure = self.budgets.split(self.price)
        with np.errstate(invalid="ignore"):
            power = np.where(self.limit > 0, self.load * square[:, None], np.inf)
            own = battery * power + exposure * square[:, None]
            net = (worth / self.steep)[:, None] - total * power
        useful = (net > 0) & (self.limit >= square[:, None])
        with np.errstate(divide="ignore", invalid="ignore"):
            order = np.argsort(np.where(useful, -net / own, np.inf), axis=0, kind="stable")
        _, charge, hidden = self.budgets.split(self.amounts.copy(), otherwise=np.inf)
        chosen, device = np.zeros_like(member), np.arange(num)
        for place in order:
            needed, shown = power[place, device], square[place]
            fits = useful[place, device] & (needed <= charge) & (shown <= hidden)
            chosen[place[fits], device[fits]] = True
            charge[fits] -= needed[fits]
            hidden[fits] -= shown[fits]
        empty = np.flatnonzero(~chosen.any(axis=1))
        chosen[empty, np.argmin(np.where(self.limit > 0, self.load, np.inf)[empty], axis=1)] = True
        return chosen

    def search(self, value: float, square: Floats, member: Bools) -> tuple[float, Floats, Bools]:
        """Change one θ at a time, pack anew, and keep what is better."""
        tries = itertools.cycle(itertools.product(_FACTORS, reversed(range(self.rounds))))
        for factor, place in itertools.islice(tries, min(_SEARCHES, _EACH * self.rounds)):
            now = square.copy()
            now[place] = min(now[place] * factor, float(self.limit[place].max()))
            who = self.pack(now, member)
            spent = self.budgets.used(who, now, self.load) / self.amounts
            now = now / max(1.0, float(spent.max()))
            here = self.value(who, now)
            if here < value:
                value, square, member = here, now, who
        who, now = self.sweep(member, self.fill(member))
        here = self.value(who, now)
        return (here, now, who) if here < value else (value, square, member)

    def fill(self, member: Bools) -> Floats:
        """The best θ² found for given schedules, within every budget."""
        limit = np.min(self.limit, axis=1, where=member, initial=np.inf)
        size = np.count_nonzero(member, axis=1)
        noise = self.instance.noise_weight / np.square(size, dtype=np.float64) / self.steep
        price = np.maximum(self.price, 1e-6 * self.price.max())
        best, kept = np.inf, np.asarray(limit)
        for number in range(_FILLS):
            cost = np.sum(self.budgets.cost(price, self.load), axis=1, where=member)
            square = np.minimum(limit, np.sqrt(noise / cost))
            spent = self.budgets.used(member, square, self.load) / self.amounts
            total, battery, exposure = self.budgets.split(np.maximum(spent, 1.0), otherwise=1.0)
            over = np.broadcast_to(np.maximum(np.maximum(battery, exposure), total), member.shape)
            within = np.asarray(square / np.max(over, axis=1, where=member, initial=1.0))
            value = self.value(member, within)
            if value < best:
                best, kept = value, within
            price = price * np.clip(spent, 0.2, 5.0) ** (1.0 if number < _FILLS // 2 else 0.5)
            price = np.maximum(price, 1e-12 * price.max())
        return kept

    def sweep(self, member: Bools, square: Floats) -> tuple[Bools, Floats]:
        """Solve each round once more within what all others leave over: never worse."""
        member, square = member.copy(), square.copy()
        spent = self.budgets.used(member, square, self.load)
        for place in reversed(range(self.rounds)):
            row = slice(place, place + 1)
            own = self.budgets.used(member[row], square[row], self.load[row])
            left = np.maximum(self.amounts - (spent - own), 0.0)
            total, charge, hidden = self.budgets.split(left, otherwise=np.inf)
            with np.errstate(divide="ignore", invalid="ignore"):
                reach = np.minimum(np.minimum(charge, total) / self.load[place], hidden)
            limit = np.where(self.limit[place] > 0, np.minimum(self.limit[place], reach), 0.0)
            # no price but that of the total power, which `limit` cannot share between devices
            cost = self.price[0] * self.load[row] * self.steep[place]
            cost[limit[None] == 0] = np.inf
            noise = self.instance.noise_weight
            _, found, who = cheapest(cost, limit[None], cap=self.instance.cap, noise_weight=noise, rtol=1e-6)
            if not who.any():
                continue
            found = np.minimum(found, total / np.sum(self.load[place], where=who[0]))
            size = np.array([np.count_nonzero(who), np.count_nonzero(member[place])])
            now, before = self.instance.errors(size, np.array([found[0], square[place]])).tolist()
            if now < before:
                spent += self.budgets.used(who, found, self.load[row]) - own
                member[place], square[place] = who[0], found[0]
        return member, square
