"""The audit: every check, the evidence, and a verdict."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from airfed import _validate
from airfed import scenario as scenarios
from airfed.audit import canaries
from airfed.audit.canaries import Evidence, Vector, epsilon_of, evidence
from airfed.audit.noise_checks import noise_checks
from airfed.audit.round_loop import round_loop_checks
from airfed.audit.sensitivity import sensitivity_checks
from airfed.audit.subject import Check, Subject
from airfed.planning import Plan
from airfed.privacy import gaussian_epsilon
from airfed.privacy.ledger import Ledger
from airfed.problem import InfeasibleError, Trust
from airfed.scenario import ScenarioError
from airfed.scenario.sections import own_policy
from airfed.training.loop import NoiseFault
from airfed.training.run import Run

PAIRS: Final = 1200
TRIALS: Final = 100_000  # a side
SAMPLES: Final = 1_000_000
_RTOL: Final = 1e-9
_LOOSE: Final = 0.95


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit:
    """What an audit found.

    Args:
        subject: what was audited.
        checks: every check, passed or not.
        warnings: what a reader should know although nothing failed.
        round_evidence, total_evidence: bounds on μ of one round and of the whole training; None if there was no attack.
        false_positive, true_positive: the attack's ROC curve for one round.
        seconds: how long it took.
    """

    subject: Subject
    checks: list[Check]
    warnings: list[str]
    round_evidence: Evidence | None
    total_evidence: Evidence | None
    false_positive: Vector
    true_positive: Vector
    seconds: float

    @property
    def failures(self) -> list[Check]:
        """The checks that did not pass."""
        return [check for check in self.checks if not check.passed]

    @property
    def verdict(self) -> str:
        """Return "pass", or "fail" if any check failed."""
        return "fail" if self.failures else "pass"

    def to_dict(self) -> dict[str, Any]:
        """Return the audit as plain values, ready for JSON."""
        plan = self.subject.plan
        budget = plan.problem.budget
        each, whole = self.round_evidence, self.total_evidence
        lower, lower_total = (None if e is None else e.lower for e in (each, whole))
        return {
            "verdict": self.verdict,
            "scenario": self.subject.scenario.name,
            "mu_claimed": plan.mu_round,
            "mu_lower": lower,
            "epsilon_claimed": plan.epsilon_round,
            "epsilon_lower": None if lower is None else epsilon_of(lower, budget.delta),
            "mu_total_claimed": plan.mu_total,
            "mu_total_lower": lower_total,
            "epsilon_total_claimed": plan.epsilon_total,
            "epsilon_total_lower": None if lower_total is None else epsilon_of(lower_total, budget.delta),
            "level": canaries.REPORT_LEVEL,
            "fail_level": canaries.FAIL_LEVEL,
            "delta": budget.delta,
            "relation": budget.relation,
            "unit": "device",
            "antennas": plan.problem.fleet.antennas,
            "trust": plan.problem.link.trust,
            "against": self.subject.adversary,
            "privacy": self.subject.noise().privacy,
            "rounds": plan.rounds,
            "evidence": {"round": each and asdict(each), "total": whole and asdict(whole)},
            "checks": [asdict(check) for check in self.checks],
            "warnings": self.warnings,
            "roc": {"false_positive": self.false_positive.tolist(), "true_positive": self.true_positive.tolist()},
            "seconds": self.seconds,
        }


def subject_of(path: Path, *, seed: int | None = None) -> Subject:
    """Return what a path names: a scenario file, or a run directory with its record."""
    if not path.exists():
        raise ScenarioError(f"Expected a scenario, or a run directory, at {path}; there is no such file or folder.")
    if not path.is_dir():
        loaded = scenarios.load(path)
        return Subject.of(loaded if seed is None else loaded.override({"seed": seed}))
    return Subject.of_run(Run.open(path))


def audit(
    subject: Subject,
    *,
    trials: int = TRIALS,
    pairs: int = PAIRS,
    samples: int = SAMPLES,
    seed: int = 0,
    against: Trust | None = None,
) -> Audit:
    """Attack a claim and return what came of it.

    Args:
        subject: what to audit.
        trials, pairs, samples: canaries a side, adversarial pairs of updates, values of the noise.
        seed: of the adversary's own choices.
        against: the adversary of a receiver with several antennas, who keeps every antenna's signal ("radio") or gets
            the combined one ("combiner"); by default that of the claim.

    Raises:
        ValueError: there is no such adversary, or the method makes no privacy claim against it.
    """
    if against is not None:
        _validate.one_of(get_args(Trust), against=against)
        try:
            subject.plan.against(against)
        except InfeasibleError as error:
            why = str(error).removeprefix("No plan fits: ")
            raise ValueError(f"This method makes no privacy claim against that adversary: {why}") from None
        subject = replace(subject, against=against)
    with np.errstate(all="ignore"):  # code that is broken on purpose or not may overflow; its checks say so
        return _audit(subject, trials, pairs, samples, np.random.default_rng((seed, 0x5EED)))


def _audit(subject: Subject, trials: int, pairs: int, samples: int, rng: np.random.Generator) -> Audit:
    started = time.monotonic()
    checks = [accounting_check(subject)]
    if subject.run is not None:
        checks += record_checks(subject, subject.run)
    checks += sensitivity_checks(subject, rng, pairs=pairs)
    checks += round_loop_checks(subject, rng)
    checks += noise_checks(subject, samples=samples)
    try:
        scores = canaries.attack(subject, rng, trials=trials)
    except NoiseFault as fault:
        checks.append(Check.of("canaries", False, str(fault)))
        return _concluded(subject, checks, started)
    each = evidence(scores.single, scores.claimed)
    whole = evidence(scores.whole, subject.plan.mu_total)
    delta = subject.plan.problem.budget.delta
    checks += [
        _claim_check("canaries", "one round", each, gaussian_epsilon(scores.claimed, delta), delta),
        _claim_check("trajectory", "the whole training", whole, subject.plan.epsilon_total, delta),
    ]
    return _concluded(subject, checks, started, each, whole, canaries.roc(scores.single))


def accounting_check(subject: Subject) -> Check:
    """Return whether the ε that is claimed follows from what is received, by another road, and is within the budget."""
    plan = subject.plan
    budget, mus = plan.problem.budget, plan.sequence.mus
    spent = np.zeros(plan.problem.fleet.num_devices)
    for entry in plan.sequence:
        spent[entry.scheduled] += entry.mu**2
    whole = math.sqrt(float(spent.max()))  # of the most exposed device
    wrong = _overspent(plan)
    most, _ = replace(subject, against=None).exposure
    if np.any(mus < most * (1 - _RTOL)) or plan.mu_round < most.max() * (1 - _RTOL):
        wrong.append("μ is below the received amplitude over the noise")
    if plan.epsilon_round < epsilon_of(plan.mu_round, budget.delta) * (1 - _RTOL):
        wrong.append("ε of a round is below the truth")
    if plan.mu_total < whole * (1 - _RTOL) or plan.epsilon_total < epsilon_of(whole, budget.delta) * (1 - _RTOL):
        wrong.append("ε of the training is below the truth")
    exact = plan.epsilon_total if budget.scope == "total" else plan.epsilon_round
    counted = plan.epsilon_paper if budget.formula == "classic" else exact
    if counted > budget.epsilon * (1 + _RTOL):
        wrong.append(f"ε = {counted:.5g} exceeds the budget of {budget.epsilon:g}")
    figures = {"mu_round": plan.mu_round, "mu_total": plan.mu_total, "epsilon_budget": budget.epsilon}
    found = f"ε = {plan.epsilon_round:.5g} a round, {plan.epsilon_total:.5g} in all follow from μ = {plan.mu_round:.5g}"
    return Check.of("accounting", not wrong, found, "; ".join(wrong), **figures)


def _overspent(plan: Plan) -> list[str]:
    """What the plan sends beyond its budgets, where rounds may differ: added up from gains and received amplitudes."""
    if plan.constant and not plan.problem.varies:
        return []
    fleet, budget, wrong = plan.problem.fleet, plan.problem.budget, []
    spent = np.zeros(fleet.num_devices)
    for entry in plan.sequence:
        signal, devices = entry.signal, entry.scheduled
        power = np.zeros(devices.size) if signal.constant_power is None else np.array(signal.constant_power)
        if plan.method.radio:
            power += np.square(signal.amplitude / fleet.gain_in(entry.index)[devices])
        spent[devices] += power
        if np.any(power > fleet.peak_power[devices] * (1 + _RTOL)):
            wrong.append(f"round {entry.index + 1} asks a device for more than its peak power")
    if spent.sum() > budget.total_power * (1 + _RTOL):
        wrong.append(f"{spent.sum():.5g} W exceed the total of {budget.total_power:g} W")
    if budget.device_power is not None and np.any(spent > np.asarray(budget.device_power) * (1 + _RTOL)):
        wrong.append("a device spends more than its battery")
    return wrong


def _claim_check(name: str, what: str, found: Evidence, epsilon: float, delta: float) -> Check:
    """The claim stands unless a lower bound at level 1e-6 exceeds it: of μ, or of the ε that goes with it."""
    proved = found.proved
    refuted = proved > found.claimed or epsilon_of(proved, delta) > epsilon * (1 + _RTOL)
    stands = f"{what}: μ ≥ {found.lower:.5g} at 99% confidence, {found.claimed:.5g} claimed"
    falls = f"{what}: μ ≥ {proved:.5g} except with probability 1e-6, but {found.claimed:.5g} is claimed"
    return Check.of(name, not refuted, stands, falls, **asdict(found))


def _concluded(
    subject: Subject,
    checks: list[Check],
    started: float,
    each: Evidence | None = None,
    whole: Evidence | None = None,
    curve: tuple[Vector, Vector] = (np.empty(0), np.empty(0)),
) -> Audit:
    plan = subject.plan
    warnings = []
    if each is not None and each.upper_strict < _LOOSE * each.claimed:
        why = "more signal could be sent for the same ε"
        if plan.problem.link.estimation_error:
            why = "these channel errors are smaller than what is provided for"
        elif plan.problem.seen_by_all and subject.adversary == "combiner":
            why = "it is made against somebody who sees more"
        elif plan.problem.seen_by_all:
            why = "in each round it is made for the device that shows most"
        shown = f"the attack shows μ ≤ {each.upper_strict:.4g} where {each.claimed:.4g} is claimed"
        warnings.append(f"The claim is loose: {shown}; {why}.")
    if plan.epsilon_paper_validity == "unsafe":
        said, truth = f"{plan.epsilon_paper:.4g}", f"{plan.epsilon_round:.4g}"
        warnings.append(f"Lemma 1 prints ε = {said} for a round; the truth is {truth}.")
    if plan.problem.link.trust_estimates and plan.problem.link.estimation_error:
        warnings.append("The channel estimates are trusted although they are known to be wrong.")
    return Audit(
        subject=subject,
        checks=checks,
        warnings=warnings,
        round_evidence=each,
        total_evidence=whole,
        false_positive=curve[0],
        true_positive=curve[1],
        seconds=time.monotonic() - started,
    )


def record_checks(subject: Subject, run: Run) -> list[Check]:
    """Return whether the record says what the code claims: the plan, the ledger, and all files together."""
    scenario, plan = subject.scenario, subject.plan
    # What came with a record, code or a response, is not asked again: its plan is taken as written, and holds together.
    again = own_policy(scenario.policy.name) is None and scenario.policy.objective == "bound"
    planned = scenario.plan(plan.problem.heard_by(None)) if again else plan
    expected, recorded = json.loads(json.dumps(planned.to_dict())), dict(run.figures)
    differing = sorted(name for name in recorded if recorded[name] != expected.get(name))
    other = f"plan.json has another {', '.join(differing)} than the scenario plans"
    found = [
        Check.of("recorded plan", not differing, "plan.json is what the scenario plans", other, differing=differing)
    ]
    if run.errors:
        return [*found, Check.of("ledger", False, " ".join(map(str, run.errors)))]
    ledger, mus = run.ledger, planned.sequence.mus
    low = [charge.round_index for charge in ledger.charges if charge.mu < mus[charge.round_index] * (1 - 1e-12)]
    return [
        *found,
        Check.of(
            "ledger",
            not low and _all_counted(ledger, planned),
            f"{ledger.rounds} rounds charged, the chain is whole, μ√Σ = {ledger.mu_total:.5g}",
            f"the ledger charges less than the plan's μ = {planned.mu_round:.5g} a round",
            **{"rounds": ledger.rounds, "mu_total": ledger.mu_total, "trained": len(run.rounds)},
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
