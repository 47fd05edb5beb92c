"""What a run wrote down: is it what the scenario plans, and does it hold together?"""

from __future__ import annotations

import json
import math

import numpy as np

from airfed.audit.statistics import Check
from airfed.audit.subject import Subject
from airfed.planning import Plan
from airfed.privacy.ledger import Ledger
from airfed.scenario.sections import own_policy
from airfed.training.run import Run


def record_checks(subject: Subject, run: Run) -> list[Check]:
    """Return whether the record says what the code claims: the plan, the ledger, and all files together."""
    scenario, plan = subject.scenario, subject.plan
    # What came with a record, code or a response, is not asked again: its plan is taken as written, and holds together.
    again = own_policy(scenario.policy.name) is None and scenario.policy.objective == "bound"
    planned = scenario.plan(plan.problem.heard_by(None)) if again else plan
    expected, recorded = json.loads(json.dumps(planned.to_dict())), dict(run.figures)
    differing = sorted(name for name in recorded if recorded[name] != expected.get(name))
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
    if run.errors:
        return [*found, Check(name="ledger", passed=False, finding=" ".join(map(str, run.errors)), figures={})]
    ledger, mus = run.ledger, planned.sequence.mus
    low = [charge.round_index for charge in ledger.charges if charge.mu < mus[charge.round_index] * (1 - 1e-12)]
    passed = not low and _all_counted(ledger, planned)
    return [
        *found,
        Check(
            name="ledger",
            passed=passed,
            finding=f"{ledger.rounds} rounds charged, the chain is whole, μ√Σ = {ledger.mu_total:.5g}"
            if passed
            else f"the ledger charges less than the plan's μ = {planned.mu_round:.5g} a round",
            figures={"rounds": ledger.rounds, "mu_total": ledger.mu_total, "trained": len(run.rounds)},
        ),
    ]


def _all_counted(ledger: Ledger, plan: Plan) -> bool:
    """Whether every device has spent at least what the rounds cost it in which the plan has it transmit."""
    rounds, mus = {charge.round_index for charge in ledger.charges}, plan.sequence.mus
    if ledger.num_devices is None:  # whoever transmits does so in every round
        return ledger.mu_total >= math.sqrt(math.fsum(mus[index] ** 2 for index in rounds)) * (1 - 1e-12)
    least = np.zeros(ledger.num_devices)
    for index in rounds:
        least[plan.sequence[index].scheduled] += mus[index] ** 2
    return bool(np.all(ledger.device_mus() >= np.sqrt(least) * (1 - 1e-12)))
