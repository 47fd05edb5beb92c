"""Reading what a user names: regular files only, never more than a stated size, and one sentence for whatever is wrong.

A pipe, a device or a socket is refused before it is opened, unless it is a pipe that the user has handed over for a
TOML file. The size that a header declares (NumPy, IDX, zip) is compared with the bytes of the file before anything is
allocated. NumPy reads the arrays; nothing is unpickled.
"""

from __future__ import annotations

import io
import math
import os
import re
import stat
import tomllib
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

MOST_EXPANSION: Final = 100  # of a compressed array above `UNASKED`; images shrink to a fifth, sparse tables to a 50th
DEFLATE_EXPANSION: Final = 1032  # DEFLATE cannot do more, so a larger claim is a lie
UNASKED: Final = 2**26  # bytes that any file may take
MOST_TEXT: Final = 2**25  # bytes of a file; the list of a million gains takes 20 MB

_STEP: Final = 2**20  # bytes read at once, and so the longest directory of an archive: some 10,000 arrays
_HEADER: Final = 10_012  # bytes; NumPy's limit of a header, with its length and version before it
_MOST_DIMENSIONS: Final = 32
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile unpacks the others without a limit
_NUMBERS: Final = "bhilqBHILQefdFD"  # types, by NumPy's letters: no objects, texts, dates or records
_CONTAINER: Final = Path("/sys/fs/cgroup")
_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_KINDS: Final = {
    **{stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"},
    **dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "a device"),
}
_HANDED: Final = re.compile(r"/dev/stdin|/(?:dev|proc/self)/fd/[0-9]+")  # what a shell calls an open pipe
_PART: Final = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_MOST_PARTS: Final = 16  # of a dotted key; tomllib's time grows with their square
_LONG_KEY: Final = re.compile(rf"(?:\.[ \t]*+{_PART}[ \t]*+){{{_MOST_PARTS}}}")


class DataError(ValueError):
    """A file is missing, damaged or hostile; the message says which and what to do."""


@contextmanager
def opened(path: Path, what: str, *, hint: str = "", pipe: bool = False) -> Iterator[IO[bytes]]:
    """Open a regular file for reading; with `pipe` it may be a pipe that this process was handed open.

    `what` it should be, as in "a scenario", and a `hint` where there is no such file are part of a DataError's message.
    """
    pipe = pipe and _HANDED.fullmatch(str(path)) is not None
    try:
        _check_kind(os.stat(path), path, what, pipe)  # before opening: some devices act on being opened
        with os.fdopen(os.open(path, _FLAGS), "rb") as stream:
            _check_kind(os.fstat(stream.fileno()), path, what, pipe)
            os.set_blocking(stream.fileno(), True)
            yield stream
    except FileNotFoundError:
        raise DataError(f"Expected {what} at {path}; there is no such file{hint}.") from None
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from None
    except DataError:
        raise
    except ValueError as error:  # a NUL in the path
        raise DataError(f"Cannot read {str(path)!r}: {error}.") from None


def read_exactly(stream: IO[bytes], size: int) -> bytes:
    """Return up to `size` bytes of the stream, read in bounded steps: no claim is allocated."""
    parts: list[bytes] = []
    while size > 0 and (part := stream.read(min(size, _STEP))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_text(path: Path, what: str, *, hint: str = "", pipe: bool = False) -> str:
    """Return the text of a file in UTF-8 of at most `MOST_TEXT` bytes, with plain newlines."""
    with opened(path, what, hint=hint, pipe=pipe) as stream:
        raw = read_exactly(stream, MOST_TEXT + 1)
    if len(raw) > MOST_TEXT:
        raise DataError(
            f"Expected {what} at {path} of at most {MOST_TEXT // 2**20} MiB; it is longer "
            "(long lists belong in a .npy file)."
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"Expected a text in UTF-8 at {path}, got other data (byte {error.start}).") from None
    if "\0" in text:
        raise DataError(f"Expected a text in UTF-8 at {path}, got other data (a NUL, byte {raw.index(0)}).")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_toml(path: Path, what: str, *, hint: str = "") -> dict[str, Any]:
    """Return the tables of a TOML file."""
    try:
        return parse_toml(read_text(path, what, hint=hint, pipe=True))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path}: not valid TOML: {error}.") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text of whatever origin; all that is wrong with it is a TOMLDecodeError."""
    if _LONG_KEY.search(text):
        raise tomllib.TOMLDecodeError(f"a key has more than {_MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("brackets are nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        if "Invalid value" not in str(error):
            raise
        hint = "a text needs quotes, and a number a digit on both sides of its point"
        raise tomllib.TOMLDecodeError(f"{error}: {hint}") from None
    except ValueError:
        raise tomllib.TOMLDecodeError("a number has too many digits") from None


def check_claim(size: int, *, stored: int, where: str, packed: bool) -> None:
    """Raise unless `stored` bytes, compressed or not, may be trusted to hold `size`, and these fit into memory."""
    most = 1 if not packed else DEFLATE_EXPANSION if size <= UNASKED else MOST_EXPANSION
    if size > most * stored:
        reason = f"at most {most} times the {stored} bytes that hold it" if packed else f"no more than {stored} bytes"
        hint = "; if that is true, store it uncompressed" if packed else ""
        raise DataError(f"Expected {where} to be {reason}, it claims {size}{hint}.")
    check_memory(size, where)


def check_memory(size: int, where: str) -> None:
    """Raise unless `size` bytes fit into half of the free memory (the rest is needed to work with them)."""
    if size > UNASKED and size > (free := free_memory()) // 2:
        raise DataError(
            f"Expected {where} to fit into half of the free memory; "
            f"it needs {size / 2**20:.0f} MiB of {free / 2**20:.0f} MiB."
        )


def free_memory() -> int:
    """Return the bytes that can still be taken, as far as the system tells: all of it, and the share of a container."""
    free = [2**62]
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            free += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
        limit, used = ((_CONTAINER / name).read_text() for name in ("memory.max", "memory.current"))
        free.append(max(0, int(limit) - int(used)))  # "max" is no number: no limit
    except (OSError, ValueError):  # another operating system tells elsewhere; what does not fit raises MemoryError
        pass
    return min(free)


def load_npy(source: Path | bytes, *, name: str = "", most_values: int | None = None) -> NDArray[Any]:
    """Return the array of a .npy file, or of its content, in native byte order.

    Raises:
        DataError: it is no array of plain numbers (i, u, f or c), or not exactly as long as its header says; it has
            more than `most_values` values, or does not fit into memory.
    """
    with _numpy(source, name) as (stream, where):
        return _array(stream, length_of(stream), where, most_values)


def load_npz(source: Path | bytes, names: Mapping[str, tuple[str, ...]], *, name: str = "") -> dict[str, NDArray[Any]]:
    """Return arrays of an .npz file, or of its content, each under the first of its accepted names that is there.

    A DataError also where an array is there twice, encrypted, or compressed in an unusual way or to less than a
    hundredth.
    """
    with _numpy(source, name) as (stream, where):
        length = length_of(stream)
        with zipfile.ZipFile(cast(IO[bytes], _Bounded(stream))) as archive:
            there = [info.filename.removesuffix(".npy") for info in archive.infolist()]
            members = dict(zip(there, archive.infolist(), strict=True))
            if len(members) < len(there):
                raise DataError(f"Expected the arrays in {where} to have different names; one is there twice.")
            arrays = {}
            for wanted, accepted in names.items():
                found = next((member for member in accepted if member in members), None)
                if found is None:
                    got = ", ".join(map(shown, sorted(members)[:8])) or "none"
                    raise DataError(f"Expected {where} to hold an array named {' or '.join(accepted)}; got {got}.")
                info, member = members[found], f"{found} in {where}"
                if info.flag_bits & 1 or info.compress_type not in _METHODS:
                    method = "encryption" if info.flag_bits & 1 else f"method {info.compress_type}"
                    raise DataError(f"Expected {member} to be stored or deflated, got {method}.")
                stored, packed = min(info.compress_size, length), info.compress_type == zipfile.ZIP_DEFLATED
                check_claim(info.file_size, stored=stored, where=member, packed=packed)
                with archive.open(info) as content:
                    arrays[wanted] = _array(content, info.file_size, member, None)
            return arrays


def length_of(stream: IO[bytes]) -> int:
    """Return the bytes of a file, which is then at its start."""
    length = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return length


@contextmanager
def _numpy(source: Path | bytes, name: str) -> Iterator[tuple[IO[bytes], str]]:
    """Open a file of NumPy's, or its content, with what to call it; whatever is wrong with it is one sentence."""
    where = name or ("the data" if isinstance(source, bytes) else str(source))
    with nullcontext(io.BytesIO(source)) if isinstance(source, bytes) else opened(source, "a NumPy file") as stream:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what Python and NumPy say about odd headers
                yield stream, where
        except DataError:
            raise
        except Exception as error:  # NumPy, zipfile and zlib raise a dozen kinds
            reason = shown(error) or type(error).__name__
            raise DataError(
                f"Expected {where} to be a whole NumPy array or NPZ archive; it is damaged ({reason})."
            ) from None


def _array(stream: IO[bytes], total: int, where: str, most_values: int | None) -> NDArray[Any]:
    """Return the array in a stream of `total` bytes; its header is compared with them before NumPy reads it."""
    head = io.BytesIO(stream.read(_HEADER))  # a header may claim to be longer
    read = np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0
    shape, _, dtype = read[np.lib.format.read_magic(head) != (1, 0)](head)
    if dtype.char not in _NUMBERS:
        raise DataError(f"Expected {where} to hold plain numbers, got type {shown(repr(dtype.str))}.")
    size = (count := math.prod(shape)) * dtype.itemsize
    if head.tell() + size != total or len(shape) > _MOST_DIMENSIONS:
        raise DataError(
            f"Expected {where} to hold what its header says; shape {shown(shape)} of {dtype} does not fill its "
            f"{total} bytes."
        )
    if most_values is not None and count > most_values:
        raise DataError(f"Expected at most {most_values} values in {where}, got {count}.")
    check_memory(size, where)
    stream.seek(0)
    try:
        array: NDArray[Any] = np.load(stream, allow_pickle=False)
    except MemoryError:
        raise DataError(f"Expected {where} to fit into memory; its {size} bytes do not.") from None
    if stream.read(1):
        raise DataError(f"Expected {total} bytes in {where}, got more.")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


class _Bounded:
    """A file that reads little at once: zipfile asks for a whole directory, however long it is."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._read, self.seek, self.tell, self.seekable = stream.read, stream.seek, stream.tell, stream.seekable

    def read(self, size: int = -1) -> bytes:
        data = self._read(size if 0 <= size <= _STEP else _STEP + 1)
        if len(data) > _STEP:
            raise ValueError(f"its directory is longer than {_STEP} bytes")
        return data


def shown(value: object, most: int = 60) -> str:
    """Return something found in a file as it may stand in a sentence: printable, on one line, and short."""
    text = str(value)
    line = "".join(letter if letter.isprintable() else " " for letter in text[:most])
    return line.strip() if len(text) <= most else f"{line.strip()} ..."


def _check_kind(status: os.stat_result, path: Path, what: str, pipe: bool) -> None:
    if not stat.S_ISREG(status.st_mode) and not (pipe and stat.S_ISFIFO(status.st_mode)):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")
        raise DataError(f"Expected {what} at {path}, got {kind}.")
