"""Devices at distances from a receiver: path loss in dB by named laws, the cells that have it, and thermal noise.

Distances d are in metres along the ground, frequencies f in hertz, heights h_b (receiver) and h_m (device) in metres
above the ground. Every law is a pure function; outside the range that its docstring gives it is an extrapolation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, Self

import numpy as np
from pydantic import model_validator

from airfed.antennas import Floats
from airfed.channel.model import Fading, State
from airfed.keys import Control, Decibels, Hertz, Key, Metres, NonNegative, Positive, Spread

Range = tuple[float, float]

BOLTZMANN: Final = 1.380649e-23
"""k [J/K], exact in the SI."""
NOISE_TEMPERATURE: Final = 290.0
"""T₀ [K], to which noise figures refer: kT₀ is −173.975 dBm/Hz."""

LIGHT: Final = 299_792_458.0
"""Speed of light [m/s]."""
_ROUND_LIGHT: Final = 3.0e8  # as TR 38.901 has it in its break points


def free_space(distance: Floats, *, frequency: float) -> Floats:
    """Return L = 20·lg(4πdf/c), the loss between two isotropic antennas in free space.

    Range: d well above the wavelength c/f. Source: H. T. Friis, Proc. IRE 34 (1946), p. 254; ITU-R P.525.

    >>> float(free_space(np.array(1000.0), frequency=2.4e9).round(2))
    100.05
    """
    return np.asarray(20.0 * np.log10(4.0 * np.pi * distance * frequency / LIGHT))


def log_distance(distance: Floats, *, frequency: float, exponent: float, close_in: float) -> Floats:
    """Return L = 20·lg(4πd₀f/c) + 10·n·lg(d/d₀): free space up to d₀, then power that falls as d^(−n).

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


def uma_los(distance: Floats, *, frequency: float, base_height: float, device_height: float) -> Floats:
    """Return the loss of 3GPP's urban macro cell (UMa) with a line of sight.

    With f in GHz and D = √(d² + (h_b − h_m)²): L = 28 + 22·lg D + 20·lg f up to the break point
    d_B = 4(h_b − 1)(h_m − 1)f/c (there f in Hz), and beyond it
    L = 28 + 40·lg D + 20·lg f − 9·lg(d_B² + (h_b − h_m)²).

    Range: f = 0.5-100 GHz, d = 10 m-5 km, h_b = 25 m, h_m = 1.5-13 m (of higher devices TR 38.901 draws the effective
    height of the surroundings, here 1 m). Its shadowing is 4 dB. Source: 3GPP TR 38.901, table 7.4.1-1.
    """
    return _dual_slope(distance, frequency, base_height, device_height, start=28.0, near=22.0)


def uma_nlos(distance: Floats, *, frequency: float, base_height: float, device_height: float) -> Floats:
    """Return the loss of 3GPP's urban macro cell (UMa) without a line of sight.

    The larger of `uma_los` and 13.54 + 39.08·lg D + 20·lg f − 0.6(h_m − 1.5), f in GHz. Range, source and arguments as
    there; its shadowing is 6 dB.
    """
    space = np.hypot(distance, base_height - device_height)
    blocked = 13.54 + 39.08 * np.log10(space) + 20.0 * np.log10(frequency / 1e9) - 0.6 * (device_height - 1.5)
    seen = uma_los(distance, frequency=frequency, base_height=base_height, device_height=device_height)
    return np.asarray(np.maximum(seen, blocked))


def umi_los(distance: Floats, *, frequency: float, base_height: float, device_height: float) -> Floats:
    """Return the loss of 3GPP's urban micro cell, street canyon (UMi), with a line of sight.

    As `uma_los` with L = 32.4 + 21·lg D + 20·lg f up to the break point and 32.4 + 40·lg D + 20·lg f −
    9.5·lg(d_B² + (h_b − h_m)²) beyond it. Range: h_b = 10 m, h_m = 1.5-22.5 m, else as there, as is the source. Its
    shadowing is 4 dB.
    """
    return _dual_slope(distance, frequency, base_height, device_height, start=32.4, near=21.0)


def umi_nlos(distance: Floats, *, frequency: float, base_height: float, device_height: float) -> Floats:
    """Return the loss of 3GPP's urban micro cell, street canyon (UMi), without a line of sight.

    The larger of `umi_los` and 22.4 + 35.3·lg D + 21.3·lg f − 0.3(h_m − 1.5), f in GHz. Range, source and arguments as
    there; its shadowing is 7.82 dB.
    """
    space = np.hypot(distance, base_height - device_height)
    blocked = 22.4 + 35.3 * np.log10(space) + 21.3 * np.log10(frequency / 1e9) - 0.3 * (device_height - 1.5)
    seen = umi_los(distance, frequency=frequency, base_height=base_height, device_height=device_height)
    return np.asarray(np.maximum(seen, blocked))


def break_point(*, frequency: float, base_height: float, device_height: float) -> float:
    """Return d_B = 4(h_b − 1)(h_m − 1)f/c [m], from where TR 38.901 lets power fall as distance to the minus four."""
    return 4.0 * (base_height - 1.0) * (device_height - 1.0) * frequency / _ROUND_LIGHT


def _dual_slope(
    distance: Floats, frequency: float, base_height: float, device_height: float, *, start: float, near: float
) -> Floats:
    """Both slopes of TR 38.901 with a line of sight: the factor (40 − near)/2 makes them meet at the break point."""
    space = np.log10(np.hypot(distance, base_height - device_height))
    edge = break_point(frequency=frequency, base_height=base_height, device_height=device_height)
    kink = 0.5 * (40.0 - near) * np.log10(edge**2 + (base_height - device_height) ** 2)
    carrier = 20.0 * np.log10(frequency / 1e9)
    return np.asarray(start + carrier + np.where(distance <= edge, near * space, 40.0 * space - kink))


@dataclass(frozen=True, kw_only=True)
class Law:
    """A law by name: its function, and the ranges of keys that it was fitted for."""

    loss: Callable[..., Floats]
    base_height: float | None = None  # of the receiver by default [m]; None: the law depends on no heights
    lowest: float = 0.0  # heights must be above this [m]
    ranges: dict[str, Range] = field(default_factory=dict)


def _fitted(frequency: Range, distance: Range, base: Range, device: Range) -> dict[str, Range]:
    keys = ("frequency", "inner_radius", "radius", "base_height", "device_height")
    return dict(zip(keys, (frequency, distance, distance, base, device), strict=True))


_UMA: Final = _fitted((0.5e9, 100e9), (10.0, 5e3), (25.0, 25.0), (1.5, 13.0))
_UMI: Final = _fitted((0.5e9, 100e9), (10.0, 5e3), (10.0, 10.0), (1.5, 22.5))
LAWS: Final[dict[str, Law]] = {
    "free_space": Law(loss=free_space),
    "log_distance": Law(loss=log_distance),
    "cost231_hata": Law(
        loss=cost231_hata, base_height=30.0, ranges=_fitted((1.5e9, 2e9), (1e3, 20e3), (30.0, 200.0), (1.0, 10.0))
    ),
    "uma_los": Law(loss=uma_los, base_height=25.0, lowest=1.0, ranges=_UMA),
    "uma_nlos": Law(loss=uma_nlos, base_height=25.0, lowest=1.0, ranges=_UMA),
    "umi_los": Law(loss=umi_los, base_height=10.0, lowest=1.0, ranges=_UMI),
    "umi_nlos": Law(loss=umi_nlos, base_height=10.0, lowest=1.0, ranges=_UMI),
}
"""Every law by its name in scenarios."""

_Radius = Annotated[Metres, Key("radius of the cell", unit="m"), Control("Cell radius", 60.0, 3000.0, start=300.0)]
_LossExponent = Annotated[
    Positive,
    Key("received power falls as distance to the minus this", "α"),
    Control("Path loss exponent", 1.5, 5.0, "linear"),
]
_Shadowing = Annotated[
    Spread, Key("standard deviation of the shadowing", unit="dB"), Control("Shadowing", 0.0, 12.0, "linear", start=4.0)
]


class Cell(Fading):
    """Devices uniform in a disc around the receiver: path loss, log-normal shadowing and Rayleigh fading.

    The gain is scale · (r / reference_distance)^(−α/2) · 10^(X/20) · Rayleigh(rms 1), X ~ N(0, shadowing_db²).
    """

    model: Literal["cell"] = "cell"
    radius: _Radius
    path_loss_exponent: _LossExponent = 3.0
    shadowing_db: _Shadowing = 0.0
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

    def start(self, num_devices: int, rng: np.random.Generator) -> State:
        """Return gains of devices dropped uniformly over the disc's area, outside the reference distance."""
        distance, shadow = _dropped(num_devices, self.reference_distance, self.radius, self.shadowing_db, rng)
        path = (distance / self.reference_distance) ** (-0.5 * self.path_loss_exponent)
        return State(steady=self.scale * path, own=shadow, small=rng.rayleigh(np.sqrt(0.5), num_devices))


def _dropped(
    num_devices: int, nearest: float, farthest: float, shadowing_db: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return distances of devices dropped uniformly over the area between two radii, and each one's shadowing."""
    distance = farthest * np.sqrt(rng.uniform((nearest / farthest) ** 2, 1.0, num_devices))
    return distance, 10.0 ** (rng.normal(0.0, shadowing_db, num_devices) / 20.0)


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
    radius: _Radius
    inner_radius: Annotated[
        Metres,
        Key("nobody is closer to the receiver, along the ground", unit="m"),
        Control("Inner radius", 1.0, 1000.0, start=10.0),
    ] = 10.0
    path_loss_exponent: _LossExponent = 3.0
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
    shadowing_db: _Shadowing = 0.0
    k_factor: Annotated[
        NonNegative,
        Key("power of the direct path over that of the scattered ones", "K"),
        Control("Line of sight over scatter", 0.0, 20.0, "linear", start=0.0),
    ] = 0.0
    extrapolate: Annotated[
        bool,
        Key(
            "compute a law outside the range that it was fitted for, too", choices={True: "computed", False: "refused"}
        ),
        Control("Outside a law's range"),
    ] = False

    def decibels(self, distance: Floats) -> Floats:
        """Return the path loss at a distance along the ground, in dB, less the gain of the antennas."""
        law = LAWS[self.loss]
        own: dict[str, float] = {}
        if law.base_height is not None:
            own = {"base_height": self.base_height or law.base_height, "device_height": self.device_height}
        elif self.loss == "log_distance":
            own = {"exponent": self.path_loss_exponent, "close_in": self.close_in_distance}
        return law.loss(distance, frequency=self.frequency, **own) - self.antenna_gain

    def start(self, num_devices: int, rng: np.random.Generator) -> State:
        """Return gains of devices dropped uniformly over the area between the radii."""
        distance, shadow = _dropped(num_devices, self.inner_radius, self.radius, self.shadowing_db, rng)
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
        for key, (low, high) in () if self.extrapolate else law.ranges.items():
            if (value := getattr(self, key)) is not None and not low <= value <= high:
                raise ValueError(
                    f"Expected {low:g} <= channel.{key}={value:g} <= {high:g} with channel.loss = {self.loss!r}, "
                    "the range that it was fitted for (extrapolate = true computes it all the same)."
                )
        if law.base_height is None and self.base_height is not None:
            raise ValueError(
                f"Expected no channel.base_height with channel.loss = {self.loss!r}: it depends on no heights."
            )
        if law.base_height is not None and min(self.base_height or law.base_height, self.device_height) <= law.lowest:
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


def thermal_std(*, bandwidth: float, density: float, noise_figure: float = 0.0) -> float:
    """Return σ [√W], the standard deviation per real dimension of thermal noise.

    A receiver of bandwidth B [Hz] receives complex noise of power s² = N₀·B·F, F = 10^(noise_figure/10), one half of it
    in each real dimension: σ = √(N₀·B·F/2). `density` is N₀ = kT [W/Hz], `noise_figure` is in dB.

    >>> power = 2 * thermal_std(bandwidth=20e6, density=BOLTZMANN * NOISE_TEMPERATURE, noise_figure=9.0) ** 2
    >>> round(10 * math.log10(power / 1e-3), 3)  # dBm: −173.975 + 73.010 + 9
    -91.965
    """
    return math.sqrt(0.5 * density) * math.sqrt(bandwidth) * math.pow(10.0, noise_figure / 20.0)
