"""Regret of plans by expected accuracy against an exhaustive grid, and the error of the expected accuracy.

A scenario is an experiment with four variants: "grid" (every I and ϖ of a grid, with the devices and the alignment
that are best there), "accuracy" and "transfer" (the plans by a surrogate of the same and of another data set), "bound"
(the plan by Theorem 1, at the ϖ of [learning]). One row is one training.

The regret is the accuracy at the best grid point minus that of a plan, paired by seed. The maximum over many noisy grid
points is biased upwards, so this overstates the regret. The grid point that is best on the other seeds
has no such bias but may not be the best one, so this understates it. In expectation the truth lies between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from airfed.experiments.claims import Verdict, best_by_others, best_point
from airfed.experiments.results import Estimate, estimate
from airfed.text import phrases
from studies.regret.rows import OPTION

Rows = Sequence[Mapping[str, Any]]
MARGIN: Final = 1.0  # of equivalence, in points
MOST_ERROR: Final = 1.5  # points
LEARNED: Final = 0.6  # accuracy below which a plan is not useful


@dataclass(frozen=True, kw_only=True)
class MarginVerdict(Verdict):
    """A comparison that passes if the 95% interval of its effect lies within ±`margin`.

    These are two one-sided tests (TOST) at 2.5% each: of an effect above −margin, and of one below +margin.
    """

    margin: float

    @property
    def passed(self) -> bool:
        """Whether the whole interval lies within the margin."""
        return -self.margin <= self.effect.low and self.effect.high <= self.margin

    @property
    def refuted(self) -> bool:
        """Whether the whole interval lies outside."""
        return self.effect.low > self.margin or self.effect.high < -self.margin

    @property
    def reason(self) -> str:
        """Why it did not pass; empty if it passed."""
        if self.passed:
            return ""
        unclear = f"the interval of {self.effect.count} values is too wide"
        return f"outside ±{self.margin:g}" if self.refuted else unclear


class GridSetting(NamedTuple):
    """A grid point."""

    rounds: int
    clip_norm: float
    average: str = "none"

    def __str__(self) -> str:
        option = "" if self.average == "none" else f", {self.average} average"
        return f"I = {self.rounds}, ϖ = {self.clip_norm:g}{option}"


@dataclass(frozen=True, kw_only=True)
class ScenarioResult:
    """The results of one scenario; accuracies in percent, by seed.

    Args:
        name: of the experiment, without "regret-".
        about: the scenario in a few words.
        grid: all grid points.
        by_accuracy: the plan by a surrogate of the same data set.
        by_transfer: the plan by a surrogate of another data set.
        by_bound: the plan by Theorem 1.
    """

    name: str
    about: str
    grid: Mapping[GridSetting, Mapping[int, float]]
    by_accuracy: Mapping[int, float]
    by_transfer: Mapping[int, float]
    by_bound: Mapping[int, float]

    @property
    def best(self) -> GridSetting:
        """The grid point with the highest mean accuracy."""
        return best_point(self.grid, sorted(self.by_accuracy))

    def regret(self, plan: Mapping[int, float]) -> Estimate:
        """Return the regret of a plan to the best grid point, in points, paired by seed."""
        return estimate([self.grid[self.best][seed] - plan[seed] for seed in sorted(plan)])

    def regret_of_others(self, plan: Mapping[int, float]) -> Estimate:
        """Return the regret to the grid point that is best on the other seeds, in points, paired by seed."""
        best = best_by_others(self.grid)
        return estimate([self.grid[best[seed]][seed] - plan[seed] for seed in sorted(plan)])


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A grid point or a plan with an expected accuracy: means over the seeds, in percent."""

    scenario: str
    iid: bool
    predicted: float
    realised: float

    @property
    def error(self) -> float:
        """|expected − realised| in points."""
        return abs(self.predicted - self.realised)


def scenarios(rows: Rows) -> list[ScenarioResult]:
    """Return the results of every scenario in the rows."""
    found = []
    for name in dict.fromkeys(row["scenario"] for row in rows):
        own = [row for row in rows if row["scenario"] == name]
        grid: dict[GridSetting, dict[int, float]] = {}
        for row in own:
            for option, accuracy in _options(row).items() if row["label"] == "grid" else ():
                point = GridSetting(row["rounds"], row["clip_norm"], option)
                grid.setdefault(point, {})[row["seed"]] = 100 * accuracy
        plans = {
            f"by_{label}": {row["seed"]: 100 * row["accuracy"] for row in own if row["label"] == label}
            for label in ("accuracy", "transfer", "bound")
        }
        found.append(ScenarioResult(name=name, about=own[0]["about"], grid=grid, **plans))
    return found


def expected(rows: Rows) -> list[Expected]:
    """Return every grid point and plan that pilots on the same data set predict, in the order of the rows."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in (row for row in rows if row["label"] != "transfer"):
        point = (row["rounds"], row["clip_norm"]) if row["label"] == "grid" else ()
        groups.setdefault((row["scenario"], row["label"], *point), []).append(row)
    return [
        Expected(
            scenario=own[0]["scenario"],
            iid=own[0]["partition"] == "iid",
            predicted=100 * float(np.mean([row["predicted"] for row in own])),
            realised=100 * float(np.mean([row["accuracy"] for row in own])),
        )
        for own in groups.values()
        if all(row["predicted"] is not None for row in own)
    ]


def check_regret(rows: Rows) -> list[Verdict]:
    """Return verdicts on every scenario: a plan by accuracy is equivalent to the best grid point, within 1 point."""
    return [
        MarginVerdict(
            claim=f"A plan by pilot runs on {data} is within {MARGIN:g} point of the best grid point",
            figure="regret",
            comparison=f"{scenario.name}: best grid point − plan, within ±{MARGIN:g}",
            effect=scenario.regret(plan),
            unit="points",
            margin=MARGIN,
            remark=f"best {scenario.best}; to the best on the other seeds {scenario.regret_of_others(plan)}",
        )
        for data, plans in (("another data set", "by_transfer"), ("the same data set", "by_accuracy"))
        for scenario in scenarios(rows)
        for plan in (getattr(scenario, plans),)
    ]


def check_prediction(rows: Rows) -> list[Verdict]:
    """Return the verdict on the expected accuracy with IID data; none without such a scenario."""
    points = [point for point in expected(rows) if point.iid]
    if not points:
        return []
    good = [point.error for point in points if point.predicted > 100 * LEARNED]
    remark = f"over all {len(points)} points {np.mean([point.error for point in points]):.2f}"
    if good:
        remark += f", over the {len(good)} with more than {LEARNED:.0%} expected {np.mean(good):.2f}"
    return [
        MarginVerdict(
            claim=f"With IID data, expected and realised accuracy differ by at most {MOST_ERROR:g} points on average",
            figure="prediction",
            comparison=f"mean absolute error, averaged over scenarios, within ±{MOST_ERROR:g}",
            effect=estimate([error for error, _ in errors(points).values()]),
            unit="points",
            margin=MOST_ERROR,
            remark=f"{remark}; interval over scenarios",
        )
    ]


def errors(points: Sequence[Expected]) -> dict[str, tuple[float, float]]:
    """Return the mean absolute error and the mean error (realised − expected) of each scenario, in points."""
    found = {}
    for name in dict.fromkeys(point.scenario for point in points):
        own = [point for point in points if point.scenario == name]
        bias = np.mean([point.realised - point.predicted for point in own])
        found[name] = float(np.mean([point.error for point in own])), float(bias)
    return found


def note(rows: Rows) -> str:
    """Return the note under the figures: every scenario, and the kind of the intervals."""
    lines = [f"{scenario.name}: {scenario.about}; {len(scenario.by_accuracy)} seeds." for scenario in scenarios(rows)]
    return "\n".join(
        [*lines, "Data are IID unless a Dirichlet partition is named. Intervals: 95% (Student t), paired by seed."]
    )


def grid_table(rows: Rows, scenario: str) -> list[list[str]]:
    """Return the grid of a scenario as a table: I down, ϖ across; realised and expected accuracy in percent."""
    own = [row for row in rows if row["scenario"] == scenario and row["label"] == "grid"]
    norms = sorted({row["clip_norm"] for row in own})
    table = [["I", *(f"ϖ = {norm:g}" for norm in norms)]]
    for rounds in sorted({row["rounds"] for row in own}):
        cells = [[row for row in own if (row["rounds"], row["clip_norm"]) == (rounds, norm)] for norm in norms]
        table.append([f"{rounds}", *map(_cell, cells)])
    return table


def _cell(own: Rows) -> str:
    if not own:
        return ""
    text = f"{100 * np.mean([row['accuracy'] for row in own]):.1f}"
    if all(row["predicted"] is not None for row in own):
        text += f" ({100 * np.mean([row['predicted'] for row in own]):.1f})"
    return text


def span(rows: Rows, scenario: str, label: str) -> str:
    """Return the plans of a scenario over the seeds: "I = 40 to 43, ϖ = 2"."""
    own = [row for row in rows if row["scenario"] == scenario and row["label"] == label]
    norms = sorted({row["clip_norm"] for row in own})
    options = sorted({row["average"] for row in own} - {"none"})
    text = f"I = {phrases.span([row['rounds'] for row in own])}, ϖ = {' or '.join(f'{norm:g}' for norm in norms)}"
    return text + (f", {' or '.join(options)} average" if options else "")


def _options(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the accuracy of one training with each average of models; its own if no other was recorded."""
    found = {
        key.removeprefix(OPTION): value for key, value in row.items() if key.startswith(OPTION) and value is not None
    }
    return found or {row["average"]: row["accuracy"]}
