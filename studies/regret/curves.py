"""The two figures of the regret study, drawn from its rows."""

from __future__ import annotations

import numpy as np

from airfed.plotting.colours import PALETTE
from airfed.plotting.figure import PAGE_INCHES, STYLE, Figure, mpl, plain
from studies.regret import regret
from studies.regret.regret import Rows


def regret_figure(rows: Rows, note: str) -> Figure:
    """Return, for each scenario, the accuracy of all grid points and of the plans, and the regret of the plans.

    Args:
        rows: see `regret_rows.COLUMNS`.
        note: the settings, which become a text file beside the picture.
    """
    found = regret.scenarios(rows)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, 1.5 + 0.42 * len(found)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1.25, 1])
        for index, scenario in enumerate(found):
            first = {"label": None} if index else {}
            means = [np.mean(list(values.values())) for values in scenario.grid.values()]
            left.plot(
                means,
                np.full(len(means), index),
                "|",
                color="#888888",
                ms=9,
                mew=0.9,
                **{"label": "grid point", **first},
            )
            for plan, marker, colour, name in (
                (scenario.by_bound, "D", PALETTE["warn"], "plan by the bound"),
                (scenario.by_accuracy, "s", PALETTE["run-1"], "by pilots on the same data set"),
                (scenario.by_transfer, "o", PALETTE["lit"], "by pilots on another data set"),
            ):
                shown = {"label": name, **first}
                left.plot(np.mean(list(plan.values())), index, marker, color=colour, ms=5.5, mec="white", **shown)
                lost, up = scenario.regret(plan), {"D": 0.3, "s": 0.15, "o": 0.0}[marker]
                half = lost.half_width if np.isfinite(lost.half_width) else 0.0
                bar = {"fmt": marker, "color": colour, "ms": 4.5, "mec": "white", "capsize": 2, "lw": 1}
                right.errorbar(lost.mean, index + up, xerr=half, **bar)
            other = scenario.regret_of_others(scenario.by_transfer)
            shown = {"label": "the same, to the best on the other seeds", **first}
            right.plot(other.mean, index - 0.2, "o", mfc="none", color=PALETTE["lit"], ms=4.5, **shown)
        right.axvline(0, color="black", lw=0.8)
        right.axvspan(-regret.MARGIN, regret.MARGIN, color=PALETTE["lit"], alpha=0.12, lw=0)
        left.set_yticks(range(len(found)), [plain(scenario.name) for scenario in found])
        left.set_ylim(len(found) - 0.5, -0.5)
        left.set_xlabel("final test accuracy [%]")
        right.set_xlabel(f"regret [points]; shaded: ±{regret.MARGIN:g}")
        for axes in (left, right):
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
        figure.legend(loc="outside upper center", ncols=4)
        figure.set_label(note)
    return figure


def prediction_figure(rows: Rows, note: str) -> Figure:
    """Return realised against expected accuracy, all grid points and plans of all scenarios.

    Args:
        rows: see `regret_rows.COLUMNS`.
        note: the settings, which become a text file beside the picture.
    """
    points = regret.expected(rows)
    errors = regret.errors(points)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, 4.4), layout="constrained")
        axes = figure.subplots()
        axes.plot([0, 100], [0, 100], color="black", lw=0.8, zorder=1)
        for index, (name, (error, _)) in enumerate(errors.items()):
            own = [point for point in points if point.scenario == name]
            colour = PALETTE[f"run-{index % 7}"]
            axes.plot(
                [point.predicted for point in own],
                [point.realised for point in own],
                "o",
                ms=4,
                color=colour,
                mfc=colour if own[0].iid else "none",
                mew=0.9,
                label=f"{plain(name)}: {error:.1f}" + ("" if own[0].iid else " (not IID)"),
            )
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 100)
        axes.set_aspect("equal")
        axes.set_xlabel("expected accuracy [%]")
        axes.set_ylabel("realised accuracy, mean over seeds [%]")
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), title="mean absolute error [points]")
        figure.set_label(note)
    return figure
