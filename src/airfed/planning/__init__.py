"""Which devices transmit, how strongly, and in how many rounds: plans, and what makes them."""

from airfed.planning.amplitudes import Amplitudes
from airfed.planning.optimal import predicted
from airfed.planning.optimal import space_of as candidates
from airfed.planning.plan import Plan
from airfed.planning.policy import Policy, Settings, once
from airfed.planning.surrogate import Average, Prediction, Response, load_response

__all__ = [
    "Amplitudes",
    "Average",
    "Plan",
    "Policy",
    "Prediction",
    "Response",
    "Settings",
    "candidates",
    "load_response",
    "once",
    "predicted",
]
