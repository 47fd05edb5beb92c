"""The candidate space of a plan."""

from __future__ import annotations

import numpy as np

from airfed.planning import limits
from airfed.planning.exact import CandidateSpace, candidate_space
from airfed.planning.plan import Plan
from airfed.planning.uncertain import effective_peak_power


def candidates(plan: Plan) -> CandidateSpace:
    """Return the candidate space of a plan (the paper's Fig. 2): the largest θ of each size, at the plan's rounds."""
    problem = plan.problem
    return candidate_space(
        problem.fleet.gain,
        effective_peak_power(problem, plan.rounds),
        cap=float(limits.privacy_limits(problem, np.array([plan.rounds]))[0]),
        round_budget=problem.budget.total_power / plan.rounds,
        noise_weight=problem.noise_weight,
    )
