"""Who runs the points of a sweep: processes of this machine, Ray or Dask, all through joblib."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any, Final, Literal

from airfed import _extras

Backend = Literal["loky", "ray", "dask"]
_NEEDS: Final = {
    "ray": ("ray", 'Backend ray needs Ray: pip install "ray".'),
    "dask": ("distributed", 'Backend dask needs Dask: pip install "dask[distributed]".'),
}


class WorkerDied(Exception):
    """A worker process is gone, and what it was at with it."""


def check(backend: Backend, address: str | None) -> None:
    """Raise unless the backend can be used, before any work is done.

    Raises:
        ValueError: joblib or the backend is not installed, or an address makes no sense.
    """
    if backend == "loky" and address is not None:
        raise ValueError("Expected an address only with backend ray or dask.")
    _extras.require("joblib")
    if backend != "loky":
        package, sentence = _NEEDS[backend]
        if not _extras.has(package):
            raise ValueError(sentence)


def hand_out(
    function: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    *,
    jobs: int,
    backend: Backend,
    address: str | None,
    apart: bool = False,
) -> list[Any]:
    """Call the function on every task, `jobs` at a time, and return what it returns.

    Args:
        function: must be importable by the workers.
        tasks: the arguments of each call.
        jobs: calls at a time; one at a time needs no worker.
        backend, address: see `airfed.experiments.sweep.run`.
        apart: use a worker even for one call at a time, so that its death is not ours.

    Raises:
        WorkerDied: a worker did, and the calls that had not ended are lost.
    """
    import joblib

    with _interrupts_kept_from_workers(), _cluster(backend, address, jobs, apart=apart) as name:
        try:
            with joblib.parallel_config(backend=name, n_jobs=max(jobs, 2) if apart else jobs):
                pool = joblib.Parallel(batch_size=1, pre_dispatch="all")
                return list(pool(joblib.delayed(function)(*task) for task in tasks))
        except (RuntimeError, BrokenPipeError, EOFError) as error:  # joblib's TerminatedWorkerError is one of them
            raise WorkerDied(type(error).__name__) from None


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
def _cluster(backend: Backend, address: str | None, jobs: int, *, apart: bool) -> Iterator[str]:
    """Yield the name under which joblib reaches the backend."""
    local: dict[str, Any]
    if backend == "loky":
        yield "loky" if jobs > 1 or apart else "sequential"
    elif backend == "ray":
        import ray
        from ray.util.joblib import register_ray

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
        from distributed import Client

        local = {} if address else {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
        with Client(address, **local):
            yield "dask"
