"""Plotly charts as plain dictionaries: records in, JSON out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any, Final

import numpy as np
from scipy.stats import t as student

from airfed import planning
from airfed.experiments import style
from airfed.report.records import RunRecord

Chart = dict[str, Any]
_SPARE_COLOURS: Final = ("#009E73", "#D55E00", "#0072B2", "#E69F00", "#CC79A7", "#56B4E9", "#999999")
_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")
_MOST_BARS: Final = 400  # devices drawn; more would be narrower than a pixel


def groups(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Return the runs by label; those that differ in their seed alone belong together."""
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(run.group, []).append(run)
    named: dict[str, list[RunRecord]] = {}
    for members in found.values():
        label = members[0].label
        if label in named:  # the same policy in another world
            label = f"{label} · {members[0].scenario.name}"
        while label in named:
            label += "′"
        named[label] = members
    return named


def colours(labels: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return (colour, dash) per label: the policy's own colour first, then others."""
    chosen: dict[str, tuple[str, str]] = {}
    spare = cycle(_SPARE_COLOURS)
    used: dict[str, int] = {}
    for label in labels:
        policy = label.split(" ")[0].rstrip(",")
        colour = style.POLICY_COLOURS.get(policy) or next(spare)
        chosen[label] = (colour, _DASHES[used.get(colour, 0) % len(_DASHES)])
        used[colour] = used.get(colour, 0) + 1
    return chosen


def learning(runs: Sequence[RunRecord], metric: str, title: str, *, percent: bool = False) -> Chart | None:
    """Return a metric over the local steps: the mean over seeds and its 95% band, or None if no run has it."""
    grouped = groups(runs)
    paint = colours(grouped)
    traces: list[Chart] = []
    for label, members in grouped.items():
        steps, values = _series(members, metric)
        if not steps.size:
            continue
        colour, dash = paint[label]
        mean = values.mean(axis=0)
        if len(members) > 1:
            spread = values.std(axis=0, ddof=1) / np.sqrt(len(members)) * float(student.ppf(0.975, len(members) - 1))
            traces.append(_band(steps, mean - spread, mean + spread, colour))
        name = label if len(members) == 1 else f"{label} ({len(members)} seeds)"
        traces.append(_line(steps, mean, name, colour, dash))
    if not traces:
        return None
    axis = {"tickformat": ".0%"} if percent else {}
    return _chart(traces, title, "local steps", axis)


def privacy(runs: Sequence[RunRecord]) -> Chart:
    """Return ε so far over the rounds, with the budget where it covers the whole training."""
    paint = colours(groups(runs))
    traces = []
    for label, members in groups(runs).items():
        run = members[0]
        colour, dash = paint[label]
        rounds = [record["round"] + 1 for record in run.rounds]
        traces.append(_line(rounds, [record["epsilon_total"] for record in run.rounds], label, colour, dash))
    budget = runs[0].scenario.budget
    shapes = [_level(budget.epsilon, "budget")] if budget.scope == "total" else []
    return _chart(traces, "exact ε of everything sent so far", "rounds", {"rangemode": "tozero"}, shapes)


def power(runs: Sequence[RunRecord]) -> Chart:
    """Return the power transmitted so far, and the planned worst case as a thin line."""
    paint = colours(groups(runs))
    traces = []
    for label, members in groups(runs).items():
        run = members[0]
        colour, dash = paint[label]
        rounds = [record["round"] + 1 for record in run.rounds]
        spent = [record["power_transmitted_total"] for record in run.rounds]
        planned = [record["power_planned_total"] for record in run.rounds]
        traces.append(_line(rounds, spent, label, colour, dash))
        thin = _line(rounds, planned, f"{label}, planned", colour, "dot")
        traces.append({**thin, "line": {**thin["line"], "width": 1}, "showlegend": False})
    shapes = [_level(runs[0].scenario.budget.total_power, "budget")]
    return _chart(traces, "power so far [W] (thin: planned worst case)", "rounds", {"rangemode": "tozero"}, shapes)


def bound(runs: Sequence[RunRecord]) -> Chart:
    """Return the bound of each run's plan, split into its terms."""
    labels = list(groups(runs))
    plans = [members[0].plan for members in groups(runs).values()]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "y": labels,
            "x": [plan.bound.terms[term] for plan in plans],
            "name": style.TERM_NAMES[term],
            "marker": {"color": colour},
        }
        for term, colour in style.TERM_COLOURS.items()
    ]
    chart = _chart(traces, "bound on the optimality gap (Theorem 1)", "")
    chart["layout"] |= {"barmode": "stack", "yaxis": {"autorange": "reversed", "automargin": True}}
    return chart


def candidates(run: RunRecord) -> Chart:
    """Return the candidate space of the run's plan: the largest θ and its three limits over |K|."""
    plan = run.plan
    space = planning.candidates(plan)
    keep = np.unique(np.linspace(0, space.size.size - 1, _MOST_BARS).astype(int))
    curves = {"privacy": space.privacy_limit, "peak_power": space.peak_limit, "total_power": space.total_limit}
    traces = [
        _line(space.size[keep], curve[keep], style.LIMIT_NAMES[name], style.LIMIT_COLOURS[name], "dash")
        for name, curve in curves.items()
    ]
    traces.append(_line(space.size[keep], space.alignment[keep], "largest θ", "#888888", "solid"))
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [plan.num_scheduled],
            "y": [plan.alignment],
            "name": "chosen",
            "marker": {"symbol": "star", "size": 15, "color": style.POLICY_COLOURS["optimal"]},
        }
    )
    positive = space.alignment[space.alignment > 0]
    window = [float(np.log10(positive.min() / 1.5)), float(np.log10(positive.max() * 4))]
    axis = {"type": "log", "range": window}
    return _chart(traces, f"θ over the number of devices, at I = {plan.rounds}", "scheduled devices |K|", axis)


def devices(run: RunRecord) -> Chart | None:
    """Return the power of each scheduled device over the run, planned and transmitted, strongest channel first."""
    if not run.devices:
        return None
    rows = sorted(run.devices, key=lambda row: -row["gain"])
    rows = rows[:: max(1, len(rows) // _MOST_BARS)]
    place = [f"device {int(row['device'])}, gain {row['gain']:.3g}" for row in rows]
    traces = [
        {
            "type": "bar",
            "x": list(range(1, len(rows) + 1)),
            "y": [row[key] for row in rows],
            "name": name,
            "text": place,
            "textposition": "none",
            "hovertemplate": "%{text}: %{y:.3g} W",
            "marker": {"color": colour},
        }
        for key, name, colour in (
            ("power_planned", "planned, worst case", "#bbbbbb"),
            ("power_transmitted", "transmitted", style.POLICY_COLOURS["optimal"]),
        )
    ]
    chart = _chart(traces, "power per device over the run [W]", "scheduled devices, strongest channel first")
    chart["layout"]["barmode"] = "overlay"
    return chart


def _series(members: Sequence[RunRecord], metric: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The steps and the metric of every member, at the steps where all have it."""
    columns = [
        {step: record[metric] for step, record in zip(run.steps, run.rounds, strict=True) if record[metric] is not None}
        for run in members
    ]
    steps = sorted(set.intersection(*(set(column) for column in columns)))
    return np.array(steps), np.array([[column[step] for step in steps] for column in columns])


def _line(x: Any, y: Any, name: str, colour: str, dash: str) -> Chart:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": np.asarray(x).tolist(),
        "y": [float(value) if value is not None and np.isfinite(value) else None for value in y],
        "name": name,
        "line": {"color": colour, "dash": dash, "width": 2.2},
    }


def _band(x: Any, low: Any, high: Any, colour: str) -> Chart:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return {
        "type": "scatter",
        "x": [*x.tolist(), *x[::-1].tolist()],
        "y": [*low.tolist(), *high[::-1].tolist()],
        "fill": "toself",
        "fillcolor": f"rgba({red},{green},{blue},0.18)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _level(value: float, text: str) -> Chart:
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": value,
        "y1": value,
        "line": {"color": "#D55E00", "width": 1.5, "dash": "dash"},
        "label": {"text": text, "textposition": "end", "font": {"color": "#D55E00", "size": 11}},
    }


def _chart(
    traces: list[Chart], title: str, x_title: str, y_axis: Chart | None = None, shapes: list[Chart] | None = None
) -> Chart:
    layout = {
        "xaxis": {"title": {"text": x_title}, "automargin": True},
        "yaxis": {"automargin": True, **(y_axis or {})},
        "shapes": shapes or [],
        "legend": {"orientation": "h", "x": 0, "y": 1.03, "yanchor": "bottom", "traceorder": "normal"},
        "margin": {"l": 50, "r": 12, "t": 12, "b": 40},
        "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }
    return {"title": title, "data": traces, "layout": layout}
