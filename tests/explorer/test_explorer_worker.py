"""Computations run in worker processes with limits on time and memory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

pytest.importorskip("nicegui", reason="NiceGUI is not installed: pip install airfed[web]")

from nicegui import run as nicegui_run

from airfed.explorer import view, worker
from airfed.explorer.design import Design
from airfed.explorer.worker import RefusedError, compute

TIMEOUT = 60.0  # seconds; a busy machine is slow, a broken one never answers


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        worker.configure()
        nicegui_run.setup()
        try:
            async with asyncio.timeout(3 * TIMEOUT):
                await test()
        finally:
            nicegui_run.reset()

    asyncio.run(within())


def test_compute_returns_the_result_of_the_function() -> None:
    async def test() -> None:
        there = await compute(view.show, Design())
        here = view.show(Design())
        assert isinstance(there, view.View)
        assert isinstance(here, view.View)
        assert (there.sentence, there.cards) == (here.sentence, here.cards)
        assert await compute(os.getpid) != os.getpid()

    run(test)


def count_for_ever() -> None:
    while True:
        try:
            sum(range(1000))
        except Exception:  # a careless library
            continue


def test_a_request_beyond_its_time_or_memory_limit_is_refused_and_the_worker_process_survives() -> None:
    async def test() -> None:
        for function, arguments in ((time.sleep, (1000.0,)), (count_for_ever, ())):
            with pytest.raises(RefusedError, match=r"more than 0\.1 seconds"):
                await compute(function, *arguments, seconds=0.1)
        with pytest.raises(RefusedError, match="more than 2 GB"):
            await compute(bytearray, 5 * 2**30)
        assert len({await compute(os.getpid) for _ in range(8)}) <= (os.cpu_count() or 1)

    run(test)


def test_a_crash_is_refused_and_the_next_request_is_served() -> None:
    async def test() -> None:
        with pytest.raises(RefusedError, match="computation failed"):
            await compute(os._exit, 3)
        assert await compute(os.getpid)

    run(test)


def test_a_cancelled_request_raises_cancelled_error() -> None:
    async def test() -> None:
        task = asyncio.ensure_future(compute(time.sleep, 1.0))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):  # not None, which NiceGUI returns
            await task

    run(test)


SERVER = """
import asyncio, os, time
from nicegui import run
from airfed.explorer.worker import compute, configure
async def main():
    print(await compute(os.getpid), flush=True)
    await compute(time.sleep, 1000.0)
if __name__ == "__main__":
    configure()
    run.setup()
    asyncio.run(main())
"""


def test_worker_processes_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    with subprocess.Popen([sys.executable, "server.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
    end = time.monotonic() + TIMEOUT
    while (status := Path(f"/proc/{pid}/stat")).exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.02)
