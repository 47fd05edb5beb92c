"""Where prices leave a gap: branch and bound on the sizes of the schedules.

A watt has one price, but a round's best schedule may change at it by several devices at once, and then no price spends
the budget exactly. With few devices and few rounds that leaves a gap between the dual value and the best plan found. It
closes when sizes are bounded: for the round in doubt either |K| ≤ m or |K| > m, each with a dual value of its own.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import numpy as np

from airfed.planning._equal import Floats, Integers
from airfed.planning.time_varying._cells import Bools
from airfed.planning.time_varying._fill import Mixer, Options
from airfed.planning.time_varying._price import SAFE, PriceSearch
from airfed.planning.time_varying._round import Answers, Ordered, Unordered
from airfed.planning.time_varying.instance import Instance

_NEAR = 3  # sizes on either side of an answer that are tried as well
_FEW = 24  # devices of which every size is tried


Rounds = Ordered | Unordered


@dataclass(frozen=True, kw_only=True, eq=False)
class Bounded:
    """Rounds whose schedules have bounded sizes."""

    solver: Rounds
    least: Integers
    most: Integers

    def at(self, price: Floats) -> Answers:
        """Solve the rounds."""
        return self.solver.at(price, least=self.least[: price.size], most=self.most[: price.size])


@dataclass(frozen=True, kw_only=True, eq=False)
class Attempt:
    """A plan for I rounds.

    Args:
        value: Σ w_iφ_i.
        square: θ_i².
        size: |K_i|.
        member: who is in K_i; None where those are the strongest.
    """

    value: float
    square: Floats
    size: Integers
    member: Bools | None


def attempt(instance: Instance, solver: Rounds, search: PriceSearch, rounds: int) -> Attempt:
    """The best plan of I rounds that the schedules seen on both sides of the price can be made into."""
    low, high = search.bracket(rounds)
    near = [search.looks[place].answers for place in (low, high) if 0 <= place < len(search.looks)]
    every = np.arange(rounds)
    if isinstance(solver, Ordered):
        size = _sizes(instance.num_devices, np.array([each.size[:rounds] for each in near]))
        options = Options(size=size, load=solver.load[every, size - 1], limit=solver.limit[every, size - 1])
    else:
        near += [look.answers for place, look in enumerate(search.looks) if place not in (low, high)]
        options = Options.of(near, rounds)
    mixer = Mixer(
        options,
        instance.weight * np.exp(-instance.slopes(rounds)),
        num_devices=instance.num_devices,
        noise_weight=instance.noise_weight,
        budget=instance.total_power,
    )
    floor = float(search.best[rounds - 1] - instance.offsets()[rounds - 1])
    tries = [mixer.improve(np.full(rounds, start), floor=floor) for start in range(min(len(near), 2))]
    value, choice = min(tries, key=lambda found: found[0])
    member = None
    if not isinstance(solver, Ordered):
        member = np.array([near[option].member[place] for place, option in enumerate(choice.tolist())])
    return Attempt(value=value, square=mixer.value(choice)[1], size=options.size[choice, every], member=member)


def _sizes(num_devices: int, size: Integers) -> Integers:
    """The sizes themselves, and others: all of them where devices are few, else those near."""
    if num_devices <= _FEW:
        around = np.repeat(np.arange(1, num_devices + 1)[:, None], size.shape[1], axis=1)
    else:
        around = np.concatenate([size + step for step in range(-_NEAR, _NEAR + 1) if step])
    return np.concatenate((size, np.clip(around, 1, num_devices)))


def close(
    instance: Instance,
    solver: Rounds,
    search: PriceSearch,
    found: dict[int, Attempt],
    *,
    rtol: float,
    nodes: int,
    only: int | None,
) -> tuple[float, dict[int, Attempt]]:
    """Return a higher lower bound and better plans, until they agree to `rtol` or so many nodes were looked at.

    Args:
        instance, solver, search: as in `attempt`.
        found: the best plan of some I.
        rtol: the gap, as a share of the best plan, at which to stop.
        nodes: the most nodes.
        only: I, where it is fixed.
    """
    offsets = instance.offsets()
    found = dict(found)
    order = itertools.count()
    ones, full = np.ones(instance.most_rounds, dtype=np.intp), np.full(instance.most_rounds, instance.num_devices)
    heap = [
        (float(dual), next(order), rounds, ones, full, search)
        for rounds, dual in enumerate(search.best, start=1)
        if only in (None, rounds)
    ]
    heapq.heapify(heap)
    ceiling = min(offsets[rounds - 1] + each.value for rounds, each in found.items())
    settled = np.inf  # the lowest dual value of a node that needs no children
    for _ in range(nodes):
        if not heap or heap[0][0] >= ceiling * (1 - rtol):
            break
        dual, _, rounds, least, most, own = heapq.heappop(heap)
        while own.best[rounds - 1] < ceiling and own.refine(rounds):
            pass
        dual = max(dual, float(own.best[rounds - 1]))
        tried = attempt(instance, solver, own, rounds)
        if rounds not in found or tried.value < found[rounds].value:
            found[rounds] = tried
            ceiling = min(ceiling, float(offsets[rounds - 1] + tried.value))
        cut = _doubt(own, rounds)
        if cut is None or dual >= ceiling:
            settled = min(settled, dual)
            continue
        place, size = cut
        lower, upper = most.copy(), least.copy()
        lower[place], upper[place] = size, size + 1
        for low, high in ((least, lower), (upper, most)):
            child = own.bounded(rounds, Bounded(solver=solver, least=low, most=high))
            heapq.heappush(heap, (max(dual, float(child.best[rounds - 1])), next(order), rounds, low, high, child))
    return min(float(settled), ceiling * (1 - SAFE), heap[0][0] if heap else np.inf), found


def _doubt(search: PriceSearch, rounds: int) -> tuple[int, int] | None:
    """The round in which the schedules on both sides of the price differ most in power, and a size between them."""
    low, high = search.bracket(rounds)
    if low < 0 or high == len(search.looks):
        return None
    cheap, dear = search.looks[low].answers, search.looks[high].answers
    one, other = cheap.size[:rounds], dear.size[:rounds]
    apart = np.where(one == other, -1.0, np.abs(cheap.power[:rounds] - dear.power[:rounds]))
    place = int(np.argmax(apart))
    return (place, int(one[place] + other[place]) // 2) if apart[place] >= 0 else None
