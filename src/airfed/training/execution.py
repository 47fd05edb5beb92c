"""Execute a run: prepare, charge, train and record it in a run directory, from which it can be resumed."""

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
from airfed.training.distributed import LostProcess, ProcessGroup
from airfed.training.loop import Diverged, Stopped, federated_averaging
from airfed.training.recorder import RunRecorder
from airfed.training.setup import Setup, prepare

LOG_FOLDER: Final = "tensorboard"  # in the run directory
_STATUS: Final = {Stopped: "stopped", LostProcess: "lost", BudgetExhausted: "exhausted", Diverged: "diverged"}


@dataclass(frozen=True, kw_only=True, eq=False)
class RunOutcome:
    """The outcome of a run."""

    status: str  # "finished", "stopped" (by a signal), "lost" (a process), "exhausted" (a budget) or "diverged"
    message: str  # why it did not finish
    setup: Setup
    records: list[dict[str, Any]]  # as in `metrics.jsonl`
    ledger: Ledger | None = None  # None if another process keeps it


def execute(
    scenario: Scenario,
    out: Path,
    *,
    resume: bool = False,
    on_start: Callable[[Setup, int], None] = lambda setup, first_round: None,
    on_round: Callable[[dict[str, Any]], None] = lambda record: None,
    stop: Callable[[], bool] = lambda: False,
    group: ProcessGroup | None = None,
) -> RunOutcome:
    """Run a scenario into a directory and return the outcome.

    The directory is new, or with `resume` that of an interrupted run of the same scenario and data. `on_start` gets the
    setup and the first round to train, `on_round` each round's record. If `stop` returns True, the run ends with a
    checkpoint. Each process of a `group` (`distributed.join`) calls `execute`.

    Raises RunError if the directory is occupied, locked, or belongs to another scenario or other data; LostProcess
    before the first round, or if this is not rank 0; and the errors of `prepare`.
    """
    group = ProcessGroup() if group is None else group
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
            recorder: RunRecorder | None = None
            with distributed.all_or_none(group):
                if leads:
                    log = stack.enter_context(_log(scenario, directory, on_round))
                    recorder = RunRecorder(setup, directory, ledger, on_round=log)
            if recorder is not None:
                on_start(setup, recorder.state.round_index)
            return _train(setup, recorder, group, stop)
    except BrokenPipeError:  # of the terminal, not of the disk
        raise
    except OSError as error:
        raise RunError(
            f"Cannot write to {out}: {error.strerror or error}. "
            "The last checkpoint is intact; use --resume to continue from it."
        ) from None


@contextmanager
def open_run(
    scenario: Scenario,
    out: Path,
    *,
    resume: bool,
    remote: str,
    on_round: Callable[[dict[str, Any]], None] = lambda record: None,
) -> Iterator[RunRecorder]:
    """Prepare a scenario and yield the recorder of its run directory, for a training on devices of framework `remote`.

    A round that is dispatched again is charged again, because other devices may answer.
    """
    directory = RunDirectory(out)
    with _claimed(scenario, directory, resume=resume) as (spent, ledger):
        setup = prepare(scenario, spent=spent)
        with closing(setup.task.engine), _log(scenario, directory, on_round) as log:
            yield RunRecorder(setup, directory, ledger, remote=remote, on_round=log)


@contextmanager
def _claimed(scenario: Scenario, directory: RunDirectory, *, resume: bool) -> Iterator[tuple[float, Ledger | None]]:
    """Check and lock a directory; yield the μ that the shared ledger had spent at planning, and the run's ledger."""
    if scenario.run.log:
        _extras.require("tensorboardX")
    directory.check(resume=resume)
    with directory.locked():
        if directory.exists:
            directory.manifest()  # raises for another version
            ledger = verified_ledger(directory)
            yield float(ledger.header.get("spent", 0.0)), ledger
        else:
            yield scenario.shared_ledger_spent(), None


@contextmanager
def _log(
    scenario: Scenario, directory: RunDirectory, on_round: Callable[[dict[str, Any]], None]
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that logs a record to TensorBoard, if the scenario asks for it, and calls `on_round`.

    The log is rewritten at the first round, so that no round is logged twice or missing after a resume.
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
    """Return the values of a record by their TensorBoard tags.

    >>> scalars({"round": 3, "loss": None, "averages": {"tail": {"accuracy": 0.5}}})
    {'averages/tail/accuracy': 0.5}
    """
    row = formats.flat(record)
    return {name.replace(".", "/"): float(row[name]) for name in row if row[name] is not None and name != "round"}


def _train(setup: Setup, recorder: RunRecorder | None, group: ProcessGroup, stop: Callable[[], bool]) -> RunOutcome:
    """Train in step with the other processes: all continue, or all stop. Only rank 0 has a recorder."""
    plan, alone = setup.plan, group.size == 1
    initial = 0, setup.task.initial_parameters, plan.clip_norm
    first, parameters, clip_norm = initial if recorder is None else recorder.start
    first, clip_norm = group.broadcast(np.array([first, clip_norm])).tolist()
    between, at_exchanges = (stop, _never) if alone else (_never, stop)
    rounds = federated_averaging(
        plan,
        setup.aircomp,
        distributed.SharedTrainer(setup.task.engine, group, at_exchanges),
        distributed.SharedNoise(setup.noise, group),
        distributed.SharedRecorder(recorder, group, at_exchanges),
        parameters=group.broadcast(parameters),
        clip_norm=clip_norm,
        first_round=int(first),
        stop=between,
        merge=group.merge,
    )
    status, message = "finished", ""
    try:
        for done in rounds:
            if done.index + 1 < plan.rounds and between():
                raise Stopped
    except (Stopped, LostProcess, BudgetExhausted, Diverged) as reason:
        if recorder is None and isinstance(reason, LostProcess):
            raise
        status, message = _STATUS[type(reason)], str(reason)
    if recorder is None:
        return RunOutcome(status=status, message=message, setup=setup, records=[])
    if unfinished := status in ("stopped", "lost"):
        message = f"{message} Stopped before round {recorder.state.round_index + 1}; use --resume to continue.".lstrip()
    recorder.conclude(finished=not unfinished)
    records = recorder.directory.read_metrics()
    return RunOutcome(status=status, message=message, setup=setup, records=records, ledger=recorder.ledger)


def _never() -> bool:
    return False
