"""Run many points in parallel, resumable and isolated from each other's failures: sweeps, benchmarks, pilot runs.

Worker processes report through files only, so a sweep survives an interruption, and a cluster can share the files.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from airfed import _extras
from airfed._disk import is_locked
from airfed.experiments import results
from airfed.experiments.points import Point
from airfed.experiments.results import Record
from airfed.scenario import Scenario
from airfed.text.phrases import count
from airfed.training.directory import RunDirectory, RunError, locked_folder

Backend = Literal["loky", "ray", "dask"]
Job = tuple[Scenario, Path, str, Path, int]
_NEEDS: Final = {
    "ray": ("ray", 'Backend ray needs Ray: pip install "ray".'),
    "dask": ("distributed", 'Backend dask needs Dask: pip install "dask[distributed]".'),
}
_LOCK_TIMEOUT: Final = 60.0  # [s] for a worker process of an earlier, killed sweep to release its run
_POLL_SECONDS: Final = 0.5

# Warnings about a round are in its record; parallel runs must not print over each other.
logging.getLogger("airfed").addHandler(logging.NullHandler())


class WorkerDied(Exception):
    """A worker process died while it ran a point."""


def check_backend(backend: Backend, address: str | None = None) -> None:
    """Raise unless the backend can be used, before any work is done."""
    if backend == "loky" and address is not None:
        raise ValueError("--address needs --backend ray or --backend dask.")
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

    A point that ended is not run again, an interrupted one is resumed from its checkpoint. A failed one is recorded
    with the reason, and run again by the next call. A point whose process dies is run once more in a process of its
    own after the others; if that process dies too, the point has failed.

    With several `jobs`, each run has one thread. `backend` is "loky" (processes of this machine), or a Ray or Dask
    cluster (by default on this machine). `stop` is polled twice a second; True stops every point with a checkpoint.
    """
    if points:
        check_backend(backend, address)
    out = out.resolve()
    with (
        locked_folder(out, f"Another sweep is running in {out}."),
        _stop_file(out, stop) as stop_file,
        _bar(console, title) as bar,
    ):
        todo = {point.key: point.scenario for point in points if point.scenario is not None and is_open(out, point)}
        for key in todo:
            if results.peek(out, key).get("status") == "failed":  # run it again
                results.record_path(out, key).unlink()
        parent = os.getpid() if backend == "loky" and jobs > 1 else 0
        tasks: list[Job] = []
        for key, scenario in todo.items():
            own = scenario.override({"run.threads": 1} if jobs > 1 else {})
            own = own.model_copy(update={"folder": scenario.folder.resolve()})
            tasks.append((own, out, key, stop_file, parent))
        total = len({point.key or index for index, point in enumerate(points)})
        line = bar.add_task("points", total=total, completed=total - len(todo))
        failed: list[str] = []

        def dispatch(some: Sequence[Job], *, apart: bool = False) -> None:
            for key in _dispatch(some, jobs=jobs, backend=backend, address=address, apart=apart):
                failed.extend([key] if results.peek(out, key).get("status") == "failed" else [])
                text = f"points, [red]{len(failed)} failed[/red]" if failed else "points"
                bar.update(line, advance=1, description=text)

        _run_all(tasks, dispatch, stop)
        return [_result(out, point) for point in points]


def run_point(scenario: Scenario, out: Path, key: str, stop_file: Path, parent: int = 0) -> str:
    """Run or resume one point, write its record and return its key; called in a worker process."""
    from airfed.training.execution import execute  # lazy: the parent process needs no engine

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
                    scenario,
                    path,
                    resume=resume,
                    stop=stop,
                    on_start=lambda setup, first_round: began.append(first_round),
                )
            status, message = outcome.status, outcome.message
        except (Exception, SystemExit) as error:  # also from a user's model: the other points must continue
            status, message = "failed", _reason(error)
            if resume and not began:
                message += f" To run the point from the start, move {path} away."
        results.write(out, key, status=status, message=message, seconds=before + time.monotonic() - started)
        mark.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(
            f"Cannot write to {out}: {error.strerror or error}. Saved runs are intact; the same command resumes."
        ) from None
    return key


def is_open(out: Path, point: Point) -> bool:
    """Return whether the point must be run; a point with an unreadable record is not run."""
    try:
        record = results.read(out, point)
    except RunError:
        return False
    return record is None or not record.ended


def remaining(points: Sequence[Point], out: Path) -> str:
    """Return the number of runs and of finished runs, in one sentence."""
    unique = {point.key: point for point in points if point.key}
    left = sum(is_open(out, point) for point in unique.values())
    runs = count(len(unique), "run")
    return f"{runs}: {len(unique) - left} finished, {left} to do." if left else f"{runs}, all finished."


def _run_all(tasks: Sequence[Job], dispatch: Callable[..., None], stop: Callable[[], bool]) -> None:
    """Dispatch all tasks. If a worker process dies, repeat its possible tasks last, one by one."""
    suspects: list[Job] = []
    while tasks:
        try:
            dispatch(tasks)
            break
        except WorkerDied as died:
            if stop():
                return  # the same signal reached the worker processes
            settled = (*results.ENDED, "failed")
            left = [task for task in tasks if results.peek(task[1], task[2]).get("status") not in settled]
            begun = {task[2] for task in left if results.mark_path(task[1], task[2]).exists()}
            if not begun:
                raise RunError(
                    f"A worker process died ({died}) before it began a run. Finished runs are kept."
                ) from None
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
                message = "Its process died twice, perhaps out of memory. Fewer --jobs leave more memory for each."
                results.write(out, key, status="failed", message=message, seconds=0.0)
                results.mark_path(out, key).unlink(missing_ok=True)


def _dispatch(tasks: Sequence[Job], *, jobs: int, backend: Backend, address: str | None, apart: bool) -> Iterator[str]:
    """Call `run_point` on the tasks, `jobs` at a time, and yield their keys; with `apart` never in this process."""
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
    """Block SIGINT in worker processes, which inherit this thread's mask: a terminal sends Ctrl-C to all processes."""
    resource_tracker.ensure_running()  # now, because its start (Python 3.11) unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _cluster(backend: Backend, address: str | None, jobs: int, *, apart: bool) -> Iterator[str]:
    """Yield joblib's name of the backend."""
    if backend == "loky":
        yield "loky" if jobs > 1 or apart else "sequential"
    elif backend == "ray":
        import ray
        from ray.util.joblib import register_ray

        started = not ray.is_initialized()
        if started:
            local: dict[str, Any] = {} if address else {"num_cpus": jobs, "include_dashboard": False}
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
        register_ray()  # type: ignore[no-untyped-call]
        try:
            yield "ray"
        finally:
            if started:
                ray.shutdown()
    else:
        from distributed import Client

        local = {} if address else {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
        with Client(address, **local):
            yield "dask"


@contextmanager
def _stop_file(out: Path, stop: Callable[[], bool]) -> Iterator[Path]:
    """Yield the file that stops all worker processes; it is created when `stop` returns True or this process fails."""
    file, done = out / f".stop-{os.getpid()}", threading.Event()

    def create() -> None:
        with suppress(OSError):  # on a full disk the worker processes stop by themselves
            file.touch()

    def poll() -> None:
        while not done.wait(_POLL_SECONDS):
            if stop():
                create()

    for left in out.glob(".stop-*"):  # of a crashed sweep
        left.unlink(missing_ok=True)
    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield file
    except BaseException:
        create()  # and keep it for worker processes that outlive this one
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
        return str(error)  # a message of airfed or of the system
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _free(path: Path, stop: Callable[[], bool]) -> bool:
    """Wait until no worker process of an earlier, killed sweep locks the run; return False if stopped."""
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while time.monotonic() < deadline and is_locked(path / ".lock"):
        if stop():
            return False
        time.sleep(0.1)
    return True


def _result(out: Path, point: Point) -> Record:
    try:
        return results.read(out, point) or Record(point=point, status="stopped", message="Not started yet.")
    except RunError as error:
        message = str(error)
        if "remove it" not in message:
            kept = f"{results.record_path(out, point.key)} and {results.run_path(out, point.key)}"
            message += f" To run the point from the start, move {kept} away, or choose another --out."
        return Record(point=point, status="failed", message=message)
