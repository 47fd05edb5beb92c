"""The reader of CIFAR-10's binary files: records of one label and 3 × 32 × 32 bytes, red, green, blue, row by row."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed import _files
from airfed._files import DataError, read_exactly

FILES: Final = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
"""Part of the data set → its published files (10,000 images each), in this order."""

SHAPE: Final = (3, 32, 32)
_RECORD: Final = 1 + 3 * 32 * 32  # bytes
_CLASSES: Final = 10


def is_cifar(folder: Path) -> bool:
    """Return whether a folder holds a file of CIFAR-10."""
    return any(os.path.exists(folder / file) for files in FILES.values() for file in files)


def read_cifar(folder: Path, part: str) -> dict[str, NDArray[np.uint8]]:
    """Return the images (n, 3, 32, 32) and the labels (n,) of a part of CIFAR-10, by the names of a `Dataset`.

    Args:
        folder: with the published files, "cifar-10-batches-bin" in the archive; files of fewer images are read, too.
        part: "train" or "test".

    Raises:
        DataError: a file is missing, or is not made of whole records with labels from 0 to 9.
    """
    records = np.concatenate([_records(folder / file) for file in FILES[part]])
    return {f"{part}_images": records[:, 1:].reshape(-1, *SHAPE), f"{part}_labels": records[:, 0]}


def _records(path: Path) -> NDArray[np.uint8]:
    if not os.path.exists(path):
        raise DataError(f"Expected {path.parent} to hold {path.name}, as the binary version of CIFAR-10 does.")
    with _files.opened(path, "a file of CIFAR-10") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        if size == 0 or size % _RECORD:
            raise DataError(f"Expected {path} to hold records of {_RECORD} bytes; it has {size} bytes.")
        _files.check_memory(size, str(path))
        content = read_exactly(stream, size)
    if len(content) != size:
        raise DataError(f"Expected {size} bytes in {path}, got {len(content)}.")
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    if (worst := int(records[:, 0].max())) >= _CLASSES:
        raise DataError(f"Expected labels from 0 to {_CLASSES - 1} in {path}; got {worst}.")
    return records
