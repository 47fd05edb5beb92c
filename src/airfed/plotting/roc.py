"""The picture of an audit: what the attack achieves against what is promised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from airfed.plotting.chart import Axis, Band, Chart, Floats, Line
from airfed.plotting.figure import Figure, sheet


def roc_figure(audit: Mapping[str, Any]) -> Figure:
    """Return the attack's ROC curve against the promised trade-off, plain and in normal quantiles.

    μ-Gaussian-DP promises a true-positive rate of at most Φ(Φ⁻¹(α) + μ) at a false-positive rate α: a line of slope 1
    in normal quantiles. Shaded is what the promise rules out.

    Args:
        audit: as `airfed audit --json` prints it.
    """
    mu, lower = audit["mu_claimed"], audit["mu_lower"]
    false = np.asarray(audit["roc"]["false_positive"], dtype=np.float64)
    true = np.asarray(audit["roc"]["true_positive"], dtype=np.float64)
    attack = "attack" if lower is None else f"attack, μ ≥ {lower:.4g} (99%)"
    inside = (false > 0) & (false < 1) & (true > 0) & (true < 1)
    rates, ends = np.linspace(1e-6, 1 - 1e-6, 2001), np.array([-2.6, 2.6])
    plain = Chart(
        title=f"{audit['scenario']}: one round, {audit['verdict']}",
        x=Axis(label="false positives", low=0.0, high=1.0),
        y=Axis(label="true positives", low=0.0, high=1.0),
        parts=_parts(rates, ndtr(ndtri(rates) + mu), 1.0, mu, Line(x=false, y=true, colour="ink", name=attack)),
    )
    top = float(ends[1] + mu)
    probit = Chart(
        title="in normal quantiles",
        x=Axis(label="Φ⁻¹(false positives)", low=float(ends[0]), high=float(ends[1])),
        y=Axis(label="Φ⁻¹(true positives)", low=float(ends[0]), high=top),
        parts=_parts(
            ends,
            ends + mu,
            top,
            mu,
            Line(x=ndtri(false[inside]), y=ndtri(true[inside]), colour="ink", name=attack),
        ),
    )
    return sheet([plain, probit], height=3.5, titles=True)


def _parts(x: Floats, promise: Floats, top: float, mu: float, attack: Line) -> tuple[Band | Line, ...]:
    named = f"promised, μ = {mu:.4g}"
    parts: tuple[Band | Line, ...] = (
        Band(x=x, low=promise, high=np.full(x.size, top), colour="lim-privacy", opacity=0.25),
        Line(x=x, y=promise, colour="lim-privacy", name=named),
        Line(x=x, y=x, colour="term-initial_gap", name="guessing", dash="dot", weight=0.7),
    )
    return (*parts, attack) if attack.x.size else parts
