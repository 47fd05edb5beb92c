import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airfed import _files
from airfed.learning.data import PARTITIONS, partition


@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=80),
    devices=st.integers(1, 40),
    scheme=st.sampled_from(PARTITIONS),
    alpha=st.sampled_from([1e-300, 1e-3, 0.05, 0.5, 3.0, 1e6]),
    per_device=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_devices_get_equally_many_images_and_none_twice(labels, devices, scheme, alpha, per_device, seed):
    def deal():
        rng = np.random.default_rng(seed)
        return partition(labels, devices, scheme=scheme, alpha=alpha, shards_per_device=per_device, rng=rng)

    size = len(labels) // devices
    if size == 0 or (scheme == "shards" and per_device > size):
        with pytest.raises(ValueError):
            deal()
        return
    parts = deal()
    assert parts.shape == (devices, size)
    assert parts.dtype == np.intp
    assert len(np.unique(parts)) == parts.size
    assert parts.min() >= 0
    assert parts.max() < len(labels)
    assert np.array_equal(parts, deal())


def classes_per_device(labels, parts):
    return np.mean([len(np.unique(labels[row])) for row in parts])


def test_small_alpha_means_few_classes_and_large_alpha_all():
    labels = np.arange(10_000) % 10
    means = []
    for alpha in (1e-9, 1e-2, 0.1, 1.0, 100.0):
        parts = partition(labels, 100, scheme="dirichlet", alpha=alpha, rng=np.random.default_rng(0))
        means.append(classes_per_device(labels, parts))
    assert means == sorted(means)
    assert means[0] < 1.5
    assert means[-1] > 9.9


def test_dirichlet_counts_have_the_dirichlet_multinomial_spread():
    # A multinomial over Dir(α) has Var(count_c) = D p(1−p)(D + A)/(1 + A) with A = Cα, p = 1/C.
    # 4,000 devices use up all images; classes run short by a few per cent, which hardly changes the spread.
    labels, size, alpha = np.arange(200_000) % 10, 50, 1.0
    rng = np.random.default_rng(1)
    parts = partition(labels, 4000, scheme="dirichlet", alpha=alpha, rng=rng)
    assert parts.shape == (4000, size)
    counts = np.stack([np.bincount(labels[row], minlength=10) for row in parts])
    expected = size * 0.1 * 0.9 * (size + 10 * alpha) / (1 + 10 * alpha)
    assert counts.var() == pytest.approx(expected, rel=0.05)


def test_a_shard_device_sees_few_labels():
    labels = np.random.default_rng(0).permutation(np.arange(6000) % 10)
    parts = partition(labels, 100, scheme="shards", shards_per_device=2, rng=np.random.default_rng(0))
    assert max(len(np.unique(labels[row])) for row in parts) <= 4
    assert classes_per_device(labels, parts) < 2.5


def test_iid_devices_see_all_labels():
    labels = np.arange(6000) % 10
    assert classes_per_device(labels, partition(labels, 20, rng=np.random.default_rng(0))) == 10


def test_the_images_left_out_are_random():
    left = set()
    for seed in range(20):
        for scheme in PARTITIONS:
            parts = partition(np.zeros(5, int), 2, scheme=scheme, rng=np.random.default_rng(seed))
            left |= {(scheme, i) for i in range(5)} - {(scheme, i) for i in parts.ravel().tolist()}
    assert len(left) == 15


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_devices": 6}, "num_devices must be at most 5, the number of images, got 6"),
        ({"num_devices": 0}, "num_devices must be at least 1, got 0"),
        ({"scheme": "random"}, "scheme must be one of iid, dirichlet, shards"),
        ({"alpha": 0.0}, "alpha must be positive and finite, got 0.0"),
        ({"alpha": float("inf")}, "alpha"),
        (
            {"shards_per_device": 4, "scheme": "shards"},
            "shards_per_device must be at most 2, the images per device, got 4",
        ),
        ({"labels": [0.5, 1.0]}, "whole numbers"),
        ({"labels": [-1, 1]}, "whole numbers"),
        ({"labels": [[0, 1]]}, "vector"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"labels": [0, 1, 2, 0, 1], "num_devices": 2} | change
    with pytest.raises(ValueError, match=message):
        partition(**arguments, rng=np.random.default_rng(0))


@pytest.mark.parametrize("scheme", PARTITIONS)
def test_a_hundred_thousand_devices_are_no_concern(scheme):
    labels = np.random.default_rng(0).integers(0, 10, 300_000)
    started = time.process_time()
    assert partition(labels, 100_000, scheme=scheme, rng=np.random.default_rng(0)).shape == (100_000, 3)
    assert time.process_time() - started < 120  # half a second; a quadratic search would take hours


def test_more_devices_times_classes_than_memory_are_refused(monkeypatch):
    labels = np.arange(65536)
    monkeypatch.setattr(_files, "free_memory", lambda: 2**30)
    with pytest.raises(
        ValueError, match="A table of 5000 devices × 65536 classes does not fit into half of the free memory"
    ):
        partition(labels, 5000, scheme="dirichlet", rng=np.random.default_rng(0))
