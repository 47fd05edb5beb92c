"""Pictures of the studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from airfed.experiments import statistics
from airfed.experiments.curves import appearance, matrix, measured_at
from airfed.experiments.records import require
from airfed.plotting import colours
from airfed.plotting.chart import Axis, Chart, Line, padded
from airfed.plotting.colours import PALETTE
from airfed.plotting.figure import PAGE_INCHES, STYLE, Figure, mpl, sheet, write_note
from airfed.text.phrases import LIMITS

Rows = Sequence[Mapping[str, Any]]
_PLACES = 100  # of a curve


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
    found = [matrix([row for row in rows if row["label"] == label], "noise_std", "accuracy") for label in labels]
    noise = found[0][0]
    means, half = statistics.paired_bands(np.array([values.T for _, values in found]), 0)
    lines = []
    for place, label in enumerate(labels):
        shifted = noise * 1.03 ** (place - len(labels) / 2)  # side by side: error bars must not hide each other
        shown = appearance(place, place == 0)
        lines.append(Line(x=shifted, y=means[place], spread=half[place], name=label, points=True, **shown))
    return Chart(
        title=title,
        x=measured_at(noise, "receiver noise σ per real dimension"),
        y=Axis(label="final test accuracy", low=0.0, high=1.0, percent=True),
        parts=tuple(lines),
    )
