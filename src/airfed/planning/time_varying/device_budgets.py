"""Equal shares of every budget (`myopic`), and dual ascent for many budgets (`many_budgets`).

The budgets are the total power, and the battery and the privacy over the training of each device. With the dual
variables ν, β_k and λ_k, x = θ² costs device k (ν + β_k)/|h_k|² + λ_k in a round. Dual ascent multiplies each dual
variable by a power of (spent/budget); any multipliers give a valid bound for every I, as in `clairvoyant`.
`_PrimalRecovery` makes a feasible plan from the multipliers. At given θ_i the rounds of each device are a knapsack
problem, filled greedily by value over cost. Then θ is optimised for these schedules, and each round is solved once more
within the remaining budgets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from airfed.planning.exact import best_schedule
from airfed.planning.limits import Bools, Floats
from airfed.planning.limits import Devices as Integers
from airfed.planning.time_varying.instance import Instance, Solution
from airfed.planning.time_varying.one_round import solve_rounds

_MARGIN = 4e-12  # above the margin of `Solution.within`, which must not lower an early θ afterwards
_ULP = 2.0**-52
_SAFE = 1e-12  # relative rounding margin of a lower bound
_TRIES = 10  # numbers of rounds with a feasible plan
_FIRST, _NEXT = 80, 25  # steps of the ascent: first or repeated, and others
_LONG = 512  # rounds above which the primal recovery takes too long
_CLOSE = 1e-3  # relative improvement of the dual value that justifies another I
_POWER = 1.5
_LARGEST_STEP = 1.5  # of ln(multiplier) in one step
_RTOL = 1e-6  # relative tolerance of the value of a round, on the safe side
_SMALLEST_MULTIPLIER = 1e-12  # smallest ratio of a dual cost to the largest
_SCALES = (1.0, 0.97, 0.85)  # initial factors on θ²
_REPEATS = 2
_FILLS = 60
_SLACK = 1e-12


def best_round_within(
    instance: Instance, gain: Floats, total: float, battery: Floats, exposure: Floats
) -> tuple[Bools, float]:
    """Return the best K and θ² of one round with gains (N,), within the given budgets."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exposed = np.where(gain > 0, exposure / np.square(gain), np.inf)  # as a power limit
    peak = np.minimum(np.minimum(instance.peak_power, battery), exposed)
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
    mask = np.zeros(gain.size, dtype=np.bool_)
    mask[choice.scheduled] = True
    return mask, choice.alignment**2


def myopic(
    instance: Instance, *, rounds: int | None = None, draw: Floats | None = None, rolling: bool = False
) -> Solution:
    """Return the plan in which each of I rounds spends 1/I of every budget."""
    if rounds is None:
        rounds = best_rounds(instance if draw is None else replace(instance, gain=draw), rolling=rolling)[0]
    instance.require_reachable(rounds)
    mask, squares = _shares(instance, np.arange(rounds), rounds, rolling=rolling)
    return Solution.within(instance, mask, np.sqrt(squares))


def _shares(instance: Instance, indices: Integers, rounds: int, *, rolling: bool) -> tuple[Bools, Floats]:
    """Return K_i and θ_i² of a subset of I rounds with equal shares; each round of the subset counts for several."""
    none = np.full(instance.num_devices, np.inf)
    part = indices.size / rounds * (1 - _MARGIN)
    total = instance.total_power * part
    battery = none if instance.device_power is None else instance.device_power * part
    exposure = none if instance.device_exposure is None else instance.device_exposure * part
    mask, squares = np.zeros((indices.size, instance.num_devices), dtype=np.bool_), np.zeros(indices.size)
    for index, gain in enumerate(instance.gain[indices]):
        share = 1.0 / (indices.size - index if rolling else indices.size)
        budgets = (total * share, battery * share, exposure * share)
        mask[index], squares[index] = best_round_within(instance, gain, *budgets)
        if rolling:
            on, square = mask[index], float(squares[index])
            power = np.zeros(gain.size)
            power[on] = square / np.square(gain[on])
            total, battery, exposure = total - float(power.sum()), battery - power, exposure - np.where(on, square, 0.0)
    return mask, squares


def best_rounds(instance: Instance, *, rolling: bool) -> tuple[int, float]:
    """Return the best number of rounds with equal shares, and its objective."""

    def errors(rounds: int, indices: Integers) -> Floats:
        mask, squares = _shares(instance, indices, rounds, rolling=rolling)
        return instance.errors(np.count_nonzero(mask, axis=1), squares)

    return instance.best_rounds(errors)


@dataclass(frozen=True, kw_only=True, eq=False)
class PrimalPlan:
    """A feasible plan of I rounds."""

    value: float  # Σ w_iφ_i
    square: Floats  # θ_i²
    size: Integers  # |K_i|
    mask: Bools | None  # participation masks of K_i; None if K_i are the strongest devices


def dual_values(instance: Instance, offsets: Floats, value: Floats, budget_term: Floats) -> Floats:
    """Return D_I for I = 1..R, rounded down."""
    shrink = math.exp(-instance.decay)
    total, sums = 0.0, np.empty(value.size)
    for i, each in enumerate(value.tolist()):
        total = total * shrink + each if shrink else each
        sums[i] = total
    size = instance.weight * (sums + budget_term) + offsets
    with np.errstate(invalid="ignore"):
        dual = offsets + instance.weight * (sums - budget_term) - (_SAFE + value.size * _ULP) * size
    return np.where(np.isinf(sums), np.inf, dual)


def many_budgets(instance: Instance, rounds: int | None) -> tuple[PrimalPlan, float]:
    """Return the best plan and the lower bound, with budgets of single devices; `rounds` fixes I."""
    ascent = _DualAscent(instance, rounds or instance.most_rounds)
    allowed = slice(rounds - 1, rounds) if rounds else slice(0, ascent.rounds)
    plans: dict[int, PrimalPlan] = {}
    thorough: set[int] = set()  # numbers of rounds with the full number of ascent steps
    multiplier, ceiling, settled = ascent.initial_multipliers(), math.inf, math.inf
    ascent.evaluate(np.zeros(multiplier.size), ascent.rounds)  # zero multipliers give a first bound for every I
    if ascent.rounds > _LONG:  # equal shares of the remaining budgets exclude many I
        shares = myopic(instance, rounds=rounds, rolling=True)
        table = shares.amplitudes
        value = shares.objective - float(ascent.offsets[shares.rounds - 1])
        mask = np.broadcast_to(table.share > 0, (table.rounds, table.num_devices))
        plans[shares.rounds] = PrimalPlan(value=value, square=np.square(table.level), size=table.sizes, mask=mask)
        ceiling = shares.objective
    near = slice(allowed.start, min(allowed.stop, _LONG))
    for turn in range(_TRIES if max(plans, default=1) <= _LONG else 0):
        number = int(np.argmin(ascent.best[near])) + near.start + 1
        if turn == 0 and plans:  # zero multipliers give weak bounds for many rounds
            number = next(iter(plans))
        enough = ceiling if number in plans else min(settled * (1 - _CLOSE), ceiling)
        if number in thorough or ascent.best[number - 1] >= enough:
            break
        steps = _FIRST if number in plans or not plans else _NEXT
        thorough |= {number} if steps == _FIRST else set()
        reach = int(np.flatnonzero(ascent.best < ceiling)[-1]) + 1 if rounds is None else rounds
        multiplier, square, mask = ascent.ascend(number, multiplier, steps, reach)
        plan = _PrimalRecovery(ascent, number, multiplier).packed(square, mask)
        plans[number] = min(plans.get(number, plan), plan, key=lambda each: each.value)
        ceiling = min(ceiling, float(ascent.offsets[number - 1]) + plans[number].value)
        settled = min(settled, float(ascent.best[number - 1]))
    best = min(plans, key=lambda number: ascent.offsets[number - 1] + plans[number].value)
    return plans[best], float(np.min(ascent.best[allowed]))


class Budgets:
    """All budgets in one vector: total power, then batteries and exposures if limited."""

    def __init__(self, instance: Instance) -> None:
        self.num_devices = instance.num_devices
        self.batteries, self.exposures = instance.device_power is not None, instance.device_exposure is not None
        parts = [np.array([instance.total_power]), instance.device_power, instance.device_exposure]
        self.amounts = np.concatenate([part for part in parts if part is not None])

    def split(self, vector: Floats, otherwise: float = 0.0) -> tuple[float, Floats, Floats]:
        """Return the parts of a vector: total, batteries, exposures; `otherwise` fills missing ones."""
        none = np.full(self.num_devices, otherwise)
        after = 1 + self.num_devices * self.batteries
        return float(vector[0]), vector[1:after] if self.batteries else none, vector[after:] if self.exposures else none

    def cost(self, multiplier: Floats, load: Floats, seen: Floats | float = 1.0) -> Floats:
        """Return the cost of x for each device: (ν + β_k)·a_k + λ_k, with λ_k times f_k² = `seen`."""
        total, battery, exposure = self.split(multiplier)
        return np.asarray((total + battery) * load + exposure * seen)

    def used(self, square: Floats, load: Floats, seen: Floats | float = 1.0) -> Floats:
        """Return the amount of each budget that rounds of squared amplitudes, (R, N), spend."""
        power = np.sum(square * load, axis=0)
        parts = [np.array([power.sum()])]
        parts += [power] if self.batteries else []
        parts += [np.sum(square * seen, axis=0)] if self.exposures else []
        return np.concatenate(parts)


def _table(mask: Bools, square: Floats) -> Floats:
    """Return the squared amplitudes of aligned rounds, (R, N)."""
    return np.where(mask, square[:, None], 0.0)


class _DualAscent:
    """Dual ascent over the rounds of an instance, up to the largest I."""

    def __init__(self, instance: Instance, rounds: int) -> None:
        self.instance, self.rounds = instance, rounds
        gain = instance.gain[:rounds]
        with np.errstate(divide="ignore"):
            self.load = np.where(gain > 0, np.square(1.0 / gain), 0.0)  # unreachable devices are excluded by `limit`
        # a single round is limited by battery and exposure, which tightens the bound
        battery = np.inf if instance.device_power is None else instance.device_power
        self.limit = np.square(gain) * np.minimum(instance.peak_power, battery)
        if instance.device_exposure is not None:
            self.limit = np.where(gain > 0, np.minimum(self.limit, instance.device_exposure), 0.0)
        self.weight_ratio = np.exp(instance.log_ratios(rounds))
        self.offsets = instance.offsets()[:rounds]
        self.budgets = Budgets(instance)
        self.best = np.full(rounds, -math.inf)  # best D_I so far

    def evaluate(self, multiplier: Floats, rounds: int) -> tuple[Floats, Bools]:
        """Solve the rounds 0..rounds−1 at the multipliers of the last one; return x and K and update the best D_I."""
        cost = self.budgets.cost(multiplier, self.load[:rounds]) * self.weight_ratio[:rounds, None]
        cost[self.limit[:rounds] == 0] = np.inf
        value, square, mask = solve_rounds(
            cost, self.limit[:rounds], cap=self.instance.cap, noise_weight=self.instance.noise_weight, rtol=_RTOL
        )
        budget_term = self.weight_ratio[:rounds] * float(multiplier @ self.budgets.amounts)
        self.latest = dual_values(self.instance, self.offsets[:rounds], value, budget_term)
        np.maximum(self.best[:rounds], self.latest, out=self.best[:rounds])
        return square, mask

    def initial_multipliers(self) -> Floats:
        """Return initial multipliers from the noise with full participation, divided between the budgets."""
        load = float(np.median(self.load[self.load > 0]))
        amounts = self.budgets.amounts
        worth = math.sqrt(self.instance.noise_weight * load * self.rounds / amounts[0])
        share = np.full(amounts.size, worth / (amounts.size - 1))
        share[0] = worth
        return np.asarray(share / amounts / float(self.weight_ratio[0]) ** 0.5)

    def ascend(self, rounds: int, multiplier: Floats, steps: int, reach: int) -> tuple[Floats, Floats, Bools]:
        """Return the multipliers of the largest D_I with x and K; bounds are updated up to I = `reach`."""
        best, amounts = -math.inf, self.budgets.amounts
        kept = (multiplier, np.empty(0), np.empty((0, 0), dtype=np.bool_))
        for number in range(steps):
            square, mask = self.evaluate(multiplier, max(rounds, reach))
            if self.latest[rounds - 1] > best:
                best, kept = float(self.latest[rounds - 1]), (multiplier, square[:rounds], mask[:rounds])
            spent = self.budgets.used(_table(mask, square)[:rounds], self.load[:rounds])
            power = _POWER / (1 + max(0, number - 10) / 10)
            with np.errstate(divide="ignore"):
                step = np.clip(power * np.log(spent / amounts), -_LARGEST_STEP, _LARGEST_STEP)
            worth = multiplier * amounts * np.exp(step)
            multiplier = np.asarray(np.maximum(worth, _SMALLEST_MULTIPLIER * worth.max()) / amounts)
        return kept


class _PrimalRecovery:
    """A feasible plan of I rounds from multipliers, in units of the weight of the last round."""

    def __init__(self, ascent: _DualAscent, rounds: int, multiplier: Floats) -> None:
        self.instance, self.budgets, self.rounds = ascent.instance, ascent.budgets, rounds
        self.multiplier = multiplier * float(ascent.weight_ratio[rounds - 1])
        self.load, self.limit = ascent.load[:rounds], np.minimum(ascent.limit[:rounds], ascent.instance.cap**2)
        self.weight_ratio = np.exp(ascent.instance.log_ratios(rounds))
        self.amounts = ascent.budgets.amounts * (1 - _SLACK)

    def packed(self, square: Floats, mask: Bools) -> PrimalPlan:
        """Return the best of a few plans from θ² and K of the dual solution."""
        plans = []
        for scale in _SCALES:
            now, candidate = square * scale, mask
            for _ in range(_REPEATS):
                candidate = self.pack(now, candidate)
                candidate, theta = self.sweep(candidate, self.water_filling(candidate))
                plans.append((self.value(candidate, theta), theta, candidate))
                now = (theta + square * scale) / 2
        value, theta, candidate = min(plans, key=lambda plan: plan[0])
        return PrimalPlan(value=value, square=theta, size=np.count_nonzero(candidate, axis=1), mask=candidate)

    def value(self, mask: Bools, square: Floats) -> float:
        """Return Σ w_iφ_i."""
        errors = self.instance.errors(np.count_nonzero(mask, axis=1), square)
        return float(self.instance.weight * np.sum(errors / self.weight_ratio))

    def pack(self, square: Floats, mask: Bools) -> Bools:
        """Return the schedules at given θ: each device takes rounds by value over cost while its budgets last."""
        num = self.instance.num_devices
        size = np.maximum(np.count_nonzero(mask, axis=1), 1)
        worth = 8.0 / num * (1.0 - (size - 0.5) / num) + 2.0 * self.instance.noise_weight / (size**3.0 * square)
        total, battery, exposure = self.budgets.split(self.multiplier)
        with np.errstate(invalid="ignore"):
            power = np.where(self.limit > 0, self.load * square[:, None], np.inf)
            own = battery * power + exposure * square[:, None]
            net = (worth / self.weight_ratio)[:, None] - total * power
        useful = (net > 0) & (self.limit >= square[:, None])
        with np.errstate(divide="ignore", invalid="ignore"):
            order = np.argsort(np.where(useful, -net / own, np.inf), axis=0, kind="stable")
        _, battery_left, exposure_left = self.budgets.split(self.amounts.copy(), otherwise=np.inf)
        chosen, device = np.zeros_like(mask), np.arange(num)
        for index in order:
            needed, exposed = power[index, device], square[index]
            fits = useful[index, device] & (needed <= battery_left) & (exposed <= exposure_left)
            chosen[index[fits], device[fits]] = True
            battery_left[fits] -= needed[fits]
            exposure_left[fits] -= exposed[fits]
        empty = np.flatnonzero(~chosen.any(axis=1))
        chosen[empty, np.argmin(np.where(self.limit > 0, self.load, np.inf)[empty], axis=1)] = True
        return chosen

    def water_filling(self, mask: Bools) -> Floats:
        """Return θ² of given schedules by dual ascent, within every budget."""
        limit = np.min(self.limit, axis=1, where=mask, initial=np.inf)
        size = np.count_nonzero(mask, axis=1)
        noise = self.instance.noise_weight / np.square(size, dtype=np.float64) / self.weight_ratio
        multiplier = np.maximum(self.multiplier, 1e-6 * self.multiplier.max())
        best, kept = np.inf, np.asarray(limit)
        for number in range(_FILLS):
            cost = np.sum(self.budgets.cost(multiplier, self.load), axis=1, where=mask)
            square = np.minimum(limit, np.sqrt(noise / cost))
            spent = self.budgets.used(_table(mask, square), self.load) / self.amounts
            total, battery, exposure = self.budgets.split(np.maximum(spent, 1.0), otherwise=1.0)
            over = np.broadcast_to(np.maximum(np.maximum(battery, exposure), total), mask.shape)
            within = np.asarray(square / np.max(over, axis=1, where=mask, initial=1.0))
            value = self.value(mask, within)
            if value < best:
                best, kept = value, within
            multiplier = multiplier * np.clip(spent, 0.2, 5.0) ** (1.0 if number < _FILLS // 2 else 0.5)
            multiplier = np.maximum(multiplier, 1e-12 * multiplier.max())
        return kept

    def sweep(self, mask: Bools, square: Floats) -> tuple[Bools, Floats]:
        """Solve each round once more within the budget that the others leave; the value never increases."""
        mask, square = mask.copy(), square.copy()
        spent = self.budgets.used(_table(mask, square), self.load)
        for index in reversed(range(self.rounds)):
            row = slice(index, index + 1)
            own = self.budgets.used(_table(mask[row], square[row]), self.load[row])
            left = np.maximum(self.amounts - (spent - own), 0.0)
            total, battery_left, exposure_left = self.budgets.split(left, otherwise=np.inf)
            with np.errstate(divide="ignore", invalid="ignore"):
                reach = np.minimum(np.minimum(battery_left, total) / self.load[index], exposure_left)
            limit = np.where(self.limit[index] > 0, np.minimum(self.limit[index], reach), 0.0)
            # only the multiplier of the total power; `limit` enforces the other budgets
            cost = self.multiplier[0] * self.load[row] * self.weight_ratio[index]
            cost[limit[None] == 0] = np.inf
            noise = self.instance.noise_weight
            _, found, candidate = solve_rounds(cost, limit[None], cap=self.instance.cap, noise_weight=noise, rtol=1e-6)
            if not candidate.any():
                continue
            found = np.minimum(found, total / np.sum(self.load[index], where=candidate[0]))
            size = np.array([np.count_nonzero(candidate), np.count_nonzero(mask[index])])
            now, before = self.instance.errors(size, np.array([found[0], square[index]])).tolist()
            if now < before:
                spent += self.budgets.used(_table(candidate, found), self.load[row]) - own
                mask[index], square[index] = candidate[0], found[0]
        return mask, square
