"""The reader of IDX files, which believes no header before it has weighed it against the file.

Nothing is allocated from a declared size alone and nothing is decompressed past the declared size plus one byte: an
untrusted file can be refused, but it cannot exhaust memory.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from airfed import _files
from airfed._files import DataError, read_exactly


def read_idx_bytes(path: Path, *, most_bytes: int | None = None) -> bytes:
    """Return the raw bytes of an IDX file (decompressed if it is gzip), checked against its header.

    Args:
        path: the file.
        most_bytes: longer content, as of another data set, is refused.

    Raises:
        DataError: not an IDX file of unsigned bytes, a header that lies, truncated, trailing or corrupt data.
    """
    with _files.opened(path, "an IDX file") as stream:
        stored = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        if not packed:
            return _checked_idx(stream, path, stored=stored, packed=False, most_bytes=most_bytes)
        try:
            with gzip.GzipFile(fileobj=stream) as unpacked:
                return _checked_idx(cast(IO[bytes], unpacked), path, stored=stored, packed=True, most_bytes=most_bytes)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"Expected {path} to be a whole gzip file; it is damaged ({error}).") from None


def _checked_idx(stream: IO[bytes], path: Path, *, stored: int, packed: bool, most_bytes: int | None) -> bytes:
    """Return header and data of the open IDX stream, which `stored` bytes hold, `packed` or as they are."""
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
    if 0 in shape:
        raise DataError(f"Expected {path} to hold at least one entry, its header says {'×'.join(map(str, shape))}.")
    size = math.prod(shape)
    whole = 4 + len(tail) + size
    if packed:
        _files.check_claim(whole, stored=stored, where=str(path))
    elif whole > stored:
        raise DataError(
            f"Expected {path} to hold what its header says; {'×'.join(map(str, shape))} bytes are more than it has."
        )
    if most_bytes is not None and whole > most_bytes:
        raise DataError(f"Expected {path} to hold at most {most_bytes} bytes, it claims {whole}.")
    _files.check_memory(whole, str(path))
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
