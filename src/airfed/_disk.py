"""Files that survive a crash: replaced whole or appended to and flushed, and locks that harm no other file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file by new content, whole or not at all, whatever happens meanwhile.

    Raises:
        OSError: it cannot be written; the file is as it was.
    """
    beside = path.parent / f".{path.name}.part"
    try:
        with beside.open("wb") as stream:
            flush(stream, content)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_new(path: Path, content: bytes) -> None:
    """Create a file with its content, whole or not at all; of two processes that try, one succeeds.

    Raises:
        FileExistsError: there is one already.
        OSError: it cannot be written.
    """
    beside = path.parent / f".{path.name}.{os.getpid()}.part"
    try:
        with beside.open("wb") as stream:
            flush(stream, content)
        os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)


def flush(stream: IO[bytes], content: bytes) -> None:
    """Write to an open file; on return the content is on the disk."""
    stream.write(content)
    stream.flush()
    os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder, so that the names in it survive a crash, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, made where there is none; a link in its place is not followed, and nothing is written.

    Raises:
        BlockingIOError: another process holds it.
        OSError: it cannot be made.
    """
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
