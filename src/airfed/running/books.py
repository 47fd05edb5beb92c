"""Books of a training: a bare ledger, or a whole run directory. `airfed.running.loop` says when they are written."""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import airfed
from airfed.planning import Plan
from airfed.privacy.account import open_account
from airfed.privacy.ledger import Charge, Ledger, LedgerError
from airfed.problem import Budget
from airfed.running.directory import Checkpoint, RunDirectory, RunError, sha256
from airfed.running.loop import Diverged, Parameters, Round
from airfed.running.noise import SecureNoise
from airfed.running.setup import Setup, versions
from airfed.scenario import Scenario, load

_LOG = logging.getLogger(__name__)
_RTOL: Final = 1e-9  # sums that are added up in another order

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


class LedgerBooks:
    """The books of a project that has no airfed scenario: the ledger alone.

    Every training that is charged to the file counts towards the plan's budget, those of other processes included.

    Args:
        path: the ledger's file. An existing one is gone on with, so that what was spent before counts.
        plan: whose budget is spent.
        privacy: of the noise source: "secure" or "simulated".
    """

    def __init__(self, path: Path, plan: Plan, *, privacy: str = SecureNoise.privacy) -> None:
        self.plan = plan
        self.ledger = Ledger.resume(path, ledger_header(plan, scenario="", privacy=privacy))
        self._training = secrets.token_hex(16)
        if self.ledger.torn:  # half a line: a round that may have been sent
            _charge(self.ledger, plan, 0, run=self._training)
            self.ledger.mark_sent(0, run=self._training)

    def charge(self, index: int) -> None:
        """Charge everyone who is scheduled; a round that is sent out again is charged again."""
        earlier = self.ledger.find(index, run=self._training)
        if earlier is None or earlier.sent:
            _charge(self.ledger, self.plan, index, within=self.plan.problem.budget, run=self._training)

    def send(self, index: int, signal: str) -> str:
        """Mark the charge as used; its name and number set the noise apart."""
        self.ledger.mark_sent(index, run=self._training)
        return f"{self._training}/{self.ledger.latest(index, run=self._training).attempt}"

    def settle(self, done: Round) -> None:
        """Write down the power that was really transmitted."""
        self.ledger.settle(done.index, done.reception.power, run=self._training)


class RunBooks:
    """The books of a run directory: ledger, metrics, checkpoints and, in the end, the model.

    A round is charged and flushed before anything of it is transmitted; what it has sent, its metrics and its
    checkpoint follow. After a kill at any moment the next life starts from the newest intact checkpoint and repeats
    the rounds since: where the noise is seeded they come out the same, to the bit, and are charged once; where it is
    not, or the devices are elsewhere, they are other signals and are charged again.

    Args:
        setup: what is trained.
        directory: where; a run that is there is gone on with.
        remote: what trains the devices, where that is not this process.
        on_round: told each round's record.

    Raises:
        RunError: the directory belongs to another scenario, other data or another model.
        LedgerError: a charge, or anything that the ledger has seen, is gone or changed.
    """

    def __init__(
        self,
        setup: Setup,
        directory: RunDirectory,
        *,
        remote: str = "",
        on_round: Callable[[dict[str, Any]], None] = lambda record: None,
    ) -> None:
        self.setup, self.directory, self._on_round = setup, directory, on_round
        self._every = 1 if remote else setup.scenario.run.checkpoint_every
        self._repeatable = setup.noise.repeatable and not remote
        if directory.exists:
            self.ledger = verified_ledger(directory)
            _check_same(directory, setup, remote)
            check_header(self.ledger, setup.plan, setup.noise.privacy)
        else:
            self._begin(remote)
        # Of the header, which no two different runs share: what names this run in an account.
        self._name = "" if self._repeatable else f"{self.ledger.header['nonce']}/"
        self.account: Ledger | None = None
        if (account := setup.scenario.account_path) is not None:
            self._name = sha256(json.dumps(self.ledger.header, sort_keys=True).encode())[:32] + "/"
            self.account = open_account(account, setup.plan.problem.budget)
            _check_account(self.account, self.ledger, self._name)
        self.state = self._newest()
        self._saved = self.state.round_index
        directory.rewind_metrics(self.state.round_index)
        self.transmitted = [record["power_transmitted"] or 0.0 for record in directory.read_metrics()]
        if self.ledger.torn and not self._repeatable:  # half a line: a round that may have been sent
            if self.account is not None:
                _charge(self.account, setup.plan, self.state.round_index, run=self._name)
            _charge(self.ledger, setup.plan, self.state.round_index)
            self.ledger.mark_sent(self.state.round_index)

    @property
    def start(self) -> tuple[int, Parameters]:
        """The first round to train, and the model before it."""
        return self.state.round_index, self.state.parameters

    def charge(self, index: int) -> None:
        """Charge a round before it is transmitted; what repeats the very same signal, or was never sent, once."""
        previous = self.ledger.find(index)
        if previous is None or (previous.sent and not self._repeatable):
            self._charge(index)

    def send(self, index: int, signal: str) -> str:
        """Mark the charge as used; a repetition that turns out to be another signal is charged, and drawn, anew."""
        charge = self.ledger.latest(index)
        if not self._repeatable:
            self.ledger.mark_sent(index)
            return f"{self._name}{charge.attempt}"
        if charge.sent and charge.signal != signal:
            _LOG.warning("round %d: another signal than before; it is charged again", index + 1)
            self._charge(index)
            charge = self.ledger.latest(index)
        if not charge.sent:
            self.ledger.mark_sent(index, signal)
        return f"{self._name}{charge.attempt}" if self._name or charge.attempt else ""

    def _charge(self, index: int) -> None:
        plan, budget = self.setup.plan, self.setup.plan.problem.budget
        if self.account is not None:
            self.ledger.check(budget, mu=plan.mu_round, power=float(np.sum(plan.power)))  # before anything is spent
            attempt = 0 if (previous := self.ledger.find(index)) is None else previous.attempt + 1
            known = self.account.find(index, run=self._name)
            if known is None or known.attempt < attempt or not self._repeatable:  # else: charged just before a crash
                _charge(self.account, plan, index, within=budget.epsilon, run=self._name)
        _charge(self.ledger, plan, index, within=budget)

    def settle(self, done: Round) -> None:
        """Settle a round in the ledger, record it, tell `on_round`, and save the checkpoint that is due.

        Raises:
            Diverged: a loss is no longer a number.
        """
        quality = self._evaluate(done)
        record = self._record(done, quality)
        self.directory.append_metrics(record)
        self._on_round(record)
        # Before the state moves on: the last good model is what is saved, and a resume stops here again.
        for name, value in quality.items():
            if not math.isfinite(value):
                raise Diverged(f"Round {done.index + 1}: the {name} is {value}; try a smaller learning_rate.")
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

    def _begin(self, remote: str) -> None:
        setup = self.setup
        scenario, plan = setup.scenario.anchored().to_toml().encode(), _plan_bytes(setup.plan)
        manifest = {
            "airfed": airfed.__version__,
            "name": setup.scenario.name,
            "engine": remote or setup.task.engine.name,
            "privacy": setup.noise.privacy,
            "rounds": setup.plan.rounds,
            "scenario_sha256": sha256(scenario),
            "plan_sha256": sha256(plan),
            "data_sha256": setup.task.data_digest,
            "signal": dict(setup.signal),
            "versions": versions(),
        }
        header = ledger_header(setup.plan, scenario=setup.scenario.name, privacy=setup.noise.privacy) | {
            "rounds": setup.plan.rounds,
            "mu_round": setup.plan.mu_round,
            "spent": setup.plan.problem.budget.spent,
            "scenario_sha256": manifest["scenario_sha256"],
            "plan_sha256": manifest["plan_sha256"],
            "signal_sha256": sha256(json.dumps(dict(setup.signal), sort_keys=True).encode()),
        }
        if not self._repeatable:
            header["nonce"] = secrets.token_hex(16)
        self.directory.begin(scenario=scenario, plan=plan, manifest=manifest, ledger_header=header)
        self.ledger = Ledger.load(self.directory.file("ledger.jsonl"))

    def _newest(self) -> Checkpoint:
        """The newest checkpoint that fits this run and that the ledger knows, or the very beginning."""
        plan, path = self.setup.plan, self.ledger.path
        check_rounds(self.directory.read_metrics(), self.ledger)
        found = self.directory.latest()
        if found is None:
            return Checkpoint(
                round_index=0,
                parameters=self.setup.task.initial_parameters,
                ledger_head=self.ledger.head,
                energy=np.empty(0) if self.setup.scenario.run.record == "private" else np.zeros(plan.num_scheduled),
            )
        if not self.ledger.contains(found.ledger_head):
            raise LedgerError(f"{path}: lines that the checkpoint after round {found.round_index} has seen are gone.")
        fits = found.parameters.size == plan.problem.learning.dimension and found.round_index <= plan.rounds
        if not fits or found.energy.size not in (0, plan.num_scheduled):
            raise RunError(f"Expected checkpoints of this run in {self.directory.path}; the newest is of another.")
        return found

    def _save(self) -> None:
        self.directory.save(self.state)
        self._saved = self.state.round_index

    def _metered(self, done: Round) -> NDArray[np.float64]:
        """What each device has transmitted so far; with several processes none of them knows of all devices."""
        everyone = done.reception.heard == self.setup.plan.num_scheduled - done.reception.missing.size
        if self.setup.scenario.run.record == "private" or not everyone or not self.state.energy.size:
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
            _LOG.warning("round %d: NaN or Inf from devices %s; counted as zero", done.index + 1, reception.refused)
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


def verified_ledger(directory: RunDirectory) -> Ledger:
    """Return the ledger of a run whose files are those that its first line names.

    In format 1 it names none; `run.json` does, and of its digests that of the plan is one of a file.

    Raises:
        LedgerError: the ledger does not hold together, or a file is not the one that the ledger has seen.
        RunError: a file cannot be read.
    """
    ledger = Ledger.load(directory.file("ledger.jsonl"), repair=True)
    files = {"run.json": "run_sha256", "scenario.toml": "scenario_sha256", "plan.json": "plan_sha256"}
    named: Mapping[str, Any] = ledger.header
    if "run_sha256" not in named and (manifest := directory.any_manifest())["format"] == 1:
        files, named = {"plan.json": "plan_sha256"}, manifest
    for name, key in files.items():
        if named.get(key) != sha256(directory.read(name)):
            raise LedgerError(f"{directory.file(name)} is not the file that the ledger has seen: it was changed.")
    return ledger


def check_rounds(rounds: Iterable[Mapping[str, Any]], ledger: Ledger) -> None:
    """Raise where the metrics of a run say something else than its ledger.

    Raises:
        LedgerError: a round that was trained was never charged, or has another ε or power than was charged.
    """
    file, sent = ledger.path.with_name("metrics.jsonl"), 0.0
    for record in rounds:
        number, charge = record["round"] + 1, ledger.find(record["round"])
        if charge is None:
            raise LedgerError(f"{ledger.path}: round {number} was trained, and its charge is gone.")
        for name in ("epsilon_round", "epsilon_total", "power_planned"):
            if record[name] != getattr(charge, name):
                raise LedgerError(f"{file}: the {name} of round {number} is not the ledger's.")
        metered = record["power_transmitted"]
        if metered is not None and charge.power_metered not in (None, metered):
            raise LedgerError(f"{ledger.path}: the power of round {number} is not the one in metrics.jsonl.")
        sent += metered or 0.0
        totals = {"power_planned_total": number * charge.power_planned, "power_transmitted_total": sent}
        for name, total in totals.items():
            said = record[name]
            if said is not None and not math.isclose(said, total, rel_tol=_RTOL):
                raise LedgerError(f"{file}: the {name} of round {number} does not add up.")


def check_header(ledger: Ledger, plan: Plan, privacy: str) -> None:
    """Raise where the first line of a run's ledger is not what its plan and its noise make it.

    Raises:
        LedgerError: it counts something else, or towards another budget.
    """
    expected = ledger_header(plan, scenario="", privacy=privacy)
    if "run_sha256" in ledger.header:  # since format 2
        expected |= {"rounds": plan.rounds, "mu_round": plan.mu_round}
    for name, value in expected.items():
        if name != "scenario" and ledger.header.get(name) != value:
            raise LedgerError(f"{ledger.path}: its {name} is not that of the plan and the scenario.")


def _check_account(account: Ledger, ledger: Ledger, run: str) -> None:
    """Raise unless all that a run has charged is in its account."""
    known = [charge.mu for charge in account.charges if charge.run == run]
    if len(known) < ledger.rounds or any(charge.mu not in known for charge in ledger.charges):
        raise LedgerError(
            f"Expected the {ledger.rounds} charges of {ledger.path} in the account {account.path}; some are gone. "
            "Bring that account back: what was spent must not be forgotten."
        )


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


def _charge(ledger: Ledger, plan: Plan, index: int, *, within: Budget | float | None = None, run: str = "") -> Charge:
    return ledger.charge(
        index,
        devices=plan.num_scheduled,
        alignment=plan.alignment,
        mu=plan.mu_round,
        power=float(np.sum(plan.power)),
        within=within,
        run=run,
    )


def _check_same(directory: RunDirectory, setup: Setup, remote: str) -> None:
    """Raise where a resume would mix two different runs; the sentence says what has changed."""
    old = directory.manifest()

    def refuse(what: str) -> None:
        raise RunError(f"Expected {what} of the run in {directory.path}; it has changed. Give another --out.")

    changed = _changed_keys(load(directory.file("scenario.toml")), setup.scenario.anchored())
    if changed:
        refuse(f"the scenario ({', '.join(changed)})")
    if old["engine"] != (remote or setup.task.engine.name):
        refuse(f"the engine ({old['engine']})")
    for name, digest in old["signal"].items():
        if setup.signal.get(name) != digest:
            refuse(f"the {name}")
    if setup.signal.keys() != old["signal"].keys():
        refuse("all that shapes the signal")
    if old["plan_sha256"] != sha256(_plan_bytes(setup.plan)):
        refuse("the plan")
    if old["privacy"] != setup.noise.privacy:
        refuse("the noise source")
    if load(directory.file("scenario.toml")).run.record != setup.scenario.run.record:
        refuse("run.record")


def _changed_keys(old: Scenario, new: Scenario) -> list[str]:
    """The dotted keys in which two scenarios differ, less the name and how to compute."""
    flat = [dict(_flattened(scenario.content())) for scenario in (old, new)]
    return [key for key in dict.fromkeys((*flat[0], *flat[1])) if flat[0].get(key) != flat[1].get(key)]


def _flattened(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    return [
        pair
        for key, value in table.items()
        for pair in (
            _flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
        )
    ]


def _plan_bytes(plan: Plan) -> bytes:
    return json.dumps(plan.to_dict(), allow_nan=False).encode()


def _finite(value: float | None) -> float | None:
    """The value, or None where it cannot be written as JSON."""
    return value if value is not None and math.isfinite(value) else None
