"""Charts for pages, as SVG text: `render` draws a chart, `legend` its key, and the rest is what others are made of.

Colours are CSS classes, so that one drawing serves a light and a dark page; `colours.stylesheet` defines them.
Coordinates are pixels of the very width a chart is asked for, so that its letters keep their size on a small screen.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from airfed.plotting.cells import cells_key, painted
from airfed.plotting.chart import Axis, Band, Cells, Chart, Columns, Floats, Level, Line, Mark, Part, thin
from airfed.plotting.colours import known
from airfed.text.phrases import TERMS, number

_MOST_POINTS: Final = 240  # of a line; more cannot be seen
_LETTER: Final = 6.3  # width of a figure on an axis [px]
_DASHES: Final = {"solid": "", "dash": "5 4", "dot": "1.5 3", "dashdot": "7 3 1.5 3", "longdash": "10 4"}
STAR: Final = "M0 -7.5L2.1 -2.6 7.3 -2.3 3.3 1.1 4.6 6.2 0 3.4 -4.6 6.2 -3.3 1.1 -7.3 -2.3 -2.1 -2.6Z"


@dataclass(frozen=True, kw_only=True)
class Area:
    """The inner rectangle of a chart."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        """From left to right."""
        return self.right - self.left

    @property
    def height(self) -> float:
        """From top to bottom."""
        return self.bottom - self.top


@dataclass(frozen=True)
class Scale:
    """A map from the values of an axis to pixels from `start` to `end`."""

    axis: Axis
    start: float
    end: float

    def __call__(self, value: ArrayLike) -> Floats:
        """Return pixels; what is far outside is cut off there, NaN stays NaN."""
        share = np.clip(self.axis.share(value), -1.0, 2.0)
        return np.asarray(self.start + share * (self.end - self.start))

    def at(self, value: float) -> float:
        """Return one pixel."""
        return float(self(value))


def render(
    chart: Chart, width: float, height: float, *, y_label: bool = True, left: float = 0.0, cursor: bool = False
) -> str:
    """Return a chart as an SVG.

    Args:
        chart: what to draw.
        width, height: its size [px].
        y_label: False where the page says already what y is.
        left: where its area begins at least [px], for charts that stand above each other.
        cursor: add a line that the page moves, along a linear x axis, to the value of its CSS variable --x.
    """
    up = chart.y.ticks(max(2, int((height - 64) / 34)))
    left = max(26.0, left, 11 + _LETTER * max((len(chart.y.text(value)) for value in up), default=0))
    area = Area(left=left, top=24 if y_label else 10, right=width - 12, bottom=height - (40 if chart.x.label else 22))
    xs, ys = Scale(chart.x, area.left, area.right), Scale(chart.y, area.bottom, area.top)
    drawn = "".join(_part(part, xs, ys, area) for part in chart.parts)
    places = chart.told()
    return document(
        width,
        height,
        chart.title,
        left_axis(ys, area, up, label=chart.y.label if y_label else ""),
        clipped(area, drawn, _cursor(xs, area) if cursor else ""),
        "".join(_above(part, xs, ys, area) for part in chart.parts),
        bottom_axis(xs, area),
        hover(xs([x for x, _ in places]).tolist(), area, [text for _, text in places]),
        description=chart.description(),
    )


def legend(*charts: Chart) -> str:
    """Return the key to charts as HTML, each name once."""
    keys = {part.name: part for chart in charts for part in chart.legend()}
    return keyed(*map(_key, keys.values()))


def keyed(*keys: str) -> str:
    """Return a legend of keys, as HTML."""
    return f'<div class="legend">{"".join(keys)}</div>'


def line_key(name: str, colour: str, dash: str = "solid", weight: float = 1.0) -> str:
    """Return the key to a line."""
    sample = f'<svg width="22" height="8"><path {_stroke(colour, dash, weight)} d="M0 4H22"/></svg>'
    return f'<span class="key">{sample}{html.escape(name)}</span>'


def box_key(name: str, colour: str) -> str:
    """Return the key to an area."""
    return f'<span class="key"><i class="box {known(colour)}"></i>{html.escape(name)}</span>'


def stack(terms: Mapping[str, float], longest: float) -> str:
    """Return the terms of a bound as one bar, as HTML; the bar is full where they sum up to `longest`."""
    pieces = "".join(
        f'<i class="term-{name}" style="flex:0 0 {100 * min(terms[name] / longest, 1):.2f}%" '
        f'title="{label}: {number(terms[name], 4)}"></i>'
        for name, label in TERMS.items()
    )
    return f'<span class="bars">{pieces}</span>'


def document(width: float, height: float, title: str, *parts: str, description: str = "") -> str:
    """Return a whole SVG; `title` and `description` are read out by screen readers."""
    words = f"<desc>{html.escape(description)}</desc>" if description else ""
    return (
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{html.escape(title)}">{words}{"".join(parts)}</svg>'
    )


def clipped(area: Area, *parts: str) -> str:
    """Return parts of which nothing is seen outside the area."""
    place = f'x="{area.left:.1f}" y="{area.top:.1f}" width="{area.width:.1f}" height="{area.height:.1f}"'
    box = f"{area.left:.1f} {area.top:.1f} {area.width:.1f} {area.height:.1f}"
    return f'<svg {place} viewBox="{box}" preserveAspectRatio="none">{"".join(parts)}</svg>'


def columns(xs: Floats, ys: Floats, floor: float, css: str, stroke: float) -> str:
    """Return upright bars as one path; a bar is there, if only just, wherever its value is finite."""
    pieces = [
        f"M{x:.1f} {floor:.1f}V{min(y, floor - 1.5):.1f}"
        for x, y in zip(xs.tolist(), ys.tolist(), strict=True)
        if np.isfinite(y)
    ]
    return f'<path class="{css}" fill="none" stroke-width="{stroke:.2f}" d="{"".join(pieces)}"/>'


def segment(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """Return one straight line."""
    return f'<path class="{css}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def text(x: float, y: float, content: str, css: str = "label", *, anchor: str = "start") -> str:
    """Return a text."""
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(content)}</text>'


def star(x: float, y: float, *, title: str) -> str:
    """Return the mark of the chosen point."""
    place = f'transform="translate({x:.1f} {y:.1f})"'
    return f'<path class="star" {place} d="{STAR}"><title>{html.escape(title)}</title></path>'


def polyline(xs: ArrayLike, ys: ArrayLike, colour: str, dash: str = "solid", weight: float = 1.0) -> str:
    """Return a line through pixels."""
    return f'<path {_stroke(colour, dash, weight)} d="{path(xs, ys)}"/>'


def path(xs: ArrayLike, ys: ArrayLike) -> str:
    """Return the `d` of a polyline; it is interrupted where a value is not finite."""
    across, up = np.asarray(xs), np.asarray(ys)
    good = np.isfinite(across) & np.isfinite(up)
    parts, pen = [], "M"
    for x, y, ok in zip(across.tolist(), up.tolist(), good.tolist(), strict=True):
        if ok:
            parts.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L" if ok else "M"
    return "".join(parts)


def rectangle(x: float, y: float, width: float, height: float, css: str, *, title: str) -> str:
    """Return a rectangle; `title` appears when the pointer rests on it."""
    size = f'width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return f'<rect class="{css}" x="{x:.1f}" y="{y:.1f}" {size}><title>{html.escape(title)}</title></rect>'


def hover(xs: Sequence[float], area: Area, titles: Sequence[str]) -> str:
    """Return invisible columns, one around each x, that tell their title when the pointer rests on them."""
    edges = [area.left, *((a + b) / 2 for a, b in pairwise(xs)), area.right]
    pairs = zip(pairwise(edges if xs else ()), titles, strict=True)
    return "".join(rectangle(a, area.top, b - a, area.height, "hover", title=title) for (a, b), title in pairs)


def bottom_axis(scale: Scale, area: Area) -> str:
    """Return the x axis; a figure that would touch the one before it is left out."""
    parts, free = [segment(area.left, area.bottom, area.right, area.bottom, "axis")], -np.inf
    for value in scale.axis.ticks(max(2, int(area.width / 62))):
        x, written = scale.at(value), scale.axis.text(value)
        half = _LETTER * len(written) / 2
        parts.append(segment(x, area.bottom, x, area.bottom + 4, "axis"))
        if x - half > free:
            parts.append(text(x, area.bottom + 16, written, "tick", anchor="middle"))
            free = x + half + 5
    if scale.axis.label:
        parts.append(text((area.left + area.right) / 2, area.bottom + 33, scale.axis.label, anchor="middle"))
    return "".join(parts)


def left_axis(scale: Scale, area: Area, ticks: Sequence[float], *, label: str) -> str:
    """Return the y axis as grid lines with figures, its label above it."""
    parts, free = [], np.inf
    for value in ticks:
        y = scale.at(value)
        parts.append(segment(area.left, y, area.right, y, "grid"))
        if y < free:
            parts.append(text(area.left - 7, y + 3.5, scale.axis.text(value), "tick", anchor="end"))
            free = y - 12
    return "".join(parts) + (text(0, area.top - 10, label) if label else "")


def _cursor(scale: Scale, area: Area) -> str:
    low, step = scale.axis.low, area.width / (scale.axis.high - scale.axis.low)
    line = f"M{area.left:.1f} {area.top:.1f}V{area.bottom:.1f}"
    return f'<path class="cursor" style="--low:{low:g};--step:{step:.4f}" d="{line}"/>'


def _key(part: Line | Band | Columns | Cells | Mark) -> str:
    if isinstance(part, Cells):
        return cells_key(part)
    if isinstance(part, Mark):
        sample = f'<svg width="16" height="16" viewBox="-8 -8 16 16"><path class="star" d="{STAR}"/></svg>'
        return f'<span class="key">{sample}{html.escape(part.name)}</span>'
    if isinstance(part, Line):
        return line_key(part.name, part.colour, part.dash, part.weight)
    return box_key(part.name, part.colour)


def _part(part: Part, xs: Scale, ys: Scale, area: Area) -> str:
    """What is drawn within the area."""
    if isinstance(part, Line):
        return _line(part, xs, ys)
    if isinstance(part, Band):
        return _band(part.x, part.low, part.high, part.colour, part.opacity, xs, ys)
    if isinstance(part, Columns):
        step = abs(xs.at(float(part.x[0]) + 1) - xs.at(float(part.x[0])))
        return columns(xs(part.x), ys(part.y), area.bottom, f"line {known(part.colour)}", max(0.72 * step, 0.8))
    if isinstance(part, Cells):
        return painted(part, xs, ys)
    if isinstance(part, Level):
        if part.upright:
            return polyline([xs.at(part.at)] * 2, [area.top, area.bottom], part.colour, "dot", 0.8)
        return polyline([area.left, area.right], [ys.at(part.at)] * 2, part.colour, "dash", 0.8)
    return ""


def _above(part: Part, xs: Scale, ys: Scale, area: Area) -> str:
    """What may stand out of the area: marks and names."""
    if isinstance(part, Mark):
        return star(xs.at(part.x), ys.at(part.y), title=part.name)
    if isinstance(part, Level) and part.name and not part.upright:
        y = ys.at(part.at)
        css = f"tick strong {known(part.colour)}"
        return text(area.right - 2, y - 5 if y > area.top + 14 else y + 13, part.name, css, anchor="end")
    return ""


def _line(part: Line, xs: Scale, ys: Scale) -> str:
    index = thin(part.x.size, most=_MOST_POINTS)
    x, y = np.asarray(part.x)[index], np.asarray(part.y)[index]
    css = known(part.colour)
    around, single = "", np.isfinite(y).sum() == 1  # a lone value would be a line without length
    if part.spread is not None and not part.points:
        half = np.asarray(part.spread)[index]
        around = _band(x, y - half, y + half, part.colour, 0.16, xs, ys)
    if part.spread is not None and part.points:
        half = np.nan_to_num(np.asarray(part.spread)[index])
        ends = zip(xs(x).tolist(), ys(y - half).tolist(), ys(y + half).tolist(), strict=True)
        whiskers = "".join(f"M{a:.1f} {b:.1f}V{c:.1f}" for a, b, c in ends if np.isfinite(b + c))
        around = f'<path {_stroke(part.colour, "solid", 0.7)} d="{whiskers}"/>'
    if part.points or single:
        around += "".join(
            f'<circle class="point {css}" cx="{a:.1f}" cy="{b:.1f}" r="2.6"/>'
            for a, b in zip(xs(x).tolist(), ys(y).tolist(), strict=True)
            if np.isfinite(b)
        )
    return around + polyline(xs(x), ys(y), part.colour, part.dash, part.weight)


def _band(x: Floats, low: Floats, high: Floats, colour: str, opacity: float, xs: Scale, ys: Scale) -> str:
    index = np.flatnonzero(np.isfinite(x) & np.isfinite(low) & np.isfinite(high))
    there = index[thin(index.size, most=_MOST_POINTS)]
    back = there[::-1]
    shape = path(xs(np.concatenate([x[there], x[back]])), ys(np.concatenate([high[there], low[back]])))
    return f'<path class="band {known(colour)}" fill-opacity="{opacity:g}" d="{shape}Z"/>' if shape else ""


def _stroke(colour: str, dash: str, weight: float) -> str:
    dashes = f' stroke-dasharray="{_DASHES[dash]}"' if _DASHES[dash] else ""
    return f'class="line {known(colour)}" fill="none" stroke-width="{1.8 * weight:g}"{dashes}'
