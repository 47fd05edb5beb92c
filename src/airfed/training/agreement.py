"""What the files of a run must say of each other: ledger, scenario, plan, metrics and account."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from airfed.planning import Plan
from airfed.privacy.ledger import Ledger, LedgerError
from airfed.scenario import Scenario, flatten, load
from airfed.training.directory import RunDirectory, RunError, sha256
from airfed.training.setup import Setup

_RTOL: Final = 1e-9  # sums that are added up in another order


def verified_ledger(directory: RunDirectory) -> Ledger:
    """Return the ledger of a run whose files are those that its first line names, and its model the one that it names.

    Raises:
        LedgerError: the ledger does not hold together, or a file is not the one that the ledger has seen.
        RunError: a file cannot be read.
    """
    model = directory.model_digest()  # before the ledger, which is always ahead of it
    ledger = Ledger.load(directory.file("ledger.jsonl"), repair=True)
    files = {"run.json": "run_sha256", "scenario.toml": "scenario_sha256", "plan.json": "plan_sha256"}
    for name, key in files.items():
        if ledger.header.get(key) != sha256(directory.read(name)):
            raise LedgerError(f"{directory.file(name)} is not the file that the ledger has seen: it was changed.")
    if model and not ledger.model:
        raise LedgerError(f"{ledger.path}: the line that names the model is gone.")
    if model and model != ledger.model:
        raise LedgerError(
            f"{directory.file('model.safetensors')} is not the model that the ledger names: it was changed, or is "
            "another run's."
        )
    return ledger


def check_rounds(rounds: Iterable[Mapping[str, Any]], ledger: Ledger) -> None:
    """Raise where the metrics of a run say something else than its ledger.

    Raises:
        LedgerError: a round that was trained was never charged, or has another ε or power than was charged.
    """
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
        totals = {"power_planned_total": planned, "power_transmitted_total": sent}
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
    expected |= {"rounds": plan.rounds, "mu_round": plan.mu_round}
    for name, value in expected.items():
        if name != "scenario" and ledger.header.get(name) != value:
            raise LedgerError(f"{ledger.path}: its {name} is not that of the plan and the scenario.")


def check_account(account: Ledger, ledger: Ledger, run: str) -> None:
    """Raise unless all that a run has charged is in its account."""
    known = [(charge.mu, charge.members) for charge in account.charges if charge.run == run]
    if len(known) < ledger.rounds or not {(charge.mu, charge.members) for charge in ledger.charges} <= set(known):
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
        "method": plan.method.name,
        "private": plan.private,
        "antennas": plan.problem.fleet.antennas if plan.method.radio else 1,
        "trust": plan.problem.trusted,
    }


def check_same(directory: RunDirectory, setup: Setup, remote: str) -> None:
    """Raise where a resume would mix two different runs; the sentence says what has changed."""
    old, begun = directory.manifest(), load(directory.file("scenario.toml"))

    def refuse(what: str) -> None:
        raise RunError(f"Expected {what} of the run in {directory.path}; it has changed. Give another --out.")

    changed = _changed_keys(begun, setup.scenario.anchored())
    if changed:
        refuse(f"the scenario ({', '.join(changed)})")
    if old["engine"] != (remote or setup.task.engine.name):
        refuse(f"the engine ({old['engine']})")
    for name, digest in old["signal"].items():
        if setup.signal.get(name) != digest:
            refuse(f"the {name}")
    if setup.signal.keys() != old["signal"].keys():
        refuse("all that shapes the signal")
    if old["plan_sha256"] != sha256(plan_bytes(setup.plan)):
        refuse("the plan")
    if old["privacy"] != setup.noise.privacy:
        refuse("the noise source")
    for name in ("record", "averages"):
        if getattr(begun.run, name) != getattr(setup.scenario.run, name):
            refuse(f"run.{name}")


def _changed_keys(old: Scenario, new: Scenario) -> list[str]:
    """The dotted keys in which two scenarios differ, less the name and how to compute."""
    flat = [flatten(scenario.content()) for scenario in (old, new)]
    return [key for key in dict.fromkeys((*flat[0], *flat[1])) if flat[0].get(key) != flat[1].get(key)]


def plan_bytes(plan: Plan) -> bytes:
    """Return what `plan.json` holds."""
    return json.dumps(plan.to_dict(), allow_nan=False).encode()
