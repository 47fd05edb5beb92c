"""Clipping and precoding: a device clips its update and scales it to its transmit amplitude; adaptive clipping."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _validate

Vector = NDArray[np.float64]

CLIP_MARGIN: Final = 2.0**-20
"""Relative margin by which clipping stays below ϖ, so that later rounding cannot lift a norm above it."""
# Squares of entries below this may underflow in float64.
_TINY: Final = 2.0**-500
_LARGEST: Final = float(np.finfo(np.float64).max)
FARTHEST: Final = 2.0**20
"""Largest factor between an adaptive clipping norm and that of the first round."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """A clipping norm that follows a quantile of the updates' norms.

    With its update, clipped to ϖ_i, a device sends one more entry: +1 if ‖g_k‖ ≤ ϖ_i and −1 otherwise, times
    `indicator`·ϖ_i. The receiver estimates the fraction b̃ of updates that are not clipped, in noise, and sets
    ϖ_{i+1} = ϖ_i·exp(−rate·(b̃ − quantile)). docs/privacy-math.md proves that μ and the power of an upload of amplitude
    a are those of an update of amplitude a without the entry.

    >>> AdaptiveClipping(quantile=0.5, rate=0.2).after(1.0, 0.0, first=1.0)
    1.10517...
    """

    quantile: float = 0.5  # the wanted fraction of updates that are not clipped
    rate: float = 0.2  # the step of ln ϖ
    share: float = 0.04  # of an upload's μ² and power that the indicator takes; the update keeps 1 − share

    def __post_init__(self) -> None:
        _validate.fraction(quantile=self.quantile, share=self.share)
        _validate.positive(rate=self.rate)
        if self.share > 0.5 or self.rate > 10.0:
            raise ValueError(f"share must be at most 0.5 and rate at most 10, got {self.share!r} and {self.rate!r}.")

    @property
    def indicator(self) -> float:
        """√(share/(1 − share)): the size of the indicator's entry over ϖ."""
        return math.sqrt(self.share / (1.0 - self.share))

    def after(self, clip_norm: float, unclipped: float, *, first: float) -> float:
        """Return ϖ of the next round from ϖ and b̃ of this one, within a factor of 2²⁰ of the `first` round's."""
        step = max(-math.log(FARTHEST), min(math.log(FARTHEST), self.rate * (unclipped - self.quantile)))
        return min(max(clip_norm * math.exp(-step), first / FARTHEST), first * FARTHEST)


def clip(updates: ArrayLike, clip_norm: float) -> tuple[Vector, Vector]:
    """Return (clipped, norms): each row scaled to a 2-norm of at most ϖ, in float64, and its norm before clipping.

    The norm is that of a device's whole accumulated update (not per layer, not per step). A row with a NaN or an Inf
    becomes zero and has the norm NaN; a norm beyond float64 is given as the largest float64. `updates` is (m, d).

    >>> clipped, norms = clip([[3.0, 4.0], [0.3, 0.4], [float("nan"), 1.0]], 1.0)
    >>> norms
    array([5. , 0.5, nan])
    >>> bool(np.all(np.linalg.norm(clipped, axis=1) <= 1.0))
    True
    """
    _validate.positive(clip_norm=clip_norm)
    rows = np.array(updates, dtype=np.float64, order="C", ndmin=2)
    limit = clip_norm * (1.0 - CLIP_MARGIN)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        norms = np.sqrt(np.add.reduce(np.square(rows), axis=1))
    unusual = ~((norms > _TINY) & (norms < math.inf))  # rare: rows that are not finite, squares that over- or underflow
    long = (norms > limit) & ~unusual
    rows[long] *= (limit / norms[long])[:, None]
    for index in np.flatnonzero(unusual):
        norms[index] = _clip_carefully(rows[index], limit)
    return rows, norms


def _clip_carefully(row: Vector, limit: float) -> float:
    """Clip one row in place and return its norm, without overflow or underflow."""
    largest = float(np.max(np.abs(row), initial=0.0))
    if not math.isfinite(largest):
        row[:] = 0.0
        return math.nan
    if largest == 0.0:
        return 0.0
    unit = row / largest
    relative = math.sqrt(squared_norm(unit))
    norm = min(largest * relative, _LARGEST)
    if norm > limit:
        row[:] = unit / relative * limit
    return norm


def precode(updates: ArrayLike, *, clip_norm: float, amplitude: ArrayLike) -> tuple[Vector, Vector]:
    """Return (signals, norms): the signals that devices transmit, and the norms of their updates before clipping.

    x_k = √(φ_k P_k)/ϖ · g_k with ‖g_k‖ ≤ ϖ, for updates g_k, (m, d), and amplitudes √(φ_k P_k) [√W], one for all or
    one per row. The phase correction e^{−jψ̂_k} is part of `AirCompRound.coefficient`.

    >>> precode([[3.0, 4.0]], clip_norm=1.0, amplitude=2.0)[0].round(5)
    array([[1.2, 1.6]])

    Implements [Yan23, (6)].
    """
    rows, norms = clip(updates, clip_norm)
    scale = np.broadcast_to(np.asarray(amplitude, dtype=np.float64) / clip_norm, norms.shape)
    rows *= scale[:, None]  # [Yan23, (6)]
    return rows, norms


def squared_norm(vector: Vector) -> float:
    """Return ‖v‖² without np.dot, whose last bits depend on the number of threads."""
    return float(np.add.reduce(np.square(vector)))
