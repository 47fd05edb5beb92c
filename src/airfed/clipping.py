"""What a device does to its update before it is transmitted: clip, and scale to its amplitude."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _validate

Vector = NDArray[np.float64]

CLIP_MARGIN: Final = 2.0**-20
"""Clipping aims this far below ϖ, so that no later rounding can lift a norm above it."""
# Squares of entries below this may vanish in float64.
_TINY: Final = 2.0**-500
_LARGEST: Final = float(np.finfo(np.float64).max)


def clip(updates: ArrayLike, clip_norm: float) -> tuple[Vector, Vector]:
    """Return (clipped, norms): each row scaled to a 2-norm of at most ϖ, in float64, and its norm before.

    One global norm over the whole accumulated update of a device (not per layer, not per step). A row with a NaN or an
    Inf becomes zero and has the norm NaN; a norm beyond float64 is given as the largest float64. `updates` are (m, d).

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
    odd = ~((norms > _TINY) & (norms < math.inf))  # rare: bad rows, and squares that overflow or vanish
    long = (norms > limit) & ~odd
    rows[long] *= (limit / norms[long])[:, None]
    for index in np.flatnonzero(odd):
        norms[index] = _clip_carefully(rows[index], limit)
    return rows, norms


def _clip_carefully(row: Vector, limit: float) -> float:
    """Clip one row in place and return its norm, whatever its entries are."""
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
    """Return (signals, norms): what devices transmit for their updates, and the norms before clipping.

    x_k = √(φ_k P_k)/ϖ · g_k with ‖g_k‖ ≤ ϖ, of updates g_k, (m, d), and amplitudes √(φ_k P_k) [√W], one for all or one
    per row. The phase correction e^{−jψ̂_k} is undone by the channel and part of `Air.coefficient`.

    >>> precode([[3.0, 4.0]], clip_norm=1.0, amplitude=2.0)[0].round(5)
    array([[1.2, 1.6]])

    Implements [Yan23, (6)].
    """
    rows, norms = clip(updates, clip_norm)
    scale = np.broadcast_to(np.asarray(amplitude, dtype=np.float64) / clip_norm, norms.shape)
    rows *= scale[:, None]  # [Yan23, (6)]
    return rows, norms


def squared_norm(vector: Vector) -> float:
    """Return ‖v‖²; not by np.dot, whose last bits depend on the number of threads."""
    return float(np.add.reduce(np.square(vector)))
