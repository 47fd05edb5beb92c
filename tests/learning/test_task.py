"""Tests of the data on the devices of a scenario."""

import numpy as np
import pytest

from airfed import seeds
from airfed.keys import ScenarioError
from airfed.learning.data import partition
from airfed.training.setup import build_task


@pytest.fixture
def digits(tmp_path, make_scenario):
    """A function that builds the task of 90 tiny images on 6 devices."""
    labels = np.arange(90) % 3
    images = np.zeros((90, 2, 2), np.float32)
    np.savez(tmp_path / "tiny.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)

    def build(**changes):
        scenario = make_scenario(learning__model="logistic", learning__dimension=None, **changes)
        task = build_task(scenario.override({"learning.dataset": str(tmp_path / "tiny.npz")}))
        task.engine.close()
        return task

    return build


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "shards"])
def test_as_many_images_as_are_to_be_used_lie_on_the_devices(digits, scheme):
    for images in (6, 31, 90):
        shards = digits(learning__images=images, learning__partition=scheme, learning__shards_per_device=1).shards
        assert shards.shape == (6, images // 6)
        assert len(np.unique(shards)) == shards.size
        assert 0 <= shards.min() <= shards.max() < 90


def test_the_images_come_from_all_and_from_the_seed(digits):
    few = {seed: digits(learning__images=12, seed=seed) for seed in range(40)}
    held = [frozenset(task.shards.ravel().tolist()) for task in few.values()]
    assert len(set(held)) == 40
    assert frozenset().union(*held) == frozenset(range(90))  # one image is left out of all 40 draws in 3 of 1,000
    assert np.array_equal(few[0].shards, digits(learning__images=12, seed=0).shards)
    assert len({task.data_digest for task in (*few.values(), digits(seed=0))}) == 41


def test_without_that_key_all_images_are_partitioned(digits):
    shards = partition(np.arange(90) % 3, 6, rng=seeds.stream(3, "data"))
    assert np.array_equal(digits().shards, shards)


def test_more_images_than_there_are_is_one_sentence(digits):
    with pytest.raises(ScenarioError, match=r"learning.images must be at most 90, .* got 91"):
        digits(learning__images=91)
