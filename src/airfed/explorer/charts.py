"""ECharts options of every drawing on the page: figures in, a dictionary out.

Colours are CSS variables (`plotting.colours`), which the SVG renderer passes on, so that light and dark need no second
drawing. NiceGUI evaluates a value whose key begins with a colon: those are names in page.js, never data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import bounds
from airfed.planning import Plan
from airfed.planning.exact import CandidateSpace
from airfed.planning.limits import amplifications, amplified
from airfed.plotting import colours, series
from airfed.plotting.series import Curve, Expectation
from airfed.text.phrases import LIMITS, TERMS, number, span

Floats = NDArray[np.float64]
Options = dict[str, Any]

_STAR: Final = "path://M0-10 2.9-3.1 10-3.1 4.5 1.6 6.2 8.5 0 4.6-6.2 8.5-4.5 1.6-10-3.1-2.9-3.1z"
_TEXT: Final = {"color": "var(--muted)", "fontSize": 11}
_MOST_BARS: Final = 120  # rounds drawn as bars; more are a line
_MOST_PLACES: Final = 240  # points of a line over the rounds
_MOST_ROWS, _MOST_COLUMNS = 60, 100  # cells of the map of powers


def chart(x: Options, y: Options, *series: Options, spoken: str, **more: Any) -> Options:
    """Return the options of a chart; `spoken` describes it to screen readers."""
    legend = [each["name"] for each in series if each.get("name") and each.pop("listed", True)]
    return {
        "animation": False,
        "textStyle": {"fontFamily": "system-ui, Segoe UI, Roboto, Helvetica Neue, sans-serif"},
        "aria": {"enabled": True, "label": {"description": spoken}},
        "grid": {"left": 48, "right": 14, "top": 26 + 22 * bool(legend), "bottom": 38, "outerBoundsMode": "none"},
        "legend": {
            "data": legend,
            "type": "scroll",
            "left": 0,
            "top": 0,
            "padding": 0,
            "icon": "roundRect",
            "itemWidth": 12,
            "itemHeight": 8,
            "textStyle": {"color": "var(--muted)", "fontSize": 12},
            "inactiveColor": "var(--faint)",
        },
        "tooltip": {
            "trigger": "axis",
            "confine": True,
            "backgroundColor": "var(--surface)",
            "borderColor": "var(--rule)",
            "textStyle": {"color": "var(--ink)", "fontSize": 12},
            ":valueFormatter": y.pop("told"),
        },
        "xAxis": x,
        "yAxis": y,
        "series": list(series),
        **more,
    }


def axis(
    name: str, low: float, high: float, *, kind: str = "value", text: str = "airfed.number", upright: bool = False
) -> Options:
    """Return an axis from `low` to `high`; `kind` is "value" or "log", `text` the function that writes its values."""
    marks = {"customValues": _log_ticks(low, high) if kind == "log" else _ticks(low, high, whole=not upright)}
    place = {"nameLocation": "end", "nameGap": 12} if upright else {"nameLocation": "middle", "nameGap": 24}
    return {
        "type": kind,
        "name": name,
        **place,
        "nameTextStyle": {"color": "var(--muted)", "fontSize": 12, "align": "left" if upright else "center"}
        | ({"padding": [0, 0, 0, -44]} if upright else {}),
        "min": low,
        "max": high,
        "axisLabel": {**_TEXT, **marks, ":formatter": text, "hideOverlap": True},
        "axisTick": {**marks, "show": not upright, "lineStyle": {"color": "var(--faint)"}},
        "axisLine": {"show": not upright, "onZero": False, "lineStyle": {"color": "var(--faint)"}},
        "splitLine": {"show": upright, "lineStyle": {"color": "var(--grid)"}},
        "axisPointer": {"label": {"formatter": f"{name}: {{value}}", "precision": 2 if kind == "log" else "auto"}},
        **({"told": text} if upright else {}),
    }


def line(
    name: str, x: ArrayLike, y: ArrayLike, colour: str, *, dash: str = "solid", width: float = 1.8, **more: Any
) -> Options:
    """Return a line through points; it is interrupted where there is no finite value."""
    paint = {"color": f"var(--{colour})"}
    return {
        "type": "line",
        "name": name,
        "data": points(x, y),
        "showSymbol": False,
        "itemStyle": paint,
        "lineStyle": {**paint, "width": width, "type": dash},
        "emphasis": {"disabled": True},
        **more,
    }


def points(x: ArrayLike, y: ArrayLike) -> list[list[float | None]]:
    """Return pairs that a browser can draw: none where a value is not finite, no figure near the ends of the range."""
    values = np.asarray(y, dtype=np.float64)
    values = np.where(
        np.abs(values) < 1e-150, 0.0, np.clip(values, -1e150, 1e150, where=np.isfinite(values), out=values.copy())
    )
    finite = np.isfinite(values)
    return [[a, b if ok else None] for a, b, ok in zip(np.asarray(x).tolist(), values.tolist(), finite, strict=True)]


def star(x: float, y: float, name: str = "chosen") -> Options:
    """Return the mark of the chosen plan."""
    paint = {"color": "var(--lit)", "borderColor": "var(--surface)", "borderWidth": 1.4, "opacity": 1}
    return {
        "type": "scatter",
        "name": name,
        "listed": False,
        "data": [[x, y]],
        "symbol": _STAR,
        "symbolSize": 17,
        "itemStyle": paint,
        "emphasis": {"disabled": True},
        "z": 5,
    }


def upright(x: float | None, colour: str = "ink", label: str = "", dash: str = "dotted") -> Options:
    """Return the `markLine` of a series: a line across the chart at x, none where x is None."""
    paint = {"color": f"var(--{colour})"}
    return {
        "symbol": "none",
        "silent": True,
        "animation": False,
        "data": [] if x is None else [{"xAxis": x}],
        "lineStyle": {**paint, "type": dash, "width": 1.6},
        "label": {
            "show": bool(label),
            "formatter": label,
            "position": "start",
            "distance": 25,
            "fontWeight": 600,
            **paint,
        },
    }


def strip(
    heights: Sequence[Floats], ends: Sequence[float], *, top: float, spoken: str, edge: float = 0.0, limit: str = ""
) -> Options:
    """Return the devices sorted by gain: scheduled ones lit, transmit power as height, peak power as a line.

    Args:
        heights: [W] of scheduled devices, that the others would need, and their peak powers; NaN for none.
        ends: |h| of the strongest and of the weakest.
        top: where the axis ends [W].
        spoken: for screen readers.
        edge, limit: after how many bars which limit stops the next device; "": nothing is said of it.
    """
    lit, dark, ceiling = heights
    x = np.arange(1.0, lit.size + 1)
    high = math.sqrt(top)
    step = _round(top / 2.5, (1, 2, 5, 10))
    ticks = [math.sqrt(share * step) for share in (0.0, 0.05, 0.2, 0.5, 1.0) if share * step <= top]
    up = axis("W per round, worst case", 0.0, high, text="airfed.squared", upright=True)
    up["axisLabel"]["customValues"] = ticks
    up["axisTick"]["customValues"] = ticks
    across = axis("", 0.5, lit.size + 0.5)
    across["axisLabel"]["show"] = across["axisTick"]["show"] = False
    across["axisPointer"] = {"type": "none", "label": {"formatter": "no. {value} by gain"}}
    bars = [
        {
            "type": "bar",
            "name": name,
            "data": points(x, np.sqrt(np.minimum(watts, 2 * top))),
            "itemStyle": {"color": f"var(--{colour})"},
            "barGap": "-100%",
            "barCategoryGap": "24%",
            "emphasis": {"disabled": True},
        }
        for name, colour, watts in (("transmits", "lit", lit), ("would need", "out", dark))
    ]
    label = f"{LIMITS[limit]} stops the next one" if limit else ""
    bars[0]["markLine"] = upright(edge + 0.5 if limit else None, f"lim-{limit or 'privacy'}", label, "solid")
    peak = line("peak power", x, np.sqrt(ceiling), "lim-peak_power", dash="dashed", width=1.4, step="middle")
    said = ((f"strongest |h| = {number(ends[0])}", {"left": 44}), (f"weakest |h| = {number(ends[1])}", {"right": 8}))
    texts = [
        {"text": text, **place, "bottom": 20, "textStyle": {**_TEXT, "fontWeight": "normal"}} for text, place in said
    ]
    return chart(across, up, *bars, peak, spoken=spoken, title=texts)


def candidates(plan: Plan, space: CandidateSpace) -> list[Options]:
    """Return the candidate space (the paper's Fig. 2): θ with its limits over |K|, and the objective."""
    sizes = space.size.astype(np.float64)
    curves = {
        "privacy": np.broadcast_to(space.privacy_limit, sizes.shape),
        "peak_power": np.broadcast_to(space.peak_limit, sizes.shape),
        "total_power": np.broadcast_to(space.total_limit, sizes.shape),
    }
    if amplified(plan.problem):  # the space counts privacy and peak power of a device together
        gain, reachable = plan.problem.fleet.gain, plan.problem.fleet.gain > 0
        alone = np.sort(amplifications(plan.problem)[reachable])
        peak = -np.sort(-gain[reachable] * np.sqrt(plan.problem.fleet.peak_power[reachable]))
        curves["privacy"] = np.pad(curves["privacy"][: alone.size] / alone, (0, gain.size - alone.size))
        curves["peak_power"] = np.pad(peak, (0, gain.size - peak.size))
    theta = np.where(space.alignment > 0, space.alignment, np.nan)
    low, high = _padded(theta, 1.5, 3.0)
    right = max(sizes[-1], 2.0)
    upper = chart(
        axis("", 1.0, right) | {"axisPointer": {"label": {"formatter": "scheduled devices: {value}"}}},
        axis("alignment θ", low, high, kind="log", upright=True),
        *(
            line(LIMITS[name], sizes, np.where(curve > 0, curve, np.nan), f"lim-{name}", dash="dashed", width=1.4)
            for name, curve in curves.items()
        ),
        line("largest θ", sizes, theta, "ink", areaStyle={"color": "var(--lit)", "opacity": 0.08, "origin": "start"}),
        star(plan.num_scheduled, plan.alignment),
        spoken=f"The largest θ and its limits over the number of devices; chosen: {plan.num_scheduled}",
    )
    noise = bounds.noise_error(plan.problem.learning, plan.noise_share)
    own = float(bounds.participation_error(1.0 - plan.device_share) + noise)
    low, high = _padded(space.objective, 1.3, 1.0)
    lower = chart(
        axis("scheduled devices |K|", 1.0, right),
        axis(f"objective Ψ at I = {plan.rounds}", low, min(high, max(30 * low, 1.5 * own)), kind="log", upright=True),
        line("objective Ψ", sizes, space.objective, "ink", listed=False),
        star(plan.num_scheduled, own),
        spoken="The objective over the number of devices",
    )
    return [upper, lower]


def bound_over_rounds(plan: Plan, curve: Curve) -> Options:
    """Return the bound split into its terms over the number of rounds."""
    best = min(float(curve.total.min()), plan.bound.total)
    bands = [
        line(label, curve.rounds, curve.terms[name], f"term-{name}", width=0.0, stack="bound")
        | {"areaStyle": {"color": f"var(--term-{name})", "opacity": 0.86}}
        for name, label in TERMS.items()
    ]
    bands[0]["markLine"] = upright(plan.rounds)
    return chart(
        axis("aggregation rounds I", 1.0, max(float(curve.rounds[-1]), 2.0), kind="log"),
        axis("bound on the gap (Theorem 1)", 0.0, _round(max(3.2 * best, 1.15 * plan.bound.total)), upright=True),
        *bands,
        line("bound", curve.rounds, curve.total, "ink", width=1.3, listed=False),
        star(plan.rounds, plan.bound.total),
        spoken=f"The bound split into its terms over the number of rounds; chosen: {plan.rounds}",
    )


def accuracy_over_rounds(plan: Plan, curve: Expectation) -> Options:
    """Return the expected accuracy over the number of rounds, with what nine of ten trainings reach."""
    x = curve.rounds
    area = {"color": "var(--lit)", "opacity": 0.18}
    return chart(
        axis("aggregation rounds I", float(x[0]), float(max(x[-1], x[0] + 1)), kind="log"),
        axis("expected test accuracy", 0.0, 1.0, text="airfed.percent", upright=True),
        line("at least", x, curve.low, "lit", width=0.0, stack="band", listed=False),
        line("nine of ten trainings", x, curve.high - curve.low, "lit", width=0.0, stack="band", areaStyle=area),
        line("expected", x, curve.accuracy, "ink", markLine=upright(plan.rounds)),
        *([star(plan.rounds, plan.predicted_accuracy)] if plan.predicted_accuracy is not None else []),
        spoken=f"The expected accuracy over the number of rounds; chosen: {plan.rounds}",
    )


def round_by_round(plan: Plan) -> dict[str, tuple[str, Options]]:
    """Return sentences and charts of a plan round by round, by title; `move_cursor` marks a round in them."""
    powers = "The darker, the larger the share of its peak power; the most often scheduled below."
    return {
        "Transmit power of each device in each round": (powers, _power_map(plan)),
        "θ in each round": ("The limits are those on a single round.", _alignments(plan)),
        "Devices in each round": (f"{span(plan.sizes)} of {plan.problem.fleet.num_devices}.", _sizes(plan)),
        "Budgets left after each round": ("Of the budgets that cover the training.", _budgets(plan)),
    }


def move_cursor(options: Options, number: int) -> None:
    """Mark round `number` (from 1) in a chart of `round_by_round`."""
    each = options["series"][-1]
    each["markLine"]["data"] = [{"xAxis": (number - 1) // each["rounds"] if "rounds" in each else number}]


def _cursor(**more: Any) -> Options:
    return {"type": "line", "name": "", "data": [], "markLine": upright(1, dash="solid"), **more}


def _power_map(plan: Plan) -> Options:
    """The devices over the rounds, the most frequently scheduled below: mean power as a share of the peak."""
    num_devices = plan.problem.fleet.num_devices
    tall, wide = -(-num_devices // _MOST_ROWS), -(-plan.rounds // _MOST_COLUMNS)
    shares = series.power_shares(plan, tall, wide)
    rows, columns = shares.shape
    across, up = axis("round", 0, 1), axis("devices", 0, 1, upright=True)
    for each, size, step in ((across, columns, wide), (up, rows, tall)):
        names = [f"{k * step + 1}" if step == 1 else f"{k * step + 1}–{(k + 1) * step}" for k in range(size)]
        each |= {"type": "category", "data": names, "min": None, "max": None}
        each["axisLabel"] = {**_TEXT, "hideOverlap": True}
        each["axisTick"] = {"show": False}
        each["splitLine"] = {"show": False}
    cells = [[int(c), int(r), float(shares[r, c])] for r, c in np.argwhere(~np.isnan(shares))]
    most = float(np.nanmax(shares, initial=1e-9))
    made = chart(
        across,
        up | {"told": "airfed.percent"},
        {
            "type": "heatmap",
            "name": "power / peak power",
            "listed": False,
            "data": cells,
            "emphasis": {"disabled": True},
        },
        _cursor(rounds=wide),
        spoken="Mean power as a share of the peak power, of each device in each round",
        visualMap={"min": 0.0, "max": most, "seriesIndex": 0, "show": False}
        | {"inRange": {"color": [colours.PALETTE["lim-peak_power"]], "opacity": [0.15, 1.0]}},  # ECharts mixes it
    )
    made["tooltip"]["trigger"] = "item"
    return made


def _alignments(plan: Plan) -> Options:
    """θ over the rounds, with the largest that privacy and the peak powers of each round's devices allow."""
    whole = plan.problem.budget.scope == "total"
    ceilings: Mapping[Any, Floats] = plan.ceilings
    named = {"privacy": "privacy, if this were the only round" if whole else "privacy", "peak_power": "peak power"}
    lines = [_over(ceilings[key], f"lim-{key}", name, dash="dashed", width=1.4) for key, name in named.items()]
    level = plan.amplitudes.level
    low, high = _padded(np.concatenate([level, *(ceilings[key] for key in named)]), 1.1, 1.1)
    return chart(
        axis("round", 0.5, plan.rounds + 0.5),
        axis("alignment θ", low, high, kind="log", upright=True),
        *lines,
        _over(level, "ink", "θ"),
        _cursor(),
        spoken="θ in each round, and the limits on a single round",
    )


def _sizes(plan: Plan) -> Options:
    """The number of scheduled devices in each round."""
    fleet = plan.problem.fleet.num_devices
    sizes = _over(plan.sizes.astype(np.float64), "lit", "scheduled devices")
    if plan.rounds <= _MOST_BARS:
        sizes |= {"type": "bar", "barCategoryGap": "24%"}
    return chart(
        axis("round", 0.5, plan.rounds + 0.5),
        axis("devices |K|", 0.0, _round(1.1 * fleet), upright=True),
        sizes,
        line("fleet", [0.5, plan.rounds + 0.5], [fleet, fleet], "ink", dash="dashed", width=1.2),
        _cursor(),
        spoken="Scheduled devices in each round",
    )


def _budgets(plan: Plan) -> Options:
    """What is left of each budget that covers the training, as shares, after every round."""
    places, left = series.budgets_left(plan)
    looks: dict[str, tuple[str, str, str]] = {
        "total_power": ("total power", "lim-total_power", "solid"),
        "privacy": ("privacy (Σμ²), most exposed device", "lim-privacy", "solid"),
        "privacy_median": ("privacy, median device", "lim-privacy", "dotted"),
        "device_power": ("battery, emptiest", "lim-device_power", "solid"),
        "device_power_median": ("battery, median device", "lim-device_power", "dotted"),
    }
    lines = [line(looks[key][0], places, each, looks[key][1], dash=looks[key][2]) for key, each in left.items()]
    least = min(float(each.min()) for each in left.values())
    return chart(
        axis("round", 0.0, float(plan.rounds)),
        axis("left", min(0.0, least), 1.0, text="airfed.percent", upright=True),
        *lines,
        _cursor(),
        spoken="What is left of the budgets after each round",
    )


def _over(values: Floats, colour: str, name: str, **look: Any) -> Options:
    """A value of each round as a line; in a long training the median of neighbours."""
    each = -(-values.size // _MOST_PLACES)
    starts = np.arange(0, values.size, each)
    middle = [float(np.median(values[start : start + each])) for start in starts]
    return line(
        name if each == 1 else f"{name} (median of {each} rounds)", starts + (1 + each) / 2, middle, colour, **look
    )


def _padded(values: ArrayLike, below: float, above: float) -> tuple[float, float]:
    """The finite positive range of values, widened by factors for a logarithmic axis."""
    found = np.asarray(values, dtype=np.float64)
    found = found[np.isfinite(found) & (found > 0)]
    low, high = (float(found.min()) / below, float(found.max()) * above) if found.size else (0.1, 1.0)
    return (low, high) if high > low else (low / 2, high * 2)


def _round(top: float, factors: Sequence[float] = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)) -> float:
    """The smallest round value that is not below another."""
    if not 1e-150 < top < 1e150:
        return 1.0
    power = 10.0 ** math.floor(math.log10(top))
    return next(factor * power for factor in factors if factor * power >= top * 0.999)


def _ticks(low: float, high: float, *, whole: bool) -> list[float]:
    """About five round values between the ends of an axis; only whole numbers of rounds and devices."""
    step = _round((high - low) / 6, (1, 2, 5, 10))
    step = max(math.ceil(step), 1) if whole else step
    return [float(step * k) for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """At most seven round values between the ends of a logarithmic axis."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{factor}e{place}") for place in range(first, last + 1) for factor in factors]
        ticks = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(ticks) <= 7:
            return ticks
    return ticks[:: math.ceil(len(ticks) / 7)]
