"""What a run wrote down: does its ledger hold together, and does it say what the plan and the metrics say?"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from airfed.auditing.statistics import Check
from airfed.auditing.subject import Subject
from airfed.privacy.ledger import Ledger, LedgerError
from airfed.running.directory import RunDirectory, RunError


@dataclass(frozen=True, kw_only=True)
class Account:
    """A run's ledger, verified.

    Args:
        ledger: what was charged.
        checkpoint: the round of the newest checkpoint, whose ledger line is there; None where there is none yet.
        trained: how many rounds the metrics hold.
    """

    ledger: Ledger
    checkpoint: int | None
    trained: int


def verified_ledger(directory: RunDirectory) -> Account:
    """Return the ledger of a run once everything that can be checked about it is.

    The chain of hashes; the totals of each line; that the lines which the newest checkpoint has seen are there; that
    every round in the metrics was charged, and settled with the power that the metrics say.

    Raises:
        RunError: there is no run.
        LedgerError: the ledger is missing, or does not hold together; one sentence says where.
    """
    directory.manifest()
    metrics, newest = directory.read_metrics(), directory.latest()  # before the ledger, which is always ahead of them
    path = directory.file("ledger.jsonl")
    ledger = Ledger.load(path)
    if newest is not None and not ledger.contains(newest.ledger_head):
        raise LedgerError(f"{path}: lines that the checkpoint of round {newest.round_index} has seen are gone.")
    for record in metrics:
        charge = ledger.find(record["round"])
        if charge is None:
            raise LedgerError(f"{path}: round {record['round']} was trained, and its charge is gone.")
        metered = record["power_transmitted"]
        if metered is not None and charge.power_metered not in (None, metered):
            raise LedgerError(f"{path}: the power of round {record['round']} is not the one in metrics.jsonl.")
    return Account(ledger=ledger, checkpoint=None if newest is None else newest.round_index, trained=len(metrics))


def recorded_plan(directory: RunDirectory) -> dict[str, Any]:
    """Return `plan.json`.

    Raises:
        RunError: it is missing or damaged.
    """
    file = directory.file("plan.json")
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"Cannot read {file}: {error}.") from None
    if not isinstance(content, dict):
        raise RunError(f"Expected a plan in {file}.")
    return content


def record_checks(subject: Subject, directory: RunDirectory) -> list[Check]:
    """Return whether the record says what the code claims: the plan, and the ledger."""
    plan, recorded = json.loads(json.dumps(subject.plan.to_dict())), recorded_plan(directory)
    differing = sorted(name for name in plan if plan[name] != recorded.get(name))
    found = [
        Check(
            name="recorded plan",
            passed=not differing,
            finding="plan.json is what the scenario plans"
            if not differing
            else f"plan.json has another {', '.join(differing)} than the scenario plans",
            figures={"differing": differing},
        )
    ]
    try:
        account = verified_ledger(directory)
    except LedgerError as error:
        return [*found, Check(name="ledger", passed=False, finding=str(error), figures={})]
    ledger, mu = account.ledger, subject.plan.mu_round
    low = [charge.round_index for charge in ledger.charges if charge.mu < mu * (1 - 1e-12)]
    least = mu * math.sqrt(len({charge.round_index for charge in ledger.charges}))
    passed = not low and ledger.mu_total >= least * (1 - 1e-12)
    return [
        *found,
        Check(
            name="ledger",
            passed=passed,
            finding=f"{ledger.rounds} rounds charged, the chain is whole, μ√Σ = {ledger.mu_total:.5g}"
            if passed
            else f"the ledger charges less than the plan's μ = {mu:.5g} a round",
            figures={"rounds": ledger.rounds, "mu_total": ledger.mu_total, "trained": account.trained},
        ),
    ]
