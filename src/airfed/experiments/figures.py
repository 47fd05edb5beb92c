"""The paper's Figs. 2 to 6: each is a TOML of `paper/`, the records of its points, and a drawing function."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airfed._disk import write_whole
from airfed.experiments import points
from airfed.experiments.points import Experiment, Point
from airfed.experiments.results import Record, data_frame, estimate
from airfed.planning import candidates
from airfed.plotting.colours import PALETTE
from airfed.plotting.figure import PAGE_INCHES, STYLE, Axes, Figure, encoded, mpl, plain, plan_figure
from airfed.plotting.series import half_width
from airfed.scenario import RayleighChannel, Scenario
from airfed.text.phrases import METRICS, SCOPES, span
from airfed.training.directory import RunError

Floats = NDArray[np.float64]
Rows = list[dict[str, Any]]
FOLDERS: Final = [Path(str(resources.files("airfed.experiments"))) / "paper"]
"""Where experiment files are looked for."""
_TRAINING_IMAGES: Final = {"mnist-5k": 4000, "mnist": 60000, "fashion-mnist": 60000}
_DASHES: Final[tuple[Any, ...]] = ("-", "--", "-.", (0, (1, 1)), (0, (8, 2)))


@dataclass(frozen=True, kw_only=True)
class Study:
    """An experiment, its points and, once they are run, their records."""

    experiment: Experiment
    points: Sequence[Point]
    records: Sequence[Record] = ()

    @property
    def base(self) -> Scenario:
        """The scenario that the experiment varies."""
        return self.experiment.base

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds at which every point ended with results: only those are compared."""
        return tuple(sorted({seed for seed, _ in self.complete()}))

    def complete(self) -> list[tuple[int, Record]]:
        """Return the records of those seeds, each with its seed."""
        seeded = [(int(record.point.values.get("seed", self.base.seed)), record) for record in self.records]
        bad = {seed: record for seed, record in seeded if not _measured(record)}
        found = [(seed, record) for seed, record in seeded if seed not in bad]
        if not found:
            first = next(iter(bad.values()))
            raise RunError(f"No seed of {self.experiment.name} is complete: {first.message or first.status}")
        return found


def _measured(record: Record) -> bool:
    """Whether a point ended, and not before anything could be measured (as one that diverges at once does)."""
    return record.ended and any(record.final.get(name) is not None for name in ("accuracy", "loss"))


Studies = Mapping[str, Study]


class Definition(NamedTuple):
    """A figure: its experiments, how it is made from them, and whether they are trained or only planned."""

    experiments: tuple[str, ...]
    build: Callable[[Studies], tuple[Rows, Figure]]
    trains: bool = True


def definition_file(experiment: str) -> Path:
    """Return the TOML of an experiment."""
    paths = [folder / f"{experiment}.toml" for folder in FOLDERS]
    return next((path for path in paths if path.exists()), paths[0])


def studies(definitions: Mapping[str, Definition], *, quick: bool) -> dict[str, Study]:
    """Return the studies that some figures need, by experiment, not yet run; `quick` uses little data and few seeds."""
    wanted: dict[str, Study] = {}
    for definition in definitions.values():
        for title in definition.experiments:
            loaded = points.load(definition_file(title), quick=quick)
            wanted[title] = Study(experiment=loaded, points=points.expand(loaded, keyed=definition.trains))
    return wanted


def with_records(found: Studies, records: Sequence[Record]) -> dict[str, Study]:
    """Return the studies with their records, which come in the order of the studies' points."""
    complete, rest = {}, list(records)
    for title, study in found.items():
        own, rest = rest[: len(study.points)], rest[len(study.points) :]
        complete[title] = replace(study, records=own)
    return complete


def training(experiment: Experiment, records: Sequence[Record]) -> Figure:
    """Return accuracy and loss over training of any sweep, one curve per variant, averaged over the seeds."""
    study = Study(experiment=experiment, points=[record.point for record in records], records=records)
    rows = [{**row, "label": row["label"] or experiment.name} for row in training_rows(study)]
    if not rows:
        raise RunError(f"Nothing to draw: the runs of {experiment.name} have no accuracy.")
    axes = (experiment.axes, *(variant.axes for variant in experiment.variants))
    if varied := [key for each in axes for key in each if key != "seed"]:
        raise RunError(
            f"Nothing to draw: {experiment.name} varies {varied[0]!r}; a curve is drawn per variant and seed."
        )
    return training_figure(rows, settings(experiment.base, seeds=study.seeds))


def save(name: str, rows: Rows, figure: Figure, out: Path) -> list[Path]:
    """Write NAME.png, NAME.pdf and NAME.csv and return the files."""
    content = {ending: encoded(figure, ending) for ending in ("png", "pdf")}
    content["csv"] = data_frame(rows).to_csv(index=False).encode()
    try:
        out.mkdir(parents=True, exist_ok=True)
        for ending, whole in content.items():
            write_whole(out / f"{name}.{ending}", whole)
    except OSError as error:
        raise RunError(f"Cannot write {name} to {out}: {error.strerror or error}. The runs are kept.") from None
    return [out / f"{name}.{ending}" for ending in content]


def training_rows(study: Study, **extra: Any) -> Rows:
    """Return the evaluated rounds of every complete seed, as rows of the CSV."""
    return [
        {**extra, "label": record.point.label, "seed": seed, **decided(record)}
        | {key: metrics[key] for key in ("round", "step", "accuracy", "loss", "test_loss")}
        for seed, record in study.complete()
        for metrics in record.round_rows()
        if metrics["accuracy"] is not None
    ]


def decided(record: Record) -> dict[str, Any]:
    """Return the devices, the rounds and the binding limit of a record, for a row of the CSV."""
    return {key: record.plan[key] for key in ("num_scheduled", "rounds", "binding")}


def over_training(study: Study, rows: Rows, extra: str) -> tuple[Rows, Figure]:
    """Return the rows and their figure: accuracy and loss over training."""
    return rows, training_figure(rows, settings(study.base, seeds=study.seeds, extra=extra))


def _fig2(found: Studies) -> tuple[Rows, Figure]:
    world = found["fig2"].base
    plan = world.plan()
    space = candidates(plan)
    names = ("alignment", "privacy_limit", "peak_limit", "total_limit", "objective")
    columns = np.broadcast_arrays(space.size, *(getattr(space, name) for name in names))
    rows = [
        dict(zip(("num_scheduled", *names), (value.item() for value in values), strict=True))
        for values in zip(*columns, strict=True)
    ]
    return rows, plan_figure(plan, settings(world))


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
            **decided(record),
            "round": record.final["round"],
            "step": gain.base.learning.total_steps,
            **{key: record.final[key] for key in ("accuracy", "loss", "test_loss")},
        }
        for seed, record in gain.complete()
    ]
    extra = "Everybody: I = 40, E = 5. “No weak device”: the same draws with h_min = 0.5. Right: proposed minus full."
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
    return over_training(study, rows, f"Proposed: I = {rounds}, |K| = {devices}, decided for each seed's channels.")


FIGURES: Final = {
    "fig2": Definition(("fig2",), _fig2, trains=False),
    "fig3": Definition(("fig3", "fig3-gain"), _fig3),
    "fig4": Definition(("fig4",), _fig4),
    "fig5": Definition(("fig5",), _fig5),
    "fig6": Definition(("fig6",), _fig6),
}


def settings(world: Scenario, *, seeds: Sequence[int] = (), extra: str = "") -> str:
    """Return the settings of a figure in a few sentences, and which of them the paper does not give."""
    learning, budget, channel = world.learning, world.budget, world.channel
    gains = f"Rayleigh (scale {channel.scale:g})" if isinstance(channel, RayleighChannel) else channel.model
    if channel.minimum:
        gains += f", not below h_min = {channel.minimum:g}" + ", the weakest exactly there" * channel.pin_minimum
    power = world.fleet.peak_power
    parts = [
        f"N = {world.num_devices}",
        f"P = {power:g} W" if isinstance(power, float) else "P given per device",
        f"P_tot = {budget.total_power:g} W; gains {gains}; σ = {world.link.received_std:g} per real dimension",
        f"ε = {budget.epsilon:g} and ξ = {budget.delta:g} for {SCOPES[budget.scope]}, {budget.formula} formula",
        f"ϖ = {learning.clip_norm:g}; τ = {learning.learning_rate:g}; T = {learning.total_steps}",
        f"ζ = {learning.smoothness:g}, ϱ = {learning.strong_convexity:g}, G = {learning.initial_gap:g}",
        f"{learning.model_title}, d = {world.dimension}, {learning.dataset}, {learning.partition.upper()}",
    ]
    if images := learning.images or _TRAINING_IMAGES.get(learning.dataset):
        parts.append(f"{images // world.num_devices} images per device")
    said = ["; ".join(parts) + "."]
    if seeds:
        mean = f"Mean of {len(seeds)} seeds; bands: 95% (Student t), of differences from the best or thick curve."
        said.append(mean if len(seeds) > 1 else "One seed.")
    said.append("Not given by the paper, so ours: the distribution of h, σ, ε, ξ, ϖ, ϱ, ζ, G.")
    return " ".join([*said, extra]).strip()


def write_note(figure: Figure, note: str) -> None:
    """Print the settings under the figure."""
    text = plain("\n".join(textwrap.wrap(note, 158)))
    figure.supxlabel(text, x=0.01, ha="left", fontsize=6, color="#444444", linespacing=1.35)


def training_figure(rows: Rows, note: str) -> Figure:
    """Return test accuracy and training loss over the local steps, one curve per label, with 95% bands."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, 3.0), layout="constrained")
        _draw_training(figure, figure.subplots(1, 2), rows)
        write_note(figure, note)
    return figure


def _scheduling_figure(rows: Rows, note: str) -> Figure:
    """The paper's Fig. 3, and what scheduling gains over full participation against h_min."""
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
        right.bar(list(gains), means, 0.6, yerr=half, color=PALETTE["lit"], alpha=0.8, capsize=3)
        right.axhline(0, color="black", lw=0.8)
        right.set_xlabel("weakest gain $h_{min}$")
        right.set_ylabel("gain over full [points]")
        right.grid(axis="x", visible=False)
        write_note(figure, note)
    return figure


def _local_steps_figure(rows: Rows, note: str) -> Figure:
    """The paper's Fig. 5: final accuracy and loss over E."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, 2.8), layout="constrained")
        for axes, column in zip(figure.subplots(1, 2), ("accuracy", "loss"), strict=True):
            values = data_frame(rows).pivot(index="local_steps", columns="seed", values=column).astype(float)
            steps, mean = values.index.to_numpy(dtype=float), values.mean(axis=1).to_numpy()
            best = int(np.argmax(mean) if column == "accuracy" else np.argmin(mean))
            means, half = (part[:, 0] for part in paired_bands(values.to_numpy()[:, :, None], best))
            axes.errorbar(steps, means, half, color="black", marker="o", ms=3, capsize=2, lw=1.1)
            axes.plot(steps[best], means[best], "*", color=PALETTE["lit"], ms=11, zorder=5)
            axes.annotate(f"best: E = {steps[best]:g}", (steps[best], means[best]), (4, 6), textcoords="offset points")
            high = float(np.nanmax(means + half))
            axes.set_ylim(max(0.0, float(np.nanmin(means - half)) * 0.95), 1.05 * min(high, 4.0))
            ticks_at(axes, steps)
            axes.set_xlabel("local steps E between two aggregations")
            name_metric(axes, column, "final ")
        write_note(figure, note)
    return figure


def _draw_training(figure: Figure, panels: Sequence[Axes], rows: Rows) -> None:
    labels = list(dict.fromkeys(row["label"] for row in rows))
    reference = labels.index("proposed") if "proposed" in labels else None
    for axes, column in zip(panels, ("accuracy", "loss"), strict=True):
        steps, values = _on_one_grid(rows, labels, column)
        if reference is None:  # the most accurate in the end
            reference = int(np.argmax(values[:, :, -1].mean(axis=1)))
        means, half = paired_bands(values, reference)
        # The loss of a design that does not learn has no limit: above the start's it is cut off.
        top = 1.0 if column == "accuracy" else 1.35 * float(np.nanmax(means[reference]))
        for place, label in enumerate(labels):
            look = appearance(place, place == reference)
            axes.plot(steps, means[place], label=plain(label), **look)
            band = np.where(means[place] <= top, half[place], np.nan)  # no band for a curve off the scale
            axes.fill_between(steps, means[place] - band, means[place] + band, color=look["color"], alpha=0.13, lw=0)
        axes.set_xlim(0, steps[-1])
        axes.set_ylim(0, top)
        axes.set_xlabel("local steps so far")
        name_metric(axes, column)
    handles, named = panels[0].get_legend_handles_labels()
    figure.legend(handles, named, loc="outside upper center", ncols=min(len(labels), 4), handlelength=3)


def name_metric(axes: Axes, column: str, prefix: str = "") -> None:
    """Name the y axis after a metric; accuracy is in percent."""
    axes.set_ylabel(prefix + METRICS[column])
    if column == "accuracy":
        axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, decimals=0))


def ticks_at(axes: Axes, places: Floats) -> None:
    """Make the x axis logarithmic, with a tick at each place."""
    axes.set_xscale("log")
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())


def appearance(place: int, first: bool) -> dict[str, Any]:
    """Return colour and dashes of curve number `place`, different without colour too; the `first` is thick."""
    colours = [colour for name, colour in PALETTE.items() if name.startswith("run-")]
    look = {"color": colours[place % len(colours)], "ls": _DASHES[place % len(_DASHES)]}
    return {**look, "lw": 2.0 if first else 1.2, "zorder": 3.5 if first else 3}


def paired_bands(values: Floats, reference: int) -> tuple[Floats, Floats]:
    """Return means and half-widths of 95% bands, (curves, places), of values (curves, seeds, places).

    The band of a curve is the interval of its difference from the reference, seed by seed, not that of the seeds, which
    move all curves together. The reference has the plain interval of its own mean.
    """
    means = values.mean(axis=1)
    if values.shape[1] < 2:
        return means, np.zeros_like(means)
    differences = values - values[reference]
    differences[reference] = values[reference]
    return means, half_width(differences, axis=1)


def _on_one_grid(rows: Rows, labels: Sequence[str], column: str) -> tuple[Floats, Floats]:
    """Steps, and values (curves, seeds, steps) interpolated to them, as designs differ in their rounds."""
    seeds = sorted({row["seed"] for row in rows})
    steps = np.linspace(0, max(row["step"] for row in rows), 101)
    values = np.full((len(labels), len(seeds), steps.size), np.nan)
    for curve, label in enumerate(labels):
        for place, seed in enumerate(seeds):
            own = sorted((row["step"], row[column]) for row in rows if (row["label"], row["seed"]) == (label, seed))
            at, value = np.array(own, dtype=np.float64).T
            values[curve, place] = np.interp(steps, at, value, left=np.nan)
    return steps, values
