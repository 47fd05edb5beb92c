"""Looking at decisions: the candidates of a plan, and the policies side by side."""

from __future__ import annotations

import numpy as np

from airfed.planning import limits
from airfed.planning.exact import CandidateSpace, candidate_space
from airfed.planning.plan import Plan
from airfed.planning.policies import POLICIES, Settings, plan
from airfed.planning.uncertain import effective_peak_power
from airfed.problem import InfeasibleError, Problem


def candidates(decision: Plan) -> CandidateSpace:
    """Return the candidate space of a plan (the paper's Fig. 2): the largest θ of each size, at the plan's rounds."""
    problem = decision.problem
    return candidate_space(
        problem.fleet.gain,
        effective_peak_power(problem, decision.rounds),
        cap=float(limits.privacy_limits(problem, np.array([decision.rounds]))[0]),
        round_budget=problem.budget.total_power / decision.rounds,
        noise_weight=0.5 * problem.learning.dimension * problem.link.noise_std**2,
    )


def compare(problem: Problem, settings: Settings, *, seed: int) -> tuple[dict[str, Plan], dict[str, str]]:
    """Return the plan of every policy on one channel draw, and the reason of each that has none.

    Args:
        problem: the realisation.
        settings: rounds, size and threshold for the policies that take them; "threshold" without a threshold of its
            own takes the mean gain, a rule one would try first.
        seed: of the policies' own stream.
    """
    threshold = settings.threshold if settings.threshold is not None else float(problem.fleet.gain.mean())
    plans: dict[str, Plan] = {}
    reasons: dict[str, str] = {}
    for name in POLICIES:
        try:
            plans[name] = plan(
                problem,
                policy=name,
                rounds=settings.rounds,
                size=settings.size if name in ("uniform", "top_k") else None,
                threshold=threshold if name == "threshold" else None,
                seed=seed,
            )
        except InfeasibleError as error:
            reasons[name] = str(error)
    return plans, reasons
