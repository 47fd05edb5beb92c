"""Adaptive and static power over the rounds: figure, note and table from the rows of `liu_simeone`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from airfed.experiments.figures import appearances
from airfed.plotting.figure import Axes, Figure
from airfed.scenario import Scenario
from airfed.scenario.learning_section import RidgeSection
from studies.curves import sheet
from studies.liu_simeone import bound as liu_simeone

Rows = Sequence[Mapping[str, Any]]
_NAMES: Final = {"adaptive": "adaptive power", "static": "static power", "no_privacy": "no privacy"}
_TITLES: Final = {"paper": "accountant of the paper", "exact": "exact accountant"}


def power_figure(rows: Rows, note: str) -> Figure:
    """Return the bound on the optimality gap over ε, one panel per accountant.

    Args:
        rows: account, epsilon, seed, adaptive, static, no_privacy.
        note: the settings, which become a text file beside the picture.
    """

    def draw(axes: Axes, accountant: str) -> None:
        gaps = liu_simeone.means(rows, accountant)
        for (name, text), look in zip(_NAMES.items(), appearances(list(_NAMES), 0).values(), strict=True):
            axes.loglog(list(gaps), [each[name] for each in gaps.values()], label=text, **look)
        axes.set_xlabel("ε of the whole training")
        axes.set_ylabel("bound on (L − L*)/L*")

    panels = {title: partial(draw, accountant=accountant) for accountant, title in _TITLES.items()}
    figure = sheet(panels, height=3.0, note=note)
    left, right = figure.axes
    left.sharey(right)
    return figure


def note(scenario: Scenario, *, draws: int) -> str:
    """Return the settings of the figure."""
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
    """Return the means as a table: header, then one row for each accountant and ε."""
    cells = [["accountant", "ε", "adaptive", "static", "no privacy", "static/adaptive"]]
    for accountant in _TITLES:
        for epsilon, gaps in liu_simeone.means(rows, accountant).items():
            shown = [f"{gaps[name]:.3g}" for name in _NAMES]
            cells.append([accountant, f"{epsilon:g}", *shown, f"{gaps['static'] / gaps['adaptive']:.1f}"])
    return cells
