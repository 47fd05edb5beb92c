"""Privacy of the Gaussian mechanism: Lemma 1 of the paper and exact Gaussian DP, in both directions.

One round adds noise of standard deviation σ to a sum of sensitivity 2θ (replace-one adjacency), a noise multiplier of
σ/2θ: it is exactly μ-Gaussian-DP with μ = 2θ/σ. The composition of I rounds is exactly μ√I-Gaussian-DP. The exact
functions round outwards: δ and ε are never below the truth, μ is never above it, and the truth is less than one double
away. Hence, without any tolerance,

    gaussian_epsilon(gaussian_mu(ε, δ), δ) ≤ ε     gaussian_delta(gaussian_mu(ε, δ), ε) ≤ δ
    gaussian_mu(gaussian_epsilon(μ, δ), δ) ≥ μ     gaussian_delta(μ, gaussian_epsilon(μ, δ)) ≤ δ

Arguments are μ ≥ 0 (`mu`), ε ≥ 0 (`epsilon`), δ between 0 and 1 (`delta`, the paper's ξ) and I ≥ 1 (`rounds`); all
functions raise ValueError if an argument is out of range. An evaluation takes a few tenths of a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _validate
from airfed.privacy import _tradeoff

Validity = Literal["proved", "unproven", "unsafe"]
"""Validity of Lemma 1 at an ε: proved below 1, safe but unproven up to ε*, too low above ε*."""


def classic_epsilon(mu: float, delta: float) -> float:
    """Return Lemma 1's ε of one release, μ·√(2 ln(1.25/δ)).

    >>> round(classic_epsilon(0.5, 1e-3), 4)
    1.8882

    Implements [Yan23, Lemma 1].

    Deviations: none, but the value is proved for ε < 1 only, and too low above `classic_limit`.
    """
    _validate.non_negative(mu=mu)
    _validate.fraction(delta=delta)
    return float(mu) * _classic_factor(float(delta))  # [Yan23, Lemma 1]


def classic_mu(epsilon: float, delta: float) -> float:
    """Return the μ that Lemma 1 allows for (ε, δ), ε/√(2 ln(1.25/δ)); its `classic_epsilon` is at most ε.

    >>> round(classic_mu(2.0, 1e-3), 4)
    0.5296

    Implements [Yan23, Lemma 1].
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.fraction(delta=delta)
    factor = _classic_factor(float(delta))
    mu = float(epsilon) / factor  # [Yan23, Lemma 1]
    while mu * factor > epsilon:
        mu = math.nextafter(mu, 0.0)
    return mu


def classic_limit(delta: float) -> float:
    """Return ε*, where Lemma 1 agrees with the exact trade-off; above it, Lemma 1 understates the privacy loss.

    >>> [round(classic_limit(delta), 2) for delta in (1e-3, 1e-4, 1e-5, 1e-6)]
    [7.46, 7.99, 8.42, 8.78]
    """
    _validate.fraction(delta=delta)
    delta = float(delta)
    factor, level = _classic_factor(delta), math.log(delta)

    def excess(epsilon: float) -> float:
        return _tradeoff.log_delta(epsilon / factor, epsilon) - level

    # With ε/μ fixed, δ grows with μ from 0 to 1: one sign change. The smallest root is 3.787, at δ = 0.896.
    high = 2.0
    while excess(high) < 0:
        high *= 2
    low = high / 2
    while low < (middle := (low + high) / 2) < high:  # SciPy's root finders take a tenth of a plan's time to import
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    return low


def classic_validity(epsilon: float, delta: float) -> Validity:
    """Return the validity of Lemma 1: "proved" (ε < 1), "unproven" (1 ≤ ε ≤ ε*) or "unsafe" (ε > ε*).

    >>> [classic_validity(epsilon, 1e-3) for epsilon in (0.5, 2.0, 50.0)]
    ['proved', 'unproven', 'unsafe']
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.fraction(delta=delta)
    if epsilon < 1:
        return "proved"
    return "unproven" if epsilon <= classic_limit(delta) else "unsafe"


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the smallest δ for which μ-Gaussian-DP is (ε, δ)-DP, rounded up.

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).

    >>> f"{gaussian_delta(1.0, 1.0):.6f}"
    '0.126937'
    """
    _validate.non_negative(mu=mu, epsilon=epsilon)
    return _tradeoff.delta_up(float(mu), float(epsilon)) if mu > 0 else 0.0


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest ε for which μ-Gaussian-DP is (ε, δ)-DP, rounded up: never below the truth.

    It is zero if δ(0) ≤ δ, and infinite if ε exceeds float64 (μ above 1.8e154).

    >>> mu = classic_mu(50.0, 1e-3)
    >>> round(gaussian_epsilon(mu, 1e-3), 1)  # Lemma 1 gives 50
    127.7
    """
    _validate.non_negative(mu=mu)
    _validate.fraction(delta=delta)
    if mu == 0:
        return 0.0
    mu, delta = float(mu), float(delta)
    return _tradeoff.epsilon_up(mu, delta, _tradeoff.epsilon_root(mu, delta))


def gaussian_epsilons(mus: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """Return `gaussian_epsilon` of many μ, computed once for each distinct value."""
    distinct, inverse = np.unique(mus, return_inverse=True)
    return np.array([gaussian_epsilon(mu, delta) for mu in distinct.tolist()])[inverse]


def epsilon_range(mus: NDArray[np.float64], delta: float) -> dict[str, float]:
    """Return the smallest, the median and the largest ε over the devices with μ > 0; each is the ε of a device.

    >>> {name: round(epsilon, 2) for name, epsilon in epsilon_range(np.array([0.0, 0.2, 0.4, 0.5]), 1e-5).items()}
    {'minimum': 0.73, 'median': 1.55, 'maximum': 1.99}
    """
    found = np.quantile(mus[mus > 0], (0.0, 0.5, 1.0), method="inverted_cdf").tolist()
    return {name: gaussian_epsilon(mu, delta) for name, mu in zip(("minimum", "median", "maximum"), found, strict=True)}


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest μ for which μ-Gaussian-DP is (ε, δ)-DP, rounded down: never above the truth.

    >>> round(gaussian_mu(1.0, 1e-5), 6)
    0.268051
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.fraction(delta=delta)
    epsilon, delta = float(epsilon), float(delta)
    return _tradeoff.mu_down(epsilon, delta, *_tradeoff.mu_root(epsilon, delta))


def compose(mu: float, rounds: int) -> float:
    """Return the composition of I equal rounds, rounded up: the smallest double that is at least μ√I.

    >>> compose(0.5, 16)
    2.0

    Deviations: the paper accounts for one round only; I rounds of Gaussian noise are exactly μ√I-Gaussian-DP.
    """
    _validate.non_negative(mu=mu)
    _validate.positive_integer(rounds=rounds)
    return root_up(Fraction(float(mu)) ** 2 * int(rounds), near=float(mu) * math.sqrt(rounds))


def compose_all(mus: Iterable[float]) -> float:
    """Return the composition of different rounds, rounded up: the smallest double that is at least √Σμ_i².

    >>> compose_all([3.0, 4.0])
    5.0
    """
    each = [float(mu) for mu in mus]
    if not each or not min(each) > 0 or not max(each) < math.inf:
        raise ValueError("mus must contain the mu of at least one round, all positive and finite.")
    unit = math.ulp(min(each))  # all are whole multiples of it: sums of integers are faster than those of fractions
    return root_up(sum(int(mu / unit) ** 2 for mu in each) * Fraction(unit) ** 2, near=math.hypot(*each))


def root_up(square: Fraction, *, near: float | None = None) -> float:
    """Return the smallest double that is at least the root of an exact square; `near` is an approximation of it."""
    root = math.sqrt(float(square)) if near is None else near
    while root < math.inf and Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    while root > 0 and Fraction(below := math.nextafter(root, 0.0)) ** 2 >= square:
        root = below
    return root


def amplification(gain: ArrayLike, *, nmse: float, failure: float) -> NDArray[np.float64]:
    """Return f_k ≥ 1 such that with imperfect CSI no received amplitude exceeds f_k·θ, with probability at least 1 − β.

    Device k inverts its estimate ĥ_k, but the channel is h_k = ĥ_k + e_k with e_k ~ CN(0, s²), s² = NMSE · mean|ĥ|².
    Its received amplitude is θ|h_k/ĥ_k| ≤ θ(1 + |e_k|/|ĥ_k|), so that its sensitivity grows, too. As P(|e_k| > s t) =
    e^{−t²}, the union bound over N devices gives f_k = 1 + s√(ln(N/β))/|ĥ_k|. If errors are independent in each of R
    rounds, s is that of the round and the union runs over N·R. The modulus counts, not the real part: an adversary may
    keep the quadrature component that the receiver discards.

    Args:
        gain: |ĥ_k| ≥ 0 of the whole fleet, (N,), or |ĥ_k^i| of all rounds, (R, N); 0 gives infinity.
        nmse: E|e_k|² over the mean of |ĥ|²; 0 gives ones.
        failure: β, the probability that any f_k is exceeded.

    >>> amplification([0.2, 1.0], nmse=0.0, failure=1e-6)
    array([1., 1.])
    >>> amplification([0.2, 1.0], nmse=0.01, failure=1e-6).round(2)
    array([2.37, 1.27])

    Deviations: the paper assumes perfect CSI.
    """
    gains = _validate.vector(gain=gain, minimum=0.0, strict=False, table=True)
    _validate.non_negative(nmse=nmse)
    _validate.fraction(failure=failure)
    if nmse == 0:
        return np.broadcast_to(np.float64(1.0), gains.shape)
    spread = np.sqrt(nmse * np.mean(np.square(gains), axis=-1, keepdims=True))
    reach = math.sqrt(math.log(gains.size) - math.log(failure))
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.asarray(1.0 + spread * reach / gains)
    factor[gains == 0] = np.inf
    return factor


def _classic_factor(delta: float) -> float:
    """Return √(2 ln(1.25/δ)); the difference of logarithms does not overflow for a subnormal δ."""
    return math.sqrt(2 * (math.log(1.25) - math.log(delta)))
