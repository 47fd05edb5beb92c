"""Numbers with units: a bare number is SI, a text must name its unit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

_Converter = Callable[[float], float]

WATTS: Final[dict[str, _Converter]] = {
    "W": lambda x: x,
    "mW": lambda x: x * 1e-3,
    "uW": lambda x: x * 1e-6,
    "dBW": lambda x: 10 ** (x / 10),
    "dBm": lambda x: 10 ** (x / 10) * 1e-3,
}
METRES: Final[dict[str, _Converter]] = {"m": lambda x: x, "km": lambda x: x * 1e3}
HERTZ: Final[dict[str, _Converter]] = {
    "Hz": lambda x: x,
    "kHz": lambda x: x * 1e3,
    "MHz": lambda x: x * 1e6,
    "GHz": lambda x: x * 1e9,
}
KELVIN: Final[dict[str, _Converter]] = {"K": lambda x: x}
DECIBELS: Final[dict[str, _Converter]] = {"dB": lambda x: x}
WATTS_PER_HERTZ: Final[dict[str, _Converter]] = {
    "W/Hz": lambda x: x,
    "mW/Hz": lambda x: x * 1e-3,
    "dBW/Hz": lambda x: 10 ** (x / 10),
    "dBm/Hz": lambda x: 10 ** (x / 10) * 1e-3,
}

_QUANTITY = re.compile(r"\s*([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)\s*([A-Za-z/]*)\s*")


def density(value: Any) -> Any:
    """Return a noise density in W/Hz; a bare number that can only be meant in decibels is told how to be written.

    >>> density("-174 dBm/Hz")  # doctest: +ELLIPSIS
    3.98...e-21
    >>> density(-174)
    Traceback (most recent call last):
    ...
    ValueError: expected a number > 0 in W/Hz, or a text such as "-174 dBm/Hz"
    """
    if isinstance(value, int | float) and value <= 0:
        raise ValueError('expected a number > 0 in W/Hz, or a text such as "-174 dBm/Hz"')
    return in_si(WATTS_PER_HERTZ)(value)


def amplitude(value: Any) -> Any:
    """Return a number as it is; a text is refused, and where it is a power the amplitude that goes with it is told.

    >>> amplitude("-90 dBm")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: expected a bare number, an amplitude in √W per real dimension; ... √(P/2) = 7.071e-07
    """
    if not isinstance(value, str):
        return value
    text = "expected a bare number, an amplitude in √W per real dimension"
    try:
        power = in_si(WATTS)(value)
    except ValueError:
        raise ValueError(text) from None
    # CN(0, s²) has s² W in all, and half of it in each of its two real dimensions
    if 0 < power < math.inf:
        text += f"; complex noise of that power P has √(P/2) = {math.sqrt(power / 2):.4g}"
    raise ValueError(text)


def in_si(units: dict[str, _Converter]) -> Callable[[Any], Any]:
    """Return a converter to SI: numbers pass, "30 dBm" is converted, "30" alone is refused.

    >>> in_si(WATTS)("30 dBm")
    1.0
    >>> in_si(WATTS)("30")
    Traceback (most recent call last):
    ...
    ValueError: missing unit: write a bare number for W, or a text with one of W, mW, uW, dBW, dBm
    """

    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        match = _QUANTITY.fullmatch(value)
        known = ", ".join(units)
        if match is None:
            raise ValueError(f"expected a number and one of the units {known}")
        number, unit = match.groups()
        if not unit:
            raise ValueError(
                f"missing unit: write a bare number for {next(iter(units))}, or a text with one of {known}"
            )
        if unit not in units:
            raise ValueError(f"unknown unit {unit!r}: expected one of {known}")
        try:
            return units[unit](float(number))
        except OverflowError:
            raise ValueError(f"{value!r} is out of range") from None

    return convert
