"""The paper's figures 3 to 6 and our own, drawn from tidy rows. Pure functions: rows and a note in, a figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airfed.experiments import statistics
from airfed.experiments.records import require
from airfed.plotting import colours
from airfed.plotting.chart import Axis, Chart, Line, Mark, padded
from airfed.plotting.colours import PALETTE
from airfed.plotting.figure import PAGE_INCHES, STYLE, Axes, Figure, draw, key, mpl, sheet, write_note
from airfed.plotting.training import training_chart
from airfed.text.phrases import METRICS

Rows = Sequence[Mapping[str, Any]]
_PLACES = 100  # of a curve


def training_figure(rows: Rows, note: str) -> Figure:
    """Return test accuracy and training loss over the local steps, one curve per label, with 95% bands.

    Args:
        rows: label, seed, step, accuracy, loss.
        note: what is printed beside the figure.
    """
    require(rows, ("label", "seed", "step", "accuracy", "loss"), "the rows of the figure")
    return sheet(_training_charts(rows), height=3.0, note=note)


def scheduling_figure(rows: Rows, note: str) -> Figure:
    """Return the paper's Fig. 3, and what scheduling gains over full participation against h_min.

    Args:
        rows: panel ("training" or "gain"), label, h_min, seed, step, accuracy, loss.
        note: what is printed beside the figure.
    """
    require(rows, ("panel", "label", "h_min", "seed", "step", "accuracy", "loss"), "the rows of the figure")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, 3.0), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 0.72])
        charts = _training_charts([row for row in rows if row["panel"] == "training"])
        for axes, chart in zip((left, middle), charts, strict=True):
            draw(axes, chart)
        _draw_gain(right, [row for row in rows if row["panel"] == "gain"])
        key(figure, [left])
        write_note(figure, note)
    return figure


def local_steps_figure(rows: Rows, note: str) -> Figure:
    """Return the paper's Fig. 5: final accuracy and loss over E.

    Args:
        rows: local_steps, seed, accuracy, loss.
        note: what is printed beside the figure.
    """
    require(rows, ("local_steps", "seed", "accuracy", "loss"), "the rows of the figure")
    charts = []
    for column in ("accuracy", "loss"):
        steps, values = matrix(rows, "local_steps", column)
        best = int(np.argmax(values.mean(axis=1)) if column == "accuracy" else np.argmin(values.mean(axis=1)))
        found = statistics.paired_bands(values[:, :, None], best)
        means, half = (part[:, 0] for part in found)
        low, high = float(np.nanmin(means - half)), float(np.nanmax(means + half))
        top = min(high, 1.0 if column == "accuracy" else 4.0) * 1.03
        charts.append(
            Chart(
                title=f"final {METRICS[column]} over E",
                x=measured_at(steps, "local steps E between two aggregations"),
                y=Axis(
                    label=METRICS[column],
                    low=max(0.0, low - 0.05 * (high - low)),
                    high=top,
                    percent=column == "accuracy",
                ),
                parts=(
                    Line(x=steps, y=means, spread=half, colour="ink", points=True, weight=0.85),
                    Mark(x=float(steps[best]), y=float(means[best]), name=f"best {column}: E = {steps[best]:g}"),
                ),
            )
        )
    return sheet(charts, height=2.8, note=note)


def _training_charts(rows: Rows) -> list[Chart]:
    labels = list(dict.fromkeys(row["label"] for row in rows))
    reference = _reference(rows, labels)
    charts = []
    for column in ("accuracy", "loss"):
        steps, values = _on_one_grid(rows, labels, column)
        means, half = statistics.paired_bands(values, reference)
        # A design that does not learn may have any loss: what is well above the start's is cut off.
        top = 1.0 if column == "accuracy" else 1.35 * float(np.nanmax(means[reference]))
        lines = [
            Line(
                x=steps,
                y=means[place],
                spread=np.where(means[place] <= top, half[place], np.nan),  # a curve off the scale has no band on it
                name=label,
                **appearance(place, place == reference),
            )
            for place, label in enumerate(labels)
        ]
        chart = training_chart(column, lines, over="local steps so far", top=top)
        assert chart is not None  # `require` has seen a value
        charts.append(chart)
    return charts


def _reference(rows: Rows, labels: Sequence[str]) -> int:
    """The curve that the others are compared with: "proposed", else the most accurate in the end."""
    if "proposed" in labels:
        return labels.index("proposed")
    _, values = _on_one_grid(rows, labels, "accuracy")
    return int(np.argmax(values[:, :, -1].mean(axis=1)))


def _draw_gain(axes: Axes, rows: Rows) -> None:
    minima = sorted({row["h_min"] for row in rows})
    gains = []
    for minimum in minima:
        final = {
            (row["label"], row["seed"]): row["accuracy"]
            for row in rows
            if row["h_min"] == minimum and row["accuracy"] is not None
        }
        seeds = sorted({seed for _, seed in final})
        gains.append(
            statistics.paired([final["proposed", seed] for seed in seeds], [final["full", seed] for seed in seeds])
        )
    means = np.array([100 * gain.mean for gain in gains])
    half = np.array([100 * gain.half_width if np.isfinite(gain.half_width) else 0.0 for gain in gains])
    places = np.arange(len(minima))
    axes.bar(places, means, 0.6, color=PALETTE["lit"], alpha=0.8)
    axes.errorbar(places, means, half, color="black", fmt="none", capsize=3, lw=1)
    axes.axhline(0, color="black", lw=0.8)
    axes.set_xticks(places, [f"{minimum:g}" for minimum in minima])
    axes.set_xlabel("weakest gain $h_{min}$")
    axes.set_ylabel("gain over full [points]")
    axes.grid(axis="x", visible=False)


def _on_one_grid(rows: Rows, labels: Sequence[str], column: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps, and values (curves, seeds, steps) interpolated to them, as designs differ in their rounds."""
    series: dict[tuple[str, Any], list[tuple[float, float]]] = {}
    for row in rows:
        if row[column] is not None:
            series.setdefault((row["label"], row["seed"]), []).append((row["step"], row[column]))
    seeds = sorted({seed for _, seed in series})
    last = max(step for points in series.values() for step, _ in points)
    steps = np.linspace(0, last, _PLACES + 1)
    values = np.full((len(labels), len(seeds), steps.size), np.nan)
    for (label, seed), points in series.items():
        points.sort()
        at, value = np.array(points).T
        values[labels.index(label), seeds.index(seed)] = np.interp(steps, at, value, left=np.nan)
    return steps, values


def matrix(rows: Rows, place: str, column: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Places, and values (places, seeds)."""
    places = sorted({row[place] for row in rows})
    seeds = sorted({row["seed"] for row in rows})
    values = np.full((len(places), len(seeds)), np.nan)
    for row in rows:
        values[places.index(row[place]), seeds.index(row["seed"])] = row[column]
    return np.array(places, dtype=np.float64), values


def measured_at(places: NDArray[np.float64], label: str) -> Axis:
    """An axis with a tick at each place, on a logarithmic scale."""
    low, high = padded(places, below=1.15, above=1.15)
    return Axis(label=label, low=low, high=high, kind="log", places=tuple(places.tolist()))


def appearance(place: int, first: bool) -> dict[str, Any]:
    """Colour and dashes of the curve number `place`: told apart without colour too. The `first` is thick."""
    return {
        "colour": colours.RUNS[place % len(colours.RUNS)],
        "dash": colours.DASHES[place % len(colours.DASHES)],
        "weight": 1.5 if first else 0.9,
    }
