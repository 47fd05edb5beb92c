"""Which devices transmit, how strongly, and in how many rounds."""

from airfed.planning.completion import predicted
from airfed.planning.decision import Average, Decision
from airfed.planning.fading.plan import FadingPlan
from airfed.planning.plan import Plan
from airfed.planning.policies import EVERY, POLICIES, RIVALS, find, plan
from airfed.planning.policy import Policy, Settings
from airfed.planning.response import Prediction, Response, load_response
from airfed.planning.views import candidates, compare

__all__ = [
    "EVERY",
    "POLICIES",
    "RIVALS",
    "Average",
    "Decision",
    "FadingPlan",
    "Plan",
    "Policy",
    "Prediction",
    "Response",
    "Settings",
    "candidates",
    "compare",
    "find",
    "load_response",
    "plan",
    "predicted",
]
