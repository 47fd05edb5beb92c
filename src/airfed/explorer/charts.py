"""ECharts options of every drawing on the page, in colours that are CSS variables: light and dark need no second one.

NiceGUI evaluates a value whose key begins with a colon: those are names in page.js, never data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from airfed.planning import Plan
from airfed.planning.exact import CandidateSpace
from airfed.plotting import colours, series
from airfed.plotting.series import Curve, Expectation
from airfed.text.phrases import LIMITS, TERMS, number, span

Options = dict[str, Any]

_STAR: Final = "path://M0-10 2.9-3.1 10-3.1 4.5 1.6 6.2 8.5 0 4.6-6.2 8.5-4.5 1.6-10-3.1-2.9-3.1z"
_TEXT: Final = {"color": "var(--muted)", "fontSize": 11}
_STILL: Final = {"emphasis": {"disabled": True}}
_MOST_ROWS, _MOST_COLUMNS, _MOST_BARS = 60, 100, 400  # of the map of powers, and of the strip


def chart(x: Options, y: Options, *series: Options, spoken: str = "", **more: Any) -> Options:
    """Return the options of a chart; `spoken` describes it to screen readers, who hear the axes' names otherwise."""
    written = y["axisLabel"].get(":formatter") or x["axisLabel"].get(":formatter", "airfed.percent")
    legend = [each["name"] for each in series if each.get("name") and each.pop("listed", True)]
    key = {"type": "scroll", "left": 0, "top": 0, "padding": 0, "icon": "roundRect", "itemWidth": 12, "itemHeight": 8}
    box = {"confine": True, "backgroundColor": "var(--surface)", "borderColor": "var(--rule)"}
    words = {"color": "var(--ink)", "fontSize": 12}
    return {
        "animation": False,
        "textStyle": {"fontFamily": "system-ui, Segoe UI, Roboto, Helvetica Neue, sans-serif"},
        "aria": {"enabled": True, "label": {"description": spoken or f"{y['name']} over {x['name']}"}},
        "grid": {"left": 48, "right": 14, "top": 26 + 22 * bool(legend), "bottom": 38, "outerBoundsMode": "none"},
        "legend": {**key, "data": legend, "textStyle": {**_TEXT, "fontSize": 12}, "inactiveColor": "var(--faint)"},
        "tooltip": {"trigger": "axis", **box, "textStyle": words, ":valueFormatter": written},
        "xAxis": x,
        "yAxis": y,
        "series": list(series),
        **more,
    }


def axis(
    name: str, *ends: float, kind: str = "value", text: str = "airfed.number", upright: bool = False, **more: Any
) -> Options:
    """Return an axis from its low to its high end, if given; `text` is the function that writes its values."""
    shown = {f"show{end}Label": float(at).is_integer() for end, at in zip(("Min", "Max"), ends, strict=False)}
    marks = {"customValues": _log_ticks(*ends)} if kind == "log" else shown
    place = {"align": "left", "padding": [0, 0, 0, -44]} if upright else {}
    return {
        "type": kind,
        "name": name,
        "nameLocation": "end" if upright else "middle",
        "nameGap": 12 if upright else 24,
        "nameTextStyle": {**_TEXT, "fontSize": 12, **place},
        **dict(zip(("min", "max"), ends, strict=False)),
        "minInterval": 0 if upright else 1,  # rounds and devices
        "axisLabel": {**_TEXT, **marks, ":formatter": text, "hideOverlap": True},
        "axisTick": {"show": False},
        "axisLine": {"show": not upright, "onZero": False, "lineStyle": {"color": "var(--faint)"}},
        "splitLine": {"show": upright, "lineStyle": {"color": "var(--grid)"}},
        "axisPointer": {"label": {"formatter": f"{name}: {{value}}", "precision": 2 if kind == "log" else "auto"}},
        **more,
    }


def categories(name: str, names: Sequence[str], *, upright: bool = False, **more: Any) -> Options:
    """Return an axis of names."""
    made = axis(name, kind="category", upright=upright, data=list(names), **more)
    return made | {"axisLabel": {**_TEXT, "hideOverlap": True}, "splitLine": {"show": False}}


def line(
    name: str, x: ArrayLike, y: ArrayLike, colour: str, *, dash: str = "solid", width: float = 1.8, **more: Any
) -> Options:
    """Return a line through points; it is interrupted where there is no finite value."""
    paint = {"color": f"var(--{colour})"}
    look = {"itemStyle": paint, "lineStyle": {**paint, "width": width, "type": dash}}
    return {"type": "line", "name": name, "data": points(x, y), "showSymbol": False, **look, **_STILL, **more}


def points(x: ArrayLike, y: ArrayLike) -> list[list[float | None]]:
    """Return pairs that a browser can draw: none where a value is not finite, no figure near the ends of the range."""
    values = np.asarray(y, dtype=np.float64)
    drawn = np.where(np.abs(values) < 1e-150, 0.0, np.clip(values, -1e150, 1e150))
    pairs = zip(np.asarray(x).tolist(), drawn.tolist(), np.isfinite(values), strict=True)
    return [[a, b if finite else None] for a, b, finite in pairs]


def star(x: float, y: float, name: str = "chosen", colour: str = "lit") -> Options:
    """Return the mark of the chosen plan."""
    paint = {"color": f"var(--{colour})", "borderColor": "var(--surface)", "borderWidth": 1.4, "opacity": 1}
    look = {"symbol": _STAR, "symbolSize": 17, "itemStyle": paint, "z": 5}
    return {"type": "scatter", "name": name, "listed": False, "data": [[x, y]], **look, **_STILL}


def upright(x: float, colour: str = "ink", label: str = "", dash: str = "dotted") -> Options:
    """Return the `markLine` of a series: a line across the chart at x."""
    paint = {"color": f"var(--{colour})"}
    words = {"show": bool(label), "formatter": label, "position": "start", "distance": 8, "fontWeight": 600, **paint}
    look = {"lineStyle": {**paint, "type": dash, "width": 1.6}, "label": words}
    return {"symbol": "none", "silent": True, "data": [{"xAxis": x}], **look}


def heatmap(x: Options, y: Options, cells: list[Options], *marks: Options, colour: str) -> Options:
    """Return cells ("value": column, row, shade) on two axes of names, the darker the larger, and marks on them."""
    shades = [cell["value"][2] for cell in cells] or [1.0]
    look = {"inRange": {"color": [colours.PALETTE[colour]], "opacity": [0.12, 1.0]}, "show": False}  # ECharts mixes it
    scale = {"seriesIndex": 0, "min": min(shades), "max": max(shades), **look}
    made = chart(x, y, {"type": "heatmap", "data": cells, **_STILL}, *marks, visualMap=scale)
    made["tooltip"]["trigger"] = "item"
    return made


def strip(plan: Plan, limit: str) -> Options:
    """Return the powers of the devices, the strongest first, and the limit that stops the next one ("" for none).

    In a large fleet neighbours share a bar, which shows the largest of them.
    """
    fleet, size = plan.problem.fleet, plan.num_scheduled
    order = np.argsort(-fleet.gain, kind="stable")
    scheduled = plan.amplitudes.shares(0)[order] > 0
    with np.errstate(divide="ignore", over="ignore"):
        needed = np.square(plan.alignment / fleet.gain)
    needed[plan.scheduled] = plan.power
    starts = np.linspace(0, order.size, min(order.size, _MOST_BARS), endpoint=False).round().astype(np.intp)
    tops = [np.maximum.reduceat(np.where(on, needed[order], -np.inf), starts) for on in (scheduled, ~scheduled)]
    lit, dark = (np.where(each < 0, np.nan, each) for each in tops)
    ceiling = np.maximum.reduceat(fleet.peak_power[order], starts)
    top = 1.12 * max(float(np.nanmax(lit)), float(np.quantile(ceiling, 0.95)))
    lit, dark, ceiling = (np.sqrt(np.minimum(watts, 2 * top)) for watts in (lit, dark, ceiling))
    x = np.arange(1.0, lit.size + 1)
    strongest, weakest = fleet.gain[order[[0, -1]]].tolist()
    across = axis(f"|h| = {number(strongest)} (left) to {number(weakest)}", 0.5, lit.size + 0.5)
    across |= {"axisLabel": {"show": False}, "axisPointer": {"type": "none", "label": {"formatter": "no. {value}"}}}
    look = {"type": "bar", "barGap": "-100%", "barCategoryGap": "24%", **_STILL}
    bars = [
        {**look, "name": name, "data": points(x, watts), "itemStyle": {"color": f"var(--{colour})"}}
        for name, colour, watts in (("transmits", "lit", lit), ("would need", "out", dark))
    ]
    if limit and scheduled[:size].all():
        edge, label = size / fleet.num_devices * lit.size + 0.5, f"{LIMITS[limit]} stops the next one"
        bars[0]["markLine"] = upright(edge, f"lim-{limit}", label, "solid")
    peak = line("peak power", x, ceiling, "lim-peak_power", dash="dashed", width=1.4, step="middle")
    up = axis("W per round, worst case", 0.0, math.sqrt(top), text="airfed.squared", upright=True)
    spoken = f"{size} of {fleet.num_devices} devices transmit; the strongest is on the left"
    return chart(across, up, *bars, peak, spoken=spoken)


def candidates(plan: Plan, space: CandidateSpace) -> list[Options]:
    """Return the candidate space (the paper's Fig. 2): θ with its limits over |K|, and the objective."""
    sizes, size = space.size.astype(np.float64), plan.num_scheduled
    theta = np.where(space.alignment > 0, space.alignment, np.nan)
    limits = [
        line(LIMITS[name], sizes, np.where(curve > 0, curve, np.nan), f"lim-{name}", dash="dashed", width=1.4)
        for name, curve in series.limit_curves(plan, space).items()
    ]
    largest = line("largest θ", sizes, theta, "ink", areaStyle={"color": "var(--lit)", "opacity": 0.08})
    up = axis("alignment θ", *_padded(theta, 1.5, 3.0), kind="log", upright=True)
    across = [axis(name, 1.0, max(sizes[-1], 2.0)) for name in ("", "scheduled devices |K|")]
    upper = chart(across[0], up, *limits, largest, star(size, plan.alignment))
    own, (low, high) = series.own_objective(plan), _padded(space.objective, 1.3, 1.0)
    up = axis(f"objective Ψ at I = {plan.rounds}", low, min(high, max(30 * low, 1.5 * own)), kind="log", upright=True)
    objective = line("objective Ψ", sizes, space.objective, "ink", listed=False)
    return [upper, chart(across[1], up, objective, star(size, own))]


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
        axis("bound on the gap (Theorem 1)", 0.0, max(3.2 * best, 1.15 * plan.bound.total), upright=True),
        *bands,
        line("bound", curve.rounds, curve.total, "ink", width=1.3, listed=False),
        star(plan.rounds, plan.bound.total),
    )


def accuracy_over_rounds(plan: Plan, curve: Expectation) -> Options:
    """Return the expected accuracy over the number of rounds, with what nine of ten trainings reach."""
    x, area = curve.rounds, {"color": "var(--lit)", "opacity": 0.18}
    return chart(
        axis("aggregation rounds I", float(x[0]), float(max(x[-1], x[0] + 1)), kind="log"),
        axis("expected test accuracy", 0.0, 1.0, text="airfed.percent", upright=True),
        line("at least", x, curve.low, "lit", width=0.0, stack="band", listed=False),
        line("nine of ten trainings", x, curve.high - curve.low, "lit", width=0.0, stack="band", areaStyle=area),
        line("expected", x, curve.accuracy, "ink", markLine=upright(plan.rounds)),
        *([star(plan.rounds, plan.predicted_accuracy)] if plan.predicted_accuracy is not None else []),
    )


def round_by_round(plan: Plan) -> dict[str, tuple[str, Options]]:
    """Return sentences and charts of a plan round by round, by title."""
    num_devices, ends = plan.problem.fleet.num_devices, (0.5, plan.rounds + 0.5)
    at = series.thin(plan.rounds, most=series.MOST_POINTS)
    alone = ", if this were the only round" if plan.problem.budget.scope == "total" else ""
    names = {"privacy": f"privacy{alone}", "peak_power": "peak power of the scheduled devices"}
    ceilings = {limit: curve for limit, curve in plan.ceilings.items() if limit in names}
    limits = [
        line(names[limit], at + 1, curve[at], f"lim-{limit}", dash="dashed", width=1.4)
        for limit, curve in ceilings.items()
    ]
    ends_up = _padded(np.concatenate([plan.amplitudes.level, *ceilings.values()]), 1.1, 1.1)
    theta = line("θ", at + 1, plan.amplitudes.level[at], "ink")
    levels = chart(axis("round", *ends), axis("alignment θ", *ends_up, kind="log", upright=True), *limits, theta)
    filled = {"color": "var(--lit)", "opacity": 0.5}
    sizes = line("scheduled devices", at + 1, plan.sizes[at], "lit", step="middle", areaStyle=filled)
    fleet = line("fleet", ends, [num_devices, num_devices], "ink", dash="dashed", width=1.2)
    devices = chart(axis("round", *ends), axis("devices |K|", 0.0, upright=True), sizes, fleet)
    powers = "The stronger the colour, the larger the share of its peak power; the most often scheduled below."
    return {
        "Transmit power of each device in each round": (powers, _power_map(plan)),
        "θ in each round": ("The limits are those on a single round.", levels),
        "Devices in each round": (f"{span(plan.sizes)} of {num_devices}.", devices),
        "Budgets left after each round": ("Of the budgets that cover the training.", _budgets(plan)),
    }


def _power_map(plan: Plan) -> Options:
    tall, wide = -(-plan.problem.fleet.num_devices // _MOST_ROWS), -(-plan.rounds // _MOST_COLUMNS)
    shares = series.power_shares(plan, tall, wide)
    cells = [{"value": [c, r, round(shares[r, c], 4)]} for r, c in np.argwhere(~np.isnan(shares)).tolist()]
    across = categories("round", [str(first) for first in range(1, plan.rounds + 1, wide)])
    up = categories("devices", [str(first * tall + 1) for first in range(len(shares))], upright=True)
    return heatmap(across, up, cells, colour="lim-peak_power")


def _budgets(plan: Plan) -> Options:
    places, left = series.budgets_left(plan)
    lines = []
    for key, share in left.items():
        limit, median = key.removesuffix("_median"), key.endswith("_median")
        name = LIMITS[limit] + (", median device" if median else "")
        lines.append(line(name, places, share, f"lim-{limit}", dash="dotted" if median else "solid"))
    low = min(0.0, *(float(share.min()) for share in left.values()))
    up = axis("left", low, 1.0, text="airfed.percent", upright=True)
    return chart(axis("round", 0.0, float(plan.rounds)), up, *lines)


def _padded(values: ArrayLike, below: float, above: float) -> tuple[float, float]:
    found = np.asarray(values, dtype=np.float64)
    found = found[np.isfinite(found) & (found > 0)]
    low, high = (float(found.min()) / below, float(found.max()) * above) if found.size else (0.1, 1.0)
    return (low, high) if high > low else (low / 2, high * 2)


def _log_ticks(low: float, high: float) -> list[float]:
    """At most seven round values between the ends of a logarithmic axis."""
    places = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,)):
        ticks = [tick for p in places for f in factors if low <= (tick := float(f"{f}e{p}")) <= high]
        if len(ticks) <= 7:
            return ticks
    return ticks[:: -(-len(ticks) // 7)]
