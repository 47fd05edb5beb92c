"""Readers of IDX files and of CIFAR-10's binary files.

What a header declares is compared with the file before anything is allocated, and nothing is decompressed past the
declared size plus one byte.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Final, cast

import numpy as np
from numpy.typing import NDArray

from airfed import _files
from airfed._files import DataError, read_exactly

CIFAR: Final = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}
"""Part of CIFAR-10 → its published files (10,000 images each), in this order."""

_RECORD: Final = 1 + 3 * 32 * 32  # bytes of CIFAR-10: a label, then red, green, blue, row by row


def read_idx_bytes(path: Path, *, most_bytes: int | None = None) -> bytes:
    """Return the raw bytes of an IDX file (decompressed if it is gzip), checked against its header.

    Args:
        path: the file.
        most_bytes: longer content, as of another data set, is refused.

    Raises:
        DataError: not an IDX file of unsigned bytes, a header that lies, truncated, trailing or corrupt data.
    """
    with _files.opened(path, "an IDX file") as stream:
        stored = _files.length_of(stream)
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        try:
            with gzip.GzipFile(fileobj=stream) if packed else nullcontext(stream) as content:
                return _checked_idx(cast(IO[bytes], content), path, stored, packed, most_bytes)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"Expected {path} to be a whole gzip file; it is damaged ({error}).") from None


def _checked_idx(stream: IO[bytes], path: Path, stored: int, packed: bool, most_bytes: int | None) -> bytes:
    """Return header and data of the open IDX stream, which `stored` bytes hold, `packed` or as they are."""
    head = read_exactly(stream, 4)
    if len(head) < 4 or head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 4:
        raise DataError(
            f"Expected {path} to start with an IDX magic number, got {head.hex() or 'nothing'}; bytes in 1 to 4 "
            "dimensions are read (00000801 to 00000804)."
        )
    tail = read_exactly(stream, 4 * head[3])
    if len(tail) < 4 * head[3]:
        raise DataError(f"Expected {path} to have a header of {4 + 4 * head[3]} bytes; it is truncated.")
    size = math.prod(shape := struct.unpack(f">{head[3]}I", tail))
    if size == 0:
        raise DataError(f"Expected {path} to hold at least one entry, its header says {'×'.join(map(str, shape))}.")
    whole = 4 + len(tail) + size
    if most_bytes is not None and whole > most_bytes:
        raise DataError(f"Expected {path} to hold at most {most_bytes} bytes, it claims {whole}.")
    _files.check_claim(whole, stored=stored, where=str(path), packed=packed)
    data = read_exactly(stream, size + 1)
    if len(data) != size:
        got = f"got {len(data)}; it is truncated" if len(data) < size else "more bytes follow"
        raise DataError(f"Expected {size} bytes of data in {path}; {got}.")
    return head + tail + data


def parse_idx(raw: bytes) -> NDArray[np.uint8]:
    """Return the array inside the checked bytes of `read_idx_bytes`."""
    dimensions = raw[3]
    shape = struct.unpack_from(f">{dimensions}I", raw, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def is_cifar(folder: Path) -> bool:
    """Return whether a folder holds a file of CIFAR-10."""
    return any(os.path.exists(folder / file) for files in CIFAR.values() for file in files)


def read_cifar(folder: Path, part: str) -> dict[str, NDArray[np.uint8]]:
    """Return the images (n, 3, 32, 32) and the labels (n,) of a part of CIFAR-10, by the names of a `Dataset`.

    Args:
        folder: with the published files, "cifar-10-batches-bin" in the archive; files of fewer images are read, too.
        part: "train" or "test".

    Raises:
        DataError: a file is missing, or is not made of whole records with labels from 0 to 9.
    """
    records = np.concatenate([_cifar_records(folder / file) for file in CIFAR[part]])
    return {f"{part}_images": records[:, 1:].reshape(-1, 3, 32, 32), f"{part}_labels": records[:, 0]}


def read_cifar_bytes(path: Path) -> bytes:
    """Return the content of a file of CIFAR-10.

    Raises:
        DataError: it is missing, or is not made of whole records.
    """
    if not os.path.exists(path):
        raise DataError(f"Expected {path.parent} to hold {path.name}, as the binary version of CIFAR-10 does.")
    with _files.opened(path, "a file of CIFAR-10") as stream:
        size = _files.length_of(stream)
        _files.check_memory(size, str(path))
        content = read_exactly(stream, size)
    if not content or len(content) % _RECORD:
        raise DataError(f"Expected {path} to hold records of {_RECORD} bytes; it has {len(content)} bytes.")
    return content


def _cifar_records(path: Path) -> NDArray[np.uint8]:
    records = np.frombuffer(read_cifar_bytes(path), np.uint8).reshape(-1, _RECORD)
    if (worst := int(records[:, 0].max())) > 9:
        raise DataError(f"Expected labels from 0 to 9 in {path}; got {worst}.")
    return records
