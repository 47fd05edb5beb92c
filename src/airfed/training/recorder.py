"""The books of a run directory: ledger, metrics, checkpoints and model. `airfed.training.loop` says when to write."""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import airfed
from airfed.planning import Average, Plan
from airfed.privacy.ledger import Ledger, LedgerError
from airfed.privacy.shared_ledger import open_account
from airfed.scenario import flatten, load
from airfed.training import charging
from airfed.training.directory import RunDirectory, RunError, sha256
from airfed.training.formats import device_rows, quality_record, round_record
from airfed.training.loop import Diverged, Parameters, Round
from airfed.training.setup import Setup, versions
from airfed.training.state import AVERAGES, Averages, Checkpoint, tensor_file

_LOG = logging.getLogger(__name__)


class RunBooks:
    """The books of a run directory: ledger, metrics, checkpoints and, in the end, the model.

    A round is charged and flushed before anything of it is transmitted; its power, its metrics and its checkpoint
    follow. After a kill at any moment the next life starts from the newest intact checkpoint and repeats the rounds
    since: where the noise is seeded they come out the same, to the bit, and are charged once; where it is not, or the
    devices are elsewhere, they are other signals and are charged again.

    Args:
        setup: what is trained.
        directory: where. RunError is raised where the run there is another scenario's, data's or model's, LedgerError
            where anything that the ledger has seen is gone or changed.
        ledger: of the run that is there and is resumed (`verified_ledger`); None begins one.
        remote: what trains the devices, where that is not this process.
        on_round: told each round's record.
    """

    def __init__(
        self,
        setup: Setup,
        directory: RunDirectory,
        ledger: Ledger | None,
        *,
        remote: str = "",
        on_round: Callable[[dict[str, Any]], None] = lambda record: None,
    ) -> None:
        if setup.scenario.account_path is not None and not setup.plan.private:
            raise RunError(f"Expected no budget.account with policy {setup.plan.policy}: it is not private.")
        self.setup, self.directory, self._on_round = setup, directory, on_round
        self._every = 1 if remote else setup.scenario.run.checkpoint_every
        self._repeatable = setup.noise.repeatable and not remote
        self._private = setup.scenario.run.record == "private"
        if ledger is not None:
            self.ledger = ledger
            _check_same(directory, setup, remote)
            charging.check_header(self.ledger, setup.plan, setup.noise.privacy)
        else:
            self._begin(remote)
        self._batteries = charging.Batteries(setup.plan, self.ledger)
        # Of the header, which no two different runs share: what names this run in an account.
        self._name = "" if self._repeatable else f"{self.ledger.header['nonce']}/"
        self.account: Ledger | None = None
        if (account := setup.scenario.account_path) is not None:
            self._name = sha256(json.dumps(self.ledger.header, sort_keys=True).encode())[:32] + "/"
            self.account = open_account(account, setup.plan.problem.budget, setup.plan.problem.trusted)
            charging.check_account(self.account, self.ledger, self._name)
        self.state, self.averages, self.transmitted = self._load()
        self._saved = self.state.round_index
        if self.ledger.torn and not self._repeatable:  # half a line: a round that may have been sent
            charged = max((charge.round_index for charge in self.ledger.charges), default=-1)
            end, start = setup.plan.rounds - 1, self.state.round_index
            rounds = range(min(start, end), min(max(charged + 1, start), end) + 1)  # since the checkpoint, and the next
            if self.account is not None:
                charging.charge_any(self.account, setup.plan, rounds, run=self._name, sent=False)
            charging.charge_any(self.ledger, setup.plan, rounds)

    @property
    def start(self) -> tuple[int, Parameters]:
        """The first round to train, and the model before it."""
        return self.state.round_index, self.state.parameters

    def charge(self, index: int) -> None:
        """Charge a round before it is transmitted; a repetition of the same signal, or a round never sent, once."""
        previous = self.ledger.find(index)
        if previous is None or (previous.sent and not self._repeatable):
            self._charge(index)

    def send(self, index: int, signal: str) -> str:
        """Mark the charge as used; a repetition that turns out to be another signal is charged again."""
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
        return self._name

    def _charge(self, index: int) -> None:
        plan, budget = self.setup.plan, self.setup.plan.spendable
        self._batteries.check(index)
        if self.account is not None:
            decided, members = plan.sequence[index], charging.round_members(plan, index)
            # Before anything is spent.
            self.ledger.check(budget, mu=decided.mu, power=decided.power_planned, members=members)
            attempt = 0 if (previous := self.ledger.find(index)) is None else previous.attempt + 1
            known = self.account.find(index, run=self._name)
            if known is None or known.attempt < attempt or not self._repeatable:  # else: charged just before a crash
                charging.charge_round(self.account, plan, index, within=budget.epsilon, run=self._name)
        charging.charge_round(self.ledger, plan, index, within=budget)

    def settle(self, done: Round) -> None:
        """Settle a round in the ledger, record it, tell `on_round`, and save the checkpoint that is due.

        Raises:
            Diverged: a loss is no longer a number.
        """
        plan, run, reception = self.setup.plan, self.setup.scenario.run, done.reception
        averages, qualities = self.averages.after(done.parameters), dict[Average, dict[str, float]]()
        if done.index + 1 == plan.rounds or done.index % run.evaluate_every == 0:
            qualities = {name: self.setup.task.evaluate(averages.model(name)) for name in averages.names}
        quality = qualities.get(plan.average, {})
        self.ledger.settle(done.index, None if self._private else reception.power)
        self.transmitted.append(reception.power)
        if reception.refused.size:
            _LOG.warning("round %d: NaN or Inf from devices %s; counted as zero", done.index + 1, reception.refused)
        charge, total = self.ledger.latest(done.index), math.fsum(self.transmitted)
        record = round_record(plan, done, charge, quality, transmitted_total=total, private=self._private)
        if run.averages == "all":
            record["averages"] = {
                name: quality_record(each, private=self._private) for name, each in qualities.items()
            } or None
        self.directory.append_metrics(record)
        self._on_round(record)
        # Before the state moves on: the last good model is what is saved, and a resume stops here again.
        for name, value in quality.items():
            if not math.isfinite(value):
                raise Diverged(f"Round {done.index + 1}: the {name} is {value}; try a smaller learning_rate.")
        head, energy, self.averages = self.ledger.head, self._metered(done), averages
        self.state = Checkpoint(
            round_index=done.index + 1, parameters=done.parameters, ledger_head=head, energy=energy, sums=averages.sums
        )
        if self.state.round_index % self._every == 0:
            self._save()

    def conclude(self, *, finished: bool) -> None:
        """Save the last checkpoint unless it is there already and, once finished, the model; the ledger names it."""
        rounds, energy, setup = self.state.round_index, self.state.energy, self.setup
        if self._saved != rounds or (finished and not self._saved):  # the first round may be the last
            self._save()
        if finished:
            tensors = setup.task.named_tensors(self.averages.model(setup.plan.average))
            model = tensor_file(tensors, {"round": str(rounds), "scenario": setup.scenario.name})
            self.ledger.name_model(sha256(model))  # before it is there: no model without its line
            metered = energy.size and not self._private
            self.directory.finish(model, device_rows(setup.plan, energy, rounds) if metered else [])

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
        header = charging.ledger_header(setup.plan, scenario=setup.scenario.name, privacy=setup.noise.privacy) | {
            "rounds": setup.plan.rounds,
            "mu_round": setup.plan.mu_round,
            "spent": setup.plan.problem.budget.spent,
            "scenario_sha256": manifest["scenario_sha256"],
            "plan_sha256": manifest["plan_sha256"],
            "signal_sha256": sha256(json.dumps(dict(setup.signal), sort_keys=True).encode()),
        }
        if not self._repeatable:
            header["nonce"] = secrets.token_hex(16)
        self.ledger = self.directory.begin(scenario=scenario, plan=plan, manifest=manifest, ledger_header=header)

    def _load(self) -> tuple[Checkpoint, Averages, list[float]]:
        """The newest checkpoint that the ledger knows, or the very beginning; the metrics are rewound to it."""
        plan, directory = self.setup.plan, self.directory
        records = directory.read_metrics()
        charging.check_rounds(records, self.ledger)
        found = directory.latest()
        if found is None:
            energy, initial = np.zeros(0 if self._private else plan.num_scheduled), self.setup.task.initial_parameters
            found = Checkpoint(round_index=0, parameters=initial, ledger_head=self.ledger.head, energy=energy)
        elif not self.ledger.contains(found.ledger_head):
            seen = f"lines that the checkpoint after round {found.round_index} has seen"
            raise LedgerError(f"{self.ledger.path}: {seen} are gone.")
        names = AVERAGES if self.setup.scenario.run.averages == "all" else (plan.average,)
        latest, done, sums = found.parameters, found.round_index, found.sums
        fits = latest.size == plan.problem.learning.dimension and done <= plan.rounds
        try:
            averages = Averages(rounds=plan.rounds, names=names, latest=latest, done=done, sums=sums)
        except ValueError:
            fits = False
        if not fits or found.energy.size not in (0, plan.num_scheduled):
            raise RunError(f"Expected checkpoints of this run in {directory.path}; the newest is of another.")
        directory.rewind_metrics(found.round_index)
        return found, averages, [record["power_transmitted"] or 0.0 for record in records[: found.round_index]]

    def _save(self) -> None:
        self.directory.save(self.state)
        self._saved = self.state.round_index

    def _metered(self, done: Round) -> NDArray[np.float64]:
        """The power that each device has transmitted so far; of several processes none knows that of all devices."""
        scheduled = self.setup.plan.sequence[done.index].scheduled
        everyone = done.reception.heard == scheduled.size - done.reception.missing.size
        if self._private or not everyone or not self.state.energy.size:
            return np.empty(0)
        energy = self.state.energy.copy()
        energy[np.searchsorted(self.setup.plan.scheduled, scheduled)] += done.reception.energy
        return energy


def _check_same(directory: RunDirectory, setup: Setup, remote: str) -> None:
    """Raise where a resume would mix two different runs; the sentence says what has changed."""
    old, begun = directory.manifest(), load(directory.file("scenario.toml"))
    before, now = flatten(begun.content()), flatten(setup.scenario.anchored().content())
    changed = [key for key in dict.fromkeys((*before, *now)) if before.get(key) != now.get(key)]
    signal = [name for name in old["signal"] if setup.signal.get(name) != old["signal"][name]]
    run = [name for name in ("record", "averages") if getattr(begun.run, name) != getattr(setup.scenario.run, name)]
    reasons = {
        f"the scenario ({', '.join(changed)})": changed,
        f"the engine ({old['engine']})": old["engine"] != (remote or setup.task.engine.name),
        f"the {''.join(signal[:1])}": signal,
        "all that shapes the signal": setup.signal.keys() != old["signal"].keys(),
        "the plan": old["plan_sha256"] != sha256(_plan_bytes(setup.plan)),
        "the noise source": old["privacy"] != setup.noise.privacy,
        f"run.{''.join(run[:1])}": run,
    }
    for what, differs in reasons.items():
        if differs:
            raise RunError(f"Expected {what} of the run in {directory.path}; it has changed. Give another --out.")


def _plan_bytes(plan: Plan) -> bytes:
    return json.dumps(plan.to_dict(), allow_nan=False).encode()
