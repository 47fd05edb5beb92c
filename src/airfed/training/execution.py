"""A training kept on disk: prepared, charged, trained, recorded, and safe against interruption (`RunBooks`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from airfed import _extras
from airfed.privacy.ledger import BudgetExhausted, Ledger
from airfed.scenario import Scenario
from airfed.training import distributed, formats
from airfed.training.charging import verified_ledger
from airfed.training.directory import RunDirectory, RunError
from airfed.training.distributed import Group, LostProcess
from airfed.training.loop import Diverged, Round, Stopped, federated_averaging
from airfed.training.recorder import RunBooks
from airfed.training.setup import Setup, prepare

LOG_FOLDER: Final = "tensorboard"  # in the run directory


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """How a run ended."""

    status: str  # "finished", "stopped" (by a signal), "lost" (a process was), "exhausted" (a budget was), "diverged"
    message: str  # why it did not finish
    setup: Setup
    records: list[dict[str, Any]]  # as in `metrics.jsonl`
    ledger: Ledger | None = None  # None where another process keeps it


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
        out: the run directory; new, or with `resume` an interrupted run of the same scenario and data.
        resume: go on where that run stopped.
        on_start: told the set-up and the first round to train.
        on_round: told each round's record.
        stop: asked often; True ends the run with a checkpoint.
        group: the processes that share this run (`distributed.join`); every one of them calls `execute`.

    Raises RunError where the directory is in the way, is busy, or belongs to another scenario or other data;
    LostProcess before the first round, or where this is not rank 0; and what `prepare` raises.
    """
    group = Group() if group is None else group
    directory, leads = RunDirectory(out), group.rank == 0
    try:
        with ExitStack() as stack:
            with distributed.all_or_none(group):
                claim = _claimed(scenario, directory, resume=resume)
                spent, ledger = stack.enter_context(claim) if leads else (0.0, None)
            spent = float(group.broadcast(np.array([spent]))[0])
            with distributed.all_or_none(group):
                setup = prepare(scenario, spent=spent)
                stack.callback(setup.task.engine.close)
                distributed.check_equal(group, setup)
            books: RunBooks | None = None
            with distributed.all_or_none(group):
                if leads:
                    log = stack.enter_context(_log(scenario, directory, on_round))
                    books = RunBooks(setup, directory, ledger, on_round=log)
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
    the second time. `remote` says what trains the devices, for the record; all else is as in `execute`.
    """
    directory = RunDirectory(out)
    with _claimed(scenario, directory, resume=resume) as (spent, ledger):
        setup = prepare(scenario, spent=spent)
        with closing(setup.task.engine), _log(scenario, directory, on_round) as log:
            yield RunBooks(setup, directory, ledger, remote=remote, on_round=log)


@contextmanager
def _claimed(scenario: Scenario, directory: RunDirectory, *, resume: bool) -> Iterator[tuple[float, Ledger | None]]:
    """Check and lock a directory; yield μ that the account had spent when its run was planned, and the run's ledger.

    A new directory has no ledger yet, and is removed again where the run cannot begin.
    """
    if scenario.run.log:
        _extras.require("tensorboardX")
    directory.check(resume=resume)
    with directory.locked():
        if directory.exists:
            directory.manifest()  # of this version, or it is said so
            ledger = verified_ledger(directory)
            yield float(ledger.header.get("spent", 0.0)), ledger
        else:
            yield scenario.account_spent(), None


@contextmanager
def _log(
    scenario: Scenario, directory: RunDirectory, on_round: Callable[[dict[str, Any]], None]
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield what writes a record for TensorBoard, if the scenario wants it, and then tells `on_round`.

    The log is begun anew with the first round of each life of a run, from all records that count by then: after a
    resume no round is twice in it, and none is missing.
    """
    with ExitStack() as stack:
        writer: Any = None

        def write(record: dict[str, Any]) -> None:
            nonlocal writer
            if scenario.run.log:
                records = [record]
                if writer is None:
                    from tensorboardX import SummaryWriter

                    for old in directory.file(LOG_FOLDER).glob("events.out.tfevents.*"):
                        old.unlink()
                    writer = stack.enter_context(SummaryWriter(str(directory.file(LOG_FOLDER)), write_to_disk=True))
                    records = directory.read_metrics()
                for each in records:
                    for tag, value in scalars(each).items():
                        writer.add_scalar(tag, value, each["round"] + 1)
                writer.flush()
            on_round(record)

        yield write


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a record by their tags.

    >>> scalars({"round": 3, "loss": None, "averages": {"tail": {"accuracy": 0.5}}})
    {'averages/tail/accuracy': 0.5}
    """
    row = formats.flat(record)
    return {name.replace(".", "/"): float(row[name]) for name in row if row[name] is not None and name != "round"}


def _lead(books: RunBooks, group: Group, stop: Callable[[], bool]) -> Outcome:
    setup, status, message = books.setup, "finished", ""
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
    records = books.directory.read_metrics()
    return Outcome(status=status, message=message, setup=setup, records=records, ledger=books.ledger)


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
    plan, airs, engine, noise = setup.plan, setup.airs, setup.task.engine, setup.noise
    first, parameters = (0, setup.task.initial_parameters) if books is None else books.start
    if group.size == 1:
        return federated_averaging(
            plan, airs, engine, noise, books, parameters=parameters, first_round=first, stop=stop
        )
    parameters, first = group.broadcast(parameters), int(group.broadcast(np.array([first]))[0])
    trainer, drawn = distributed.SharedTrainer(engine, group, stop), distributed.SharedNoise(noise, group)
    shared = distributed.SharedBooks(books, group, stop)  # stops where all processes meet, not between chunks
    return federated_averaging(
        plan, airs, trainer, drawn, shared, parameters=parameters, first_round=first, merge=group.merge
    )
