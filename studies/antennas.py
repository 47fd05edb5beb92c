"""The gain of receive antennas: rows, figure and table over the number of antennas, against either adversary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from airfed.experiments.figures import name_metric, ticks_at
from airfed.experiments.results import Estimate, Record, data_frame, estimate, holm
from airfed.plotting.colours import PALETTE
from airfed.plotting.figure import Axes, Figure
from airfed.text.phrases import ADVERSARIES
from studies.curves import sheet
from studies.markdown import markdown_table

Rows = Sequence[Mapping[str, Any]]
NOTE: Final = (
    "Scattered: independent fading at the antennas. One direction: a uniform linear array receives all devices from a "
    "sector of 5°, with an angle spread of 2°. Power: 3 W, and power binds. Privacy: 1,000 W, and privacy binds. "
    "Dashed: expected by the accuracy surrogate. The beamformer is the best one found."
)
TITLES: Final = {
    "scattered, power": "scattered devices, power-limited",
    "scattered, privacy": "scattered devices, privacy-limited",
    "one direction, power": "devices in one direction, power-limited",
    "one direction, privacy": "devices in one direction, privacy-limited",
}


def rows(records: Sequence[Record], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each training: scenario, antennas, adversary, seed, plan, accuracy expected and reached."""
    found = []
    for record in records:
        if record.run is None or not record.ended or int(record.point.values["seed"]) not in seeds:
            continue
        values, plan = record.point.values, record.plan
        found.append(
            {
                "label": record.point.label,
                "antennas": int(values["link.antennas"]),
                "adversary": values["link.adversary"],
                "seed": int(values["seed"]),
                "num_scheduled": plan["num_scheduled"],
                "rounds": plan["rounds"],
                "binding": plan["binding"],
                "amplification": plan["amplification"],
                "epsilon_total": plan["epsilon_total"],
                "predicted_accuracy": plan["predicted_accuracy"],
                "accuracy": record.final["accuracy"],
                "version": record.run.manifest["airfed"],
            }
        )
    return found


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows in a CSV file."""
    table = pd.read_csv(file).astype(object)
    found = table.where(table.notna(), None).to_dict("records")
    return [{str(key): value for key, value in row.items()} for row in found]


def figure(found: Rows, note: str) -> Figure:
    """Return accuracy over the number of antennas, a panel for each scenario, a curve for each adversary.

    Args:
        found: as `rows` returns them.
        note: the settings, which become a text file beside the picture.
    """
    labels = list(dict.fromkeys(row["label"] for row in found))
    panels = {
        TITLES.get(label, label): partial(_draw, found=[row for row in found if row["label"] == label])
        for label in labels
    }
    drawn = sheet(panels, height=4.8, note=note, rows=2 if len(panels) > 1 and len(panels) % 2 == 0 else 1)
    low, high = zip(*(axes.get_ylim() for axes in drawn.axes), strict=True)
    for axes in drawn.axes:
        axes.set_ylim(min(low), max(high))
    return drawn


def _draw(axes: Axes, found: Rows) -> None:
    numbers = sorted({row["antennas"] for row in found})
    for index, adversary in enumerate(ADVERSARIES):
        reached = [_mean(found, number, adversary, "accuracy") for number in numbers]
        half = [0.0 if each.count < 2 else each.half_width for each in reached]
        look = {"color": PALETTE[f"run-{index}"], "label": f'adversary = "{adversary}"'}
        beside = np.array(numbers) * (0.985, 1.015)[index % 2]  # error bars must not hide each other
        axes.errorbar(beside, [each.mean for each in reached], half, marker="o", ms=3, capsize=2, **look)
        expected = [_mean(found, number, adversary, "predicted_accuracy").mean for number in numbers]
        axes.plot(numbers, expected, ls="--", lw=0.9, color=PALETTE[f"run-{index}"], label=f"{adversary}: expected")
    ticks_at(axes, np.array(numbers, dtype=float))
    axes.set_xlabel("antennas")
    name_metric(axes, "accuracy")


def _mean(found: Rows, number: int, adversary: str, column: str) -> Estimate:
    values = [row[column] for row in found if row["antennas"] == number and row["adversary"] == adversary]
    known = [value for value in values if value is not None]
    return estimate(known or [np.nan])


def table(found: Rows) -> list[list[str]]:
    """Return the mean accuracies in percent: header, then a row for each scenario and adversary."""
    numbers = sorted({row["antennas"] for row in found})
    cells = [["scenario", "adversary", *(f"A = {number}" for number in numbers)]]
    for label, adversary in dict.fromkeys((row["label"], row["adversary"]) for row in found):
        own = [row for row in found if (row["label"], row["adversary"]) == (label, adversary)]
        means = (
            (_mean(own, number, adversary, "accuracy"), _mean(own, number, adversary, "predicted_accuracy").mean)
            for number in numbers
        )
        cells.append([TITLES.get(label, label), adversary, *(_cell(reached, expected) for reached, expected in means)])
    return cells


def _cell(reached: Estimate, expected: float) -> str:
    half = f" ± {100 * reached.half_width:.1f}" if reached.count > 1 else ""
    return f"{100 * reached.mean:.1f}{half} ({100 * expected:.1f})"


def gains(found: Rows) -> dict[tuple[str, str, int], Estimate]:
    """Return the differences to one antenna in points, paired by seed, by scenario, adversary and antennas.

    Their intervals are corrected for the number of comparisons (Holm, 95% for all together).
    """
    every = data_frame(found).astype({"accuracy": float})
    by_seed = 100 * every.pivot(index="seed", columns=["label", "adversary", "antennas"], values="accuracy")
    return holm({setting: by_seed[setting] - by_seed[(*setting[:2], 1)] for setting in by_seed if setting[2] > 1})


def section(found: Rows) -> str:
    """Return the section of the page on antennas."""
    differences, numbers = gains(found), sorted({row["antennas"] for row in found if row["antennas"] > 1})
    cells = [["scenario", "adversary", *(f"A = {number}" for number in numbers)]]
    for label, adversary in dict.fromkeys(key[:2] for key in differences):
        cells.append([TITLES.get(label, label), adversary, *(str(differences[label, adversary, n]) for n in numbers)])
    ratio = data_frame(found).query("adversary == 'all_antennas'").astype({"amplification": float})
    ratios = ratio.groupby(["label", "antennas"], sort=False)["amplification"].mean().unstack()
    table_of_ratios = [["scenario", *(f"A = {number}" for number in ratios.columns)]]
    table_of_ratios += [
        [TITLES.get(label, label), *(f"{value:.2f}" for value in row)]
        for label, row in zip(ratios.index, ratios.to_numpy(), strict=True)
    ]
    error = data_frame(found).astype({"predicted_accuracy": float, "accuracy": float, "rounds": int})
    error["off"] = 100 * (error["predicted_accuracy"] - error["accuracy"])
    groups = error.groupby(["label", "adversary", "antennas"])
    few = groups["off"].mean()[groups["rounds"].min() < error["rounds"].max()]
    return "\n\n".join(
        [
            "## Test accuracy over the number of antennas",
            "300 devices with four images of `mnist-5k` each, logistic regression, ε = 2 at δ = 1e-5 for the whole "
            "training, planned by the accuracy surrogate of `mnist-5k`. *Scattered*: the antennas of a device are "
            "independent. *In one direction*: a uniform linear array receives all devices from within 5°, with a "
            "spread of 2°. *Power-limited*: 3 W in total; *privacy-limited*: 1,000 W. Mean test accuracy in percent, "
            f"± half its 95% interval ({len({row['seed'] for row in found})} seeds, Student's t), and the expected "
            "accuracy in brackets:",
            markdown_table(table(found)),
            "![Accuracy over the number of antennas](images/antennas.png)",
            "Difference to one antenna in points, paired by seed, with its interval. The intervals are corrected for "
            f"the number of comparisons (Holm, 95% for all {len(differences)} together). A difference whose interval "
            "contains 0 is not separated from 0.",
            markdown_table(cells),
            "The largest ‖h_k‖/|fᴴh_k| of the scheduled devices (mean over seeds), by which θ is lowered against "
            "`all_antennas`:",
            markdown_table(table_of_ratios),
            f"Plans of fewer rounds than {error['rounds'].max()} have little signal, at the edge of the surrogate: "
            f"they reach up to {few.max():.0f} points less than expected (means over seeds).",
        ]
    )
