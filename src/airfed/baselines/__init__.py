"""Baselines: methods of other papers, one file each. `docs/baselines.md` has the sources."""

from airfed.baselines.artificial_noise import ArtificialNoise
from airfed.baselines.cotaf import Cotaf
from airfed.baselines.digital import Digital
from airfed.baselines.dp_fedavg import DPFedAvg
from airfed.baselines.fedavg import FedAvg
from airfed.baselines.liu_simeone import liu_simeone
from airfed.baselines.secure_aggregation import SecureAggregation
from airfed.baselines.threshold_power import ThresholdPower
from airfed.baselines.truncated_inversion import TruncatedInversion, truncated_inversion

__all__ = [
    "ArtificialNoise",
    "Cotaf",
    "DPFedAvg",
    "Digital",
    "FedAvg",
    "SecureAggregation",
    "ThresholdPower",
    "TruncatedInversion",
    "liu_simeone",
    "truncated_inversion",
]
