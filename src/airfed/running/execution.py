"""A training kept on disk: metered, recorded, and safe against interruption.

The order within a round is what makes it safe: the ledger is charged and flushed before anything is transmitted;
metrics and checkpoint follow. After a kill at any moment, `--resume` starts from the newest intact checkpoint, repeats
the rounds since (their noise and mini-batches are keyed by the round, so they come out the same) and ends with the same
bits.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import math
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import airfed
from airfed.air import Superposition
from airfed.planning import Plan
from airfed.privacy.ledger import BudgetExhausted, Ledger, LedgerError
from airfed.running.cluster import Group, LostProcess, SharedNoise, Solo
from airfed.running.directory import Checkpoint, RunDirectory, RunError
from airfed.running.loop import Diverged, Parameters, Round, Stopped, federated_averaging
from airfed.running.setup import Setup, prepare
from airfed.scenario import Scenario

_LOG = logging.getLogger(__name__)

# Figures that depend on the devices' data without any noise on them: no ε covers them. The noise's own norm is one:
# with the received signal it tells how far the noise-free one is. `run.record = "private"` leaves them out.
UNNOISED: Final = (
    "loss",
    "update_norm_mean",
    "update_norm_max",
    "clipped_share",
    "refused",
    "missing",
    "fading_error",
    "noise_error",
    "signal_to_noise_db",
    "power_transmitted",
    "power_transmitted_total",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """How a run ended.

    Args:
        status: "finished", "stopped" (by a signal), "lost" (another process was), "exhausted" (a budget was) or
            "diverged".
        message: why, where it did not finish.
        records: the rounds, as in `metrics.jsonl`.
    """

    status: str
    message: str
    setup: Setup
    records: list[dict[str, Any]]


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
        group: the processes that share this run (`cluster.join`); every one of them calls `execute`. Rank 0
            keeps the directory, the others only train.

    Raises:
        RunError: the directory is in the way, is busy, or belongs to another scenario or other data.
        LostProcess: before the first round, or where this is not rank 0.
        ScenarioError, DataError, InfeasibleError: as in `prepare`.
    """
    group = Solo() if group is None else group
    if group.rank > 0:
        return _follow(prepare(scenario), group, stop)
    directory = RunDirectory(out)
    try:
        with ExitStack() as stack:
            recorder = _begin(scenario, directory, resume, group, stack)
            return recorder.run(on_start, on_round, stop)
    except BrokenPipeError:  # of the terminal, not of the disk
        raise
    except OSError as error:
        raise RunError(
            f"Cannot write to {out}: {error.strerror or error}. "
            "What was saved before is intact, and --resume goes on from it."
        ) from None


@contextmanager
def open_run(scenario: Scenario, out: Path, *, resume: bool, remote: str) -> Iterator[Recorder]:
    """Prepare a scenario and keep its run directory to this process, for a training whose devices are elsewhere.

    Every round ends with a checkpoint, and a round that is sent out again is charged again: other devices may answer
    the second time, and then it is another signal.

    Args:
        scenario, out, resume: as in `execute`.
        remote: what trains the devices, for the record.

    Raises:
        RunError, ScenarioError, DataError, InfeasibleError: as in `execute`.
    """
    with ExitStack() as stack:
        yield _begin(scenario, RunDirectory(out), resume, Solo(), stack, remote=remote)


def _begin(
    scenario: Scenario, directory: RunDirectory, resume: bool, group: Group, stack: ExitStack, *, remote: str = ""
) -> Recorder:
    """Lock and open the directory; `stack` releases it, and the engine."""
    try:
        directory.check(resume=resume)
        stack.enter_context(directory.locked())
        setup = prepare(scenario)
        stack.callback(setup.task.engine.close)
        recorder = Recorder(setup, directory, group, remote=remote)
    except (ValueError, OSError):
        group.any(True)  # the other processes must not wait for a run that cannot begin
        raise
    group.any(False)
    return recorder


def _follow(setup: Setup, group: Group, stop: Callable[[], bool]) -> Outcome:
    """Train this process's share of the devices; rank 0 decides, draws the noise and keeps the record."""
    outcome = Outcome(status="stopped", message="", setup=setup, records=[])
    try:
        if group.any(False):
            return outcome
        first_round, parameters = _shared_start(group, 0, setup.task.initial_parameters)
        for _ in _rounds(setup, group, parameters, first_round, before_round=lambda index: None, stop=stop):
            pass
    except (Stopped, Diverged):
        return outcome
    finally:
        setup.task.engine.close()
    return outcome


def _shared_start(group: Group, first_round: int, parameters: Parameters) -> tuple[int, Parameters]:
    """Rank 0's starting point, in every process."""
    return int(group.broadcast(np.array([first_round]))[0]), group.broadcast(parameters)


def _rounds(
    setup: Setup,
    group: Group,
    parameters: Parameters,
    first_round: int,
    *,
    before_round: Callable[[int], None],
    stop: Callable[[], bool],
) -> Iterator[Round]:
    """The rounds of the run, in step with the other processes: all go on, or all stop."""
    training = partial(
        federated_averaging,
        setup.plan,
        setup.air,
        setup.task.engine,
        SharedNoise(setup.noise, group),
        parameters=parameters,
        first_round=first_round,
    )
    if group.size == 1:
        return training(before_round=before_round, stop=stop)

    def together(index: int) -> None:
        if group.any(stop()):
            raise Stopped
        try:
            before_round(index)
        except (ValueError, OSError):
            group.any(True)
            raise
        if group.any(False):
            raise Stopped

    def merge(superposition: Superposition) -> None:
        if group.any(stop()):
            raise Stopped
        group.merge(superposition)

    # A stop is heeded only where all processes meet, not between chunks.
    return training(devices=group.share(setup.plan.scheduled), before_round=together, merge=merge)


class Recorder:
    """Binds a training to its directory and ledger: `charge` before a round, `settle` after it, `conclude` at last."""

    def __init__(self, setup: Setup, directory: RunDirectory, group: Group, *, remote: str = "") -> None:
        self.setup, self.directory, self.group = setup, directory, group
        self._every = 1 if remote else setup.scenario.run.checkpoint_every
        self._repeatable = setup.noise.repeatable and not remote
        manifest = _manifest(setup) | ({"engine": remote} if remote else {})
        if directory.exists:
            _check_same(directory.manifest(), manifest, directory.path)
        else:
            directory.begin(scenario=setup.scenario.anchored().to_toml(), plan=setup.plan.to_dict(), manifest=manifest)
        path = directory.file("ledger.jsonl")
        self.ledger = Ledger.resume(
            path, ledger_header(setup.plan, scenario=setup.scenario.name, privacy=setup.noise.privacy)
        )
        for record in directory.read_metrics():
            if self.ledger.find(record["round"]) is None:
                raise LedgerError(f"{path}: round {record['round']} was trained, and its charge is gone.")
        start = directory.latest()
        if start is None:
            start = Checkpoint(
                round_index=0,
                parameters=setup.task.initial_parameters,
                ledger_head=self.ledger.head,
                energy=np.zeros(setup.plan.num_scheduled),
            )
        elif not self.ledger.contains(start.ledger_head):
            raise LedgerError(f"{path}: lines that the checkpoint of round {start.round_index} has seen are gone.")
        self.state = start
        self._saved = start.round_index
        directory.rewind_metrics(start.round_index)
        self.transmitted = [record["power_transmitted"] or 0.0 for record in directory.read_metrics()]

    def run(
        self,
        on_start: Callable[[Setup, int], None],
        on_round: Callable[[dict[str, Any]], None],
        stop: Callable[[], bool],
    ) -> Outcome:
        """Train here, and return how it ended; the arguments are those of `execute`."""
        on_start(self.setup, self.state.round_index)
        status, message = "finished", ""
        first_round, parameters = _shared_start(self.group, self.state.round_index, self.state.parameters)
        rounds = _rounds(self.setup, self.group, parameters, first_round, before_round=self.charge, stop=stop)
        try:
            for done in rounds:
                self.settle(done, on_round)
                if self.group.size == 1 and stop() and self.state.round_index < self.setup.plan.rounds:
                    raise Stopped
        except (Stopped, LostProcess) as reason:
            status, message = "stopped", f"Stopped before round {self.state.round_index}; --resume goes on from there."
            if isinstance(reason, LostProcess):
                status, message = "lost", f"{reason} {message}"
        except BudgetExhausted as error:
            status, message = "exhausted", str(error)
        except Diverged as error:
            status, message = "diverged", str(error)
        self.conclude(finished=status not in ("stopped", "lost"))
        return Outcome(status=status, message=message, setup=self.setup, records=self.directory.read_metrics())

    def settle(self, done: Round, on_round: Callable[[dict[str, Any]], None] = lambda record: None) -> None:
        """Settle a round in the ledger, record it, tell `on_round`, and save the checkpoint that is due.

        Raises:
            Diverged: a loss is no longer a number.
        """
        quality = self._evaluate(done)
        record = self._record(done, quality)
        self.directory.append_metrics(record)
        on_round(record)
        # Before the state moves on: the last good model is what is saved, and a resume stops here again.
        self._check_quality(done.index, quality)
        self.state = Checkpoint(
            round_index=done.index + 1,
            parameters=done.parameters,
            ledger_head=self.ledger.head,
            energy=self._metered(done),
        )
        if self.state.round_index % self._every == 0:
            self._save()

    def conclude(self, *, finished: bool) -> None:
        """Save the last checkpoint unless it is there already and, once finished, the model."""
        if self._saved != self.state.round_index:
            self._save()
        if finished:
            metadata = {"round": str(self.state.round_index), "scenario": self.setup.scenario.name}
            tensors = self.setup.task.named_tensors(self.state.parameters)
            self.directory.finish(tensors, metadata, self._devices())

    def _save(self) -> None:
        self.directory.save(self.state)
        self._saved = self.state.round_index

    def _check_quality(self, index: int, quality: dict[str, float]) -> None:
        for name, value in quality.items():
            if not math.isfinite(value):
                if index + 1 < self.setup.plan.rounds:
                    self.group.any(True)  # the other processes wait at the next round's beginning
                raise Diverged(f"Round {index}: the {name} is {value}; try a smaller learning_rate.")

    def charge(self, index: int) -> None:
        """Charge a round before it is transmitted; a round that repeats the very same signal is charged once."""
        plan = self.setup.plan
        if self._repeatable and self.ledger.find(index) is not None:
            return
        power = float(np.sum(plan.power))
        self.ledger.check(plan.problem.budget, mu=plan.mu_round, power=power)
        self.ledger.charge(index, devices=plan.num_scheduled, alignment=plan.alignment, mu=plan.mu_round, power=power)

    def _metered(self, done: Round) -> NDArray[np.float64]:
        """What each device has transmitted so far; with several processes none of them knows of all devices."""
        if self.group.size > 1 or not self.state.energy.size:
            return np.empty(0)
        return self.state.energy + done.reception.energy

    def _devices(self) -> list[dict[str, Any]]:
        plan, energy = self.setup.plan, self.state.energy
        if not energy.size or self.setup.scenario.run.record == "private":
            return []
        gain, planned = plan.problem.fleet.gain, plan.power * self.state.round_index
        columns = ("device", "gain", "power_planned", "power_transmitted")
        rows = zip(
            plan.scheduled.tolist(), gain[plan.scheduled].tolist(), planned.tolist(), energy.tolist(), strict=True
        )
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _evaluate(self, done: Round) -> dict[str, float]:
        last = done.index + 1 == self.setup.plan.rounds
        if last or done.index % self.setup.scenario.run.evaluate_every == 0:
            return self.setup.task.evaluate(done.parameters)
        return {}

    def _record(self, done: Round, quality: dict[str, float]) -> dict[str, Any]:
        plan, reception, run = self.setup.plan, done.reception, self.setup.scenario.run
        transmitted = reception.power
        self.ledger.settle(done.index, None if run.record == "private" else transmitted)
        self.transmitted.append(transmitted)
        charge = self.ledger.find(done.index)
        assert charge is not None  # `settle` has looked
        if reception.refused.size:
            _LOG.warning("round %d: NaN or Inf from devices %s; counted as zero", done.index, reception.refused)
        record = {
            "round": done.index,
            "steps": done.steps,
            "loss": _finite(quality.get("loss")),
            "accuracy": _finite(quality.get("accuracy")),
            "test_loss": _finite(quality.get("test_loss")),
            "update_norm_mean": reception.norm_mean,
            "update_norm_max": reception.norm_max,
            "clipped_share": reception.clipped / plan.num_scheduled,
            "refused": reception.heard - reception.usable,
            "missing": plan.num_scheduled - reception.heard,
            "fading_error": reception.fading_error,
            "noise_error": reception.noise_error,
            "signal_to_noise_db": 10 * math.log10(reception.signal_to_noise) if reception.signal_to_noise else None,
            "power_planned": float(np.sum(plan.power)),
            "power_transmitted": transmitted,
            "power_planned_total": (done.index + 1) * float(np.sum(plan.power)),
            "power_transmitted_total": math.fsum(self.transmitted),
            "epsilon_round": charge.epsilon_round,
            "epsilon_total": charge.epsilon_total,
        }
        if run.record == "private":
            record |= dict.fromkeys(UNNOISED)
        return record


def _finite(value: float | None) -> float | None:
    """The value, or None where it cannot be written as JSON."""
    return value if value is not None and math.isfinite(value) else None


def _manifest(setup: Setup) -> dict[str, Any]:
    scenario = setup.scenario
    content = scenario.model_dump(mode="json", exclude={"name", "run"})
    packages = ("numpy", "scipy", "torch", "numba", "safetensors")
    return {
        "airfed": airfed.__version__,
        "name": scenario.name,
        "engine": setup.task.engine.name,
        "privacy": setup.noise.privacy,
        "scenario_sha256": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
        "plan_sha256": hashlib.sha256(json.dumps(setup.plan.to_dict()).encode()).hexdigest(),
        "data_sha256": setup.task.data_digest,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
    }


@cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _check_same(old: dict[str, Any], new: dict[str, Any], path: Path) -> None:
    """Raise where a resume would mix two different runs."""
    what = {
        "scenario_sha256": "scenario",
        "data_sha256": "data",
        "plan_sha256": "plan",
        "engine": "engine",
        "privacy": "noise source",
    }
    for key, name in what.items():
        if old.get(key) != new[key]:
            raise RunError(f"Expected the {name} of the run in {path}; it has changed. Give another --out.")


def ledger_header(plan: Plan, *, scenario: str, privacy: str) -> dict[str, Any]:
    """Return what the first line of a plan's ledger says: what is counted, and against which budget."""
    budget, link = plan.problem.budget, plan.problem.link
    return {
        "scenario": scenario,
        "unit": "device",
        "relation": budget.relation,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "scope": budget.scope,
        "formula": budget.formula,
        "total_power": budget.total_power,
        "noise_std": link.noise_std,
        "amplification": plan.amplification,
        "estimation_error": link.estimation_error,
        "estimation_failure": link.estimation_failure,
        "trust_estimates": link.trust_estimates,
        "privacy": privacy,
        "devices": plan.scheduled.tolist(),
    }
