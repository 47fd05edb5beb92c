"""Channel gains |h_k|: models (one class each, `MODELS`), how they change, what the devices do not know of them."""

from airfed.channel.changing import Forecast, Resampled, State
from airfed.channel.model import MODELS, ChannelModel, raise_to_minimum, true_channel
from airfed.channel.models import Cell, Fading, Fixed, FromFile, Rayleigh, Rician, Uniform
from airfed.channel.outdoors import PathLoss

__all__ = [
    "MODELS",
    "Cell",
    "ChannelModel",
    "Fading",
    "Fixed",
    "Forecast",
    "FromFile",
    "PathLoss",
    "Rayleigh",
    "Resampled",
    "Rician",
    "State",
    "Uniform",
    "raise_to_minimum",
    "true_channel",
]
