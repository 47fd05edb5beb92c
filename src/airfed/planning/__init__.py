"""Which devices transmit, how strongly, and in how many rounds."""

from airfed.planning.plan import Plan
from airfed.planning.policies import POLICIES, from_policy, plan
from airfed.planning.views import candidates, compare

__all__ = ["POLICIES", "Plan", "candidates", "compare", "from_policy", "plan"]
