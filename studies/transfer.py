"""Regret of choices by a surrogate of another data set, from recorded trainings.

`python -m studies transfer` writes docs/studies/transfer.md. In each recorded scenario and seed, a surrogate chooses
rounds, clipping norm and average among the grid points that were trained. The records say what each choice reached.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from airfed.experiments.results import Estimate, estimate
from airfed.scenario.learning_section import shipped
from studies.coverage import DOCS, OTHER_DATA
from studies.markdown import markdown_table, recorded

PAGE: Final = DOCS / "transfer.md"
RECORDS: Final = DOCS / "regret-trainings.csv"
_OWN_DATA: Final = {  # scenario: the surrogate of its own data set
    "paper": "mnist-5k-cnn-40",
    "fashion": "fashion-mnist-cnn-40",
    "hundred": "mnist-5k-logistic-40",
    "much-power": "fashion-mnist-logistic-40",
}
_AXES: Final = ("rounds", "clip_norm", "noise")


class Transfer(NamedTuple):
    """The results of a scenario: accuracies in percent, means over the seeds, and regrets in points."""

    scenario: str
    about: str
    seeds: int
    best: float  # grid point of the highest mean
    own: Estimate  # regret of the choice by the surrogate of the same data set, paired by seed
    other: Estimate  # regret of the choice by that of another data set


def transfers() -> list[Transfer]:
    """Return the regret of both choices in every scenario with a surrogate of another data set."""
    every = pd.read_csv(RECORDS)
    found = []
    for scenario, other in OTHER_DATA.items():
        grid = every[(every["scenario"] == scenario) & (every["label"] == "grid")]
        columns = [f"accuracy_{average}" for average in ("none", "tail", "exponential")]
        by_seed = 100 * grid.pivot_table(index="seed", columns=["rounds", "clip_norm"], values=columns)
        best = by_seed[by_seed.mean().idxmax()]  # the seeds are sorted, as in `chosen`
        regrets = (
            estimate(best - 100 * np.array(chosen(grid, shipped()[name]))) for name in (_OWN_DATA[scenario], other)
        )
        found.append(Transfer(scenario, grid["about"].iloc[0], len(best), float(best.mean()), *regrets))
    return found


def chosen(grid: pd.DataFrame, surrogate: Any) -> list[float]:
    """Return, for each seed, the accuracy at the trained grid point that the surrogate prefers."""
    reached = []
    for _, rows in grid.groupby("seed"):
        expected = np.nan_to_num(surrogate.predict(**{axis: rows[axis] for axis in _AXES}), nan=-1.0)
        row, average = np.unravel_index(int(expected.argmax()), expected.shape)
        reached.append(float(rows.iloc[row][f"accuracy_{surrogate.averages[average]}"]))
    return reached


def markdown(found: list[Transfer]) -> str:
    """Return the page of the transfer."""
    sources = recorded(pd.read_csv(RECORDS), by="scenario")
    cells = [["scenario", "seeds", "best grid point", "regret, same data set", "regret, another data set"]]
    cells += [
        [f"{each.scenario}: {each.about}", str(each.seeds), f"{each.best:.1f}%", str(each.own), str(each.other)]
        for each in found
    ]
    return "\n".join(
        [
            "# Choices by a surrogate of another data set",
            "",
            "By default airfed plans by an accuracy surrogate whose pilots had another data set than the devices, so",
            "that the choice of settings costs no privacy. This page shows what it costs in accuracy. `python -m",
            "studies transfer` writes the page from the records of the [regret study](regret.md)",
            f"(`{RECORDS.name}`: {sources}) and the surrogates in the package. Do not edit it.",
            "",
            "Each scenario was trained at all grid points over I and ϖ, with every average. A surrogate chooses among",
            "them at the noise of each seed. The regret is the accuracy at the best grid point (of the mean over",
            "seeds) minus that at the choice, in points, with the 95% interval of its mean over seeds (Student's t).",
            "It can be negative, because the choice may differ from seed to seed.",
            "",
            markdown_table(cells),
            "",
            "A regret whose interval contains 0 is not separated from 0. The best grid point is the maximum of noisy",
            "means, so every regret is biased upwards. The scenarios are IID with 40 images per device on MNIST and",
            "Fashion-MNIST; the transfer to other data, partitions or models is not shown.",
            "",
        ]
    )


def write() -> None:
    """Write the page."""
    PAGE.write_text(markdown(transfers()), encoding="utf-8")
