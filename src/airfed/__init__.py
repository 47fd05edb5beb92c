"""airfed: plan, train, account and audit over-the-air federated averaging under power and privacy budgets.

[Yan23] in this package is: N. Yan, K. Wang, C. Pan, K. K. Chai, F. Shu, J. Wang, "Over-the-Air Federated Averaging with
Limited Power and Privacy Budgets", 2023. `docs/equations.md` says which function implements which equation.
"""

from airfed.planning import Plan, plan
from airfed.problem import Budget, Fleet, InfeasibleError, Learning, Link, Problem

__all__ = ["Budget", "Fleet", "InfeasibleError", "Learning", "Link", "Plan", "Problem", "plan"]
__version__ = "0.1.0"
