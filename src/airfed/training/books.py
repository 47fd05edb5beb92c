"""Books of a training: a bare ledger, or a whole run directory. `airfed.training.loop` says when they are written."""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import airfed
from airfed.planning import Average, Plan
from airfed.privacy.ledger import Charge, Ledger, LedgerError, Members
from airfed.privacy.shared_ledger import open_account
from airfed.problem import Budget
from airfed.training.agreement import (
    check_account,
    check_header,
    check_rounds,
    check_same,
    ledger_header,
    plan_bytes,
    verified_ledger,
)
from airfed.training.averages import AVERAGES, Averages
from airfed.training.batteries import Batteries
from airfed.training.checkpoints import Checkpoint, tensor_file
from airfed.training.directory import RunDirectory, RunError, sha256
from airfed.training.loop import Diverged, Parameters, Round
from airfed.training.metrics import UNNOISED, compared, device_rows, round_record
from airfed.training.noise import SecureNoise
from airfed.training.setup import Setup, versions

__all__ = ["UNNOISED", "LedgerBooks", "RunBooks", "check_header", "check_rounds", "ledger_header", "verified_ledger"]

_LOG = logging.getLogger(__name__)


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
        self._batteries = Batteries(plan, self.ledger)
        self._training = secrets.token_hex(16)
        if self.ledger.torn:  # half a line: a round, of any training, that may have been sent
            rounds = range(plan.rounds)
            worst = _most_exposed(plan, rounds)
            _charge(self.ledger, plan, worst, run=self._training, any_of=rounds)
            self.ledger.mark_sent(worst, run=self._training)

    def charge(self, index: int) -> None:
        """Charge everyone who is scheduled; a round that is sent out again is charged again."""
        earlier = self.ledger.find(index, run=self._training)
        if earlier is None or earlier.sent:
            self._batteries.check(index)
            _charge(self.ledger, self.plan, index, within=self.plan.spendable, run=self._training)

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
        if setup.scenario.account_path is not None and not setup.plan.private:
            raise RunError(f"Expected no budget.account with policy {setup.plan.policy}: it is not private.")
        self.setup, self.directory, self._on_round = setup, directory, on_round
        self._every = 1 if remote else setup.scenario.run.checkpoint_every
        self._repeatable = setup.noise.repeatable and not remote
        if directory.exists:
            self.ledger = verified_ledger(directory)
            check_same(directory, setup, remote)
            check_header(self.ledger, setup.plan, setup.noise.privacy)
        else:
            self._begin(remote)
        self._batteries = Batteries(setup.plan, self.ledger)
        # Of the header, which no two different runs share: what names this run in an account.
        self._name = "" if self._repeatable else f"{self.ledger.header['nonce']}/"
        self.account: Ledger | None = None
        if (account := setup.scenario.account_path) is not None:
            self._name = sha256(json.dumps(self.ledger.header, sort_keys=True).encode())[:32] + "/"
            problem = setup.plan.problem
            self.account = open_account(account, problem.budget, problem.trusted)
            check_account(self.account, self.ledger, self._name)
        self.state = self._newest()
        self.averages = self._averaged(self.state)
        self._saved = self.state.round_index
        directory.rewind_metrics(self.state.round_index)
        self.transmitted = [record["power_transmitted"] or 0.0 for record in directory.read_metrics()]
        if self.ledger.torn and not self._repeatable:  # half a line: a round that may have been sent
            rounds = self._torn_rounds()
            index = _most_exposed(setup.plan, rounds)
            if self.account is not None:
                _charge(self.account, setup.plan, index, run=self._name, any_of=rounds)
            _charge(self.ledger, setup.plan, index, any_of=rounds)
            self.ledger.mark_sent(index)

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
            decided, members = plan.sequence[index], _members(plan, index)
            # Before anything is spent.
            self.ledger.check(budget, mu=decided.mu, power=decided.power_planned, members=members)
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
        averages = self.averages.after(done.parameters)
        worth = self._evaluate(done.index, averages)
        quality = worth.get(self.setup.plan.average, {})
        record = self._record(done, quality)
        if self.setup.scenario.run.averages == "all":
            record["averages"] = compared(worth, private=self.setup.scenario.run.record == "private")
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
            sums=averages.sums,
        )
        self.averages = averages
        if self.state.round_index % self._every == 0:
            self._save()

    def conclude(self, *, finished: bool) -> None:
        """Save the last checkpoint unless it is there already and, once finished, the model; the ledger names it."""
        if self._saved != self.state.round_index or (finished and not self._saved):  # the first round may be the last
            self._save()
        if finished:
            metadata = {"round": str(self.state.round_index), "scenario": self.setup.scenario.name}
            tensors = self.setup.task.named_tensors(self.averages.model(self.setup.plan.average))
            private = self.setup.scenario.run.record == "private"
            energy, rounds = self.state.energy, self.state.round_index
            devices = [] if private or not energy.size else device_rows(self.setup.plan, energy, rounds)
            model = tensor_file(tensors, metadata)
            self.ledger.name_model(sha256(model))  # before it is there: no model without its line
            self.directory.finish(model, devices)

    def _begin(self, remote: str) -> None:
        setup = self.setup
        scenario, plan = setup.scenario.anchored().to_toml().encode(), plan_bytes(setup.plan)
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
        self.ledger = self.directory.begin(scenario=scenario, plan=plan, manifest=manifest, ledger_header=header)

    def _torn_rounds(self) -> range:
        """The rounds that half a line may be about: those since the checkpoint, and the next."""
        charged = max((charge.round_index for charge in self.ledger.charges), default=-1)
        end, start = self.setup.plan.rounds - 1, self.state.round_index
        return range(min(start, end), min(max(charged + 1, start), end) + 1)

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
            raise _unfit(self.directory)
        return found

    def _save(self) -> None:
        self.directory.save(self.state)
        self._saved = self.state.round_index

    def _metered(self, done: Round) -> NDArray[np.float64]:
        """What each device has transmitted so far; with several processes none of them knows of all devices."""
        scheduled = self.setup.plan.sequence[done.index].scheduled
        everyone = done.reception.heard == scheduled.size - done.reception.missing.size
        if self.setup.scenario.run.record == "private" or not everyone or not self.state.energy.size:
            return np.empty(0)
        energy = self.state.energy.copy()
        energy[np.searchsorted(self.setup.plan.scheduled, scheduled)] += done.reception.energy
        return energy

    def _averaged(self, state: Checkpoint) -> Averages:
        """The averages that this run keeps, as a checkpoint has them."""
        plan, every = self.setup.plan, self.setup.scenario.run.averages == "all"
        try:
            return Averages(
                rounds=plan.rounds,
                names=AVERAGES if every else (plan.average,),
                latest=state.parameters,
                done=state.round_index,
                sums=state.sums,
            )
        except ValueError:
            raise _unfit(self.directory) from None

    def _evaluate(self, index: int, averages: Averages) -> dict[Average, dict[str, float]]:
        """What the model of each average is worth; empty in a round that is not evaluated."""
        if index + 1 == self.setup.plan.rounds or index % self.setup.scenario.run.evaluate_every == 0:
            return {name: self.setup.task.evaluate(averages.model(name)) for name in averages.names}
        return {}

    def _record(self, done: Round, quality: Mapping[str, float]) -> dict[str, Any]:
        reception, private = done.reception, self.setup.scenario.run.record == "private"
        self.ledger.settle(done.index, None if private else reception.power)
        self.transmitted.append(reception.power)
        if reception.refused.size:
            _LOG.warning("round %d: NaN or Inf from devices %s; counted as zero", done.index + 1, reception.refused)
        charge, total = self.ledger.latest(done.index), math.fsum(self.transmitted)
        return round_record(self.setup.plan, done, charge, quality, transmitted_total=total, private=private)


def _unfit(directory: RunDirectory) -> RunError:
    return RunError(f"Expected checkpoints of this run in {directory.path}; the newest is of another.")


def _most_exposed(plan: Plan, rounds: range) -> int:
    """The round with the largest μ; of several the last."""
    return max(rounds, key=lambda index: (plan.sequence[index].mu, index))


def _members(plan: Plan, index: int) -> Members | None:
    """Who is charged for a round; None where all rounds are alike: everybody whom the ledger counts."""
    if plan.constant:
        return None
    return Members.of(plan.sequence[index].scheduled, plan.problem.fleet.num_devices)


def _charge(
    ledger: Ledger,
    plan: Plan,
    index: int,
    *,
    within: Budget | float | None = None,
    run: str = "",
    any_of: range = range(0),
) -> Charge:
    """Charge a round to those who transmit in it.

    Where it is not certain which of several it is, everybody is charged, and the power of the dearest.
    """
    decided = plan.sequence[index]
    return ledger.charge(
        index,
        devices=decided.scheduled.size,
        alignment=decided.alignment,
        mu=decided.mu,
        power=max((plan.sequence[each].power_planned for each in any_of), default=decided.power_planned),
        within=within,
        run=run,
        members=None if any_of else _members(plan, index),
    )
