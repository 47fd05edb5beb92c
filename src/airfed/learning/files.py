"""Readers of IDX and NPZ files that believe no header before they have weighed it against the file.

Nothing is allocated from a declared size alone, nothing is decompressed past the declared size plus one byte,
and nothing is unpickled: an untrusted file can be refused, but it cannot exhaust memory or run code.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

MAXIMUM_BYTES: Final = (
    2**31
)  # of one array on disk; ten times ImageNet at 32×32 would not fit, all of MNIST fits 45 times

_DEFLATE_RATIO: Final = 1032  # DEFLATE cannot expand by more than 1032:1, so a larger claim is a lie
_READ: Final = 1 << 20


class DataError(ValueError):
    """A data set is missing, damaged or hostile; the message says which and what to do."""


def read_exactly(stream: IO[bytes], size: int) -> bytes:
    """Return up to `size` bytes of the stream, read in bounded steps: no claim is allocated."""
    parts: list[bytes] = []
    while size > 0:
        part = stream.read(min(size, _READ))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_idx_bytes(path: Path) -> bytes:
    """Return the raw bytes of an IDX file (decompressed if it is gzip), checked against its header.

    Raises:
        DataError: not an IDX file of unsigned bytes, a header that lies, truncated, trailing or corrupt data.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            if stream.read(2) != b"\x1f\x8b":
                stream.seek(0)
                return _checked_idx(stream, path, limit=size)
            stream.seek(0)
            with gzip.GzipFile(fileobj=stream) as unpacked:
                return _checked_idx(cast(IO[bytes], unpacked), path, limit=size * _DEFLATE_RATIO)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"Expected {path} to be a whole gzip file; it is damaged ({error}).") from None
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from None


def _checked_idx(stream: IO[bytes], path: Path, *, limit: int) -> bytes:
    """Return header and data of the open IDX stream, which cannot hold more than `limit` bytes."""
    head = read_exactly(stream, 4)
    if len(head) < 4 or head[:2] != b"\0\0":
        raise DataError(f"Expected {path} to start with an IDX magic number, got {head.hex() or 'nothing'}.")
    if head[2] != 0x08:
        raise DataError(f"Expected {path} to hold unsigned bytes (IDX type 0x08), got type 0x{head[2]:02x}.")
    if not 1 <= head[3] <= 4:
        raise DataError(f"Expected {path} to have 1 to 4 IDX dimensions, got {head[3]}.")
    tail = read_exactly(stream, 4 * head[3])
    if len(tail) < 4 * head[3]:
        raise DataError(f"Expected {path} to have a header of {4 + 4 * head[3]} bytes; it is truncated.")
    shape = struct.unpack(f">{head[3]}I", tail)
    size = math.prod(shape)
    whole = 4 + len(tail) + size
    if whole > min(limit, MAXIMUM_BYTES):
        raise DataError(
            f"Expected {path} to hold what its header says; {'×'.join(map(str, shape))} bytes are more than "
            f"{'a file of its size can hold' if whole > limit else f'the limit of {MAXIMUM_BYTES} bytes'}."
        )
    data = read_exactly(stream, size + 1)
    if len(data) < size:
        raise DataError(f"Expected {size} bytes of data in {path}, got {len(data)}; it is truncated.")
    if len(data) > size:
        raise DataError(f"Expected {size} bytes of data in {path}; more bytes follow.")
    return head + tail + data


def parse_idx(raw: bytes) -> NDArray[np.uint8]:
    """Return the array inside the checked bytes of `read_idx_bytes`."""
    dimensions = raw[3]
    shape = struct.unpack_from(f">{dimensions}I", raw, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def read_npz(path: Path, names: dict[str, tuple[str, ...]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of an NPZ file, each under the first of its accepted names that is there.

    Args:
        path: the file.
        names: wanted name → names it may have in the file.

    Raises:
        DataError: not a zip file, an array is missing, holds objects, or its header does not fit its size.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            arrays = {}
            for wanted, accepted in names.items():
                found = next((name for name in accepted if name in members), None)
                if found is None:
                    raise DataError(
                        f"Expected {path} to hold an array named {' or '.join(accepted)}; "
                        f"got {', '.join(sorted(members)[:8]) or 'none'}."
                    )
                arrays[wanted] = _read_member(archive, members[found], path)
            return arrays
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"Expected {path} to be a whole NPZ file; it is damaged ({error}).") from None
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from None


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    """Return one array of the archive; its declared size is checked against the bytes that can be there."""
    where = f"{info.filename} in {path}"
    stored = os.path.getsize(path)
    if info.file_size > MAXIMUM_BYTES or info.file_size > stored * _DEFLATE_RATIO:
        raise DataError(f"Expected {where} to be at most {MAXIMUM_BYTES} bytes, it claims {info.file_size}.")
    with archive.open(info) as stream:
        try:
            version = np.lib.format.read_magic(stream)
            reader = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            if version not in reader:
                raise ValueError(f"format version {version} is unknown")
            shape, fortran_order, dtype = reader[version](stream)
        except (ValueError, SyntaxError, tokenize.TokenError, MemoryError, RecursionError) as error:
            raise DataError(f"Expected {where} to be a NumPy array; {str(error).splitlines()[0]}.") from None
        if dtype.kind not in "uif":
            raise DataError(f"Expected {where} to hold numbers, got {dtype}.")
        size = math.prod(shape) * dtype.itemsize
        if any(length < 0 for length in shape) or stream.tell() + size != info.file_size:
            raise DataError(
                f"Expected {where} to hold what its header says; shape {shape} of {dtype} does not fill "
                f"its {info.file_size} bytes."
            )
        data = read_exactly(stream, size + 1)  # past the last byte, so that the checksum is compared
    if len(data) != size:
        raise DataError(f"Expected {size} bytes of data for {where}, got {len(data)}; it is truncated.")
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran_order else "C")
    return array.astype(dtype.newbyteorder("="))
