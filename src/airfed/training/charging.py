"""Charge the rounds of a plan to a ledger: its header, the devices' batteries, and checks against other files."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed.clipping import AdaptiveClipping
from airfed.planning import Plan
from airfed.planning.surrogate import CHOSEN_ON_DATA
from airfed.privacy.ledger import BudgetExhausted, Charge, Ledger, LedgerError, ParticipationMask
from airfed.problem import Budget
from airfed.training.directory import RunDirectory, sha256
from airfed.training.loop import Recorder, Round
from airfed.training.noise import SecureNoise

Floats = NDArray[np.float64]
_RTOL: Final = 1e-12  # rounding only, and as much again for every thousand rounds: plans stay within their budgets
_SUM_RTOL: Final = 1e-9  # for sums in another order


class LedgerRecorder(Recorder):
    """The recorder of a plan without a scenario: it keeps only a ledger, in a file.

    Every training that was charged to the file counts towards the plan's budget, including those of other processes.
    """

    def __init__(self, path: Path, plan: Plan, *, privacy: str = SecureNoise.privacy) -> None:
        self.plan = plan
        self.ledger = Ledger.resume(path, ledger_header(plan, scenario="", privacy=privacy))
        self._batteries = Batteries(plan, self.ledger)
        self._training = secrets.token_hex(16)
        if self.ledger.torn:  # half a line: a round, of any training, that may have been sent
            charge_worst_case(self.ledger, plan, range(plan.rounds), run=self._training)

    def charge(self, index: int) -> None:
        """Charge all scheduled devices; a round that is transmitted again is charged again."""
        earlier = self.ledger.find(index, run=self._training)
        if earlier is None or earlier.sent:
            self._batteries.check(index)
            charge_round(self.ledger, self.plan, index, within=self.plan.enforced_budget, run=self._training)

    def send(self, index: int, signal: str) -> str:
        """Mark the charge as used, and return its training and attempt."""
        self.ledger.mark_sent(index, run=self._training)
        return f"{self._training}/{self.ledger.latest(index, run=self._training).attempt}"

    def settle(self, done: Round) -> None:
        """Record the transmitted power."""
        self.ledger.settle(done.index, done.aggregate.power, run=self._training)


def participation_mask(plan: Plan, index: int) -> ParticipationMask | None:
    """Return the devices charged for a round, with their shares of its μ; None: always all devices, alike."""
    return None if plan.constant and plan.equal_mu else plan.sequence.mask(index)


def charge_round(ledger: Ledger, plan: Plan, index: int, *, within: Budget | float, run: str = "") -> None:
    """Charge a round of a plan with `Ledger.charge`."""
    entry = plan.sequence[index]
    ledger.charge(
        index,
        devices=entry.scheduled.size,
        alignment=entry.alignment,
        mu=entry.mu,
        power=entry.power_planned,
        within=within,
        run=run,
        mask=participation_mask(plan, index),
    )


def charge_worst_case(ledger: Ledger, plan: Plan, rounds: range, *, run: str = "", sent: bool = True) -> None:
    """Charge an unknown one of several rounds: the largest μ, to all devices, and the largest power."""
    index = max(rounds, key=lambda each: (plan.sequence[each].mu, each))
    mu, alignment, count = plan.sequence[index].mu, plan.sequence[index].alignment, plan.sequence[index].scheduled.size
    power = max(plan.sequence[each].power_planned for each in rounds)
    ledger.charge(index, devices=count, alignment=alignment, mu=mu, power=power, run=run)
    if sent:
        ledger.mark_sent(index, run=run)


def ledger_header(plan: Plan, *, scenario: str, privacy: str) -> dict[str, Any]:
    """Return the header of a plan's ledger: the budget, the threat model and the devices."""
    budget, link, adaptive = plan.problem.budget, plan.problem.link, plan.problem.learning.adaptive_clipping
    return {
        "scenario": scenario,
        "unit": "device",
        "adjacency": budget.adjacency,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "scope": budget.scope,
        "formula": budget.formula,
        "total_power": budget.total_power,
        "noise_std": link.noise_std,
        **({**link.measured_noise, **plan.problem.shared_noise} if plan.method.analog else {}),
        "amplification": plan.amplification,
        "csi_error": link.csi_error,
        "csi_failure": link.csi_failure,
        "assume_perfect_csi": link.assume_perfect_csi,
        "privacy": privacy,
        "devices": plan.scheduled.tolist(),
        "method": plan.method.name,
        "private": plan.private,
        **({} if adaptive is None else {"adaptive_clipping": asdict(adaptive)}),
        "antennas": plan.problem.fleet.antennas if plan.method.analog else 1,
        "adversary": plan.problem.adversary,
        **({"warning": CHOSEN_ON_DATA} if CHOSEN_ON_DATA in plan.notes else {}),
    }


def verified_ledger(directory: RunDirectory) -> Ledger:
    """Return the ledger of a run; raises LedgerError unless the digests of the other files and the model match it."""
    model = directory.model_digest()  # before the ledger, which is written first
    ledger = Ledger.load(directory.file("ledger.jsonl"), repair=True)
    for name in ("run.json", "scenario.toml", "plan.json"):
        if ledger.header.get(f"{Path(name).stem}_sha256") != sha256(directory.read(name)):
            raise LedgerError(f"{directory.file(name)} was changed: its digest differs from the one in the ledger.")
    if model and not ledger.model:
        raise LedgerError(f"{ledger.path}: the line with the digest of the model is missing.")
    if model and model != ledger.model:
        raise LedgerError(
            f"{directory.file('model.safetensors')} was changed or belongs to another run: its digest differs from the "
            "one in the ledger."
        )
    return ledger


def check_header(ledger: Ledger, plan: Plan, privacy: str) -> None:
    """Raise LedgerError if the header of a run's ledger does not follow from its plan and its noise source."""
    expected = ledger_header(plan, scenario="", privacy=privacy)
    expected |= {"rounds": plan.rounds, "mu_round": plan.mu_round}
    for name, value in expected.items():
        if name != "scenario" and ledger.header.get(name) != value:
            raise LedgerError(f"{ledger.path}: the value of {name} is not that of the plan and the scenario.")


def check_rounds(rounds: Iterable[Mapping[str, Any]], ledger: Ledger) -> None:
    """Raise LedgerError if an ε, a power or an adaptive ϖ in the metrics of a run does not follow from its ledger."""
    file, planned, sent = ledger.path.with_name("metrics.jsonl"), 0.0, 0.0
    adaptive, first, following = ledger.header.get("adaptive_clipping"), math.nan, math.nan
    for record in rounds:
        if adaptive is not None:
            clip_norm, unclipped = (record.get(name) or 0.0 for name in ("clip_norm", "unclipped"))
            first = clip_norm if math.isnan(first) else first
            if not (math.isnan(following) or math.isclose(clip_norm, following, rel_tol=_RTOL)):
                raise LedgerError(f"{file}: the clip_norm of round {record['round'] + 1} does not follow.")
            following = AdaptiveClipping(**adaptive).after(clip_norm, unclipped, first=first)
        number, charge = record["round"] + 1, ledger.find(record["round"])
        if charge is None:
            raise LedgerError(f"{ledger.path}: round {number} was trained, but its charge is missing.")
        for name in ("epsilon_round", "epsilon_total", "power_planned"):
            if record[name] != getattr(charge, name):
                raise LedgerError(f"{file}: the {name} of round {number} differs from the ledger.")
        metered = record["power_transmitted"]
        if metered is not None and charge.power_metered not in (None, metered):
            raise LedgerError(f"{ledger.path}: the power of round {number} differs from metrics.jsonl.")
        planned, sent = planned + charge.power_planned, sent + (metered or 0.0)
        for name, total in {"power_planned_total": planned, "power_transmitted_total": sent}.items():
            if record[name] is not None and not math.isclose(record[name], total, rel_tol=_SUM_RTOL):
                raise LedgerError(f"{file}: the {name} of round {number} does not add up.")


def check_shared_ledger(shared_ledger: Ledger, ledger: Ledger, run: str) -> None:
    """Raise LedgerError unless the shared ledger contains all charges of a run."""
    known = [(charge.mu, charge.mask) for charge in shared_ledger.charges if charge.run == run]
    if len(known) < ledger.rounds or not {(charge.mu, charge.mask) for charge in ledger.charges} <= set(known):
        raise LedgerError(
            f"The shared ledger {shared_ledger.path} must contain the {ledger.rounds} charges of {ledger.path}, but "
            "some are missing. Restore the shared ledger."
        )


class Batteries:
    """The energy that each device has spent of its battery: the planned power of each charge in a plan's ledger."""

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self._plan, self._ledger = plan, ledger
        self._spent = np.zeros(plan.problem.fleet.num_devices)
        self._counted = 0  # charges

    @property
    def capacity(self) -> Floats | None:
        """[W] that each device may spend over the training, (N,); None without batteries."""
        given = self._plan.problem.budget.device_power
        return None if given is None else np.broadcast_to(np.asarray(given, dtype=np.float64), self._spent.shape)

    @property
    def spent(self) -> Floats:
        """[W] that each device has spent, (N,); raises LedgerError if a charge belongs to another plan."""
        plan = self._plan
        for charge in self._ledger.charges[self._counted :]:
            entry = plan.sequence[charge.round_index] if charge.round_index < plan.rounds else None
            if entry is None or not self._fits(charge, entry):
                raise LedgerError(
                    f"{self._ledger.path}: round {charge.round_index + 1} belongs to another plan, so the state of the "
                    "batteries is unknown. Use another ledger."
                )
            if charge.mask is None:  # any round: all are equal, or it was half a line
                self._spent[plan.scheduled] += plan.power
            else:
                self._spent[entry.scheduled] += entry.power
            self._counted += 1
        return self._spent.copy()

    @property
    def used(self) -> Floats | None:
        """The fraction of its battery that each device has spent, (N,); None without batteries."""
        return None if (capacity := self.capacity) is None else self.spent / capacity

    def check(self, index: int) -> None:
        """Raise BudgetExhausted unless the batteries of all devices scheduled in a round suffice for it."""
        if (capacity := self.capacity) is None:
            return
        entry, spent = self._plan.sequence[index], self.spent
        allowed = capacity[entry.scheduled] * (1 + _RTOL * (1 + self._counted / 1000))
        short = np.flatnonzero(spent[entry.scheduled] + entry.power > allowed)
        if short.size:
            device, others = int(entry.scheduled[short[0]]), f" (and {short.size - 1} more)" * (short.size > 1)
            raise BudgetExhausted(
                f"The battery of device {device}{others} does not suffice for round {index + 1}: "
                f"{max(capacity[device] - spent[device], 0.0):.4g} W of {capacity[device]:.4g} W are left and the "
                f"round needs {entry.power[short[0]]:.4g} W. "
                "Raise budget.device_power, or plan fewer rounds or a smaller alignment."
            )

    def _fits(self, charge: Charge, entry: Any) -> bool:
        """Return whether a charge belongs to that round of the plan; the ledger may contain other trainings."""
        aligned = math.isclose(charge.alignment, entry.alignment, rel_tol=_RTOL)
        same = math.isclose(charge.power_planned, float(np.sum(entry.power)), rel_tol=_SUM_RTOL)
        if charge.mask is None:  # all devices; or half a line, whose power is that of the largest round
            fits = same or not self._plan.constant
        else:
            fits = same and charge.mask.num_devices == self._spent.size
            fits = fits and np.array_equal(charge.mask.devices, entry.scheduled)
        return aligned and charge.devices == entry.scheduled.size and fits
