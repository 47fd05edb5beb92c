"""Differential privacy of the receiver's Gaussian noise: the accountant (Gaussian DP) and the ledger."""

from airfed.privacy.gaussian import (
    Validity,
    classic_epsilon,
    classic_limit,
    classic_mu,
    classic_validity,
    compose,
    compose_all,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)

__all__ = [
    "Validity",
    "classic_epsilon",
    "classic_limit",
    "classic_mu",
    "classic_validity",
    "compose",
    "compose_all",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
]
