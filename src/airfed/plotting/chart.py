"""What a chart shows, as a value: two axes and the parts drawn between them. `svg` and `figure` draw it."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed.text.phrases import number

Floats = NDArray[np.float64]
Kind = Literal["linear", "log", "root"]
_SMALLEST: Final = 1e-300  # what is smaller is drawn as zero
_MOST_TOLD: Final = 60  # places of a chart that tell their values; more are too narrow to point at


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One direction of a chart.

    Args:
        label: what is measured, with its unit.
        low, high: values at the ends, low < high; both > 0 on a "log" axis, low = 0 on a "root" axis.
        kind: "linear", "log", or "root" (square root: small values stay visible, zero stays zero).
        whole: only whole numbers have a meaning (rounds, devices), so only they are marked.
        percent: values are shares of 1, and are written as percentages.
        places: mark exactly these values.
    """

    label: str
    low: float
    high: float
    kind: Kind = "linear"
    whole: bool = False
    percent: bool = False
    places: tuple[float, ...] = ()

    def share(self, value: ArrayLike) -> Floats:
        """Return where values lie on the axis: 0 at its low end, 1 at its high end; NaN where they have no place."""
        low, high = self._bend(self.low) / 4, self._bend(self.high) / 4  # so that no difference overflows
        return np.asarray((self._bend(value) / 4 - low) / (high - low))

    def ticks(self, most: int = 5) -> list[float]:
        """Return about `most` round values within the axis, ascending; "root" shows half a dozen whatever `most` is."""
        if self.places:
            return sorted(self.places)
        if self.kind == "root":
            top = _round_step(self.high * (1 - 1e-9))
            top = top if top <= self.high else _round_step(self.high / 2.5)
            return [0.0, *(share * top for share in (0.05, 0.2, 0.5, 1.0))]
        if self.kind == "log" and self.high / self.low >= 5:  # else too short for powers of ten
            return _log_ticks(self.low, self.high, most)
        step = _round_step(self.high / max(most, 1) - self.low / max(most, 1))
        step = max(step, 1.0) if self.whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [step * place for place in range(first, last + 1)]

    def text(self, value: float, digits: int = 3) -> str:
        """Return a value as it is written on the axis."""
        return f"{value:.{max(digits - 3, 0)}%}" if self.percent else number(value, digits)

    def _bend(self, value: ArrayLike) -> Floats:
        values = np.asarray(value, dtype=np.float64)
        if self.kind == "linear":
            return values
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(values) if self.kind == "log" else np.sqrt(values)


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """Values joined by a line, which is interrupted where they are not finite.

    Args:
        x, y: the values, x ascending.
        colour: a name of `colours.PALETTE`.
        name: for legend and pointer; "" leaves it out of both.
        dash: "solid" or a name of `colours.DASHES`.
        weight: its width, 1 for a usual line.
        spread: half the width of a band around it.
        points: mark each value with a dot, and its spread with whiskers.
        listed: whether the legend names it; a line that the axis names already need not be.
    """

    x: Floats
    y: Floats
    colour: str
    name: str = ""
    dash: str = "solid"
    weight: float = 1.0
    spread: Floats | None = None
    points: bool = False
    listed: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Band:
    """The area between `low` and `high` over the same x."""

    x: Floats
    low: Floats
    high: Floats
    colour: str
    name: str = ""
    opacity: float = 0.86

    @property
    def y(self) -> Floats:
        """How thick it is: in a stack, the value that it stands for."""
        return self.high - self.low


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """Upright bars from zero, one at each x; x are one apart."""

    x: Floats
    y: Floats
    colour: str
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Level:
    """A straight line across the chart at one value of y, or of x if `upright`; its name stands on it."""

    at: float
    colour: str = "ink"
    name: str = ""
    upright: bool = False


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The star at what was chosen."""

    x: float
    y: float
    name: str = "chosen"


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """A grid of equal rectangles, the more strongly painted the larger their value; where there is none, it is blank.

    Args:
        corner: x and y where the grid begins.
        size: of a cell, along x and along y; what reaches beyond the axes is cut off.
        values: (rows, columns) ≥ 0; NaN: blank.
        steps: the largest value of each shade, ascending; the last one holds them all.
        colour, name: as of a line; the name says what is painted.
        percent: values are shares of 1, and are written as percentages.
    """

    corner: tuple[float, float]
    size: tuple[float, float]
    values: Floats
    steps: tuple[float, ...]
    colour: str
    name: str
    percent: bool = False

    @property
    def shades(self) -> NDArray[np.intp]:
        """The shade of each cell, 0 for the faintest; −1 where it is blank."""
        found = np.minimum(np.searchsorted(self.steps, self.values), len(self.steps) - 1)
        return np.where(np.isnan(self.values), -1, found)

    @property
    def opacities(self) -> list[float]:
        """How strongly each shade is painted: the faintest can still be told from nothing."""
        return [0.25 + 0.75 * place / max(len(self.steps) - 1, 1) for place in range(len(self.steps))]

    def text(self, place: int) -> str:
        """Return what a shade stands for."""
        return f"≤ {number(100 * self.steps[place])}%" if self.percent else f"≤ {number(self.steps[place])}"


Part = Line | Band | Columns | Cells | Level | Mark


@dataclass(frozen=True, kw_only=True, eq=False)
class Chart:
    """A picture with two axes; parts are drawn in their order.

    Args:
        title: what it shows.
        x, y: its axes.
        parts: what is drawn.
        notes: what a place on the x axis is called, where its value alone would say too little.
    """

    title: str
    x: Axis
    y: Axis
    parts: tuple[Part, ...]
    notes: Mapping[float, str] = field(default_factory=dict)

    def legend(self) -> list[Line | Band | Columns | Cells | Mark]:
        """Return the parts that a reader must be told apart, each name once."""
        parts = [part for part in self.parts if not isinstance(part, Level) and part.name]
        return list({part.name: part for part in parts if not isinstance(part, Line) or part.listed}.values())

    def told(self) -> list[tuple[float, str]]:
        """Return places on the x axis within its ends, ascending, and every named value there, a line each."""
        series = [part for part in self.parts if isinstance(part, Line | Band | Columns) and part.name and part.x.size]
        own = [np.asarray(part.x, dtype=np.float64) for part in series] or [
            np.array(list(self.notes), dtype=np.float64)
        ]
        places = np.unique(np.concatenate(own))
        places = places[(places >= self.x.low) & (places <= self.x.high)]
        places = places[thin(places.size, most=_MOST_TOLD)]
        values = [_values_at(places, part) for part in series]
        found = []
        for index, x in enumerate(places.tolist()):
            lines = [
                f"{part.name}: {self.y.text(own[index], 4)}"
                for part, own in zip(series, values, strict=True)
                if math.isfinite(own[index])
            ]
            if lines or not series:
                found.append((x, "\n".join([self.notes.get(x, f"{self.x.label}: {self.x.text(x, 4)}"), *lines])))
        return found

    def description(self) -> str:
        """Return the chart in words, for those who do not see it."""
        parts = [f"{self.y.label} over {self.x.label} from {self.x.text(self.x.low)} to {self.x.text(self.x.high)}."]
        for part in self.parts:
            if isinstance(part, Level) or not part.name:
                continue
            if isinstance(part, Mark):
                parts.append(f"{part.name}: {self.y.text(part.y, 4)} at {self.x.text(part.x, 4)}.")
                continue
            if isinstance(part, Cells):
                painted = np.count_nonzero(part.shades >= 0)
                parts.append(f"{part.name}: {painted} of {part.values.size} cells are painted.")
                continue
            seen = part.y[np.isfinite(part.y)]
            if seen.size:
                first, last = self.y.text(float(seen[0]), 4), self.y.text(float(seen[-1]), 4)
                parts.append(f"{part.name}: {first} at first, {last} in the end.")
        return " ".join(parts)


def thin(size: int, *, most: int) -> NDArray[np.intp]:
    """Return at most `most` indices of a long line, ends included."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.intp))


def padded(values: ArrayLike, *, below: float, above: float) -> tuple[float, float]:
    """Return the finite positive range of values, widened by factors for a logarithmic axis."""
    finite = np.asarray(values, dtype=np.float64).ravel()
    finite = finite[np.isfinite(finite) & (finite > 0)]
    if not finite.size:
        return 0.1, 1.0
    low, high = float(finite.min()) / below, float(finite.max()) * above
    return (low, high) if high > low else (low / 2, high * 2)


def highest(values: Sequence[ArrayLike], *, room: float = 1.08) -> float:
    """Return the upper end of an axis that starts at zero: a little above every finite value."""
    finite = [float(found.max()) for found in map(_finite, values) if found.size]
    top = max(finite, default=0.0)
    return min(room * top, sys.float_info.max) if top > _SMALLEST else 1.0


def _values_at(places: Floats, part: Line | Band | Columns) -> list[float]:
    """The values of a part at places on the x axis, NaN where it has none; its x ascend."""
    index = np.minimum(np.searchsorted(part.x, places), part.x.size - 1)
    found: list[float] = np.where(part.x[index] == places, part.y[index], np.nan).tolist()
    return found


def _finite(values: ArrayLike) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    return found[np.isfinite(found)]


def _round_step(raw: float) -> float:
    if not raw > _SMALLEST or not math.isfinite(raw):
        return 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.8)


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten, with 2 and 5 (else 3) of them where there is room, fewer where there is none."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{f}e{e}") for e in range(first, last + 1) for f in factors]
        ticks = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(ticks) <= most + 1:
            return ticks
    return ticks[:: math.ceil(len(ticks) / most)]
