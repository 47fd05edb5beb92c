"""Means over seeds and how sure they are: Student's t, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed.plotting.intervals import half_width

Place = TypeVar("Place")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with its 95% interval over `count` seeds; without a second seed the interval is the whole line."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.high - self.low) / 2

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies above or below 0; 0 where the seeds do not separate the mean from it."""
        return int(self.low > 0) - int(self.high < 0)

    def __neg__(self) -> Estimate:
        return Estimate(mean=-self.mean, low=-self.high, high=-self.low, count=self.count)

    def __str__(self) -> str:
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def estimate(values: ArrayLike) -> Estimate:
    """Return the mean of independent values and its 95% interval by Student's t.

    >>> estimate([1.0, 2.0, 3.0])
    Estimate(mean=2.0, low=-0.484..., high=4.484..., count=3)
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise ValueError("Expected at least one value to estimate a mean from, got none.")
    mean = float(sample.mean())
    half = float(half_width(sample)) if sample.size > 1 else math.inf
    return Estimate(mean=mean, low=mean - half, high=mean + half, count=sample.size)


def paired(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the mean of first − second, the interval taken over the differences seed by seed."""
    if len(first) != len(second):
        raise ValueError(f"Expected as many values on both sides, got {len(first)} and {len(second)}.")
    return estimate(np.subtract(first, second))


def best_place(curves: Mapping[Place, Mapping[int, float]], seeds: Sequence[int]) -> Place:
    """Return the place of the highest mean over the seeds; the first of several.

    >>> best_place({"low": {0: 1.0, 1: 2.0}, "high": {0: 3.0, 1: 0.0}}, [0])
    'high'
    """
    return max(curves, key=lambda place: float(np.mean([curves[place][seed] for seed in seeds])))


def best_by_others(curves: Mapping[Place, Mapping[int, float]]) -> dict[int, Place]:
    """Return, for each seed, the place that is best on the other seeds, so that choosing it flatters nobody.

    A lone seed has no others, and chooses for itself.
    """
    seeds = sorted(next(iter(curves.values())))
    return {seed: best_place(curves, [other for other in seeds if other != seed] or [seed]) for seed in seeds}


def paired_bands(values: NDArray[np.float64], reference: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return means and half-widths of 95% bands of several curves that are to be compared with one of them.

    Bands must show the spread of the comparison, not that of the seeds, which move all curves together. So the band of
    a curve is the interval of its difference from the reference, taken seed by seed: where the reference's mean lies
    outside it, the two differ. The reference has the plain interval of its own mean.

    Args:
        values: (curves, seeds, places); NaN where a curve has no value.
        reference: index of the curve that the others are compared with.

    Returns:
        Two arrays (curves, places); half-widths are 0 where there is one seed.
    """
    seeds = values.shape[1]
    means = values.mean(axis=1)
    if seeds < 2:
        return means, np.zeros_like(means)
    differences = values - values[reference]
    differences[reference] = values[reference]
    return means, half_width(differences, axis=1)
