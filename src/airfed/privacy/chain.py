"""An append-only file whose lines form a hash chain; several processes may append to it.

Before each append the file is locked and read to its end. Lines are never deleted. If a crash leaves the last line
half-written, the next line replaces it.
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

from airfed._disk import flush, write_atomic

_START: Final = "0" * 64
_MAX_FILE_SIZE: Final = 2**30  # bytes
_MAX_LINE_SIZE: Final = 64 * 2**20  # bytes; the first line lists the devices


class LedgerError(ValueError):
    """The ledger is damaged or inconsistent, or belongs to another run."""


@dataclass(kw_only=True)
class Chain(ABC):
    """An open file of hashed JSON lines, the first of kind "open"; subclasses interpret the lines."""

    path: Path
    head: str = _START  # the hash of the last line
    torn: bool = False  # the last line is half-written after a crash; the next line replaces it
    _heads: set[str] = field(default_factory=set, repr=False)
    _size: int = field(default=0, repr=False)  # bytes that have been read and verified
    _last: bytes = field(default=b"", repr=False)  # the last verified line
    _number: int = field(default=0, repr=False)  # its number

    @abstractmethod
    def _enter_line(self, kind: str, entry: dict[str, Any]) -> None:
        """Process a line that was read; raises LedgerError, KeyError, TypeError or ValueError if it is wrong."""

    def contains(self, head: str) -> bool:
        """Return whether a line with this hash is in the file."""
        return head in self._heads

    def _start(self, entry: dict[str, Any]) -> None:
        """Create the file with its first line; raises FileExistsError if it exists."""
        line, head = self._line(entry)
        write_atomic(self.path, line, new=True)
        self._advance(head, line)

    def _read(self, *, repair: bool) -> None:
        """Read and verify the file; `repair` ignores a half-written last line."""
        _check_regular(self.path)
        try:
            with self.path.open("rb") as stream:
                self._read_on(stream)
        except FileNotFoundError:
            raise LedgerError(f"There is no ledger at {self.path}.") from None
        except OSError as error:
            raise LedgerError(f"Cannot read {self.path}: {error.strerror}.") from None
        if self.torn and not repair:
            raise LedgerError(f"{self.path}: line {self._number + 1} is half-written; airfed run --resume repairs it.")
        if not self._number:
            raise LedgerError(f"{self.path}: the ledger is empty.")

    @contextmanager
    def _exclusive(self) -> Iterator[IO[bytes]]:
        """Lock the file against other processes and read it to its end; raises LedgerError if it was replaced."""
        _check_regular(self.path)
        try:
            stream = self.path.open("r+b")
        except FileNotFoundError:
            raise LedgerError(f"{self.path}: the ledger was deleted while a training charges it.") from None
        with stream:
            fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
            stream.seek(self._size - len(self._last))
            if stream.read(len(self._last)) != self._last:
                raise LedgerError(f"{self.path}: lines were deleted or changed while a training charges it.")
            self._read_on(stream)
            yield stream

    def _read_on(self, stream: IO[bytes]) -> None:
        """Replay the lines after the verified ones. A complete last line counts with or without its newline."""
        stream.seek(self._size)
        self.torn = False
        if self._last and not self._last.endswith(b"\n") and (lost := stream.read(1)) == b"\n":
            self._last += lost  # another process has written the newline
            self._size += 1
        while line := stream.readline(_MAX_LINE_SIZE):
            if line.endswith(b"\n"):
                self._replay(line)
            elif (entry := _parsed(line)) and self._line(entry)[0] == line + b"\n":
                self._replay(line + b"\n")  # complete but for its newline: a valid charge
                self._size -= 1
                self._last = line
            else:
                self.torn = True
                return

    def _append(self, stream: IO[bytes], entry: dict[str, Any]) -> None:
        line, head = self._line(entry)
        lost = b"" if self._last.endswith(b"\n") or not self._last else b"\n"
        if len(line) > _MAX_LINE_SIZE or self._size + len(line) > _MAX_FILE_SIZE:
            raise LedgerError(f"{self.path}: the ledger would exceed {_MAX_FILE_SIZE // 2**20} MiB. Plan fewer rounds.")
        stream.seek(self._size)
        flush(stream, lost + line)  # overwrites a half-written line
        if stream.seek(0, os.SEEK_END) > self._size + len(lost) + len(line):
            stream.truncate(self._size + len(lost) + len(line))  # the rest of the half-written line
        self._size += len(lost)
        self._advance(head, line)

    def _line(self, entry: dict[str, Any]) -> tuple[bytes, str]:
        """Return the bytes of a line, and its hash."""
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
            raise LedgerError(f"{self.path}: line {number} or a line before it was changed.")
        if (kind == "open") != (number == 1):
            raise LedgerError(f"{self.path}: line {number} is of kind {kind!r}, which does not belong there.")
        del entry["hash"]
        try:
            self._enter_line(kind, entry)
        except LedgerError:
            raise
        except (KeyError, TypeError, ArithmeticError, ValueError):
            raise LedgerError(f"{self.path}: line {number} is not a valid ledger line.") from None
        self._advance(head, line)


def whole(entry: dict[str, Any], name: str) -> int:
    """Return a whole number of a line; raises KeyError or ValueError if there is none."""
    value = entry[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return value


def number(entry: dict[str, Any], name: str) -> float:
    """Return a finite non-negative number of a line; raises KeyError or ValueError if there is none."""
    value = entry[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise ValueError
    return value


def _check_regular(path: Path) -> None:
    """Raise if a ledger is not a regular file or is far too large."""
    if path.exists() and (not path.is_file() or path.stat().st_size > _MAX_FILE_SIZE):
        raise LedgerError(f"{path} is not a ledger: it is not a regular file, or far too large.")


def _parsed(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; empty if it is none."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _link(previous: str, body: str) -> str:
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()
