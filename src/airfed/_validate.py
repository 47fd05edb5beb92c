"""Checks of arguments; the keyword is the name in the message."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

SMALLEST: Final = 1e-100  # squares, products and quotients of such numbers stay normal in float64
LARGEST: Final = 1e100
LARGEST_INTEGER: Final = 2**53  # float64 represents every whole number up to here
LARGEST_SEED: Final = 2**128 - 1


def number(**named: Any) -> None:
    """Raise unless every value is a real number (not a bool) that float64 can hold, and not NaN."""
    for name, value in named.items():
        if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
            raise ValueError(f"{name} must be a number, got {value!r}.")
        try:
            held = float(value)
        except OverflowError:  # a whole number of more than 308 digits
            held = math.inf
        if math.isnan(held):
            raise ValueError(f"{name} must be a number, got NaN.")
        if (math.isinf(held) and value not in (math.inf, -math.inf)) or (held == 0 and value != 0):
            raise ValueError(f"{name} must be a number that float64 can hold; this one is out of its range.")


def positive(**named: Any) -> None:
    """Raise unless every value is a finite number above zero."""
    _within(named, lambda value: 0 < value < math.inf, "positive and finite")


def moderate(**named: Any) -> None:
    """Raise unless every value is a number between 1e-100 and 1e100."""
    positive(**named)
    _within(named, lambda value: SMALLEST <= float(value) <= LARGEST, f"between {SMALLEST:g} and {LARGEST:g}")


def non_negative(**named: Any) -> None:
    """Raise unless every value is a finite number, zero or above."""
    _within(named, lambda value: 0 <= value < math.inf, "non-negative and finite")


def fraction(**named: Any) -> None:
    """Raise unless every value lies strictly between 0 and 1."""
    _within(named, lambda value: 0 < float(value) < 1, "strictly between 0 and 1")


def _within(named: dict[str, Any], good: Callable[[Any], bool], words: str) -> None:
    number(**named)
    for name, value in named.items():
        if not good(value):
            raise ValueError(f"{name} must be {words}, got {value!r}.")


def seed(**named: Any) -> None:
    """Raise unless every value is a whole number (not a bool) from 0 to 2¹²⁸ − 1."""
    _whole(0, LARGEST_SEED, "2**128 - 1", named)


def whole(**named: Any) -> None:
    """Raise unless every value is a whole number from 0 to 2⁵³."""
    _whole(0, LARGEST_INTEGER, "2**53", named)


def positive_integer(**named: Any) -> None:
    """Raise unless every value is a whole number from 1 to 2⁵³."""
    _whole(1, LARGEST_INTEGER, "2**53", named)


def _whole(least: int, most: int, most_shown: str, named: dict[str, Any]) -> None:
    for name, value in named.items():
        if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
            raise ValueError(f"{name} must be a whole number, got {value!r}.")
        bits = int(value).bit_length()
        if int(value) < least:
            raise ValueError(
                f"{name} must be at least {least}, got {int(value) if bits <= 64 else 'a long negative number'}."
            )
        if int(value) > most:
            raise ValueError(f"{name} must be at most {most_shown}, got a number of {bits} bits.")


def flag(**named: Any) -> None:
    """Raise unless every value is a bool: Python takes the text "no" for true."""
    for name, value in named.items():
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name} must be true or false, got {value!r}.")


def one_of(choices: tuple[str, ...], **named: Any) -> None:
    """Raise unless every value is one of the choices."""
    for name, value in named.items():
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")


def vector(*, minimum: float, strict: bool, table: bool = False, **named: ArrayLike) -> NDArray[np.float64]:
    """Return the one named value as a read-only, contiguous float64 vector whose entries are at least `minimum`.

    `strict` excludes `minimum` itself; `table` also allows two dimensions.
    """
    ((name, value),) = named.items()
    try:
        given = np.asarray(value)
        # NumPy would convert texts and bools, and drop imaginary parts.
        if given.size and given.dtype.kind not in "iufO":
            raise TypeError(f"got {given.dtype} entries")
        array = np.array(given, dtype=np.float64, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be a list of numbers; {error}.") from None
    if array.ndim != 1 and not (table and array.ndim == 2):
        raise ValueError(f"{name} must be a flat list of numbers, got shape {array.shape}.")
    if array.size == 0:
        raise ValueError(f"{name} must have at least one entry, got none.")
    good = array > minimum if strict else array >= minimum
    good &= np.isfinite(array)
    if not good.all():
        item, value = entry(name, array, good)
        least = f"{'greater than' if strict else 'at least'} {minimum:g}"
        sign = {(0.0, True): "positive", (0.0, False): "non-negative"}.get((minimum, strict), least)
        raise ValueError(f"{item} must be {sign} and finite, got {value}.")
    array.flags.writeable = False
    return array


def entry(name: str, array: NDArray[np.float64], good: NDArray[np.bool_]) -> tuple[str, float]:
    """Return the name, gain[2] or gain[0, 2], and the value of the first entry that is not good."""
    index = np.unravel_index(int(np.argmin(good)), array.shape)
    return f"{name}[{', '.join(map(str, index))}]", float(array[index])


def moderate_entries(name: str, values: NDArray[np.float64], *, zero: bool) -> None:
    """Raise unless every entry is between 1e-100 and 1e100, or 0 with `zero`."""
    odd = (values < SMALLEST) | (values > LARGEST)
    if zero:
        odd &= values != 0
    if odd.any():
        place, value = entry(name, values, ~odd)
        smallest, largest = f"{SMALLEST:g}", f"{LARGEST:g}"
        raise ValueError(f"{place} must be {'0 or ' if zero else ''}between {smallest} and {largest}, got {value}.")
