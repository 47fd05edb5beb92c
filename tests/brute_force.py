"""The optimum of [Yan23, P1] by trying every schedule and every number of rounds: the oracle of `exact`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MOST_DEVICES = 16  # 65,535 subsets


class Solution(NamedTuple):
    """An optimum: its value, the candidate index, the devices and θ."""

    objective: float
    round_index: int
    scheduled: NDArray[np.intp]
    alignment: float


def brute_force_schedule(
    gain: ArrayLike,
    peak_power: ArrayLike,
    *,
    cap: ArrayLike,
    round_budget: ArrayLike,
    offset: ArrayLike,
    scale: ArrayLike,
    noise_weight: ArrayLike,
) -> Solution:
    """The joint optimum, found by looking at all 2^N − 1 schedules in all R candidates.

    Minimises W = offset_r + scale_r·(4(1 − |K|/N)² + noise_weight/(|K|θ)²). For one K and one r the best θ is
    the smallest of the privacy limit cap_r, the peak limit min |h_k|√P_k and the total limit
    √(budget_r / Σ 1/|h_k|²).

    Args:
        gain: |h_k| ≥ 0, (N,) with N ≤ 16.
        peak_power: P_k > 0 [W], (N,) or one number for all.
        cap, round_budget, offset, scale: (R,) as in `exact.best_schedule`.
        noise_weight: dσ²/2, one for all or (R,).

    Raises:
        ValueError: there are more than 16 devices.

    >>> brute_force_schedule([0.1, 0.9, 1.0], 1.0, cap=[0.5], round_budget=[1.0], offset=[0.0], scale=[1.0],
    ...                      noise_weight=0.5).scheduled
    array([1, 2])
    """
    strength = np.asarray(gain, dtype=np.float64)
    num = strength.size
    if num > _MOST_DEVICES:
        raise ValueError(f"Expected at most {_MOST_DEVICES} devices to try every subset, got {num}.")
    bounds = [np.asarray(x, dtype=np.float64) for x in (cap, round_budget, offset, scale)]
    bounds.append(np.broadcast_to(np.asarray(noise_weight, dtype=np.float64), bounds[0].shape))
    most, budget, constant, factor, weight = (x[:, None] for x in bounds)
    member = (np.arange(1, 1 << num)[:, None] >> np.arange(num)) & 1 == 1
    size = member.sum(axis=1)
    with np.errstate(divide="ignore", over="ignore"):
        peak = np.where(member, strength * np.sqrt(np.asarray(peak_power, dtype=np.float64)), np.inf).min(axis=1)
        load = np.where(member, 1.0 / np.square(strength), 0.0).sum(axis=1)
        theta = np.minimum(np.minimum(most, peak), np.sqrt(budget / load))
        value = constant + factor * (4.0 * np.square(1.0 - size / num) + weight / np.square(size * theta))
    r, k = np.unravel_index(int(np.argmin(value)), value.shape)
    return Solution(float(value[r, k]), int(r), np.flatnonzero(member[k]), float(theta[r, k]))
