"""A file of lines that only grows: each carries the hash of the one before, and other processes may add to it.

Before every line is written the file is locked and read on to its end. Nothing deletes or shortens it. A last line that
a crash left half-written is replaced by the next one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from airfed._disk import flush, write_new

_START: Final = "0" * 64
_LARGEST: Final = 2**30  # bytes of a ledger
_LONGEST: Final = 64 * 2**20  # bytes of a line: the first one lists the devices


class LedgerError(ValueError):
    """The ledger does not hold together, or does not belong to this run."""


@dataclass(kw_only=True)
class Chain(ABC):
    """An open file of hashed JSON lines, the first of the kind "open"; what they mean is for a subclass to say."""

    path: Path
    head: str = _START  # the hash of the last line
    torn: bool = False  # a crash left half a line at the end; the next line takes its place
    _heads: set[str] = field(default_factory=set, repr=False)
    _size: int = field(default=0, repr=False)  # bytes that have been read and verified
    _last: bytes = field(default=b"", repr=False)  # the last line of them
    _number: int = field(default=0, repr=False)  # of that line

    @abstractmethod
    def _enter_line(self, kind: str, entry: dict[str, Any]) -> None:
        """Take note of a line that was read; raises LedgerError, KeyError, TypeError or ValueError if it is wrong."""

    def contains(self, head: str) -> bool:
        """Return whether a line with this hash is in the file."""
        return head in self._heads

    def _start(self, entry: dict[str, Any]) -> None:
        """Make the file, with its first line; raises FileExistsError where there is one."""
        line, head = self._line(entry)
        write_new(self.path, line)
        self._advance(head, line)

    def _read(self, *, repair: bool) -> None:
        """Read and verify the file; with `repair` a last line that a crash left half-written is passed over."""
        _check_regular(self.path)
        try:
            with self.path.open("rb") as stream:
                self._read_on(stream)
        except FileNotFoundError:
            raise LedgerError(f"Expected a ledger at {self.path}; there is none.") from None
        except OSError as error:
            raise LedgerError(f"Cannot read {self.path}: {error.strerror}.") from None
        if self.torn and not repair:
            raise LedgerError(f"{self.path}: line {self._number + 1} is half-written; airfed run --resume repairs it.")
        if not self._number:
            raise LedgerError(f"{self.path}: expected a ledger, got an empty file.")

    @contextmanager
    def _exclusive(self) -> Iterator[IO[bytes]]:
        """The file, locked against other processes and read on to its end; raises LedgerError if it is another one."""
        _check_regular(self.path)
        try:
            stream = self.path.open("r+b")
        except FileNotFoundError:
            raise LedgerError(f"{self.path}: the ledger is gone while a training charges it.") from None
        with stream:
            fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
            stream.seek(self._size - len(self._last))
            if stream.read(len(self._last)) != self._last:
                raise LedgerError(f"{self.path}: lines are gone or changed while a training charges it.")
            self._read_on(stream)
            yield stream

    def _read_on(self, stream: IO[bytes]) -> None:
        """Replay the lines after those that are known. A whole last line counts with or without its newline."""
        stream.seek(self._size)
        self.torn = False
        if self._last and not self._last.endswith(b"\n") and (lost := stream.read(1)) == b"\n":
            self._last += lost  # another process has ended the line meanwhile
            self._size += 1
        while line := stream.readline(_LONGEST):
            if line.endswith(b"\n"):
                self._replay(line)
            elif (entry := _parsed(line)) and self._line(entry)[0] == line + b"\n":
                self._replay(line + b"\n")  # flushed, and its newline cut off: a charge all the same
                self._size -= 1
                self._last = line
            else:
                self.torn = True
                return

    def _append(self, stream: IO[bytes], entry: dict[str, Any]) -> None:
        line, head = self._line(entry)
        lost = b"" if self._last.endswith(b"\n") or not self._last else b"\n"
        stream.seek(self._size)
        flush(stream, lost + line)  # over what a crash left half-written: never a moment without either
        if stream.seek(0, os.SEEK_END) > self._size + len(lost) + len(line):
            stream.truncate(self._size + len(lost) + len(line))  # the rest of it
        self._size += len(lost)
        self._advance(head, line)

    def _line(self, entry: dict[str, Any]) -> tuple[bytes, str]:
        """The bytes of a line, and their hash."""
        content = {name: value for name, value in entry.items() if name != "hash"}
        head = _link(self.head, json.dumps(content, sort_keys=True))
        return json.dumps({**content, "hash": head}, sort_keys=True).encode() + b"\n", head

    def _advance(self, head: str, line: bytes) -> None:
        self.head = head
        self._heads.add(head)
        self._size += len(line)
        self._last = line
        self._number += 1

    def _replay(self, line: bytes) -> None:
        number, entry = self._number + 1, _parsed(line)
        kind = entry.get("kind")
        if not isinstance(entry.get("hash"), str) or not isinstance(kind, str):
            raise LedgerError(f"{self.path}: line {number} is not a ledger line.")
        expected, head = self._line(entry)
        if line != expected:
            raise LedgerError(f"{self.path}: line {number} was changed, or a line before it was.")
        if (kind == "open") != (number == 1):
            raise LedgerError(f"{self.path}: line {number} is of the kind {kind!r}, which does not belong there.")
        del entry["hash"]
        try:
            self._enter_line(kind, entry)
        except LedgerError:
            raise
        except (KeyError, TypeError, ArithmeticError, ValueError):
            raise LedgerError(f"{self.path}: line {number} is not what a ledger holds there.") from None
        self._advance(head, line)


def whole(entry: dict[str, Any], name: str) -> int:
    """Return a whole number of a line; raises KeyError or ValueError where there is none."""
    value = entry[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return value


def number(entry: dict[str, Any], name: str) -> float:
    """Return a number of a line, finite and not negative; raises KeyError or ValueError where there is none."""
    value = entry[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise ValueError
    return value


def _check_regular(path: Path) -> None:
    """Raise where a pipe, a device or a folder is in the place of a ledger, or something absurdly large."""
    if path.exists() and (not path.is_file() or path.stat().st_size > _LARGEST):
        raise LedgerError(f"Expected a ledger at {path}; this is no file, or far too large.")


def _parsed(line: bytes) -> dict[str, Any]:
    """The object of a line; empty where it is none."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _link(previous: str, body: str) -> str:
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()
