"""CIFAR-10 from its binary files: small ones of that form, and damaged ones."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airfed import scenario
from airfed.learning.data import DataError, load, shape_of
from airfed.learning.published import CIFAR as FILES
from airfed.training.setup import build_task

NAMES = [*FILES["train"], *FILES["test"]]


def write(folder, *, images=4, seed=0, classes=10):
    """The six files with so many images each; returned as (labels, pixels) of each file."""
    rng, written = np.random.default_rng(seed), {}
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(NAMES):
        labels = ((np.arange(images) + number * images) % classes).astype(np.uint8)
        pixels = rng.integers(0, 256, (images, 3, 32, 32), np.uint8)
        written[name] = labels, pixels
        records = (bytes([label]) + image.tobytes() for label, image in zip(labels, pixels, strict=True))
        (folder / name).write_bytes(b"".join(records))
    return written


@given(st.integers(2, 5), st.integers(0, 99))
def test_written_files_are_read(tmp_path_factory, images, seed):
    folder = tmp_path_factory.mktemp("cifar")
    written = write(folder, images=images, seed=seed)
    data = load(folder)
    assert data.train_images.shape == (5 * images, 3, 32, 32)
    assert (data.classes, data.image_shape) == (10, (3, 32, 32)) == (shape_of(folder)[::-1])
    for part, found in (("train", data.train_images), ("test", data.test_images)):
        expected = np.concatenate([written[name][1] for name in FILES[part]])
        assert found.dtype == np.float32
        assert found.flags.c_contiguous
        assert np.array_equal(found, expected / np.float32(255))
        assert 0 <= found.min() <= found.max() <= 1
    assert data.train_labels.tolist() == [label for name in FILES["train"] for label in written[name][0]]
    assert data.test_labels.tolist() == written["test_batch.bin"][0].tolist()


DAMAGE = {
    "gone": (lambda path: path.unlink(), "must have {name}, a file of the binary version of CIFAR-10"),
    "empty": (lambda path: path.write_bytes(b""), "{name} must have records of 3073 bytes, got 0 bytes"),
    "cut": (
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "{name} must have records of 3073 bytes, got 12291",
    ),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "got 12293 bytes"),
    "label": (
        lambda path: path.write_bytes(b"\x0a" + path.read_bytes()[1:]),
        "Labels in .*{name} must be between 0 and 9, got 10",
    ),
    "packed": (
        lambda path: path.write_bytes(b"\x1f\x8b" + path.read_bytes()[2:]),
        "Labels in .* must be between 0 and 9, got 31",
    ),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "{name}"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["data_batch_1.bin", "data_batch_5.bin", "test_batch.bin"])
def test_damaged_files_are_one_sentence(tmp_path, name, damage):
    write(tmp_path)
    harm, says = DAMAGE[damage]
    harm(tmp_path / name)
    with pytest.raises(DataError, match=says.format(name=name)) as caught:
        load(tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert re.search(" must (be|have) |^Cannot read ", message)


def test_a_scenario_plans_and_trains_on_it(tmp_path):
    write(tmp_path / "cifar-10-batches-bin", images=16)
    text = (Path(__file__).parents[1] / "eight.toml").read_text()
    text = text.replace('model = "quadratic"\ndimension = 20', 'dataset = "cifar-10-batches-bin"')
    (tmp_path / "own.toml").write_text(text + "[learning.network]\nconvolutions = [[6, 5], [8, 5]]\nhidden = [12]\n")
    loaded = scenario.load(tmp_path / "own.toml")
    expected = 6 * 75 + 6 + 8 * 150 + 8 + 12 * 200 + 12 + 10 * 12 + 10
    assert loaded.dimension == expected
    task = build_task(loaded)
    ((_, rows),) = task.engine.updates(task.initial_parameters, np.array([2]), steps=1, round_index=0)
    assert rows.shape == (1, expected)
    assert np.abs(rows).max() > 0
    assert set(task.evaluate(task.initial_parameters)) == {"loss", "accuracy", "test_loss"}
    task.engine.close()
