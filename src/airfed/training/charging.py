"""Charge the rounds of a plan to a ledger: its first line, each device's battery, and checks against other files."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed.planning import Plan
from airfed.privacy.ledger import BudgetExhausted, Charge, Ledger, LedgerError, Members
from airfed.problem import Budget
from airfed.training.directory import RunDirectory, sha256
from airfed.training.loop import Round
from airfed.training.noise import SecureNoise

Floats = NDArray[np.float64]
_RTOL: Final = 1e-12  # rounding only, and again as much for every thousand rounds: plans end on the safe side
_SUM_RTOL: Final = 1e-9  # of sums that are added up in another order


class LedgerBooks:
    """The books of a project that has no airfed scenario: the ledger of a plan alone, in a file.

    Every training that was charged to the file counts towards the plan's budget, those of other processes included.
    `privacy` is that of the noise source: "secure" or "simulated".
    """

    def __init__(self, path: Path, plan: Plan, *, privacy: str = SecureNoise.privacy) -> None:
        self.plan = plan
        self.ledger = Ledger.resume(path, ledger_header(plan, scenario="", privacy=privacy))
        self._batteries = Batteries(plan, self.ledger)
        self._training = secrets.token_hex(16)
        if self.ledger.torn:  # half a line: a round, of any training, that may have been sent
            charge_any(self.ledger, plan, range(plan.rounds), run=self._training)

    def charge(self, index: int) -> None:
        """Charge all scheduled devices; a round that is sent out again is charged again."""
        earlier = self.ledger.find(index, run=self._training)
        if earlier is None or earlier.sent:
            self._batteries.check(index)
            charge_round(self.ledger, self.plan, index, within=self.plan.spendable, run=self._training)

    def send(self, index: int, signal: str) -> str:
        """Mark the charge as used; its name and number set the noise apart."""
        self.ledger.mark_sent(index, run=self._training)
        return f"{self._training}/{self.ledger.latest(index, run=self._training).attempt}"

    def settle(self, done: Round) -> None:
        """Write down the power that was really transmitted."""
        self.ledger.settle(done.index, done.reception.power, run=self._training)


def round_members(plan: Plan, index: int) -> Members | None:
    """Return who is charged for a round; None for all devices that the ledger counts, where all rounds are alike."""
    if plan.constant:
        return None
    return Members.of(plan.sequence[index].scheduled, plan.problem.fleet.num_devices)


def charge_round(ledger: Ledger, plan: Plan, index: int, *, within: Budget | float, run: str = "") -> None:
    """Charge a round of a plan, as `Ledger.charge` has it."""
    decided = plan.sequence[index]
    ledger.charge(
        index,
        devices=decided.scheduled.size,
        alignment=decided.alignment,
        mu=decided.mu,
        power=decided.power_planned,
        within=within,
        run=run,
        members=round_members(plan, index),
    )


def charge_any(ledger: Ledger, plan: Plan, rounds: range, *, run: str = "", sent: bool = True) -> None:
    """Charge one of several rounds, nobody knows which: the largest μ, to all devices, and the largest power."""
    index = max(rounds, key=lambda each: (plan.sequence[each].mu, each))
    mu, alignment, count = plan.sequence[index].mu, plan.sequence[index].alignment, plan.sequence[index].scheduled.size
    power = max(plan.sequence[each].power_planned for each in rounds)
    ledger.charge(index, devices=count, alignment=alignment, mu=mu, power=power, run=run)
    if sent:
        ledger.mark_sent(index, run=run)


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
        "method": plan.method.name,
        "private": plan.private,
        "antennas": plan.problem.fleet.antennas if plan.method.radio else 1,
        "trust": plan.problem.trusted,
    }


def verified_ledger(directory: RunDirectory) -> Ledger:
    """Return the ledger of a run; raises LedgerError unless the other files, and the model, are those that it names."""
    model = directory.model_digest()  # before the ledger, which is always ahead of it
    ledger = Ledger.load(directory.file("ledger.jsonl"), repair=True)
    for name in ("run.json", "scenario.toml", "plan.json"):
        if ledger.header.get(f"{Path(name).stem}_sha256") != sha256(directory.read(name)):
            raise LedgerError(f"{directory.file(name)} is not the file that the ledger has seen: it was changed.")
    if model and not ledger.model:
        raise LedgerError(f"{ledger.path}: the line that names the model is gone.")
    if model and model != ledger.model:
        raise LedgerError(
            f"{directory.file('model.safetensors')} is not the model that the ledger names: it was changed, or is "
            "another run's."
        )
    return ledger


def check_header(ledger: Ledger, plan: Plan, privacy: str) -> None:
    """Raise LedgerError where the first line of a run's ledger is not what its plan and its noise make it."""
    expected = ledger_header(plan, scenario="", privacy=privacy)
    expected |= {"rounds": plan.rounds, "mu_round": plan.mu_round}
    for name, value in expected.items():
        if name != "scenario" and ledger.header.get(name) != value:
            raise LedgerError(f"{ledger.path}: its {name} is not that of the plan and the scenario.")


def check_rounds(rounds: Iterable[Mapping[str, Any]], ledger: Ledger) -> None:
    """Raise LedgerError where the metrics of a run hold a round, an ε or a power that its ledger does not."""
    file, planned, sent = ledger.path.with_name("metrics.jsonl"), 0.0, 0.0
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
        planned, sent = planned + charge.power_planned, sent + (metered or 0.0)
        for name, total in {"power_planned_total": planned, "power_transmitted_total": sent}.items():
            if record[name] is not None and not math.isclose(record[name], total, rel_tol=_SUM_RTOL):
                raise LedgerError(f"{file}: the {name} of round {number} does not add up.")


def check_account(account: Ledger, ledger: Ledger, run: str) -> None:
    """Raise LedgerError unless all that a run has charged is in its account."""
    known = [(charge.mu, charge.members) for charge in account.charges if charge.run == run]
    if len(known) < ledger.rounds or not {(charge.mu, charge.members) for charge in ledger.charges} <= set(known):
        raise LedgerError(
            f"Expected the {ledger.rounds} charges of {ledger.path} in the account {account.path}; some are gone. "
            "Bring that account back: what was spent must not be forgotten."
        )


class Batteries:
    """What each device has spent of its own power budget, following a ledger of a plan's rounds as it grows.

    A round counts as often as it was charged, each time with the largest power that the plan has a device transmit.
    """

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self._plan, self._ledger = plan, ledger
        self._spent = np.zeros(plan.problem.fleet.num_devices)
        self._counted = 0  # charges

    @property
    def capacity(self) -> Floats | None:
        """[W] that each device may spend over the training, (N,); None where there are no batteries."""
        given = self._plan.problem.budget.device_power
        return None if given is None else np.broadcast_to(np.asarray(given, dtype=np.float64), self._spent.shape)

    @property
    def spent(self) -> Floats:
        """[W] that each device has spent, (N,); raises LedgerError where a charge is of another plan."""
        plan = self._plan
        for charge in self._ledger.charges[self._counted :]:
            decided = plan.sequence[charge.round_index] if charge.round_index < plan.rounds else None
            if decided is None or not self._fits(charge, decided):
                raise LedgerError(
                    f"{self._ledger.path}: its round {charge.round_index + 1} is of another plan, so that what is left "
                    "in the batteries is not known. Give another ledger."
                )
            if charge.members is None:  # any round: all are alike, or it was half a line
                self._spent[plan.scheduled] += plan.power
            else:
                self._spent[decided.scheduled] += decided.power
            self._counted += 1
        found = self._spent.view()
        found.flags.writeable = False
        return found

    @property
    def used(self) -> Floats | None:
        """The share of its battery that each device has spent, (N,); None where there are no batteries."""
        return None if (capacity := self.capacity) is None else self.spent / capacity

    def check(self, index: int) -> None:
        """Raise BudgetExhausted unless all devices scheduled in a round can transmit in it."""
        if (capacity := self.capacity) is None:
            return
        decided, spent = self._plan.sequence[index], self.spent
        allowed = capacity[decided.scheduled] * (1 + _RTOL * (1 + self._counted / 1000))
        short = np.flatnonzero(spent[decided.scheduled] + decided.power > allowed)
        if short.size:
            device, others = int(decided.scheduled[short[0]]), f" (and {short.size - 1} more)" * (short.size > 1)
            raise BudgetExhausted(
                f"The battery of device {device}{others} does not last for round {index + 1}: "
                f"{max(capacity[device] - spent[device], 0.0):.4g} W of {capacity[device]:.4g} W are left and the "
                f"round needs {decided.power[short[0]]:.4g} W. "
                "Raise budget.device_power, or plan fewer rounds or a smaller alignment."
            )

    def _fits(self, charge: Charge, decided: Any) -> bool:
        """Whether a charge is of that round of the plan; a bare ledger may hold those of other trainings."""
        alike = math.isclose(charge.alignment, decided.alignment, rel_tol=_RTOL)
        same = math.isclose(charge.power_planned, float(np.sum(decided.power)), rel_tol=_SUM_RTOL)
        if charge.members is None:  # all devices; or half a line, whose power is that of the largest round
            fits = same or not self._plan.constant
        else:
            fits = same and charge.members == Members.of(decided.scheduled, self._spent.size)
        return alike and charge.devices == decided.scheduled.size and fits
