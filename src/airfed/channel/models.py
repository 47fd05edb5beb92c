"""The channel models. `scale` is the root mean square of the gain, so E|h|² = scale² for every fading model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from airfed._files import DataError
from airfed.antennas import Complexes
from airfed.channel import arrays, files
from airfed.channel.changing import Floats, Resampled, State
from airfed.channel.model import ChannelModel
from airfed.keys.declare import Control, Key, Metres, NonNegative, Positive, Spread

_Scale = Annotated[Positive, Key("root mean square of the gain", "rms |h|"), Control("Scale", 0.01, 10.0)]
Radius = Annotated[Metres, Key("radius of the cell", unit="m"), Control("Cell radius", 60.0, 3000.0, start=300.0)]
LossExponent = Annotated[
    Positive,
    Key("received power falls as distance to the minus this", "α"),
    Control("Path loss exponent", 1.5, 5.0, "linear"),
]
Shadowing = Annotated[
    Spread,
    Key("standard deviation of the shadowing", unit="dB"),
    Control("Shadowing", 0.0, 12.0, "linear", start=4.0),
]


class Fixed(ChannelModel):
    """Gains written down: `gains[k]` is device k's."""

    refuses: ClassVar = dict.fromkeys(("coherence", "correlation"), "its gains are written down")
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


class Fading(ChannelModel):
    """Amplitudes of a direct path and of scattered ones; from block to block, h' = ρ·h + √(1−ρ²)·w of the scattered.

    A subclass declares `start`, and `paths` where there is a direct one.
    """

    refuses: ClassVar = {}

    @property
    def paths(self) -> tuple[float, float]:
        """Amplitude of the direct path, and standard deviation of the scattered ones per real dimension."""
        return 0.0, float(np.sqrt(0.5))

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> Floats:
        """Return independent gains."""
        return self.start(num_devices, rng).gain

    def renewed(self, state: State, shape: tuple[int, ...], rng: np.random.Generator, correlation: float) -> State:
        """Return the state with the scattered paths of the next block."""
        direct, spread = self.paths
        *draws, num_devices = shape
        scattered = spread * rng.standard_normal((*draws, 2 * num_devices)).view(np.complex128)
        if correlation:
            # Where only a modulus was drawn there is no direct path, and any phase gives the same law of gains.
            before = state.small if state.scattered is None else state.scattered
            scattered = correlation * before + np.sqrt(1 - correlation**2) * scattered
        return replace(state, small=np.abs(direct + scattered), scattered=scattered)


def rician_paths(k_factor: float) -> tuple[float, float]:
    """Return amplitude of the direct path, and standard deviation of the scattered ones per real dimension, at rms 1.

    >>> rician_paths(0.0) == (0.0, float(np.sqrt(0.5)))
    True
    """
    return float(np.sqrt(k_factor / (k_factor + 1))), float(np.sqrt(0.5 / (k_factor + 1)))


class Rayleigh(Fading):
    """Rayleigh fading, |h| of h ~ CN(0, scale²): no line of sight."""

    model: Literal["rayleigh"] = "rayleigh"
    scale: _Scale = 1.0

    def start(self, num_devices: int, rng: np.random.Generator) -> State:
        """Return independent Rayleigh gains."""
        return State(steady=self.scale, small=rng.rayleigh(np.sqrt(0.5), num_devices))


class Rician(Fading):
    """Rician fading: a direct path and scattered ones."""

    model: Literal["rician"] = "rician"
    scale: _Scale = 1.0
    k_factor: Annotated[
        NonNegative,
        Key("power of the direct path over that of the scattered ones", "K"),
        Control("Line of sight over scatter", 0.0, 20.0, "linear", start=3.0),
    ] = 1.0

    @property
    def paths(self) -> tuple[float, float]:
        """Amplitude of the direct path, and standard deviation of the scattered ones per real dimension."""
        return rician_paths(self.k_factor)

    def start(self, num_devices: int, rng: np.random.Generator) -> State:
        """Return independent Rician gains."""
        direct, spread = self.paths
        real, imaginary = rng.normal(0.0, spread, (2, num_devices))
        return State(
            steady=self.scale, small=np.hypot(direct + real, imaginary), scattered=np.asarray(real + 1j * imaginary)
        )


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


class Cell(Fading):
    """Devices uniform in a disc around the receiver: path loss, log-normal shadowing and Rayleigh fading.

    The gain is scale · (r / reference_distance)^(−α/2) · 10^(X/20) · Rayleigh(rms 1), X ~ N(0, shadowing_db²).
    """

    model: Literal["cell"] = "cell"
    radius: Radius
    path_loss_exponent: LossExponent = 3.0
    shadowing_db: Shadowing = 0.0
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

    @property
    def own_shadowing_db(self) -> float:
        """Standard deviation of the shadowing, in dB."""
        return self.shadowing_db

    def start(self, num_devices: int, rng: np.random.Generator) -> State:
        """Return gains of devices dropped uniformly over the disc's area, outside the reference distance."""
        distance, shadow = dropped(num_devices, self.reference_distance, self.radius, self.shadowing_db, rng)
        path = (distance / self.reference_distance) ** (-0.5 * self.path_loss_exponent)
        return State(steady=self.scale * path, own=shadow, small=rng.rayleigh(np.sqrt(0.5), num_devices))


def dropped(
    num_devices: int, nearest: float, farthest: float, shadowing_db: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return distances of devices dropped uniformly over the area between two radii, and each one's shadowing."""
    distance = farthest * np.sqrt(rng.uniform((nearest / farthest) ** 2, 1.0, num_devices))
    return distance, 10.0 ** (rng.normal(0.0, shadowing_db, num_devices) / 20.0)


def _plain_path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


class FromFile(ChannelModel):
    """Gains measured elsewhere, real or complex (then their moduli count).

    A .npy vector, a .csv with one number a line, or a column named in its header, has one gain per device. A .npy table
    (rounds, devices), or a .csv with a line per round, several cells in each and no header, is a trace: gains change.
    With link.antennas = A > 1 a .npy holds vectors, (devices, A) or (rounds, devices, A); one gain per device is then
    the modulus at every antenna.
    """

    refuses: ClassVar = dict.fromkeys(
        ("coherence", "correlation", "common_shadowing_db", "shadowing_coherence"),
        "the file itself says how gains change",
    )
    model: Literal["file"] = "file"
    path: Annotated[
        str, BeforeValidator(_plain_path), Key("a .csv or .npy file, from the scenario's folder", file=True)
    ]
    column: Annotated[str, Key("header of the column to read from a .csv with several")] = "gain"

    @property
    def num_gains(self) -> int:
        """How many gains the file has in each round."""
        return _count(self.read())

    @property
    def changes(self) -> bool:
        """Whether the file is a trace."""
        found = self.read()
        return found.ndim == (3 if np.iscomplexobj(found) else 2)

    def trace(self, *, rounds: int, num_devices: int, seed: int) -> Floats | Complexes:
        """Return all rounds of a trace, however many are asked for; of another file one gain or vector per device."""
        found = _checked_count(self.read(), num_devices, self.path)
        if np.iscomplexobj(found):
            return self.raised_vectors(found)
        if self._antennas > 1:  # one gain per device, and as a model makes vectors of gains
            return super().trace(rounds=rounds, num_devices=num_devices, seed=seed)
        return self.raised(found)

    def law(self, *, rounds: int, num_devices: int, seed: int) -> Callable[[Any], Floats | Complexes] | None:
        """Return the law of a trace as it is known so far: its rounds up to the present one."""
        if not self.changes:
            return None
        return Resampled(gains=self.trace(rounds=rounds, num_devices=num_devices, seed=seed), seed=seed)

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the gains in the file's order, of vectors ‖h_k‖/√A; of a trace those of the first round."""
        gains = _checked_count(self.read(), num_devices, self.path)
        gains = arrays.rms(gains) if np.iscomplexobj(gains) else gains
        return gains[0] if gains.ndim == 2 else gains

    def read(self) -> Floats | Complexes:
        """Return all gains of the file, (N,) or (rounds, N), or the vectors of several antennas, one axis more.

        Raises:
            DataError: the file is missing, of another kind or for another number of antennas, or has a bad cell (named
                by its line).
        """
        found = files.read_gains(Path(self.path), self.column, antennas=self._antennas)
        if np.iscomplexobj(found) and self.angle_spread is not None:
            raise DataError(
                f"Expected no channel.angle_spread with {self.path}: the file itself has every antenna's gain."
            )
        return found


def _count(gains: NDArray[Any]) -> int:
    """N of gains (..., N), which are real, or of vectors (..., N, A), which are complex."""
    return int(gains.shape[-2 if np.iscomplexobj(gains) else -1])


def _checked_count(gains: NDArray[Any], num_devices: int, source: str) -> NDArray[Any]:
    if (count := _count(gains)) != num_devices:
        raise ValueError(f"Expected {num_devices} gains (fleet.num_devices), got {count} from {source}.")
    return gains
