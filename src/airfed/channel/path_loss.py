"""Path loss in dB, by named laws: what is lost between a device and the receiver, in the mean over fading.

Distances are in metres along the ground, frequencies in hertz, heights in metres above the ground. Every law is a pure
function; outside the range that its docstring gives it is an extrapolation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Range = tuple[float, float]

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

    Args:
        distance, frequency: d, f.
        exponent: n.
        close_in: d₀ [m].
    """
    near = free_space(np.array(close_in), frequency=frequency)
    return np.asarray(near + 10.0 * exponent * np.log10(distance / close_in))


def cost231_hata(distance: Floats, *, frequency: float, base_height: float, device_height: float) -> Floats:
    """Return the loss of COST-231-Hata in a medium-sized city or suburb; the centre of a metropolis has 3 dB more.

    With f in MHz and d in km: L = 46.3 + 33.9·lg f − 13.82·lg h_b − a + (44.9 − 6.55·lg h_b)·lg d,
    a = (1.1·lg f − 0.7)·h_m − (1.56·lg f − 0.8).

    Range: f = 1.5-2 GHz, d = 1-20 km, h_b = 30-200 m, h_m = 1-10 m. Source: COST Action 231, Final Report, EUR 18957
    (1999), sec. 4.4.1.

    Args:
        distance, frequency: d, f.
        base_height: h_b.
        device_height: h_m.
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

    Args:
        distance, frequency: d, f.
        base_height: h_b.
        device_height: h_m.
    """
    return _dual_slope(distance, frequency, base_height, device_height, start=28.0, near=22.0)


def uma_nlos(distance: Floats, *, frequency: float, base_height: float, device_height: float) -> Floats:
    """Return the loss of 3GPP's urban macro cell (UMa) without a line of sight.

    The larger of `uma_los` and 13.54 + 39.08·lg D + 20·lg f − 0.6(h_m − 1.5), f in GHz. Range, source and arguments as
    there; its shadowing is 6 dB.
    """
    space = _slant(distance, base_height, device_height)
    blocked = 13.54 + 39.08 * np.log10(space) + 20.0 * np.log10(frequency / 1e9) - 0.6 * (device_height - 1.5)
    seen = uma_los(distance, frequency=frequency, base_height=base_height, device_height=device_height)
    return np.asarray(np.maximum(seen, blocked))


def umi_los(distance: Floats, *, frequency: float, base_height: float, device_height: float) -> Floats:
    """Return the loss of 3GPP's urban micro cell, street canyon (UMi), with a line of sight.

    As `uma_los` with L = 32.4 + 21·lg D + 20·lg f up to the break point and
    L = 32.4 + 40·lg D + 20·lg f − 9.5·lg(d_B² + (h_b − h_m)²) beyond it.

    Range: f = 0.5-100 GHz, d = 10 m-5 km, h_b = 10 m, h_m = 1.5-22.5 m. Its shadowing is 4 dB. Source: 3GPP TR 38.901,
    table 7.4.1-1.
    """
    return _dual_slope(distance, frequency, base_height, device_height, start=32.4, near=21.0)


def umi_nlos(distance: Floats, *, frequency: float, base_height: float, device_height: float) -> Floats:
    """Return the loss of 3GPP's urban micro cell, street canyon (UMi), without a line of sight.

    The larger of `umi_los` and 22.4 + 35.3·lg D + 21.3·lg f − 0.3(h_m − 1.5), f in GHz. Range, source and arguments as
    there; its shadowing is 7.82 dB.
    """
    space = _slant(distance, base_height, device_height)
    blocked = 22.4 + 35.3 * np.log10(space) + 21.3 * np.log10(frequency / 1e9) - 0.3 * (device_height - 1.5)
    seen = umi_los(distance, frequency=frequency, base_height=base_height, device_height=device_height)
    return np.asarray(np.maximum(seen, blocked))


def break_point(*, frequency: float, base_height: float, device_height: float) -> float:
    """Return d_B = 4(h_b − 1)(h_m − 1)f/c [m], from where TR 38.901 lets power fall as distance to the minus four.

    >>> break_point(frequency=3e9, base_height=25.0, device_height=1.5)
    480.0
    """
    return 4.0 * (base_height - 1.0) * (device_height - 1.0) * frequency / _ROUND_LIGHT


def _slant(distance: Floats, base_height: float, device_height: float) -> Floats:
    return np.hypot(distance, base_height - device_height)


def _dual_slope(
    distance: Floats, frequency: float, base_height: float, device_height: float, *, start: float, near: float
) -> Floats:
    """Both slopes of TR 38.901 with a line of sight: the factor (40 − near)/2 makes them meet at the break point."""
    space = np.log10(_slant(distance, base_height, device_height))
    edge = break_point(frequency=frequency, base_height=base_height, device_height=device_height)
    kink = 0.5 * (40.0 - near) * np.log10(edge**2 + (base_height - device_height) ** 2)
    carrier = 20.0 * np.log10(frequency / 1e9)
    return np.asarray(start + carrier + np.where(distance <= edge, near * space, 40.0 * space - kink))


@dataclass(frozen=True, kw_only=True)
class Law:
    """A law by name: its function, and the range that it was fitted for.

    Args:
        loss: the function.
        heights: whether it takes those of the antennas.
        base_height: of the receiver, unless told otherwise [m].
        lowest: heights must be above this [m].
        ranges: of frequency [Hz], distance [m] and heights [m], each with both ends.
    """

    loss: Callable[..., Floats]
    heights: bool = True
    base_height: float = 0.0
    lowest: float = 0.0
    ranges: dict[str, Range] = field(default_factory=dict)


def _fitted(frequency: Range, distance: Range, base: Range, device: Range) -> dict[str, Range]:
    return {"frequency": frequency, "distance": distance, "base_height": base, "device_height": device}


_3GPP: Final[tuple[Range, Range]] = ((0.5e9, 100e9), (10.0, 5e3))
_UMA: Final = _fitted(*_3GPP, (25.0, 25.0), (1.5, 13.0))
_UMI: Final = _fitted(*_3GPP, (10.0, 10.0), (1.5, 22.5))
LAWS: Final[dict[str, Law]] = {
    "free_space": Law(loss=free_space, heights=False),
    "log_distance": Law(loss=log_distance, heights=False),
    "cost231_hata": Law(
        loss=cost231_hata,
        base_height=30.0,
        ranges=_fitted((1.5e9, 2e9), (1e3, 20e3), (30.0, 200.0), (1.0, 10.0)),
    ),
    "uma_los": Law(loss=uma_los, base_height=25.0, lowest=1.0, ranges=_UMA),
    "uma_nlos": Law(loss=uma_nlos, base_height=25.0, lowest=1.0, ranges=_UMA),
    "umi_los": Law(loss=umi_los, base_height=10.0, lowest=1.0, ranges=_UMI),
    "umi_nlos": Law(loss=umi_nlos, base_height=10.0, lowest=1.0, ranges=_UMI),
}
"""Every law by its name in scenarios."""
