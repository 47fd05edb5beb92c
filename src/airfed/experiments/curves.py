"""The paper's figures 3 to 6 and our own, drawn from tidy rows. Pure functions: rows and a note in, a figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airfed.experiments import statistics
from airfed.experiments.records import require
from airfed.showing import colours
from airfed.showing.chart import Axis, Chart, Line, Mark, padded
from airfed.showing.colours import PALETTE
from airfed.showing.figure import PAGE_INCHES, STYLE, Axes, Figure, draw, key, mpl, sheet, write_note
from airfed.showing.training import training_chart
from airfed.showing.words import LIMITS, METRICS

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
        steps, values = _matrix(rows, "local_steps", column)
        best = int(np.argmax(values.mean(axis=1)) if column == "accuracy" else np.argmin(values.mean(axis=1)))
        found = statistics.paired_bands(values[:, :, None], best)
        means, half = (part[:, 0] for part in found)
        low, high = float(np.nanmin(means - half)), float(np.nanmax(means + half))
        top = min(high, 1.0 if column == "accuracy" else 4.0) * 1.03
        charts.append(
            Chart(
                title=f"final {METRICS[column]} over E",
                x=_measured_at(steps, "local steps E between two aggregations"),
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


def limits_figure(rows: Rows, note: str) -> Figure:
    """Return maps over ε and the total power, one column per fleet: the limit that binds, and the share scheduled.

    Args:
        rows: num_devices, epsilon, power_per_device, binding, num_scheduled, on a full grid.
        note: what is printed beside the figure.
    """
    require(rows, ("num_devices", "epsilon", "power_per_device", "binding", "num_scheduled"), "the rows of the figure")
    fleets = sorted({row["num_devices"] for row in rows})
    kinds = list(LIMITS)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, 4.6), layout="constrained")
        panels = figure.subplots(2, len(fleets), squeeze=False, sharex=True, sharey=True)
        colours = mpl.colors.ListedColormap([PALETTE[f"lim-{kind}"] for kind in kinds])
        for (upper, lower), devices in zip(panels.T, fleets, strict=True):
            own = [row for row in rows if row["num_devices"] == devices]
            across = np.array(sorted({row["epsilon"] for row in own}))
            up = np.array(sorted({row["power_per_device"] for row in own}))
            cells = {(row["power_per_device"], row["epsilon"]): row for row in own}
            kind = np.array([[kinds.index(cells[y, x]["binding"]) for x in across] for y in up])
            share = np.array([[100 * cells[y, x]["num_scheduled"] / devices for x in across] for y in up])
            upper.pcolormesh(across, up, kind, cmap=colours, vmin=-0.5, vmax=2.5, alpha=0.55, rasterized=True)
            shades = lower.pcolormesh(across, up, share, cmap="viridis", vmin=0, vmax=100, rasterized=True)
            upper.set_title(f"N = {devices}", loc="left")
            lower.set_xlabel("ε per round")
            for axes in (upper, lower):
                axes.set_xscale("log")
                axes.set_yscale("log")
                axes.grid(visible=False)
        for axes in panels[:, 0]:
            axes.set_ylabel("total power per device [W]")
        figure.colorbar(shades, ax=panels[1], label="devices scheduled [%]")
        handles = [
            mpl.patches.Patch(color=PALETTE[f"lim-{kind}"], alpha=0.55, label=f"{LIMITS[kind]} binds") for kind in kinds
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
        write_note(figure, note)
    return figure


def bounds_figure(rows: Rows, note: str) -> Figure:
    """Return what was measured laid under what the theorems allow, one panel per model.

    Args:
        rows: model, quantity, rounds, step, measured, bound.
        note: what is printed beside the figure.
    """
    require(rows, ("model", "quantity", "rounds", "step", "measured", "bound"), "the rows of the figure")
    charts = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        lines = []
        for place, rounds in enumerate(dict.fromkeys(row["rounds"] for row in own)):
            curve = [row for row in own if row["rounds"] == rounds]
            for name, dash in (("bound", "dash"), ("measured", "solid")):
                x, y = (np.array([row[column] for row in curve], dtype=np.float64) for column in ("step", name))
                colour = colours.RUNS[(0, 4)[place % 2]]
                lines.append(Line(x=x, y=y, colour=colour, dash=dash, name=f"{name}, I = {rounds}"))
        low, high = padded(np.concatenate([line.y for line in lines]), below=1.3, above=1.3)
        steps = np.concatenate([line.x for line in lines])
        charts.append(
            Chart(
                title="logistic regression, Theorem 1" if model == "logistic" else "CNN, Theorem 2",
                x=Axis(label="local steps so far", low=0.0, high=float(steps.max()), whole=True),
                y=Axis(label=own[0]["quantity"], low=low, high=high, kind="log"),
                parts=tuple(lines),
            )
        )
    return sheet(charts, height=3.1, note=note, titles=True)


def range_figure(rows: Rows, note: str) -> Figure:
    """Return final accuracy over the noise σ for several designs, one panel per ϖ: where each claim holds.

    Args:
        rows: label, clip_norm, noise_std, seed, accuracy.
        note: what is printed beside the figure.
    """
    require(rows, ("label", "clip_norm", "noise_std", "seed", "accuracy"), "the rows of the figure")
    norms = sorted({row["clip_norm"] for row in rows})
    charts = [_range_chart([row for row in rows if row["clip_norm"] == norm], f"ϖ = {norm:g}") for norm in norms]
    return sheet(charts, height=3.0, note=note, titles=True)


def _range_chart(rows: Rows, title: str) -> Chart:
    labels = list(dict.fromkeys(row["label"] for row in rows))
    found = [_matrix([row for row in rows if row["label"] == label], "noise_std", "accuracy") for label in labels]
    noise = found[0][0]
    means, half = statistics.paired_bands(np.array([values.T for _, values in found]), 0)
    lines = []
    for place, label in enumerate(labels):
        shifted = noise * 1.03 ** (place - len(labels) / 2)  # side by side: error bars must not hide each other
        shown = _appearance(place, place == 0)
        lines.append(Line(x=shifted, y=means[place], spread=half[place], name=label, points=True, **shown))
    return Chart(
        title=title,
        x=_measured_at(noise, "receiver noise σ per real dimension"),
        y=Axis(label="final test accuracy", low=0.0, high=1.0, percent=True),
        parts=tuple(lines),
    )


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
                **_appearance(place, place == reference),
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


def _matrix(rows: Rows, place: str, column: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Places, and values (places, seeds)."""
    places = sorted({row[place] for row in rows})
    seeds = sorted({row["seed"] for row in rows})
    values = np.full((len(places), len(seeds)), np.nan)
    for row in rows:
        values[places.index(row[place]), seeds.index(row["seed"])] = row[column]
    return np.array(places, dtype=np.float64), values


def _measured_at(places: NDArray[np.float64], label: str) -> Axis:
    """An axis with a tick at each place, on a logarithmic scale."""
    low, high = padded(places, below=1.15, above=1.15)
    return Axis(label=label, low=low, high=high, kind="log", places=tuple(places.tolist()))


def _appearance(place: int, first: bool) -> dict[str, Any]:
    """Colour and dashes of the curve number `place`: told apart without colour too. The `first` is thick."""
    return {
        "colour": colours.RUNS[place % len(colours.RUNS)],
        "dash": colours.DASHES[place % len(colours.DASHES)],
        "weight": 1.5 if first else 0.9,
    }
