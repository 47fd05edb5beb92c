"""The paper's figures: each is a TOML of `paper/`, the records of its points, and a drawing function.

`studies` reads the experiments, `airfed.experiments.sweep` runs what is missing, `build` turns records into the rows
of the CSV and the figure drawn from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from airfed._disk import write_whole
from airfed.experiments import (
    antennas,
    bounds,
    curves,
    liu_simeone,
    liu_simeone_curves,
    notes,
    points,
    regret,
    regret_curves,
    regret_page,
    regret_rows,
)
from airfed.experiments.notes import definition_file
from airfed.experiments.points import Experiment, Point, Variant
from airfed.experiments.records import Record, csv_text
from airfed.experiments.verdicts import Verdict
from airfed.planning import candidates
from airfed.running.directory import RunError
from airfed.scenario import Scenario
from airfed.showing import files
from airfed.showing.figure import Figure
from airfed.showing.figure import save as save_figure
from airfed.showing.words import span

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
    rows = [{**row, "label": row["label"] or experiment.name} for row in _training_rows(study)]
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


def _training_rows(study: Study, **extra: Any) -> Rows:
    """The evaluated rounds of every complete seed, as rows of the CSV."""
    return [
        {
            **extra,
            "label": record.point.label,
            "seed": seed,
            **_decided(record),
            **{key: metrics[key] for key in ("round", "step", "accuracy", "loss", "test_loss")},
        }
        for seed, record in study.complete()
        for metrics in record.round_rows()
        if metrics["accuracy"] is not None
    ]


def _decided(record: Record) -> dict[str, Any]:
    return {key: record.plan[key] for key in ("num_scheduled", "rounds", "binding")}


def _over_training(study: Study, rows: Rows, extra: str, varied: Sequence[str] = ()) -> tuple[Rows, Figure]:
    note = notes.settings(_world(study), seeds=study.seeds, extra=extra, varied=varied)
    return rows, curves.training_figure(rows, note)


def _world(study: Study) -> Scenario:
    return study.experiment.base


def _fig2(found: Studies) -> tuple[Rows, Figure]:
    world = _world(found["fig2"])
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
    rows = _training_rows(study, panel="training", h_min=study.experiment.base.channel.minimum)
    for row in rows:
        if row["label"] == "full, no weak device":
            row["h_min"] = 0.5
    rows += [
        {
            "panel": "gain",
            "h_min": record.point.values["channel.minimum"],
            "label": record.point.label,
            "seed": seed,
            **_decided(record),
            "round": record.final["round"],
            "step": _world(gain).learning.total_steps,
            **{key: record.final[key] for key in ("accuracy", "loss", "test_loss")},
        }
        for seed, record in gain.complete()
    ]
    extra = "Everybody: I = 40, E = 5. “No weak device”: the same draws with h_min = 0.5. Right: proposed minus full."
    return rows, curves.scheduling_figure(rows, notes.settings(_world(study), seeds=study.seeds, extra=extra))


def _fig4(found: Studies) -> tuple[Rows, Figure]:
    study = found["fig4"]
    return _over_training(study, _training_rows(study), "Devices and alignment: the optimum for the given I.")


def _fig5(found: Studies) -> tuple[Rows, Figure]:
    study = found["fig5"]
    last: dict[tuple[str, int], dict[str, Any]] = {}
    for row in _training_rows(study):
        last[row["label"], row["seed"]] = row
    steps = _world(study).learning.total_steps
    rows = [{"local_steps": steps / row["rounds"], **row} for row in last.values()]
    extra = "Devices and alignment: the optimum for the given I = T/E."
    note = notes.settings(_world(study), seeds=study.seeds, extra=extra, reference="the best")
    return rows, curves.local_steps_figure(rows, note)


def _fig6(found: Studies) -> tuple[Rows, Figure]:
    study = found["fig6"]
    rows = _training_rows(study)
    chosen = sorted({row["rounds"] for row in rows if row["label"] == "proposed"})
    devices = sorted({row["num_scheduled"] for row in rows if row["label"] == "proposed"})
    extra = f"Proposed: I = {span(chosen)}, |K| = {span(devices)}, decided for each seed's channels."
    return _over_training(study, rows, extra)


def _thousand(found: Studies) -> tuple[Rows, Figure]:
    study = found["thousand"]
    rows = _training_rows(study)
    kinds = sorted({f"{row['label']}: {row['binding'].replace('_', ' ')}" for row in rows})
    extra = f"Binding limit: {', '.join(kinds)}. P_tot is 100 W per device, so that power is no concern."
    return _over_training(study, rows, extra, varied=("N", "P_tot"))


def _ablation(found: Studies) -> tuple[Rows, Figure]:
    study = found["ablation"]
    extra = "Every design by the response of mnist-5k: devices, I and ϖ that are best with that option."
    return _over_training(study, _training_rows(study), extra, varied=("ϖ",))


def _fading(found: Studies, experiment: str) -> tuple[Rows, Figure]:
    study = found[experiment]
    shared = _world(study).channel.common_shadowing_db
    extra = "Gains change in each round; a plan knows those of a round when it comes, and before it only their law."
    extra = f"All devices share shadowing of {shared:g} dB. {extra}" if shared else extra
    return _over_training(study, _training_rows(study), extra)


def _bounds(found: Studies) -> tuple[Rows, Figure]:
    study = found["bounds"]
    world = _world(study)
    rows = bounds.measure(world, rounds=[int(value) for value in study.experiment.axes["policy.rounds"]])
    extra = f"Constants calibrated on the data, τ = 1/ζ. Bound over measured in the end: {bounds.ratios(rows)}."
    return rows, curves.bounds_figure(rows, notes.settings(world, extra=extra, varied=("τ", "bound")))


def _limits(found: Studies) -> tuple[Rows, Figure]:
    study = found["limits"]
    rows: Rows = []
    for point in study.points:
        assert point.scenario is not None
        for power in np.geomspace(0.3, 100, 26):
            for epsilon in np.geomspace(0.1, 20, 26):
                devices = point.scenario.num_devices
                changes = {"budget.epsilon": float(epsilon), "budget.total_power": float(power) * devices}
                plan = point.scenario.override(changes).plan()
                rows.append(
                    {
                        "num_devices": devices,
                        "epsilon": float(epsilon),
                        "power_per_device": float(power),
                        "binding": plan.binding,
                        "num_scheduled": plan.num_scheduled,
                        "rounds": plan.rounds,
                        "noise_on_mean": notes.noise_on_mean(plan),
                    }
                )
    extra = "Optimal plan of one draw per fleet; ε by Lemma 1, which under-states above 7.46 at ξ = 0.001."
    return rows, curves.limits_figure(rows, notes.settings(_world(study), extra=extra, varied=("N", "ε", "P_tot")))


def _range(found: Studies) -> tuple[Rows, Figure]:
    study = found["range"]
    rows = [
        {
            "label": record.point.label,
            "clip_norm": record.point.values["learning.clip_norm"],
            "noise_std": record.point.values["link.noise_std"],
            "seed": seed,
            **_decided(record),
            "accuracy": record.final["accuracy"],
            "loss": record.final["loss"],
        }
        for seed, record in study.complete()
    ]
    return rows, curves.range_figure(rows, notes.settings(_world(study), seeds=study.seeds, varied=("σ", "ϖ")))


def _liu_simeone(found: Studies) -> tuple[Rows, Figure]:
    study = found["liu-simeone"]
    worlds = {int(p.values["seed"]): liu_simeone.world(p.scenario) for p in study.points if p.scenario is not None}
    rows = liu_simeone.rows(worlds, _world(study).budget.delta)
    return rows, liu_simeone_curves.power_figure(rows, liu_simeone_curves.note(_world(study), draws=len(worlds)))


def _antennas(found: Studies) -> tuple[Rows, Figure]:
    study = found["antennas"]
    rows = antennas.rows(study.records, study.seeds)
    note = notes.settings(_world(study), seeds=study.seeds, extra=antennas.NOTE, varied=("P_tot", "ϖ"), reference="")
    return rows, antennas.figure(rows, note)


def _regret(found: Studies) -> tuple[Rows, Figure]:
    rows = regret_rows.rows(found)
    return rows, regret_curves.regret_figure(rows, regret.note(rows))


def _prediction(found: Studies) -> tuple[Rows, Figure]:
    rows = regret_rows.rows(found)
    return rows, regret_curves.prediction_figure(rows, regret.note(rows))


_ALL: Final = (
    Definition(name="fig2", experiments=("fig2",), build=_fig2, trains=False),
    Definition(name="fig3", experiments=("fig3", "fig3-gain"), build=_fig3),
    Definition(name="fig4", experiments=("fig4",), build=_fig4),
    Definition(name="fig5", experiments=("fig5",), build=_fig5),
    Definition(name="fig6", experiments=("fig6",), build=_fig6),
    Definition(name="limits", experiments=("limits",), build=_limits, trains=False),
    Definition(name="thousand", experiments=("thousand",), build=_thousand),
    Definition(name="range", experiments=("range",), build=_range),
    Definition(
        name="bounds",
        experiments=("bounds",),
        build=_bounds,
        trains=False,
        takes="two calibrations and the trainings of both models, one after another: several minutes",
    ),
    Definition(name="ablation", experiments=("ablation",), build=_ablation),
    Definition(name="fading", experiments=("fading",), build=partial(_fading, experiment="fading")),
    Definition(name="shadowing", experiments=("shadowing",), build=partial(_fading, experiment="shadowing")),
    Definition(name="antennas", experiments=("antennas",), build=_antennas, table=antennas.table),
    Definition(
        name="liu-simeone",
        experiments=("liu-simeone",),
        build=_liu_simeone,
        trains=False,
        table=liu_simeone_curves.table,
    ),
    Definition(
        name="regret",
        experiments=regret_rows.WORLDS,
        build=_regret,
        check=regret.check_regret,
        table=regret_page.summary,
    ),
    Definition(name="prediction", experiments=regret_rows.WORLDS, build=_prediction, check=regret.check_prediction),
)
FIGURES: Final = {definition.name: definition for definition in _ALL}
PAPER: Final = ("fig2", "fig3", "fig4", "fig5", "fig6")
