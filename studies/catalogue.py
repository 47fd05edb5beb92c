"""The studies: an experiment file and a drawing function each, like the paper's figures in `airfed.experiments`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from airfed.experiments import figures, notes, verdicts
from airfed.experiments.figures import Definition, Rows, Studies, base_of, decided, over_training, training_rows
from airfed.experiments.results import Results
from airfed.experiments.verdicts import Verdict
from airfed.plotting.figure import Figure
from studies import antennas, bounds
from studies import curves as pictures
from studies.liu_simeone import bound as liu
from studies.liu_simeone import curves as liu_curves
from studies.regret import curves as regret_curves
from studies.regret import page as regret_page
from studies.regret import regret
from studies.regret import rows as regret_rows

_OURS: Final = "not a claim of the paper"


def _thousand(found: Studies) -> tuple[Rows, Figure]:
    study = found["thousand"]
    rows = training_rows(study)
    kinds = sorted({f"{row['label']}: {row['binding'].replace('_', ' ')}" for row in rows})
    extra = f"Binding limit: {', '.join(kinds)}. P_tot is 100 W per device, so that power is no concern."
    return over_training(study, rows, extra, varied=("N", "P_tot"))


def _ablation(found: Studies) -> tuple[Rows, Figure]:
    study = found["ablation"]
    extra = "Every design by the response of mnist-5k: devices, I and ϖ that are best with that option."
    return over_training(study, training_rows(study), extra, varied=("ϖ",))


def _fading(found: Studies, experiment: str) -> tuple[Rows, Figure]:
    study = found[experiment]
    shared = base_of(study).channel.common_shadowing_db
    extra = "Gains change in each round; a plan knows those of a round when it comes, and before it only their law."
    extra = f"All devices share shadowing of {shared:g} dB. {extra}" if shared else extra
    return over_training(study, training_rows(study), extra)


def _bounds(found: Studies) -> tuple[Rows, Figure]:
    study = found["bounds"]
    world = base_of(study)
    rows = bounds.measure(world, rounds=[int(value) for value in study.experiment.axes["policy.rounds"]])
    extra = f"Constants calibrated on the data, τ = 1/ζ. Bound over measured in the end: {bounds.ratios(rows)}."
    return rows, pictures.bounds_figure(rows, notes.settings(world, extra=extra, varied=("τ", "bound")))


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
    return rows, pictures.limits_figure(rows, notes.settings(base_of(study), extra=extra, varied=("N", "ε", "P_tot")))


def _range(found: Studies) -> tuple[Rows, Figure]:
    study = found["range"]
    rows = [
        {
            "label": record.point.label,
            "clip_norm": record.point.values["learning.clip_norm"],
            "noise_std": record.point.values["link.noise_std"],
            "seed": seed,
            **decided(record),
            "accuracy": record.final["accuracy"],
            "loss": record.final["loss"],
        }
        for seed, record in study.complete()
    ]
    return rows, pictures.range_figure(rows, notes.settings(base_of(study), seeds=study.seeds, varied=("σ", "ϖ")))


def _liu_simeone(found: Studies) -> tuple[Rows, Figure]:
    study = found["liu-simeone"]
    worlds = {int(p.values["seed"]): liu.world(p.scenario) for p in study.points if p.scenario is not None}
    rows = liu.rows(worlds, base_of(study).budget.delta)
    return rows, liu_curves.power_figure(rows, liu_curves.note(base_of(study), draws=len(worlds)))


def _antennas(found: Studies) -> tuple[Rows, Figure]:
    study = found["antennas"]
    rows = antennas.rows(study.records, study.seeds)
    note = notes.settings(base_of(study), seeds=study.seeds, extra=antennas.NOTE, varied=("P_tot", "ϖ"), reference="")
    return rows, antennas.figure(rows, note)


def _regret(found: Studies) -> tuple[Rows, Figure]:
    rows = regret_rows.rows(found)
    return rows, regret_curves.regret_figure(rows, regret.note(rows))


def _prediction(found: Studies) -> tuple[Rows, Figure]:
    rows = regret_rows.rows(found)
    return rows, regret_curves.prediction_figure(rows, regret.note(rows))


def _check_thousand(results: Results) -> list[Verdict]:
    kinds = {row["binding"] for row in results.rows if row["label"] == "N = 1000"}
    remark = f"binding at N = 1000: {', '.join(sorted(kinds)).replace('_', ' ')} (not a claim of the paper)"
    claim = "At ε = 1 per round a thousand devices learn what a hundred cannot"
    return verdicts.differences(results, [("N = 1000", "N = 100")], claim=claim, figure="thousand", remark=remark)


def _check_ablation(results: Results) -> list[Verdict]:
    claim = "The same budgets buy more with an average of the models"
    pairs = [(option, "no option") for option in verdicts.others(results, "no option")]
    return verdicts.differences(results, pairs, claim=claim, figure="ablation", remark=_OURS)


def _check_fading(results: Results, figure: str) -> list[Verdict]:
    claim = "Where channels change, a plan that prices what is left does better than others on the same budgets"
    pairs = [("causal", other) for other in verdicts.others(results, "causal")]
    found = verdicts.differences(results, pairs, claim=claim, figure=figure, remark=_OURS)
    return [replace(verdict, comparison=f"{figure}: {verdict.comparison}") for verdict in found]


STUDIES: Final = (
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
        name="liu-simeone", experiments=("liu-simeone",), build=_liu_simeone, trains=False, table=liu_curves.table
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


def register() -> None:
    """Put the studies beside the paper's figures."""
    notes.FOLDERS.append(Path(__file__).parent / "experiments")
    figures.FIGURES.update({study.name: study for study in STUDIES})
    verdicts.TESTS.update(
        {
            "thousand": _check_thousand,
            "ablation": _check_ablation,
            "fading": partial(_check_fading, figure="fading"),
            "shadowing": partial(_check_fading, figure="shadowing"),
        }
    )
