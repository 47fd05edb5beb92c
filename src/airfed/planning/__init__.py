"""Which devices transmit, how strongly, and in how many rounds."""

from airfed.planning.plan import Plan
from airfed.planning.policies import POLICIES, plan

__all__ = ["POLICIES", "Plan", "plan"]
