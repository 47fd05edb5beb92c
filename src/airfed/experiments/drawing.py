"""Pictures of plans. Pure functions: a plan or records in, a figure out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from airfed import convergence, planning
from airfed.experiments import style
from airfed.planning import Plan

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
except ModuleNotFoundError:
    raise ValueError('Pictures need matplotlib: pip install "airfed[report]".') from None

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_ROUNDS = 60  # points on the curve over I


def plan_figure(plan: Plan) -> Figure:
    """Return the paper's Fig. 2 for this plan (objective, θ and its three limits over |K|) and the bound over I."""
    with mpl.rc_context(style.MATPLOTLIB):
        figure = Figure(figsize=(style.PAGE_INCHES, 4.6), layout="constrained")
        grid = figure.subplot_mosaic([["theta", "bound"], ["objective", "bound"]], width_ratios=[1, 1.15])
        _draw_candidates(grid["theta"], grid["objective"], plan)
        _draw_bound(grid["bound"], plan)
    return figure


def comparison_figure(plans: Mapping[str, Plan]) -> Figure:
    """Return the bound of each policy, split into its terms, as bars."""
    with mpl.rc_context(style.MATPLOTLIB):
        figure = Figure(figsize=(style.PAGE_INCHES, 0.35 * len(plans) + 0.9), layout="constrained")
        axes = figure.subplots()
        names = list(plans)
        left = np.zeros(len(names))
        for term, colour in style.TERM_COLOURS.items():
            values = np.array([plans[name].bound.terms[term] for name in names])
            axes.barh(names, values, left=left, color=colour, label=style.TERM_NAMES[term], height=0.65)
            left += values
        for row, name in enumerate(names):
            plan = plans[name]
            axes.annotate(
                f" {plan.num_scheduled} devices, {plan.rounds} rounds", (left[row], row), va="center", fontsize=7
            )
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.22)
        axes.set_xlabel("bound on the optimality gap (Theorem 1)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def check_name(path: Path) -> None:
    """Raise a ValueError unless the name ends in a picture format."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"Expected a picture name ending in .png, .pdf or .svg, got {path.name}.")


def save(figure: Figure, path: Path) -> None:
    """Write the figure; the ending of the name decides the format.

    Raises:
        ValueError: the ending is no picture format, or the file cannot be written.
    """
    check_name(path)
    try:
        figure.savefig(path)
    except OSError as error:
        raise ValueError(f"Cannot write {path}: {error.strerror}.") from None


def _draw_candidates(above: Axes, below: Axes, plan: Plan) -> None:
    problem = plan.problem
    space = planning.candidates(plan)
    curves = {"privacy": space.privacy_limit, "peak_power": space.peak_limit, "total_power": space.total_limit}
    for name, curve in curves.items():
        above.plot(space.size, curve, color=style.LIMIT_COLOURS[name], ls="--", lw=1, label=style.LIMIT_NAMES[name])
    above.plot(space.size, space.alignment, color="black", label="largest θ")
    above.plot(plan.num_scheduled, plan.alignment, "*", color=style.POLICY_COLOURS["optimal"], ms=11, zorder=5)
    finite = space.alignment[np.isfinite(space.alignment) & (space.alignment > 0)]
    above.set_ylim(finite.min() / 1.6, finite.max() * 4)
    above.set_yscale("log")
    above.set_ylabel("alignment θ")
    above.set_title(f"candidates at I = {plan.rounds}", loc="left")
    above.legend(ncols=2)
    below.plot(space.size, space.objective, color="black")
    below.plot(
        plan.num_scheduled,
        _objective(plan),
        "*",
        color=style.POLICY_COLOURS["optimal"],
        ms=11,
        zorder=5,
        label=f"chosen: {plan.num_scheduled} of {problem.fleet.num_devices}",
    )
    below.set_yscale("log")
    below.set_xlabel("scheduled devices |K|")
    below.set_ylabel("objective of P2")
    below.legend()


def _objective(plan: Plan) -> float:
    """Ψ of the plan's own devices and θ, which need not be the best of their number."""
    problem, size = plan.problem, plan.num_scheduled
    noise = convergence.noise_error(problem.learning.dimension, problem.link.noise_std, size, plan.alignment)
    return convergence.participation_error(size, problem.fleet.num_devices) + noise


def _draw_bound(axes: Axes, plan: Plan) -> None:
    last = plan.problem.learning.total_steps
    rounds = np.unique(np.append(np.geomspace(1, last, min(last, _MOST_ROUNDS)).round().astype(int), plan.rounds))
    plans = [planning.plan(plan.problem, rounds=int(number)) for number in rounds]
    floor = np.zeros(rounds.size)
    for term, colour in style.TERM_COLOURS.items():
        top = floor + np.array([p.bound.terms[term] for p in plans])
        axes.fill_between(rounds, floor, top, color=colour, lw=0, alpha=0.85, label=style.TERM_NAMES[term])
        floor = top
    best = int(np.argmin(floor))
    axes.axvline(plan.rounds, color="black", lw=0.8, ls=":")
    axes.plot(plan.rounds, plan.bound.total, "*", color=style.POLICY_COLOURS["optimal"], ms=11, zorder=5)
    axes.set_xscale("log")
    axes.set_ylim(0, 4 * floor[best])
    if last > 1:
        axes.set_xlim(rounds[0], rounds[-1])
    axes.set_xlabel("aggregation rounds I")
    axes.set_title(f"bound on the gap; chosen: I = {plan.rounds}", loc="left")
    axes.legend(loc="upper center")
