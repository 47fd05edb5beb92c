"""What the page computes is computed elsewhere, within limits, and can be given up."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("markupsafe", reason="the explorer's packages are not installed (pip install airfed[web])")

from airfed.explorer import shown
from airfed.explorer.design import Design
from airfed.explorer.workers import TooMuchError, Workers

PATIENCE = 60.0  # seconds; a busy machine is slow, a broken one never answers


@asynccontextmanager
async def working(quick: float = PATIENCE, patient: float = PATIENCE) -> AsyncIterator[Workers]:
    workers = Workers(quick=quick, patient=patient)
    try:
        yield workers
    finally:
        workers.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(3 * PATIENCE):
            await test()

    asyncio.run(within())


async def ended(pid: int) -> None:
    """Returns when a process is no more."""
    while (status := Path(f"/proc/{pid}/stat")).exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        await asyncio.sleep(0.01)


def test_an_answer_is_what_the_function_returns_and_the_worker_is_kept() -> None:
    async def test() -> None:
        async with working() as workers:
            first = await workers.run(os.getpid)
            there = await workers.run(shown.show, Design(), 800.0, 400.0)
            here = shown.show(Design(), 800.0, 400.0)
            assert isinstance(there, shown.Shown)
            assert isinstance(here, shown.Shown)
            assert (there.sentence, there.cards) == (here.sentence, here.cards)
            assert await workers.run(os.getpid) == first != os.getpid()

    run(test)


def test_what_takes_too_long_is_ended_and_others_are_served() -> None:
    async def test() -> None:
        async with working(quick=PATIENCE) as workers:
            pid = await workers.run(os.getpid)
            workers._seconds = (0.05, 0.1)
            with pytest.raises(TooMuchError, match=r"more than 0\.1 seconds"):
                await workers.run(time.sleep, 1000.0)
            workers._seconds = (PATIENCE, PATIENCE)
            await ended(pid)
            assert await workers.run(os.getpid) != pid

    run(test)


def test_a_light_request_does_not_wait_for_heavy_ones() -> None:
    async def test() -> None:
        async with working(quick=0.5, patient=1000.0) as workers:
            heavy = [asyncio.ensure_future(workers.run(time.sleep, 1000.0)) for _ in range(8)]
            done = None
            while done is None:  # a busy machine may need more than one quick turn
                light = asyncio.ensure_future(workers.run(os.getpid))
                await asyncio.wait({light}, timeout=10)
                done = light.result() if light.done() else None
                light.cancel()
            for task in heavy:
                task.cancel()
            assert all(
                isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*heavy, return_exceptions=True)
            )

    run(test)


def test_what_takes_too_much_memory_is_refused() -> None:
    async def test() -> None:
        async with working() as workers:
            with pytest.raises(TooMuchError, match="more than 2 GB"):
                await workers.run(bytearray, 5 * 2**30)
            assert await workers.run(os.getpid)

    run(test)


def test_what_breaks_down_takes_nobody_with_it() -> None:
    async def test() -> None:
        async with working() as workers:
            with pytest.raises(TooMuchError, match="broke down"):
                await workers.run(os._exit, 3)
            assert await workers.run(os.getpid)
            assert workers._nursery is not None
            workers._nursery.kill()
            workers._nursery.wait()
            kept = [await workers.run(os.getpid)]  # from an idle worker, or from a new nursery
            kept += await asyncio.gather(workers.run(os.getpid), workers.run(os.getpid), workers.run(os.getpid))
            assert all(kept)

    run(test)


def test_a_request_that_is_given_up_ends_its_worker() -> None:
    async def test() -> None:
        async with working() as workers:
            pid = await workers.run(os.getpid)
            task = asyncio.ensure_future(workers.run(time.sleep, 1000.0))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await ended(pid)

    run(test)


def test_closing_ends_busy_workers() -> None:
    async def test() -> None:
        async with working() as workers:
            pid = await workers.run(os.getpid)
            task = asyncio.ensure_future(workers.run(time.sleep, 1000.0))
            await asyncio.sleep(0)
            await asyncio.to_thread(workers.close)
            await ended(pid)
            with pytest.raises(TooMuchError):
                await task

    run(test)
