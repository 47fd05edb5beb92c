"""Computation away from the server: NiceGUI's pool of worker processes, with limits on a request's time and memory."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from nicegui import background_tasks, run

R = TypeVar("R")

SECONDS: Final = 20.0  # for one request
MEMORY: Final = 2 * 2**30  # bytes of address space of a worker process
_SMALLER: Final = "make it smaller, with fewer devices, steps or rounds (policy.rounds)"
_IMPORTED_BY: Final = os.getpid()


class RefusedError(Exception):
    """A request is wrong, or needs more time or memory than it may have."""


class _OutOfTime(BaseException):
    """The time of a request is over; no `except Exception` may swallow it."""


def configure() -> None:
    """Choose how worker processes start: forked from a process that has imported everything."""
    run.process_pool_start_method = "forkserver"
    multiprocessing.set_forkserver_preload(["airfed.explorer.view", "airfed.explorer.worker"])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


async def compute(function: Callable[..., R], *arguments: Any, seconds: float = SECONDS) -> R:
    """Return what a module's function returns, computed in a worker process, or raise RefusedError."""
    try:
        answer = await run.cpu_bound(limited, seconds, function, arguments)
    except BrokenProcessPool:
        raise RefusedError("The computation broke down: make the problem smaller.") from None
    if answer is None:  # NiceGUI's answer where a request was cancelled, or the server stops
        raise asyncio.CancelledError
    result, refusal = answer
    if refusal:
        raise RefusedError(refusal)
    return result  # type: ignore[no-any-return]


def limited(seconds: float, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
    """Return what a function returns, and why it returned nothing; called in a worker process."""
    _prepare()
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again each second, should a callback swallow it
        try:
            return function(*arguments), ""
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    except _OutOfTime:
        return None, f"This takes more than {seconds:g} seconds: {_SMALLER}."
    except MemoryError:
        return None, f"This takes more than {MEMORY / 2**30:g} GB: {_SMALLER}."
    except ValueError as error:  # no plan fits, or the scenario or the user's own policy is wrong
        return None, str(error)


@cache
def _prepare() -> None:
    """Limit this worker process's memory, and end it with the server, however that ends."""
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
    if os.getppid() == _IMPORTED_BY:  # the process that forks; its other children may have had no request yet
        with contextlib.suppress(OSError):
            for pid in Path(f"/proc/{_IMPORTED_BY}/task/{_IMPORTED_BY}/children").read_text().split():
                if int(pid) != os.getpid():
                    os.kill(int(pid), signal.SIGKILL)
    os._exit(0)


class Latest:
    """Repeats its work for the newest request, between `start` and `stop`; requests made meanwhile become one more."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work, self._wished = work, asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.wish, self.outdated = self._wished.set, self._wished.is_set

    def start(self) -> None:
        """Begin to work."""
        if self._task is None:
            self._task = background_tasks.create(self._repeat(), name="latest")

    def stop(self) -> None:
        """Wait for no more results."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _repeat(self) -> None:
        while True:
            await self._wished.wait()
            self._wished.clear()
            await self._work()
