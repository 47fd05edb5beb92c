"""Path loss models in dB, channel models of a cell, and thermal noise.

Distances d are in metres along the ground, frequencies f in hertz, heights h_b (receiver) and h_m (device) in metres
above the ground. Every path loss model is a pure function; outside the range in its docstring it extrapolates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import model_validator

from airfed.antennas import Floats
from airfed.channel.model import Fading, FadingState
from airfed.keys import Control, Decibels, Hertz, Key, Metres, NonNegative, Positive, Spread

Range = tuple[float, float]

BOLTZMANN: Final = 1.380649e-23
"""k [J/K], exact in the SI."""
NOISE_TEMPERATURE: Final = 290.0
"""T₀ [K], the reference of noise figures: kT₀ is −173.975 dBm/Hz."""

LIGHT: Final = 299_792_458.0
"""Speed of light [m/s]."""
_ROUND_LIGHT: Final = 3.0e8  # in the break points of TR 38.901


def free_space(distance: Floats, *, frequency: float) -> Floats:
    """Return L = 20·lg(4πdf/c), the loss between two isotropic antennas in free space.

    Range: d well above the wavelength c/f. Source: H. T. Friis, Proc. IRE 34 (1946), p. 254; ITU-R P.525.

    >>> float(free_space(np.array(1000.0), frequency=2.4e9).round(2))
    100.05
    """
    return np.asarray(20.0 * np.log10(4.0 * np.pi * distance * frequency / LIGHT))


def log_distance(distance: Floats, *, frequency: float, exponent: float, close_in: float) -> Floats:
    """Return L = 20·lg(4πd₀f/c) + 10·n·lg(d/d₀): free space up to d₀, then power decays as d^(−n).

    With d₀ = c/(4πf) it is (4πdf/c)^n. Range: d ≥ d₀. Source: T. S. Rappaport, Wireless Communications, 2nd ed. (2002),
    sec. 4.9.1.
    """
    near = free_space(np.array(close_in), frequency=frequency)
    return np.asarray(near + 10.0 * exponent * np.log10(distance / close_in))


def cost231_hata(distance: Floats, *, frequency: float, base_height: float, device_height: float) -> Floats:
    """Return the loss of COST-231-Hata in a medium-sized city or suburb; the centre of a metropolis has 3 dB more.

    With f in MHz and d in km: L = 46.3 + 33.9·lg f − 13.82·lg h_b − a + (44.9 − 6.55·lg h_b)·lg d,
    a = (1.1·lg f − 0.7)·h_m − (1.56·lg f − 0.8).

    Range: f = 1.5-2 GHz, d = 1-20 km, h_b = 30-200 m, h_m = 1-10 m. Source: COST Action 231, Final Report, EUR 18957
    (1999), sec. 4.4.1.
    """
    megahertz, base = np.log10(frequency / 1e6), np.log10(base_height)
    device = (1.1 * megahertz - 0.7) * device_height - (1.56 * megahertz - 0.8)
    slope = 44.9 - 6.55 * base
    return np.asarray(46.3 + 33.9 * megahertz - 13.82 * base - device + slope * np.log10(distance / 1e3))


def break_point(*, frequency: float, base_height: float, device_height: float) -> float:
    """Return d_B = 4(h_b − 1)(h_m − 1)f/c [m], beyond which power decays as d^(−4) in TR 38.901."""
    return 4.0 * (base_height - 1.0) * (device_height - 1.0) * frequency / _ROUND_LIGHT


def urban(
    distance: Floats,
    *,
    frequency: float,
    base_height: float,
    device_height: float,
    seen: tuple[float, float],
    blocked: tuple[float, float, float, float] | None = None,
) -> Floats:
    """Return the loss of 3GPP's urban macro cell (UMa) or micro cell, street canyon (UMi).

    With f in GHz, D = √(d² + (h_b − h_m)²) and the coefficients (a, b) = `seen`, a line of sight has
    L = a + b·lg D + 20·lg f up to the `break_point` d_B (there f in Hz), and beyond it
    L = a + 40·lg D + 20·lg f − (40 − b)/2·lg(d_B² + (h_b − h_m)²). Without one, L is the larger of that and
    a + b·lg D + c·lg f − e(h_m − 1.5), with (a, b, c, e) = `blocked`.

    Range: f = 0.5-100 GHz, d = 10 m-5 km; UMa: h_b = 25 m, h_m = 1.5-13 m (for higher devices TR 38.901 draws the
    effective environment height, here 1 m); UMi: h_b = 10 m, h_m = 1.5-22.5 m. Shadowing: 4 dB with a line of sight,
    6 dB (UMa) and 7.82 dB (UMi) without. Source: 3GPP TR 38.901, table 7.4.1-1.
    """
    space, carrier = np.log10(np.hypot(distance, base_height - device_height)), np.log10(frequency / 1e9)
    edge = break_point(frequency=frequency, base_height=base_height, device_height=device_height)
    start, near = seen
    kink = 0.5 * (40.0 - near) * np.log10(edge**2 + (base_height - device_height) ** 2)
    loss = start + 20.0 * carrier + np.where(distance <= edge, near * space, 40.0 * space - kink)
    if blocked is not None:
        start, slope, of_carrier, of_height = blocked
        loss = np.maximum(loss, start + slope * space + of_carrier * carrier - of_height * (device_height - 1.5))
    return np.asarray(loss)


@dataclass(frozen=True, kw_only=True)
class PathLossModel:
    """A path loss model: its function, and the ranges of keys for which it was fitted."""

    loss: Callable[..., Floats]
    base_height: float | None = None  # default, of the receiver [m]; None: independent of heights
    lowest: float = 0.0  # heights must exceed this [m]
    ranges: dict[str, Range] = field(default_factory=dict)


def _fitted(frequency: Range, distance: Range, base: Range, device: Range) -> dict[str, Range]:
    keys = ("frequency", "inner_radius", "radius", "base_height", "device_height")
    return dict(zip(keys, (frequency, distance, distance, base, device), strict=True))


def _urban(base_height: float, highest_device: float, **coefficients: Any) -> PathLossModel:
    """Return a model of TR 38.901 with its coefficients."""
    ranges = _fitted((0.5e9, 100e9), (10.0, 5e3), (base_height, base_height), (1.5, highest_device))
    return PathLossModel(loss=partial(urban, **coefficients), base_height=base_height, lowest=1.0, ranges=ranges)


PATH_LOSS_MODELS: Final[dict[str, PathLossModel]] = {
    "free_space": PathLossModel(loss=free_space),
    "log_distance": PathLossModel(loss=log_distance),
    "cost231_hata": PathLossModel(
        loss=cost231_hata, base_height=30.0, ranges=_fitted((1.5e9, 2e9), (1e3, 20e3), (30.0, 200.0), (1.0, 10.0))
    ),
    "uma_los": _urban(25.0, 13.0, seen=(28.0, 22.0)),
    "uma_nlos": _urban(25.0, 13.0, seen=(28.0, 22.0), blocked=(13.54, 39.08, 20.0, 0.6)),
    "umi_los": _urban(10.0, 22.5, seen=(32.4, 21.0)),
    "umi_nlos": _urban(10.0, 22.5, seen=(32.4, 21.0), blocked=(22.4, 35.3, 21.3, 0.3)),
}
"""Path loss model by its name in scenarios."""

_Radius = Annotated[Metres, Key("radius of the cell", unit="m"), Control("Cell radius", 60.0, 3000.0, start=300.0)]
_LossExponent = Annotated[
    Positive,
    Key("path loss exponent: received power decays as distance^(-α)", "α"),
    Control("Path loss exponent", 1.5, 5.0, "linear"),
]
_Shadowing = Annotated[
    Spread,
    Key("standard deviation of log-normal shadowing per device", unit="dB"),
    Control("Shadowing", 0.0, 12.0, "linear", start=4.0),
]


class Cell(Fading):
    """Devices uniformly distributed in a disc around the receiver: path loss, log-normal shadowing, Rayleigh fading.

    The gain is scale · (r / reference_distance)^(−α/2) · 10^(X/20) · Rayleigh(rms 1), X ~ N(0, shadowing_db²).
    """

    model: Literal["cell"] = "cell"
    radius: _Radius
    path_loss_exponent: _LossExponent = 3.0
    shadowing_db: _Shadowing = 0.0
    reference_distance: Annotated[
        Metres,
        Key("distance at which the rms gain is scale; no device is closer", unit="m"),
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
            raise ValueError(
                f"channel.reference_distance must be at most channel.radius={self.radius!r} (in metres), "
                f"got {self.reference_distance!r}."
            )
        return self

    def initial_state(self, num_devices: int, rng: np.random.Generator) -> FadingState:
        """Return gains of devices dropped uniformly over the disc, outside the reference distance."""
        distance, shadowing = _drop_devices(num_devices, self.reference_distance, self.radius, self.shadowing_db, rng)
        path = (distance / self.reference_distance) ** (-0.5 * self.path_loss_exponent)
        small_scale = rng.rayleigh(np.sqrt(0.5), num_devices)
        return FadingState(path_gain=self.scale * path, shadowing=shadowing, small_scale=small_scale)


def _drop_devices(
    num_devices: int, nearest: float, farthest: float, shadowing_db: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return distances of devices dropped uniformly over the ring between two radii, and their shadowing."""
    distance = farthest * np.sqrt(rng.uniform((nearest / farthest) ** 2, 1.0, num_devices))
    return distance, 10.0 ** (rng.normal(0.0, shadowing_db, num_devices) / 20.0)


_LARGEST_LOSS: Final = 1000.0  # dB


class PathLoss(Fading):
    """Devices uniformly distributed in a ring: a path loss model, log-normal shadowing, Rician fading.

    The gain is 10^((antenna_gain − L(r) + X)/20) · Rician(rms 1), with the path loss L in dB and X ~ N(0,
    shadowing_db²): of each transmitted watt, |h|² watts are received. `airfed.channel.path_loss` documents formula,
    range and source of each path loss model.
    """

    model: Literal["path_loss"] = "path_loss"
    path_loss_model: Annotated[
        Literal["free_space", "log_distance", "cost231_hata", "uma_los", "uma_nlos", "umi_los", "umi_nlos"],
        Key(
            "path loss model",
            choices={
                "free_space": "free space",
                "log_distance": "path_loss_exponent, close_in_distance",
                "cost231_hata": "COST-231-Hata",
                "uma_los": "3GPP urban macro, LOS",
                "uma_nlos": "3GPP urban macro, NLOS",
                "umi_los": "3GPP urban micro, LOS",
                "umi_nlos": "3GPP urban micro, NLOS",
            },
        ),
        Control("Path loss model"),
    ] = "free_space"
    frequency: Annotated[
        Hertz,
        Key("carrier frequency", "f", "Hz", note='also "2.4 GHz"'),
        Control("Carrier frequency", 0.5e9, 100e9, start=2.4e9),
    ]
    radius: _Radius
    inner_radius: Annotated[
        Metres,
        Key("smallest distance of a device from the receiver, along the ground", unit="m"),
        Control("Inner radius", 1.0, 1000.0, start=10.0),
    ] = 10.0
    path_loss_exponent: _LossExponent = 3.0
    close_in_distance: Annotated[
        Metres,
        Key(
            "close-in distance of the log-distance model: free space up to here", "d₀", "m", note="at most inner_radius"
        ),
        Control("Close-in distance", 0.01, 100.0),
    ] = 1.0
    base_height: Annotated[
        Metres | None,
        Key("height of the receiver's antenna", "h_b", "m", note="default: 30 (COST-231-Hata), 25 (UMa), 10 (UMi)"),
    ] = None
    device_height: Annotated[
        Metres, Key("height of the devices' antennas", "h_m", "m"), Control("Height of the devices", 1.0, 22.5)
    ] = 1.5
    antenna_gain: Annotated[
        Decibels,
        Key("sum of the antenna gains of device and receiver", unit="dB", note='also "5 dB"; 0 for isotropic antennas'),
        Control("Antenna gain", 0.0, 30.0, "linear"),
    ] = 0.0
    shadowing_db: _Shadowing = 0.0
    k_factor: Annotated[
        NonNegative,
        Key("power ratio of the direct path to the scattered paths (Rician K-factor)", "K"),
        Control("Rician K-factor", 0.0, 20.0, "linear", start=0.0),
    ] = 0.0
    extrapolate: Annotated[
        bool,
        Key(
            "accept values outside the range for which the path loss model was fitted",
            choices={True: "accepted", False: "refused"},
        ),
        Control("Outside the fitted range"),
    ] = False

    def decibels(self, distance: Floats) -> Floats:
        """Return the path loss minus the antenna gain, in dB, at a distance along the ground."""
        curve = PATH_LOSS_MODELS[self.path_loss_model]
        own: dict[str, float] = {}
        if curve.base_height is not None:
            own = {"base_height": self.base_height or curve.base_height, "device_height": self.device_height}
        elif self.path_loss_model == "log_distance":
            own = {"exponent": self.path_loss_exponent, "close_in": self.close_in_distance}
        return curve.loss(distance, frequency=self.frequency, **own) - self.antenna_gain

    def initial_state(self, num_devices: int, rng: np.random.Generator) -> FadingState:
        """Return gains of devices dropped uniformly over the ring between the radii."""
        distance, shadowing = _drop_devices(num_devices, self.inner_radius, self.radius, self.shadowing_db, rng)
        path_gain = 10.0 ** (-self.decibels(distance) / 20.0)
        large_scale = FadingState(path_gain=path_gain, shadowing=shadowing, small_scale=np.ones(num_devices))
        return self.next_block(large_scale, (num_devices,), rng, 0.0)

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        if self.inner_radius > self.radius:
            raise ValueError(
                f"channel.inner_radius must be at most channel.radius={self.radius!r} (in metres), "
                f"got {self.inner_radius!r}."
            )
        if self.path_loss_model == "log_distance" and self.close_in_distance > self.inner_radius:
            raise ValueError(
                f"channel.close_in_distance must be at most channel.inner_radius={self.inner_radius!r} (in metres), "
                f"got {self.close_in_distance!r}."
            )
        curve, chosen = PATH_LOSS_MODELS[self.path_loss_model], f"channel.path_loss_model = {self.path_loss_model!r}"
        for key, (low, high) in () if self.extrapolate else curve.ranges.items():
            if (value := getattr(self, key)) is not None and not low <= value <= high:
                raise ValueError(
                    f"channel.{key} must be between {low:g} and {high:g} with {chosen}, the range for which it was "
                    f"fitted, got {value:g}. Set channel.extrapolate = true to use it outside this range."
                )
        if curve.base_height is None and self.base_height is not None:
            raise ValueError(f"channel.base_height must not be set with {chosen}, which does not depend on heights.")
        if (
            curve.base_height is not None
            and min(self.base_height or curve.base_height, self.device_height) <= curve.lowest
        ):
            raise ValueError(
                f"channel.base_height and channel.device_height must be greater than {curve.lowest:g} m with {chosen}."
            )
        with np.errstate(all="ignore"):  # the message names an infinite loss
            nearest, farthest = self.decibels(np.array([self.inner_radius, self.radius]))
        if not 0 <= nearest <= farthest <= _LARGEST_LOSS:
            raise ValueError(
                f"The path loss from channel.inner_radius={self.inner_radius:g} to channel.radius={self.radius:g} m "
                f"must be between 0 and {_LARGEST_LOSS:g} dB, got {nearest:.4g} to {farthest:.4g} dB."
            )
        return self


def thermal_std(*, bandwidth: float, density: float, noise_figure: float = 0.0) -> float:
    """Return σ [√W], the standard deviation per real dimension of thermal noise.

    A receiver of bandwidth B [Hz] receives complex noise of power s² = N₀·B·F, F = 10^(noise_figure/10), one half of it
    in each real dimension: σ = √(N₀·B·F/2). `density` is N₀ = kT [W/Hz], `noise_figure` is in dB.

    >>> power = 2 * thermal_std(bandwidth=20e6, density=BOLTZMANN * NOISE_TEMPERATURE, noise_figure=9.0) ** 2
    >>> round(10 * math.log10(power / 1e-3), 3)  # dBm: −173.975 + 73.010 + 9
    -91.965
    """
    return math.sqrt(0.5 * density) * math.sqrt(bandwidth) * math.pow(10.0, noise_figure / 20.0)
