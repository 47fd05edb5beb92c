"""Channel gains |h_k|: channel models (one class each, `MODELS`), fading processes, path loss, traces, CSI error."""

from airfed.channel.model import (
    MODELS,
    ChannelModel,
    Fading,
    FadingState,
    Fixed,
    Rayleigh,
    Rician,
    Uniform,
    true_channel,
)
from airfed.channel.path_loss import Cell, PathLoss
from airfed.channel.traces import FromFile

__all__ = [
    "MODELS",
    "Cell",
    "ChannelModel",
    "Fading",
    "FadingState",
    "Fixed",
    "FromFile",
    "PathLoss",
    "Rayleigh",
    "Rician",
    "Uniform",
    "true_channel",
]
