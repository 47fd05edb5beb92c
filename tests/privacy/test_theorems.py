"""The two theorems of docs/pitfalls.md: precoding over rounds, and random participation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize
from scipy.special import ndtr

from airfed.privacy import gaussian_epsilon

# -- precoding over rounds


def sensitivity_of_precoding(matrix, *, rng, steps=20_000):
    """Return max tr(MΓ) over Γ ⪰ 0 with diagonal ≤ 1, and the dual variables, by ascent over Gram matrices."""
    size = len(matrix)
    rows = rng.normal(size=(size, size))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for _ in range(steps):
        before = rows.copy()
        for index in range(size):  # the best row for given others
            pull = matrix[index] @ rows - matrix[index, index] * rows[index]
            rows[index] = pull / np.linalg.norm(pull) if np.linalg.norm(pull) > 1e-300 else rows[index]
        if np.abs(rows - before).max() < 1e-14:
            break
    gram = rows @ rows.T
    return float(np.sum(matrix * gram)), np.diag(matrix @ gram).copy()


def precodings(rng, size):
    """Yield lower-triangular C: random ones, and the square root of prefix sums that DP-FTRL uses."""
    for _ in range(3):
        yield np.tril(rng.normal(size=(size, size))) + 2 * np.eye(size)
    root = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, size))])
    yield np.array([[root[i - j] if i >= j else 0.0 for j in range(size)] for i in range(size)])


@pytest.mark.parametrize("rounds", [2, 3, 5, 8])
def test_nothing_beats_a_diagonal_precoding(rounds):
    rng = np.random.default_rng(rounds)
    for code in precodings(rng, rounds):
        gram = code.T @ code
        largest, dual = sensitivity_of_precoding(gram, rng=rng)
        # A certificate: the dual variables are feasible, and both values agree.
        assert np.linalg.eigvalsh(np.diag(dual) - gram).min() > -1e-7 * dual.max()
        assert dual.sum() == pytest.approx(largest, rel=1e-12)
        for wanted in (np.eye(rounds), np.tril(np.ones((rounds, rounds))), rng.normal(size=(rounds, rounds))):
            noise = np.trace(wanted @ np.linalg.inv(gram) @ wanted.T)
            assert np.trace(wanted @ np.diag(1 / dual) @ wanted.T) < noise * (1 - 1e-4)


def test_the_gain_over_the_square_root_of_prefix_sums():
    """The number of docs/pitfalls.md."""
    rng, sums = np.random.default_rng(0), np.tril(np.ones((8, 8)))
    *_, code = precodings(rng, 8)
    gram = code.T @ code
    _, dual = sensitivity_of_precoding(gram, rng=rng)
    ratio = np.trace(sums @ np.diag(1 / dual) @ sums.T) / np.trace(sums @ np.linalg.inv(gram) @ sums.T)
    assert ratio == pytest.approx(0.54, abs=0.005)


def test_the_ascent_agrees_with_a_solver_of_the_dual():
    """Minimise Σ d_t subject to Diag(d) ⪰ M, as a sum of squares: d = diag of a matrix above M."""
    rng = np.random.default_rng(0)
    for code in precodings(rng, 3):
        gram = code.T @ code
        largest, _ = sensitivity_of_precoding(gram, rng=rng)
        found = minimize(
            np.sum,
            np.full(3, 2 * np.trace(gram)),
            constraints={"type": "ineq", "fun": lambda d, gram=gram: np.linalg.eigvalsh(np.diag(d) - gram)[0]},
            method="SLSQP",
            options={"maxiter": 1000, "ftol": 1e-13},
        )
        assert found.fun == pytest.approx(largest, rel=1e-5)


def test_no_updates_exceed_the_sensitivity():
    rng = np.random.default_rng(1)
    for code in precodings(rng, 4):
        largest, _ = sensitivity_of_precoding(code.T @ code, rng=rng)
        updates = rng.normal(size=(20_000, 4, 4))
        updates /= np.linalg.norm(updates, axis=2, keepdims=True)
        assert np.square(code @ updates).sum(axis=(1, 2)).max() <= largest * (1 + 1e-12)


# -- random participation at equal noise on the mean: with probability q, and amplitude a/q


def gaussian_delta(mu, epsilon):
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def poisson_delta(mu, q, epsilon):
    """Return H_{e^ε}(P₁‖P₀) of one round, P₁ = (1 − q)N(0, 1) + qN(μ/q, 1), P₀ = N(0, 1), in closed form."""
    alpha = math.exp(epsilon)
    above = (alpha - 1 + q) / q  # where L > α, the ratio of N(μ/q, 1) to N(0, 1) exceeds this
    return q * gaussian_delta(mu / q, math.log(above)) if above > 0 else math.nan


def crossing(mu, q):
    """Return ε*, where random and full participation have the same δ in one round."""
    return brentq(lambda e: poisson_delta(mu, q, e) - gaussian_delta(mu, e), 1e-12, 40 * mu, xtol=1e-15)


@given(st.floats(0.02, 2.0), st.floats(0.05, 0.9))
def test_in_one_round_random_participation_is_worse_beyond_one_crossing(mu, q):
    best = crossing(mu, q)
    for factor in (1.001, 1.2, 2.0, 4.0):
        full = gaussian_delta(mu, factor * best)
        if full > 1e-13:  # cancellation below
            assert poisson_delta(mu, q, factor * best) > full
    for factor in (0.001, 0.5, 0.99):
        assert poisson_delta(mu, q, factor * best) < gaussian_delta(mu, factor * best)


@given(st.floats(0.01, 2.0), st.floats(0.02, 1.0), st.integers(2, 12))
def test_no_renyi_divergence_of_an_integer_order_falls(mu, q, order):
    """E[Lⁿ] = Σ_j C(n, j) q^j (1 − q)^(n − j) exp(j(j − 1)μ²/(2q²)) against exp(n(n − 1)μ²/2)."""
    logs = [
        math.log(math.comb(order, j))
        + j * math.log(q)
        + ((order - j) * math.log1p(-q) if j < order else 0.0)
        + j * (j - 1) * (mu / q) ** 2 / 2
        for j in range(order + 1)
        if q < 1 or j == order
    ]
    top = max(logs)
    moment = top + math.log(math.fsum(math.exp(each - top) for each in logs))
    assert moment >= order * (order - 1) * mu**2 / 2 * (1 - 1e-12) - 1e-12


@pytest.mark.parametrize(("q", "expected"), [(0.1, 2.69), (0.25, 2.14), (0.5, 2.04)])
def test_random_participation_costs_privacy_over_a_training(q, expected):
    """The numbers of docs/pitfalls.md: 56 rounds with ε = 2 at δ = 1e-5, and an exact accountant."""
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    rounds, delta, mu = 56, 1e-5, 0.067023
    assert gaussian_epsilon(mu * math.sqrt(rounds), delta) == pytest.approx(2.0, abs=1e-3)
    event = accounting.PoissonSampledDpEvent(q, accounting.GaussianDpEvent(q / mu))
    accountant = PLDAccountant(
        accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4
    ).compose(event, rounds)
    found = accountant.get_epsilon(delta)
    assert found == pytest.approx(expected, abs=0.005)


def test_the_counterexample_at_a_large_delta():
    """The numbers of docs/pitfalls.md."""
    best = crossing(0.067023, 0.1)
    assert (best, gaussian_delta(0.067023, best)) == pytest.approx((0.00416, 0.0248), rel=0.01)
