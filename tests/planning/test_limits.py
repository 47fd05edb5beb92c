"""The three limits on θ."""

import numpy as np
import pytest

from airfed import Budget, Fleet, InfeasibleError, Problem
from airfed.planning import limits
from airfed.privacy import classic_epsilon, compose, gaussian_epsilon


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-3, 0.3])
@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 0.7, 1.0, 8.0, 300.0, 1e6])
def test_allowed_mu_is_safe_and_tight(epsilon, delta):
    exact = limits.allowed_mu(Budget(epsilon=epsilon, delta=delta, total_power=1.0))
    assert gaussian_epsilon(exact * (1 + 1e-15), delta) <= epsilon
    assert gaussian_epsilon(exact * (1 + 1e-13), delta) > epsilon
    classic = limits.allowed_mu(Budget(epsilon=epsilon, delta=delta, total_power=1.0, formula="classic"))
    assert epsilon * (1 - 1e-15) <= classic_epsilon(classic, delta) <= epsilon


def test_a_budget_below_every_number_is_infeasible():
    with pytest.raises(InfeasibleError, match="epsilon=5e-324"):
        limits.allowed_mu(Budget(epsilon=5e-324, delta=1e-3, total_power=1.0, formula="classic"))


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove"])
def test_privacy_limits(random_problem, adjacency):
    rounds = np.arange(1, 10)
    for index in range(20):
        rng = np.random.default_rng(index)
        whole = random_problem(rng, scope="total", adjacency=adjacency)
        budget = whole.budget
        per_round = Problem(
            fleet=whole.fleet,
            link=whole.link,
            learning=whole.learning,
            budget=Budget(**{**vars(budget), "scope": "round"}),
        )
        each = limits.privacy_limits(per_round, rounds)
        assert np.all(each == each[0])
        total = limits.privacy_limits(whole, rounds)
        np.testing.assert_allclose(total, each / np.sqrt(rounds), rtol=1e-15)
        # what is reported for θ is within the budget, whatever is rounded on the way
        sensitivity = 2.0 if adjacency == "replace_one" else 1.0
        for number, theta in zip(rounds, total, strict=True):
            mu = compose(sensitivity * theta / whole.link.noise_std, int(number))
            assert gaussian_epsilon(mu, budget.delta) <= budget.epsilon


def test_power_limits(random_problem):
    rng = np.random.default_rng(0)
    problem = random_problem(rng, devices=6, decades=2.0)
    devices, rounds = np.array([1, 4, 5]), np.array([1, 2, 7])
    gain, power = problem.fleet.gain[devices], problem.fleet.peak_power[devices]
    peak = limits.peak_limit(problem, devices)
    assert np.max(peak**2 / (gain**2 * power)) == pytest.approx(1.0, rel=1e-14)  # [Yan23, (15)]
    total = limits.total_limits(problem, devices, rounds)
    spent = rounds * np.sum(total[:, None] ** 2 / gain**2, axis=1)
    np.testing.assert_allclose(spent, problem.budget.total_power, rtol=1e-14)  # [Yan23, (17)]


def test_largest_alignment_is_the_smallest_limit(random_problem):
    for index in range(50):
        rng = np.random.default_rng(index)
        problem = random_problem(rng, devices=5, decades=2.0, total_steps=12)
        devices, rounds = np.array([0, 2, 3]), np.arange(1, 13)
        theta = limits.largest_alignment(problem, devices, rounds)
        for number, value in zip(rounds, theta, strict=True):
            allowed = min(limits.alignment_limits(problem, devices, int(number)).values())
            assert allowed * (1 - 1e-13) <= value <= allowed
            power = value**2 / problem.fleet.gain[devices] ** 2
            assert np.all(power <= problem.fleet.peak_power[devices])  # no tolerance
            assert number * power.sum() <= problem.budget.total_power * (1 + 4e-16)


def test_a_device_without_gain_is_named(random_problem):
    rng = np.random.default_rng(0)
    problem = random_problem(rng, gain=np.array([0.5, 0.0, 1.0]))
    with pytest.raises(InfeasibleError, match="device 1 has gain 0"):
        limits.largest_alignment(problem, np.array([0, 1]), np.array([1]))
    assert limits.total_limits(problem, np.array([0, 1]), np.array([1])) == 0.0  # and no warning


def test_limits_survive_gains_at_the_edge(random_problem):
    rng = np.random.default_rng(0)
    for gain in (1e-100, 1e100):
        problem = random_problem(rng, gain=np.array([gain, gain]))
        assert np.isfinite(limits.total_limits(problem, np.array([0, 1]), np.array([1, 2]))).all()
        assert Fleet(gain=[gain], peak_power=1.0).gain[0] == gain
