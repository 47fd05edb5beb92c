"""The Gaussian trade-off: roots in double precision, whose last digit is decided in 60-digit arithmetic.

Notation of this module: m = μ, e = ε, z₁,₂ = ε/μ ∓ μ/2; φ, Φ are the normal density and distribution; M = (1 − Φ)/φ is
the Mills ratio. Since e^ε φ(z₂) = φ(z₁),

    δ(ε) = φ(z₁)·(M(z₁) − M(z₂)),   ∂δ/∂ε = −φ(z₁)·M(z₂),   ∂δ/∂μ = φ(z₁).

Double precision is fast and accurate to about 13 digits, but it cannot guarantee that a root is on the safe side: near
ε = 0 the error of δ, divided by its slope, exceeds ε itself. With 60 digits the relative error of δ is below `_SLACK`,
so the root can be rounded up (ε) or down (μ) with certainty. An evaluation takes about 0.1 ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from scipy.special import erfcx, erfinv, ndtri

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_SQRT_HALF_PI = math.sqrt(math.pi / 2)
_SQRT_HALF = math.sqrt(0.5)
_SMALL_MU = 0.25  # below, M(z₁) − M(z₂) loses digits; six nodes then integrate −M' to 1e-17
_LARGE_Z = 4.0  # above, 1 − zM(z) loses z² in precision; and −M' varies on the scale z
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_QUADRATURE = tuple(zip((0.5 + 0.5 * _NODES).tolist(), (0.5 * _WEIGHTS).tolist(), strict=True))  # on [0, 1]
_FAR = 1e100  # a z₁ beyond has a log δ of −1e200 or less, and squares overflow soon
_STEP = 1e-13
_MAX_STEPS = 60  # four to eight are usual; the 60-digit search continues from the last step, or raises

_DIGITS = 60
_EXACT_SQRT_HALF_PI = Decimal("1.2533141373155002512078826424055226265034933703049691583149617881711468")
_EXACT_SQRT_TWO_PI = Decimal("2.5066282746310005024157652848110452530069867406099383166299235763422937")
_SLACK = Decimal("1e-41")  # relative error of δ is at most this (measured: 1e-44)
_PAD = Decimal("1e-40")  # bound on the relative error of the root after the last step
_MILLS_SWITCH = 5  # series below, continued fraction above: both take about 60 µs there
_TAYLOR_SWITCH = Decimal("1e-4")  # largest μ/2 for which ten terms of the Taylor series of M give 40 digits
_TAYLOR_TERMS = 10


def log_delta(mu: float, epsilon: float) -> float:
    """Return log δ(ε) for μ > 0, with an error of at most 1e-12 where δ ≥ 1e-200."""
    z1 = epsilon / mu - mu / 2
    if 1 < mu < _FAR:  # large numbers may cancel, which loses more than the last digit
        z1 = float(Fraction(epsilon) / Fraction(mu) - Fraction(mu) / 2)
    return _log_delta(z1, mu)


def epsilon_root(mu: float, delta: float) -> float:
    """Return z₁ at the ε ≥ 0 with δ(ε) = delta, or at ε = 0 if there is none."""
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
    """Return the μ with δ(ε) = delta, and z₁ there."""
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
    """Return log δ in terms of z₁ and μ, without cancellation."""
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
    """Return −M'(z) = 1 − zM(z); for a large z it is M·K with M = 1/(z + K) and K = 1/(z + 2/(z + 3/(z + …)))."""
    if z < _LARGE_Z:
        return 1 - z * _mills(z)
    tail = z
    for k in range(10 + int(800 / (z * z)), 1, -1):
        tail = z + k / tail
    return 1 / (tail * z + 1)


class _Tradeoff(NamedTuple):
    """δ at one (μ, ε), and the terms of its derivatives."""

    delta: Decimal
    density: Decimal  # φ(z₁)
    mills: Decimal  # M(z₂)
    z1: Decimal
    z2: Decimal


def delta_up(mu: float, epsilon: float) -> float:
    """Return the smallest double that is at least δ(ε), for μ > 0."""
    with localcontext(_context(mu)):
        above = _round_up(_tradeoff(Decimal(mu), Decimal(epsilon)).delta * (1 + _SLACK))
    return min(max(above, math.ulp(0.0)), 1.0)  # 0 < δ < 1, despite underflow


def epsilon_up(mu: float, delta: float, z1: float) -> float:
    """Return the smallest double ε ≥ 0 with δ(ε) ≤ delta, from a good initial z₁."""
    with localcontext(_context(mu)):
        m, target = Decimal(mu), Decimal(delta) * (1 - _SLACK)

        def step(e: Decimal) -> tuple[Decimal, Decimal]:
            t = _tradeoff(m, e)
            gap = t.delta / t.density - target / t.density
            # δ' = −φM₂ and δ'' = φ(1/m − M₂), both over φ
            return _halley(gap, -t.mills, 1 / m - t.mills), _leftover(t.z1, 1 / m)

        root = _refine(step, m * (Decimal(z1) + m / 2))
        return _round_up(root * (1 + _PAD))


def mu_down(epsilon: float, delta: float, mu: float, z1: float) -> float:
    """Return the largest double μ with δ(ε) ≤ delta, from good initial values of the root and of z₁ there."""
    with localcontext(_context(math.sqrt(epsilon))):
        e, target = Decimal(epsilon), Decimal(delta) * (1 - _SLACK)

        def step(m: Decimal) -> tuple[Decimal, Decimal]:
            t = _tradeoff(m, e)
            gap = t.delta / t.density - target / t.density
            # δ' = φ and δ'' = φ·z₁z₂/m, both over φ
            return _halley(gap, Decimal(1), t.z1 * t.z2 / m), _leftover(t.z1, t.z2 / m)

        guess = Decimal(mu)
        if mu > 1:  # the rounding of a large μ would move z₁ far: solve z₁ = ε/μ − μ/2 for μ instead
            guess = (Decimal(z1) ** 2 + 2 * e).sqrt() - Decimal(z1)
        return -_round_up(_refine(step, guess) * (_PAD - 1))


def _context(mu: float) -> Context:
    """Return a context with enough digits for z₁, which is a difference of two numbers of the size of μ."""
    extra = max(0, math.ceil(math.log10(mu))) if mu > 0 else 0
    return Context(prec=_DIGITS + extra, Emax=MAX_EMAX, Emin=MIN_EMIN)


def _tradeoff(m: Decimal, e: Decimal) -> _Tradeoff:
    """Return δ and the terms of its derivatives at μ = m > 0, ε = e ≥ 0."""
    a, b = e / m, m / 2
    z1, z2 = a - b, a + b
    density = (-z1 * z1 / 2).exp() / _EXACT_SQRT_TWO_PI
    if b < _TAYLOR_SWITCH:
        drop, mills = _taylor(a, b)
        delta = density * drop
    else:
        mills = _exact_mills(z2)
        delta = density * (_exact_mills(z1) - mills) if z1 > 0 else 1 - density * (_exact_mills(-z1) + mills)
    return _Tradeoff(delta, density, mills, z1, z2)


def _exact_mills(z: Decimal) -> Decimal:
    """Return M(z) for z ≥ 0, to at least 45 digits."""
    if z < _MILLS_SWITCH:  # M(z) = √(π/2)·exp(z²/2) − Σ z^(2n+1)/(2n+1)!!; loses six digits at z = 5
        square = z * z
        term = total = z
        odd = 1
        while True:
            odd += 2
            term = term * square / odd
            if total + term == total:
                return _EXACT_SQRT_HALF_PI * (square / 2).exp() - total
            total += term
    tail = z  # Laplace: M(z) = 1/(z + 1/(z + 2/(z + 3/(z + …))))
    for k in range(20 + int(5000 / (z * z)), 0, -1):
        tail = z + k / tail
    return 1 / tail


def _taylor(a: Decimal, b: Decimal) -> tuple[Decimal, Decimal]:
    """Return M(a − b) − M(a + b) and M(a + b) for a small b, by M' = zM − 1 and M⁽ᵏ⁺¹⁾ = zM⁽ᵏ⁾ + kM⁽ᵏ⁻¹⁾."""
    before = _exact_mills(a)
    derivative = a * before - 1
    power = b  # b^k / k!
    drop, above = Decimal(0), before
    for k in range(1, _TAYLOR_TERMS + 1):
        above += derivative * power
        if k % 2:
            drop -= 2 * derivative * power
        before, derivative = derivative, a * derivative + k * before
        power = power * b / (k + 1)
    return drop, above


def _halley(value: Decimal, slope: Decimal, curvature: Decimal) -> Decimal:
    """Return Halley's step to the root of a function with these derivatives."""
    return -value / (slope - value * curvature / (2 * slope))


def _leftover(z1: Decimal, rate: Decimal) -> Decimal:
    """Return c such that a step s leaves an error of about c·s³: δ varies with z₁ on the scale 1/(1 + |z₁|)."""
    return (1 + z1 * z1) * rate * rate


def _refine(step: Callable[[Decimal], tuple[Decimal, Decimal]], guess: Decimal) -> Decimal:
    """Return the root to a relative error below `_PAD`; zero if the steps lead below zero."""
    x = max(guess, Decimal(0))
    for _ in range(_MAX_STEPS):
        move, cubic = step(x)
        if x == 0 and move <= 0:
            return x
        x = max(x + move, Decimal(0))
        if abs(move) ** 3 * cubic < x * _PAD / 100:
            return x
    raise ArithmeticError(f"The root search from {guess:.6e} did not converge. Please report these arguments.")


def _round_up(x: Decimal) -> float:
    nearest = float(x)
    return nearest if Decimal(nearest) >= x else math.nextafter(nearest, math.inf)
