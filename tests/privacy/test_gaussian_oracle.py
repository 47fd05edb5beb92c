"""The exact functions against mpmath, at 100 digits and more.

A directed rounding is checked without a root finder: the returned double is on the safe side of the truth,
and the next double towards the truth is on the other side. The truth then lies between two neighbours,
which is a relative error of at most 2.3e-16 for every normal result.
"""

import math
from decimal import Decimal, localcontext

import mpmath
import pytest
from mpmath import mp, mpf

from airfed.privacy import (
    _tradeoff,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)

# 2e-4, 0.25 and z = 4, 5 are where the formulas switch.
MUS = [1e-8, 3e-7, 1e-5, 1.999e-4, 2.001e-4, 3e-3, 0.05, 0.2499, 0.2501, 0.7, 1.0, 2.5, 6.0, 17.0, 50.0]
Z1S = [-8.0, -3.0, -0.3, 0.0, 1e-6, 0.01, 0.5, 1.0, 2.0, 3.9, 4.1, 4.95, 5.05, 7.0, 15.0, 29.5]
TINY = [0.0, 5e-324, 1e-30, 1e-14]
DELTAS = [1e-200, 3e-120, 1e-50, 1e-20, 1e-12, 1e-8, 1e-5, 1e-3, 0.05, 0.3, 0.5, 0.9, 1 - 1e-9, 1 - 2**-53]
EPSILONS = [0.0, 1e-12, 1e-8, 1e-5, 1e-3, 0.03, 0.3, 1.0, 4.0, 10.0, 60.0, 900.0, 2700.0]


def exact_delta(mu, epsilon):
    """Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), with digits to spare for the cancellation at small μ."""
    with mp.workdps(100 + 2 * max(0, -math.floor(math.log10(mu)))):
        a, b = mpf(epsilon) / mpf(mu), mpf(mu) / 2
        root2 = mpmath.sqrt(2)
        return (mpmath.erfc((a - b) / root2) - mpmath.exp(epsilon) * mpmath.erfc((a + b) / root2)) / 2


def delta_points():
    points = [(mu, mu * (mu / 2 + z1)) for mu in MUS for z1 in Z1S if mu / 2 + z1 >= 0]
    points += [(mu, epsilon * mu) for mu in MUS for epsilon in TINY]
    assert len(points) >= 250
    return points


def epsilon_points():
    points = [(mu, delta) for mu in MUS for delta in DELTAS]
    for mu in MUS:  # δ just below δ(0): ε is tiny, and double precision would know none of its digits
        zero = float(exact_delta(mu, 0))
        points += [(mu, zero * (1 - 10.0**-k)) for k in (1, 3, 6, 10, 14, 15.5) if zero * (1 - 10.0**-k) < 1]
    assert len(points) >= 250
    return points


@pytest.mark.parametrize(("mu", "epsilon"), [(0.3, 0.0), (0.3, 0.5), (2.0, 0.1), (2.0, 5.0), (6.0, 30.0)])
def test_oracle_is_the_hockey_stick_divergence_of_the_two_normals(mu, epsilon):
    with mp.workdps(40):
        start = mpf(epsilon) / mpf(mu) + mpf(mu) / 2  # from here on p ≥ e^ε q
        integral = mpmath.quad(
            lambda x: mpmath.npdf(x, mu, 1) - mpmath.exp(epsilon) * mpmath.npdf(x, 0, 1),
            mpmath.linspace(start, start + mu + 40, 40),
        )
        assert abs(integral / exact_delta(mu, epsilon) - 1) < 1e-20


def test_delta_is_the_truth_rounded_up():
    for mu, epsilon in delta_points():
        truth, delta = exact_delta(mu, epsilon), gaussian_delta(mu, epsilon)
        assert math.nextafter(delta, 0) < truth <= delta, (mu, epsilon)
        assert delta / truth - 1 <= 1e-12, (mu, epsilon)


def test_the_decimal_evaluation_keeps_its_promise():
    for mu, epsilon in delta_points():
        with localcontext(_tradeoff._context(mu)):
            delta = _tradeoff._tradeoff(Decimal(mu), Decimal(epsilon)).delta
        with mp.workdps(100):
            error = abs(mpf(str(delta)) / exact_delta(mu, epsilon) - 1)
        assert error < mpf(str(_tradeoff._SLACK)), (mu, epsilon)


@pytest.mark.parametrize("z", [-0.1, 0.0, 1.0, 3.99, 4.01, 5.5, 10.0, 38.0, 1e3, 1e8])
def test_the_slope_of_the_mills_ratio_does_not_cancel(z):
    with mp.workdps(60):
        mills = mpmath.sqrt(mpmath.pi / 2) * mpmath.exp(mpf(z) ** 2 / 2) * mpmath.erfc(z / mpmath.sqrt(2))
        assert abs(_tradeoff._mills_fall(z) / (1 - z * mills) - 1) < 1e-14


def test_log_delta_has_twelve_digits():
    counted = 0
    for mu, epsilon in delta_points():
        truth = exact_delta(mu, epsilon)
        counted += truth >= 1e-200
        # Relative to the exponent where δ < 1e-200.
        tolerance = 1e-12 * max(1, float(-mpmath.log(truth)) / 460)
        assert abs(_tradeoff.log_delta(mu, epsilon) - mpmath.log(truth)) <= tolerance, (mu, epsilon)
    assert counted >= 250


@pytest.mark.parametrize("mu", [1234.5678, 987654.321])
def test_delta_survives_a_very_large_mu(mu):
    for z1 in (-8.0, -1.0, 0.0, 3.0, 25.0):
        epsilon = mu * (mu / 2 + z1)
        truth, delta = exact_delta(mu, epsilon), gaussian_delta(mu, epsilon)
        assert math.nextafter(delta, 0) < truth <= delta
        assert abs(_tradeoff.log_delta(mu, epsilon) - mpmath.log(truth)) <= 1e-12


def test_epsilon_is_never_below_the_truth_and_less_than_one_double_above():
    positive = 0
    for mu, delta in epsilon_points():
        epsilon = gaussian_epsilon(mu, delta)
        assert exact_delta(mu, epsilon) <= delta, (mu, delta)
        if epsilon > 0:
            positive += 1
            below = math.nextafter(epsilon, 0)
            assert exact_delta(mu, below) > delta, (mu, delta)
            assert epsilon - below <= 1e-13 * below, (mu, delta)
    assert positive >= 150


@pytest.mark.parametrize("mu", [1e-300, 1e-30, 1e3, 1e6, 1e12])
@pytest.mark.parametrize("share", [1e-9, 0.3, 0.999])
def test_epsilon_is_tight_far_outside_the_usual_range(mu, share):
    delta = share * min(float(exact_delta(mu, 0)), 0.999)
    epsilon = gaussian_epsilon(mu, delta)
    assert exact_delta(mu, epsilon) <= delta < exact_delta(mu, math.nextafter(epsilon, 0))


def test_mu_is_never_above_the_truth_and_less_than_one_double_below():
    points = [(epsilon, delta) for epsilon in EPSILONS for delta in DELTAS]
    assert len(points) >= 150
    for epsilon, delta in points:
        mu = gaussian_mu(epsilon, delta)
        above = math.nextafter(mu, math.inf)
        assert exact_delta(mu, epsilon) <= delta < exact_delta(above, epsilon), (epsilon, delta)
        assert above - mu <= 1e-12 * mu, (epsilon, delta)


@pytest.mark.parametrize("epsilon", [5e-324, 1e-100, 1e9, 1e20, 1e300])
@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.7])
def test_mu_is_tight_far_outside_the_usual_range(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    with mp.workdps(500):  # the oracle works at 100 digits: give it z₁ without cancellation
        for candidate, safe in ((mu, True), (math.nextafter(mu, math.inf), False)):
            m = mpf(candidate)
            z1, z2 = mpf(epsilon) / m - m / 2, mpf(epsilon) / m + m / 2
            # e^ε Φ(−z₂) = φ(z₁)·M(z₂), and 1/(z + 1/z) < M(z) < 1/z bounds it where ε is huge
            if epsilon < 1e5:
                assert (exact_delta(candidate, epsilon) <= delta) == safe
            else:
                tail = mpmath.npdf(z1) / mpf(z2)
                upper, lower = mpmath.ncdf(-z1) - tail * z2**2 / (z2**2 + 1), mpmath.ncdf(-z1) - tail
                assert (upper <= delta) if safe else (lower > delta)
