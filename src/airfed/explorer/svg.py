"""A small kit for charts as SVG text: scales, ticks, axes, lines and areas.

Colours are CSS classes, so that one drawing serves a light and a dark page; `theme` defines them. Coordinates are
pixels of the very width a chart is asked for, so that its letters keep their size on a small screen.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Kind = Literal["linear", "log", "root"]

_MOST_POINTS: Final = 240  # of a line; more cannot be seen
STAR: Final = "M0 -7.5L2.1 -2.6 7.3 -2.3 3.3 1.1 4.6 6.2 0 3.4 -4.6 6.2 -3.3 1.1 -7.3 -2.3 -2.1 -2.6Z"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A map from values to pixels.

    Args:
        low, high: values at the ends, low < high; both > 0 on a "log" scale.
        start, end: pixels at the ends.
        kind: "linear", "log", or "root" (square root: small values stay visible, zero stays zero).
    """

    low: float
    high: float
    start: float
    end: float
    kind: Kind = "linear"

    def __call__(self, value: ArrayLike) -> Floats:
        """Return pixels; values outside are cut off at the ends, NaN stays NaN."""
        inside = np.clip(np.asarray(value, dtype=np.float64), self.low, self.high)
        low, high = self._bend(np.float64(self.low)), self._bend(np.float64(self.high))
        share = (self._bend(inside) - low) / (high - low)
        return np.asarray(self.start + share * (self.end - self.start))

    def at(self, value: float) -> float:
        """Return one pixel."""
        return float(self(value))

    def ticks(self, most: int = 5) -> list[float]:
        """Return round values within the scale; "root" shows about half a dozen, whatever `most` says."""
        if self.kind == "log":
            return _log_ticks(self.low, self.high, most)
        if self.kind == "root":
            top = _round_step(self.high * (1 - 1e-9))
            top = top if top <= self.high else _round_step(self.high / 2.5)
            return [0.0, *(share * top for share in (0.05, 0.2, 0.5, 1.0))]
        step = _round_step((self.high - self.low) / max(most, 1))
        first = math.ceil(self.low / step - 1e-9)
        return [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _bend(self, value: Floats | np.float64) -> Floats:
        if self.kind == "log":
            return np.log(value)
        return np.asarray(np.sqrt(value) if self.kind == "root" else value)


@dataclass(frozen=True, kw_only=True)
class Area:
    """The inner rectangle of a chart."""

    left: float
    top: float
    right: float
    bottom: float


def document(width: float, height: float, title: str, *parts: str) -> str:
    """Return a whole SVG; `title` is read out by screen readers."""
    label = html.escape(title, quote=True)
    return (
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )


def line(xs: ArrayLike, ys: ArrayLike, css: str) -> str:
    """Return a polyline; it is interrupted where a value is not finite."""
    return f'<path class="{css}" fill="none" d="{_path(np.asarray(xs), np.asarray(ys))}"/>'


def band(xs: ArrayLike, lower: ArrayLike, upper: ArrayLike, css: str) -> str:
    """Return the area between two lines over the same x."""
    across = np.concatenate([np.asarray(xs), np.asarray(xs)[::-1]])
    around = np.concatenate([np.asarray(upper), np.asarray(lower)[::-1]])
    return f'<path class="{css}" d="{_path(across, around)}Z"/>'


def segment(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """Return one straight line."""
    return f'<path class="{css}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def rectangle(x: float, y: float, width: float, height: float, css: str, *, title: str = "") -> str:
    """Return a rectangle; `title` appears when the pointer rests on it."""
    inner = f"<title>{html.escape(title)}</title>" if title else ""
    size = f'width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return f'<rect class="{css}" x="{x:.1f}" y="{y:.1f}" {size}>{inner}</rect>'


def text(x: float, y: float, content: str, css: str = "label", *, anchor: str = "start") -> str:
    """Return a text."""
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(content)}</text>'


def star(x: float, y: float, *, title: str = "") -> str:
    """Return the mark of the chosen point."""
    inner = f"<title>{html.escape(title)}</title>" if title else ""
    return f'<path class="star" transform="translate({x:.1f} {y:.1f})" d="{STAR}">{inner}</path>'


def hover(xs: Sequence[float], area: Area, titles: Sequence[str]) -> str:
    """Return invisible columns, one around each x, that tell their title when the pointer rests on them."""
    middles = [(a + b) / 2 for a, b in pairwise(xs)]
    edges = [area.left, *middles, area.right]
    columns = zip(pairwise(edges), titles, strict=True)
    height = area.bottom - area.top
    return "".join(rectangle(a, area.top, b - a, height, "hover", title=title) for (a, b), title in columns)


def bottom_axis(scale: Scale, area: Area, label: str, *, most: int = 5, shown: bool = True) -> str:
    """Return the x axis with its ticks; without figures where `shown` is False."""
    parts = [segment(area.left, area.bottom, area.right, area.bottom, "axis")]
    for value in scale.ticks(most):
        x = scale.at(value)
        parts.append(segment(x, area.bottom, x, area.bottom + 4, "axis"))
        if shown:
            parts.append(text(x, area.bottom + 16, number(value), "tick", anchor="middle"))
    if label:
        parts.append(text((area.left + area.right) / 2, area.bottom + 32, label, "label", anchor="middle"))
    return "".join(parts)


def left_axis(scale: Scale, area: Area, label: str, *, most: int = 4) -> str:
    """Return the y axis as grid lines with figures, its label above it."""
    parts = []
    for value in scale.ticks(most):
        y = scale.at(value)
        parts.append(segment(area.left, y, area.right, y, "grid"))
        parts.append(text(area.left - 7, y + 3.5, number(value), "tick", anchor="end"))
    if label:
        parts.append(text(0, area.top - 9, label))
    return "".join(parts)


def number(value: float, digits: int = 3) -> str:
    """Return a short figure: 1200, 0.25, 3e-05.

    >>> number(1200.0), number(0.25), number(0.00003)
    ('1200', '0.25', '3e-05')
    """
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        shown = f"{value:.{digits}g}"
        return f"{float(shown):g}" if "e" in shown and abs(value) < 1e6 else shown
    return f"{value:.{digits}g}".replace("e+0", "e").replace("e+", "e")


def thin(size: int, keep: int | None = None, *, most: int = _MOST_POINTS) -> NDArray[np.intp]:
    """Return at most `most` indices of a long line, ends included, and `keep`."""
    indices = np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.intp))
    return indices if keep is None else np.unique(np.append(indices, keep))


def padded(values: ArrayLike, *, below: float, above: float) -> tuple[float, float]:
    """Return the finite positive range of values, widened by factors for a logarithmic scale."""
    finite = np.asarray(values, dtype=np.float64).ravel()
    finite = finite[np.isfinite(finite) & (finite > 0)]
    if not finite.size:
        return 0.1, 1.0
    low, high = float(finite.min()) / below, float(finite.max()) * above
    return (low, high) if high > low else (low / 2, high * 2)


def _path(xs: Floats, ys: Floats) -> str:
    good = np.isfinite(xs) & np.isfinite(ys)
    parts, pen = [], "M"
    for x, y, ok in zip(xs.tolist(), ys.tolist(), good.tolist(), strict=True):
        if not ok:
            pen = "M"
            continue
        parts.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    return "".join(parts)


def _round_step(raw: float) -> float:
    if not raw > 0 or not math.isfinite(raw):
        return 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.8)


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    decades = math.log10(high / low)
    if decades < 0.7:  # too short for powers of ten: round values on a linear grid
        step = _round_step((high - low) / max(most, 1))
        return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [f * 10.0**e for e in range(first, last + 1) for f in factors]
        ticks = [t for t in ticks if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]
        if len(ticks) <= most + 1:
            return ticks
    every = math.ceil(len(ticks) / most)
    return ticks[::every]
