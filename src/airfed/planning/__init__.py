"""Which devices transmit, how strongly, and in how many rounds."""

from airfed.planning.plan import Plan
from airfed.planning.policies import POLICIES, find, plan
from airfed.planning.policy import Decision, Policy, Settings
from airfed.planning.views import candidates, compare

__all__ = ["POLICIES", "Decision", "Plan", "Policy", "Settings", "candidates", "compare", "find", "plan"]
