"""The maps of `airfed frontier`: drawing, tables and files, and trainings at five points that check the expectation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table

from airfed.experiments import points
from airfed.experiments.points import Experiment, Point, Variant
from airfed.experiments.results import Record, data_frame, write_files
from airfed.keys import ScenarioError
from airfed.plotting.colours import PALETTE
from airfed.plotting.figure import PAGE_INCHES, STYLE, Axes, Figure, log_axis, mpl, pictures, plain
from airfed.plotting.series import EPSILON, EPSILONS, POWER, Frontier
from airfed.scenario import Scenario
from airfed.text.output import exported
from airfed.text.phrases import count, number, privacy_terms
from airfed.text.tables import plain_table

_CHECKED: Final = EPSILONS[:9:2]  # 0.5, 1, 2, 4, 8


def check_points(scenario: Scenario) -> list[Point]:
    """Return the trainings of `--check`: the scenario at five values of ε; ScenarioError if they cannot be compared."""
    if scenario.shared_ledger_path is not None:
        raise ScenarioError(
            "--check needs a scenario without budget.shared_ledger: each training would spend the budget of the next."
        )
    if scenario.learning.synthetic:
        raise ScenarioError(
            f"--check needs a task with a test accuracy; learning.model = {scenario.learning.model!r} has none."
        )
    axes, variants = {EPSILON: _CHECKED}, (Variant(label="", changes={}),)
    return points.expand(Experiment(name="frontier", title="", base=scenario, axes=axes, variants=variants))


def with_trainings(found: Frontier, records: Sequence[Record]) -> Frontier:
    """Return the frontier with the accuracies of trainings."""
    trained = {record.point.values[EPSILON]: record.final.get("accuracy") for record in records if record.ended}
    done = [replace(each, trained=trained.get(each.value) if each.budget == EPSILON else None) for each in found.points]
    return replace(found, points=tuple(done))


def plot_frontier(axes: Axes, found: Frontier, budget: str) -> None:
    """Draw the plan's expected accuracy (or its noise) over a budget, and shade what no linear method reaches."""
    column, (label, unit) = partial(found.column, budget), found.axis(budget)
    x, by_accuracy = unit * column("value"), found.by_accuracy
    limit, reached = (
        column(name) for name in (("highest", "accuracy") if by_accuracy else ("noise_floor", "noise_share"))
    )
    axes.set_xlabel(label)
    edge = 1.0 if by_accuracy else min(each.noise_floor for each in found.points if each.noise_floor is not None) / 1.5
    beyond = "not to be expected of any linear method" if by_accuracy else "beyond every linear method"
    axes.fill_between(x, limit, edge, color=PALETTE["out"], alpha=0.45, lw=0, label=beyond)
    axes.plot(x, limit, color=PALETTE["warn"], ls="--", lw=1.1, zorder=3)
    if by_accuracy:
        band = "interval of one training, nominal 90%"
        axes.fill_between(x, column("low"), column("high"), color=PALETTE["lit"], alpha=0.18, lw=0, label=band)
    axes.plot(x, reached, color=PALETTE["ink"], marker="o", ms=2.5, label=plain(f"plan ({found.scenario.policy.name})"))
    if by_accuracy and np.isfinite(trained := column("trained")).any():
        look: dict[str, Any] = {"mfc": "white", "ms": 6, "zorder": 4, "ls": "none"}
        axes.plot(x, trained, marker="D", color=PALETTE["lit"], label="one training", **look)
    axes.axvline(unit * found.own(budget), color=PALETTE["ink"], lw=0.8, ls=":")
    if by_accuracy:
        axes.set(ylabel="expected test accuracy", ylim=(0, 1))
        axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1))
    else:
        axes.set_ylabel("noise per entry of the mean / ϖ")
        log_axis(axes, "y", edge, 1.5 * float(np.nanmax([limit, reached])))
    log_axis(axes, "x", x[0], x[-1])


def frontier_figure(found: Frontier) -> Figure:
    """Return the two maps side by side; the settings are the figure's label."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, 3.0), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True, gridspec_kw={"wspace": 0.08})
        for axes, budget in zip(panels, (EPSILON, POWER), strict=True):
            plot_frontier(axes, found, budget)
        panels[1].set_ylabel("")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), handlelength=1.6, columnspacing=1.2)
        figure.set_label(_settings(found))
    return figure


def _settings(found: Frontier) -> str:
    scenario, budget = found.scenario, found.scenario.budget
    covers = "each round" if budget.scope == "round" else "the whole training"
    basis = "no accuracy surrogate fits, so the noise share is drawn"
    if found.by_accuracy and scenario.surrogate is not None:
        basis = f"expected accuracies by the accuracy surrogate ({scenario.surrogate.basis})"
    return (
        f"{scenario.name}, seed {scenario.seed}: {scenario.num_devices} devices, policy {scenario.policy.name}, "
        f"ε = {budget.epsilon:g} for {covers} at {privacy_terms(budget.delta, budget.adjacency)}, "
        f"P_tot = {budget.total_power:g} W (dotted); one budget is changed at a time; {basis}."
    )


def table(found: Frontier) -> Table:
    """Return the points as a table for people."""
    score = ["expected", "interval", "at most"] if found.by_accuracy else []
    score += ["trained"] if any(point.trained is not None for point in found.points) else []
    shown = plain_table("budget", "value", "devices", "rounds", "noise", "floor", *score, left=("budget",))
    for point in found.points:
        label, unit = found.axis(point.budget)
        interval = "-" if point.low is None or point.high is None else f"{100 * point.low:.0f}-{100 * point.high:.0f}%"
        cells = {"devices": _cell(point.num_scheduled), "rounds": _cell(point.rounds)}
        cells |= {"noise": _cell(point.noise_share), "floor": _cell(point.noise_floor)}
        cells |= {"expected": _percent(point.accuracy), "interval": interval}
        cells |= {"at most": _percent(point.highest), "trained": _percent(point.trained)}
        name = "ε" if point.budget == EPSILON else label[-2]  # W or J
        shown.add_row(name, number(unit * point.value), *(cells[str(column.header)] for column in shown.columns[2:]))
    return shown


def remarks(found: Frontier, file: str) -> list[str]:
    """Return what the columns mean, and why points have no plan, in sentences."""
    lines = [
        "noise: standard deviation per entry of the mean update, relative to the clipping norm ϖ.",
        "floor: the least noise of any linear method in as many rounds.",
    ]
    if found.by_accuracy:
        lines.append("expected, interval: test accuracy by the surrogate, and the interval of one training.")
        lines.append("at most: the highest accuracy that the surrogate expects of any linear method.")
    elif hint := found.scenario.pilot_hint(file):
        lines.append(f"No accuracy surrogate fits this training, so the maps show noise. {hint}")
    if any((each.noise_share or 0.0) < (each.noise_floor or 0.0) * (1 - 1e-9) for each in found.points):
        lines.append("Noise below the floor: the plan breaks a limit, or its method is not a linear one over the air.")
    if missing := [point for point in found.points if point.reason]:
        (label, unit), first = found.axis(missing[0].budget), missing[0]
        lines.append(
            f"{count(len(missing), 'point')} without a plan. {label} = {number(unit * first.value)}: {first.reason}"
        )
    return lines


def _cell(value: float | None) -> str:
    return "-" if value is None else number(value)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def write(found: Frontier, out: Path) -> list[Path]:
    """Write the maps as frontier.png and .pdf, their settings as .txt, and the points as .csv and .tex."""
    content = {
        **pictures("frontier", frontier_figure(found)),
        "frontier.csv": data_frame(found.rows()).to_csv(index=False).encode(),
        "frontier.tex": exported(table(found), "latex").encode(),
    }
    return write_files("the maps", content.items(), out, "Choose another --out.")
