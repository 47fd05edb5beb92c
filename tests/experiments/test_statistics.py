"""Intervals over seeds."""

import numpy as np
import pytest
from scipy import stats

from airfed.experiments import statistics


def test_the_interval_is_students():
    values = [0.3, 0.7, 0.4, 0.9]
    found = statistics.estimate(values)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.count == 4


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        found = statistics.estimate(rng.normal(1.0, 2.0, 5))
        covered += found.low <= 1.0 <= found.high
    # 2000 draws: the share has a standard deviation of 0.5%, the tolerance is four of them
    assert covered / 2000 == pytest.approx(0.95, abs=0.02)


def test_pairing_removes_what_the_seeds_share():
    seeds = np.array([0.0, 10.0, 20.0, 30.0])
    found = statistics.paired(seeds + np.array([1.0, 1.1, 0.9, 1.0]), seeds)
    assert found.low > 0.8
    assert found.high < 1.2


def test_one_seed_decides_nothing():
    found = statistics.estimate([3.0])
    assert (found.low, found.high) == (-np.inf, np.inf)
    with pytest.raises(ValueError, match="at least one value"):
        statistics.estimate([])


def test_a_band_is_the_interval_of_the_difference_from_the_reference():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(3, 5, 7))
    means, half = statistics.paired_bands(values, 1)
    np.testing.assert_allclose(means, values.mean(axis=1))
    for curve in (0, 2):
        for place in range(7):
            difference = statistics.paired(values[curve, :, place], values[1, :, place])
            assert half[curve, place] == pytest.approx(difference.half_width)
    assert half[1, 3] == pytest.approx(statistics.estimate(values[1, :, 3]).half_width)


def test_bands_do_not_see_what_moves_all_curves_together_nor_a_third_curve():
    rng = np.random.default_rng(2)
    values = rng.normal(size=(3, 5, 7))
    _, half = statistics.paired_bands(values, 0)
    _, shifted = statistics.paired_bands(values + rng.normal(size=(1, 5, 7)) * 100, 0)
    np.testing.assert_allclose(shifted[1:], half[1:])
    values[2] *= 1e6
    np.testing.assert_allclose(statistics.paired_bands(values, 0)[1][:2], half[:2])
    assert not statistics.paired_bands(values[:, :1], 0)[1].any()


def test_seeds_that_agree_leave_no_doubt_and_no_warning():
    found = statistics.estimate([0.1, 0.1, 0.1])
    assert (found.low, found.high) == pytest.approx((0.1, 0.1))


def test_where_a_curve_has_no_value_there_is_no_band():
    values = np.ones((2, 3, 2))
    values[1, :, 1] = np.nan
    _, half = statistics.paired_bands(values, 0)
    np.testing.assert_array_equal(half, [[0.0, 0.0], [0.0, np.nan]])
