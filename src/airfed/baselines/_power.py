"""Shares of a power budget."""

from __future__ import annotations

import numpy as np

from airfed.planning.amplitudes import Floats


def levelled(peak_power: Floats, budget: float, needed: Floats | float = 0.0) -> Floats:
    """Return min(P_k, max(p, needed_k)), with the largest p at which they sum to the budget at most."""
    if float(np.sum(peak_power)) <= budget:
        return np.array(peak_power)
    least = np.minimum(peak_power, needed)
    # the sum is piecewise linear in p: one more device rises from each `least` on, one fewer from each peak on
    edges = np.concatenate((np.broadcast_to(least, peak_power.shape), peak_power))
    order = np.argsort(edges, kind="stable")
    edges, slope = edges[order], np.cumsum(np.where(order < peak_power.size, 1, -1))
    spent = np.sum(least) + np.concatenate(([0.0], np.cumsum(slope[:-1] * np.diff(edges))))
    place = int(np.searchsorted(spent, budget, side="right")) - 1
    if place < 0:  # what is needed is more already
        return np.asarray(least)
    if not slope[place]:  # the budget is the sum of the peak powers but for rounding
        return np.array(peak_power)
    level = (edges[place] + (budget - spent[place]) / slope[place]) * (1 - 1e-14)
    return np.asarray(np.clip(level, least, peak_power))
