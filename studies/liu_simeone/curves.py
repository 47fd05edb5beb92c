"""Power that adapts over the rounds, or does not: figure, note and table from the rows of `liu_simeone`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from airfed.experiments.figures import appearance
from airfed.plotting.figure import Axes, Figure
from airfed.scenario import Scenario
from airfed.scenario.learning_section import RidgeSection
from studies.curves import sheet
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

    def draw(axes: Axes, account: str) -> None:
        gaps = liu_simeone.means(rows, account)
        for place, (name, text) in enumerate(_NAMES.items()):
            look = {"label": text, **appearance(place, place == 0)}
            axes.loglog(list(gaps), [each[name] for each in gaps.values()], **look)
        axes.set_xlabel("ε of the whole training")
        axes.set_ylabel("bound on (L − L*)/L*")

    panels = {title: partial(draw, account=account) for account, title in _TITLES.items()}
    figure = sheet(panels, height=3.0, note=note)
    left, right = figure.axes
    left.sharey(right)
    return figure


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
