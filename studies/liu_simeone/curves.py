"""Power that adapts over the rounds, or does not: figure, note and table from the rows of `liu_simeone`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from airfed.plotting import colours
from airfed.plotting.chart import Axis, Chart, Line, padded
from airfed.plotting.figure import Figure, sheet
from airfed.scenario import Scenario
from airfed.scenario.learning_section import RidgeSection
from studies.liu_simeone import bound as liu_simeone

Rows = Sequence[Mapping[str, Any]]
_NAMES: Final = {"adaptive": "adaptive power", "static": "static power", "no_privacy": "no privacy"}
_TITLES: Final = {"paper": "privacy as in the paper", "exact": "exact privacy"}


def power_figure(rows: Rows, note: str) -> Figure:
    """Return the bound on the optimality gap over ε, one panel per account of privacy.

    Args:
        rows: account, epsilon, seed, adaptive, static, no_privacy.
        note: what is printed beside the figure.
    """
    found = {account: liu_simeone.means(rows, account) for account in _TITLES}
    values = [list(each.values()) for gaps in found.values() for each in gaps.values()]
    low, high = padded(values, below=1.5, above=1.5)
    charts = []
    for account, gaps in found.items():
        epsilon = np.array(list(gaps))
        lines = []
        for place, (name, text) in enumerate(_NAMES.items()):
            gap = np.array([each[name] for each in gaps.values()])
            colour, dash = colours.RUNS[place], colours.DASHES[place]
            lines.append(Line(x=epsilon, y=gap, name=text, colour=colour, dash=dash, weight=0.9 if place else 1.5))
        charts.append(
            Chart(
                title=_TITLES[account],
                x=Axis(label="ε of the whole training", low=epsilon[0], high=epsilon[-1], kind="log"),
                y=Axis(label="bound on (L − L*)/L*", low=low, high=high, kind="log"),
                parts=tuple(lines),
            )
        )
    return sheet(charts, height=3.0, note=note, titles=True)


def note(scenario: Scenario, *, draws: int) -> str:
    """Return what is printed beside the figure."""
    ridge = scenario.learning.ridge or RidgeSection()
    rounds = scenario.policy.rounds or scenario.learning.total_steps
    return (
        f"N = {scenario.num_devices}; P = {scenario.fleet.peak_power:g} W for an upload; "
        f"σ = {scenario.link.received_std:g} per real dimension; gains {scenario.channel.model}; T = {rounds} rounds "
        f"of one step each; δ = {scenario.budget.delta:g}; ridge regression, d = {scenario.dimension}, "
        f"n = {ridge.samples}, λ = {ridge.l2:g}. Theorem of Liu and Simeone (2021), mean of {draws} draws of data and "
        "channels; ε protects one sample. Left: their sufficient condition, Σμ_t² ≤ 2R_dp. Right: the exact one, "
        "Σμ_t² ≤ μ²."
    )


def table(rows: Rows) -> list[list[str]]:
    """Return the means as a table: header, then one row for each account and ε."""
    cells = [["privacy", "ε", "adaptive", "static", "no privacy", "static/adaptive"]]
    for account in _TITLES:
        for epsilon, gaps in liu_simeone.means(rows, account).items():
            shown = [f"{gaps[name]:.3g}" for name in _NAMES]
            cells.append([account, f"{epsilon:g}", *shown, f"{gaps['static'] / gaps['adaptive']:.1f}"])
    return cells
