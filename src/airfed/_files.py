"""Safe reading of user files: regular files only, bounded sizes, and a `DataError` with one sentence for any defect.

Pipes, devices and sockets are refused before they are opened, except an open pipe for a TOML file (/dev/stdin). The
size in a header (NumPy, IDX, zip) is compared with the file size before allocation. Nothing is unpickled.
"""

from __future__ import annotations

import io
import json
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

MAX_EXPANSION: Final = 100  # of a compressed array above `SMALL_FILE`; images need about 5, sparse tables about 50
DEFLATE_EXPANSION: Final = 1032  # the limit of DEFLATE
SMALL_FILE: Final = 2**26  # bytes that are read without a check of memory
MAX_TEXT: Final = 2**25  # bytes; a list of a million gains has 20 MB

_STEP: Final = 2**20  # bytes read at once; limits the directory of an archive to some 10,000 arrays
_HEADER: Final = 10_012  # bytes; NumPy's limit of a header, including its length and version
_MOST_DIMENSIONS: Final = 32
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile has no limit for other methods
_NUMBERS: Final = "bhilqBHILQefdFD"  # types, by NumPy's letters: no objects, texts, dates or records
_CONTAINER: Final = Path("/sys/fs/cgroup")
_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_KINDS: Final = {
    **{stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"},
    **dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "a device"),
}
_HANDED: Final = re.compile(r"/dev/stdin|/(?:dev|proc/self)/fd/[0-9]+")  # names of an open pipe in a shell
_PART: Final = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_MOST_PARTS: Final = 16  # of a dotted key; tomllib's time grows with their square
_LONG_KEY: Final = re.compile(rf"(?:\.[ \t]*+{_PART}[ \t]*+){{{_MOST_PARTS}}}")


class DataError(ValueError):
    """A file is missing, damaged or malicious; the message names it and says what to do."""


@contextmanager
def opened(path: Path, what: str, *, hint: str = "", pipe: bool = False) -> Iterator[IO[bytes]]:
    """Open a regular file for reading; with `pipe`, also a pipe that is already open in this process.

    A DataError names `what` was to be read, such as "a scenario", and adds `hint` if the file does not exist.
    """
    pipe = pipe and _HANDED.fullmatch(str(path)) is not None
    try:
        _check_kind(os.stat(path), path, what, pipe)  # before opening: some devices act on being opened
        with os.fdopen(os.open(path, _FLAGS), "rb") as stream:
            _check_kind(os.fstat(stream.fileno()), path, what, pipe)
            os.set_blocking(stream.fileno(), True)
            yield stream
    except FileNotFoundError:
        raise DataError(f"Cannot read {what} from {path}: there is no such file{hint}.") from None
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from None
    except DataError:
        raise
    except ValueError as error:  # a NUL in the path
        raise DataError(f"Cannot read {str(path)!r}: {error}.") from None


def read_exactly(stream: IO[bytes], size: int) -> bytes:
    """Return up to `size` bytes of the stream, read in bounded steps."""
    parts: list[bytes] = []
    while size > 0 and (part := stream.read(min(size, _STEP))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_text(path: Path, what: str, *, hint: str = "", pipe: bool = False) -> str:
    """Return the text of a file in UTF-8 of at most `MAX_TEXT` bytes, with plain newlines."""
    with opened(path, what, hint=hint, pipe=pipe) as stream:
        raw = read_exactly(stream, MAX_TEXT + 1)
    if len(raw) > MAX_TEXT:
        raise DataError(
            f"Cannot read {what} from {path}: it is longer than {MAX_TEXT // 2**20} MiB. Store long lists in a .npy "
            "file."
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} must be a text in UTF-8, got other data (byte {error.start}).") from None
    if "\0" in text:
        raise DataError(f"{path} must be a text in UTF-8, got other data (a NUL, byte {raw.index(0)}).")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_toml(path: Path, what: str, *, hint: str = "") -> dict[str, Any]:
    """Return the tables of a TOML file."""
    try:
        return parse_toml(read_text(path, what, hint=hint, pipe=True))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path}: not valid TOML: {error}.") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of an untrusted TOML text; every defect is a TOMLDecodeError."""
    if _LONG_KEY.search(text):
        raise tomllib.TOMLDecodeError(f"a key has more than {_MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("brackets are nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        if "Invalid value" not in str(error):
            raise
        hint = "a text needs quotes, and a number needs a digit on both sides of its point"
        raise tomllib.TOMLDecodeError(f"{error}: {hint}") from None
    except ValueError:
        raise tomllib.TOMLDecodeError("a number has too many digits") from None


def toml_value(value: Any) -> str:
    """Return a plain value as TOML; tables are inline."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def check_declared_size(size: int, *, stored: int, where: str, packed: bool) -> None:
    """Raise unless `stored` bytes, compressed or not, can hold the declared `size`, which must fit into memory."""
    most = 1 if not packed else DEFLATE_EXPANSION if size <= SMALL_FILE else MAX_EXPANSION
    if size > most * stored:
        limit = f"{most} times its {stored} compressed bytes" if packed else f"its {stored} bytes"
        hint = " If this is correct, store it uncompressed." if packed else ""
        raise DataError(f"The header of {where} declares {size} bytes, more than {limit}.{hint}")
    check_memory(size, where)


def check_memory(size: int, where: str) -> None:
    """Raise unless `size` bytes fit into half of the free memory; the other half is needed for computing."""
    if size > SMALL_FILE and size > (free := free_memory()) // 2:
        raise DataError(
            f"{where} does not fit into half of the free memory: it needs {size / 2**20:.0f} MiB of "
            f"{free / 2**20:.0f} MiB."
        )


def free_memory() -> int:
    """Return the free bytes of the system or, if fewer, of the container, as far as they are known."""
    free = [2**62]
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            free += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
        limit, used = ((_CONTAINER / name).read_text() for name in ("memory.max", "memory.current"))
        free.append(max(0, int(limit) - int(used)))  # "max", not a number: no limit
    except (OSError, ValueError):  # another operating system; NumPy then raises MemoryError
        pass
    return min(free)


def load_npy(source: Path | bytes, *, name: str = "", max_values: int | None = None) -> NDArray[Any]:
    """Return the array of a .npy file, or of its content, in native byte order.

    Raise DataError if it is not an array of plain numbers (i, u, f or c) as its header says, or is too large.
    """
    with _numpy(source, name) as (stream, where):
        return _array(stream, stream_length(stream), where, max_values)


def load_npz(source: Path | bytes, names: Mapping[str, tuple[str, ...]], *, name: str = "") -> dict[str, NDArray[Any]]:
    """Return arrays of an .npz file, or of its content, each under the first accepted name in it.

    Raise DataError also for an array that occurs twice, is encrypted, or is compressed more than a hundredfold.
    """
    with _numpy(source, name) as (stream, where):
        length = stream_length(stream)
        with zipfile.ZipFile(cast(IO[bytes], _Bounded(stream))) as archive:
            stems = [info.filename.removesuffix(".npy") for info in archive.infolist()]
            members = dict(zip(stems, archive.infolist(), strict=True))
            if len(members) < len(stems):
                raise DataError(f"The arrays in {where} must have different names; one name occurs twice.")
            arrays = {}
            for wanted, accepted in names.items():
                found = next((member for member in accepted if member in members), None)
                if found is None:
                    got = ", ".join(map(shown, sorted(members)[:8])) or "none"
                    raise DataError(f"{where} must have an array named {' or '.join(accepted)}; got {got}.")
                info, member = members[found], f"{found} in {where}"
                if info.flag_bits & 1 or info.compress_type not in _METHODS:
                    method = "encryption" if info.flag_bits & 1 else f"method {info.compress_type}"
                    raise DataError(f"{member} must be stored or deflated, got {method}.")
                stored, packed = min(info.compress_size, length), info.compress_type == zipfile.ZIP_DEFLATED
                check_declared_size(info.file_size, stored=stored, where=member, packed=packed)
                with archive.open(info) as content:
                    arrays[wanted] = _array(content, info.file_size, member, None)
            return arrays


def stream_length(stream: IO[bytes]) -> int:
    """Return the length of a file in bytes, and rewind it."""
    length = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return length


@contextmanager
def _numpy(source: Path | bytes, name: str) -> Iterator[tuple[IO[bytes], str]]:
    """Open a NumPy file, or its content, with its name; turn every exception into a DataError."""
    where = name or ("the data" if isinstance(source, bytes) else str(source))
    with nullcontext(io.BytesIO(source)) if isinstance(source, bytes) else opened(source, "a NumPy file") as stream:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Python and NumPy about unusual headers
                yield stream, where
        except DataError:
            raise
        except Exception as error:  # NumPy, zipfile and zlib raise many kinds
            reason = shown(error) or type(error).__name__
            raise DataError(
                f"{where} must be a complete NumPy array or NPZ archive; it is damaged ({reason})."
            ) from None


def _array(stream: IO[bytes], total: int, where: str, max_values: int | None) -> NDArray[Any]:
    """Return the array in a stream of `total` bytes, after a check of its header."""
    head = io.BytesIO(stream.read(_HEADER))  # a header may declare more
    read = np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0
    shape, _, dtype = read[np.lib.format.read_magic(head) != (1, 0)](head)
    if dtype.char not in _NUMBERS:
        raise DataError(f"{where} must have plain numbers, got type {shown(repr(dtype.str))}.")
    size = (count := math.prod(shape)) * dtype.itemsize
    if head.tell() + size != total or len(shape) > _MOST_DIMENSIONS:
        raise DataError(
            f"{where} must match its header; shape {shown(shape)} of {dtype} does not fill its {total} bytes."
        )
    if max_values is not None and count > max_values:
        raise DataError(f"{where} must have at most {max_values} values, got {count}.")
    check_memory(size, where)
    stream.seek(0)
    try:
        array: NDArray[Any] = np.load(stream, allow_pickle=False)
    except MemoryError:
        raise DataError(f"{where} does not fit into memory: it has {size} bytes.") from None
    if stream.read(1):
        raise DataError(f"{where} must have {total} bytes, got more.")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


class _Bounded:
    """A file that limits each read: zipfile reads a whole directory at once."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._read, self.seek, self.tell, self.seekable = stream.read, stream.seek, stream.tell, stream.seekable

    def read(self, size: int = -1) -> bytes:
        data = self._read(size if 0 <= size <= _STEP else _STEP + 1)
        if len(data) > _STEP:
            raise ValueError(f"its directory is longer than {_STEP} bytes")
        return data


def shown(value: object, most: int = 60) -> str:
    """Return a value from a file as a short, printable text on one line, for a message."""
    text = str(value)
    line = "".join(letter if letter.isprintable() else " " for letter in text[:most])
    return line.strip() if len(text) <= most else f"{line.strip()} ..."


def _check_kind(status: os.stat_result, path: Path, what: str, pipe: bool) -> None:
    if not stat.S_ISREG(status.st_mode) and not (pipe and stat.S_ISFIFO(status.st_mode)):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "not a regular file")
        raise DataError(f"Cannot read {what} from {path}: it is {kind}.")
