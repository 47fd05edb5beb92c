"""Figures of the studies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from airfed.experiments.figures import appearances, mean_bands, name_metric
from airfed.experiments.results import data_frame
from airfed.plotting.colours import PALETTE
from airfed.plotting.figure import PAGE_INCHES, STYLE, Axes, Figure, mpl, plain
from airfed.text.phrases import LIMITS

Rows = Sequence[Mapping[str, Any]]


def sheet(panels: Mapping[str, Callable[[Axes], None]], *, height: float, note: str, rows: int = 1) -> Figure:
    """Return a page of titled panels, each drawn by its function, with one legend; the note is the figure's label."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, height), layout="constrained")
        every = figure.subplots(rows, -(-len(panels) // rows), squeeze=False).flat
        named: dict[str, Any] = {}
        for axes, (title, draw) in zip(every, panels.items(), strict=False):
            draw(axes)
            axes.set_title(plain(title), loc="left")
            handles, labels = axes.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
        figure.legend(list(named.values()), list(named), loc="outside upper center", ncols=4, handlelength=3)
        figure.set_label(note)
    return figure


def limits_figure(rows: Rows, note: str) -> Figure:
    """Return maps over ε and the total power, one column per fleet: the limit that binds, and the share scheduled.

    Args:
        rows: num_devices, epsilon, power_per_device, binding, num_scheduled, on a full grid.
        note: the settings, which become a text file beside the picture.
    """
    fleets = sorted({row["num_devices"] for row in rows})
    kinds = [kind for kind in LIMITS if any(row["binding"] == kind for row in rows)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, 4.6), layout="constrained")
        panels = figure.subplots(2, len(fleets), squeeze=False, sharex=True, sharey=True)
        colours = mpl.colors.ListedColormap([PALETTE[f"lim-{kind}"] for kind in kinds])
        for (upper, lower), devices in zip(panels.T, fleets, strict=True):
            own = [row for row in rows if row["num_devices"] == devices]
            across = np.array(sorted({row["epsilon"] for row in own}))
            up = np.array(sorted({row["power_per_device"] for row in own}))
            points = {(row["power_per_device"], row["epsilon"]): row for row in own}
            kind = np.array([[kinds.index(points[y, x]["binding"]) for x in across] for y in up])
            share = np.array([[100 * points[y, x]["num_scheduled"] / devices for x in across] for y in up])
            ends = {"vmin": -0.5, "vmax": len(kinds) - 0.5}
            upper.pcolormesh(across, up, kind, cmap=colours, alpha=0.55, rasterized=True, **ends)
            shades = lower.pcolormesh(across, up, share, cmap="viridis", vmin=0, vmax=100, rasterized=True)
            upper.set_title(f"{devices} devices", loc="left")
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
        figure.set_label(note)
    return figure


def bounds_figure(rows: Rows, note: str) -> Figure:
    """Return the measured quantity and its bound, one panel per model.

    Args:
        rows: model, quantity, rounds, step, measured, bound.
        note: the settings, which become a text file beside the picture.
    """
    titles = {"logistic": "logistic regression, Theorem 1", "cnn": "CNN, Theorem 2"}

    def draw(axes: Axes, model: str) -> None:
        own = [row for row in rows if row["model"] == model]
        for index, rounds in enumerate(dict.fromkeys(row["rounds"] for row in own)):
            curve = [row for row in own if row["rounds"] == rounds]
            for name, dash in (("bound", "--"), ("measured", "-")):
                style = {"ls": dash, "color": PALETTE[f"run-{(0, 4)[index % 2]}"], "label": f"{name}, I = {rounds}"}
                axes.plot([row["step"] for row in curve], [row[name] for row in curve], **style)
        axes.set_yscale("log")
        axes.set_xlabel("local steps so far")
        axes.set_ylabel(own[0]["quantity"])

    models = dict.fromkeys(row["model"] for row in rows)
    return sheet({titles[model]: partial(draw, model=model) for model in models}, height=3.1, note=note)


def range_figure(rows: Rows, note: str) -> Figure:
    """Return final accuracy over the noise σ for several designs, one panel per ϖ: where each claim holds.

    Args:
        rows: label, clip_norm, noise_std, seed, accuracy.
        note: the settings, which become a text file beside the picture.
    """
    table = data_frame(rows)
    labels = list(table["label"].unique())
    looks = appearances(labels, 0)

    def draw(axes: Axes, norm: float) -> None:
        own = table[table["clip_norm"] == norm]
        grids = [
            own[own["label"] == label].pivot(index="noise_std", columns="seed", values="accuracy").astype(float)
            for label in labels
        ]
        noise = grids[0].index.to_numpy(dtype=float)
        means, half = mean_bands(np.array([grid.to_numpy().T for grid in grids]))
        for place, label in enumerate(labels):
            shifted = np.arange(noise.size) + 0.05 * (place - (len(labels) - 1) / 2)  # error bars side by side
            look = {"marker": "o", "ms": 3, "capsize": 2, "label": plain(label), **looks[label]}
            axes.errorbar(shifted, means[place], half[place], **look)
        axes.set_xticks(np.arange(noise.size), [f"{value:g}" for value in noise])
        axes.set_ylim(0, max(1.0, float(np.nanmax(means + half)) * 1.01))
        axes.set_xlabel("receiver noise σ per real dimension")
        name_metric(axes, "accuracy", "final ")

    norms = sorted(table["clip_norm"].unique())
    return sheet({f"clipping norm ϖ = {norm:g}": partial(draw, norm=norm) for norm in norms}, height=3.0, note=note)
