"""The joint search over rounds, schedules and alignment factors when peak powers differ."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from airfed.planning._equal import Floats, Rounds
from airfed.planning._sweep import Sweep


@dataclass(frozen=True, kw_only=True)
class Found:
    """A best schedule: the `size` devices of smallest load among those with c_k ≥ threshold."""

    objective: float
    index: int
    size: int
    threshold: float


def best_subset(rounds: Rounds, load: Floats, peak: Floats) -> Found:
    """The best schedule over all candidates; devices of infinite load or zero peak are left out."""
    heard = np.isfinite(load) & (peak > 0)
    sweep = Sweep(load[heard], peak[heard])
    best = Found(objective=math.inf, index=0, size=0, threshold=0.0)
    size = np.arange(1, sweep.peak.size + 1)
    for r in range(rounds.cap.size):
        theta, threshold = sweep.alignment(rounds.cap[r : r + 1], rounds.budget[r : r + 1])
        value = rounds.objective(r, size, theta[0])
        i = int(value.size - 1 - np.argmin(value[::-1]))
        if value[i] < best.objective:
            best = Found(objective=float(value[i]), index=r, size=i + 1, threshold=float(threshold[0, i]))
    return best
