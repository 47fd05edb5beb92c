"""Pictures of plans and runs as files. Pure functions: plans or runs in, a figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from airfed import planning
from airfed.planning import Plan, Response
from airfed.plotting import fading
from airfed.plotting import plans as charts
from airfed.plotting import runs as charts_of
from airfed.plotting.colours import PALETTE
from airfed.plotting.figure import PAGE_INCHES, STYLE, Figure, mpl, sheet
from airfed.text.phrases import BOUND, TERMS, devices_text
from airfed.training.run import Run


def plan_figure(plan: Plan, note: str = "", *, response: Response | None = None) -> Figure:
    """Return the paper's Fig. 2 for this plan (θ with its limits, and the objective, over |K|) and the bound over I.

    A plan that was chosen by a surrogate is drawn with the expected accuracy over I in place of the bound. Where rounds
    differ, or devices have batteries, it is drawn round by round.
    """
    if fading.round_by_round(plan):
        drawn = list(fading.pictures(plan).values())
        return sheet(drawn, height=6.2, places=("ab", "ac", "ad"), widths=(1.1, 1), note=note, titles=True)
    space = planning.candidates(plan)
    drawn = [charts.alignment_chart(plan, space), charts.objective_chart(plan, space)]
    drawn.append(charts.over_rounds(plan, response))
    return sheet(drawn, height=5.0, places=("ac", "bc"), widths=(1, 1.15), note=note, titles=True)


def comparison_figure(plans: Mapping[str, Plan]) -> Figure:
    """Return the bound of each policy, split into its terms, as bars."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, 0.35 * len(plans) + 0.9), layout="constrained")
        axes = figure.subplots()
        names = list(plans)
        left = np.zeros(len(names))
        for term, label in TERMS.items():
            values = np.array([plans[name].bound.terms[term] for name in names])
            axes.barh(names, values, left=left, color=PALETTE[f"term-{term}"], label=label, height=0.65)
            left += values
        for row, name in enumerate(names):
            said = f" {devices_text(plans[name])} devices, {plans[name].rounds} rounds"
            axes.annotate(said, (left[row], row), va="center", fontsize=7)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.22)
        axes.set_xlabel(BOUND)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def runs_figure(runs: Sequence[Run]) -> Figure:
    """Return accuracy and loss, ε and power of runs over their training."""
    found = [charts_of.learning(runs, metric) for metric in ("accuracy", "loss")]
    found += [charts_of.privacy(runs), charts_of.power(runs)]
    drawn = [chart for chart in found if chart is not None]
    letters = "abcd"[: len(drawn)]
    places = [letters[start : start + 2].ljust(2, letters[-1]) for start in range(0, len(drawn), 2)]
    return sheet(drawn, height=2.6 * len(places), places=places, titles=True)
