"""Named streams: reproducible, apart from each other."""

from itertools import combinations

import numpy as np
import pytest

from airfed import seeds

NAMES = ("data", "channel", "init", "policy", "batch", "phase")


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_repeats(name):
    np.testing.assert_array_equal(seeds.stream(3, name).random(10), seeds.stream(3, name).random(10))
    np.testing.assert_array_equal(seeds.stream(3, name, 1, 2).random(10), seeds.stream(3, name, 1, 2).random(10))


def test_streams_differ_by_name_seed_and_key():
    draws = {
        (seed, name, key): tuple(seeds.stream(seed, name, *key).random(4))
        for seed in (0, 1, 10**30)
        for name in NAMES
        for key in ((), (0,), (1,), (0, 0), (0, 1), (1, 0))
    }
    assert len(set(draws.values())) == len(draws)


def test_streams_are_uncorrelated():
    # 20,000 numbers each: a correlation has standard deviation 0.0071.
    draws = {name: seeds.stream(0, name).random(20_000) for name in NAMES}
    for one, other in combinations(NAMES, 2):
        assert abs(np.corrcoef(draws[one], draws[other])[0, 1]) < 5 * 0.0071


def test_using_more_of_one_stream_never_shifts_another():
    before = seeds.stream(0, "channel").random(5)
    seeds.stream(0, "policy").random(1000)
    np.testing.assert_array_equal(seeds.stream(0, "channel").random(5), before)


def test_numbers_of_the_streams_are_a_file_format():
    # Golden: written records depend on them. Source: this package, first release.
    golden = {"data": 0, "channel": 1, "init": 2, "policy": 3, "batch": 5, "phase": 6}
    golden |= {"fading": 7, "samples": 8}
    for name, number in golden.items():
        expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence(7, spawn_key=(number, 2))))
        assert seeds.stream(7, name, 2).random() == expected.random()


@pytest.mark.parametrize("seed", [-1, 1.0, "0", None, True, 2**128, 10**400])
def test_bad_seeds(seed):
    with pytest.raises(ValueError, match="seed"):
        seeds.stream(seed, "data")


def test_unknown_streams():
    with pytest.raises(ValueError, match="name must be one of data, channel"):
        seeds.stream(0, "chanel")


def test_numpy_seeds_are_the_same_seeds():
    assert seeds.stream(np.int64(5), "data").random() == seeds.stream(5, "data").random()
