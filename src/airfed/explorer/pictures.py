"""The pictures of the design section. Pure functions: a view or a plan in, SVG out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed.explorer.view import View
from airfed.planning import Plan
from airfed.showing import plans, svg
from airfed.showing.chart import Axis, Chart
from airfed.showing.svg import Area, Scale
from airfed.showing.words import FLEET_LIMITS, LIMITS, TERMS, number

Floats = NDArray[np.float64]

_MOST_BARS: Final = 400


@dataclass(frozen=True, kw_only=True, eq=False)
class Strip:
    """The devices in one round, the strongest first; in a large fleet neighbours share a bar.

    Args:
        lit: [W] of scheduled devices, NaN where there are none.
        dark: [W] that the others would need for the same θ, NaN where there are none.
        ceiling: their peak powers.
        strongest, weakest: |h| at both ends.
    """

    lit: Floats
    dark: Floats
    ceiling: Floats
    strongest: float
    weakest: float

    @classmethod
    def of(cls, plan: Plan, index: int) -> Strip:
        """Return the strip of round i of a plan."""
        entry, fleet = plan.sequence[index], plan.problem.fleet
        gain = fleet.gain_in(index)
        order = np.argsort(-gain, kind="stable")
        scheduled = plan.amplitudes.shares(index) > 0
        with np.errstate(divide="ignore", over="ignore"):
            needed = np.square(entry.alignment / gain)
        needed[entry.scheduled] = entry.power
        lit, dark, ceiling = _bars(needed[order], scheduled[order], fleet.peak_power[order])
        return cls(lit=lit, dark=dark, ceiling=ceiling, strongest=float(gain[order[0]]), weakest=float(gain[order[-1]]))

    @property
    def top(self) -> float:
        """How high its axis should reach [W]."""
        return 1.12 * max(float(np.nanmax(self.lit)), float(np.quantile(self.ceiling, 0.95)))


def strip(view: View, width: float) -> str:
    """Return the devices sorted by gain: scheduled ones lit, transmit power as height, peak power as a line."""
    plan, fleet = view.plan, view.plan.problem.fleet
    scheduled = plan.amplitudes.shares(0) > 0
    found = Strip.of(plan, 0)
    title = f"{plan.num_scheduled} of {fleet.num_devices} devices transmit; the strongest is on the left"
    prefix = bool(scheduled[np.argsort(-fleet.gain, kind="stable")][: plan.num_scheduled].all())
    limit = view.next_device.limit if view.next_device is not None and prefix else ""
    return drawn_strip(
        found, width, title=title, top=found.top, edge=plan.num_scheduled / fleet.num_devices, limit=limit
    )


def drawn_strip(
    strip: Strip, width: float, *, title: str, top: float, edge: float | None = None, limit: str = ""
) -> str:
    """Return a strip as SVG.

    Args:
        strip: the bars.
        width: of the picture [px].
        title: for those who do not see it.
        top: where the axis ends [W].
        edge, limit: after which share of the devices which limit stops the next one; None or "": nothing is said of it.
    """
    area = Area(left=46, top=30, right=width - 4, bottom=170)
    height = area.bottom + (24 if edge is None else 44)
    lit, dark, ceiling = strip.lit, strip.dark, strip.ceiling
    ys = Scale(Axis(label="W per round, worst case", low=0.0, high=top, kind="root"), area.bottom, area.top)
    step = area.width / lit.size
    xs = area.left + step * (np.arange(lit.size, dtype=np.float64) + 0.5)
    stroke = max(step * 0.72, 0.8)
    parts = [
        svg.left_axis(ys, area, ys.axis.ticks(), label=ys.axis.label),
        svg.clipped(
            area,
            svg.columns(xs, ys(dark), area.bottom, "bar-out", stroke),
            svg.columns(xs, ys(lit), area.bottom, "bar-lit", stroke),
            svg.polyline(*_steps(xs, ys(ceiling), step), "lim-peak_power", "dash", 0.9),
        ),
        svg.segment(area.left, area.bottom, area.right, area.bottom, "axis"),
        *_strip_labels(strip, area, area.left + area.width * (edge or 0.0), limit),
    ]
    return svg.document(width, height, title, *parts)


def candidates(view: View, width: float) -> str:
    """Return the candidate space (the paper's Fig. 2): θ with its three limits, and the objective, over |K|."""
    upper, lower = plans.alignment_chart(view.plan, view.space), plans.objective_chart(view.plan, view.space)
    upper = replace(upper, x=replace(upper.x, label=""))  # it stands under the lower one
    return svg.render(upper, width, 204, left=48) + svg.render(lower, width, 160, left=48)


def over_rounds(chart: Chart, width: float) -> str:
    """Return a chart over the rounds with a line at the one that the page shows."""
    return svg.render(chart, width, 300, cursor=True)


def limit_legend() -> str:
    """Return the key to the limits, as HTML."""
    limits = [svg.line_key(label, f"lim-{name}", "dash", 0.9) for name, label in FLEET_LIMITS.items()]
    return svg.keyed(svg.line_key("largest θ", "ink"), *limits)


def term_legend() -> str:
    """Return the key to the terms, as HTML."""
    return svg.keyed(*(svg.box_key(label, f"term-{name}") for name, label in TERMS.items()))


def _bars(needed: Floats, scheduled: NDArray[np.bool_], peak: Floats) -> tuple[Floats, Floats, Floats]:
    """Heights of lit and dark bars (NaN for none) and the peak power; neighbours share a bar in a large fleet."""
    count = min(needed.size, _MOST_BARS)
    starts = np.linspace(0, needed.size, count, endpoint=False).round().astype(np.intp)
    lit = np.maximum.reduceat(np.where(scheduled, needed, -np.inf), starts)
    dark = np.maximum.reduceat(np.where(scheduled, -np.inf, needed), starts)
    ceiling = np.maximum.reduceat(peak, starts)
    return np.where(lit < 0, np.nan, lit), np.where(dark < 0, np.nan, dark), ceiling


def _steps(xs: Floats, ys: Floats, step: float) -> tuple[Floats, Floats]:
    if np.all(ys == ys[0]):
        return np.array([xs[0] - step / 2, xs[-1] + step / 2]), ys[[0, -1]]
    return np.stack([xs - step / 2, xs + step / 2], axis=1).ravel(), np.repeat(ys, 2)


def _strip_labels(strip: Strip, area: Area, edge: float, limit: str) -> list[str]:
    base = area.bottom + 16
    parts = [
        svg.text(area.left, base, f"strongest |h| = {number(strip.strongest)}", "tick"),
        svg.text(area.right, base, f"weakest |h| = {number(strip.weakest)}", "tick", anchor="end"),
        svg.text(area.right, area.top - 9, "dashed: peak power", "tick", anchor="end"),
    ]
    if limit:
        label = f"{LIMITS[limit]} stops the next one"
        half = 3.6 * len(label)  # about half its width [px]
        middle = min(max(edge, area.left + half), area.right - half)
        parts += [
            svg.segment(edge, area.top - 2, edge, area.bottom + 21, f"stop lim-{limit}"),
            svg.text(middle, area.bottom + 35, label, f"label strong lim-{limit}", anchor="middle"),
        ]
    return parts
