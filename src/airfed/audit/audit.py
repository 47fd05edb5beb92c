"""The audit: all checks, the evidence of the attacks, and the verdict."""

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
from airfed.audit.sensitivity import round_loop_checks, sensitivity_checks
from airfed.audit.subject import Check, Subject
from airfed.planning import Plan
from airfed.privacy import gaussian_epsilon
from airfed.privacy.ledger import Ledger
from airfed.problem import Adversary, InfeasibleError
from airfed.scenario import ScenarioError
from airfed.scenario.sections import own_policy
from airfed.training.loop import NoiseFault
from airfed.training.run import Run

PAIRS: Final = 1200
TRIALS: Final = 100_000  # per sign
MODEL_TRIALS: Final = 2500  # per sign, from trained models
SAMPLES: Final = 1_000_000
_RTOL: Final = 1e-9
_LOOSE: Final = 0.95
_INDICATOR_SHARE: Final = 10  # trials against updates for one against the clipping indicator, which is slower
_NOT_ATTACKED: Final = {
    "signals": ["the trained model", "the engines", "Flower's path"],
    "end_to_end": ["your own model and data", "correlated noise", "Flower's path"],
}
_SCOPES: Final = {"round": "ε of a round", "total": "ε in total"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit:
    """The result of an audit."""

    subject: Subject  # the plan or run under audit
    checks: list[Check]  # passed or not
    warnings: list[str]  # remarks that do not make the audit fail
    round_evidence: Evidence | None  # bounds on μ of one round and of the whole training; None if no attack ran
    total_evidence: Evidence | None
    false_positive: Vector  # the attack's ROC curve for one round
    true_positive: Vector
    seconds: float
    mode: str = "signals"  # or "end_to_end", an attack on trained models

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
        free, free_total = (None if e is None else e.lower_clopper_pearson for e in (each, whole))
        return {
            "verdict": self.verdict,
            "mode": self.mode,
            "not_attacked": _NOT_ATTACKED[self.mode],
            "scenario": self.subject.scenario.name,
            "mu_claimed": plan.mu_round,
            "mu_lower": lower,
            "epsilon_claimed": plan.epsilon_round,
            "epsilon_lower": None if lower is None else epsilon_of(lower, budget.delta),
            "epsilon_lower_clopper_pearson": None if free is None else epsilon_of(free, budget.delta),
            "mu_total_claimed": plan.mu_total,
            "mu_total_lower": lower_total,
            "epsilon_total_claimed": plan.epsilon_total,
            "epsilon_total_lower": None if lower_total is None else epsilon_of(lower_total, budget.delta),
            "epsilon_total_lower_clopper_pearson": None if free_total is None else epsilon_of(free_total, budget.delta),
            "assumes_gaussian_scores": [f"{name}{part}_lower" for name in ("mu", "epsilon") for part in ("", "_total")],
            "level": canaries.REPORT_LEVEL,
            "fail_level": canaries.FAIL_LEVEL,
            "delta": budget.delta,
            "adjacency": budget.adjacency,
            "unit": "device",
            "antennas": plan.problem.fleet.antennas,
            "adversary": plan.problem.link.adversary,
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
    """Return the subject at a path: a scenario file or a run directory."""
    if not path.exists():
        raise ScenarioError(f"There is no scenario or run directory at {path}.")
    if not path.is_dir():
        loaded = scenarios.load(path)
        return Subject.of(loaded if seed is None else loaded.override({"seed": seed}))
    return Subject.of_run(Run.open(path))


def audit(
    subject: Subject,
    *,
    trials: int | None = None,
    pairs: int = PAIRS,
    samples: int = SAMPLES,
    seed: int = 0,
    against: Adversary | None = None,
    end_to_end: bool = False,
) -> Audit:
    """Attack the privacy claim of a subject and return the result; raise ValueError if it claims nothing to attack.

    Args:
        subject: the plan or run to audit.
        trials, pairs, samples: canaries per sign (default: 100,000, or 2,500 end to end), adversarial pairs of
            updates, noise values.
        seed: seed of the adversary's random choices.
        against: the adversary of a receiver with several antennas: it keeps every antenna's signal ("all_antennas")
            or receives the combined one ("combined"); by default that of the claim.
        end_to_end: attack the models of many small trainings instead of the transmitted signals.
    """
    trials = (MODEL_TRIALS if end_to_end else TRIALS) if trials is None else trials
    _validate.positive_integer(trials=trials)
    rng = np.random.default_rng((seed, 0x5EED))
    if end_to_end:
        if subject.plan.problem.learning.adaptive_clipping is not None:
            raise ValueError(
                "end_to_end must not be set with adaptive_clipping: its attack needs a fixed clipping norm."
            )
        if against is not None:
            raise ValueError(
                f"against must not be set with end_to_end, whose adversary has the models only; got {against!r}."
            )
        against = "combined"
    elif against is not None:
        _validate.one_of(get_args(Adversary), against=against)
        try:
            subject.plan.against(against)
        except InfeasibleError as error:
            why = str(error).removeprefix("No plan fits: ")
            raise ValueError(f"This method makes no privacy claim against that adversary: {why}") from None
    if against is not None:
        subject = replace(subject, against=against)
    started, curve, each, whole = time.monotonic(), (np.empty(0), np.empty(0)), None, None
    with np.errstate(all="ignore"):  # broken code may overflow; the checks report it
        checks = [accounting_check(subject)]
        if not end_to_end:
            checks += record_checks(subject, subject.run) if subject.run is not None else []
            checks += sensitivity_checks(subject, rng, pairs=pairs)
            checks += round_loop_checks(subject, rng)
            checks += noise_checks(subject, samples=samples)
        try:
            scores = (canaries.attack_models if end_to_end else canaries.attack)(subject, rng, trials=trials)
            if subject.plan.problem.learning.adaptive_clipping is not None:
                joint = canaries.attack_indicator(subject, rng, trials=max(1, trials // _INDICATOR_SHARE))
                found = evidence(joint.per_round, joint.claimed)
                checks.append(_claim_check(subject, "clipping indicator", "μ of one round", found))
        except NoiseFault as fault:
            checks.append(Check.of("models" if end_to_end else "canaries", False, str(fault)))
        else:
            own = min(subject.plan.mu_total, float(subject.plan.device_mu[subject.target_device]))  # both are claimed
            each, whole = evidence(scores.per_round, scores.claimed), evidence(scores.in_total, own)
            names = ("models of one round", "models of all rounds") if end_to_end else ("canaries", "trajectory")
            checks.append(_claim_check(subject, names[0], "μ of one round", each))
            checks.append(_claim_check(subject, names[1], "μ in total", whole, subject.plan.epsilon_total))
            curve = canaries.roc(scores.per_round)
    return Audit(
        subject=subject,
        checks=checks,
        warnings=_warnings(subject, each),
        round_evidence=each,
        total_evidence=whole,
        false_positive=curve[0],
        true_positive=curve[1],
        seconds=time.monotonic() - started,
        mode="end_to_end" if end_to_end else "signals",
    )


def accounting_check(subject: Subject) -> Check:
    """Return whether the claimed ε follows from the received amplitudes (recomputed) and is within the budget."""
    plan = subject.plan
    budget, mus = plan.problem.budget, plan.sequence.mus
    spent = np.zeros(plan.problem.fleet.num_devices)
    for entry in plan.sequence:
        spent[entry.scheduled] += entry.device_mu**2
    whole = math.sqrt(float(spent.max()))  # of the most exposed device
    wrong = _overspent(plan)
    ratio, measured = replace(subject, against=None).exposure
    if ratio.max() > 1 + _RTOL or plan.mu_round < mus.max() or np.any(plan.device_mu < measured * (1 - _RTOL)):
        wrong.append("the claimed μ of a device is below sensitivity times received amplitude over noise")
    if plan.epsilon_round < epsilon_of(plan.mu_round, budget.delta) * (1 - _RTOL):
        wrong.append("the claimed ε of a round is below the exact ε")
    if plan.mu_total < whole * (1 - _RTOL) or plan.epsilon_total < epsilon_of(whole, budget.delta) * (1 - _RTOL):
        wrong.append("the claimed ε in total is below the exact ε")
    exact = plan.epsilon_total if budget.scope == "total" else plan.epsilon_round
    counted = plan.epsilon_paper if budget.formula == "classic" else exact
    if counted > budget.epsilon * (1 + _RTOL):
        wrong.append(f"ε = {counted:.5g} exceeds the budget of {budget.epsilon:g}")
    figures = {"mu_round": plan.mu_round, "mu_total": plan.mu_total, "epsilon_budget": budget.epsilon}
    mus_of = f"μ of a round {plan.mu_round:.5g}, μ in total {plan.mu_total:.5g}"
    finding = f"{mus_of}; {_SCOPES[budget.scope]} {counted:.5g} ({budget.formula}), threshold {budget.epsilon:g}"
    return Check.of("accounting", not wrong, finding, "; ".join(wrong), **figures)


def _overspent(plan: Plan) -> list[str]:
    """Return the power budgets that a plan with different rounds exceeds, from gains and received amplitudes."""
    if plan.constant and not plan.problem.time_varying:
        return []
    fleet, budget, wrong = plan.problem.fleet, plan.problem.budget, []
    spent = np.zeros(fleet.num_devices)
    for entry in plan.sequence:
        signal, devices = entry.signal, entry.scheduled
        power = np.zeros(devices.size) if signal.constant_power is None else np.array(signal.constant_power)
        if plan.method.analog:
            power += np.square(signal.amplitude / fleet.gain_in(entry.index)[devices])
        spent[devices] += power
        if np.any(power > fleet.peak_power[devices] * (1 + _RTOL)):
            wrong.append(f"a device exceeds its peak power in round {entry.index + 1}")
    if spent.sum() > budget.total_power * (1 + _RTOL):
        wrong.append(f"the total power of {spent.sum():.5g} W exceeds the budget of {budget.total_power:g} W")
    if budget.device_power is not None and np.any(spent > np.asarray(budget.device_power) * (1 + _RTOL)):
        wrong.append("a device exceeds its battery")
    return wrong


def _claim_check(
    subject: Subject, name: str, quantity: str, found: Evidence, epsilon_claimed: float = math.inf
) -> Check:
    """Return the check that fails if a lower bound at level 1e-6, on μ or on its ε, exceeds the claim."""
    proved, delta = found.proved, subject.plan.problem.budget.delta
    epsilon = min(epsilon_claimed, gaussian_epsilon(found.claimed, delta))
    refuted = proved > found.claimed or epsilon_of(proved, delta) > epsilon * (1 + _RTOL)
    bounds = f"{proved:.5g} at confidence 1 - 1e-6, {found.lower:.5g} at 99%"
    finding = f"lower bound on {quantity} {bounds}; threshold {found.claimed:.5g}, the claim"
    return Check.of(name, not refuted, finding, **asdict(found))


def _warnings(subject: Subject, each: Evidence | None) -> list[str]:
    plan = subject.plan
    warnings = []
    if each is not None and each.upper_strict < _LOOSE * each.claimed:
        why = "The devices could transmit more power at the same ε"
        if plan.problem.link.csi_error:
            why = "The channel errors of this seed are smaller than the bound on them"
        elif plan.problem.learning.adaptive_clipping is not None:
            why = "These canaries attack the updates without the clipping indicator"
        elif plan.problem.all_antennas_seen and subject.adversary == "combined":
            why = "The claim holds against a stronger adversary"
        elif plan.problem.all_antennas_seen:
            why = "The claim of each round is that of its most exposed device"
        bounds = f"the attack gives μ ≤ {each.upper_strict:.4g}, but {each.claimed:.4g} is claimed"
        warnings.append(f"The claim is loose: {bounds}. {why}.")
    if plan.epsilon_paper_validity == "unsafe":
        paper, exact = f"{plan.epsilon_paper:.4g}", f"{plan.epsilon_round:.4g}"
        warnings.append(f"Lemma 1 gives ε = {paper} for a round, but the exact ε is {exact}.")
    if plan.problem.link.assume_perfect_csi and plan.problem.link.csi_error:
        warnings.append("The plan assumes perfect CSI although channel.csi_error is not 0.")
    return warnings


def record_checks(subject: Subject, run: Run) -> list[Check]:
    """Return whether the record agrees with the code: the plan, the ledger, and all files together."""
    scenario, plan = subject.scenario, subject.plan
    # A user's policy or a surrogate is not called again: its recorded plan is used, which was checked for consistency.
    again = own_policy(scenario.policy.name) is None and (scenario.policy.objective or plan.objective) == "bound"
    planned = scenario.plan(plan.problem.with_beamformer(None)) if again else plan
    expected, recorded = json.loads(json.dumps(planned.to_dict())), dict(run.figures)
    differing = sorted(name for name in recorded if recorded[name] != expected.get(name))
    same, other = "plan.json is the plan of the scenario", f"plan.json differs from the plan in {', '.join(differing)}"
    found = [Check.of("recorded plan", not differing, same, other, differing=differing)]
    if run.errors:
        return [*found, Check.of("ledger", False, " ".join(map(str, run.errors)))]
    ledger, mus = run.ledger, planned.sequence.mus
    low = [charge.round_index for charge in ledger.charges if charge.mu < mus[charge.round_index] * (1 - 1e-12)]
    return [
        *found,
        Check.of(
            "ledger",
            not low and _all_counted(ledger, planned),
            f"the hash chain is intact; {ledger.rounds} rounds charged, μ in total = {ledger.mu_total:.5g}",
            f"the ledger charges less than the plan's μ = {planned.mu_round:.5g} a round",
            **{"rounds": ledger.rounds, "mu_total": ledger.mu_total, "trained": len(run.rounds)},
        ),
    ]


def _all_counted(ledger: Ledger, plan: Plan) -> bool:
    """Return whether every device was charged for all charged rounds in which the plan schedules it."""
    rounds, mus = {charge.round_index for charge in ledger.charges}, plan.sequence.mus
    if ledger.num_devices is None:  # the same devices transmit in every round
        return ledger.mu_total >= math.sqrt(math.fsum(mus[index] ** 2 for index in rounds)) * (1 - 1e-12)
    least = np.zeros(ledger.num_devices)
    for index in rounds:
        least[plan.sequence[index].scheduled] += plan.sequence.device_mus(index) ** 2
    return bool(np.all(ledger.device_mus() >= np.sqrt(least) * (1 - 1e-12)))
