"""What scores prove about μ, and an ε that is computed apart from the one under audit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betaincinv, log_ndtr, ndtri

Vector = NDArray[np.float64]

_FEWEST = 50  # scores below which no bound is given


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that the audit looked at.

    Args:
        name: of the check.
        passed: whether it found nothing wrong.
        finding: what it found, in one sentence.
        figures: the numbers behind it.
    """

    name: str
    passed: bool
    finding: str
    figures: dict[str, Any]


def norm(vector: Vector) -> float:
    """Return the 2-norm of all entries; not by BLAS, whose threads are slow to wake for short vectors."""
    return math.sqrt(float(np.add.reduce(np.square(vector), axis=None)))


def parametric_bounds(scores: Vector, level: float) -> tuple[float, float]:
    """Return (lower, upper) bounds on μ, each wrong with probability `level`, for scores that are N(μ/2·s, s²).

    μ̂ = 2·mean/std has the standard error √((4 + μ²/2)/n); neither the amplitude nor the noise is taken for known.

    >>> low, high = parametric_bounds(np.random.default_rng(0).normal(0.25, 1.0, 200_000), 0.01)
    >>> 0.48 < low < 0.5 < high < 0.52
    True
    """
    count = scores.size
    if count < _FEWEST:
        return 0.0, math.inf
    spread = float(np.std(scores, ddof=1))
    if spread == 0.0:
        return math.inf, math.inf
    estimate = 2.0 * float(np.mean(scores)) / spread
    error = math.sqrt((4.0 + estimate**2 / 2.0) / count)
    reach = -float(ndtri(level)) * error
    return max(0.0, estimate - reach), max(0.0, estimate + reach)


def guessing_bound(scores: Vector, level: float) -> float:
    """Return a lower bound on μ, wrong with probability `level`, that takes nothing for granted about the scores.

    Guess each canary's sign by that of its score. Against μ-Gaussian-DP no test guesses right more often than Φ(μ/2),
    so the Clopper-Pearson bound p on the share of right guesses gives μ ≥ 2Φ⁻¹(p).
    """
    if scores.size < _FEWEST:
        return 0.0
    right = int(np.count_nonzero(scores > 0))
    share = betaincinv(right, scores.size - right + 1, level) if right else 0.0
    return max(0.0, 2.0 * float(ndtri(share)))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the ε of μ-Gaussian-DP at δ to ten digits, by another road than `airfed.privacy`.

    >>> round(epsilon_of(0.5, 1e-5), 6)
    1.993091
    """
    if mu <= 0.0:
        return 0.0
    if math.isinf(mu):
        return math.inf

    def excess(epsilon: float) -> float:
        first = float(log_ndtr(mu / 2 - epsilon / mu))
        second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
        if second >= first:
            return -math.inf if epsilon > 0 else math.log1p(-1e-300) - math.log(delta)
        return first + math.log(-math.expm1(second - first)) - math.log(delta)

    if excess(0.0) <= 0.0:
        return 0.0
    high = mu * mu / 2 + mu * 40.0 + 1.0
    while excess(high) > 0.0:
        high *= 2.0
    return float(brentq(lambda x: max(excess(x), -1e3), 0.0, high, xtol=1e-12, rtol=1e-13))
