"""The paper's figures: each is a TOML of `paper/`, the records of its points, and a drawing function.

`studies` reads the experiments, `airfed.experiments.sweep` runs what is missing, `build` turns records into the rows
of the CSV and the figure drawn from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from airfed._disk import write_whole
from airfed.experiments import curves, notes, points
from airfed.experiments.notes import definition_file
from airfed.experiments.points import Experiment, Point, Variant
from airfed.experiments.records import Record, csv_text
from airfed.experiments.verdicts import Verdict
from airfed.planning import candidates
from airfed.plotting import files
from airfed.plotting.figure import Figure
from airfed.plotting.figure import save as save_figure
from airfed.scenario import Scenario
from airfed.text.phrases import span
from airfed.training.directory import RunError

Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Study:
    """An experiment, its points and, once they are run, their records."""

    experiment: Experiment
    points: Sequence[Point]
    records: Sequence[Record] = ()

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds at which every point ended with figures to show: only those are compared.

        Raises:
            RunError: there is none; the sentence is that of a point that failed.
        """
        ended: dict[int, bool] = {}
        for record in self.records:
            seed = self._seed(record)
            ended[seed] = ended.get(seed, True) and _measured(record)
        whole = tuple(sorted(seed for seed, good in ended.items() if good))
        if not whole:
            bad = next(record for record in self.records if not _measured(record))
            raise RunError(f"No seed of {self.experiment.name} is complete: {bad.message or bad.status}")
        return whole

    def complete(self) -> list[tuple[int, Record]]:
        """Return the records of those seeds, each with its seed.

        Raises:
            RunError: as in `seeds`.
        """
        seeds = self.seeds
        return [(seed, record) for record in self.records if (seed := self._seed(record)) in seeds]

    def _seed(self, record: Record) -> int:
        return int(record.point.values.get("seed", self.experiment.base.seed))


def _measured(record: Record) -> bool:
    """Whether a point ended, and not before anything could be measured (as one that diverges at once does)."""
    return record.ended and any(record.final.get(name) is not None for name in ("accuracy", "loss"))


Studies = Mapping[str, Study]


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A figure: the experiments it needs, whether they are trained, how it is made from them, and what that takes.

    `check` returns the verdicts on claims that are tested on the figure's own rows (`verdicts` has the others), `table`
    what the terminal shows of those rows.
    """

    name: str
    experiments: tuple[str, ...]
    build: Callable[[Studies], tuple[Rows, Figure]]
    trains: bool = True
    takes: str = ""
    check: Callable[[Sequence[Mapping[str, Any]]], list[Verdict]] = lambda rows: []
    table: Callable[[Sequence[Mapping[str, Any]]], list[list[str]]] | None = None


def studies(names: Sequence[str], *, quick: bool, changes: Mapping[str, Any] | None = None) -> dict[str, Study]:
    """Return the studies that the named figures need, by experiment, not yet run.

    Args:
        names: figures.
        quick: use the small data set and few seeds.
        changes: further changes to every point, by dotted key (tests make the world smaller).

    Raises:
        ValueError: there is no such figure.
    """
    wanted: dict[str, Study] = {}
    for name in names:
        if name not in FIGURES:
            raise ValueError(f"Expected a figure out of {', '.join(FIGURES)}; got {name!r}.")
        for title in FIGURES[name].experiments:
            loaded = points.load(definition_file(title), quick=quick)
            if changes:
                loaded = _changed(loaded, changes)
            digest = None if FIGURES[name].trains else lambda dataset: dataset
            wanted[title] = Study(experiment=loaded, points=points.expand(loaded, digest))
    return wanted


def trains(experiment: str) -> bool:
    """Return whether the points of an experiment are trained (and not only planned)."""
    return any(figure.trains and experiment in figure.experiments for figure in FIGURES.values())


def with_records(found: Studies, records: Sequence[Record]) -> dict[str, Study]:
    """Return the studies with their records, which come in the order of the studies' points."""
    complete, rest = {}, list(records)
    for title, study in found.items():
        own, rest = rest[: len(study.points)], rest[len(study.points) :]
        complete[title] = replace(study, records=own)
    return complete


def training(experiment: Experiment, records: Sequence[Record]) -> Figure:
    """Return accuracy and loss over training of any sweep, one curve per variant, averaged over the seeds.

    Raises:
        RunError: no seed is complete, or the runs have no accuracy.
    """
    study = Study(experiment=experiment, points=[record.point for record in records], records=records)
    rows = [{**row, "label": row["label"] or experiment.name} for row in training_rows(study)]
    if not rows:
        raise RunError(f"Nothing to draw: the runs of {experiment.name} have no accuracy.")
    axes = (experiment.axes, *(variant.axes for variant in experiment.variants))
    varied = [key for each in axes for key in each if key != "seed"]
    if varied:
        raise RunError(
            f"Nothing to draw: {experiment.name} varies {varied[0]!r}; a curve is drawn per variant and seed."
        )
    return curves.training_figure(rows, notes.settings(experiment.base, seeds=study.seeds))


def save(name: str, rows: Rows, figure: Figure, out: Path) -> list[Path]:
    """Write NAME.png, NAME.pdf and NAME.csv and return the files."""
    out.mkdir(parents=True, exist_ok=True)
    for ending in ("png", "pdf"):
        save_figure(figure, out / f"{name}.{ending}")
    write_whole(out / f"{name}.csv", csv_text(rows).encode())
    return [out / f"{name}.{ending}" for ending in ("png", "pdf", "csv")]


def _changed(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    def replaced(axes: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        return {key: tuple(changes.get(key, values)) for key, values in axes.items()}

    variants = tuple(
        Variant(label=variant.label, changes=variant.changes, axes=replaced(variant.axes))
        for variant in experiment.variants
    )
    varied = {*experiment.axes, *(key for variant in variants for key in variant.axes)}
    base = experiment.base.vary({key: value for key, value in changes.items() if key not in varied})
    return replace(experiment, base=base, axes=replaced(experiment.axes), variants=variants)


def training_rows(study: Study, **extra: Any) -> Rows:
    """Return the evaluated rounds of every complete seed, as rows of the CSV."""
    return [
        {
            **extra,
            "label": record.point.label,
            "seed": seed,
            **decided(record),
            **{key: metrics[key] for key in ("round", "step", "accuracy", "loss", "test_loss")},
        }
        for seed, record in study.complete()
        for metrics in record.round_rows()
        if metrics["accuracy"] is not None
    ]


def decided(record: Record) -> dict[str, Any]:
    """Return the devices, the rounds and the binding limit of a record, for a row of the CSV."""
    return {key: record.plan[key] for key in ("num_scheduled", "rounds", "binding")}


def over_training(study: Study, rows: Rows, extra: str, varied: Sequence[str] = ()) -> tuple[Rows, Figure]:
    """Return the rows and their figure: accuracy and loss over training."""
    note = notes.settings(base_of(study), seeds=study.seeds, extra=extra, varied=varied)
    return rows, curves.training_figure(rows, note)


def base_of(study: Study) -> Scenario:
    """Return the scenario that a study varies."""
    return study.experiment.base


def _fig2(found: Studies) -> tuple[Rows, Figure]:
    world = base_of(found["fig2"])
    plan = world.plan()
    space = candidates(plan)
    columns = {
        "num_scheduled": space.size,
        "alignment": space.alignment,
        "privacy_limit": space.privacy_limit,
        "peak_limit": space.peak_limit,
        "total_limit": space.total_limit,
        "objective": space.objective,
    }
    arrays = np.broadcast_arrays(*columns.values())
    rows = [dict(zip(columns, (value.item() for value in values), strict=True)) for values in zip(*arrays, strict=True)]
    return rows, files.plan_figure(plan, notes.settings(world))


def _fig3(found: Studies) -> tuple[Rows, Figure]:
    study, gain = found["fig3"], found["fig3-gain"]
    rows = training_rows(study, panel="training", h_min=study.experiment.base.channel.minimum)
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
            "step": base_of(gain).learning.total_steps,
            **{key: record.final[key] for key in ("accuracy", "loss", "test_loss")},
        }
        for seed, record in gain.complete()
    ]
    extra = "Everybody: I = 40, E = 5. “No weak device”: the same draws with h_min = 0.5. Right: proposed minus full."
    return rows, curves.scheduling_figure(rows, notes.settings(base_of(study), seeds=study.seeds, extra=extra))


def _fig4(found: Studies) -> tuple[Rows, Figure]:
    study = found["fig4"]
    return over_training(study, training_rows(study), "Devices and alignment: the optimum for the given I.")


def _fig5(found: Studies) -> tuple[Rows, Figure]:
    study = found["fig5"]
    last: dict[tuple[str, int], dict[str, Any]] = {}
    for row in training_rows(study):
        last[row["label"], row["seed"]] = row
    steps = base_of(study).learning.total_steps
    rows = [{"local_steps": steps / row["rounds"], **row} for row in last.values()]
    extra = "Devices and alignment: the optimum for the given I = T/E."
    note = notes.settings(base_of(study), seeds=study.seeds, extra=extra, reference="the best")
    return rows, curves.local_steps_figure(rows, note)


def _fig6(found: Studies) -> tuple[Rows, Figure]:
    study = found["fig6"]
    rows = training_rows(study)
    chosen = sorted({row["rounds"] for row in rows if row["label"] == "proposed"})
    devices = sorted({row["num_scheduled"] for row in rows if row["label"] == "proposed"})
    extra = f"Proposed: I = {span(chosen)}, |K| = {span(devices)}, decided for each seed's channels."
    return over_training(study, rows, extra)


_ALL: Final = (
    Definition(name="fig2", experiments=("fig2",), build=_fig2, trains=False),
    Definition(name="fig3", experiments=("fig3", "fig3-gain"), build=_fig3),
    Definition(name="fig4", experiments=("fig4",), build=_fig4),
    Definition(name="fig5", experiments=("fig5",), build=_fig5),
    Definition(name="fig6", experiments=("fig6",), build=_fig6),
)
FIGURES: Final = {definition.name: definition for definition in _ALL}
