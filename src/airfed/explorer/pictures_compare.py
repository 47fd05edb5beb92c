"""The pictures of the comparison: policies side by side, the front of ε against total power, what a budget buys."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from airfed.experiments.style import LIMIT_NAMES, TERM_COLOURS, TERM_NAMES
from airfed.explorer import svg
from airfed.explorer.svg import Area, Scale, number
from airfed.explorer.tradeoffs import Front, Price
from airfed.planning import Plan

Floats = NDArray[np.float64]
Segment = tuple[float, float, float, float]


def policy_table(plans: Mapping[str, Plan], reasons: Mapping[str, str]) -> str:
    """Return the policies side by side as an HTML table, each bound as a bar of its terms."""
    best = plans["optimal"].bound.total
    longest = min(max(plan.bound.total for plan in plans.values()), 4 * best)
    rows = "".join(_policy_row(name, plan, best, longest) for name, plan in plans.items())
    for name, reason in reasons.items():
        rows += f'<tr class="none"><th scope="row">{name}</th><td colspan="8">{html.escape(reason)}</td></tr>'
    head = "".join(
        f'<th scope="col"{css}>{label}</th>'
        for label, css in (
            ("policy", ""),
            ("bound", ' class="wide"'),
            ("above the optimum", ""),
            ("devices", ""),
            ("rounds", ""),
            ("W in total", ""),
            ("ε per round", ""),
            ("ε in total", ""),
            ("limit", ""),
        )
    )
    notes = "".join(
        f'<p class="note">* {name}: {html.escape(" ".join(plan.notes))}</p>'
        for name, plan in plans.items()
        if plan.violations
    )
    return f'<table class="policies"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{notes}'


def front_map(front: Front, width: float) -> str:
    """Return the bound over ε and total power: hue tells the limit, lines join equal bounds, the star is the design."""
    height = min(max(0.62 * width, 300.0), 420.0)
    area = Area(left=56, top=24, right=width - 10, bottom=height - 42)
    xs = Scale(low=front.epsilon[0], high=front.epsilon[-1], start=area.left, end=area.right, kind="log")
    ys = Scale(low=front.total_power[0], high=front.total_power[-1], start=area.bottom, end=area.top, kind="log")
    x, y = xs(front.epsilon), ys(front.total_power)
    now = float(front.bound[front.power_index, front.epsilon_index])
    parts = [_cells(front, x, y, area)]
    for level in levels(front.bound, now):
        css = "contour now" if level == now else "contour"
        lines = contour(x, y, np.log(front.bound), math.log(level))
        parts.append(
            f'<path class="{css}" d="{"".join(f"M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" for a, b, c, d in lines)}"/>'
        )
        parts.append(_contour_label(lines, number(level), area, css))
    parts += [
        svg.bottom_axis(xs, area, "privacy budget ε", most=6),
        *(_power_tick(ys, area, value) for value in ys.ticks(5)),
        svg.text(0, area.top - 9, "total power budget [W]"),
        svg.star(
            float(x[front.epsilon_index]), float(y[front.power_index]), title=f"present design: bound {number(now)}"
        ),
    ]
    return svg.document(width, height, "Bound over privacy budget and total power", *parts)


def slice_chart(front: Front, width: float, *, over: str) -> str:
    """Return the bound over one budget, the other as it is. `over` is "epsilon" or "total_power"."""
    height = 190.0
    area = Area(left=50, top=24, right=width - 8, bottom=height - 42)
    if over == "epsilon":
        values, bound, here = front.epsilon, front.bound[front.power_index], front.epsilon_index
        binding, label = front.binding[front.power_index], "privacy budget ε"
    else:
        values, bound, here = front.total_power, front.bound[:, front.epsilon_index], front.power_index
        binding, label = front.binding[:, front.epsilon_index], "total power budget [W]"
    xs = Scale(low=values[0], high=values[-1], start=area.left, end=area.right, kind="log")
    low, high = svg.padded(bound, below=1.15, above=1.15)
    ys = Scale(low=low, high=high, start=area.bottom, end=area.top, kind="log")
    x, y = xs(values), np.where(np.isfinite(bound), ys(np.where(np.isfinite(bound), bound, high)), np.nan)
    titles = [
        f"{number(float(v))}: bound {number(float(b))}, {LIMIT_NAMES.get(str(k), 'no plan')}"
        for v, b, k in zip(values, bound, binding, strict=True)
    ]
    parts = [
        svg.left_axis(ys, area, "bound", most=3),
        svg.line(x, y, "curve"),
        svg.bottom_axis(xs, area, label, most=5),
        svg.star(float(x[here]), float(y[here])),
        svg.hover(x.tolist(), area, titles),
    ]
    return svg.document(width, height, f"Bound over the {label}", *parts)


def price_sentences(price: Price) -> list[tuple[str, str]]:
    """Return what the next unit of each budget buys, as (headline, remark) pairs."""
    return [
        ("One more watt", _bought(price.now, price.watt, price.binding, "total_power")),
        ("One more unit of ε", _bought(price.now, price.epsilon, price.binding, "privacy")),
        ("Twice the power", _bought(price.now, price.double_power, price.binding, "total_power")),
        ("Twice the ε", _bought(price.now, price.double_epsilon, price.binding, "privacy")),
    ]


def levels(bound: Floats, now: float) -> list[float]:
    """Return up to eight bounds to draw lines for: `now`, and a geometric sequence to both sides."""
    finite = bound[np.isfinite(bound)]
    if not finite.size or not math.isfinite(now) or finite.max() / finite.min() < 1 + 1e-6:
        return []
    step = max((float(finite.max()) / float(finite.min())) ** (1 / 8), 1.02)
    found = [now * step**power for power in range(-8, 9)]
    return [level for level in found if finite.min() < level < finite.max() or level == now]


def contour(x: Floats, y: Floats, z: Floats, level: float) -> list[Segment]:
    """Return the line z = level on a grid as segments (marching squares); cells with an infinite corner are left out.

    Args:
        x: (m,) of the columns.
        y: (n,) of the rows.
        z: (n, m).
        level: the value to follow.
    """
    found: list[Segment] = []
    for i in range(y.size - 1):
        for j in range(x.size - 1):
            corners = [
                (x[j], y[i], z[i, j]),
                (x[j + 1], y[i], z[i, j + 1]),
                (x[j + 1], y[i + 1], z[i + 1, j + 1]),
                (x[j], y[i + 1], z[i + 1, j]),
            ]
            if not all(math.isfinite(c) for _, _, c in corners):
                continue
            crossings = []
            for (ax, ay, az), (bx, by, bz) in zip(corners, corners[1:] + corners[:1], strict=True):
                if (az < level) != (bz < level):
                    t = (level - az) / (bz - az)
                    crossings.append((float(ax + t * (bx - ax)), float(ay + t * (by - ay))))
            found += [(*crossings[k], *crossings[k + 1]) for k in range(0, len(crossings) - 1, 2)]
    return found


def _policy_row(name: str, plan: Plan, best: float, longest: float) -> str:
    bars = ""
    for term in TERM_COLOURS:
        share = plan.bound.terms[term] / longest
        label = f"{TERM_NAMES[term]}: {number(plan.bound.terms[term], 4)}"
        bars += f'<i class="term-{term}" style="flex:0 0 {100 * min(share, 1):.2f}%" title="{label}"></i>'
    mark = "*" if plan.violations else ""
    excess = plan.bound.total / best - 1
    above = "0%" if excess <= 0 else f"{excess:.1%}" if excess < 9.995 else f"{1 + excess:.3g}×"
    cells = "".join(
        f"<td>{cell}</td>"
        for cell in (
            above,
            plan.num_scheduled,
            plan.rounds,
            number(plan.power_total, 4),
            number(plan.epsilon_round),
            number(plan.epsilon_total),
        )
    )
    css = ' class="best"' if name == "optimal" else ""
    return (
        f'<tr{css}><th scope="row"><i class="dot policy-{name}"></i>{name}{mark}</th><td class="wide">'
        f'<span class="bound">{number(plan.bound.total, 4)}</span><span class="bars">{bars}</span></td>'
        f'{cells}<td><span class="chip lim-{plan.binding}">{LIMIT_NAMES[plan.binding]}</span></td></tr>'
    )


def _cells(front: Front, x: Floats, y: Floats, area: Area) -> str:
    finite = front.bound[np.isfinite(front.bound)]
    low, high = (float(np.log(finite.min())), float(np.log(finite.max()))) if finite.size else (0.0, 1.0)
    across = np.concatenate([[area.left], (x[1:] + x[:-1]) / 2, [area.right]])
    down = np.concatenate([[area.bottom], (y[1:] + y[:-1]) / 2, [area.top]])
    parts = []
    for i in range(y.size):
        for j in range(x.size):
            limit, value = str(front.binding[i, j]), float(front.bound[i, j])
            tone = (math.log(value) - low) / max(high - low, 1e-9) if math.isfinite(value) else 0.0
            title = f"ε = {number(float(front.epsilon[j]))}, {number(float(front.total_power[i]))} W: " + (
                f"bound {number(value)}, {LIMIT_NAMES[limit]} is the limit" if limit else "no plan fits"
            )
            parts.append(
                f'<rect class="cell {f"lim-{limit}" if limit else "void"}" x="{across[j]:.1f}" y="{down[i + 1]:.1f}" '
                f'width="{across[j + 1] - across[j]:.1f}" height="{down[i] - down[i + 1]:.1f}" '
                f'opacity="{0.12 + 0.5 * tone:.2f}"><title>{title}</title></rect>'
            )
    return "".join(parts)


def _contour_label(lines: list[Segment], label: str, area: Area, css: str) -> str:
    if not lines:
        return ""
    x, y = max(((a, b) for a, b, _, _ in lines), key=lambda point: point[0] - 0.4 * point[1])
    x = min(max(x, area.left + 14), area.right - 16)
    y = min(max(y, area.top + 10), area.bottom - 4)
    return svg.text(x, y - 3, label, f"{css.replace('contour', 'contour-label')}", anchor="middle")


def _power_tick(scale: Scale, area: Area, value: float) -> str:
    y = scale.at(value)
    return svg.segment(area.left - 4, y, area.left, y, "axis") + svg.text(
        area.left - 7, y + 3.5, number(value), "tick", anchor="end"
    )


def _bought(now: float, then: float, binding: str, budget: str) -> str:
    gain = 1 - then / now
    if gain > 1e-12:
        share = f"{gain:.1%}" if gain >= 0.001 else f"{gain:.1g}".replace("e-0", "e-") + " of it"
        return f"lowers the bound by {share}, from {number(now, 5)} to {number(then, 5)}."
    reason = f" {LIMIT_NAMES[binding]} is the limit" if binding != budget else " other terms hold it"
    return f"buys nothing:{reason}."
