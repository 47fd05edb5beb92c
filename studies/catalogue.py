"""The studies: an experiment file and a drawing function each, like the paper's figures in `airfed.experiments`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from pandas import DataFrame

from airfed.experiments import claims, figures
from airfed.experiments.claims import Verdict
from airfed.experiments.figures import Definition, Rows, Studies, over_training, plan_columns, settings, training_rows
from airfed.experiments.results import estimate
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
    extra = f"Binding limit: {', '.join(kinds)}. P_tot is 100 W per device, so that power does not bind."
    return over_training(study, rows, extra)


def _ablation(found: Studies) -> tuple[Rows, Figure]:
    study = found["ablation"]
    extra = "Every design by the accuracy surrogate of mnist-5k: devices, I and ϖ that are best with its average."
    return over_training(study, training_rows(study), extra)


def _fading(found: Studies, experiment: str) -> tuple[Rows, Figure]:
    study = found[experiment]
    shared = study.base.channel.common_shadowing_db
    extra = (
        "Gains change in each round; a causal plan knows the gains of past rounds, and the distribution of later ones."
    )
    extra = f"All devices share shadowing of {shared:g} dB. {extra}" if shared else extra
    return over_training(study, training_rows(study), extra)


def _bounds(found: Studies) -> tuple[Rows, Figure]:
    study = found["bounds"]
    scenario = study.base
    rows = bounds.measure(scenario, rounds=[int(value) for value in study.experiment.axes["policy.rounds"]])
    extra = f"Constants calibrated on the data, τ = 1/ζ. Ratio of bound to measurement: {bounds.ratios(rows)}."
    return rows, pictures.bounds_figure(rows, settings(scenario, extra=extra))


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
                        "noise_on_mean": plan.noise_share * plan.clip_norm,
                    }
                )
    extra = "Optimal plan of one draw per fleet; ε by Lemma 1, which is below the exact ε above 7.46 at ξ = 0.001."
    return rows, pictures.limits_figure(rows, settings(study.base, extra=extra))


def _range(found: Studies) -> tuple[Rows, Figure]:
    study = found["range"]
    rows = [
        {
            "label": record.point.label,
            "clip_norm": record.point.values["learning.clip_norm"],
            "noise_std": record.point.values["link.noise_std"],
            "seed": seed,
            **plan_columns(record),
            "accuracy": record.final["accuracy"],
            "loss": record.final["loss"],
        }
        for seed, record in study.complete()
    ]
    return rows, pictures.range_figure(rows, settings(study.base, seeds=study.seeds))


def _liu_simeone(found: Studies) -> tuple[Rows, Figure]:
    study = found["liu-simeone"]
    draws = {int(p.values["seed"]): liu.constants(p.scenario) for p in study.points if p.scenario is not None}
    rows = liu.rows(draws, study.base.budget.delta)
    return rows, liu_curves.power_figure(rows, liu_curves.note(study.base, draws=len(draws)))


def _antennas(found: Studies) -> tuple[Rows, Figure]:
    study = found["antennas"]
    rows = antennas.rows(study.records, study.seeds)
    note = settings(study.base, seeds=study.seeds, extra=antennas.NOTE)
    return rows, antennas.figure(rows, note)


def _regret(found: Studies) -> tuple[Rows, Figure]:
    rows = regret_rows.rows(found)
    return rows, regret_curves.regret_figure(rows, regret.note(rows))


def _prediction(found: Studies) -> tuple[Rows, Figure]:
    rows = regret_rows.rows(found)
    return rows, regret_curves.prediction_figure(rows, regret.note(rows))


def _check_thousand(results: DataFrame) -> list[Verdict]:
    kinds = results.loc[results["label"] == "N = 1000", "binding"]
    remark = f"binding at N = 1000: {', '.join(sorted(set(kinds))).replace('_', ' ')} (not a claim of the paper)"
    claim = "At ε = 1 per round a thousand devices are more accurate than a hundred"
    return claims.differences(results, "N = 1000", claim=claim, figure="thousand", remark=remark)


def _check_ablation(results: DataFrame) -> list[Verdict]:
    claim = "Averaging the models raises the accuracy within the same budgets"
    found = claims.differences(results, "no average", claim=claim, figure="ablation", remark=_OURS)
    return [
        replace(verdict, effect=-verdict.effect, comparison=" − ".join(reversed(verdict.comparison.split(" − "))))
        for verdict in found
    ]


def _check_fading(results: DataFrame, figure: str) -> list[Verdict]:
    claim = "With time-varying channels, the causal plan is more accurate than other policies within the same budgets"
    found = claims.differences(results, "causal", claim=claim, figure=figure, remark=_OURS)
    causal, myopic = (claims.by_seed(results, "bound", label=label) for label in ("causal", "myopic"))
    smaller = Verdict(
        claim="With time-varying channels, the causal plan has a smaller bound than the myopic plan",
        figure=figure,
        comparison="1 − causal / myopic, bounds",
        effect=estimate((100 * (1 - causal / myopic)).dropna()),
        unit="%",
        remark=_OURS,
    )
    return [replace(verdict, comparison=f"{figure}: {verdict.comparison}") for verdict in (*found, smaller)]


STUDIES: Final = {
    "limits": Definition(("limits",), _limits, trains=False),
    "thousand": Definition(("thousand",), _thousand),
    "range": Definition(("range",), _range),
    "bounds": Definition(("bounds",), _bounds, trains=False),
    "ablation": Definition(("ablation",), _ablation),
    "fading": Definition(("fading",), partial(_fading, experiment="fading")),
    "shadowing": Definition(("shadowing",), partial(_fading, experiment="shadowing")),
    "antennas": Definition(("antennas",), _antennas),
    "liu-simeone": Definition(("liu-simeone",), _liu_simeone, trains=False),
    "regret": Definition(regret_rows.SCENARIOS, _regret),
    "prediction": Definition(regret_rows.SCENARIOS, _prediction),
}
CHECKS: Final = {"regret": regret.check_regret, "prediction": regret.check_prediction}
"""Verdicts on the rows of a figure."""
TABLES: Final = {"antennas": antennas.table, "liu-simeone": liu_curves.table, "regret": regret_page.summary}
"""Tables that the terminal prints from the rows of a figure."""

figures.FOLDERS.append(Path(__file__).parent / "experiments")
claims.TESTS.update(
    {
        "thousand": _check_thousand,
        "ablation": _check_ablation,
        "fading": partial(_check_fading, figure="fading"),
        "shadowing": partial(_check_fading, figure="shadowing"),
    }
)
