"""The picture of an audit: what the attack achieves against what is promised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from airfed.experiments import style

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
except ModuleNotFoundError:
    raise ValueError('Pictures need matplotlib: pip install "airfed[report]".') from None


def roc_figure(audit: Mapping[str, Any]) -> Figure:
    """Return the attack's ROC curve against the promised trade-off, plain and in normal quantiles.

    μ-Gaussian-DP promises a true-positive rate of at most Φ(Φ⁻¹(α) + μ) at a false-positive rate α: a line of slope 1
    in normal quantiles. Shaded is what the promise rules out.

    Args:
        audit: as `airfed audit --json` prints it.
    """
    mu, lower = audit["mu_claimed"], audit["mu_lower"]
    measured_false = np.asarray(audit["roc"]["false_positive"])
    measured_true = np.asarray(audit["roc"]["true_positive"])
    false = np.linspace(1e-6, 1 - 1e-6, 2001)
    with mpl.rc_context(style.MATPLOTLIB):
        figure = Figure(figsize=(style.PAGE_INCHES, 3.3), layout="constrained")
        plain, probit = figure.subplots(1, 2)
        promise = ndtr(ndtri(false) + mu)
        plain.fill_between(false, promise, 1, color=style.LIMIT_COLOURS["privacy"], alpha=0.25, lw=0)
        plain.plot(false, promise, color=style.LIMIT_COLOURS["privacy"], label=f"promised, μ = {mu:.4g}")
        plain.plot([0, 1], [0, 1], color="#999999", lw=0.8, ls=":", label="guessing")
        plain.set_xlim(0, 1)
        plain.set_ylim(0, 1)
        plain.set_xlabel("false positives")
        plain.set_ylabel("true positives")
        plain.set_title(f"{audit['scenario']}: one round, {audit['verdict']}", loc="left")
        ends = np.array([-2.6, 2.6])
        probit.fill_between(ends, ends + mu, 9, color=style.LIMIT_COLOURS["privacy"], alpha=0.25, lw=0)
        probit.plot(ends, ends + mu, color=style.LIMIT_COLOURS["privacy"])
        probit.plot(ends, ends, color="#999999", lw=0.8, ls=":")
        probit.set_xlim(*ends)
        probit.set_ylim(ends[0], ends[1] + mu)
        probit.set_xlabel("Φ⁻¹(false positives)")
        probit.set_ylabel("Φ⁻¹(true positives)")
        if measured_false.size:
            label = "attack" if lower is None else f"attack, μ ≥ {lower:.4g} (99%)"
            plain.plot(measured_false, measured_true, color="black", ls="--", label=label)
            inside = (measured_false > 0) & (measured_false < 1) & (measured_true > 0) & (measured_true < 1)
            probit.plot(ndtri(measured_false[inside]), ndtri(measured_true[inside]), color="black", ls="--")
        probit.set_title("in normal quantiles", loc="left")
        plain.legend(loc="lower right")
    return figure
