"""Intervals of expected accuracies from recorded trainings, and their coverage in scenarios that were left out.

`python -m studies coverage` writes docs/studies/coverage.md and the intervals that the package reads. The score of a
training is (accuracy − p)/(p(1 − p) + 0.02), where p was expected. Two quantiles of the scores, every scenario weighted
alike, bound the interval around another p. They are taken at the first of `LEVELS` whose intervals contain enough of
the trainings in scenarios that were left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from airfed.planning.surrogate import INTERVALS, error_scale
from studies.markdown import markdown_table, recorded
from studies.regret.rows import other_surrogate

DOCS: Final = Path(__file__).parent.parent / "docs" / "studies"
PAGE: Final = DOCS / "coverage.md"
TABLES: Final = ("regret-trainings.csv", "antennas-trainings.csv")
LEVELS: Final = (0.9, 0.95, 0.98, 1.0)
ENOUGH: Final = 0.88
_TITLES: Final = {"same": "same data set", "other": "another data set"}


def records() -> dict[str, pd.DataFrame]:
    """Return scenario, expected and reached accuracy of the recorded trainings, for each kind of pilot data."""
    regret, antennas = (pd.read_csv(DOCS / name) for name in TABLES)
    antennas = antennas.assign(scenario="antennas").rename(columns={"predicted_accuracy": "predicted"})
    columns = ["scenario", "predicted", "accuracy"]
    other = []
    for scenario, rows in regret.groupby("scenario", sort=False):
        surrogate, devices = other_surrogate(str(scenario))
        points = {axis: rows[axis] for axis in ("rounds", "clip_norm", "noise")}
        mean = surrogate.predict(**points, participation=rows["num_scheduled"] / devices)
        average = [surrogate.averages.index(each) for each in rows["average"]]
        other.append(rows.assign(predicted=mean[np.arange(len(rows)), average])[columns])
    same = regret[regret["label"] != "transfer"]  # whose expected accuracy is that of another data set
    found = {"same": pd.concat([same[columns], antennas[columns]]), "other": pd.concat(other)}
    return {kind: rows.dropna().reset_index(drop=True) for kind, rows in found.items()}


def quantiles(rows: pd.DataFrame, level: float, *, mirrored: bool) -> tuple[float, float]:
    """Return the two quantiles of the scores that hold `level` of them, every scenario weighted alike.

    Another data set may be easier or harder, so its scores also count with the other sign (`mirrored`).
    """
    score = _scores(rows)
    weight = (1.0 / rows["scenario"].map(rows["scenario"].value_counts())).to_numpy()
    if mirrored:
        score, weight = np.concatenate((score, -score)), np.concatenate((weight, weight))
    order = np.argsort(score, kind="stable")
    reached = np.cumsum(weight[order]) / weight.sum()
    tail = (1 - level) / 2
    at = [min(int(np.searchsorted(reached, share)), score.size - 1) for share in (tail, 1 - tail)]
    low, high = (float(score[order[index]]) for index in at)
    return (min(low, -high), max(high, -low)) if mirrored else (low, high)


def left_out(rows: pd.DataFrame, level: float, *, mirrored: bool) -> dict[str, float]:
    """Return the share of each scenario's trainings within the interval of the other scenarios."""
    found = {}
    for scenario in rows["scenario"].unique():
        own = rows["scenario"] == scenario
        low, high = quantiles(rows[~own], level, mirrored=mirrored)
        score = _scores(rows[own])
        found[scenario] = float(np.mean((score >= low) & (score <= high)))
    return found


def intervals() -> dict[str, dict[str, Any]]:
    """Return quantiles, level, coverage and number of trainings for each kind of pilot data."""
    found = {}
    for kind, rows in records().items():
        counts = rows["scenario"].value_counts()
        for level in LEVELS:
            by_scenario = left_out(rows, level, mirrored=kind == "other")
            coverage = sum(share * counts[name] for name, share in by_scenario.items()) / len(rows)
            if coverage >= ENOUGH:
                break
        else:
            raise ValueError(f"The coverage must be at least {ENOUGH:.0%}, got {coverage:.1%} ({kind} data set).")
        low, high = quantiles(rows, level, mirrored=kind == "other")
        half = float(np.mean((high - low) / 2 * error_scale(rows["predicted"].to_numpy())))
        scenarios = {
            name: {"trainings": int(counts[name]), "coverage": round(share, 3)} for name, share in by_scenario.items()
        }
        found[kind] = {
            **{"low": round(low, 4), "high": round(high, 4), "level": level, "coverage": round(coverage, 4)},
            **{"trainings": len(rows), "half_width": round(half, 4), "scenarios": scenarios},
        }
    return found


def markdown(found: dict[str, dict[str, Any]]) -> str:
    """Return the page of the coverage."""
    first, second = (
        recorded(pd.read_csv(DOCS / name), by=by) for name, by in zip(TABLES, ("scenario", "label"), strict=True)
    )
    cells = [["pilots on", "scenario left out", "trainings", "inside the interval"]]
    sentences = []
    for kind, each in found.items():
        rows = [
            *((name, one["trainings"], one["coverage"]) for name, one in each["scenarios"].items()),
            ("**all**", each["trainings"], each["coverage"]),
        ]
        cells += [[_TITLES[kind], name, str(trainings), f"{share:.1%}"] for name, trainings, share in rows]
        sentences.append(
            f"- Pilots on {'the same' if kind == 'same' else 'another'} data set: p {each['low']:+.3f} s to "
            f"p {each['high']:+.3f} s, the {each['level']:.0%} range of the scores; on average ± "
            f"{100 * each['half_width']:.0f} points."
        )
    return "\n".join(
        [
            "# Coverage of the expected accuracy",
            "",
            "`airfed plan` prints an interval for the accuracy of a single training. It is nominally a 90% interval.",
            "This page shows how many recorded trainings it contains. `python -m studies coverage` writes the page and",
            "`src/airfed/surrogates/intervals.json`. Do not edit it. The records are those of [regret](regret.md)",
            f"(`{TABLES[0]}`: {first}) and [antennas](antennas.md) (`{TABLES[1]}`: {second}).",
            "",
            "The interval is conformal: the errors of recorded trainings set its width. With p expected, the scale is",
            r"\( s = p(1 - p) + 0.02 \), and the score of a training is \( (\text{accuracy} - p) / s \). The intervals",
            "come from quantiles of the scores, every scenario weighted alike:",
            "",
            *sentences,
            "",
            "For each row of the table, the quantiles came from the other scenarios only. Their level is the first of",
            f"{', '.join(f'{level:.0%}' for level in LEVELS)} with which {ENOUGH:.0%} of all trainings are inside.",
            "This level was chosen with the same trainings, so the coverage in the table can be optimistic.",
            "",
            markdown_table(cells),
            "",
            "`antennas` has four settings of the channel, which count as one scenario. For another data set, the",
            "trainings are the same, with the plans by that surrogate, and the surrogate is that of the other data set",
            "with the same model, partition and images per device. The records have two data sets only, MNIST and",
            "Fashion-MNIST. So the interval for another data set is symmetric, and the records are no evidence for a",
            "third data set.",
            "",
            "The trainings of the [network study](networks.md) did not enter the intervals. The command prints how",
            "many of them lie inside; `tests/studies/test_coverage.py` fails below 88%.",
            "",
        ]
    )


def inside(expected: Any, accuracy: Any, interval: Mapping[str, Any]) -> Any:
    """Return which accuracies lie within an interval around the expected ones."""
    scale = error_scale(np.asarray(expected))
    score = np.asarray(accuracy) - np.asarray(expected)
    return (score >= interval["low"] * scale) & (score <= interval["high"] * scale)


def write() -> None:
    """Write the page and the intervals, and print the coverage."""
    found = intervals()
    for kind, each in found.items():
        print(
            f"pilots on {_TITLES[kind]}: {each['coverage']:.1%} of {each['trainings']} trainings inside a nominal 90% "
            "interval of the other scenarios"
        )
    rows = pd.read_csv(DOCS / "networks.csv")
    share = inside(rows["expected"], rows["accuracy"], found["other"]).mean()
    print(f"networks, never used for the intervals: {share:.1%} of {len(rows)} trainings inside")
    INTERVALS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(markdown(found), encoding="utf-8")


def _scores(rows: pd.DataFrame) -> Any:
    expected = rows["predicted"].to_numpy()
    return (rows["accuracy"].to_numpy() - expected) / error_scale(expected)
