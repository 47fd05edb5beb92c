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
import math
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import airfed
from airfed.privacy import gaussian_epsilon
from airfed.privacy.ledger import BudgetExhausted, Charge, Ledger, LedgerError
from airfed.runs import Checkpoint, RunDirectory, RunError
from airfed.scenario import Scenario
from airfed.training import Diverged, Round, Setup, Stopped, federated_averaging, prepare


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """How a run ended.

    Args:
        status: "finished", "stopped" (by a signal), "exhausted" (a budget was) or "diverged".
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
) -> Outcome:
    """Run a scenario into a directory and return how it ended.

    Args:
        scenario: what to run.
        out: the run directory; new, or with `resume` one of the same scenario.
        resume: go on where an earlier run of the same scenario and data stopped.
        on_start: told the set-up and the first round to train.
        on_round: told each round's record.
        stop: asked often; True ends the run with a checkpoint.

    Raises:
        RunError: the directory is in the way, is busy, or belongs to another scenario or other data.
        ScenarioError, DataError, InfeasibleError: as in `prepare`.
    """
    with open_run(scenario, out, resume=resume) as recorder:
        return recorder.run(on_start, on_round, stop)


@contextmanager
def open_run(scenario: Scenario, out: Path, *, resume: bool = False, remote: str = "") -> Iterator[Recorder]:
    """Prepare a scenario, and keep its run directory to this process while it trains.

    Args:
        scenario, out, resume: as in `execute`.
        remote: what trains the devices, where it is not this process; every round then ends with a checkpoint, because
            a round that others have seen cannot be repeated.

    Raises:
        RunError, ScenarioError, DataError, InfeasibleError: as in `execute`.
    """
    directory = RunDirectory(out)
    if directory.exists and not resume:
        raise RunError(f"Expected no run in {out}; give another --out, or --resume to go on with it.")
    if resume and not directory.exists:
        raise RunError(f"Expected a run to resume in {out}; there is none.")
    with directory.locked():
        setup = prepare(scenario)
        try:
            yield Recorder(setup, directory, remote=remote)
        finally:
            setup.task.engine.close()


class Recorder:
    """Binds a training to its directory and ledger: `charge` before a round, `settle` after it, `conclude` at last."""

    def __init__(self, setup: Setup, directory: RunDirectory, *, remote: str = "") -> None:
        self.setup, self.directory = setup, directory
        self.every = 1 if remote else setup.scenario.run.checkpoint_every
        self.repeatable = setup.noise.repeatable and not remote  # elsewhere, other devices may answer the second time
        manifest = _manifest(setup)
        if remote:
            manifest["engine"] = remote
        if directory.exists:
            _check_same(directory.manifest(), manifest, directory.path)
        else:
            directory.begin(scenario=setup.scenario.to_toml(), plan=setup.plan.to_dict(), manifest=manifest)
        path = directory.file("ledger.jsonl")
        # A kill between run.json and the ledger's first line leaves none: nothing was transmitted then.
        if path.exists() and path.stat().st_size:
            self.ledger = Ledger.load(path, repair=True)
        else:
            path.unlink(missing_ok=True)
            self.ledger = Ledger.create(path, _ledger_header(setup))
        start = directory.latest()
        if start is None:
            start = Checkpoint(round_index=0, parameters=setup.task.initial_parameters, ledger_head=self.ledger.head)
        elif not self.ledger.contains(start.ledger_head):
            raise LedgerError(f"{path}: lines that the checkpoint of round {start.round_index} has seen are gone.")
        self.state = start
        self._saved = start.round_index
        directory.rewind_metrics(start.round_index)
        self.transmitted = math.fsum(record["power_transmitted"] for record in directory.read_metrics())

    def run(
        self,
        on_start: Callable[[Setup, int], None],
        on_round: Callable[[dict[str, Any]], None],
        stop: Callable[[], bool],
    ) -> Outcome:
        """Train here, and return how it ended; the arguments are those of `execute`."""
        plan, task = self.setup.plan, self.setup.task
        on_start(self.setup, self.state.round_index)
        status, message = "finished", ""
        rounds = federated_averaging(
            plan,
            self.setup.air,
            task.engine,
            self.setup.noise,
            parameters=self.state.parameters,
            first_round=self.state.round_index,
            before_round=self.charge,
            stop=stop,
        )
        try:
            for done in rounds:
                record = self.settle(done)
                on_round(record)
                check_loss(record)
                if stop():
                    raise Stopped
        except Stopped:
            status, message = "stopped", f"Stopped before round {self.state.round_index}; --resume goes on from there."
        except BudgetExhausted as error:
            status, message = "exhausted", str(error)
        except Diverged as error:
            status, message = "diverged", str(error)
        self.conclude(finished=status != "stopped")
        return Outcome(status=status, message=message, setup=self.setup, records=self.directory.read_metrics())

    def settle(self, done: Round) -> dict[str, Any]:
        """Settle the ledger, and write down a round and its checkpoint; return the record."""
        record = self._record(done)
        self.directory.append_metrics(record)
        self.state = Checkpoint(round_index=done.index + 1, parameters=done.parameters, ledger_head=self.ledger.head)
        if self.state.round_index % self.every == 0:
            self._save()
        return record

    def conclude(self, *, finished: bool) -> None:
        """Make sure of the last checkpoint; once finished, write the model too."""
        if self._saved != self.state.round_index:
            self._save()
        if finished:
            metadata = {"round": str(self.state.round_index), "scenario": self.setup.scenario.name}
            self.directory.finish(self.setup.task.named_tensors(self.state.parameters), metadata)

    def _save(self) -> None:
        try:
            self.directory.save(self.state)
            self._saved = self.state.round_index
        except OSError as error:
            raise RunError(
                f"Cannot write the checkpoint of round {self.state.round_index} to {self.directory.path}: "
                f"{error.strerror}. The older checkpoints are intact; make room and use --resume."
            ) from None

    def charge(self, index: int) -> None:
        """Charge a round before it is transmitted; a round that repeats the very same signal is charged once."""
        plan = self.setup.plan
        earlier = self.ledger.find(index)
        if earlier is not None and self.repeatable:
            return
        power = float(np.sum(plan.power))
        self.ledger.check(plan.problem.budget, mu=plan.mu_round, power=power)
        charge = Charge(
            round_index=index,
            attempt=0 if earlier is None else earlier.attempt + 1,
            devices=plan.num_scheduled,
            alignment=plan.alignment,
            mu=plan.mu_round,
            power_planned=power,
        )
        self.ledger.charge(charge, delta=plan.problem.budget.delta)

    def _record(self, done: Round) -> dict[str, Any]:
        plan, reception, run = self.setup.plan, done.reception, self.setup.scenario.run
        transmitted = reception.power
        self.ledger.settle(done.index, transmitted)
        self.transmitted += transmitted
        last = done.index + 1 == plan.rounds
        evaluate = last or done.index % run.evaluate_every == 0
        quality = self.setup.task.evaluate(done.parameters) if evaluate else {}
        return {
            "round": done.index,
            "steps": done.steps,
            "loss": quality.get("loss"),
            "accuracy": quality.get("accuracy"),
            "test_loss": quality.get("test_loss"),
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
            "power_transmitted_total": self.transmitted,
            "epsilon_round": plan.epsilon_round,
            "epsilon_total": gaussian_epsilon(self.ledger.mu_total, plan.problem.budget.delta),
        }


def check_loss(record: dict[str, Any]) -> None:
    """Raise where a loss is no longer a number.

    Raises:
        Diverged: it says which.
    """
    for name in ("loss", "test_loss"):
        if record[name] is not None and not math.isfinite(record[name]):
            raise Diverged(f"Round {record['round']}: the {name} is {record[name]}; try a smaller learning_rate.")


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


def _ledger_header(setup: Setup) -> dict[str, Any]:
    plan = setup.plan
    budget = plan.problem.budget
    return {
        "scenario": setup.scenario.name,
        "unit": "device",
        "relation": budget.relation,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "scope": budget.scope,
        "formula": budget.formula,
        "total_power": budget.total_power,
        "noise_std": plan.problem.link.noise_std,
        "privacy": setup.noise.privacy,
        "devices": plan.scheduled.tolist(),
    }
