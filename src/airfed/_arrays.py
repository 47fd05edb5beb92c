"""NPY and NPZ, from a file or from bytes, without belief in a header.

A header is weighed against the bytes that are there before anything is allocated; only plain numbers are read, nothing
is unpickled; and whatever is wrong, in the header, the archive or its compression, is one `DataError`.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from airfed import _files
from airfed._files import DataError, shown

_MOST_HEADER: Final = 10_000  # bytes; NumPy's own limit. A header of plain numbers has 118
_MOST_DIMENSIONS: Final = 32
_MOST_BYTES: Final = 2**63 - 1  # that NumPy can count
_STEP: Final = 2**20  # bytes read at once, and so the longest directory of an archive: some 10,000 arrays

_READERS: Final = {
    (1, 0): (2, np.lib.format.read_array_header_1_0),
    (2, 0): (4, np.lib.format.read_array_header_2_0),
}  # format version -> bytes of the header's length, reader; 3.0 is for names of fields, which plain numbers have not
_NUMBER: Final = re.compile(r"'[<>|=]?(?:[iu][1248]|f[248]|c(?:8|16))'")
_TYPE: Final = re.compile(r"'descr'\s*+:\s*+([^,}]++)")
_ITEM: Final = (
    rf"'(?:descr'\s*+:\s*+{_NUMBER.pattern}|fortran_order'\s*+:\s*+(?:True|False)|shape'\s*+:\s*+\([0-9,\s]*+\))"
)
_HEADER: Final = re.compile(rf"\{{\s*+{_ITEM}(?:\s*+,\s*+{_ITEM}){{2}}\s*+,?\s*+\}}\s*+", re.ASCII)
_BAD_HEADER: Final = (
    *(ValueError, SyntaxError, TypeError, OverflowError),
    *(tokenize.TokenError, RecursionError, MemoryError),
)  # what NumPy raises on damaged headers; few of them are left after `_HEADER`
_BAD_ARCHIVE: Final = (
    *(zipfile.BadZipFile, zlib.error, struct.error),
    *(EOFError, NotImplementedError, RuntimeError, OverflowError, ValueError, OSError),
)  # what zipfile raises on damaged archives


def load_npy(source: Path | bytes, *, name: str = "", most_values: int | None = None) -> NDArray[Any]:
    """Return the array of a .npy file, in native byte order.

    Args:
        source: the file, or its content.
        name: what messages call it; the path if there is one.
        most_values: a larger array is refused.

    Raises:
        DataError: it is no array of plain numbers (i, u, f or c), or not exactly as long as its header says; it has
            more than `most_values` values, or does not fit into memory.

    >>> buffer = io.BytesIO()
    >>> np.save(buffer, np.array([1.0, 2.0]))
    >>> load_npy(buffer.getvalue(), name="the signal", most_values=2)
    array([1., 2.])
    """
    with _stream(source) as stream:
        return _read_array(stream, _length(stream), name or _name(source), most_values)


def load_npz(
    source: Path | bytes,
    names: Mapping[str, tuple[str, ...]],
    *,
    name: str = "",
    most_values: int | None = None,
) -> dict[str, NDArray[Any]]:
    """Return arrays of an .npz file, each under the first of its accepted names that is there.

    Args:
        source: the file, or its content.
        names: wanted name → names it may have in the file; other arrays are not looked at.
        name: what messages call the file; the path if there is one.
        most_values: a larger array is refused.

    Raises:
        DataError: it is no zip archive, or a damaged one; an array is missing, there twice, encrypted, compressed in
            an unusual way or to less than a hundredth; or see `load_npy`.
    """
    where = name or _name(source)
    with _stream(source) as stream:
        length = _length(stream)
        try:
            with zipfile.ZipFile(cast(IO[bytes], _Cautious(stream, where))) as archive:
                members = _members(archive, where)
                arrays = {}
                for wanted, accepted in names.items():
                    found = next((member for member in accepted if member in members), None)
                    if found is None:
                        there = ", ".join(map(shown, sorted(members)[:8])) or "none"
                        raise DataError(
                            f"Expected {where} to hold an array named {' or '.join(accepted)}; got {there}."
                        )
                    arrays[wanted] = _read_member(archive, members[found], f"{found} in {where}", length, most_values)
                return arrays
        except _BAD_ARCHIVE as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"Expected {where} to be a whole NPZ file; it is damaged ({shown(str(error).rstrip('.'))})."
            ) from None


class _Cautious:
    """A file that reads little at once: zipfile asks for a whole directory, however long it claims to be."""

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self._stream, self._where = stream, where
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size if 0 <= size <= _STEP else _STEP + 1)
        if len(data) > _STEP:
            raise DataError(f"Expected {self._where} to hold a few arrays; its directory is longer than {_STEP} bytes.")
        return data


def _stream(source: Path | bytes) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(io.BytesIO(source)) if isinstance(source, bytes) else _files.opened(source, "a NumPy file")


def _name(source: Path | bytes) -> str:
    return "the data" if isinstance(source, bytes) else str(source)


def _length(stream: IO[bytes]) -> int:
    length = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return length


def _members(archive: zipfile.ZipFile, where: str) -> dict[str, zipfile.ZipInfo]:
    """Return the members by the names of their arrays."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        member = info.filename.removesuffix(".npy")
        if member in members:
            raise DataError(f"Expected the arrays in {where} to have different names; {shown(member)} is there twice.")
        members[member] = info
    return members


def _read_member(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str, length: int, most_values: int | None
) -> NDArray[Any]:
    """Return one array of an archive of `length` bytes, whose directory may lie about it."""
    if info.flag_bits & 1:
        raise DataError(f"Expected {where} to be readable without a password; it is encrypted.")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"Expected {where} to be stored or deflated, got compression method {info.compress_type}.")
    if info.header_offset + info.compress_size > length:
        raise DataError(f"Expected {where} to lie within the {length} bytes of the file; it claims to reach beyond.")
    if info.compress_type == zipfile.ZIP_DEFLATED:
        _files.check_claim(info.file_size, stored=info.compress_size, where=where)
    elif info.file_size != info.compress_size:
        raise DataError(f"Expected {where} to hold {info.compress_size} bytes, it claims {info.file_size}.")
    with archive.open(info) as stream:
        return _read_array(stream, info.file_size, where, most_values)


def _read_array(stream: IO[bytes], total: int, where: str, most_values: int | None) -> NDArray[Any]:
    """Return the array in a stream of `total` bytes."""
    shape, fortran_order, dtype, start = _read_header(stream, total, where)
    count = math.prod(shape)
    size = count * dtype.itemsize
    countable = math.prod(max(1, extent) for extent in shape) * dtype.itemsize <= _MOST_BYTES
    if start + size != total or not countable or len(shape) > _MOST_DIMENSIONS:
        raise DataError(
            f"Expected {where} to hold what its header says; shape {shown(shape)} of {dtype} does not fill its "
            f"{total} bytes."
        )
    if most_values is not None and count > most_values:
        raise DataError(f"Expected at most {most_values} values in {where}, got {count}.")
    _files.check_memory(size, where)
    try:
        flat = np.empty(count, dtype)
    except MemoryError:
        raise DataError(f"Expected {where} to fit into memory; its {size} bytes do not.") from None
    done, view = 0, flat.view(np.uint8).data
    while done < size and (part := stream.read(min(size - done, _STEP))):
        view[done : done + len(part)] = part
        done += len(part)
    if done < size or stream.read(1):
        raise DataError(f"Expected {size} bytes of data in {where}, got {'fewer' if done < size else 'more'}.")
    if not dtype.isnative:
        flat = flat.byteswap(inplace=True).view(dtype.newbyteorder("="))
    return flat.reshape(shape, order="F" if fortran_order else "C")


def _read_header(stream: IO[bytes], total: int, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, whether in Fortran's order, type, and where the data starts."""
    start = _files.read_exactly(stream, 8)
    if start[:6] != b"\x93NUMPY" or len(start) < 8:
        raise DataError(f"Expected {where} to be a NumPy array; it does not start like one.")
    if (start[6], start[7]) not in _READERS:
        raise DataError(f"Expected {where} to be a NumPy array of format 1.0 or 2.0, got {start[6]}.{start[7]}.")
    width, reader = _READERS[start[6], start[7]]
    field = _files.read_exactly(stream, width)
    length = int.from_bytes(field, "little")
    begin = 8 + width + length
    raw = b"" if length > _MOST_HEADER or begin > total else _files.read_exactly(stream, length)
    text = raw.decode("latin-1").replace('"', "'")  # the header is decided upon by NumPy; this is only looked at
    if (kind := _TYPE.search(text)) and not _NUMBER.fullmatch(kind[1].strip()):
        raise DataError(f"Expected {where} to hold plain numbers, got type {shown(kind[1].strip())}.")
    if not _HEADER.fullmatch(text):
        raise DataError(f"Expected {where} to be a NumPy array; its header is damaged.")
    bare = raw.strip()  # a blank at the end would make NumPy believe, and say, that Python 2 wrote the file
    try:
        shape, fortran_order, dtype = reader(io.BytesIO(len(bare).to_bytes(width, "little") + bare))
    except _BAD_HEADER:
        raise DataError(f"Expected {where} to be a NumPy array; its header is damaged.") from None
    return shape, fortran_order, dtype, begin
