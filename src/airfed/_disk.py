"""Crash-safe files: atomic replacement, flushed appends, and lock files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def write_atomic(path: Path, content: bytes, *, new: bool = False) -> None:
    """Replace the content of a file atomically; if an OSError is raised, it keeps its old content.

    With `new` the file is created: FileExistsError is raised if it exists, and one of two processes succeeds.
    """
    temporary = path.parent / (f".{path.name}.{os.getpid()}.part" if new else f".{path.name}.part")
    try:
        with temporary.open("wb") as stream:
            flush(stream, content)
        if new:
            os.link(temporary, path)
        else:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def flush(stream: IO[bytes], content: bytes) -> None:
    """Write to an open file and flush it to the disk."""
    stream.write(content)
    stream.flush()
    os.fsync(stream.fileno())


def sync_directory(folder: Path) -> None:
    """Flush a directory, so that its file names survive a crash, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, which is created if missing; BlockingIOError if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether another process holds the lock file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
