"""airfed: plan, train, account and audit over-the-air federated averaging."""

from airfed.problem import Budget, Fleet, InfeasibleError, Learning, Link, Problem

__all__ = ["Budget", "Fleet", "InfeasibleError", "Learning", "Link", "Problem"]
__version__ = "0.1.0"
