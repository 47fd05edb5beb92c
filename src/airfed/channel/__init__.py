"""Channel gains |h_k|: models that draw them, one class each in `models`, and what the devices do not know of them."""

from airfed.channel.model import MODELS, ChannelModel, raise_to_minimum, true_channel
from airfed.channel.models import Cell, Fixed, FromFile, Rayleigh, Rician, Uniform

__all__ = [
    "MODELS",
    "Cell",
    "ChannelModel",
    "Fixed",
    "FromFile",
    "Rayleigh",
    "Rician",
    "Uniform",
    "raise_to_minimum",
    "true_channel",
]
