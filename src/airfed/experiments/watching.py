"""How far a sweep is, told from what is on the disk, and how long it still takes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from airfed.experiments import records
from airfed.experiments.points import Point
from airfed.text.live import work_line
from airfed.training.directory import progress

_POLL_SECONDS: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a sweep is.

    Args:
        points: in all.
        ended, failed, running: of them.
        share: of the work that is done.
        seconds_left: estimated; None where nothing is known yet.
    """

    points: int
    ended: int
    failed: int
    running: int
    share: float
    seconds_left: float | None


class Watch:
    """Counts what is on disk, tells `on_progress`, and passes a stop on to the workers as a file.

    Args:
        out: the folder of the sweep.
        points: of the sweep.
        on_progress, stop: see `airfed.experiments.sweep.run`.
    """

    def __init__(
        self,
        out: Path,
        points: Sequence[Point],
        *,
        on_progress: Callable[[Progress], None],
        stop: Callable[[], bool],
    ) -> None:
        self.out, self.on_progress, self.stop = out, on_progress, stop
        self.keys = list(dict.fromkeys(point.key for point in points if point.key))
        self.impossible = sum(1 for point in points if point.problem)
        self.stop_file = out / f".stop-{os.getpid()}"
        self.begun = time.monotonic()
        self.work_before: float | None = None
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        for left in self.out.glob(".stop-*"):  # of a sweep that crashed; its workers have gone with it
            left.unlink(missing_ok=True)
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None:
            self._pass_on()
        self.done.set()
        self.thread.join()
        if exception[0] is None:  # a worker that outlives a crash must still find it
            self.stop_file.unlink(missing_ok=True)

    def _watch(self) -> None:
        while not self.done.wait(_POLL_SECONDS):
            self._look()
        self._look()

    def _pass_on(self) -> None:
        with contextlib.suppress(OSError):  # on a full disk the workers stop by themselves
            self.stop_file.touch()

    def _look(self) -> None:
        if self.stop() and not self.stop_file.exists():
            self._pass_on()
        ended = failed = running = 0
        work = 0.0
        for key in self.keys:
            status = str(records.peek(self.out, key).get("status", ""))
            share = 0.0
            if status in records.ENDED:
                ended += 1
                share = 1.0
            elif status == "failed":
                failed += 1
                share = 1.0
            elif records.run_path(self.out, key).is_dir():
                share = progress(records.run_path(self.out, key))
                running += share > 0
            work += share
        total = len(self.keys)
        self.on_progress(
            Progress(
                points=len(self.keys) + self.impossible,
                ended=ended,
                failed=failed + self.impossible,
                running=running,
                share=work / total if total else 1.0,
                seconds_left=self._left(work, total),
            )
        )

    def _left(self, work: float, total: float) -> float | None:
        """The seconds left at the speed that was seen so far; None before anything was."""
        if self.work_before is None:
            self.work_before = work
        seen, elapsed = work - self.work_before, time.monotonic() - self.begun
        return (total - work) * elapsed / seen if seen > 0 else None


@contextlib.contextmanager
def progress_display(console: Console, name: str) -> Iterator[Callable[[Progress], None]]:
    """Yield the function that shows a sweep's state: one line for all points."""
    with work_line(console, name) as update:

        def show(state: Progress) -> None:
            text = f"{state.ended} of {state.points} points"
            if state.running:
                text += f", {state.running} under way"
            if state.failed:
                text += f", [red]{state.failed} failed[/red]"
            update(state.share, text, state.seconds_left if state.ended + state.failed < state.points else None)

        yield show
