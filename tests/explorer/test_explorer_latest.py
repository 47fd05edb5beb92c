"""Only the newest wish is worth its work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="NiceGUI is not installed: pip install airfed[web]")

from airfed.explorer import latest
from airfed.explorer.latest import Latest


class Recorded:
    """Work that ends when it is let, and notes what became of it."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[str] = asyncio.Queue()
        self.may_end = asyncio.Event()

    async def __call__(self) -> None:
        await self.events.put("begun")
        try:
            await self.may_end.wait()
            await self.events.put("done")
        except asyncio.CancelledError:
            await self.events.put("given up")
            raise

    async def told(self) -> str:
        return await asyncio.wait_for(self.events.get(), 60)


@pytest.fixture(autouse=True)
def _plain_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(work: Any, *, name: str) -> asyncio.Task[None]:
        return asyncio.ensure_future(work)

    monkeypatch.setattr(latest.background_tasks, "create", create)


def test_nothing_is_done_before_it_is_started_and_nothing_after_it_is_stopped() -> None:
    async def test() -> None:
        work = Recorded()
        newest = Latest(work)
        newest.wish()
        await asyncio.sleep(0)
        assert newest.outdated
        assert work.events.empty()
        newest.start()
        assert await work.told() == "begun"
        newest.stop()
        assert await work.told() == "given up"

    asyncio.run(test())


def test_a_newer_wish_ends_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest, "_GRACE", 0.0)

    async def test() -> None:
        work = Recorded()
        newest = Latest(work)
        newest.start()
        newest.wish()
        assert await work.told() == "begun"
        newest.wish()
        assert [await work.told(), await work.told()] == ["given up", "begun"]
        newest.stop()

    asyncio.run(test())


def test_wishes_during_short_work_are_gathered_into_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest, "_GRACE", 60.0)

    async def test() -> None:
        work = Recorded()
        newest = Latest(work)
        newest.start()
        newest.wish()
        assert await work.told() == "begun"
        for _ in range(5):
            newest.wish()
        work.may_end.set()
        assert [await work.told() for _ in range(3)] == ["done", "begun", "done"]
        await asyncio.sleep(0.01)
        assert work.events.empty()
        newest.stop()

    asyncio.run(test())
