"""A training kept on disk: prepared, charged, trained, recorded, and safe against interruption.

The order within a round is what makes it safe (`airfed.training.loop`): charged and flushed before anything is
transmitted; settled, recorded and saved after it. After a kill at any moment, `--resume` starts from the newest intact
checkpoint, repeats the rounds since and, where noise is seeded, ends with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from airfed.privacy.ledger import BudgetExhausted, Ledger
from airfed.scenario import Scenario
from airfed.training import shared, tracking
from airfed.training.books import RunBooks
from airfed.training.cluster import Group, LostProcess
from airfed.training.directory import RunDirectory, RunError
from airfed.training.loop import Diverged, Round, Stopped, federated_averaging
from airfed.training.setup import Setup, prepare


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """How a run ended.

    Args:
        status: "finished", "stopped" (by a signal), "lost" (another process was), "exhausted" (a budget was) or
            "diverged".
        message: why, where it did not finish.
        records: the rounds, as in `metrics.jsonl`.
        ledger: what was charged; None where another process keeps it.
    """

    status: str
    message: str
    setup: Setup
    records: list[dict[str, Any]]
    ledger: Ledger | None = None


def execute(
    scenario: Scenario,
    out: Path,
    *,
    resume: bool = False,
    on_start: Callable[[Setup, int], None] = lambda setup, first_round: None,
    on_round: Callable[[dict[str, Any]], None] = lambda record: None,
    stop: Callable[[], bool] = lambda: False,
    group: Group | None = None,
) -> Outcome:
    """Run a scenario into a directory and return how it ended.

    Args:
        scenario: what to run.
        out: the run directory; new, or with `resume` one of the same scenario.
        resume: go on where an earlier run of the same scenario and data stopped.
        on_start: told the set-up and the first round to train.
        on_round: told each round's record.
        stop: asked often; True ends the run with a checkpoint.
        group: the processes that share this run (`cluster.join`); every one of them calls `execute`. Rank 0 keeps the
            directory, the others only train.

    Raises:
        RunError: the directory is in the way, is busy, or belongs to another scenario or other data.
        LostProcess: before the first round, or where this is not rank 0.
        ScenarioError, DataError, InfeasibleError: as in `prepare`.
    """
    tracking.check(scenario)
    group = Group() if group is None else group
    directory = RunDirectory(out)
    leads = group.rank == 0
    try:
        with ExitStack() as stack:
            with shared.all_or_none(group):
                spent = spent_before(scenario, directory, resume=resume) if leads else 0.0
            spent = float(group.broadcast(np.array([spent]))[0])
            with shared.all_or_none(group):
                setup = prepare(scenario, spent=spent)
                stack.callback(setup.task.engine.close)
                shared.check_equal(group, setup)
            books: RunBooks | None = None
            with shared.all_or_none(group):
                if leads:
                    books = stack.enter_context(_books(setup, directory, resume=resume, on_round=on_round))
            if books is None:
                return _follow(setup, group, stop)
            on_start(setup, books.state.round_index)
            return _lead(books, group, stop)
    except BrokenPipeError:  # of the terminal, not of the disk
        raise
    except OSError as error:
        raise RunError(
            f"Cannot write to {out}: {error.strerror or error}. "
            "What was saved before is intact, and --resume goes on from it."
        ) from None


@contextmanager
def open_run(
    scenario: Scenario,
    out: Path,
    *,
    resume: bool,
    remote: str,
    on_round: Callable[[dict[str, Any]], None] = lambda record: None,
) -> Iterator[RunBooks]:
    """Prepare a scenario and yield the books of its run directory, for a training whose devices are elsewhere.

    Every round ends with a checkpoint, and a round that is sent out again is charged again: other devices may answer
    the second time, and then it is another signal.

    Args:
        scenario, out, resume, on_round: as in `execute`.
        remote: what trains the devices, for the record.

    Raises:
        RunError, ScenarioError, DataError, InfeasibleError: as in `execute`.
    """
    tracking.check(scenario)
    directory = RunDirectory(out)
    setup = prepare(scenario, spent=spent_before(scenario, directory, resume=resume))
    with closing(setup.task.engine), _books(setup, directory, resume=resume, remote=remote, on_round=on_round) as books:
        yield books


def spent_before(scenario: Scenario, directory: RunDirectory, *, resume: bool) -> float:
    """Return μ that the scenario's account had spent when its run in a directory was, or is now, planned.

    Raises:
        RunError: no run can begin in the directory or, with `resume`, go on.
    """
    directory.check(resume=resume)
    if directory.exists:
        directory.manifest()  # of this version, or it is said so
        return float(Ledger.load(directory.file("ledger.jsonl"), repair=True).header.get("spent", 0.0))
    return scenario.account_spent()


@contextmanager
def _books(
    setup: Setup,
    directory: RunDirectory,
    *,
    resume: bool,
    remote: str = "",
    on_round: Callable[[dict[str, Any]], None] = lambda record: None,
) -> Iterator[RunBooks]:
    """The books of a directory, which is this process's until the end; what cannot begin leaves nothing behind."""
    with directory.locked():
        directory.check(resume=resume)
        with closing(tracking.Tracking(setup.scenario, directory)) as track:

            def tell(record: dict[str, Any]) -> None:
                track(record)
                on_round(record)

            yield RunBooks(setup, directory, remote=remote, on_round=tell)


def _lead(books: RunBooks, group: Group, stop: Callable[[], bool]) -> Outcome:
    """Train, keep the books, and return how it ended."""
    setup = books.setup
    status, message = "finished", ""
    try:
        for _ in _rounds(setup, group, stop, books):
            if group.size == 1 and stop() and books.state.round_index < setup.plan.rounds:
                raise Stopped
    except (Stopped, LostProcess) as reason:
        status = "stopped" if isinstance(reason, Stopped) else "lost"
        message = f"{reason} Stopped before round {books.state.round_index + 1}; --resume goes on from there.".lstrip()
    except BudgetExhausted as error:
        status, message = "exhausted", str(error)
    except Diverged as error:
        status, message = "diverged", str(error)
    books.conclude(finished=status not in ("stopped", "lost"))
    return Outcome(
        status=status,
        message=message,
        setup=setup,
        records=books.directory.read_metrics(),
        ledger=books.ledger,
    )


def _follow(setup: Setup, group: Group, stop: Callable[[], bool]) -> Outcome:
    """Train this process's share of the devices; rank 0 decides, draws the noise and keeps the books."""
    status = "finished"
    try:
        for _ in _rounds(setup, group, stop):
            pass
    except (Stopped, Diverged):
        status = "stopped"
    return Outcome(status=status, message="", setup=setup, records=[])


def _rounds(setup: Setup, group: Group, stop: Callable[[], bool], books: RunBooks | None = None) -> Iterator[Round]:
    """The rounds of the run, in step with the other processes: all go on, or all stop."""
    first, parameters = (0, setup.task.initial_parameters) if books is None else books.start
    if group.size == 1:
        return federated_averaging(
            setup.plan,
            setup.airs,
            setup.task.engine,
            setup.noise,
            books,
            parameters=parameters,
            first_round=first,
            stop=stop,
        )
    # A stop is heeded only where all processes meet, not between chunks.
    return federated_averaging(
        setup.plan,
        setup.airs,
        shared.SharedTrainer(setup.task.engine, group, stop),
        shared.SharedNoise(setup.noise, group),
        shared.SharedBooks(books, group, stop, last_round=setup.plan.rounds - 1),
        parameters=group.broadcast(parameters),
        first_round=int(group.broadcast(np.array([first]))[0]),
        merge=group.merge,
    )
