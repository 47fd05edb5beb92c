"""What the page says of the regret study, from its rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from airfed.experiments import figures, points
from studies.markdown import markdown_table
from studies.regret import regret
from studies.regret.regret import Rows

_READING: Final = (
    "The grid is exhaustive over I and ϖ (and over what the receiver averages, where the runs have recorded it), "
    "with the devices and the alignment that are best at each place. *Regret* is the accuracy of the best place "
    "less that of the measured plan, paired by seed, with a 95% interval (Student's t). The best place is the one "
    "of the highest mean over these very seeds; the best of many noisy places looks better than it is, so this "
    "over-states the regret. *To the others' best*: for each seed the place is chosen by the others, "
    "which flatters nobody, but it may not be the best. In expectation the truth lies between the two. A world "
    f"passes where the first of them, its mean over the seeds, is at most {regret.MOST_REGRET:g} point. The bound "
    "does not choose ϖ: its plan has the one that a user would write down, 5 for the CNN and 1 for logistic "
    "regression."
)


def summary(rows: Rows) -> list[list[str]]:
    """Return the worlds as a table: header, then one row each; accuracies in percent, regrets in points."""
    table = [["world", "best place", "accuracy", "measured", "regret", "to the others' best", "bound loses"]]
    for world in regret.worlds(rows):
        best = f"{np.mean(list(world.grid[world.best].values())):.1f}"
        measured = f"{np.mean(list(world.measured.values())):.1f}"
        lost = (world.regret, world.regret_of_others, world.loss(world.bound))
        table.append([world.name, str(world.best), best, measured, *map(str, lost)])
    return table


def regret_section(rows: Rows) -> str:
    """Return the section on regret: picture, summary, and each world with its grid."""
    found = regret.worlds(rows)
    parts = ["## Regret: measured plans against exhaustive grids", "![regret](images/regret.png)"]
    parts += [_READING, markdown_table(summary(rows))]
    for world in found:
        title = points.load(figures.definition_file(f"regret-{world.name}")).title
        plans = "; ".join(
            f"{name}: {regret.span(rows, world.name, label)}"
            for label, name in (("measured", "measured plan"), ("bound", "bound's plan"))
        )
        parts += [
            f"### {world.name}: {title}",
            f"{world.about}; {len(world.measured)} seeds. {plans[0].upper()}{plans[1:]}. Accuracy in percent, and what "
            "was expected:",
            markdown_table(regret.places(rows, world.name)),
        ]
    seconds = [row["seconds"] for row in rows]
    parts.append(f"{len(rows)} runs, {np.mean(seconds):.0f} s each on average, {sum(seconds) / 3600:.1f} hours in all.")
    return "\n\n".join(parts)


def prediction_section(rows: Rows) -> str:
    """Return the section on expected and realised accuracy."""
    found = regret.expected(rows)
    table = [["world", "data", "points", "mean absolute error", "realised − expected", "expected above 60%: error"]]
    for name, (error, bias) in regret.errors(found).items():
        own = [point for point in found if point.world == name]
        good = [point.error for point in own if point.predicted > 100 * regret.LEARNED]
        cells = [f"{len(own)}", f"{error:.2f}", f"{bias:+.2f}", f"{np.mean(good):.2f} ({len(good)})" if good else ""]
        table.append([name, "IID" if own[0].iid else "not IID", *cells])
    return "\n\n".join(
        [
            "## Prediction: expected and realised accuracy",
            "![prediction](images/prediction.png)",
            "Every place and every plan of which the response expected an accuracy: means over the seeds, errors in "
            "percentage points. Realised means carry the noise of a few seeds.",
            markdown_table(table),
        ]
    )
