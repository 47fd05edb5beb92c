"""Intervals over seeds."""

import numpy as np
import pytest
from scipy import stats

from airfed.experiments import results


def test_the_interval_is_students():
    values = [0.3, 0.7, 0.4, 0.9]
    found = results.estimate(values)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.count == 4


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        found = results.estimate(rng.normal(1.0, 2.0, 5))
        covered += found.low <= 1.0 <= found.high
    # 2000 draws: the share has a standard deviation of 0.5%, the tolerance is four of them
    assert covered / 2000 == pytest.approx(0.95, abs=0.02)


def test_one_seed_decides_nothing():
    found = results.estimate([3.0])
    assert (found.low, found.high) == (-np.inf, np.inf)


def test_seeds_that_agree_leave_no_doubt_and_no_warning():
    found = results.estimate([0.1, 0.1, 0.1])
    assert (found.low, found.high) == pytest.approx((0.1, 0.1))
