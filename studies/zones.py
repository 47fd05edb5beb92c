"""Draw the three zones of the weighted plan of a scenario over the gains.

python studies/zones.py examples/paper.toml docs/images/weighted.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import airfed
from airfed.planning import Plan, limits
from airfed.plotting import figure
from airfed.plotting.colours import PALETTE


def draw(best: Plan, aligned: Plan) -> Figure:
    """Return a_k over |h_k| of a weighted plan, with its limits and an aligned plan."""
    problem, amplitude = best.problem, best.amplitude[0]
    gain = problem.fleet.gain
    level = amplitude.sum() / gain.size  # t = D/N
    cap = limits.privacy_cap(problem)
    near = np.abs(amplitude / level - 1) < 1e-9
    zones = {
        "weak: matched filter": (amplitude < level) & ~near,
        "middle: aligned at D/N (channel inversion)": near,
        "strong: matched filter": (amplitude > level) & ~near & (amplitude < 0.999 * cap),
        "strong: at the privacy limit": amplitude >= 0.999 * cap,
    }
    drawn = Figure(figsize=(figure.PAGE_INCHES, 3.4), layout="constrained")
    axes = drawn.subplots()
    for (name, on), colour in zip(
        zones.items(), ("lim-peak_power", "lit", "lim-total_power", "lim-privacy"), strict=True
    ):
        axes.plot(
            gain[on], amplitude[on], "o", ms=5, color=PALETTE[colour], label=f"{name}, {np.count_nonzero(on)} devices"
        )
    grid = np.linspace(0, gain.max(), 200)
    peak = float(np.max(problem.fleet.peak_power))
    axes.plot(grid, np.minimum(cap, grid * np.sqrt(peak)), color="0.6", lw=1, label="privacy and peak power")
    axes.axhline(level, color="0.3", lw=0.8, ls=":", label="D/N")
    on = aligned.scheduled
    axes.plot(gain[on], aligned.amplitude[0][on], "k|", ms=7, label=f"aligned optimum, {on.size} devices")
    axes.set(xlabel="gain |h|", ylabel="received amplitude a [√W]", xlim=(0, None), ylim=(0, 1.15 * cap))
    axes.legend(loc="lower right")
    return drawn


if __name__ == "__main__":
    scenario = airfed.load(sys.argv[1])
    with mpl.rc_context(figure.STYLE):
        drawn = draw(scenario.plan(policy="weighted"), scenario.plan(policy="optimal"))
    figure.save(drawn, Path(sys.argv[2]))
