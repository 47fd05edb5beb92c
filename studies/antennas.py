"""The gain of receive antennas: rows, figure and table over the number of antennas, against either adversary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from airfed.experiments.figures import name_metric, ticks_at
from airfed.experiments.results import Estimate, Record, estimate
from airfed.plotting.colours import PALETTE
from airfed.plotting.figure import Axes, Figure
from airfed.text.phrases import ADVERSARIES, LIMITS
from studies.curves import sheet

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
    """Return a table: header, then a row for each scenario, number of antennas and adversary."""
    cells = [["scenario", "A", "adversary", "limit", "K", "I", "expected", "reached"]]
    settings = dict.fromkeys((row["label"], row["antennas"], row["adversary"]) for row in found)
    for label, number, adversary in sorted(settings, key=lambda setting: setting[1]):
        own = [row for row in found if (row["label"], row["antennas"], row["adversary"]) == (label, number, adversary)]
        limits = "/".join(dict.fromkeys(LIMITS[row["binding"]].removesuffix(" power") for row in own))
        mean = [f"{np.mean([row[name] for row in own]):.0f}" for name in ("num_scheduled", "rounds")]
        expected, reached = (_mean(own, number, adversary, name) for name in ("predicted_accuracy", "accuracy"))
        half = f" ± {100 * reached.half_width:.1f}" if reached.count > 1 else ""
        cells.append(
            [label, str(number), adversary, limits, *mean, f"{expected.mean:.1%}", f"{reached.mean:.1%}{half}"]
        )
    order = list(dict.fromkeys(row["label"] for row in found))
    return [cells[0], *sorted(cells[1:], key=lambda row: order.index(row[0]))]
