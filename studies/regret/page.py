"""The sections of the page on the regret study, from its rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from airfed.experiments import figures, points
from studies.markdown import markdown_table
from studies.regret import regret
from studies.regret.regret import Rows

_READING: Final = (
    "The grid is exhaustive over I and ϖ (and over the averages of models that the runs recorded), with the "
    "devices and the alignment that are best at each grid point. Three plans are compared with it: by a surrogate "
    "with pilot runs on another data set (the default of airfed, MNIST for Fashion-MNIST and the reverse), by one with "
    "pilot runs on the same data set, and by the bound of Theorem 1. *Regret* is the accuracy of the best grid point "
    "minus that of a plan, paired by seed, with a 95% interval (Student's t). The best grid point has the highest mean "
    "over the same seeds; the maximum of many noisy means is biased upwards, so this overstates the regret. *To the "
    "best on other seeds*: for each seed, the other seeds select the grid point. This has no such bias, but the point "
    "may not be the best one. In expectation the truth lies between the two. A scenario passes if the interval of the "
    f"first regret lies within ±{regret.MARGIN:g} point. The bound does not choose ϖ: its plan has the ϖ of the "
    "scenario, 5 for the CNN and 1 for logistic regression. The transfer to a third data set is not shown."
)
_PLANS: Final = {"transfer": "pilots on another data set", "accuracy": "pilots on the same", "bound": "the bound"}


def summary(rows: Rows) -> list[list[str]]:
    """Return the scenarios as a table: header, then one row each; accuracies in percent, regrets in points."""
    table = [["scenario", "best grid point", "its accuracy", *(f"regret, {name}" for name in _PLANS.values())]]
    table[0].insert(4, "to the best on other seeds")
    for scenario in regret.scenarios(rows):
        best = f"{np.mean(list(scenario.grid[scenario.best].values())):.1f}"
        regrets = [str(scenario.regret(getattr(scenario, f"by_{label}"))) for label in _PLANS]
        regrets.insert(1, str(scenario.regret_of_others(scenario.by_transfer)))
        table.append([scenario.name, str(scenario.best), best, *regrets])
    return table


def regret_section(rows: Rows) -> str:
    """Return the section on regret: figure, summary, and the grid of each scenario."""
    found = regret.scenarios(rows)
    parts = ["## Regret: plans by accuracy against exhaustive grids", "![regret](images/regret.png)"]
    parts += [_READING, markdown_table(summary(rows))]
    for scenario in found:
        title = points.load(figures.definition_file(f"regret-{scenario.name}")).title
        plans = "; ".join(
            f"plan by {name}: {regret.span(rows, scenario.name, label)}" for label, name in _PLANS.items()
        )
        parts += [
            f"### {scenario.name}: {title}",
            f"{scenario.about}; {len(scenario.by_accuracy)} seeds. {plans[0].upper()}{plans[1:]}. Realised accuracy "
            "in percent (expected accuracy in brackets):",
            markdown_table(regret.grid_table(rows, scenario.name)),
        ]
    seconds = [row["seconds"] for row in rows]
    parts.append(
        f"{len(rows)} runs, {np.mean(seconds):.0f} s each on average, {sum(seconds) / 3600:.1f} hours in total."
    )
    return "\n\n".join(parts)


def prediction_section(rows: Rows) -> str:
    """Return the section on expected and realised accuracy."""
    found = regret.expected(rows)
    table = [["scenario", "data", "points", "mean absolute error", "realised − expected", "expected above 60%: error"]]
    for name, (error, bias) in regret.errors(found).items():
        own = [point for point in found if point.scenario == name]
        good = [point.error for point in own if point.predicted > 100 * regret.LEARNED]
        cells = [f"{len(own)}", f"{error:.2f}", f"{bias:+.2f}", f"{np.mean(good):.2f} ({len(good)})" if good else ""]
        table.append([name, "IID" if own[0].iid else "not IID", *cells])
    return "\n\n".join(
        [
            "## Prediction: expected and realised accuracy",
            "![prediction](images/prediction.png)",
            "Every grid point and every plan with an expected accuracy: means over the seeds, errors in percentage "
            "points. The realised means have the noise of a few seeds.",
            markdown_table(table),
        ]
    )
