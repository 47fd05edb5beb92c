"""A league in pictures: accuracy over what was spent, a mark with its interval per scheme, named beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from airfed.experiments.standings import League
from airfed.plotting import colours
from airfed.plotting.chart import Axis, Chart, Level, Line, Part, padded
from airfed.plotting.colours import PALETTE
from airfed.plotting.figure import PAGE_INCHES, STYLE, Axes, Figure, draw, mpl, plain, write_note
from airfed.text.phrases import METRICS, count

Row = Mapping[str, Any]
_HEIGHT: Final = 3.4  # [inch]
_LETTER, _LINE = 0.0088, 0.05  # of a name, as shares of the axes
_AWAY: Final = (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5)  # lines above or below its mark where a name is tried
_WIDE: Final = 30.0  # losses that differ by more have a logarithmic axis
_ROOM: Final = 1.25  # a logarithmic axis goes at least so far beyond its marks


def figures(league: League) -> dict[str, Figure]:
    """Return the pictures by name; one without a mark is left out."""
    rows = league.rows()
    timed = any(row["air_time"] is not None for row in rows)
    over = {
        "league-privacy": ("epsilon_total", "exact ε of all rounds"),
        "league-power": ("power_transmitted", "power transmitted, all devices and rounds [W]"),
        "league-air": ("air_time", "air time [s]") if timed else ("channel_uses", "symbols sent, all rounds"),
    }
    found = {}
    for name, (column, label) in over.items():
        if chart := league_chart(rows, league.metric, column, label):
            found[name] = _drawn(chart, rows, league, column)
    return found


def league_chart(rows: Sequence[Row], metric: str, column: str, label: str) -> Chart | None:
    """Return a metric over what was spent; None where no scheme has both.

    Schemes that spend without end (ε, where nothing is private) stand to the right of a dotted line.

    Args:
        rows: of a league.
        metric: "accuracy" or "loss".
        column: of what was spent.
        label: what it is called.
    """
    shown = [row for row in rows if row[metric] is not None and (row[column] or 0) > 0]
    if not shown:
        return None
    bounded = [row[column] for row in shown if math.isfinite(row[column])]
    room = max(_ROOM, (max(bounded) / min(bounded)) ** 0.12) if bounded else _ROOM
    low, last = padded(bounded, below=room, above=room)
    high = last
    parts: list[Part] = []
    if len(bounded) < len(shown):
        high = last * (last / low) ** 0.25
        parts.append(Level(at=last, upright=True))
    beyond = math.sqrt(last * high)
    for row in reversed(shown):  # the best are drawn last, above the others
        spread = None if row[f"{metric}_high"] is None else np.array([row[f"{metric}_high"] - row[metric]])
        x = row[column] if math.isfinite(row[column]) else beyond
        parts.append(
            Line(
                x=np.array([x], dtype=np.float64),
                y=np.array([row[metric]], dtype=np.float64),
                spread=spread,
                colour=colours.policy(row["policy"]),
                name=row["policy"],
                points=True,
                listed=False,
            )
        )
    notes = {beyond: "not private"} if high > last else {}
    return Chart(
        title=f"{METRICS[metric]} over {label}",
        x=Axis(label=label, low=low, high=high, kind="log"),
        y=_upright(shown, metric),
        parts=tuple(parts),
        notes=notes,
    )


def _upright(rows: Sequence[Row], metric: str) -> Axis:
    """The axis of the metric: every mark and, as far as they have a meaning, the intervals."""
    means = [row[metric] for row in rows]
    if metric == "loss" and min(means) > 0 and max(means) > _WIDE * min(means):
        room = max(_ROOM, (max(means) / min(means)) ** 0.06)
        low, high = padded(means, below=room, above=room)
        return Axis(label=METRICS[metric], low=low, high=high, kind="log")
    ends = [row[f"{metric}_{end}"] for row in rows for end in ("low", "high") if row[f"{metric}_{end}"] is not None]
    top = 1.0 if metric == "accuracy" else 1.5 * max(means)
    low, high = max(min([*means, *ends]), 0.0), min(max([*means, *ends]), top)
    room = 0.06 * (high - low) or 0.05 * (abs(high) or 1.0)
    low, high = low - room, high + room
    if metric == "accuracy":
        return Axis(label=METRICS[metric], low=max(low, 0.0), high=min(high, 1.0), percent=True)
    return Axis(label=METRICS[metric], low=low, high=high)


def _drawn(chart: Chart, rows: Sequence[Row], league: League, column: str) -> Figure:
    drawn = {part.name for part in chart.parts if isinstance(part, Line)}
    missing = [row["policy"] for row in rows if row[league.metric] is not None and row["policy"] not in drawn]
    note = f"{league.name}: mean of {count(len(league.seeds), 'seed')}"
    note += ", with 95% intervals (Student t)" if len(league.seeds) > 1 else ""
    note += f". Each scheme may spend {league.budget}."
    note += f" Without a mark, as they spend none of it or did not meter it: {', '.join(missing)}." if missing else ""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, _HEIGHT), layout="constrained")
        axes = figure.subplots()
        draw(axes, chart)
        for place, name in chart.notes.items():
            ticks = [tick for tick in chart.x.ticks(6) if tick < _break(chart)]
            axes.set_xticks([*ticks, place], labels=[*(chart.x.text(tick) for tick in ticks), name])
        for spot in named(chart):
            _write(axes, spot)
        write_note(figure, note)
    return figure


def _break(chart: Chart) -> float:
    return next(part.at for part in chart.parts if isinstance(part, Level))


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A name beside its mark, in shares of the axes.

    Args:
        text: the schemes that share the mark.
        at: the mark.
        left, middle: where the name begins, and how high it stands.
    """

    text: str
    colour: str
    at: tuple[float, float]
    left: float
    middle: float

    @property
    def right(self) -> float:
        """Where the name ends."""
        return self.left + _LETTER * len(self.text)

    def meets(self, other: Spot) -> bool:
        """Whether two names cover each other, or one the other's mark."""
        over = self.left < other.right and other.left < self.right and abs(self.middle - other.middle) < 0.98 * _LINE
        return over or self.covers(other.at) or other.covers(self.at)

    def crosses(self, bar: tuple[float, float, float]) -> bool:
        """Whether the name lies on an interval: where it stands, and from where to where it reaches."""
        where, low, high = bar
        beside = self.left - 0.004 < where < self.right + 0.004
        return beside and low < self.middle + 0.4 * _LINE and high > self.middle - 0.4 * _LINE

    def covers(self, mark: tuple[float, float]) -> bool:
        """Whether the name lies on a mark."""
        return self.left - 0.008 < mark[0] < self.right + 0.008 and abs(self.middle - mark[1]) < 0.6 * _LINE


def named(chart: Chart) -> list[Spot]:
    """Return the names of all marks, each beside its own and off the others as far as there is room."""
    marks: dict[tuple[float, float], list[Line]] = {}
    bars: list[tuple[float, float, float]] = []
    for part in reversed(chart.parts):
        if isinstance(part, Line):
            at = (float(chart.x.share(part.x)[0]), float(chart.y.share(part.y)[0]))
            marks.setdefault((round(at[0], 3), round(at[1], 3)), []).append(part)
            if part.spread is not None:
                ends = np.clip([part.y - part.spread, part.y + part.spread], chart.y.low, chart.y.high)
                low, high = chart.y.share(ends).ravel()
                bars.append((at[0], float(low), float(high)))
    placed: list[Spot] = []
    for at, lines in sorted(marks.items(), key=lambda item: -item[0][1]):
        text, colour = ", ".join(line.name for line in lines), lines[0].colour
        tried = [
            Spot(text=text, colour=colour, at=at, left=left, middle=at[1] + lines_away * _LINE)
            for lines_away in _AWAY
            for left in (at[0] + 0.012, at[0] - 0.012 - _LETTER * len(text))
        ]
        inside = [spot for spot in tried if spot.left >= 0 and spot.right <= 1 and 0.02 <= spot.middle <= 0.98]
        others = [mark for mark in marks if mark != at]
        free = [
            spot
            for spot in inside
            if not any(map(spot.meets, placed)) and not any(spot.covers(mark) for mark in others)
        ]
        clear = [spot for spot in free if not any(map(spot.crosses, bars))]
        placed.append((clear or free or inside or tried)[0])
    return placed


def _write(axes: Axes, spot: Spot) -> None:
    away, on_right = abs(spot.middle - spot.at[1]) > _LINE / 2, spot.left > spot.at[0]
    pointer = {"arrowstyle": "-", "lw": 0.5, "color": PALETTE["out"], "shrinkA": 0, "shrinkB": 2}
    axes.annotate(
        plain(spot.text),
        xy=spot.at,
        xycoords="axes fraction",
        xytext=(spot.left if on_right else spot.right, spot.middle),
        textcoords="axes fraction",
        ha="left" if on_right else "right",
        va="center",
        fontsize=7,
        color=PALETTE[spot.colour],
        arrowprops={**pointer, "relpos": (0.0 if on_right else 1.0, 0.5)} if away else None,
    )
