"""ECharts options of the charts on the page, in CSS variables; `:keys` name functions in page.js, never data."""

from __future__ import annotations

import math
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
_MOST_BARS: Final = 400  # of the device chart


def chart(x: Options, y: Options, *series: Options, description: str = "", **more: Any) -> Options:
    """Return the options of a chart; `description` is for screen readers and defaults to the names of the axes."""
    formatter = y["axisLabel"].get(":formatter") or x["axisLabel"].get(":formatter", "airfed.percent")
    legend = dict.fromkeys(each["name"] for each in series if each.get("name") and each.pop("listed", True))
    return {
        "aria": {"enabled": True, "label": {"description": description or f"{y['name']} over {x['name']}"}},
        "grid": {"top": 26 + 22 * bool(legend)},
        "legend": {"type": "scroll", "data": list(legend)},
        "tooltip": {":valueFormatter": formatter},
        "xAxis": x,
        "yAxis": y,
        "series": list(series),
        **more,
    }


def axis(
    name: str, *ends: float, kind: str = "value", text: str = "airfed.number", vertical: bool = False, **more: Any
) -> Options:
    """Return an axis, from its low to its high end if given; `text` names the function that formats its values."""
    shown = {f"show{end}Label": float(at).is_integer() for end, at in zip(("Min", "Max"), ends, strict=False)}
    marks: Options = {"customValues": _log_ticks(*ends)} if kind == "log" else shown
    return {
        "type": kind,
        "name": name,
        "nameLocation": "end" if vertical else "middle",
        "nameGap": 12 if vertical else 24,
        "nameTextStyle": {"align": "left", "padding": [0, 0, 0, -44]} if vertical else {},
        **dict(zip(("min", "max"), ends, strict=False)),
        "minInterval": 0 if vertical else 1,  # rounds and devices
        "axisLabel": marks if kind == "category" else {**marks, ":formatter": text},
        "axisLine": {"show": not vertical},
        "splitLine": {"show": vertical and kind != "category"},
        "axisPointer": {"label": {"formatter": f"{name}: {{value}}", "precision": 2 if kind == "log" else "auto"}},
        **more,
    }


def line(name: str, x: ArrayLike, y: ArrayLike, colour: str, *, dash: str = "solid", **more: Any) -> Options:
    """Return a line through points, interrupted where a value is not finite."""
    paint = {"color": f"var(--{colour})"}
    look = {**paint, "width": more.pop("width", 1.4 if dash == "dashed" else 1.8), "type": dash}
    return {"type": "line", "name": name, "data": points(x, y), "itemStyle": paint, "lineStyle": look, **more}


def points(x: ArrayLike, y: ArrayLike) -> list[list[float | None]]:
    """Return (x, y) pairs that a browser can draw: None for y that is not finite, extreme values clipped."""
    values = np.asarray(y, dtype=np.float64)
    drawn = np.where(np.abs(values) < 1e-150, 0.0, np.clip(values, -1e150, 1e150))
    pairs = zip(np.asarray(x).tolist(), drawn.tolist(), np.isfinite(values), strict=True)
    return [[a, b if finite else None] for a, b, finite in pairs]


def star(x: float, y: float, name: str = "plan", colour: str = "lit") -> Options:
    """Return the mark of the plan."""
    paint = {"color": f"var(--{colour})", "borderColor": "var(--surface)", "borderWidth": 1.4, "opacity": 1}
    look = {"symbol": _STAR, "symbolSize": 17, "itemStyle": paint, "z": 5}
    return {"type": "scatter", "name": name, "listed": False, "data": [[x, y]], **look}


def vertical_line(x: float, colour: str = "ink", label: str = "", dash: str = "dotted") -> Options:
    """Return the `markLine` of a series: a vertical line at x."""
    paint = {"color": f"var(--{colour})"}
    text = {"show": bool(label), "formatter": label, "position": "start", "distance": 8, "fontWeight": 600, **paint}
    look = {"lineStyle": {**paint, "type": dash, "width": 1.6}, "label": text}
    return {"symbol": "none", "silent": True, "data": [{"xAxis": x}], **look}


def heatmap(x: Options, y: Options, cells: list[Options], *marks: Options, colour: str, **tooltip: str) -> Options:
    """Return a heat map of cells ("value": column, row, shade) with marks on top."""
    shades = [cell["value"][2] for cell in cells] or [1.0]
    paint = {"color": [colours.PALETTE[colour]], "opacity": [0.12, 1.0]}  # no CSS variable: ECharts interpolates it
    scale = {"seriesIndex": 0, "show": False, "min": min(shades), "max": max(shades), "inRange": paint}
    made = chart(x, y, {"type": "heatmap", "data": cells}, *marks, visualMap=scale)
    return made | {"tooltip": {**made["tooltip"], "trigger": "item", **tooltip}}


def device_powers(plan: Plan, limit: str) -> Options:
    """Return the devices' powers (the largest where several share a bar) and the limit that excludes the next one."""
    fleet, size = plan.problem.fleet, plan.num_scheduled
    order = np.argsort(-fleet.gain, kind="stable")
    scheduled = plan.amplitudes.shares(0)[order] > 0
    with np.errstate(divide="ignore", over="ignore"):
        needed = np.square(plan.alignment / fleet.gain)
    needed[plan.scheduled] = plan.power
    starts = np.linspace(0, order.size, min(order.size, _MOST_BARS), endpoint=False).round().astype(np.intp)
    lit, dark = (np.fmax.reduceat(np.where(on, needed[order], np.nan), starts) for on in (scheduled, ~scheduled))
    ceiling = np.maximum.reduceat(fleet.peak_power[order], starts)
    top = 1.12 * max(float(np.nanmax(lit)), float(np.quantile(ceiling, 0.95)))
    lit, dark, ceiling = (np.sqrt(np.minimum(watts, 2 * top)) for watts in (lit, dark, ceiling))
    x = np.arange(1.0, lit.size + 1)
    strongest, weakest = fleet.gain[order[[0, -1]]].tolist()
    across = axis(f"|h| = {number(strongest)} (left) to {number(weakest)}", 0.5, lit.size + 0.5)
    across |= {"axisLabel": {"show": False}, "axisPointer": {"type": "none", "label": {"formatter": "no. {value}"}}}
    look = {"type": "bar", "barGap": "-100%", "barCategoryGap": "24%"}
    bars = [
        {**look, "name": name, "data": points(x, watts), "itemStyle": {"color": f"var(--{colour})"}}
        for name, colour, watts in (("scheduled", "lit", lit), ("not scheduled", "out", dark))
    ]
    if limit and scheduled[:size].all():
        edge, label = size / fleet.num_devices * lit.size + 0.5, f"{LIMITS[limit]} excludes the next device"
        bars[0]["markLine"] = vertical_line(edge, f"lim-{limit}", label, "solid")
    peak = line("peak power", x, ceiling, "lim-peak_power", dash="dashed", step="middle")
    up = axis("W per round, worst case", 0.0, math.sqrt(top), text="airfed.squared", vertical=True)
    description = f"{size} of {fleet.num_devices} devices are scheduled; the strongest is on the left"
    return chart(across, up, *bars, peak, description=description)


def candidates(plan: Plan, space: CandidateSpace) -> list[Options]:
    """Return the candidate space (Fig. 2 of the paper): θ with its limits over |K|, and the objective."""
    sizes, size = space.size.astype(np.float64), plan.num_scheduled
    theta = np.where(space.alignment > 0, space.alignment, np.nan)
    limits = [
        line(LIMITS[name], sizes, np.where(curve > 0, curve, np.nan), f"lim-{name}", dash="dashed")
        for name, curve in series.limit_curves(plan, space).items()
    ]
    largest = line("largest θ", sizes, theta, "ink", areaStyle={"color": "var(--lit)", "opacity": 0.08})
    up = axis("alignment θ", *series.positive_range(theta, 1.5, 3.0), kind="log", vertical=True)
    across = [axis(name, 1.0, max(sizes[-1], 2.0)) for name in ("", "scheduled devices |K|")]
    upper = chart(across[0], up, *limits, largest, star(size, plan.alignment))
    up = axis(f"objective Ψ at I = {plan.rounds}", *series.objective_range(plan, space), kind="log", vertical=True)
    objective = line("objective Ψ", sizes, space.objective, "ink", listed=False)
    return [upper, chart(across[1], up, objective, star(size, series.own_objective(plan)))]


def over_rounds(plan: Plan, curve: Curve | Expectation) -> Options:
    """Return the terms of the bound, or the expected accuracy with its interval, over the number of rounds."""
    x = curve.rounds
    if isinstance(curve, Expectation):
        own, area = plan.predicted_accuracy, {"opacity": 0.18}
        up = axis("expected test accuracy", 0.0, 1.0, text="airfed.percent", vertical=True)
        lines = [
            line("90% interval, low end", x, curve.low, "lit", width=0.0, stack="band", listed=False),
            line("interval, nominal 90%", x, curve.high - curve.low, "lit", width=0.0, stack="band", areaStyle=area),
            line("expected", x, curve.accuracy, "ink"),
        ]
    else:
        own = plan.bound.total
        up = axis("bound on the gap (Theorem 1)", 0.0, curve.top(own), vertical=True)
        lines = [
            line(label, x, curve.terms[name], f"term-{name}", width=0.0, stack="bound", areaStyle={"opacity": 0.86})
            for name, label in TERMS.items()
        ]
        lines.append(line("bound", x, curve.total, "ink", width=1.3, listed=False))
    lines[-1]["markLine"] = vertical_line(plan.rounds)
    across = axis("aggregation rounds I", float(x[0]), float(max(x[-1], x[0] + 1)), kind="log")
    return chart(across, up, *lines, *([] if own is None else [star(plan.rounds, own)]))


def round_by_round(plan: Plan) -> dict[str, tuple[str, Options]]:
    """Return a sentence and a chart over the rounds of a plan, by title."""
    num_devices, ends = plan.problem.fleet.num_devices, (0.5, plan.rounds + 0.5)
    levels, left = series.level_lines(plan), series.budget_lines(plan)
    lines = [[line(s.name, s.x, s.y, s.colour, dash=s.dash) for s in group] for group in (levels, left)]
    theta = axis("alignment θ", *series.positive_range([s.y for s in levels], 1.1, 1.1), kind="log", vertical=True)
    share = axis("remaining", min(0.0, *(s.y.min() for s in left)), 1.0, text="airfed.percent", vertical=True)
    at = series.thin(plan.rounds, most=series.MOST_POINTS)
    sizes = line("scheduled devices", at + 1, plan.sizes[at], "lit", step="middle", areaStyle={"opacity": 0.5})
    fleet = line("fleet", ends, [num_devices, num_devices], "ink", dash="dashed")
    devices = chart(axis("round", *ends), axis("devices |K|", 0.0, vertical=True), sizes, fleet)
    budgets = chart(axis("round", 0.0, float(plan.rounds)), share, *lines[1])
    limits = chart(axis("round", *ends), theta, *lines[0])
    powers = "Colour strength is the fraction of the peak power. The most often scheduled devices are at the bottom."
    return {
        "Transmit power of each device in each round": (powers, _power_map(plan)),
        "θ in each round": ("Dashed: the limits on a single round.", limits),
        "Devices in each round": (f"{span(plan.sizes)} of {num_devices} devices.", devices),
        "Remaining budgets after each round": ("Budgets that cover the whole training.", budgets),
    }


def _power_map(plan: Plan) -> Options:
    shares, tall, wide = series.power_shares(plan)
    cells = [{"value": [c, r, round(shares[r, c], 4)]} for r, c in np.argwhere(~np.isnan(shares)).tolist()]
    across = axis("round", kind="category", data=[str(first) for first in range(1, plan.rounds + 1, wide)])
    rows = [str(first * tall + 1) for first in range(len(shares))]
    up = axis("devices", kind="category", vertical=True, data=rows, axisLabel={"interval": max(len(rows) // 8 - 1, 0)})
    return heatmap(across, up, cells, colour="lim-peak_power")


def _log_ticks(low: float, high: float) -> list[float]:
    """Return at most six round values between the ends of a logarithmic axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 1.5, 2, 3, 4, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = [tick for p in decades for f in factors if low <= (tick := float(f"{f}e{p}")) <= high]
        if len(ticks) <= 6:
            return ticks
    return ticks[:: -(-len(ticks) // 6)]
