"""The pictures of the design section. Pure functions: a view in, SVG out."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed.experiments.style import LIMIT_NAMES, TERM_COLOURS, TERM_NAMES
from airfed.explorer import svg
from airfed.explorer.svg import Area, Scale, number
from airfed.explorer.view import View

Floats = NDArray[np.floating]

_MOST_BARS: Final = 400


def strip(view: View, width: float) -> str:
    """Return the devices sorted by gain: scheduled ones lit, transmit power as height, peak power as a line."""
    height = 214.0
    area = Area(left=46, top=30, right=width - 4, bottom=height - 44)
    plan = view.plan
    fleet = plan.problem.fleet
    order = np.argsort(-fleet.gain, kind="stable")
    scheduled = np.zeros(fleet.num_devices, dtype=bool)
    scheduled[plan.scheduled] = True
    with np.errstate(divide="ignore", over="ignore"):
        needed = np.square(plan.alignment / fleet.gain)
    peak = fleet.peak_power[order]
    lit, dark, ceiling = _bars(needed[order], scheduled[order], peak)
    top = 1.12 * max(float(np.nanmax(lit)), float(np.quantile(ceiling, 0.95)))
    ys = Scale(low=0.0, high=top, start=area.bottom, end=area.top, kind="root")
    step = (area.right - area.left) / lit.size
    xs = area.left + step * (np.arange(lit.size) + 0.5)
    stroke = max(step * 0.72, 0.8)
    edge = area.left + (area.right - area.left) * plan.num_scheduled / fleet.num_devices
    parts = [
        svg.left_axis(ys, area, "W per round, worst case", most=3),
        _columns(xs, ys(dark), area.bottom, "bar-out", stroke),
        _columns(xs, ys(lit), area.bottom, "bar-lit", stroke),
        svg.line(*_steps(xs, ys(ceiling), step), "limit lim-peak_power"),
        svg.segment(area.left, area.bottom, area.right, area.bottom, "axis"),
        *_strip_labels(view, order, area, edge),
    ]
    title = f"{plan.num_scheduled} of {fleet.num_devices} devices transmit; the strongest is on the left"
    return svg.document(width, height, title, *parts)


def candidates(view: View, width: float) -> str:
    """Return the candidate space (the paper's Fig. 2): θ with its three limits, and the objective, over |K|."""
    height = 352.0
    plan, space = view.plan, view.space
    chosen = plan.num_scheduled - 1
    index, told = svg.thin(space.size.size, chosen), svg.thin(space.size.size, chosen, most=50)
    sizes = space.size[index]
    upper = Area(left=50, top=24, right=width - 6, bottom=196)
    lower = Area(left=50, top=232, right=width - 6, bottom=height - 40)
    last = max(float(space.size[-1]), 2.0)
    xs = Scale(low=1.0, high=last, start=upper.left, end=upper.right)
    curves = {"privacy": space.privacy_limit, "peak_power": space.peak_limit, "total_power": space.total_limit}
    low, high = svg.padded(space.alignment, below=1.5, above=3.0)
    ys = Scale(low=low, high=high, start=upper.bottom, end=upper.top, kind="log")
    x = xs(sizes)
    theta = _visible(space.alignment[index], ys(space.alignment[index]))
    parts = [
        svg.left_axis(ys, upper, "alignment θ"),
        svg.band(x, np.full(x.size, upper.bottom), ys(np.maximum(space.alignment[index], low)), "feasible"),
    ]
    for name, curve in curves.items():
        seen = np.where((curve[index] > high) | (curve[index] <= 0), np.nan, curve[index])
        parts.append(svg.line(x, ys(seen), f"limit lim-{name}"))
    parts += [
        svg.line(x, theta, "curve"),
        svg.star(xs.at(plan.num_scheduled), ys.at(plan.alignment), title=f"chosen: θ = {number(plan.alignment, 4)}"),
        svg.bottom_axis(xs, upper, "", shown=False),
    ]
    objective = space.objective
    bottom, most = svg.padded(objective, below=1.3, above=1.0)
    most = min(most, max(30 * bottom, 1.5 * float(objective[chosen])))
    zs = Scale(low=bottom, high=most, start=lower.bottom, end=lower.top, kind="log")
    parts += [
        svg.left_axis(zs, lower, "objective Ψ at this I", most=3),
        svg.line(x, np.where(objective[index] <= most, zs(objective[index]), np.nan), "curve"),
        svg.bottom_axis(xs, lower, "scheduled devices |K|"),
        svg.star(xs.at(plan.num_scheduled), zs.at(_own_objective(view))),
        svg.hover(
            xs(told + 1).tolist(),
            Area(left=50, top=24, right=width - 6, bottom=lower.bottom),
            _candidate_titles(view, told),
        ),
    ]
    return svg.document(
        width, height, f"Candidates at {plan.rounds} rounds; {plan.num_scheduled} devices chosen", *parts
    )


def bound(view: View, width: float) -> str:
    """Return the bound split into its terms over the number of rounds, with the chosen number."""
    height = 352.0
    plan, curve = view.plan, view.curve
    area = Area(left=50, top=24, right=width - 6, bottom=height - 40)
    last = max(float(curve.rounds[-1]), 2.0)
    xs = Scale(low=1.0, high=last, start=area.left, end=area.right, kind="log")
    best = min(float(curve.total.min()), plan.bound.total)
    ys = Scale(low=0.0, high=max(3.2 * best, 1.15 * plan.bound.total), start=area.bottom, end=area.top)
    x = xs(curve.rounds)
    floor = np.zeros(curve.rounds.size)
    parts = []
    for name in TERM_COLOURS:
        upper = floor + curve.terms[name]
        parts.append(svg.band(x, ys(floor), ys(upper), f"term-{name}"))
        floor = upper
    chosen = xs.at(plan.rounds)
    parts += [
        svg.left_axis(ys, area, "bound on the gap (Theorem 1)", most=5),
        svg.segment(chosen, area.top, chosen, area.bottom, "guide"),
        svg.bottom_axis(xs, area, "aggregation rounds I", most=6),
        svg.star(chosen, ys.at(plan.bound.total), title=f"chosen: I = {plan.rounds}"),
        svg.hover(x.tolist(), area, _bound_titles(view)),
    ]
    return svg.document(width, height, f"Bound over the number of rounds; {plan.rounds} rounds chosen", *parts)


def limit_legend() -> str:
    """Return the key to the limits, as HTML."""
    items = [f'<span class="key"><i class="dash lim-{name}"></i>{label}</span>' for name, label in LIMIT_NAMES.items()]
    return '<div class="legend"><span class="key"><i class="solid"></i>largest θ</span>' + "".join(items) + "</div>"


def term_legend() -> str:
    """Return the key to the terms, as HTML."""
    items = [f'<span class="key"><i class="box term-{name}"></i>{label}</span>' for name, label in TERM_NAMES.items()]
    return '<div class="legend">' + "".join(items) + "</div>"


def _bars(needed: Floats, scheduled: NDArray[np.bool_], peak: Floats) -> tuple[Floats, Floats, Floats]:
    """Heights of lit and dark bars (NaN for none) and the peak power; neighbours share a bar in a large fleet."""
    count = min(needed.size, _MOST_BARS)
    starts = np.linspace(0, needed.size, count, endpoint=False).round().astype(np.intp)
    lit = np.maximum.reduceat(np.where(scheduled, needed, -np.inf), starts)
    dark = np.maximum.reduceat(np.where(scheduled, -np.inf, needed), starts)
    ceiling = np.maximum.reduceat(peak, starts)
    return np.where(lit < 0, np.nan, lit), np.where(dark < 0, np.nan, dark), ceiling


def _columns(xs: Floats, ys: Floats, floor: float, css: str, stroke: float) -> str:
    pieces = [
        f"M{x:.1f} {floor:.1f}V{min(y, floor - 1.5):.1f}"
        for x, y in zip(xs.tolist(), ys.tolist(), strict=True)
        if np.isfinite(y)
    ]
    return f'<path class="{css}" stroke-width="{stroke:.2f}" d="{"".join(pieces)}"/>'


def _steps(xs: Floats, ys: Floats, step: float) -> tuple[Floats, Floats]:
    if np.all(ys == ys[0]):
        return np.array([xs[0] - step / 2, xs[-1] + step / 2]), ys[[0, -1]]
    return np.stack([xs - step / 2, xs + step / 2], axis=1).ravel(), np.repeat(ys, 2)


def _strip_labels(view: View, order: NDArray[np.intp], area: Area, edge: float) -> list[str]:
    fleet, plan = view.plan.problem.fleet, view.plan
    strongest, weakest = fleet.gain[order[0]], fleet.gain[order[-1]]
    base = area.bottom + 16
    parts = [
        svg.text(area.left, base, f"strongest |h| = {number(float(strongest))}", "tick"),
        svg.text(area.right, base, f"weakest |h| = {number(float(weakest))}", "tick", anchor="end"),
        svg.text(area.right, area.top - 9, "dashed: peak power", "tick", anchor="end"),
    ]
    if view.next_device is None:
        return parts
    prefix = bool(np.all(np.isin(order[: plan.num_scheduled], plan.scheduled)))
    if prefix:
        limit = view.next_device.limit
        label = f"{LIMIT_NAMES[limit]} stops the next one"
        half = 3.6 * len(label)  # about half its width [px]
        middle = min(max(edge, area.left + half), area.right - half)
        parts += [
            svg.segment(edge, area.top - 2, edge, area.bottom + 21, f"stop lim-{limit}"),
            svg.text(middle, area.bottom + 35, label, f"label strong lim-{limit}", anchor="middle"),
        ]
    return parts


def _visible(values: Floats, pixels: Floats) -> Floats:
    return np.where(np.isfinite(values) & (values > 0), pixels, np.nan)


def _own_objective(view: View) -> float:
    """Ψ of the plan itself; a policy other than the optimal one lies above the curve."""
    plan = view.plan
    learning = plan.problem.learning
    noise = 0.5 * learning.dimension * (plan.problem.link.noise_std / (plan.num_scheduled * plan.alignment)) ** 2
    return float(4.0 * (1.0 - plan.num_scheduled / plan.problem.fleet.num_devices) ** 2 + noise)


def _candidate_titles(view: View, index: NDArray[np.intp]) -> list[str]:
    space = view.space
    return [
        f"{space.size[i]} devices\nlargest θ {number(float(space.alignment[i]))}\n"
        f"privacy allows {number(float(space.privacy_limit[i]))}\n"
        f"peak power allows {number(float(space.peak_limit[i]))}\n"
        f"total power allows {number(float(space.total_limit[i]))}"
        for i in index
    ]


def _bound_titles(view: View) -> list[str]:
    curve = view.curve
    total = curve.total
    return [
        f"I = {rounds}: bound {number(float(total[i]), 4)}\n"
        + "\n".join(f"{TERM_NAMES[name]} {number(float(curve.terms[name][i]), 4)}" for name in TERM_COLOURS)
        for i, rounds in enumerate(curve.rounds)
    ]
