"""Many runs: the points of an experiment, in parallel, resumable, one failing without the others.

Workers talk to the one who asked through files only: each point's run directory and record. That is what makes a sweep
survive an interruption, and what lets the same points go to a cluster (the folder must be on a file system that all
workers share).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final, Literal

from airfed._disk import locked
from airfed.experiments import records
from airfed.experiments.points import Point
from airfed.experiments.records import Record
from airfed.running.directory import RunDirectory, RunError
from airfed.running.run import progress
from airfed.scenario import Scenario

Backend = Literal["loky", "ray", "dask"]
_POLL_SECONDS: Final = 0.5

# Remarks about a round (a refused update, say) are in its record; several runs at once must not print over each other.
logging.getLogger("airfed").addHandler(logging.NullHandler())


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a sweep is: points in all, ended, failed, under way, and the work done, in points and parts of them."""

    points: int
    ended: int
    failed: int
    running: int
    work: float


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
    recorded with the sentence that says why, and tried again next time.

    Args:
        points: what to run; two with one key are run once.
        out: holds `runs/` and `records/`.
        jobs: points at a time; with more than one, each has one thread.
        backend: "loky" (processes of this machine), "ray" or "dask" (joblib's own backends to a cluster).
        address: of the Ray or Dask cluster; without it one is started on this machine.
        on_progress: told about the state about twice a second.
        stop: asked as often; True stops every point at its next chance, with a checkpoint.

    Raises:
        RunError: another sweep is running in `out`, or a worker process died.
        ValueError: the backend is not installed.
    """
    out = out.resolve()
    todo = {point.key: point.scenario for point in points if point.scenario is not None and _open(out, point)}
    with _locked(out), _Watch(out, points, on_progress, stop) as watch:
        if todo:
            threads = 1 if jobs > 1 else None
            tasks = [(_prepared(world, threads), out, key, watch.stop_file) for key, world in todo.items()]
            _hand_out(tasks, jobs=jobs, backend=backend, address=address, stop=stop)
    return [_result(out, point) for point in points]


def run_point(world: Scenario, out: Path, key: str, stop_file: Path) -> None:
    """Run or resume one point and write its record; called in a worker.

    Args:
        world: the scenario.
        out, key: where the run and its record go.
        stop_file: appears when everybody is to stop.
    """
    from airfed.running.execution import execute  # here: a parent that only reads records needs no engine

    if stop_file.exists():
        return
    path = records.run_path(out, key)
    directory = RunDirectory(path)
    before = float(records.peek(out, key).get("seconds", 0.0))  # earlier sittings of an interrupted point
    started = time.monotonic()
    try:
        outcome = execute(world, path, resume=directory.exists, stop=stop_file.exists)
        status, message = outcome.status, outcome.message
    except (ValueError, OSError, RuntimeError, ArithmeticError, MemoryError) as error:
        # Anything that one scenario can do wrong must not take the other points with it.
        status, message = "failed", f"{error}" or type(error).__name__
    seconds = before + time.monotonic() - started
    records.write(out, key, status=status, message=message, seconds=seconds)


def _hand_out(
    tasks: Sequence[tuple[Scenario, Path, str, Path]],
    *,
    jobs: int,
    backend: Backend,
    address: str | None,
    stop: Callable[[], bool],
) -> None:
    try:
        import joblib
    except ModuleNotFoundError:
        raise ValueError('Sweeps need joblib: pip install "airfed[sweep]".') from None
    with _interrupts_kept_from_workers(), _cluster(backend, address, jobs) as name:
        try:
            with joblib.parallel_config(backend=name, n_jobs=jobs):
                joblib.Parallel(batch_size=1, pre_dispatch="all")(joblib.delayed(run_point)(*task) for task in tasks)
        except (RuntimeError, BrokenPipeError, EOFError) as error:  # joblib's TerminatedWorkerError is one of them
            if stop():
                return  # the same Ctrl-C reached the workers
            raise RunError(
                f"A worker process died ({type(error).__name__}: out of memory?); what ended is kept, and the same "
                "command goes on."
            ) from None


@contextmanager
def _interrupts_kept_from_workers() -> Iterator[None]:
    """Start processes so that Ctrl-C, which a terminal sends to all of them, does not kill them in mid-sentence.

    A child inherits the signal mask of the thread that starts it. This process still gets the signal, through the
    thread that watches; who asked is told through `stop`, the workers through the stop file.
    """
    resource_tracker.ensure_running()  # now, because its start (Python 3.11) unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _cluster(backend: Backend, address: str | None, jobs: int) -> Iterator[str]:
    """Yield the name under which joblib reaches the backend."""
    local: dict[str, Any]
    if backend == "loky":
        if address is not None:
            raise ValueError("Expected an address only with backend ray or dask.")
        yield "loky" if jobs > 1 else "sequential"
    elif backend == "ray":
        try:
            import ray
            from ray.util.joblib import register_ray
        except ModuleNotFoundError:
            raise ValueError('Backend ray needs Ray: pip install "ray".') from None
        mine = not ray.is_initialized()
        if mine:
            local = {} if address else {"num_cpus": jobs, "include_dashboard": False}
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
        register_ray()  # type: ignore[no-untyped-call]
        try:
            yield "ray"
        finally:
            if mine:
                ray.shutdown()
    else:
        try:
            from distributed import Client
        except ModuleNotFoundError:
            raise ValueError('Backend dask needs Dask: pip install "dask[distributed]".') from None
        local = {} if address else {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
        with Client(address, **local):
            yield "dask"


class _Watch:
    """Counts what is on disk, tells `on_progress`, and passes a stop on to the workers as a file."""

    def __init__(
        self,
        out: Path,
        points: Sequence[Point],
        on_progress: Callable[[Progress], None],
        stop: Callable[[], bool],
    ) -> None:
        self.out, self.on_progress, self.stop = out, on_progress, stop
        self.keys = list(dict.fromkeys(point.key for point in points if point.key))
        self.impossible = sum(1 for point in points if point.problem)
        self.stop_file = out / f".stop-{os.getpid()}"
        self.begun = time.time()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Watch:
        self.stop_file.unlink(missing_ok=True)
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None:
            self.stop_file.touch()
        self.done.set()
        self.thread.join()
        if exception[0] is None:  # a worker that outlives a crash must still find it
            self.stop_file.unlink(missing_ok=True)

    def _watch(self) -> None:
        while not self.done.wait(_POLL_SECONDS):
            self._look()
        self._look()

    def _look(self) -> None:
        if self.stop() and not self.stop_file.exists():
            self.stop_file.touch()
        ended = failed = running = 0
        work = 0.0
        for key in self.keys:
            status = self._status(key)
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
        self.on_progress(
            Progress(
                points=len(self.keys) + self.impossible,
                ended=ended,
                failed=failed + self.impossible,
                running=running,
                work=work + self.impossible,
            )
        )

    def _status(self, key: str) -> str:
        """How the point ended; "" where it did not, or where it failed in an earlier sweep and is tried again."""
        content = records.peek(self.out, key)
        again = content.get("status") == "failed" and content["written"] < self.begun
        return "" if again else str(content.get("status", ""))


def _prepared(world: Scenario, threads: int | None) -> Scenario:
    """The scenario as a worker gets it: one thread where there are several workers, paths that hold anywhere."""
    if threads is not None:
        world = world.override({"run.threads": threads})
    return world.model_copy(update={"folder": world.folder.resolve()})


def _open(out: Path, point: Point) -> bool:
    """Whether the point is still to be run. A record that cannot be read is left as it is, and so is its run."""
    try:
        record = records.read(out, point)
    except RunError:
        return False
    return record is None or not record.ended


def _result(out: Path, point: Point) -> Record:
    try:
        record = records.read(out, point)
    except RunError as error:
        return Record(point=point, status="failed", message=str(error), plan={}, rounds=())
    return record or Record(point=point, status="stopped", message="Not begun yet.", plan={}, rounds=())


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    out.mkdir(parents=True, exist_ok=True)
    try:
        with locked(out / ".lock"):
            yield
    except BlockingIOError:
        raise RunError(f"Another sweep is running in {out}.") from None
