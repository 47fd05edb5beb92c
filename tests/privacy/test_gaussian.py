"""Properties of the privacy formulas that need no oracle."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airfed import privacy
from airfed.privacy import (
    classic_epsilon,
    classic_limit,
    classic_mu,
    classic_validity,
    compose,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)
from airfed.privacy._tradeoff import log_delta


def powers_of_ten(low, high):
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


mus = powers_of_ten(-8, math.log10(50))
epsilons = st.just(0.0) | powers_of_ten(-12, 3)
deltas = powers_of_ten(-200, -0.01) | st.floats(0.001, 1, exclude_max=True)
rounds_counts = st.integers(1, 10**6)


# Lemma 1


@given(mu=mus, delta=deltas)
def test_classic_epsilon_is_the_printed_formula(mu, delta):
    assert classic_epsilon(mu, delta) == pytest.approx(mu * math.sqrt(2 * math.log(1.25 / delta)), rel=1e-14)


@given(epsilon=epsilons, delta=deltas)
def test_classic_mu_spends_the_budget_and_no_more(epsilon, delta):
    spent = classic_epsilon(classic_mu(epsilon, delta), delta)
    assert epsilon * (1 - 1e-15) <= spent <= epsilon


def test_classic_formula_survives_the_smallest_delta():
    assert classic_epsilon(1.0, 5e-324) == pytest.approx(38.5918, abs=1e-4)


# Source: paper-notes of [Yan23, Lemma 1], to the printed digits.
@pytest.mark.parametrize(("delta", "limit"), [(1e-3, 7.46), (1e-4, 7.99), (1e-5, 8.42), (1e-6, 8.78)])
def test_classic_limit_has_the_known_values(delta, limit):
    assert round(classic_limit(delta), 2) == limit


@given(delta=deltas)
def test_classic_and_exact_cross_at_the_limit(delta):
    limit = classic_limit(delta)
    assert limit > 3  # hence all of the proved range ε < 1 is safe
    assert log_delta(limit / classic_epsilon(1.0, delta), limit) == pytest.approx(math.log(delta), rel=1e-9)


@given(delta=deltas, share=st.floats(1e-6, 1 - 1e-9))
def test_classic_is_safe_below_the_limit(delta, share):
    epsilon = share * classic_limit(delta)
    assert gaussian_epsilon(classic_mu(epsilon, delta), delta) <= epsilon


@given(delta=deltas, excess=powers_of_ten(-9, 3))
def test_classic_is_unsafe_above_the_limit(delta, excess):
    mu = classic_limit(delta) * (1 + excess) / classic_epsilon(1.0, delta)
    assert gaussian_epsilon(mu, delta) > classic_epsilon(mu, delta)


def test_epsilon_50_by_lemma_1_is_exactly_127_point_7():
    assert round(gaussian_epsilon(classic_mu(50.0, 1e-3), 1e-3), 1) == 127.7


@given(delta=deltas)
def test_validity_changes_at_one_and_at_the_limit(delta):
    limit = classic_limit(delta)
    assert classic_validity(0.0, delta) == classic_validity(math.nextafter(1, 0), delta) == "proved"
    assert classic_validity(1.0, delta) == classic_validity(limit, delta) == "unproven"
    assert classic_validity(math.nextafter(limit, math.inf), delta) == "unsafe"


# The exact trade-off: all of these hold without a tolerance


@given(epsilon=epsilons, delta=deltas)
def test_the_allowed_mu_stays_within_the_budget(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert gaussian_epsilon(mu, delta) <= epsilon


@given(mu=mus, delta=deltas)
def test_the_reported_epsilon_covers_the_mu(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert gaussian_mu(epsilon, delta) >= mu


@given(mu=mus, epsilon=epsilons)
def test_the_reported_delta_covers_the_mu(mu, epsilon):
    delta = gaussian_delta(mu, epsilon)
    assert 0 < delta <= 1
    if delta < 1:
        assert gaussian_epsilon(mu, delta) <= epsilon
        assert gaussian_mu(epsilon, delta) >= mu


@given(mu=mus, epsilon=epsilons)
def test_delta_and_its_logarithm_agree(mu, epsilon):
    expected = log_delta(mu, epsilon)
    if expected > -700:
        assert math.log(gaussian_delta(mu, epsilon)) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    else:
        assert gaussian_delta(mu, epsilon) < 1e-300


@given(mu=mus, factor=st.floats(1, 10), delta=deltas)
def test_more_mu_or_less_delta_costs_epsilon(mu, factor, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_epsilon(mu * factor, delta) >= epsilon
    assert gaussian_epsilon(mu, delta / factor) >= epsilon


@given(epsilon=epsilons, factor=st.floats(1, 10), delta=deltas)
def test_a_larger_budget_allows_more_mu(epsilon, factor, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_mu(epsilon * factor, delta) >= mu
    assert gaussian_mu(epsilon, delta / factor) <= mu


@given(mu=mus, epsilon=epsilons, factor=st.floats(1, 10))
def test_delta_falls_in_epsilon_and_grows_in_mu(mu, epsilon, factor):
    delta = gaussian_delta(mu, epsilon)
    assert gaussian_delta(mu, epsilon * factor) <= delta
    assert gaussian_delta(mu * factor, epsilon) >= delta


@given(mu=mus)
def test_at_epsilon_zero_delta_is_the_total_variation(mu):
    assert gaussian_delta(mu, 0.0) == pytest.approx(math.erf(mu / math.sqrt(8)), rel=1e-14)
    at_zero = gaussian_delta(mu, 0.0)
    if at_zero < 1:
        assert gaussian_epsilon(mu, at_zero) == 0.0
        assert gaussian_epsilon(mu, math.nextafter(at_zero, 0)) >= 0.0
        assert gaussian_epsilon(mu, at_zero * (1 - 1e-15)) > 0.0


def check_budgets(count, seed):
    rng = np.random.default_rng(seed)
    for epsilon, delta in zip(10 ** rng.uniform(-4, 2.5, count), 10 ** rng.uniform(-12, -1, count), strict=True):
        assert epsilon * (1 - 1e-6) <= gaussian_epsilon(gaussian_mu(epsilon, delta), delta) <= epsilon


def test_500_budgets_are_spent_and_not_exceeded():
    check_budgets(500, seed=1)


@pytest.mark.slow
def test_10000_budgets_are_spent_and_not_exceeded():
    check_budgets(10_000, seed=2)


# Limits and extremes


def test_no_signal_costs_nothing():
    assert gaussian_delta(0.0, 0.0) == gaussian_delta(0, 3.0) == 0.0
    assert gaussian_epsilon(0.0, 1e-5) == classic_epsilon(0.0, 1e-5) == compose(0.0, 5) == 0.0


def test_delta_of_a_huge_epsilon_is_tiny_but_never_zero():
    assert gaussian_delta(1.0, 1e300) == gaussian_delta(1e-300, 1.0) == 5e-324
    assert log_delta(1.0, 100.0) == pytest.approx(-4960.2546, abs=1e-4)
    assert log_delta(1e-3, 1e6) == pytest.approx(-5e17, rel=1e-9)


@pytest.mark.parametrize("mu", [1e3, 1e4, 1e5, 1e6])
@pytest.mark.parametrize("delta", [1e-12, 1e-3, 0.5])
def test_a_very_large_mu_costs_half_its_square(mu, delta):
    assert gaussian_epsilon(mu, delta) == pytest.approx(mu * mu / 2, rel=20 / mu)


@settings(max_examples=300)
@given(
    mu=st.floats(5e-324, 1.7e308),
    epsilon=st.floats(0, 1.7e308),
    delta=st.floats(5e-324, 1, exclude_max=True),
)
def test_every_double_has_an_answer(mu, epsilon, delta):
    assert 0 < gaussian_delta(mu, epsilon) <= 1
    assert log_delta(mu, epsilon) <= 0
    assert gaussian_epsilon(mu, delta) >= 0  # infinite where ε ≈ μ²/2 is beyond the doubles
    assert gaussian_epsilon(gaussian_mu(epsilon, delta), delta) <= epsilon


def test_numpy_scalars_are_numbers():
    assert gaussian_epsilon(np.float64(1), np.float64(1e-5)) == gaussian_epsilon(1, 1e-5)
    assert type(gaussian_mu(np.float64(1), np.float64(1e-5))) is float
    assert compose(np.float32(0.5), np.int64(4)) == 1.0


# Composition


@given(mu=mus, rounds=rounds_counts)
def test_compose_is_the_nearest_double_on_the_safe_side(mu, rounds):
    square, total = Fraction(mu) ** 2, compose(mu, rounds)
    assert Fraction(math.nextafter(total, 0)) ** 2 < square * rounds <= Fraction(total) ** 2
    assert compose(mu, 1) == mu


def test_composition_beyond_the_doubles_is_infinite():
    assert compose(1.7e308, 4) == math.inf


# Arguments


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (classic_epsilon, (-1.0, 1e-3), r"mu must be non-negative and finite, got -1\.0"),
        (classic_epsilon, (1.0, 0.0), r"delta must be strictly between 0 and 1, got 0\.0"),
        (classic_mu, (-2.0, 1e-3), r"epsilon must be non-negative and finite, got -2\.0"),
        (classic_mu, (1.0, 1.0), r"delta must be strictly between 0 and 1, got 1\.0"),
        (classic_limit, (1.5,), r"delta must be strictly between 0 and 1, got 1\.5"),
        (classic_validity, (math.nan, 1e-3), "epsilon must be a number, got NaN"),
        (classic_validity, (1.0, -1e-3), r"delta must be strictly between 0 and 1, got -0\.001"),
        (gaussian_delta, (math.inf, 1.0), "mu must be non-negative and finite, got inf"),
        (gaussian_delta, (1.0, -1.0), r"epsilon must be non-negative and finite, got -1\.0"),
        (gaussian_epsilon, (math.nan, 1e-5), "mu must be a number, got NaN"),
        (gaussian_epsilon, (1.0, 1.0), r"delta must be strictly between 0 and 1, got 1\.0"),
        (gaussian_mu, (True, 1e-5), "epsilon must be a number, got True"),
        (gaussian_mu, (1.0, 0), "delta must be strictly between 0 and 1, got 0"),
        (compose, (1.0, 0), "rounds must be at least 1, got 0"),
        (compose, (-1.0, 3), r"mu must be non-negative and finite, got -1\.0"),
        (compose, (1.0, 2.0), r"rounds must be a whole number, got 2\.0"),
    ],
)
def test_a_bad_value_is_named(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_the_public_names_are_sorted_and_there():
    assert privacy.__all__ == sorted(privacy.__all__)
    assert all(hasattr(privacy, name) for name in privacy.__all__)
