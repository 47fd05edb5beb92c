"""Devices around a receiver at distances in metres, with a path loss that a named law gives."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

import numpy as np
from pydantic import model_validator

from airfed.channel.changing import Floats, State
from airfed.channel.models import Fading, LossExponent, Radius, Shadowing, dropped, rician_paths
from airfed.channel.path_loss import LAWS, Law
from airfed.keys.declare import Control, Decibels, Hertz, Key, Metres, NonNegative

_RANGES: Final = {"frequency": ("frequency",), "distance": ("inner_radius", "radius")}  # others are keys themselves
_LARGEST_LOSS: Final = 1000.0  # beyond it a gain is no moderate number


class PathLoss(Fading):
    """Devices uniform in a disc between two radii: a named law of path loss, log-normal shadowing, Rician fading.

    The gain is 10^((antenna_gain − L(r) + X)/20) · Rician(rms 1), L in dB of the law, X ~ N(0, shadowing_db²): what
    arrives of a watt is |h|² watts. The laws, with their formulas, ranges and sources, are in
    `airfed.channel.path_loss`; a key outside the range that a law was fitted for is refused unless `extrapolate`.
    """

    model: Literal["path_loss"] = "path_loss"
    loss: Annotated[
        Literal["free_space", "log_distance", "cost231_hata", "uma_los", "uma_nlos", "umi_los", "umi_nlos"],
        Key(
            "law of the path loss",
            choices={
                "free_space": "free space",
                "log_distance": "path_loss_exponent, close_in_distance",
                "cost231_hata": "COST-231-Hata",
                "uma_los": "3GPP urban macro, line of sight",
                "uma_nlos": "3GPP urban macro, none",
                "umi_los": "3GPP urban micro, line of sight",
                "umi_nlos": "3GPP urban micro, none",
            },
        ),
        Control("Law of the path loss"),
    ] = "free_space"
    frequency: Annotated[
        Hertz,
        Key("carrier frequency", "f", "Hz", note='also "2.4 GHz"'),
        Control("Carrier frequency", 0.5e9, 100e9, start=2.4e9),
    ]
    radius: Radius
    inner_radius: Annotated[
        Metres,
        Key("nobody is closer to the receiver, along the ground", unit="m"),
        Control("Inner radius", 1.0, 1000.0, start=10.0),
    ] = 10.0
    path_loss_exponent: LossExponent = 3.0
    close_in_distance: Annotated[
        Metres,
        Key("of the log-distance law: up to here it is free space", "d₀", "m", note="at most inner_radius"),
        Control("Close-in distance", 0.01, 100.0),
    ] = 1.0
    base_height: Annotated[
        Metres | None,
        Key("height of the receiver's antenna", "h_b", "m", note="30 (COST-231-Hata), 25 (UMa), 10 (UMi) unless told"),
    ] = None
    device_height: Annotated[
        Metres, Key("height of the devices' antennas", "h_m", "m"), Control("Height of the devices", 1.0, 22.5)
    ] = 1.5
    antenna_gain: Annotated[
        Decibels,
        Key("gain of both antennas together", unit="dB", note='also "5 dB"; 0 for isotropic ones'),
        Control("Antenna gain", 0.0, 30.0, "linear"),
    ] = 0.0
    shadowing_db: Shadowing = 0.0
    k_factor: Annotated[
        NonNegative,
        Key("power of the direct path over that of the scattered ones", "K"),
        Control("Line of sight over scatter", 0.0, 20.0, "linear", start=0.0),
    ] = 0.0
    extrapolate: Annotated[
        bool,
        Key(
            "compute a law outside the range that it was fitted for, too",
            choices={True: "computed", False: "refused"},
        ),
        Control("Outside a law's range"),
    ] = False

    @property
    def paths(self) -> tuple[float, float]:
        """Amplitude of the direct path, and standard deviation of the scattered ones per real dimension."""
        return rician_paths(self.k_factor)

    @property
    def own_shadowing_db(self) -> float:
        """Standard deviation of the shadowing, in dB."""
        return self.shadowing_db

    def decibels(self, distance: Floats) -> Floats:
        """Return the path loss at a distance along the ground, in dB, less the gain of the antennas."""
        law = LAWS[self.loss]
        own: dict[str, float] = {}
        if law.heights:
            own = {"base_height": self.base_height or law.base_height, "device_height": self.device_height}
        elif self.loss == "log_distance":
            own = {"exponent": self.path_loss_exponent, "close_in": self.close_in_distance}
        return law.loss(distance, frequency=self.frequency, **own) - self.antenna_gain

    def start(self, num_devices: int, rng: np.random.Generator) -> State:
        """Return gains of devices dropped uniformly over the area between the radii."""
        distance, shadow = dropped(num_devices, self.inner_radius, self.radius, self.shadowing_db, rng)
        placed = State(steady=10.0 ** (-self.decibels(distance) / 20.0), own=shadow, small=np.ones(num_devices))
        return self.renewed(placed, (num_devices,), rng, 0.0)

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        if self.inner_radius > self.radius:
            raise ValueError(
                f"Expected channel.inner_radius={self.inner_radius!r} <= channel.radius={self.radius!r} (in metres)."
            )
        if self.loss == "log_distance" and self.close_in_distance > self.inner_radius:
            raise ValueError(
                f"Expected channel.close_in_distance={self.close_in_distance!r} <= "
                f"channel.inner_radius={self.inner_radius!r} (in metres)."
            )
        law = LAWS[self.loss]
        if not self.extrapolate:
            self._check_ranges(law)
        if self.base_height is not None and not law.heights:
            raise ValueError(
                f"Expected no channel.base_height with channel.loss = {self.loss!r}: it depends on no heights."
            )
        lowest = min(self.base_height or law.base_height, self.device_height)
        if law.heights and not lowest > law.lowest:
            raise ValueError(
                f"Expected heights > {law.lowest:g} m with channel.loss = {self.loss!r}: its formula needs it."
            )
        with np.errstate(all="ignore"):  # what is endless is named here
            nearest, farthest = self.decibels(np.array([self.inner_radius, self.radius]))
        if not 0 <= nearest <= farthest <= _LARGEST_LOSS:
            raise ValueError(
                f"Expected a path loss of 0 to {_LARGEST_LOSS:g} dB between channel.inner_radius={self.inner_radius:g} "
                f"and channel.radius={self.radius:g} m, got {nearest:.4g} to {farthest:.4g} dB."
            )
        return self

    def _check_ranges(self, law: Law) -> None:
        for quantity, (low, high) in law.ranges.items():
            for key in _RANGES.get(quantity, (quantity,)):
                value = getattr(self, key)
                if value is not None and not low <= value <= high:
                    raise ValueError(
                        f"Expected {low:g} <= channel.{key}={value:g} <= {high:g} with channel.loss = {self.loss!r}, "
                        "the range that it was fitted for (extrapolate = true computes it all the same)."
                    )
