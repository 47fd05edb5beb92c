"""Computation in NiceGUI's pool of worker processes, with limits on the time and memory of a request."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from nicegui import run

R = TypeVar("R")

SECONDS: Final = 20.0  # for one request
MEMORY: Final = 2 * 2**30  # bytes of address space of a worker process
_SMALLER: Final = "Reduce the devices, the steps or the rounds (policy.rounds)"
_IMPORTED_BY: Final = os.getpid()


class RefusedError(Exception):
    """A request is invalid or exceeds its time or memory limit."""


class _OutOfTime(BaseException):
    """A request exceeded its time limit; derived from BaseException so that no `except Exception` catches it."""


def configure() -> None:
    """Fork worker processes from a process that has imported everything."""
    run.process_pool_start_method = "forkserver"
    multiprocessing.set_forkserver_preload(["airfed.explorer.view", "airfed.explorer.worker"])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


async def compute(function: Callable[..., R], *arguments: Any, seconds: float = SECONDS) -> R:
    """Return the result of a module's function, computed in a worker process, or raise RefusedError."""
    try:
        answer = await run.cpu_bound(limited, seconds, function, arguments)
    except BrokenProcessPool:
        raise RefusedError(f"The computation failed. {_SMALLER}.") from None
    if answer is None:  # NiceGUI returns None when a request is cancelled or the server stops
        raise asyncio.CancelledError
    result, refusal = answer
    if refusal:
        raise RefusedError(refusal)
    return result  # type: ignore[no-any-return]


def limited(seconds: float, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
    """Return the result of a function and the reason for a missing one; called in a worker process."""
    _prepare()
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # repeated each second in case a callback catches it
        try:
            return function(*arguments), ""
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    except _OutOfTime:
        return None, f"This takes more than {seconds:g} seconds. {_SMALLER}."
    except MemoryError:
        return None, f"This takes more than {MEMORY / 2**30:g} GB. {_SMALLER}."
    except ValueError as error:  # no feasible plan, or an invalid scenario or user policy
        return None, str(error)


@cache
def _prepare() -> None:
    """Limit the memory of this worker process, and make it exit when the server does."""
    signal.signal(signal.SIGALRM, _expire)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard), hard))
    threading.Thread(target=_end_with_server, daemon=True).start()


def _expire(*_: object) -> None:
    raise _OutOfTime


def _end_with_server() -> None:
    server = multiprocessing.parent_process()
    assert server is not None
    server.join()
    if os.getppid() == _IMPORTED_BY:  # the forkserver; some of its children may have had no request yet
        with contextlib.suppress(OSError):
            for pid in Path(f"/proc/{_IMPORTED_BY}/task/{_IMPORTED_BY}/children").read_text().split():
                if int(pid) != os.getpid():
                    os.kill(int(pid), signal.SIGKILL)
    os._exit(0)
