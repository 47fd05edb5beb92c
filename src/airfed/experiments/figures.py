"""The paper's Figs. 2 to 6: each has a TOML in `paper/`, the records of its points, and a drawing function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airfed.experiments import points
from airfed.experiments.points import Experiment, Point
from airfed.experiments.results import Record, data_frame, estimate, write_files
from airfed.planning import candidates
from airfed.plotting.colours import PALETTE
from airfed.plotting.figure import PAGE_INCHES, STYLE, Axes, Figure, mpl, note_outside, pictures, plain, plan_figure
from airfed.plotting.series import failed, half_width
from airfed.scenario import RayleighChannel, Scenario
from airfed.text.phrases import METRICS, SCOPES, span
from airfed.training.directory import RunError

Floats = NDArray[np.float64]
Rows = list[dict[str, Any]]
FOLDERS: Final = [Path(str(resources.files("airfed.experiments"))) / "paper"]
"""Folders of experiment files."""
_TRAINING_IMAGES: Final = {"mnist-5k": 4000, "mnist": 60000, "fashion-mnist": 60000}
_ALIASES: Final = {"proposed": "optimal", "causal": "optimal"}  # names of airfed's plan in the experiments
_MOST_LOSS: Final = 4.0  # final losses above it are outside the axis
_DASHES: Final[tuple[Any, ...]] = ("-", "--", "-.", (0, (1, 1)), (0, (8, 2)))


@dataclass(frozen=True, kw_only=True)
class Study:
    """An experiment, its points and, after they are run, their records."""

    experiment: Experiment
    points: Sequence[Point]
    records: Sequence[Record] = ()

    @property
    def base(self) -> Scenario:
        """The scenario that the experiment varies."""
        return self.experiment.base

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds for which every point has results; only these are compared."""
        return tuple(sorted({seed for seed, _ in self.complete()}))

    def complete(self) -> list[tuple[int, Record]]:
        """Return the records of those seeds, each with its seed."""
        seeded = [(int(record.point.values.get("seed", self.base.seed)), record) for record in self.records]
        bad = {seed: record for seed, record in seeded if not _evaluated(record)}
        complete = [(seed, record) for seed, record in seeded if seed not in bad]
        if not complete:
            first = next(iter(bad.values()))
            raise RunError(f"No seed of {self.experiment.name} is complete: {first.message or first.status}")
        return complete


def _evaluated(record: Record) -> bool:
    """Return whether a point ended after an evaluation (one that diverges at once has none)."""
    return record.ended and any(record.final.get(name) is not None for name in ("accuracy", "loss"))


Studies = Mapping[str, Study]


class Definition(NamedTuple):
    """A figure: its experiments, the function that draws it, and whether they are trained or only planned."""

    experiments: tuple[str, ...]
    build: Callable[[Studies], tuple[Rows, Figure]]
    trains: bool = True


def definition_file(experiment: str) -> Path:
    """Return the TOML of an experiment."""
    paths = [folder / f"{experiment}.toml" for folder in FOLDERS]
    return next((path for path in paths if path.exists()), paths[0])


def studies(definitions: Mapping[str, Definition], *, quick: bool) -> dict[str, Study]:
    """Return the studies of some figures by experiment, without records; `quick` uses less data and fewer seeds."""
    found: dict[str, Study] = {}
    for definition in definitions.values():
        for title in definition.experiments:
            loaded = points.load(definition_file(title), quick=quick)
            found[title] = Study(experiment=loaded, points=points.expand(loaded, keyed=definition.trains))
    return found


def with_records(found: Studies, records: Sequence[Record]) -> dict[str, Study]:
    """Return the studies with their records, given in the order of the studies' points."""
    rest = iter(records)
    return {title: replace(study, records=list(islice(rest, len(study.points)))) for title, study in found.items()}


def training(experiment: Experiment, records: Sequence[Record]) -> Figure:
    """Return accuracy and loss over the training of any sweep, one curve per variant, averaged over the seeds."""
    study = Study(experiment=experiment, points=[record.point for record in records], records=records)
    rows = [{**row, "label": row["label"] or experiment.name} for row in training_rows(study)]
    if not rows:
        raise RunError(f"Nothing to draw: the runs of {experiment.name} have no accuracy.")
    axes = (experiment.axes, *(variant.axes for variant in experiment.variants))
    if varied := [key for each in axes for key in each if key != "seed"]:
        raise RunError(
            f"Nothing to draw: {experiment.name} varies {varied[0]!r}; only variants and seeds can be drawn."
        )
    return training_figure(rows, settings(experiment.base, seeds=study.seeds))


def save(name: str, rows: Rows, figure: Figure, out: Path) -> list[Path]:
    """Write NAME.png, NAME.pdf, NAME.csv and NAME.txt (the figure's settings) and return the files."""
    content = {**pictures(name, figure), f"{name}.csv": data_frame(rows).to_csv(index=False).encode()}
    return write_files(name, content.items(), out)


def training_rows(study: Study, **extra: Any) -> Rows:
    """Return the evaluated rounds of every complete seed, as rows of the CSV."""
    return [
        {**extra, "label": record.point.label, "seed": seed, **plan_columns(record)}
        | {key: metrics[key] for key in ("round", "step", "accuracy", "loss", "test_loss")}
        for seed, record in study.complete()
        for metrics in record.round_rows()
        if metrics["accuracy"] is not None
    ]


def plan_columns(record: Record) -> dict[str, Any]:
    """Return the devices, the rounds and the binding limit of a record, for a row of the CSV."""
    return {key: record.plan[key] for key in ("num_scheduled", "rounds", "binding")}


def over_training(study: Study, rows: Rows, extra: str) -> tuple[Rows, Figure]:
    """Return the rows and their figure: accuracy and loss over training."""
    return rows, training_figure(rows, settings(study.base, seeds=study.seeds, extra=extra))


def _fig2(found: Studies) -> tuple[Rows, Figure]:
    scenario = found["fig2"].base
    plan = scenario.plan()
    space = candidates(plan)
    names = ("alignment", "privacy_limit", "peak_limit", "total_limit", "objective")
    columns = np.broadcast_arrays(space.size, *(getattr(space, name) for name in names))
    rows = [
        dict(zip(("num_scheduled", *names), (value.item() for value in values), strict=True))
        for values in zip(*columns, strict=True)
    ]
    figure = plan_figure(plan)
    figure.set_label(settings(scenario))
    return rows, figure


def _fig3(found: Studies) -> tuple[Rows, Figure]:
    study, gain = found["fig3"], found["fig3-gain"]
    rows = training_rows(study, panel="training", h_min=study.base.channel.minimum)
    for row in rows:
        if row["label"] == "full, no weak device":
            row["h_min"] = 0.5
    rows += [
        {
            "panel": "gain",
            "h_min": record.point.values["channel.minimum"],
            "label": record.point.label,
            "seed": seed,
            **plan_columns(record),
            "round": record.final["round"],
            "step": gain.base.learning.total_steps,
            **{key: record.final[key] for key in ("accuracy", "loss", "test_loss")},
        }
        for seed, record in gain.complete()
    ]
    extra = "All designs: I = 40, E = 5. “No weak device”: the same draws with h_min = 0.5. Right: proposed minus full."
    return rows, _scheduling_figure(rows, settings(study.base, seeds=study.seeds, extra=extra))


def _fig4(found: Studies) -> tuple[Rows, Figure]:
    study = found["fig4"]
    return over_training(study, training_rows(study), "Devices and alignment: the optimum for the given I.")


def _fig5(found: Studies) -> tuple[Rows, Figure]:
    study = found["fig5"]
    last = {(row["label"], row["seed"]): row for row in training_rows(study)}
    rows = [{"local_steps": study.base.learning.total_steps / row["rounds"], **row} for row in last.values()]
    extra = "Devices and alignment: the optimum for the given I = T/E."
    return rows, _local_steps_figure(rows, settings(study.base, seeds=study.seeds, extra=extra))


def _fig6(found: Studies) -> tuple[Rows, Figure]:
    study = found["fig6"]
    rows = training_rows(study)
    rounds, devices = (
        span(sorted({row[key] for row in rows if row["label"] == "proposed"})) for key in ("rounds", "num_scheduled")
    )
    return over_training(study, rows, f"Proposed: I = {rounds}, |K| = {devices}, planned for each seed's channels.")


FIGURES: Final = {
    "fig2": Definition(("fig2",), _fig2, trains=False),
    "fig3": Definition(("fig3", "fig3-gain"), _fig3),
    "fig4": Definition(("fig4",), _fig4),
    "fig5": Definition(("fig5",), _fig5),
    "fig6": Definition(("fig6",), _fig6),
}


def settings(scenario: Scenario, *, seeds: Sequence[int] = (), extra: str = "") -> str:
    """Return the settings of a figure in a few sentences, and which of them the paper does not state."""
    learning, budget, channel = scenario.learning, scenario.budget, scenario.channel
    gains = f"Rayleigh (scale {channel.scale:g})" if isinstance(channel, RayleighChannel) else channel.model
    if channel.minimum:
        gains += f", not below h_min = {channel.minimum:g}" + ", the weakest exactly there" * channel.pin_minimum
    power, per = scenario.fleet.power, " per symbol" if scenario.fleet.peak_power is None else ""
    parts = [
        f"N = {scenario.num_devices}",
        f"P = {power:g} W{per}" if isinstance(power, float) else f"P{per} given per device",
        f"P_tot = {budget.total_power:g} W; gains {gains}; σ = {scenario.link.received_std:g} per real dimension",
        f"ε = {budget.epsilon:g} and ξ = {budget.delta:g} for {SCOPES[budget.scope]}, {budget.formula} formula",
        f"ϖ = {learning.clip_norm:g}; τ = {learning.learning_rate:g}; T = {learning.total_steps}",
        f"ζ = {learning.smoothness:g}, ϱ = {learning.strong_convexity:g}, G = {learning.initial_gap:g}",
        f"{learning.model_title}, d = {scenario.dimension}, {learning.dataset}, {learning.partition.upper()}",
    ]
    if images := learning.images or _TRAINING_IMAGES.get(learning.dataset):
        parts.append(f"{images // scenario.num_devices} images per device")
    sentences = ["; ".join(parts) + "."]
    if seeds:
        mean = f"Means of {len(seeds)} seeds with 95% intervals (Student's t); differences are paired by seed."
        sentences.append(mean if len(seeds) > 1 else "One seed.")
    sentences.append(
        "The paper does not state, so these are ours: the distribution of h, σ, ε, ξ, ϖ, ϱ, ζ, G, and, except for "
        "Fig. 6, N and P_tot."
    )
    return " ".join([*sentences, extra]).strip()


def training_figure(rows: Rows, note: str) -> Figure:
    """Return accuracy, loss and the paired difference from the thick curve over the local steps, a curve per label."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, 3.0), layout="constrained")
        several = len({row["label"] for row in rows}) > 1
        _draw_training(figure, figure.subplots(1, 2 + several), rows)
        figure.set_label(note)
    return figure


def _scheduling_figure(rows: Rows, note: str) -> Figure:
    """Return the paper's Fig. 3, and the gain of scheduling over full participation against h_min."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, 3.0), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 0.72])
        _draw_training(figure, (left, middle), [row for row in rows if row["panel"] == "training"])
        found = data_frame([row for row in rows if row["panel"] == "gain"])
        final = found.pivot(index=["h_min", "seed"], columns="label", values="accuracy").astype(float)
        minima = (100 * (final["proposed"] - final["full"])).groupby("h_min")
        gains = {f"{minimum:g}": estimate(own) for minimum, own in minima}
        half = np.nan_to_num([gain.half_width for gain in gains.values()], posinf=0.0)
        means = [gain.mean for gain in gains.values()]
        right.bar(list(gains), means, 0.6, yerr=half, color=PALETTE["policy-optimal"], alpha=0.8, capsize=3)
        right.axhline(0, color="black", lw=0.8)
        right.set_xlabel("weakest gain $h_{min}$")
        right.set_ylabel("accuracy, proposed minus full,\npaired by seed [points]")
        right.grid(axis="x", visible=False)
        figure.set_label(note)
    return figure


def _local_steps_figure(rows: Rows, note: str) -> Figure:
    """Return the paper's Fig. 5: final accuracy and loss over E, and the paired difference from the best E."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, 2.8), layout="constrained")
        *panels, right = figure.subplots(1, 3)
        tables = {
            column: data_frame(rows).pivot(index="local_steps", columns="seed", values=column).astype(float)
            for column in ("accuracy", "loss")
        }
        steps = tables["accuracy"].index.to_numpy(dtype=float)
        look: dict[str, Any] = {"color": "black", "marker": "o", "ms": 3, "capsize": 2, "lw": 1.1}
        for axes, (column, table) in zip(panels, tables.items(), strict=True):
            values = table.to_numpy()
            means, half = (part[:, 0] for part in mean_bands(values[:, :, None]))
            best = int(np.argmax(means) if column == "accuracy" else np.argmin(means))
            axes.errorbar(steps, means, half, **look)
            axes.plot(steps[best], means[best], "*", color=PALETTE["lit"], ms=11, zorder=5)
            inside = (means < _MOST_LOSS) | (means == means[best])
            axes.set_ylim(*_around(means[inside] - half[inside], means[inside] + half[inside]))
            if not inside.all():
                note_outside(axes, [f"E = {steps[k]:g}: {means[k]:.3g}" for k in np.flatnonzero(~inside)])
            name_metric(axes, column, "final ")
            axes.set_title(f"best: E = {steps[best]:g}", loc="left")
            if column == "accuracy":
                means, half = (100 * part[:, 0] for part in paired_differences(values[:, :, None], best))
                right.errorbar(steps, means, half, **look)
                right.axhline(0, color="black", lw=0.8)
                right.set_ylabel(f"accuracy minus that of E = {steps[best]:g},\npaired by seed [points]")
        for axes in figure.axes:
            ticks_at(axes, steps)
            axes.set_xlabel("local steps E per round")
        figure.set_label(note)
    return figure


def _draw_training(figure: Figure, panels: Sequence[Axes], rows: Rows) -> None:
    """Draw accuracy, loss and, in a third panel if there is one, the paired difference of the accuracy."""
    labels = list(dict.fromkeys(row["label"] for row in rows))
    steps, accuracies = _on_one_grid(rows, labels, "accuracy")
    _, losses = _on_one_grid(rows, labels, "loss")
    final = accuracies[:, :, -1].mean(axis=1)
    reference = labels.index("proposed") if "proposed" in labels else int(np.argmax(final))
    looks = appearances(labels, reference)
    for axes, column, values in zip(panels, ("accuracy", "loss"), (accuracies, losses), strict=False):
        means, half = mean_bands(values)
        # The loss of a method that does not learn has no limit: above that of the start it is outside the axis.
        top = 1.0 if column == "accuracy" else 1.35 * float(np.nanmax(means[reference]))
        half = np.where(means <= top, half, np.nan)
        _draw_bands(axes, steps, means, half, looks, range(len(labels)))
        axes.set_ylim(0, top)
        name_metric(axes, column)
    for axes in panels[2:]:
        means, half = (100 * part for part in paired_differences(accuracies, reference))
        outside = failed(final)
        shown = [index for index in range(len(labels)) if not outside[index] and index != reference]
        _draw_bands(axes, steps, means, half, looks, [*shown, reference])
        axes.set_ylim(*_around((means - half)[[*shown, reference]], (means + half)[[*shown, reference]]))
        axes.set_ylabel(f"accuracy minus {plain(labels[reference])},\npaired by seed [points]")
        left_out = [f"{labels[index]}: {means[index, -1]:.0f}" for index in np.flatnonzero(outside)]
        if left_out:
            note_outside(axes, left_out, y=0.03)
    handles, named = panels[0].get_legend_handles_labels()
    if (seeds := accuracies.shape[1]) > 1:
        handles.append(mpl.patches.Patch(color=PALETTE["out"], lw=0))
        named.append(f"95% interval over {seeds} seeds")
    columns = -(-len(named) // -(-len(named) // 4))
    figure.legend(handles, named, loc="outside upper center", ncols=columns, handlelength=3)


def _draw_bands(
    axes: Axes, steps: Floats, means: Floats, half: Floats, looks: Mapping[str, Any], shown: Sequence[int]
) -> None:
    for index in shown:
        label, look = list(looks.items())[index]
        axes.plot(steps, means[index], label=plain(label), **look)
        low, high = means[index] - half[index], means[index] + half[index]
        axes.fill_between(steps, low, high, color=look["color"], alpha=0.13, lw=0)
    axes.set_xlim(0, steps[-1])
    axes.set_xlabel("local steps so far")


def _around(low: Floats, high: Floats) -> tuple[float, float]:
    """Return limits of an axis that contain all intervals, with a margin."""
    least, most = float(np.nanmin(low)), float(np.nanmax(high))
    margin = 0.05 * (most - least) or 1.0
    return least - margin, most + margin


def name_metric(axes: Axes, column: str, prefix: str = "") -> None:
    """Label the y axis with a metric; accuracy is in percent."""
    axes.set_ylabel(prefix + METRICS[column])
    if column == "accuracy":
        axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1))


def ticks_at(axes: Axes, places: Floats) -> None:
    """Put a tick at each value of x; the axis is logarithmic if they span a factor of ten."""
    axes.set_xscale("log" if places.max() >= 10 * places.min() > 0 else "linear")
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())


def appearances(labels: Sequence[str], thick: int) -> dict[str, dict[str, Any]]:
    """Return colour and dashes of the curves: a label that starts with a method's name has the method's colour."""
    named = [re.split("[ ,]", label)[0] for label in labels]
    colours = [PALETTE.get(f"policy-{_ALIASES.get(name, name)}") for name in named]
    others = [PALETTE[f"run-{index}"] for index in range(7)]
    free = cycle([colour for colour in others if colour not in colours] or others)
    return {
        label: {
            "color": colour or next(free),
            "ls": _DASHES[index % len(_DASHES)],
            "lw": 2.0 if index == thick else 1.2,
            "zorder": 3.5 if index == thick else 3,
        }
        for index, (label, colour) in enumerate(zip(labels, colours, strict=True))
    }


def mean_bands(values: Floats) -> tuple[Floats, Floats]:
    """Return means and half-widths of their 95% intervals, (curves, places), of values (curves, seeds, places)."""
    means = values.mean(axis=1)
    return means, half_width(values, axis=1) if values.shape[1] > 1 else np.zeros_like(means)


def paired_differences(values: Floats, reference: int) -> tuple[Floats, Floats]:
    """Return mean differences from the reference, seed by seed, and half-widths of their 95% intervals."""
    return mean_bands(values - values[reference])


def _on_one_grid(rows: Rows, labels: Sequence[str], column: str) -> tuple[Floats, Floats]:
    """Return common steps, and values (curves, seeds, steps) interpolated to them, as designs differ in rounds."""
    seeds = sorted({row["seed"] for row in rows})
    steps = np.linspace(0, max(row["step"] for row in rows), 101)
    values = np.full((len(labels), len(seeds), steps.size), np.nan)
    for curve, label in enumerate(labels):
        for index, seed in enumerate(seeds):
            own = sorted((row["step"], row[column]) for row in rows if (row["label"], row["seed"]) == (label, seed))
            at, value = np.array(own, dtype=np.float64).T
            values[curve, index] = np.interp(steps, at, value, left=np.nan)
    return steps, values
