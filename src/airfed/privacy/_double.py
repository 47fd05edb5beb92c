"""The Gaussian trade-off in double precision: quick, to some 13 digits, to either side of the truth.

Notation of this module: z₁,₂ = ε/μ ∓ μ/2; φ, Φ the normal density and distribution; M = (1 − Φ)/φ the Mills
ratio. The textbook difference Φ(−z₁) − e^ε Φ(−z₂) loses all digits at small μ. Instead

    log δ = −z₁²/2 − ½ ln 2π + ln(M(z₁) − M(z₂)),

and for a small μ the difference is μ times the mean of −M' over [z₁, z₂].
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erfcx, erfinv, ndtri

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_SQRT_HALF_PI = math.sqrt(math.pi / 2)
_SQRT_HALF = math.sqrt(0.5)
_SMALL_MU = 0.25  # below, M(z₁) − M(z₂) loses digits; six nodes then integrate −M' to 1e-17
_LARGE_Z = 4.0  # above, 1 − zM(z) loses z² in precision; and −M' varies on the scale z
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_QUADRATURE = tuple(zip((0.5 + 0.5 * _NODES).tolist(), (0.5 * _WEIGHTS).tolist(), strict=True))  # on [0, 1]
_SPLIT = 2.0**27 + 1  # Dekker's constant: halves the digits of a double
_FAR = 1e100  # a z₁ beyond has a log δ of −1e200 or less, and squares overflow soon
_STEP = 1e-13
_MAX_STEPS = 60  # four to eight are usual; `_decimal` goes on from wherever they end, or raises


def log_delta(mu: float, epsilon: float) -> float:
    """log δ(ε) for μ > 0, with an error of at most 1e-12 where δ ≥ 1e-200."""
    ratio = epsilon / mu
    z1 = ratio - mu / 2
    if 1 < mu < _FAR and ratio < _FAR:  # large numbers cancelled: give back what the division rounded away
        z1 += _division_remainder(epsilon, mu, ratio)
    return _log_delta(z1, mu)


def epsilon_root(mu: float, delta: float) -> float:
    """z₁ at the ε ≥ 0 with δ(ε) = delta, or at ε = 0 if there is none."""
    level = math.log(delta)
    # δ ≤ Φ(−z₁) puts the start to the right of the root. log δ is concave in z₁ at fixed μ (a convolution of
    # log-concave functions), so that Newton's steps come down to the root without passing it.
    z1 = max(-float(ndtri(delta)), -mu / 2)
    for _ in range(_MAX_STEPS):
        value = _log_delta(z1, mu)
        slope = -math.exp(math.log(mu) + math.log(_mills(z1 + mu)) + _log_density(z1) - value)
        before, z1 = z1, max(z1 + (level - value) / slope, -mu / 2)
        if abs(z1 - before) <= _STEP * max(1.0, abs(z1)):
            break
    return z1


def mu_root(epsilon: float, delta: float) -> tuple[float, float]:
    """The μ with δ(ε) = delta, and z₁ there."""
    level = math.log(delta)
    # Two bounds put the start to the left of the root: δ ≤ Φ(−z₁) and δ(ε) ≤ δ(0) = erf(μ/√8). log δ is
    # concave in log μ (its slope is one over the mean of −M' on [z₁, z₂], and −M' is convex and falling), so
    # that Newton's steps climb to the root without passing it.
    z1 = -float(ndtri(delta))
    z2 = math.hypot(z1, math.sqrt(2) * math.sqrt(epsilon))
    mu = 2 * (epsilon / (z1 + z2)) if z1 > 0 else z2 - z1
    floor = math.sqrt(8) * float(erfinv(delta))
    if floor > mu:
        mu, z1 = floor, epsilon / floor - floor / 2
    for _ in range(_MAX_STEPS):
        value = _log_delta(z1, mu)
        step = (level - value) * math.exp(value - _log_density(z1) - math.log(mu))
        # The new z₁ from the old one: ε/μ − μ/2 would cancel for a large ε.
        z1, mu = z1 * math.exp(-step) - mu * math.sinh(step), mu * math.exp(step)
        if abs(step) <= _STEP / max(1.0, abs(z1)):
            break
    return mu, z1


def _log_delta(z1: float, mu: float) -> float:
    """log δ in terms of z₁ and μ, with no cancellation."""
    if z1 > _FAR:
        return -math.inf
    if mu < _SMALL_MU * max(1.0, z1 / _LARGE_Z):
        mean = sum(weight * _mills_fall(z1 + node * mu) for node, weight in _QUADRATURE)
        return _log_density(z1) + math.log(mu) + math.log(mean)
    if z1 < 0:
        return math.log1p(-math.exp(_log_density(z1)) * (_mills(-z1) + _mills(z1 + mu)))
    return _log_density(z1) + math.log(_mills(z1) - _mills(z1 + mu))


def _log_density(z: float) -> float:
    return -z * z / 2 - _HALF_LOG_TWO_PI


def _mills(z: float) -> float:
    return _SQRT_HALF_PI * float(erfcx(z * _SQRT_HALF))


def _mills_fall(z: float) -> float:
    """−M'(z) = 1 − zM(z), which for a large z is M·K with M = 1/(z + K) and K = 1/(z + 2/(z + 3/(z + …)))."""
    if z < _LARGE_Z:
        return 1 - z * _mills(z)
    tail = z
    for k in range(10 + int(800 / (z * z)), 1, -1):
        tail = z + k / tail
    return 1 / (tail * z + 1)


def _division_remainder(x: float, y: float, quotient: float) -> float:
    """(x − y·quotient)/y, with the product exact (Dekker): what rounding took from x/y."""
    y_high = _SPLIT * y - (_SPLIT * y - y)
    q_high = _SPLIT * quotient - (_SPLIT * quotient - quotient)
    y_low, q_low = y - y_high, quotient - q_high
    product = y * quotient
    error = ((y_high * q_high - product) + y_high * q_low + y_low * q_high) + y_low * q_low
    return ((x - product) - error) / y
