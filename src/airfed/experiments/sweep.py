"""Many runs: the points of an experiment, in parallel, resumable, one failing without the others.

Workers talk to the one who asked through files only: each point's run directory and record. That is what makes a sweep
survive an interruption, and what lets the same points go to a cluster (the folder must be on a file system that all
workers share).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from airfed import _extras
from airfed._disk import is_locked, locked
from airfed.experiments import records, workers
from airfed.experiments.points import Point
from airfed.experiments.records import Record
from airfed.experiments.watching import Progress, Watch
from airfed.experiments.workers import Backend, WorkerDied
from airfed.scenario import Scenario
from airfed.text.phrases import count
from airfed.training.directory import RunDirectory, RunError

_PATIENCE: Final = 60.0  # [s] for a worker of an earlier sweep, which was killed, to leave its run
Task = tuple[Scenario, Path, str, Path, int]

# Remarks about a round (a refused update, say) are in its record; several runs at once must not print over each other.
logging.getLogger("airfed").addHandler(logging.NullHandler())


def run(
    points: Sequence[Point],
    out: Path,
    *,
    jobs: int = 1,
    backend: Backend = "loky",
    address: str | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Record]:
    """Run the points that have no record yet and return the records of all, in the order of `points`.

    A point that ended before is not run again, an interrupted one goes on from its checkpoint. One that fails is
    recorded with the sentence that says why, and tried again next time. One that brings its process down is tried once
    more by itself when the others are done; if that one dies as well, the point has failed.

    Args:
        points: what to run; two with one key are run once.
        out: holds `runs/` and `records/`.
        jobs: points at a time; with more than one, each has one thread.
        backend: "loky" (processes of this machine), "ray" or "dask" (joblib's own backends to a cluster).
        address: of the Ray or Dask cluster; without it one is started on this machine.
        on_progress: told about the state about twice a second.
        stop: asked as often; True stops every point at its next chance, with a checkpoint.

    Raises:
        RunError: another sweep is running in `out`, it cannot be written, or workers die before they begin.
        ValueError: the backend is not installed.
    """
    if points:
        workers.check(backend, address)
    out = out.resolve()
    with _locked(out):
        todo = {point.key: point.scenario for point in points if point.scenario is not None and is_open(out, point)}
        try:
            _forget_failures(out, todo)
        except OSError as error:
            raise RunError(f"Cannot write to {out}: {error.strerror}. What was saved is intact.") from None
        troubles: dict[str, str] = {}
        with Watch(out, points, on_progress=on_progress, stop=stop) as watch:
            parent = os.getpid() if backend == "loky" and jobs > 1 else 0
            tasks = [
                (_prepared(world, 1 if jobs > 1 else None), out, key, watch.stop_file, parent)
                for key, world in sorted(todo.items(), key=lambda item: records.mark_path(out, item[0]).exists())
            ]  # those that were under way at a crash come last: they may have been its reason

            def hand_out(some: Sequence[Task], **alone: bool) -> None:
                found = workers.hand_out(run_point, some, jobs=jobs, backend=backend, address=address, **alone)
                troubles.update({task[2]: trouble for task, trouble in zip(some, found, strict=True) if trouble})

            if tasks:
                _run_all(tasks, hand_out, stop)
        return [_result(out, point, troubles) for point in points]


def run_point(world: Scenario, out: Path, key: str, stop_file: Path, parent: int = 0) -> str:
    """Run or resume one point and write its record; called in a worker.

    Args:
        world: the scenario.
        out, key: where the run and its record go.
        stop_file: appears when everybody is to stop.
        parent: process that must be alive, and this one's parent; 0 for none.

    Returns:
        Why there is no record; empty where there is one.
    """
    from airfed.training.execution import execute  # here: a parent that only reads records needs no engine

    def stop() -> bool:
        return stop_file.exists() or (parent > 0 and os.getppid() != parent)

    path, mark = records.run_path(out, key), records.mark_path(out, key)
    before = float(records.peek(out, key).get("seconds", 0.0))  # earlier sittings of an interrupted point
    started = time.monotonic()
    began: list[int] = []
    try:
        if stop() or not _free(path, stop):
            return ""
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        resume = RunDirectory(path).exists
        try:
            with _extras.explained():
                outcome = execute(
                    world, path, resume=resume, stop=stop, on_start=lambda setup, first_round: began.append(first_round)
                )
            status, message = outcome.status, outcome.message
        except (Exception, SystemExit) as error:
            # Whatever one scenario does wrong, a user's own model included, must not take the other points with it.
            status, message = "failed", _reason(error)
            if resume and not began:
                message += f" Move {path} away to have the point run afresh."
        records.write(out, key, status=status, message=message, seconds=before + time.monotonic() - started)
        mark.unlink(missing_ok=True)
    except OSError as error:
        return f"Cannot write to {out}: {error.strerror or error}. What was saved is intact; the same command goes on."
    return ""


def is_open(out: Path, point: Point) -> bool:
    """Return whether the point is still to be run. A record that cannot be read is left as it is, and so is its run."""
    try:
        record = records.read(out, point)
    except RunError:
        return False
    return record is None or not record.ended


def _run_all(tasks: Sequence[Task], hand_out: Callable[..., None], stop: Callable[[], bool]) -> None:
    """Hand out all tasks; where a worker dies, the others first, and then each that was under way by itself."""
    try:
        hand_out(tasks)
        return
    except WorkerDied as died:
        reason = str(died)
    if stop():
        return  # the same signal reached the workers
    lost = [task for task in tasks if records.mark_path(task[1], task[2]).exists()]
    if not lost:
        raise RunError(f"A worker process died ({reason}) before it began; what ended is kept.")
    keys = {task[2] for task in lost}
    rest = [task for task in tasks if task[2] not in keys and not _settled(task)]
    if rest:
        _run_all(rest, hand_out, stop)
    for task in lost:
        if stop():
            return
        try:
            hand_out([task], apart=True)
        except WorkerDied:
            if not stop():
                _, out, key, *_ = task
                message = "The process that ran it died twice (out of memory?); fewer --jobs leave more for each."
                records.write(out, key, status="failed", message=message, seconds=0.0)
                records.mark_path(out, key).unlink(missing_ok=True)


def _settled(task: Task) -> bool:
    return records.peek(task[1], task[2]).get("status") in (*records.ENDED, "failed")


def _reason(error: BaseException) -> str:
    if isinstance(error, (ValueError, OSError, MemoryError)) and str(error):
        return str(error)  # a sentence of ours, or of the system
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _free(path: Path, stop: Callable[[], bool]) -> bool:
    """Wait until no worker of an earlier sweep, which was killed, is at the run; False where we are to stop."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and is_locked(path / ".lock"):
        if stop():
            return False
        time.sleep(0.1)
    return True


def _forget_failures(out: Path, keys: Iterable[str]) -> None:
    """Points that failed are tried again: until then they have not."""
    for key in keys:
        content = records.peek(out, key)
        if content.get("status") == "failed":
            records.write(out, key, status="stopped", message="Not begun again yet.", seconds=content["seconds"])


def _prepared(world: Scenario, threads: int | None) -> Scenario:
    """The scenario as a worker gets it: one thread where there are several workers, paths that hold anywhere."""
    if threads is not None:
        world = world.override({"run.threads": threads})
    return world.model_copy(update={"folder": world.folder.resolve()})


def _result(out: Path, point: Point, troubles: Mapping[str, str]) -> Record:
    if trouble := troubles.get(point.key):
        return Record(point=point, status="failed", message=trouble)
    try:
        record = records.read(out, point)
    except RunError as error:
        message = str(error)
        if "remove it" not in message:
            kept = f"{records.record_path(out, point.key)} and {records.run_path(out, point.key)}"
            message += f" Move {kept} away to have the point run afresh, or give another --out."
        return Record(point=point, status="failed", message=message)
    return record or Record(point=point, status="stopped", message="Not begun yet.")


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(out / ".lock"))
        except BlockingIOError:
            raise RunError(f"Another sweep is running in {out}.") from None
        except OSError as error:
            raise RunError(f"Cannot write to {out}: {error.strerror}. Give another --out.") from None
        yield


def remaining(points: Sequence[Point], out: Path) -> str:
    """Return in one sentence how many runs there are and how many of them are done."""
    different = {point.key: point for point in points if point.key}
    left = sum(is_open(out, point) for point in different.values())
    runs = count(len(different), "run")
    return f"{runs}: {len(different) - left} done already, {left} to do." if left else f"{runs}, all done already."
