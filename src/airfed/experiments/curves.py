"""The paper's figures 3 to 6 and our own, drawn from tidy rows. Pure functions: rows and a note in, a figure out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from airfed.experiments import statistics, style
from airfed.experiments.records import require

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
except ModuleNotFoundError:
    raise ValueError('Pictures need matplotlib: pip install "airfed[report]".') from None

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Mapping[str, Any]]
_PLACES = 100  # of a curve


def training_figure(rows: Rows, note: str) -> Figure:
    """Return test accuracy and training loss over the local steps, one curve per label, with 95% bands.

    Args:
        rows: label, seed, step, accuracy, loss.
        note: what is printed beside the figure.
    """
    require(rows, ("label", "seed", "step", "accuracy", "loss"), "the rows of the figure")
    with mpl.rc_context(style.MATPLOTLIB):
        figure = Figure(figsize=(style.PAGE_INCHES, 3.0), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_training(left, right, rows)
        _legend(figure, left)
        write_note(figure, note)
    return figure


def scheduling_figure(rows: Rows, note: str) -> Figure:
    """Return the paper's Fig. 3, and what scheduling gains over full participation against h_min.

    Args:
        rows: panel ("training" or "gain"), label, h_min, seed, step, accuracy, loss.
        note: what is printed beside the figure.
    """
    require(rows, ("panel", "label", "h_min", "seed", "step", "accuracy", "loss"), "the rows of the figure")
    with mpl.rc_context(style.MATPLOTLIB):
        figure = Figure(figsize=(style.PAGE_INCHES, 3.0), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 0.72])
        _draw_training(left, middle, [row for row in rows if row["panel"] == "training"])
        _draw_gain(right, [row for row in rows if row["panel"] == "gain"])
        _legend(figure, left)
        write_note(figure, note)
    return figure


def local_steps_figure(rows: Rows, note: str) -> Figure:
    """Return the paper's Fig. 5: final accuracy and loss over E.

    Args:
        rows: local_steps, seed, accuracy, loss.
        note: what is printed beside the figure.
    """
    require(rows, ("local_steps", "seed", "accuracy", "loss"), "the rows of the figure")
    with mpl.rc_context(style.MATPLOTLIB):
        figure = Figure(figsize=(style.PAGE_INCHES, 2.6), layout="constrained")
        for axes, column in zip(figure.subplots(1, 2), ("accuracy", "loss"), strict=True):
            steps, values = _matrix(rows, "local_steps", column)
            values = (100.0 if column == "accuracy" else 1.0) * values[:, :, None]
            best = int(np.argmax(values.mean(axis=1)) if column == "accuracy" else np.argmin(values.mean(axis=1)))
            means, half = statistics.paired_bands(values, best)
            colour = style.POLICY_COLOURS["optimal"]
            axes.errorbar(steps, means[:, 0], half[:, 0], color="black", marker="o", ms=3, capsize=2, lw=1.1)
            axes.plot(
                steps[best], means[best, 0], "*", color=colour, ms=11, zorder=5, label=f"best: E = {steps[best]:g}"
            )
            axes.set_xscale("log")
            axes.set_xticks(steps, [f"{step:g}" for step in steps])
            axes.minorticks_off()
            axes.set_xlabel("local steps E between two aggregations")
            _name_axis(axes, column)
            low, high = float(np.nanmin(means - half)), float(np.nanmax(means + half))
            axes.set_ylim(max(0.0, low - 0.05 * (high - low)), min(high, 100.0 if column == "accuracy" else 4.0) * 1.03)
            axes.legend(loc="lower center" if column == "accuracy" else "upper center")
        write_note(figure, note)
    return figure


def limits_figure(rows: Rows, note: str) -> Figure:
    """Return maps over ε and the total power, one column per fleet: the limit that binds, and the share scheduled.

    Args:
        rows: num_devices, epsilon, power_per_device, binding, num_scheduled, on a full grid.
        note: what is printed beside the figure.
    """
    require(rows, ("num_devices", "epsilon", "power_per_device", "binding", "num_scheduled"), "the rows of the figure")
    fleets = sorted({row["num_devices"] for row in rows})
    kinds = list(style.LIMIT_COLOURS)
    with mpl.rc_context(style.MATPLOTLIB):
        figure = Figure(figsize=(style.PAGE_INCHES, 4.6), layout="constrained")
        panels = figure.subplots(2, len(fleets), squeeze=False, sharex=True, sharey=True)
        colours = mpl.colors.ListedColormap(list(style.LIMIT_COLOURS.values()))
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
            mpl.patches.Patch(color=style.LIMIT_COLOURS[kind], alpha=0.55, label=f"{style.LIMIT_NAMES[kind]} binds")
            for kind in kinds
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
    models = list(dict.fromkeys(row["model"] for row in rows))
    with mpl.rc_context(style.MATPLOTLIB):
        figure = Figure(figsize=(style.PAGE_INCHES, 3.1), layout="constrained")
        panels = figure.subplots(1, len(models), squeeze=False)[0]
        for axes, model in zip(panels, models, strict=True):
            own = [row for row in rows if row["model"] == model]
            for place, rounds in enumerate(dict.fromkeys(row["rounds"] for row in own)):
                curve = [row for row in own if row["rounds"] == rounds]
                steps = [row["step"] for row in curve]
                colour = style.CURVE_COLOURS[(0, 4)[place % 2]]
                axes.plot(steps, [row["bound"] for row in curve], color=colour, ls="--", label=f"bound, I = {rounds}")
                axes.plot(steps, [row["measured"] for row in curve], color=colour, label=f"measured, I = {rounds}")
            axes.set_yscale("log")
            axes.set_xlabel("local steps so far")
            axes.set_ylabel(own[0]["quantity"])
            axes.set_title("logistic regression, Theorem 1" if model == "logistic" else "CNN, Theorem 2", loc="left")
        _legend(figure, panels[0])
        write_note(figure, note)
    return figure


def range_figure(rows: Rows, note: str) -> Figure:
    """Return final accuracy over the noise σ for several designs, one panel per ϖ: where each claim holds.

    Args:
        rows: label, clip_norm, noise_std, seed, accuracy.
        note: what is printed beside the figure.
    """
    require(rows, ("label", "clip_norm", "noise_std", "seed", "accuracy"), "the rows of the figure")
    norms = sorted({row["clip_norm"] for row in rows})
    with mpl.rc_context(style.MATPLOTLIB):
        figure = Figure(figsize=(style.PAGE_INCHES, 3.0), layout="constrained")
        panels = figure.subplots(1, len(norms), squeeze=False, sharey=True)[0]
        for axes, norm in zip(panels, norms, strict=True):
            _draw_range(axes, [row for row in rows if row["clip_norm"] == norm])
            axes.set_title(f"ϖ = {norm:g}", loc="left")
        panels[0].set_ylabel("final test accuracy [%]")
        _legend(figure, panels[0])
        write_note(figure, note)
    return figure


def _draw_range(axes: Axes, rows: Rows) -> None:
    labels = list(dict.fromkeys(row["label"] for row in rows))
    found = [_matrix([row for row in rows if row["label"] == label], "noise_std", "accuracy") for label in labels]
    noise = found[0][0]
    means, half = statistics.paired_bands(np.array([100 * values.T for _, values in found]), 0)
    for place, label in enumerate(labels):
        shifted = noise * 1.03 ** (place - len(labels) / 2)  # side by side: error bars must not hide each other
        shown = _appearance(place, place == 0)
        axes.errorbar(shifted, means[place], half[place], label=label, marker="o", ms=3, capsize=2, **shown)
    axes.set_xscale("log")
    axes.set_xticks(noise, [f"{value:g}" for value in noise])
    axes.minorticks_off()
    axes.set_ylim(0, 100)
    axes.set_xlabel("receiver noise σ per real dimension")


def _draw_training(accuracy: Axes, loss: Axes, rows: Rows) -> None:
    labels = list(dict.fromkeys(row["label"] for row in rows))
    reference = _reference(rows, labels)
    for axes, column in ((accuracy, "accuracy"), (loss, "loss")):
        steps, values = _on_one_grid(rows, labels, column)
        means, half = statistics.paired_bands((100.0 if column == "accuracy" else 1.0) * values, reference)
        # A design that does not learn may have any loss: what is well above the start's is cut off.
        top = 100.0 if column == "accuracy" else 1.35 * float(np.nanmax(means[reference]))
        for place, label in enumerate(labels):
            shown = _appearance(place, place == reference)
            axes.plot(steps, means[place], label=label, **shown)
            seen = np.where(means[place] <= top, half[place], np.nan)  # a curve off the scale has no band on it
            low, high = means[place] - seen, means[place] + seen
            axes.fill_between(steps, low, high, color=shown["color"], alpha=0.13, lw=0)
        axes.set_xlabel("local steps so far")
        axes.set_xlim(0, steps[-1])
        _name_axis(axes, column)
        axes.set_ylim(0, top)


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
    axes.bar(places, means, 0.6, color=style.POLICY_COLOURS["optimal"], alpha=0.8)
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


def _appearance(place: int, first: bool) -> dict[str, Any]:
    """Colour and dashes of the curve number `place`: told apart without colour too. The `first` is thick."""
    dashes: Iterable[Any] = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)), "-")
    colour = style.CURVE_COLOURS[place % len(style.CURVE_COLOURS)]
    return {
        "color": colour,
        "ls": list(dashes)[place % 8],
        "lw": 2.0 if first else 1.2,
        "zorder": 4 if first else 3,
    }


def _name_axis(axes: Axes, column: str) -> None:
    axes.set_ylabel("test accuracy [%]" if column == "accuracy" else "training loss")


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    wide = sum(len(label) + 12 for label in labels) > 130  # characters, the sample lines included: what a page holds
    figure.legend(handles, labels, loc="outside upper center", ncols=3 if wide else len(labels), handlelength=3)


def write_note(figure: Figure, note: str) -> None:
    """Print the settings under the figure."""
    lines = [line for part in note.splitlines() for line in textwrap.wrap(part, 158)]
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=6, color="#444444", linespacing=1.35)
