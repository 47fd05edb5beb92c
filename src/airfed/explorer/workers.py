"""The server's side of its workers: who computes, for how long, and how many at once.

Every request has a second of its own at once; what needs longer is begun again in a second line, where fewer run at the
same time and each has more time. So a light request never waits for heavy ones. A request that is
given up (its visitor left, or asked for something else) ends its worker.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar, TypeVarTuple

from airfed.explorer import worker

A = TypeVarTuple("A")
R = TypeVar("R")

QUICK: Final = 1.0  # seconds of a request in the first line
PATIENT: Final = 20.0  # and in the second
_QUICK_AT_ONCE: Final = 4
_PATIENT_AT_ONCE: Final = 2
_MOST_IDLE: Final = 2


class TooMuchError(Exception):
    """A request needs more time or memory than one may have."""


class Workers:
    """Runs functions in processes that can be ended; belongs to one event loop.

    Args:
        quick, patient: seconds of a request in the first and in the second line.
    """

    def __init__(self, *, quick: float = QUICK, patient: float = PATIENT) -> None:
        self._seconds = (quick, patient)
        self._lines = (asyncio.Semaphore(_QUICK_AT_ONCE), asyncio.Semaphore(_PATIENT_AT_ONCE))
        self._idle: list[_Worker] = []
        self._control: socket.socket | None = None
        self._nursery: subprocess.Popen[bytes] | None = None
        self._start()

    async def run(self, function: Callable[[*A], R], *arguments: *A) -> R:
        """Return what a module's function returns, computed elsewhere.

        Raises:
            TooMuchError: it took too long, too much memory, or broke down.
        """
        for line, seconds in zip(self._lines, self._seconds, strict=True):
            async with line:
                try:
                    answer = await self._ask(seconds, function, arguments)
                except TimeoutError:
                    continue
            if isinstance(answer, worker.TooMuchMemory):
                raise TooMuchError(f"This takes more than {worker.MEMORY / 2**30:g} GB: make it smaller.")
            result: R = answer
            return result
        raise TooMuchError(f"This takes more than {self._seconds[-1]:g} seconds: make it smaller.")

    def close(self) -> None:
        """End every worker, busy or not."""
        for idle in self._idle:
            idle.close()
        self._idle.clear()
        if self._control is not None:
            self._control.close()  # the nursery ends with it, and its workers too
        if self._nursery is not None:
            try:
                self._nursery.wait(5)
            except subprocess.TimeoutExpired:
                self._nursery.kill()
                self._nursery.wait()

    async def _ask(self, seconds: float, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        member = self._idle.pop() if self._idle else await self._hire()
        kept = False
        try:
            async with asyncio.timeout(seconds):
                answer = await member.ask(function, arguments)
            kept = len(self._idle) < _MOST_IDLE and not isinstance(answer, worker.TooMuchMemory)
            return answer
        except (asyncio.IncompleteReadError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise TooMuchError("The computation broke down: make the problem smaller.") from None
        finally:
            if kept:
                self._idle.append(member)
            else:
                member.close()

    async def _hire(self) -> _Worker:
        if self._nursery is None or self._nursery.poll() is not None:
            self._start()
        assert self._control is not None
        mine, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"+"], [theirs.fileno()])
        return _Worker(*await asyncio.open_connection(sock=mine, limit=2**20))

    def _start(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._nursery = subprocess.Popen(
                [sys.executable, "-m", "airfed.explorer.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C reaches the server alone, which then ends the others
            )


class _Worker:
    """One line to a worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self._writer.write(worker.encode((function, arguments)))
        await self._writer.drain()
        head = await self._reader.readexactly(worker.LENGTH)
        return worker.decode(await self._reader.readexactly(worker.length(head)))

    def close(self) -> None:
        self._writer.transport.abort()
