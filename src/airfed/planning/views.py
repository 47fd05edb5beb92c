"""Looking at decisions: the candidates of a plan, and the policies side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from airfed.planning import limits
from airfed.planning.exact import CandidateSpace, candidate_space
from airfed.planning.plan import Plan
from airfed.planning.policies import POLICIES
from airfed.planning.policy import Policy, Settings
from airfed.planning.uncertain import effective_peak_power
from airfed.problem import InfeasibleError, Problem


def candidates(decision: Plan) -> CandidateSpace:
    """Return the candidate space of a plan (the paper's Fig. 2): the largest θ of each size, at the plan's rounds."""
    problem, each = decision.problem, np.array([decision.rounds])
    return candidate_space(
        problem.fleet.gain,
        effective_peak_power(problem, decision.rounds),
        cap=float(limits.privacy_limits(problem, each)[0]),
        round_budget=float(limits.round_budgets(problem, each)[0]),
        noise_weight=0.5 * problem.learning.dimension * problem.link.noise_std**2,
    )


def compare(
    problem: Problem, settings: Settings, *, policies: Iterable[Policy] = POLICIES.values()
) -> tuple[dict[str, Plan], dict[str, str]]:
    """Return the plan of every policy on one channel draw, and the reason of each that has none.

    Args:
        problem: the realisation.
        settings: for the policies that take them; "threshold" without a threshold of its own takes the mean gain, a
            rule one would try first.
        policies: who decides.
    """
    plans: dict[str, Plan] = {}
    reasons: dict[str, str] = {}
    for policy in policies:
        if policy.for_varying and not problem.varies:
            continue
        try:
            plans[policy.name] = policy.plan(problem, _taken(policy, problem, settings))
        except InfeasibleError as error:
            reasons[policy.name] = str(error)
    return plans, reasons


def _taken(policy: Policy, problem: Problem, settings: Settings) -> Settings:
    """The settings that the policy takes."""
    taken = policy.settings
    threshold = float(problem.fleet.gain.mean()) if settings.threshold is None else settings.threshold
    return replace(
        settings,
        size=settings.size if "size" in taken else None,
        threshold=threshold if "threshold" in taken else None,
        options={name: value for name, value in settings.options.items() if name in taken},
    )
