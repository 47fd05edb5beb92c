"""The last digit of the Gaussian trade-off, decided in 60-digit arithmetic.

Notation of this module: m = μ, e = ε, z₁,₂ = e/m ∓ m/2, φ the normal density, Φ its distribution,
M = (1 − Φ)/φ the Mills ratio. Since e^ε φ(z₂) = φ(z₁),

    δ(ε) = φ(z₁)·(M(z₁) − M(z₂)),   ∂δ/∂ε = −φ(z₁)·M(z₂),   ∂δ/∂μ = φ(z₁).

Double precision cannot end a root search on the safe side: near ε = 0 the error of δ, divided by its slope,
exceeds ε itself. Here δ has a relative error below `_SLACK`, so that rounding the root up (ε) or down (μ) is
a decision and not a hope. An evaluation takes about 0.1 ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from typing import NamedTuple

_DIGITS = 60
_SQRT_HALF_PI = Decimal("1.2533141373155002512078826424055226265034933703049691583149617881711468")
_SQRT_TWO_PI = Decimal("2.5066282746310005024157652848110452530069867406099383166299235763422937")
_SLACK = Decimal("1e-41")  # relative error of δ is at most this (measured: 1e-44)
_PAD = Decimal("1e-40")  # covers what the last step of the root search leaves, relative to the root
_MILLS_SWITCH = 5  # series below, continued fraction above: both take about 60 µs there
_TAYLOR_SWITCH = Decimal("1e-4")  # largest μ/2 for which ten terms of the Taylor series of M give 40 digits
_TAYLOR_TERMS = 10
_MAX_STEPS = 60


class Tradeoff(NamedTuple):
    """δ at one (μ, ε), with what its derivatives need."""

    delta: Decimal
    density: Decimal  # φ(z₁)
    mills: Decimal  # M(z₂)
    z1: Decimal
    z2: Decimal


def delta_up(mu: float, epsilon: float) -> float:
    """Smallest double that is at least δ(ε), for μ > 0."""
    with localcontext(_context(mu)):
        exact = _tradeoff(Decimal(mu), Decimal(epsilon)).delta
        above = _round_up(exact * (1 + _SLACK))
    return min(max(above, math.ulp(0.0)), 1.0)  # 0 < δ < 1, whatever underflowed


def epsilon_up(mu: float, delta: float, z1: float) -> float:
    """Smallest double ε ≥ 0 with δ(ε) ≤ delta, from a good guess of z₁ at the root."""
    with localcontext(_context(mu)):
        m = Decimal(mu)
        target = Decimal(delta) * (1 - _SLACK)

        def step(e: Decimal) -> tuple[Decimal, Decimal]:
            t = _tradeoff(m, e)
            gap = t.delta / t.density - target / t.density
            # δ' = −φM₂ and δ'' = φ(1/m − M₂), both over φ
            return _halley(gap, -t.mills, 1 / m - t.mills), _leftover(t.z1, 1 / m)

        root = _refine(step, m * (Decimal(z1) + m / 2))
        return _round_up(root * (1 + _PAD))


def mu_down(epsilon: float, delta: float, mu: float, z1: float) -> float:
    """Largest double μ with δ(ε) ≤ delta, from good guesses of the root and of z₁ there."""
    with localcontext(_context(math.sqrt(epsilon))):
        e = Decimal(epsilon)
        target = Decimal(delta) * (1 - _SLACK)

        def step(m: Decimal) -> tuple[Decimal, Decimal]:
            t = _tradeoff(m, e)
            gap = t.delta / t.density - target / t.density
            # δ' = φ and δ'' = φ·z₁z₂/m, both over φ
            return _halley(gap, Decimal(1), t.z1 * t.z2 / m), _leftover(t.z1, t.z2 / m)

        guess = Decimal(mu)
        if mu > 1:  # the rounding of a large μ would move z₁ far: solve z₁ = ε/μ − μ/2 for μ instead
            guess = (Decimal(z1) ** 2 + 2 * e).sqrt() - Decimal(z1)
        return _round_down(_refine(step, guess) * (1 - _PAD))


def _context(mu: float) -> Context:
    """Enough digits for z₁, which is a difference of two numbers of the size of μ."""
    extra = max(0, math.ceil(math.log10(mu))) if mu > 0 else 0
    return Context(prec=_DIGITS + extra, Emax=MAX_EMAX, Emin=MIN_EMIN)


def _tradeoff(m: Decimal, e: Decimal) -> Tradeoff:
    """δ and its ingredients at μ = m > 0, ε = e ≥ 0."""
    a, b = e / m, m / 2
    z1, z2 = a - b, a + b
    density = (-z1 * z1 / 2).exp() / _SQRT_TWO_PI
    if b < _TAYLOR_SWITCH:
        drop, mills = _taylor(a, b)
        delta = density * drop
    else:
        mills = _mills(z2)
        delta = density * (_mills(z1) - mills) if z1 > 0 else 1 - density * (_mills(-z1) + mills)
    return Tradeoff(delta, density, mills, z1, z2)


def _mills(z: Decimal) -> Decimal:
    """M(z) for z ≥ 0, to at least 45 digits."""
    if z < _MILLS_SWITCH:  # M(z) = √(π/2)·exp(z²/2) − Σ z^(2n+1)/(2n+1)!!; loses six digits at z = 5
        square = z * z
        term = total = z
        odd = 1
        while True:
            odd += 2
            term = term * square / odd
            if total + term == total:
                return _SQRT_HALF_PI * (square / 2).exp() - total
            total += term
    tail = z  # Laplace: M(z) = 1/(z + 1/(z + 2/(z + 3/(z + …))))
    for k in range(20 + int(5000 / (z * z)), 0, -1):
        tail = z + k / tail
    return 1 / tail


def _taylor(a: Decimal, b: Decimal) -> tuple[Decimal, Decimal]:
    """M(a − b) − M(a + b) and M(a + b) for a small b, from M' = zM − 1 and M⁽ᵏ⁺¹⁾ = zM⁽ᵏ⁾ + kM⁽ᵏ⁻¹⁾."""
    before = _mills(a)
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
    """Halley's step to the root of a function with these derivatives."""
    return -value / (slope - value * curvature / (2 * slope))


def _leftover(z1: Decimal, rate: Decimal) -> Decimal:
    """c such that a step s leaves an error of about c·s³: δ varies with z₁ on the scale 1/(1 + |z₁|)."""
    return (1 + z1 * z1) * rate * rate


def _refine(step: Callable[[Decimal], tuple[Decimal, Decimal]], guess: Decimal) -> Decimal:
    """Root, to a relative error below `_PAD`; zero when the steps lead below zero."""
    x = max(guess, Decimal(0))
    for _ in range(_MAX_STEPS):
        move, cubic = step(x)
        if x == 0 and move <= 0:
            return x
        x = max(x + move, Decimal(0))
        if abs(move) ** 3 * cubic < x * _PAD / 100:
            return x
    raise ArithmeticError(f"No convergence in {_MAX_STEPS} steps from {guess:.6e}: please report these arguments.")


def _round_up(x: Decimal) -> float:
    nearest = float(x)
    return nearest if Decimal(nearest) >= x else math.nextafter(nearest, math.inf)


def _round_down(x: Decimal) -> float:
    nearest = float(x)
    return nearest if Decimal(nearest) <= x else math.nextafter(nearest, -math.inf)
