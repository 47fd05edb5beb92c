"""The receiver's noise: repeatable for the same run, scenario, data and round, and different otherwise."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from airfed.training.noise import SecureNoise, SeededNoise, noise_key

SOURCES = [SeededNoise(noise_key({"scenario": "a", "data": "b"})), SecureNoise()]
named = pytest.mark.parametrize("source", SOURCES, ids=["seeded", "secure"])


@named
def test_the_noise_is_normal_with_the_asked_standard_deviation(source):
    # 10⁶ samples: the variance is known to 0.14%, and Kolmogorov's distance to 0.002.
    sample = source.draw(0, 1_000_000, 0.5)
    assert sample.var() == pytest.approx(0.25, rel=0.01)
    assert abs(sample.mean()) < 5.5 * 0.5 / 1000
    assert stats.kstest(sample / 0.5, "norm").pvalue > 1e-9
    assert np.isfinite(sample).all()


@named
def test_no_value_occurs_twice_over_rounds_and_no_two_rounds_are_alike(source):
    rounds, dimension = 50, 20_000
    draws = np.stack([source.draw(index, dimension, 1.0) for index in range(rounds)])
    assert np.unique(draws).size == draws.size
    for i, j in itertools.combinations(range(rounds), 2):
        assert abs(np.corrcoef(draws[i], draws[j])[0, 1]) < 5.5 / math.sqrt(dimension)
    for lag in (1, 2, 7, 100):  # within a round as well
        assert abs(np.mean(draws[:, lag:] * draws[:, :-lag])) < 5.5 / math.sqrt(draws.size)


def test_seeded_noise_repeats_exactly_after_other_draws():
    source = SeededNoise(noise_key({"scenario": "a", "data": "c"}))
    first = source.draw(17, 1000, 0.1)
    source.draw(18, 5, 2.0)
    np.random.default_rng(0).normal(size=10)
    assert source.draw(17, 1000, 0.1).tobytes() == first.tobytes()
    assert SeededNoise(noise_key({"scenario": "a", "data": "c"})).draw(17, 1000, 0.1).tobytes() == first.tobytes()


def test_another_standard_deviation_never_scales_the_same_noise():
    source = SeededNoise(b"key")
    ratio = source.draw(4, 100, 3.0) / source.draw(4, 100, 1.0)
    assert np.unique(ratio.round(9)).size == 100


def test_another_part_of_the_signal_never_repeats_the_noise():
    names = ("scenario", "channels", "data")
    parts = itertools.product(("0", "1", "10"), ("a", "b", "1\na"), ("x", "y"))
    keys = [noise_key(dict(zip(names, part, strict=True))) for part in parts]
    keys += [noise_key({"scenario": "0"}), noise_key({}), noise_key({"scenario": "0", "probe": "x"})]
    assert len(set(keys)) == len(keys)
    draws = np.stack([SeededNoise(key).draw(0, 5000, 1.0) for key in keys])
    assert np.unique(draws).size == draws.size


def test_another_transmission_never_repeats_the_noise():
    source = SeededNoise(b"key")
    draws = np.stack([source.draw(0, 5000, 1.0, transmission=name) for name in ("", "a/0", "a/1", "b/0")])
    assert np.unique(draws).size == draws.size
    assert np.array_equal(draws[0], source.draw(0, 5000, 1.0))


def test_secure_noise_cannot_be_repeated():
    source = SecureNoise()
    assert not np.any(source.draw(0, 1000, 1.0) == source.draw(0, 1000, 1.0))
    assert not source.repeatable
    assert source.privacy == "secure"


def test_seeded_noise_calls_its_privacy_simulated():
    assert SeededNoise(b"key").privacy == "simulated"
    assert SeededNoise(b"key").repeatable
