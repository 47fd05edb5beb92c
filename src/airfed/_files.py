"""Reading what a user names: regular files only, never more than a stated size, and one sentence for whatever is wrong.

A pipe, a device or a socket is refused before it is opened, so that nothing hangs, unless it is a pipe that the user
has handed over for a TOML file (`/dev/stdin`, `<(command)`); no file is believed to be as long as it says; and nothing
is made room for that does not fit into memory.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

MOST_EXPANSION: Final = 100  # of a compressed array above `UNASKED`; images shrink to a fifth, sparse tables to a 50th
DEFLATE_EXPANSION: Final = 1032  # DEFLATE cannot do more, so a larger claim is a lie
UNASKED: Final = 2**26  # bytes that any file may take
MOST_TEXT: Final = 2**25  # bytes of a file; the list of a million gains takes 20 MB

_STEP: Final = 2**20
_CONTAINER: Final = Path("/sys/fs/cgroup")
_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
_HANDED: Final = re.compile(r"/dev/stdin|/(?:dev|proc/self)/fd/[0-9]+")  # what a shell calls an open pipe
_PART: Final = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_MOST_PARTS: Final = 16  # of a dotted key; tomllib's time grows with their square
_LONG_KEY: Final = re.compile(rf"(?:\.[ \t]*+{_PART}[ \t]*+){{{_MOST_PARTS}}}")


class DataError(ValueError):
    """A file is missing, damaged or hostile; the message says which and what to do."""


@contextmanager
def opened(path: Path, what: str, *, hint: str = "", pipe: bool = False) -> Iterator[IO[bytes]]:
    """Open a regular file, or a pipe, for reading.

    Args:
        path: the file.
        what: what it should be, as in "a scenario".
        hint: said in addition where there is no such file.
        pipe: whether it may be a pipe that this process was handed open; it is waited for.

    Raises:
        DataError: it is missing, no regular file, or cannot be read (now or inside the block).
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
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"Cannot read {str(path)!r}: {error}.") from None  # a NUL in the path


def read_exactly(stream: IO[bytes], size: int) -> bytes:
    """Return up to `size` bytes of the stream, read in bounded steps: no claim is allocated."""
    parts: list[bytes] = []
    while size > 0 and (part := stream.read(min(size, _STEP))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_text(path: Path, what: str, *, hint: str = "", pipe: bool = False) -> str:
    """Return the text of a file in UTF-8, at most `MOST_TEXT` bytes of it.

    A byte order mark is removed, and every kind of line end is turned into a newline.

    Raises:
        DataError: see `opened`; or it is no text in UTF-8.
    """
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
    """Return the tables of a TOML file.

    Raises:
        DataError: see `opened`; or it is no valid TOML.
    """
    try:
        return parse_toml(read_text(path, what, hint=hint, pipe=True))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path}: not valid TOML: {error}.") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text of whatever origin.

    Raises:
        TOMLDecodeError: it is no valid TOML; what tomllib says in other ways, or after hours, included.
    """
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


def check_claim(size: int, *, stored: int, where: str) -> None:
    """Raise unless `stored` compressed bytes may be trusted to unpack to `size`.

    Raises:
        DataError: that is impossible, or so much that it looks like an attack on the memory.
    """
    most = DEFLATE_EXPANSION if size <= UNASKED else MOST_EXPANSION
    if size > most * stored:
        raise DataError(
            f"Expected {where} to be at most {most} times the {stored} bytes that hold it, it claims {size}; "
            "if that is true, store it uncompressed."
        )


def check_memory(size: int, where: str) -> None:
    """Raise unless `size` bytes fit into half of the free memory (the rest is needed to work with them).

    Raises:
        DataError: they do not.
    """
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


def shown(value: object, most: int = 60) -> str:
    """Return something found in a file as it may stand in a sentence: printable, on one line, and short."""
    text = str(value)
    line = "".join(letter if letter.isprintable() else " " for letter in text[:most])
    return line.strip() if len(text) <= most else f"{line.strip()} ..."


def _check_kind(status: os.stat_result, path: Path, what: str, pipe: bool) -> None:
    if not stat.S_ISREG(status.st_mode) and not (pipe and stat.S_ISFIFO(status.st_mode)):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "no regular file")
        raise DataError(f"Expected {what} at {path}, got {kind}.")
