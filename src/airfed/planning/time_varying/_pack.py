"""A plan within every device's budget, made from prices.

At the right prices most devices spend a little more or less than their budget. At given θ_i, and given what one device
more is worth to round i, each device faces a knapsack of its own: in which rounds to send. It is packed by worth over
price, leaving out what does not fit. Then θ is chosen anew for these schedules (a smooth problem, its prices again
found as a market does), and last every round is solved once more within what all others leave over.
"""

from __future__ import annotations

import itertools

import numpy as np

from airfed.planning._equal import Floats
from airfed.planning.time_varying._branch import Attempt
from airfed.planning.time_varying._cells import Bools, cheapest
from airfed.planning.time_varying._many import Market

_SCALES = (1.0, 0.97, 0.85)  # of θ², to begin with
_REPEATS = 2
_FACTORS = (0.9, 1.1, 0.75, 1.3)  # of one θ²
_SEARCHES, _EACH = 400, 16  # changes tried: in all, and per round
_FILLS = 60
_SLACK = 1e-12


def packed(market: Market, rounds: int, price: Floats, square: Floats, member: Bools) -> Attempt:
    """The best of a few plans for I rounds.

    Args:
        market: the instance.
        rounds: I.
        price, square, member: what the market has settled at.
    """
    packer = _Packer(market, rounds, price * float(market.steep[rounds - 1]))
    plans = []
    for scale in _SCALES:
        now, who = square * scale, member
        for _ in range(_REPEATS):
            who = packer.pack(now, who)
            who, theta = packer.sweep(who, packer.fill(who))
            plans.append((packer.value(who, theta), theta, who))
            now = (theta + square * scale) / 2
    value, theta, who = packer.search(*min(plans, key=lambda plan: plan[0]))
    return Attempt(value=value, square=theta, size=np.count_nonzero(who, axis=1), member=who)


class _Packer:
    """I rounds, in units of the weight of the last one, at the prices of the last one."""

    def __init__(self, market: Market, rounds: int, price: Floats) -> None:
        self.instance, self.budgets, self.price, self.rounds = market.instance, market.budgets, price, rounds
        self.load, self.limit = market.load[:rounds], np.minimum(market.limit[:rounds], market.instance.cap**2)
        self.steep = np.exp(market.instance.slopes(rounds))
        self.amounts = market.budgets.amounts * (1 - _SLACK)

    def errors(self, size: Floats, square: Floats) -> Floats:
        """φ_i: the errors of leaving devices out and of the noise."""
        missing = 4.0 * np.square(1.0 - size / self.instance.num_devices)
        with np.errstate(divide="ignore", over="ignore"):
            return np.asarray(missing + self.instance.noise_weight / (np.square(size, dtype=np.float64) * square))

    def value(self, member: Bools, square: Floats) -> float:
        """Σ w_iφ_i."""
        size = np.count_nonzero(member, axis=1)
        return float(self.instance.weight * np.sum(self.errors(size, square) / self.steep))

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
        _, charge, hidden = self.budgets.split(self.amounts, otherwise=np.inf)
        charge, hidden = charge.copy(), hidden.copy()
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
            _, found, who = cheapest(
                cost, limit[None], cap=self.instance.cap, noise_weight=self.instance.noise_weight, rtol=1e-6
            )
            if not who.any():
                continue
            found = np.minimum(found, total / np.sum(self.load[place], where=who[0]))
            size = np.array([np.count_nonzero(who), np.count_nonzero(member[place])])
            now, before = self.errors(size, np.array([found[0], square[place]])).tolist()
            if now < before:
                spent += self.budgets.used(who, found, self.load[row]) - own
                member[place], square[place] = who[0], found[0]
        return member, square
