"""The recorder of a run directory: ledger, metrics, checkpoints and model."""

from __future__ import annotations

import hmac
import json
import logging
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import airfed
from airfed.planning import Average, Plan
from airfed.privacy.ledger import Ledger, LedgerError, open_shared_ledger
from airfed.scenario import flatten, load
from airfed.training import charging
from airfed.training.directory import RunDirectory, RunError, sha256
from airfed.training.formats import device_rows, quality_record, round_record
from airfed.training.loop import Diverged, Parameters, Recorder, Round
from airfed.training.setup import Setup, versions
from airfed.training.state import AVERAGES, Averages, Checkpoint, tensor_file

_LOG = logging.getLogger(__name__)
_OF_DATA = ("data", "probe update")  # digests of `Setup.signal` that depend on the devices' data


class RunRecorder(Recorder):
    """The recorder of a run directory: ledger, metrics, checkpoints and the final model.

    A round is charged and flushed before it is transmitted; its power, metrics and checkpoint follow. After a kill at
    any moment, a resumed run starts from the newest intact checkpoint and repeats the rounds since. With seeded noise
    they have the same bits and are charged once. With secure noise or remote devices they are other signals and are
    charged again.

    A private record contains digests of the data, of the probe update and of each exact sum only as HMACs. Their key is
    deleted when the run ends: whoever knows all data but one record could otherwise test guesses at it.

    `ledger` is that of the run to resume; None starts a run. `remote` is the framework that trains the devices, if not
    this process. Raises RunError if the directory's run has another scenario, data or model.
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
        if setup.scenario.shared_ledger_path is not None and not setup.plan.private:
            raise RunError(f"budget.shared_ledger must not be set: policy {setup.plan.policy} is not private.")
        self.setup, self.directory, self._on_round = setup, directory, on_round
        self._every = 1 if remote else setup.scenario.run.checkpoint_every
        self._repeatable = setup.noise.repeatable and not remote
        self._private = setup.scenario.run.record == "private"
        if ledger is not None:
            self.ledger, self._secret = ledger, directory.secret() if self._private else b""
            _check_same(directory, setup, remote, self._recorded_signal())
            if self._private and not self._secret and not ledger.model:
                raise RunError(f"{directory.path} cannot be resumed: its secret.key is missing. Restore it.")
            charging.check_header(self.ledger, setup.plan, setup.noise.privacy)
        else:
            self._begin(remote)
        self._batteries = charging.Batteries(setup.plan, self.ledger)
        # The digest of the header, which is unique to this run, is its name in a shared ledger.
        self._name = "" if self._repeatable else f"{self.ledger.header['nonce']}/"
        self.shared_ledger: Ledger | None = None
        if (shared_ledger := setup.scenario.shared_ledger_path) is not None:
            self._name = sha256(json.dumps(self.ledger.header, sort_keys=True).encode())[:32] + "/"
            self.shared_ledger = open_shared_ledger(
                shared_ledger, setup.plan.problem.budget, setup.plan.problem.adversary
            )
            charging.check_shared_ledger(self.shared_ledger, self.ledger, self._name)
        self.state, self.averages, self.transmitted = self._load()
        self._saved = self.state.round_index
        if self.ledger.torn and not self._repeatable:  # half a line: a round that may have been sent
            charged = max((charge.round_index for charge in self.ledger.charges), default=-1)
            end, start = setup.plan.rounds - 1, self.state.round_index
            rounds = range(min(start, end), min(max(charged + 1, start), end) + 1)  # since the checkpoint, and the next
            if self.shared_ledger is not None:
                charging.charge_worst_case(self.shared_ledger, setup.plan, rounds, run=self._name, sent=False)
            charging.charge_worst_case(self.ledger, setup.plan, rounds)

    @property
    def start(self) -> tuple[int, Parameters, float]:
        """The first round to train, and the model and ϖ before it."""
        state, norm = self.state, self.state.clip_norm
        return state.round_index, state.parameters, self.setup.plan.clip_norm if norm is None else norm

    def charge(self, index: int) -> None:
        """Charge a round before it is transmitted; repetitions of the same signal are charged once."""
        if self._private and not self._secret:
            raise RunError(f"{self.directory.path} has ended and its secret was deleted. Choose another --out.")
        previous = self.ledger.find(index)
        if previous is None or (previous.sent and not self._repeatable):
            self._charge(index)

    def send(self, index: int, signal: str) -> str:
        """Mark the charge as used; a repetition that turns out to be another signal is charged again."""
        charge, signal = self.ledger.latest(index), self._keyed(signal)
        if not self._repeatable:
            self.ledger.mark_sent(index)
            return f"{self._name}{charge.attempt}"
        if charge.sent and charge.signal != signal:
            _LOG.warning("round %d: the signal differs from the first transmission; it is charged again", index + 1)
            self._charge(index)
            charge = self.ledger.latest(index)
        if not charge.sent:
            self.ledger.mark_sent(index, signal)
        return self._name

    def _charge(self, index: int) -> None:
        plan, budget = self.setup.plan, self.setup.plan.enforced_budget
        self._batteries.check(index)
        if self.shared_ledger is not None:
            entry, mask = plan.sequence[index], charging.participation_mask(plan, index)
            # Before anything is charged.
            self.ledger.check(budget, mu=entry.mu, power=entry.power_planned, mask=mask)
            attempt = 0 if (previous := self.ledger.find(index)) is None else previous.attempt + 1
            known = self.shared_ledger.find(index, run=self._name)
            if known is None or known.attempt < attempt or not self._repeatable:  # else: charged just before a crash
                charging.charge_round(self.shared_ledger, plan, index, within=budget.epsilon, run=self._name)
        charging.charge_round(self.ledger, plan, index, within=budget)

    def settle(self, done: Round) -> None:
        """Settle a round, record it, call `on_round` and save a checkpoint if due; Diverged if a loss is not finite."""
        plan, run, aggregate = self.setup.plan, self.setup.scenario.run, done.aggregate
        averages, qualities = self.averages.after(done.parameters), dict[Average, dict[str, float]]()
        if done.index + 1 == plan.rounds or done.index % run.evaluate_every == 0:
            qualities = {name: self.setup.task.evaluate(averages.model(name)) for name in averages.names}
        quality = qualities.get(plan.average, {})
        self.ledger.settle(done.index, None if self._private else aggregate.power)
        self.transmitted.append(aggregate.power)
        if aggregate.refused.size:
            _LOG.warning("round %d: NaN or Inf from devices %s; counted as zero", done.index + 1, aggregate.refused)
        charge, total = self.ledger.latest(done.index), math.fsum(self.transmitted)
        record = round_record(plan, done, charge, quality, transmitted_total=total, private=self._private)
        if run.averages == "all":
            record["averages"] = {
                name: quality_record(each, private=self._private) for name, each in qualities.items()
            } or None
        self.directory.append_metrics(record)
        self._on_round(record)
        # Before the state is updated: the last finite model is saved, and a resumed run stops here again.
        for name, value in quality.items():
            if not math.isfinite(value):
                raise Diverged(f"Round {done.index + 1}: the {name} is {value}; try a smaller learning_rate.")
        head, energy, self.averages = self.ledger.head, self._metered(done), averages
        self.state = Checkpoint(
            round_index=done.index + 1,
            parameters=done.parameters,
            ledger_head=head,
            energy=energy,
            sums=averages.sums,
            clip_norm=None if aggregate.unclipped is None else done.next_clip_norm,
        )
        if self.state.round_index % self._every == 0:
            self._save()

    def conclude(self, *, finished: bool) -> None:
        """Save the last checkpoint if needed and, once finished, the model, whose digest the ledger records."""
        rounds, energy, setup = self.state.round_index, self.state.energy, self.setup
        if self._saved != rounds or (finished and not self._saved):  # the first round may be the last
            self._save()
        if finished:
            tensors = setup.task.named_tensors(self.averages.model(setup.plan.average))
            model = tensor_file(tensors, {"round": str(rounds), "scenario": setup.scenario.name})
            self.ledger.name_model(sha256(model))  # before the model is written: no model without its line
            metered = energy.size and not self._private
            self.directory.finish(model, device_rows(setup.plan, energy, rounds) if metered else [])
            self.directory.delete_secret()
            self._secret = b""

    def _keyed(self, digest: str) -> str:
        """Return a digest of the devices' data as it is recorded: in a private record, its HMAC."""
        return hmac.new(self._secret, digest.encode(), "sha256").hexdigest() if self._private else digest

    def _recorded_signal(self) -> dict[str, str]:
        """Return the digests of the signal as `run.json` contains them; after the end, without those of the data."""
        signal, hidden = self.setup.signal, _OF_DATA if self._private else ()
        if hidden and not self._secret:
            return {name: signal[name] for name in signal if name not in hidden}
        return {name: self._keyed(signal[name]) if name in hidden else signal[name] for name in signal}

    def _begin(self, remote: str) -> None:
        setup = self.setup
        self._secret = self.directory.new_secret() if self._private else b""
        signal = self._recorded_signal()
        scenario, plan = setup.scenario.anchored().to_toml().encode(), _plan_bytes(setup.plan)
        manifest = {
            "airfed": airfed.__version__,
            "name": setup.scenario.name,
            "engine": remote or setup.task.engine.name,
            "privacy": setup.noise.privacy,
            "rounds": setup.plan.rounds,
            "scenario_sha256": sha256(scenario),
            "plan_sha256": sha256(plan),
            "data_sha256": self._keyed(setup.task.data_digest),
            "signal": signal,
            "versions": versions(),
        }
        header = charging.ledger_header(setup.plan, scenario=setup.scenario.name, privacy=setup.noise.privacy) | {
            "rounds": setup.plan.rounds,
            "mu_round": setup.plan.mu_round,
            "spent": setup.plan.problem.budget.spent,
            "scenario_sha256": manifest["scenario_sha256"],
            "plan_sha256": manifest["plan_sha256"],
            "signal_sha256": sha256(json.dumps(signal, sort_keys=True).encode()),
        }
        if not self._repeatable:
            header["nonce"] = secrets.token_hex(16)
        self.ledger = self.directory.begin(scenario=scenario, plan=plan, manifest=manifest, ledger_header=header)

    def _load(self) -> tuple[Checkpoint, Averages, list[float]]:
        """Return the newest checkpoint, or the initial state, and rewind the metrics to it."""
        plan, directory = self.setup.plan, self.directory
        records = directory.read_metrics()
        charging.check_rounds(records, self.ledger)
        state = directory.latest()
        if state is None:
            energy, initial = np.zeros(0 if self._private else plan.num_scheduled), self.setup.task.initial_parameters
            state = Checkpoint(round_index=0, parameters=initial, ledger_head=self.ledger.head, energy=energy)
        elif not self.ledger.contains(state.ledger_head):
            raise LedgerError(f"{self.ledger.path}: lines up to checkpoint {state.round_index} are missing.")
        names = AVERAGES if self.setup.scenario.run.averages == "all" else (plan.average,)
        latest, done, sums = state.parameters, state.round_index, state.sums
        fixed = plan.problem.learning.adaptive_clipping is None
        fits = latest.size == plan.problem.learning.dimension and done <= plan.rounds
        fits &= (state.clip_norm is None) == (fixed or done == 0)
        try:
            averages = Averages(rounds=plan.rounds, names=names, latest=latest, done=done, sums=sums)
        except ValueError:
            fits = False
        if not fits or state.energy.size not in (0, plan.num_scheduled):
            raise RunError(f"The newest checkpoint in {directory.path} belongs to another run.")
        directory.rewind_metrics(state.round_index)
        return state, averages, [record["power_transmitted"] or 0.0 for record in records[: state.round_index]]

    def _save(self) -> None:
        self.directory.save(self.state)
        self._saved = self.state.round_index

    def _metered(self, done: Round) -> NDArray[np.float64]:
        """Return the power that each device has transmitted so far; empty if other processes train some devices."""
        scheduled = self.setup.plan.sequence[done.index].scheduled
        complete = done.aggregate.arrived == scheduled.size - done.aggregate.missing.size
        if self._private or not complete or not self.state.energy.size:
            return np.empty(0)
        energy = self.state.energy.copy()
        energy[np.searchsorted(self.setup.plan.scheduled, scheduled)] += done.aggregate.energy
        return energy


def _check_same(directory: RunDirectory, setup: Setup, remote: str, signal: Mapping[str, str]) -> None:
    """Raise RunError if the run in the directory is not that of the setup; the message names the difference."""
    old, original = directory.manifest(), load(directory.file("scenario.toml"))
    before, now = flatten(original.content()), flatten(setup.scenario.anchored().content())
    changed = [key for key in dict.fromkeys((*before, *now)) if before.get(key) != now.get(key)]
    inputs = [name for name in old["signal"] if signal.get(name, old["signal"][name]) != old["signal"][name]]
    run = [name for name in ("record", "averages") if getattr(original.run, name) != getattr(setup.scenario.run, name)]
    reasons = {
        f"run.{''.join(run[:1])}": run,
        f"the scenario ({', '.join(changed)})": changed,
        f"the engine ({old['engine']})": old["engine"] != (remote or setup.task.engine.name),
        f"the {''.join(inputs[:1])}": inputs,
        "the list of signal digests": setup.signal.keys() != old["signal"].keys(),
        "the plan": old["plan_sha256"] != sha256(_plan_bytes(setup.plan)),
        "the noise source": old["privacy"] != setup.noise.privacy,
    }
    for what, differs in reasons.items():
        if differs:
            raise RunError(f"Cannot resume {directory.path}: {what} changed. Undo it or choose another --out.")


def _plan_bytes(plan: Plan) -> bytes:
    """Return plan.json, without the candidate networks: the recorded scenario names the chosen one only."""
    return json.dumps(replace(plan, networks=()).to_dict(), allow_nan=False).encode()
