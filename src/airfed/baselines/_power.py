"""Shares of a power budget."""

from __future__ import annotations

import numpy as np

from airfed.planning.amplitudes import Floats


def levelled(peak_power: Floats, budget: float, needed: Floats | float = 0.0) -> Floats:
    """Return min(P_k, max(p, needed_k)), with the largest p at which they sum to the budget at most."""
    least = np.minimum(peak_power, needed)
    if float(np.sum(peak_power)) <= budget:
        return np.array(peak_power)
    low, high = 0.0, float(peak_power.max())
    for _ in range(64):
        middle = 0.5 * (low + high)
        if float(np.sum(np.clip(middle, least, peak_power))) <= budget:
            low = middle
        else:
            high = middle
    return np.asarray(np.clip(low, least, peak_power))
