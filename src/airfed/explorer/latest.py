"""Work that is only worth doing for the newest wish."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from nicegui import background_tasks

_GRACE: Final = 0.3  # seconds after which work that nobody waits for any more is given up


class Latest:
    """Does its work once for every wish; wishes that arrive meanwhile are gathered into one more.

    Args:
        work: what is done. It is given up, if it takes more than a moment, when something else is wished.
    """

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._wished = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def outdated(self) -> bool:
        """Whether something newer is wished already."""
        return self._wished.is_set()

    def wish(self) -> None:
        """Ask for the work to be done, now or as soon as `start` is called."""
        self._wished.set()

    def start(self) -> None:
        """Begin to work."""
        if self._task is None:
            self._task = background_tasks.create(self._go_on(), name="latest")

    def stop(self) -> None:
        """Give up what is being done."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _go_on(self) -> None:
        while True:
            await self._wished.wait()
            self._wished.clear()
            await self._once()

    async def _once(self) -> None:
        job, newer = asyncio.ensure_future(self._work()), asyncio.ensure_future(self._wished.wait())
        try:
            await asyncio.wait({job}, timeout=_GRACE)
            await asyncio.wait({job, newer}, return_when=asyncio.FIRST_COMPLETED)
            if job.done():
                job.result()
        finally:
            for task in (job, newer):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
