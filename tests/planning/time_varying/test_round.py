"""One round at given multipliers: the fast searches against every subset."""

import numpy as np
import pytest

from airfed.planning.time_varying.one_round import EqualPeaks, UnequalPeaks, solve_rounds, water_filling


def every_subset(cost, limit, *, cap, noise_weight, least=1, most=None):
    """The optimum of one round by trying every K."""
    num = cost.size
    mask = (np.arange(1, 1 << num)[:, None] >> np.arange(num)) & 1 == 1
    size = mask.sum(axis=1)
    mask = mask[(size >= least) & (size <= (most or num))]
    size = mask.sum(axis=1)
    reach = np.minimum(np.where(mask, limit, np.inf).min(axis=1), cap**2)
    total = np.where(mask, cost, 0.0).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        square = np.minimum(np.sqrt(noise_weight / total) / size, reach)
        value = 4 * (1 - size / num) ** 2 + noise_weight / (size**2 * square) + square * total
    return np.min(value[reach > 0], initial=np.inf)


def instance(rng, num, kind):
    gain = rng.rayleigh(size=num) + 0.01
    if kind == "tied":
        gain = np.round(gain * 2 + 0.5) / 2
    peak = 10 ** rng.uniform(-1.5, 1.5, num)
    cost = 10 ** rng.uniform(-3, 2) / gain**2
    limit = gain**2 * peak
    if kind == "costly":
        cost = cost + 10 ** rng.uniform(-2, 2, num)
    if kind == "opposed":
        cost = limit * 10 ** rng.uniform(-0.3, 0.3, num)
    if kind == "free":
        cost = cost * (rng.random(num) < 0.5)
    if kind == "unreachable":
        limit = limit * (rng.random(num) < 0.5)
    return cost, limit, {"cap": 10 ** rng.uniform(-1, 1.5), "noise_weight": 10 ** rng.uniform(-3, 3)}


def attained(cost, square, mask, *, noise_weight):
    size = np.count_nonzero(mask)
    return 4 * (1 - size / cost.size) ** 2 + noise_weight / (size**2 * square) + square * cost[mask].sum()


@pytest.mark.parametrize("kind", ["plain", "tied", "costly", "opposed", "free", "unreachable"])
def test_general_costs_agree_with_every_subset(kind):
    rng = np.random.default_rng(0)
    for _ in range(60):
        cost, limit, other = instance(rng, int(rng.integers(1, 11)), kind)
        best = every_subset(cost, limit, **other)
        value, square, mask = solve_rounds(cost[None], limit[None], **other)
        assert value[0] == pytest.approx(best, rel=1e-11)
        if np.isfinite(best):
            assert attained(cost, square[0], mask[0], noise_weight=other["noise_weight"]) == pytest.approx(best)
            assert square[0] <= min(limit[mask[0]].min(), other["cap"] ** 2)
        else:
            assert not mask.any()


def test_sizes_can_be_bounded():
    rng = np.random.default_rng(1)
    for _ in range(60):
        num = int(rng.integers(2, 9))
        cost, limit, other = instance(rng, num, "plain")
        least = int(rng.integers(1, num + 1))
        most = int(rng.integers(least, num + 1))
        sizes = np.array([least]), np.array([most])
        best = every_subset(cost, limit, least=least, most=most, **other)
        value, _, mask = solve_rounds(cost[None], limit[None], sizes=sizes, **other)
        assert value[0] == pytest.approx(best, rel=1e-11)
        assert least <= mask.sum() <= most


def test_a_tolerance_only_lowers_the_value():
    rng = np.random.default_rng(2)
    gain = rng.rayleigh(size=(20, 60))
    cost, limit = 0.1 / gain**2 + rng.random(60), gain**2 * 10 ** rng.uniform(-3, -1, 60)
    exact = solve_rounds(cost, limit, cap=9.0, noise_weight=50.0)[0]
    approximate, square, mask = solve_rounds(cost, limit, cap=9.0, noise_weight=50.0, rtol=0.02)
    found = [attained(c, x, k, noise_weight=50.0) for c, x, k in zip(cost, square, mask, strict=True)]
    assert np.all(approximate <= exact * (1 + 1e-12))
    assert np.all(found <= approximate * 1.021)
    assert np.all(found >= exact * (1 - 1e-12))
    assert np.any(approximate < exact * (1 - 1e-6))


@pytest.mark.parametrize("equal", [True, False])
def test_one_multiplier_agrees_with_general_costs_for_all_rounds(equal):
    rng = np.random.default_rng(3)
    for _ in range(20):
        gain = rng.rayleigh(size=(7, 9)) * (rng.random((7, 9)) < 0.9)
        gain[:, 0] += 0.1
        power = np.full(9, 0.4) if equal else 10 ** rng.uniform(-2, 1, 9)
        multiplier = np.append(10 ** rng.uniform(-3, 3, 6), 0.0)
        cap, noise = 10 ** rng.uniform(-1, 1), 10 ** rng.uniform(-2, 2)
        solver = (EqualPeaks(gain, 0.4, cap=cap, noise_weight=noise) if equal
                  else UnequalPeaks(gain, power, cap=cap, noise_weight=noise))  # fmt: skip
        solutions = solver.at(multiplier)
        with np.errstate(divide="ignore"):
            load = np.where(gain > 0, gain, np.inf) ** -2.0
        cost = np.where(gain > 0, load * multiplier[:, None], np.inf)
        value = solve_rounds(cost, gain**2 * power, cap=cap, noise_weight=noise)[0]
        np.testing.assert_allclose(solutions.value, value, rtol=1e-11)
        size = 1 - solutions.size / 9
        again = 4 * size**2 + noise / (solutions.size**2 * solutions.square) + multiplier * solutions.power
        np.testing.assert_allclose(again, value, rtol=1e-11)
        assert np.all(solutions.square <= solutions.limit)


def test_filling_spends_the_budget_and_no_exchange_between_two_rounds_helps():
    rng = np.random.default_rng(4)
    for _ in range(200):
        num = int(rng.integers(1, 7))
        noise, load, limit = (10 ** rng.uniform(-2, 2, num) for _ in range(3))
        budget = 10 ** rng.uniform(-2, 2)
        square = water_filling(np.sqrt(noise / load), load, limit, budget)
        assert np.all(square <= limit)
        assert np.sum(load * square) <= budget * (1 + 1e-12)
        if np.sum(load * limit) <= budget:
            np.testing.assert_array_equal(square, limit)
            continue
        assert np.sum(load * square) == pytest.approx(budget)
        # KKT: one more watt is worth the same to each round below its limit, and no less to the others
        worth = noise / (square**2 * load)
        free = square < limit * (1 - 1e-12)
        assert free.any()
        np.testing.assert_allclose(worth[free], worth[free][0], rtol=1e-9)
        assert np.all(worth >= worth[free][0] * (1 - 1e-9))
