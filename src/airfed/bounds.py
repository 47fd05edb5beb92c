"""Convergence bounds: Lemma 2, Theorem 1, Corollary 1 and Theorem 2 of [Yan23], term by term.

The receiver's mean has the weights a_k/D, with the received amplitudes a_k and D = Σ_k a_k. The bounds depend on them
through the shortfall m = Σ_k (1/N − a_k/D)₊ and the noise share σ/D; for aligned devices these are 1 − |K|/N and
σ/(|K|θ). The bounds assume that ϖ bounds the gradient of one local step *and* the accumulated update of a round. With
one fixed clipping norm both hold only if it is large enough for E.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airfed import _validate
from airfed.problem import Learning

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Bound:
    """An upper bound and its four terms."""

    initial_gap: float  # the contracted initial optimality gap
    participation: float  # term A, the error of partial participation
    local_drift: float  # term B, the error of several local steps per round
    noise: float  # term C, the error of the receiver noise

    @property
    def terms(self) -> dict[str, float]:
        """The four terms by name; they sum to `total`."""
        return dict(vars(self))

    @property
    def total(self) -> float:
        """The bound itself."""
        return sum(self.terms.values())


def local_steps(total_steps: int, rounds: int) -> tuple[int, ...]:
    """Return E_0..E_{I−1}: integers that differ by at most one and sum to T, the larger ones first.

    Deviations: the paper assumes that I divides T; the result is then T/I in every round.

    >>> local_steps(200, 3)
    (67, 67, 66)
    """
    _check_rounds(total_steps, rounds)
    short, longer = divmod(total_steps, rounds)
    return (short + 1,) * longer + (short,) * (rounds - longer)


def participation_error(shortfall: Floats | float) -> Any:
    """Return term A of Theorem 1, 4m², from the shortfall m; m = 1 − |K|/N for aligned devices."""
    return 4.0 * np.square(shortfall)


def noise_error(learning: Learning, noise_share: Floats | float) -> Any:
    """Return term C of Theorem 1, dσ²/(2D²), from the noise share σ/D; D = |K|θ for aligned devices."""
    with np.errstate(over="ignore"):
        return learning.noise_weight(1.0) * np.square(np.float64(noise_share))


def weighted_sum(weights: Floats, errors: Floats) -> float:
    """Return Σ_i w_i·error_i, infinite where float64 overflows; a round of weight 0 may have any error."""
    on = weights > 0
    with np.errstate(over="ignore"):
        return float(np.sum(np.multiply(weights, errors, where=on, out=np.zeros(weights.shape)), where=on))


def descent_bound(
    learning: Learning, *, shortfall: float, noise_share: float, steps: int, squared_gradient: float
) -> dict[str, float]:
    """Return the terms of Lemma 2 by name: an upper bound on the change of the expected loss in one round, τ ≤ 1/ζ.

    E[L(m^{i+1})] − E[L(m^i)] ≤ −(τ/2)‖∇L(m^i)‖² + τϖ²(E−1)² + 4τϖ²m² + (ζτ²/2)·ϖ²dσ²/D².

    `shortfall` is m, `noise_share` σ/D, `steps` E of this round, and `squared_gradient` E‖∇L(m^i)‖².

    Implements [Yan23, Lemma 2].
    Deviations: the weights a_k/D may differ; for aligned devices this is the printed lemma.
    """
    tau, zeta, clip = learning.learning_rate, learning.smoothness, learning.clip_norm
    if tau > (1 + 1e-12) / zeta:
        raise ValueError(f"learning_rate must be at most 1/smoothness, {1 / zeta!r}; got {tau!r}.")
    return {  # [Yan23, Lemma 2], with 1/ν² = ϖ²/θ²
        "descent": -0.5 * tau * squared_gradient,
        "participation": tau * clip**2 * float(participation_error(shortfall)),
        "local_drift": tau * clip**2 * (steps - 1) ** 2,
        "noise": zeta * tau**2 * clip**2 * float(noise_error(learning, noise_share)),
    }


def convex_gap(learning: Learning, *, rounds: int, shortfall: Floats | float, noise_share: Floats | float) -> Bound:
    """Return the bound of Theorem 1 on the optimality gap E[L(m^I) − L(m*)] after `rounds` rounds.

    gap_{i+1} ≤ η·gap_i + (ϖ²/ζ)[4m_i² + (E_i−1)² + dσ²/(2D_i²)], from gap_0 = G, with τ = 1/ζ. The `shortfall` is m_i =
    Σ_k (1/N − a_ik/D_i)₊, the `noise_share` σ/D_i, each one number or (I,).

    Implements [Yan23, Thm 1].
    Deviations: E_i are integers that sum to T, and the weights a_ik/D_i may differ over devices and rounds. If I
    divides T and one set of devices is aligned in all rounds, this is the printed bound.

    >>> task = Learning(dimension=10, total_steps=20, clip_norm=1.0, learning_rate=0.1,
    ...                 smoothness=10.0, strong_convexity=1.0, initial_gap=2.0)
    >>> bound = convex_gap(task, rounds=20, shortfall=0.0, noise_share=0.1 / 5)
    >>> bound.participation, bound.local_drift
    (0.0, 0.0)
    """
    _check_rounds(learning.total_steps, rounds)
    each = np.array([rounds])
    parts = participation_error(shortfall), noise_error(learning, noise_share)
    if np.ndim(noise_share) == 0:  # a geometric series
        weight = float(round_scales(learning, each)[0])
        participation, noise = (weight * float(part) for part in parts)
    else:
        weights = round_weights(learning, rounds)
        participation, noise = (weighted_sum(weights, part) for part in parts)
    return Bound(
        initial_gap=float(remaining_gap(learning, each)[0]),
        participation=participation,
        local_drift=float(_drift(learning, each)[0]),
        noise=noise,
    )


def mean_squared_gradient(
    learning: Learning, *, rounds: int, shortfall: Floats | float, noise_share: Floats | float
) -> Bound:
    """Return the bound of Theorem 2 on the average squared gradient over the rounds, for non-convex losses.

    2G/(τI) + mean(ϖ²[8m_i² + 2(E_i−1)² + dσ²/D_i²]), valid for τ ≤ 1/ζ.

    Implements [Yan23, Thm 2].
    Deviations: as in `convex_gap`.
    """
    steps = np.array(local_steps(learning.total_steps, rounds), dtype=np.float64)
    clip = 2 * learning.clip_norm**2
    return Bound(
        initial_gap=2 * learning.initial_gap / (learning.learning_rate * rounds),
        participation=clip * float(np.mean(participation_error(shortfall))),
        local_drift=clip * float(np.mean((steps - 1) ** 2)),
        noise=clip * float(np.mean(noise_error(learning, noise_share))),
    )


def round_weights(learning: Learning, rounds: int) -> NDArray[np.float64]:
    """Return (ϖ²/ζ)η^(I−1−i) for i = 0..I−1: the weight of the error of round i."""
    return learning.clip_norm**2 / learning.smoothness * _contracted(learning, np.arange(rounds - 1, -1, -1))


def noise_free_gap(learning: Learning) -> float:
    """Return (1 − ϱ/ζ)^T G: full participation, one local step per round, no noise. Implements [Yan23, Cor 1]."""
    return float(remaining_gap(learning, np.array([learning.total_steps]))[0])


def round_scales(learning: Learning, rounds: NDArray[np.int64]) -> Floats:
    """Return (ϖ²/ϱ)(1 − η^I) for each I: the weight of terms A and C in Theorem 1 if all rounds are equal."""
    return learning.clip_norm**2 / learning.strong_convexity * _shrinkage(learning, rounds)


def round_offsets(learning: Learning, rounds: NDArray[np.int64]) -> Floats:
    """Return η^I G + (ϖ²/ζ) Σ_i η^{I−1−i} (E_i−1)² for each I: the part of Theorem 1 independent of the schedule."""
    _check_rounds(learning.total_steps, int(np.max(rounds)))
    return remaining_gap(learning, rounds) + _drift(learning, rounds)  # [Yan23, Thm 1]


def _drift(learning: Learning, rounds: NDArray[np.int64]) -> Floats:
    """Return (ϖ²/ζ) Σ_i η^{I−1−i} (E_i−1)², as two geometric series: E_i takes two values."""
    short, longer = np.divmod(learning.total_steps, rounds)
    shorter = rounds - longer  # the rounds of fewer steps come last
    late = _shrinkage(learning, shorter)
    early = _contracted(learning, shorter) * _shrinkage(learning, longer)  # without cancellation
    weight = learning.clip_norm**2 / learning.strong_convexity
    with np.errstate(over="ignore"):  # an infinite bound excludes this I
        return np.asarray(weight * (late * (short - 1.0) ** 2 + early * np.square(short, dtype=np.float64)))


def _exponents(learning: Learning, rounds: NDArray[np.int64]) -> Floats:
    """Return n·ln η, computed from ϱ/ζ: rounding η near 1 would cost a relative error of n·1e-16."""
    ratio = learning.strong_convexity / learning.smoothness
    return np.asarray(np.where(rounds > 0, -np.inf, 0.0) if ratio == 1.0 else rounds * math.log1p(-ratio))


def _shrinkage(learning: Learning, rounds: NDArray[np.int64]) -> Floats:
    """Return 1 − η^n without cancellation for η near 1."""
    return np.asarray(-np.expm1(_exponents(learning, rounds)))


def _contracted(learning: Learning, rounds: NDArray[np.int64]) -> Floats:
    """Return η^n."""
    return np.asarray(np.exp(_exponents(learning, rounds)))


def remaining_gap(learning: Learning, rounds: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return η^I G for each I: the contracted initial gap."""
    return np.asarray(learning.initial_gap * _contracted(learning, rounds))


def _check_rounds(total_steps: int, rounds: int) -> None:
    _validate.positive_integer(total_steps=total_steps, rounds=rounds)
    if rounds > total_steps:
        raise ValueError(f"rounds must be at most total_steps, {total_steps}; got {rounds}.")
