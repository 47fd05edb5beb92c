"""How well training can go: Lemma 2, Theorem 1, Corollary 1 and Theorem 2 of [Yan23], term by term.

In the letters of the paper: |K| = `num_scheduled`, N = `num_devices`, θ = `alignment`, σ = `noise_std`,
E_i = `local_steps`, and the rest as in `Learning`. The bounds assume that ϖ bounds the gradient of one local step
*and* the accumulated upload of a round; with one fixed clip both hold only where the clip is large enough for E.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airfed import _validate
from airfed.problem import Learning


@dataclass(frozen=True, kw_only=True)
class Bound:
    """An upper bound and the four parts it is made of.

    Args:
        initial_gap: what is left of the distance at the start.
        participation: term A, the error of leaving devices out.
        local_drift: term B, the error of several local steps between two aggregations.
        noise: term C, the error of the receiver's noise.
    """

    initial_gap: float
    participation: float
    local_drift: float
    noise: float

    @property
    def terms(self) -> dict[str, float]:
        """The four parts by name; they sum to `total`."""
        return {
            "initial_gap": self.initial_gap,
            "participation": self.participation,
            "local_drift": self.local_drift,
            "noise": self.noise,
        }

    @property
    def total(self) -> float:
        """The bound itself."""
        return sum(self.terms.values())


def local_steps(total_steps: int, rounds: int) -> tuple[int, ...]:
    """Return E_0..E_{I−1}: whole numbers that differ by at most one, sum to T exactly, the larger ones first.

    The error of an early round is discounted most, so that is where the longer rounds belong.

    Deviations: the print assumes that I divides T; where it does, this is T/I throughout.

    Raises:
        ValueError: rounds is not in 1..total_steps.

    >>> local_steps(200, 3)
    (67, 67, 66)
    """
    _check_rounds(total_steps, rounds)
    short, longer = divmod(total_steps, rounds)
    return (short + 1,) * longer + (short,) * (rounds - longer)


def participation_error(num_scheduled: float, num_devices: int) -> float:
    """Return term A of Theorem 1, 4(1 − |K|/N)²; |K| need not be whole (devices that arrive weaker than others)."""
    if not 0 < num_scheduled <= num_devices:
        raise ValueError(f"Expected 0 < num_scheduled={num_scheduled} <= num_devices={num_devices}.")
    return 4.0 * (1.0 - num_scheduled / num_devices) ** 2


def noise_error(dimension: int, noise_std: float, num_scheduled: float, alignment: float) -> float:
    """Return term C of Theorem 1, dσ² / (2|K|²θ²); noise_std = 0 is allowed here (a noiseless channel)."""
    _validate.non_negative(noise_std=noise_std)
    _validate.positive(alignment=alignment)
    with np.errstate(over="ignore"):
        return float(0.5 * dimension * np.float64(noise_std / (num_scheduled * alignment)) ** 2)


def descent_bound(
    learning: Learning,
    *,
    num_scheduled: float,
    num_devices: int,
    alignment: float,
    noise_std: float,
    steps: int,
    squared_gradient: float,
) -> dict[str, float]:
    """Return the terms of Lemma 2: how much one round changes the expected loss, at most.

    E[L(m^{i+1})] − E[L(m^i)] ≤ −(τ/2)‖∇L(m^i)‖² + τϖ²(E−1)² + 4τϖ²(1−|K|/N)² + (ζτ²/2)·dσ²/(|K|²ν²).

    Args:
        learning: τ, ϖ, ζ, d.
        num_scheduled, num_devices, alignment, noise_std: |K|, N, θ = νϖ, σ.
        steps: E of this round.
        squared_gradient: E‖∇L(m^i)‖².

    Returns:
        "descent" (negative or zero), "participation", "local_drift" and "noise"; their sum is the bound.

    Raises:
        ValueError: the learning rate exceeds 1/ζ, for which the lemma is not proved.

    Implements [Yan23, Lemma 2].
    """
    tau, zeta, clip = learning.learning_rate, learning.smoothness, learning.clip_norm
    if tau > (1 + 1e-12) / zeta:
        raise ValueError(f"Expected learning_rate={tau!r} <= 1/smoothness={1 / zeta!r}.")
    noise = noise_error(learning.dimension, noise_std, num_scheduled, alignment)
    return {  # [Yan23, Lemma 2], with 1/ν² = ϖ²/θ²
        "descent": -0.5 * tau * squared_gradient,
        "participation": tau * clip**2 * participation_error(num_scheduled, num_devices),
        "local_drift": tau * clip**2 * (steps - 1) ** 2,
        "noise": zeta * tau**2 * clip**2 * noise,
    }


def convex_gap(
    learning: Learning,
    *,
    num_scheduled: float,
    num_devices: int,
    alignment: float,
    noise_std: float,
    rounds: int,
) -> Bound:
    """Return the bound of Theorem 1 on the optimality gap E[L(m^I) − L(m*)] after `rounds` rounds.

    gap_{i+1} ≤ η·gap_i + (ϖ²/ζ)[4(1−|K|/N)² + (E_i−1)² + dσ²/(2|K|²θ²)], from gap_0 = G, with τ = 1/ζ.

    Implements [Yan23, Thm 1].
    Deviations: integer local steps E_i that sum to T; where I divides T, this is the printed bound.

    >>> task = Learning(dimension=10, total_steps=20, clip_norm=1.0, learning_rate=0.1,
    ...                 smoothness=10.0, strong_convexity=1.0, initial_gap=2.0)
    >>> bound = convex_gap(task, num_scheduled=5, num_devices=5, alignment=1.0, noise_std=0.1, rounds=20)
    >>> bound.participation, bound.local_drift
    (0.0, 0.0)
    """
    _check_rounds(learning.total_steps, rounds)
    each = np.array([rounds])
    scale = float(round_scales(learning, each)[0])
    return Bound(
        initial_gap=float(remaining_gap(learning, each)[0]),
        participation=scale * participation_error(num_scheduled, num_devices),
        local_drift=float(_drift(learning, each)[0]),
        noise=scale * noise_error(learning.dimension, noise_std, num_scheduled, alignment),
    )


def sequence_gap(
    learning: Learning,
    *,
    num_scheduled: NDArray[np.int64] | NDArray[np.float64],
    num_devices: int,
    alignment: NDArray[np.float64],
    noise_std: float | NDArray[np.float64],
) -> Bound:
    """Return the bound of Theorem 1 where each round has devices and an alignment of its own.

    gap_{i+1} ≤ η·gap_i + (ϖ²/ζ)[4(1−|K_i|/N)² + (E_i−1)² + dσ²/(2|K_i|²θ_i²)], from gap_0 = G, with τ = 1/ζ.

    Args:
        learning: the task.
        num_scheduled, alignment: |K_i| and θ_i, (I,) each.
        num_devices: N.
        noise_std: σ, or that of each round.

    Implements [Yan23, Thm 1].
    Deviations: the paper knows one K and one θ; the recursion of its proof holds round by round.
    """
    each = np.array([alignment.size])
    _check_rounds(learning.total_steps, alignment.size)
    weights = round_weights(learning, alignment.size)
    left_out, noise = _errors(learning, num_scheduled, num_devices, alignment, noise_std)
    return Bound(
        initial_gap=float(remaining_gap(learning, each)[0]),
        participation=float(np.sum(weights * left_out)),
        local_drift=float(_drift(learning, each)[0]),
        noise=float(np.sum(weights * noise, where=weights > 0)),
    )


def sequence_squared_gradient(
    learning: Learning,
    *,
    num_scheduled: NDArray[np.int64] | NDArray[np.float64],
    num_devices: int,
    alignment: NDArray[np.float64],
    noise_std: float | NDArray[np.float64],
) -> Bound:
    """Return the bound of Theorem 2 where each round has devices and an alignment of its own.

    Args:
        learning, num_scheduled, num_devices, alignment, noise_std: as in `sequence_gap`.

    Implements [Yan23, Thm 2].
    """
    steps = np.array(local_steps(learning.total_steps, alignment.size), dtype=np.float64)
    left_out, noise = _errors(learning, num_scheduled, num_devices, alignment, noise_std)
    clip = 2 * learning.clip_norm**2
    return Bound(
        initial_gap=2 * learning.initial_gap / (learning.learning_rate * alignment.size),
        participation=clip * float(np.mean(left_out)),
        local_drift=clip * float(np.mean((steps - 1) ** 2)),
        noise=clip * float(np.mean(noise)),
    )


def round_weights(learning: Learning, rounds: int) -> NDArray[np.float64]:
    """Return (ϖ²/ζ)η^(I−1−i) for i = 0..I−1: what the errors of round i weigh in the end."""
    return learning.clip_norm**2 / learning.smoothness * _contracted(learning, np.arange(rounds - 1, -1, -1))


def _errors(
    learning: Learning,
    num_scheduled: NDArray[np.int64] | NDArray[np.float64],
    num_devices: int,
    alignment: NDArray[np.float64],
    noise_std: float | NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Terms A and C of each round, without their weights."""
    with np.errstate(over="ignore", divide="ignore"):
        noise = 0.5 * learning.dimension * np.square(noise_std / (num_scheduled * alignment))
    return 4.0 * np.square(1.0 - num_scheduled / num_devices), noise


def noise_free_gap(learning: Learning) -> float:
    """Return the bound of Corollary 1, (1 − ϱ/ζ)^T G: every device, one local step a round, no noise.

    Implements [Yan23, Cor 1].
    """
    return float(remaining_gap(learning, np.array([learning.total_steps]))[0])


def mean_squared_gradient(
    learning: Learning,
    *,
    num_scheduled: float,
    num_devices: int,
    alignment: float,
    noise_std: float,
    rounds: int,
) -> Bound:
    """Return the bound of Theorem 2 on the average squared gradient over the rounds, for non-convex losses.

    2G/(τI) + mean(ϖ²[8(1−|K|/N)² + 2(E_i−1)² + dσ²/(|K|²θ²)]), valid for τ ≤ 1/ζ.

    Implements [Yan23, Thm 2].
    Deviations: integer local steps E_i that sum to T; the mean of (E_i−1)² is (E−1)² where I divides T.
    """
    steps = np.array(local_steps(learning.total_steps, rounds), dtype=np.float64)
    clip = learning.clip_norm**2
    return Bound(
        initial_gap=2 * learning.initial_gap / (learning.learning_rate * rounds),
        participation=2 * clip * participation_error(num_scheduled, num_devices),
        local_drift=2 * clip * float(np.mean((steps - 1) ** 2)),
        noise=2 * clip * noise_error(learning.dimension, noise_std, num_scheduled, alignment),
    )


def round_scales(learning: Learning, rounds: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (ϖ²/ζ) Σ_i η^{I−1−i} = (ϖ²/ϱ)(1 − η^I) for each I: the weight of terms A and C in Theorem 1."""
    return learning.clip_norm**2 / learning.strong_convexity * _shrinkage(learning, rounds)


def round_offsets(learning: Learning, rounds: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return η^I G + (ϖ²/ζ) Σ_i η^{I−1−i} (E_i−1)² for each I: the part of Theorem 1 that no schedule changes."""
    _check_rounds(learning.total_steps, int(np.max(rounds)))
    return remaining_gap(learning, rounds) + _drift(learning, rounds)  # [Yan23, Thm 1]


def _drift(learning: Learning, rounds: NDArray[np.int64]) -> NDArray[np.float64]:
    """(ϖ²/ζ) Σ_i η^{I−1−i} (E_i−1)²: the sum of two geometric series, one per length of round."""
    short, longer = np.divmod(learning.total_steps, rounds)
    few = rounds - longer  # the short rounds come last
    late = _shrinkage(learning, few)
    early = _contracted(learning, few) * _shrinkage(learning, longer)  # no difference of like numbers
    weight = learning.clip_norm**2 / learning.strong_convexity
    with np.errstate(over="ignore"):  # beyond float64 such a number of rounds is out of the question
        return np.asarray(weight * (late * (short - 1.0) ** 2 + early * np.square(short, dtype=np.float64)))


def _shrinkage(learning: Learning, rounds: NDArray[np.int64]) -> NDArray[np.float64]:
    """1 − η^n without cancellation where η is close to 1 (and 0 for n = 0 even where η = 0)."""
    ratio = learning.strong_convexity / learning.smoothness
    if ratio == 1.0:
        return np.where(rounds > 0, 1.0, 0.0)
    return np.asarray(-np.expm1(rounds * math.log1p(-ratio)))


def _contracted(learning: Learning, rounds: NDArray[np.int64]) -> NDArray[np.float64]:
    """η^n from ϱ/ζ itself: rounding η first would cost n·1e-16 where it is close to 1."""
    ratio = learning.strong_convexity / learning.smoothness
    if ratio == 1.0:
        return np.where(rounds > 0, 0.0, 1.0)
    return np.asarray(np.exp(rounds * math.log1p(-ratio)))


def remaining_gap(learning: Learning, rounds: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return η^I G for each I: what is left of the distance at the start."""
    return np.asarray(learning.initial_gap * _contracted(learning, rounds))


def _check_rounds(total_steps: int, rounds: int) -> None:
    _validate.positive_integer(total_steps=total_steps, rounds=rounds)
    if rounds > total_steps:
        raise ValueError(f"Expected rounds={rounds} <= total_steps={total_steps}: a round has at least one local step.")
