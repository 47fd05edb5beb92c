"""Run many points: in parallel, resumable, one failing without the others. Sweeps, benchmarks and pilots run here.

Workers report through files only: each point's run directory and record. So a sweep survives an interruption, and the
same points can be dispatched to a cluster (whose workers must share the file system of the directory).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from airfed import _extras
from airfed._disk import is_locked, locked
from airfed.experiments import results
from airfed.experiments.points import Point
from airfed.experiments.results import Record
from airfed.scenario import Scenario
from airfed.text.phrases import count
from airfed.training.directory import RunDirectory, RunError

Backend = Literal["loky", "ray", "dask"]
Task = tuple[Scenario, Path, str, Path, int]
_NEEDS: Final = {
    "ray": ("ray", 'Backend ray needs Ray: pip install "ray".'),
    "dask": ("distributed", 'Backend dask needs Dask: pip install "dask[distributed]".'),
}
_PATIENCE: Final = 60.0  # [s] for a worker of an earlier sweep, which was killed, to leave its run
_POLL_SECONDS: Final = 0.5

# Warnings about a round (a refused update, say) are in its record; parallel runs must not print over each other.
logging.getLogger("airfed").addHandler(logging.NullHandler())


class WorkerDied(Exception):
    """A worker process is gone, and the point that it was running with it."""


def check_backend(backend: Backend, address: str | None = None) -> None:
    """Raise unless the backend can be used, before any work is done."""
    if backend == "loky" and address is not None:
        raise ValueError("Expected an address only with backend ray or dask.")
    _extras.require("joblib", "pandas", "jinja2")
    if backend != "loky":
        package, sentence = _NEEDS[backend]
        if not _extras.has(package):
            raise ValueError(sentence)


def run(
    points: Sequence[Point],
    out: Path,
    *,
    jobs: int = 1,
    backend: Backend = "loky",
    address: str | None = None,
    console: Console | None = None,
    title: str = "sweep",
    stop: Callable[[], bool] = lambda: False,
) -> list[Record]:
    """Run the points that have no record yet and return the records of all, in the order of `points`.

    A point that ended before is not run again, an interrupted one is resumed from its checkpoint. One that fails is
    recorded with the sentence that says why, and tried again next time. One whose process dies is tried once more by
    itself after the others; if that process dies as well, the point has failed.

    Args:
        points: to run; two with one key are run once.
        out: directory of `runs/` and `records/`.
        jobs: points at a time; with more than one, each has one thread.
        backend: "loky" (processes of this machine), "ray" or "dask" (joblib's own backends to a cluster).
        address: of the Ray or Dask cluster; without it one is started on this machine.
        console: shows the progress bar (with Ray, whose backend returns all results at once, only its end).
        title: of the progress bar.
        stop: polled twice a second; True stops every point at its next chance, with a checkpoint.
    """
    if points:
        check_backend(backend, address)
    out = out.resolve()
    with _locked(out), _stop_file(out, stop) as stop_file, _bar(console, title) as bar:
        todo = {point.key: point.scenario for point in points if point.scenario is not None and is_open(out, point)}
        for key in todo:
            if results.peek(out, key).get("status") == "failed":  # it is tried again
                results.record_path(out, key).unlink()
        parent = os.getpid() if backend == "loky" and jobs > 1 else 0
        one = {"run.threads": 1} if jobs > 1 else {}
        tasks = [
            (world.override(one).model_copy(update={"folder": world.folder.resolve()}), out, key, stop_file, parent)
            for key, world in todo.items()
        ]
        total = len({point.key or index for index, point in enumerate(points)})
        line = bar.add_task("points", total=total, completed=total - len(todo))
        failed: list[str] = []

        def dispatch(some: Sequence[Task], *, apart: bool = False) -> None:
            for key in _dispatch(some, jobs=jobs, backend=backend, address=address, apart=apart):
                failed.extend([key] if results.peek(out, key).get("status") == "failed" else [])
                text = f"points, [red]{len(failed)} failed[/red]" if failed else "points"
                bar.update(line, advance=1, description=text)

        _run_all(tasks, dispatch, stop)
        return [_result(out, point) for point in points]


def run_point(world: Scenario, out: Path, key: str, stop_file: Path, parent: int = 0) -> str:
    """Run or resume one point, write its record and return its key; called in a worker."""
    from airfed.training.execution import execute  # lazy: a parent that only reads records needs no engine

    def stop() -> bool:
        return stop_file.exists() or (parent > 0 and os.getppid() != parent)

    path, mark = results.run_path(out, key), results.mark_path(out, key)
    before = float(results.peek(out, key).get("seconds", 0.0))  # of earlier attempts
    started = time.monotonic()
    began: list[int] = []
    try:
        if stop() or not _free(path, stop):
            return key
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        resume = RunDirectory(path).exists
        try:
            with _extras.explained():
                outcome = execute(
                    world, path, resume=resume, stop=stop, on_start=lambda setup, first_round: began.append(first_round)
                )
            status, message = outcome.status, outcome.message
        except (Exception, SystemExit) as error:  # of a user's own model, too: the other points must go on
            status, message = "failed", _reason(error)
            if resume and not began:
                message += f" Move {path} away to have the point run afresh."
        results.write(out, key, status=status, message=message, seconds=before + time.monotonic() - started)
        mark.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(
            f"Cannot write to {out}: {error.strerror or error}. What was saved is intact; the same command goes on."
        ) from None
    return key


def is_open(out: Path, point: Point) -> bool:
    """Return whether the point is still to be run. A record that cannot be read is left as it is, and so is its run."""
    try:
        record = results.read(out, point)
    except RunError:
        return False
    return record is None or not record.ended


def remaining(points: Sequence[Point], out: Path) -> str:
    """Return in one sentence how many runs there are and how many of them are done."""
    different = {point.key: point for point in points if point.key}
    left = sum(is_open(out, point) for point in different.values())
    runs = count(len(different), "run")
    return f"{runs}: {len(different) - left} done already, {left} to do." if left else f"{runs}, all done already."


def _run_all(tasks: Sequence[Task], dispatch: Callable[..., None], stop: Callable[[], bool]) -> None:
    """Dispatch all tasks; where a worker dies, the others first, and then each that it may have run by itself."""
    suspects: list[Task] = []
    while tasks:
        try:
            dispatch(tasks)
            break
        except WorkerDied as died:
            if stop():
                return  # the same signal reached the workers
            settled = (*results.ENDED, "failed")
            left = [task for task in tasks if results.peek(task[1], task[2]).get("status") not in settled]
            begun = {task[2] for task in left if results.mark_path(task[1], task[2]).exists()}
            if not begun:
                raise RunError(f"A worker process died ({died}) before it began; what ended is kept.") from None
            suspects += [task for task in left if task[2] in begun]
            tasks = [task for task in left if task[2] not in begun]
    for task in suspects:
        if stop():
            return
        try:
            dispatch([task], apart=True)
        except WorkerDied:
            if not stop():
                _, out, key, *_ = task
                message = "The process that ran it died twice (out of memory?); fewer --jobs leave more for each."
                results.write(out, key, status="failed", message=message, seconds=0.0)
                results.mark_path(out, key).unlink(missing_ok=True)


def _dispatch(tasks: Sequence[Task], *, jobs: int, backend: Backend, address: str | None, apart: bool) -> Iterator[str]:
    """Call `run_point` on the tasks, `jobs` at a time, and yield their keys as they end.

    With `apart` even a single task has a worker process, so that its death is not ours.
    """
    import joblib

    with _interrupts_kept_from_workers(), _cluster(backend, address, jobs, apart=apart) as name:
        try:
            with joblib.parallel_config(backend=name, n_jobs=max(jobs, 2) if apart else jobs):
                returned = "list" if backend == "ray" else "generator_unordered"
                pool = joblib.Parallel(batch_size=1, pre_dispatch="all", return_as=returned)
                yield from pool(joblib.delayed(run_point)(*task) for task in tasks)
        except (RuntimeError, BrokenPipeError, EOFError) as error:  # joblib's TerminatedWorkerError is one of them
            raise WorkerDied(type(error).__name__) from None


@contextmanager
def _interrupts_kept_from_workers() -> Iterator[None]:
    """Start processes so that Ctrl-C, which a terminal sends to all of them, does not kill them in a round.

    A child inherits the signal mask of the thread that starts it. This process still gets the signal, through the
    thread that polls `stop`; the workers see the stop file.
    """
    resource_tracker.ensure_running()  # now, because its start (Python 3.11) unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _cluster(backend: Backend, address: str | None, jobs: int, *, apart: bool) -> Iterator[str]:
    """Yield the name under which joblib reaches the backend."""
    if backend == "loky":
        yield "loky" if jobs > 1 or apart else "sequential"
    elif backend == "ray":
        import ray
        from ray.util.joblib import register_ray

        mine = not ray.is_initialized()
        if mine:
            local: dict[str, Any] = {} if address else {"num_cpus": jobs, "include_dashboard": False}
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
        register_ray()  # type: ignore[no-untyped-call]
        try:
            yield "ray"
        finally:
            if mine:
                ray.shutdown()
    else:
        from distributed import Client

        local = {} if address else {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
        with Client(address, **local):
            yield "dask"


@contextmanager
def _stop_file(out: Path, stop: Callable[[], bool]) -> Iterator[Path]:
    """Yield the file that stops all workers; it appears when `stop` returns True or this process fails."""
    file, done = out / f".stop-{os.getpid()}", threading.Event()

    def appear() -> None:
        with suppress(OSError):  # on a full disk the workers stop by themselves
            file.touch()

    def poll() -> None:
        while not done.wait(_POLL_SECONDS):
            if stop():
                appear()

    for left in out.glob(".stop-*"):  # of a sweep that crashed; its workers are gone
        left.unlink(missing_ok=True)
    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield file
    except BaseException:
        appear()  # and stays: a worker that outlives a crash must still find it
        raise
    else:
        done.set()
        thread.join()
        file.unlink(missing_ok=True)
    finally:
        done.set()


def _bar(console: Console | None, title: str) -> Progress:
    columns = (TextColumn(title, markup=False), BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}"))
    off = console is None or console.quiet
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(compact=True), console=console, disable=off)


def _reason(error: BaseException) -> str:
    if isinstance(error, (ValueError, OSError, MemoryError)) and str(error):
        return str(error)  # a sentence of ours, or of the system
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _free(path: Path, stop: Callable[[], bool]) -> bool:
    """Wait until no worker of an earlier sweep, which was killed, holds the run; return False when told to stop."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and is_locked(path / ".lock"):
        if stop():
            return False
        time.sleep(0.1)
    return True


def _result(out: Path, point: Point) -> Record:
    try:
        return results.read(out, point) or Record(point=point, status="stopped", message="Not begun yet.")
    except RunError as error:
        message = str(error)
        if "remove it" not in message:
            kept = f"{results.record_path(out, point.key)} and {results.run_path(out, point.key)}"
            message += f" Move {kept} away to have the point run afresh, or give another --out."
        return Record(point=point, status="failed", message=message)


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
