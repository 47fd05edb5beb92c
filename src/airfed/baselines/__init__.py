"""Methods of other papers: their amplitudes, their noise, their limits. `docs/rivals.md` has the sources."""

from airfed.baselines.liu_simeone import liu_simeone
from airfed.baselines.methods import (
    ArtificialNoise,
    Cotaf,
    Digital,
    DPFedAvg,
    FedAvg,
    ThresholdPower,
    TruncatedInversion,
    truncated_inversion,
)

__all__ = [
    "ArtificialNoise",
    "Cotaf",
    "DPFedAvg",
    "Digital",
    "FedAvg",
    "ThresholdPower",
    "TruncatedInversion",
    "liu_simeone",
    "truncated_inversion",
]
