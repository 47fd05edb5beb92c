"""The channel models. `scale` is the root mean square of the gain, so E|h|² = scale² for every fading model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from airfed.channel import files
from airfed.channel.model import ChannelModel
from airfed.keys.declare import Control, Key, Metres, NonNegative, Positive

_Scale = Annotated[Positive, Key("root mean square of the gain", "rms |h|"), Control("Scale", 0.01, 10.0)]


class Fixed(ChannelModel):
    """Gains written down: `gains[k]` is device k's."""

    model: Literal["fixed"] = "fixed"
    gains: Annotated[
        list[NonNegative],
        Field(min_length=1),
        Key("the gains themselves", "|h|", note="one per device, with commas"),
        Control("Gains", start=[0.2, 0.5, 0.8, 1.1, 1.6]),
    ]

    @property
    def num_gains(self) -> int:
        """How many gains are written down."""
        return len(self.gains)

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the gains as given."""
        return _checked_count(np.array(self.gains, np.float64), num_devices, "gains")


class Rayleigh(ChannelModel):
    """Rayleigh fading, |h| of h ~ CN(0, scale²): no line of sight."""

    model: Literal["rayleigh"] = "rayleigh"
    scale: _Scale = 1.0

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return independent Rayleigh gains."""
        return self.scale * rng.rayleigh(np.sqrt(0.5), num_devices)


class Rician(ChannelModel):
    """Rician fading: a direct path and scattered ones."""

    model: Literal["rician"] = "rician"
    scale: _Scale = 1.0
    k_factor: Annotated[
        NonNegative,
        Key("power of the direct path over that of the scattered ones", "K"),
        Control("Line of sight over scatter", 0.0, 20.0, "linear", start=3.0),
    ] = 1.0

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return independent Rician gains."""
        direct = np.sqrt(self.k_factor / (self.k_factor + 1))
        spread = np.sqrt(0.5 / (self.k_factor + 1))
        real, imaginary = rng.normal(0.0, spread, (2, num_devices))
        return np.asarray(self.scale * np.hypot(direct + real, imaginary))


class Uniform(ChannelModel):
    """Gains spread evenly between `low` and `high`."""

    model: Literal["uniform"] = "uniform"
    low: Annotated[NonNegative, Key("smallest gain"), Control("Smallest gain", 0.0, 2.0, "linear", start=0.1)]
    high: Annotated[Positive, Key("largest gain"), Control("Largest gain", 0.05, 5.0, start=2.0)]

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"Expected low={self.low!r} <= high={self.high!r}.")
        return self

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return independent uniform gains."""
        return rng.uniform(self.low, self.high, num_devices)


class Cell(ChannelModel):
    """Devices uniform in a disc around the receiver: path loss, log-normal shadowing and Rayleigh fading.

    The gain is scale · (r / reference_distance)^(−α/2) · 10^(X/20) · Rayleigh(rms 1), X ~ N(0, shadowing_db²).
    """

    model: Literal["cell"] = "cell"
    radius: Annotated[Metres, Key("radius of the cell", unit="m"), Control("Cell radius", 60.0, 3000.0, start=300.0)]
    path_loss_exponent: Annotated[
        Positive,
        Key("received power falls as distance to the minus this", "α"),
        Control("Path loss exponent", 1.5, 5.0, "linear"),
    ] = 3.0
    shadowing_db: Annotated[
        NonNegative,
        Key("standard deviation of the shadowing", unit="dB"),
        Control("Shadowing", 0.0, 12.0, "linear", start=4.0),
    ] = 0.0
    reference_distance: Annotated[
        Metres,
        Key("where the mean gain is `scale`; nobody is closer", unit="m"),
        Control("Reference distance", 1.0, 500.0, start=50.0),
    ] = 1.0
    scale: Annotated[
        Positive,
        Key("root mean square of the gain at the reference distance", "rms |h|"),
        Control("Scale", 0.01, 10.0, start=2.0),
    ] = 1.0

    @model_validator(mode="after")
    def _check_distances(self) -> Self:
        if self.reference_distance > self.radius:
            raise ValueError(f"Expected reference_distance={self.reference_distance!r} <= radius={self.radius!r}.")
        return self

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return gains of devices dropped uniformly over the disc's area, outside the reference distance."""
        nearest = (self.reference_distance / self.radius) ** 2
        distance = self.radius * np.sqrt(rng.uniform(nearest, 1.0, num_devices))
        path = (distance / self.reference_distance) ** (-0.5 * self.path_loss_exponent)
        shadow = 10.0 ** (rng.normal(0.0, self.shadowing_db, num_devices) / 20.0)
        return self.scale * path * shadow * rng.rayleigh(np.sqrt(0.5), num_devices)


def _plain_path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


class FromFile(ChannelModel):
    """Gains measured elsewhere: a .npy vector, or a .csv with one number a line or a column named in its header."""

    model: Literal["file"] = "file"
    path: Annotated[
        str, BeforeValidator(_plain_path), Key("a .csv or .npy file, from the scenario's folder", file=True)
    ]
    column: Annotated[str, Key("header of the column to read from a .csv with several")] = "gain"

    @property
    def num_gains(self) -> int:
        """How many gains the file has."""
        return self.read().size

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the gains in the file's order."""
        return _checked_count(self.read(), num_devices, self.path)

    def read(self) -> NDArray[np.float64]:
        """Return all gains of the file.

        Raises:
            DataError: the file is missing, of another kind, or has a bad cell (named by its line).
        """
        return files.read_gains(Path(self.path), self.column)


def _checked_count(gains: NDArray[np.float64], num_devices: int, source: str) -> NDArray[np.float64]:
    if gains.size != num_devices:
        raise ValueError(f"Expected {num_devices} gains (fleet.num_devices), got {gains.size} from {source}.")
    return gains
