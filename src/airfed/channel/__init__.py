"""Channel gains |h_k|: models (one class each, `MODELS`), how they change, what the devices do not know of them."""

from airfed.channel.model import MODELS, ChannelModel, Fading, Fixed, Rayleigh, Rician, State, Uniform, true_channel
from airfed.channel.path_loss import Cell, PathLoss
from airfed.channel.traces import FromFile

__all__ = [
    "MODELS",
    "Cell",
    "ChannelModel",
    "Fading",
    "Fixed",
    "FromFile",
    "PathLoss",
    "Rayleigh",
    "Rician",
    "State",
    "Uniform",
    "true_channel",
]
