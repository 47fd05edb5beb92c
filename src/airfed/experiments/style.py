"""Colours and sizes shared by every picture: safe for colour-blind readers, fit for a two-column paper."""

from __future__ import annotations

from typing import Any, Final

# Okabe and Ito's palette, by meaning.
TERM_COLOURS: Final = {
    "initial_gap": "#999999",
    "participation": "#0072B2",
    "local_drift": "#E69F00",
    "noise": "#D55E00",
}
LIMIT_COLOURS: Final = {"privacy": "#CC79A7", "peak_power": "#0072B2", "total_power": "#E69F00"}
POLICY_COLOURS: Final = {
    "optimal": "#009E73",
    "paper": "#0072B2",
    "full": "#D55E00",
    "uniform": "#E69F00",
    "top_k": "#56B4E9",
    "threshold": "#CC79A7",
}
CURVE_COLOURS: Final = ("#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#D55E00", "#0072B2", "#999999", "#000000")
TERM_NAMES: Final = {
    "initial_gap": "initial gap",
    "participation": "devices left out",
    "local_drift": "local drift",
    "noise": "receiver noise",
}
LIMIT_NAMES: Final = {"privacy": "privacy", "peak_power": "peak power", "total_power": "total power"}

COLUMN_INCHES: Final = 3.5  # one column of a two-column IEEE paper
PAGE_INCHES: Final = 7.16

MATPLOTLIB: Final[dict[Any, Any]] = {  # matplotlib types its keys as one long Literal
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "legend.frameon": True,
    "legend.framealpha": 0.9,
    "legend.edgecolor": "none",
    "figure.dpi": 150,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # editable text in the PDF
}
