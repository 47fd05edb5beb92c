"""Planning: which devices transmit, with which amplitude, and in how many rounds."""

from airfed.planning.amplitudes import Amplitudes
from airfed.planning.optimal import predicted
from airfed.planning.optimal import space_of as candidates
from airfed.planning.plan import Plan
from airfed.planning.policy import Policy, Settings, once
from airfed.planning.surrogate import Average, Prediction, Surrogate, load_surrogate

__all__ = [
    "Amplitudes",
    "Average",
    "Plan",
    "Policy",
    "Prediction",
    "Settings",
    "Surrogate",
    "candidates",
    "load_surrogate",
    "once",
    "predicted",
]
