"""Charts of a plan round by round. Pure functions: a plan in, charts out; none makes a dense table of amplitudes."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from airfed.planning import Plan, limits
from airfed.planning.plan import FEASIBILITY_RTOL
from airfed.plotting.chart import Axis, Band, Cells, Chart, Columns, Floats, Level, Line, highest, padded, thin
from airfed.text.phrases import LIMITS, count, number, span

_MOST_ROWS: Final = 60  # of the map; more devices share a row
_MOST_COLUMNS: Final = 100  # more rounds share a column
_MOST_PLACES: Final = 240  # points of a line
_MOST_BARS: Final = 120  # rounds drawn as bars; more are a line
_SHADES: Final = 5


def round_by_round(plan: Plan) -> bool:
    """Return whether a plan is drawn round by round: its rounds differ, or batteries, which add up, limit it."""
    return plan.problem.varies or not plan.constant


def pictures(plan: Plan) -> dict[str, Chart]:
    """Return the charts of a plan round by round, under the titles that a page gives them."""
    return {
        "transmit power of each device in each round": map_chart(plan),
        "θ in each round": alignment_chart(plan),
        "devices in each round": sizes_chart(plan),
        "budgets left after each round": budgets_chart(plan),
    }


def map_chart(plan: Plan) -> Chart:
    """Return the devices over the rounds, the most frequently scheduled below: mean power as a share of the peak.

    In a large fleet, or a long training, neighbours share a cell, in which inactive devices count as zero.
    """
    num_devices = plan.problem.fleet.num_devices
    tall, wide = -(-num_devices // _MOST_ROWS), -(-plan.rounds // _MOST_COLUMNS)
    shares = power_shares(plan, tall, wide)
    shared = [count(tall, "device")] * (tall > 1) + [count(wide, "round")] * (wide > 1)
    each = f", mean of {' × '.join(shared)}" if shared else ""
    return Chart(
        title="transmit power of each device in each round",
        x=_over(plan),
        y=Axis(label="devices, most often scheduled first", low=0.5, high=num_devices + 0.5, whole=True),
        parts=(
            Cells(
                corner=(0.5, 0.5),
                size=(wide, tall),
                values=shares,
                steps=shade_steps(float(np.nanmax(shares))),
                colour="lim-peak_power",
                name=f"power / peak power{each}",
                percent=True,
            ),
        ),
        notes={first + (wide + 1) / 2: _tooltip(plan, first, wide) for first in range(0, plan.rounds, wide)},
    )


def power_shares(plan: Plan, tall: int, wide: int) -> Floats:
    """Return the mean of power/peak power over `tall` devices and `wide` rounds, (rows, columns); NaN: all inactive.

    Rows are ordered by how often a device is scheduled, the most often first, then by its index. The last row and the
    last column may hold fewer.
    """
    peak = plan.problem.fleet.peak_power
    order = np.argsort(-np.count_nonzero(plan.amplitudes.share, axis=0), kind="stable")
    row = np.empty(order.size, dtype=np.intp)
    row[order] = np.arange(order.size) // tall
    rows, columns = -(-order.size // tall), -(-plan.rounds // wide)
    total, senders = np.zeros((2, rows, columns))
    for entry in plan.sequence:  # round by round: what is held does not grow with the rounds
        on, column = row[entry.scheduled], entry.index // wide
        total[:, column] += np.bincount(on, entry.power / peak[entry.scheduled], rows)
        senders[:, column] += np.bincount(on, minlength=rows)
    held = np.outer(_held(order.size, tall), _held(plan.rounds, wide))
    return np.where(senders > 0, total / held, np.nan)


def shade_steps(largest: float) -> tuple[float, ...]:
    """Return round upper ends of shades (1, 2 or 5 times a power of ten), the last one not below the largest value.

    >>> shade_steps(0.83)
    (0.05, 0.1, 0.2, 0.5, 1.0)
    """
    largest = largest or 1.0  # a method without radio
    exponent = math.floor(math.log10(largest))
    ladder = [float(f"{factor}e{e}") for e in range(exponent - _SHADES, exponent + 2) for factor in (1, 2, 5)]
    last = next(place for place, step in enumerate(ladder) if step >= largest * (1 - 1e-9))
    return tuple(ladder[last - _SHADES + 1 : last + 1])


def alignment_chart(plan: Plan) -> Chart:
    """Return θ over the rounds, with the largest that privacy and the peak powers of each round's devices allow."""
    whole = plan.problem.budget.scope == "total"
    names: dict[limits.Binding, str] = {
        "privacy": "privacy, if this were the only round" if whole else LIMITS["privacy"],
        "peak_power": "peak power of the scheduled devices",
    }
    ceilings = [
        _line(plan.ceilings[limit], f"lim-{limit}", name, dash="dash", weight=0.9) for limit, name in names.items()
    ]
    low, high = padded(np.concatenate([plan.amplitudes.level, *(line.y for line in ceilings)]), below=1.1, above=1.1)
    return Chart(
        title="θ in each round, and the limits on a single round",
        x=_over(plan),
        y=Axis(label="alignment θ", low=low, high=high, kind="log"),
        parts=(*ceilings, *_ranged(plan.amplitudes.level, "ink", "θ")),
    )


def sizes_chart(plan: Plan) -> Chart:
    """Return the number of scheduled devices in each round, and the size of the fleet."""
    sizes, name = plan.sizes.astype(np.float64), "scheduled devices"
    num_devices = plan.problem.fleet.num_devices
    bars = Columns(x=np.arange(1.0, plan.rounds + 1), y=sizes, colour="lit", name=name)
    return Chart(
        title=f"devices in each round: {span(plan.sizes)}",
        x=_over(plan),
        y=Axis(label="devices |K|", low=0.0, high=highest([float(num_devices)], room=1.15), whole=True),
        parts=(
            *((bars,) if plan.rounds <= _MOST_BARS else _ranged(sizes, "lit", name)),
            Level(at=num_devices, name="fleet"),
        ),
    )


def _line(values: Floats, colour: str, name: str, **look: Any) -> Line:
    """A value of each round as a line; in a long training the median of neighbours."""
    each = -(-values.size // _MOST_PLACES)
    starts = np.arange(0, values.size, each)
    middle = np.array([np.median(values[start : start + each]) for start in starts])
    said = name if each == 1 else f"{name} (median of {each} rounds)"
    return Line(x=starts + (1 + _held(values.size, each)) / 2, y=middle, colour=colour, name=said, **look)


def _ranged(values: Floats, colour: str, name: str) -> tuple[Band | Line, ...]:
    """The same, with the range of those neighbours as a band."""
    line = _line(values, colour, name)
    if line.x.size == values.size:
        return (line,)
    starts = np.arange(0, values.size, -(-values.size // _MOST_PLACES))
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return Band(x=line.x, low=low, high=high, colour=colour, opacity=0.2), line


def budgets_chart(plan: Plan) -> Chart:
    """Return what is left of each budget that covers the training, as shares, after every round."""
    places, left = budgets_left(plan)
    looks: dict[str, dict[str, Any]] = {
        "total_power": {"colour": "lim-total_power", "name": "total power"},
        "privacy": {"colour": "lim-privacy", "name": "privacy (Σμ²), most exposed device"},
        "privacy_median": {"colour": "lim-privacy", "name": "privacy, median device", "dash": "dot"},
        "device_power": {"colour": "lim-device_power", "name": "battery, emptiest"},
        "device_power_median": {"colour": "lim-device_power", "name": "battery, median device", "dash": "dot"},
    }
    least = min(float(values.min()) for values in left.values())
    return Chart(
        title="left of the budgets" if len(left) > 1 else "left of the total power",
        x=Axis(label="round", low=0.0, high=float(plan.rounds), whole=True),
        y=Axis(label="left", low=min(0.0, least), high=1.05, percent=True),
        parts=tuple(Line(x=places.astype(np.float64), y=values, **looks[name]) for name, values in left.items()),
    )


def budgets_left(plan: Plan, most: int = _MOST_PLACES) -> tuple[Any, dict[str, Floats]]:
    """Return at most so many numbers of rounds, 0 and I among them, and which share of each budget is left after each.

    Privacy is Σμ_i² over the rounds in which a device is scheduled; it is included only if its budget covers the
    training, and batteries only if devices have them: that of the device with the least left, and the median of the
    devices that are ever scheduled. Shares are negative only where a plan breaks the limit.
    """
    budget, num_devices = plan.problem.budget, plan.problem.fleet.num_devices
    places = thin(plan.rounds + 1, most=most)
    spent = np.concatenate([[0.0], np.cumsum(plan.sequence.powers)])[places]
    found = {"total_power": 1.0 - spent / budget.total_power}
    owned: dict[str, Any] = {}
    if budget.scope == "total":
        owned["privacy"] = np.full(num_devices, limits.allowed_mu(budget) ** 2)
    if budget.device_power is not None:
        owned["device_power"] = np.broadcast_to(budget.device_power, num_devices)
    used = {name: np.zeros(num_devices) for name in owned}
    seen: dict[str, list[tuple[float, float]]] = {name: [(1.0, 1.0)] for name in owned}
    looked = set(places.tolist())
    for entry in plan.sequence if owned else ():
        for name, total in used.items():
            total[entry.scheduled] += entry.mu**2 if name == "privacy" else entry.power
            if entry.index + 1 in looked:
                left = 1.0 - (total / owned[name])[plan.scheduled]
                seen[name].append((float(left.min()), float(np.median(left))))
    for name, values in seen.items():
        found[name], found[f"{name}_median"] = np.array(values).T
    return places, {name: _kept(values) for name, values in found.items()}


def _kept(left: Floats) -> Floats:
    """What is left, without the rounding error by which a feasible plan may exceed a limit."""
    return np.where(left > -10 * FEASIBILITY_RTOL, np.maximum(left, 0.0), left)


def _over(plan: Plan) -> Axis:
    return Axis(label="round", low=0.5, high=plan.rounds + 0.5, whole=True)


def _held(size: int, each: int) -> Floats:
    """How many of `size` each bin of `each` holds."""
    return np.minimum(each, size - np.arange(0, size, each)).astype(np.float64)


def _tooltip(plan: Plan, first: int, wide: int) -> str:
    """The tooltip of a column of the map."""
    some = slice(first, first + wide)
    last = min(first + wide, plan.rounds)
    name = f"round {last}" if last == first + 1 else f"rounds {first + 1} to {last}"
    sizes, theta = plan.sizes[some], plan.amplitudes.level[some]
    low, high = (number(float(value)) for value in (theta.min(), theta.max()))
    return (
        f"{name}\n{span(sizes)} of {plan.problem.fleet.num_devices} devices\n"
        f"θ: {low if low == high else f'{low} to {high}'}\nW: {number(float(plan.sequence.powers[some].sum()))}"
    )
