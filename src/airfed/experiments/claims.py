"""The claims of Section V, tested on the final results of every point.

A claim passes if the 95% interval of a difference, paired by seed (Student's t), lies above zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from airfed.experiments.results import Estimate, estimate
from airfed.text.phrases import span
from airfed.training.directory import RunError

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from airfed.experiments.figures import Studies

SETTINGS: Final = {"channel.minimum": "h_min", "link.noise_std": "σ", "learning.clip_norm": "ϖ"}  # varied
Index = TypeVar("Index", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One comparison behind a claim."""

    claim: str  # of the paper, as a sentence
    figure: str  # whose records test it
    comparison: str  # the two sides
    effect: Estimate  # the difference, positive if the claim is true
    unit: str = "points"  # of the effect
    remark: str = ""

    @property
    def passed(self) -> bool:
        """Whether the whole interval lies above zero."""
        return self.effect.low > 0

    @property
    def refuted(self) -> bool:
        """Whether the whole interval lies below zero."""
        return self.effect.high < 0

    @property
    def reason(self) -> str:
        """Why it did not pass; empty if it passed."""
        if self.passed:
            return ""
        unclear = f"{self.effect.count} seeds do not separate it from zero"
        return "the records show the opposite" if self.refuted else unclear

    @property
    def outcome(self) -> str:
        """The result: "pass", "FAIL" if it is refuted, else "not shown"."""
        return "pass" if self.passed else "FAIL" if self.refuted else "not shown"

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        low, high = (value if np.isfinite(value) else None for value in (self.effect.low, self.effect.high))
        names = ("claim", "figure", "comparison", "unit", "passed", "reason", "remark")
        effect = {"effect": self.effect.mean, "low": low, "high": high, "seeds": self.effect.count}
        return {**{name: getattr(self, name) for name in names}, **effect}


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return how many comparisons pass, in words."""
    return f"{sum(verdict.passed for verdict in verdicts)} of {len(verdicts)} comparisons pass"


def final_results(found: Studies) -> DataFrame:
    """Return one row per point that ended, at the seeds at which its whole experiment ended."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for name, study in found.items():
        try:
            complete = study.complete() if study.records else []
        except RunError:  # its figure reports the reason
            continue
        for seed, record in complete:
            scenario, plan, final = record.point.scenario, record.plan, record.final
            assert scenario is not None  # it ended
            assert record.run is not None
            settings = (scenario.channel.minimum, scenario.link.received_std, scenario.learning.clip_norm)
            row = {"experiment": name, "dataset": scenario.learning.dataset, "label": record.point.label, "seed": seed}
            row |= dict(zip(SETTINGS, map(float, settings), strict=True))
            row |= {key: plan[key] for key in ("num_devices", "num_scheduled", "rounds")}
            row |= {"status": record.status, "binding": plan["binding"]}
            row |= {key: final[key] for key in ("accuracy", "loss", "test_loss")}
            row |= {"bound": plan["bound"]["total"], "alignment": plan["alignment"]}
            rows.append(row | {"seconds": round(record.seconds, 1), "version": record.run.manifest["airfed"]})
    return pd.DataFrame(rows)


def final_table(results: DataFrame) -> list[list[str]]:
    """Return the final results of one experiment: header, then one row per design, with means over seeds ± 95%."""
    varied = [key for key in SETTINGS if (results.groupby("label")[key].nunique() > 1).any()]
    table = [["design", *(SETTINGS[key] for key in varied), "devices", "rounds", "accuracy [%]", "loss", "limit"]]
    for (label, *settings), rows in results.groupby(["label", *varied], sort=False):
        accuracy, loss = estimate(100 * rows["accuracy"]), estimate(rows["loss"])
        several = len(rows) > 1
        table.append(
            [
                *(label, *(f"{value:g}" for value in settings)),
                *(span(list(rows[key])) for key in ("num_scheduled", "rounds")),
                f"{accuracy.mean:.1f}" + (f" ± {accuracy.half_width:.1f}" if several else ""),
                f"{loss.mean:.3g}" + (f" ± {loss.half_width:.3g}" if several else ""),
                ", ".join(sorted(set(rows["binding"].str.replace("_power", "")))),
            ]
        )
    return table


def by_seed(results: DataFrame, column: str, **where: Any) -> Series:
    """Return a column by seed, of the rows with these values ("__" stands for the dot in a key)."""
    for key, value in where.items():
        results = results[results[key.replace("__", ".")] == value]
    return results.set_index("seed")[column].sort_index()


def gain(results: DataFrame, first: str, second: str, **where: Any) -> Series:
    """Return the accuracy of one label minus that of another, in percentage points, by seed."""
    left, right = (by_seed(results, "accuracy", label=label, **where) for label in (first, second))
    return (100 * (left - right)).dropna()


def differences(results: DataFrame, first: str, *, claim: str, figure: str, remark: str = "") -> list[Verdict]:
    """Return the verdicts on the accuracy of one label against that of each other."""
    others = {other: gain(results, first, other) for other in results["label"].unique() if other != first}
    about = {"claim": claim, "figure": figure, "remark": remark}
    return [Verdict(comparison=f"{first} − {other}", effect=estimate(own), **about) for other, own in others.items()]


def best_point(curves: Mapping[Index, Mapping[int, float]], seeds: Sequence[int]) -> Index:
    """Return the grid point with the highest mean over the seeds; the first of several."""
    return max(curves, key=lambda point: float(np.mean([curves[point][seed] for seed in seeds])))


def best_by_others(curves: Mapping[Index, Mapping[int, float]]) -> dict[int, Index]:
    """Return, for each seed, the grid point that is best on the other seeds (a single seed selects for itself)."""
    seeds = sorted(next(iter(curves.values())))
    return {seed: best_point(curves, [other for other in seeds if other != seed] or [seed]) for seed in seeds}


def check(results: DataFrame) -> list[Verdict]:
    """Return the verdicts on every claim whose experiments are among the results; Figs. 4 and 5 share runs."""
    own = {name: results[results["experiment"] == name] for name in TESTS} if len(results) else {}
    verdicts = [verdict for name, table in own.items() if len(table) for verdict in TESTS[name](table)]
    over_rounds = [verdict.effect for verdict in verdicts if verdict.figure == "fig4"]
    return [verdict for verdict in verdicts if verdict.figure != "fig5" or verdict.effect not in over_rounds]


def _scheduling(results: DataFrame) -> list[Verdict]:
    claim = "The proposed scheduling is better than uniform and full scheduling"
    return differences(results[results["label"] != "full, no weak device"], "proposed", claim=claim, figure="fig3")


def _gain(results: DataFrame) -> list[Verdict]:
    minima = sorted(results["channel.minimum"].unique())
    gains = {minimum: gain(results, "proposed", "full", channel__minimum=minimum) for minimum in minima}
    return [
        Verdict(
            claim="The gain over full scheduling grows as h_min falls",
            figure="fig3",
            comparison=f"gain at h_min = {weak:g} − gain at {strong:g}",
            effect=estimate((gains[weak] - gains[strong]).dropna()),
            remark=f"gains {gains[weak].mean():.1f} and {gains[strong].mean():.1f}",
        )
        for weak, strong in itertools.pairwise(minima)
    ]


def _rounds(results: DataFrame) -> list[Verdict]:
    claim = "Accuracy over I first rises, then falls"
    curves = {rounds: 100 * by_seed(results, "accuracy", rounds=rounds) for rounds in results["rounds"].unique()}
    return _interior(curves, claim=claim, figure="fig4", symbol="I", unit="points")


def _local_steps(results: DataFrame) -> list[Verdict]:
    steps = results["rounds"].max()  # I = T is one of them, with E = 1
    verdicts = []
    for column, unit, sign in (("accuracy", "points", 100.0), ("loss", "nats", -1.0)):
        curves = {steps // number: sign * by_seed(results, column, rounds=number) for number in set(results["rounds"])}
        claim = f"There is an interior best E (by {column})"
        verdicts += _interior(curves, claim=claim, figure="fig5", symbol="E", unit=unit)
    return verdicts


def _overall(results: DataFrame) -> list[Verdict]:
    return differences(results, "proposed", claim="The overall design beats each fixed design", figure="fig6")


def _interior(curves: Mapping[int, Series], *, claim: str, figure: str, symbol: str, unit: str) -> list[Verdict]:
    """Compare the best grid point with both ends. The other seeds select it, so that the selection is not biased."""
    own = {point: curves[point].to_dict() for point in sorted(curves)}
    best = best_by_others(own)
    chosen = " or ".join(map(str, sorted(set(best.values()))))
    return [
        Verdict(
            claim=claim,
            figure=figure,
            comparison=f"best {symbol} − {symbol} = {end}",
            effect=estimate([own[point][seed] - own[end][seed] for seed, point in best.items()]),
            unit=unit,
            remark=f"best {symbol} = {chosen}, chosen by the other seeds",
        )
        for end in (min(own), max(own))
    ]


TESTS: Final[dict[str, Callable[[DataFrame], list[Verdict]]]] = {
    "fig3": _scheduling,
    "fig3-gain": _gain,
    "fig4": _rounds,
    "fig5": _local_steps,
    "fig6": _overall,
}
