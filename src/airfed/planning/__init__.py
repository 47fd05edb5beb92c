"""Which devices transmit, how strongly, and in how many rounds."""

from airfed.planning.plan import Plan
from airfed.planning.policies import POLICIES, from_policy, plan

__all__ = ["POLICIES", "Plan", "from_policy", "plan"]
