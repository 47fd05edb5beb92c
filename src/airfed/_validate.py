"""Checks of arguments; the keyword becomes the message."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

SMALLEST: Final = 1e-150  # what is squared somewhere must stay a normal number
LARGEST: Final = 1e150
LARGEST_INTEGER: Final = 2**53  # float64 knows every whole number up to here


def number(**named: Any) -> None:
    """Raise unless every value is a real number (not a bool) and not NaN."""
    for name, value in named.items():
        if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
            raise ValueError(f"Expected {name} to be a number, got {value!r}.")
        try:
            nan = math.isnan(value)
        except OverflowError:  # a whole number of more than 308 digits
            raise ValueError(
                f"Expected {name} to be a number that float64 can hold, got one out of its range."
            ) from None
        if nan:
            raise ValueError(f"Expected {name} to be a number, got NaN.")


def positive(**named: Any) -> None:
    """Raise unless every value is a finite number above zero."""
    number(**named)
    for name, value in named.items():
        if not 0 < value < math.inf:
            raise ValueError(f"Expected {name}={value!r} > 0 and finite.")


def squarable(**named: Any) -> None:
    """Raise unless every value is a number between 1e-150 and 1e150: positive, and so is its square."""
    positive(**named)
    for name, value in named.items():
        if not SMALLEST <= float(value) <= LARGEST:
            raise ValueError(f"Expected {name}={value!r} between {SMALLEST:g} and {LARGEST:g}.")


def non_negative(**named: Any) -> None:
    """Raise unless every value is a finite number, zero or above."""
    number(**named)
    for name, value in named.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"Expected {name}={value!r} >= 0 and finite.")


def fraction(**named: Any) -> None:
    """Raise unless every value lies strictly between 0 and 1."""
    number(**named)
    for name, value in named.items():
        if not 0 < value < 1:
            raise ValueError(f"Expected 0 < {name}={value!r} < 1.")


def whole(**named: Any) -> None:
    """Raise unless every value is a whole number (not a bool) of at least 0."""
    for name, value in named.items():
        if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
            raise ValueError(f"Expected {name} to be a whole number, got {value!r}.")
        if int(value) < 0:
            raise ValueError(f"Expected {name}={value!r} >= 0.")


def positive_integer(**named: Any) -> None:
    """Raise unless every value is a whole number from 1 to 2⁵³."""
    for name, value in named.items():
        if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
            raise ValueError(f"Expected {name} to be a whole number, got {value!r}.")
        if int(value) < 1:
            raise ValueError(f"Expected {name}={value!r} >= 1.")
        if int(value) > LARGEST_INTEGER:
            raise ValueError(f"Expected {name} <= 2**53, got a number of {int(value).bit_length()} bits.")


def one_of(choices: tuple[str, ...], **named: Any) -> None:
    """Raise unless every value is one of the choices."""
    for name, value in named.items():
        if value not in choices:
            raise ValueError(f"Expected {name} to be one of {', '.join(choices)}; got {value!r}.")


def vector(*, minimum: float, strict: bool, **named: ArrayLike) -> NDArray[np.float64]:
    """Return the one named value as a read-only, contiguous float64 vector whose entries are at least `minimum`.

    `strict` excludes `minimum` itself. The message of a bad entry names its index and value.
    """
    ((name, value),) = named.items()
    try:
        given = np.asarray(value)
        # NumPy would read texts, truth values and the real part of complex numbers as numbers.
        if given.size and given.dtype.kind not in "iufO":
            raise TypeError(f"got {given.dtype} entries")
        array = np.array(given, dtype=np.float64, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"Expected {name} to be a list of numbers; {error}.") from None
    if array.ndim != 1:
        raise ValueError(f"Expected {name} to be a flat list of numbers, got shape {array.shape}.")
    if array.size == 0:
        raise ValueError(f"Expected {name} to have at least one entry, got none.")
    good = array > minimum if strict else array >= minimum
    good &= np.isfinite(array)
    if not good.all():
        index = int(np.argmin(good))
        relation = ">" if strict else ">="
        raise ValueError(f"Expected {name}[{index}]={array[index]} {relation} {minimum:g} and finite.")
    array.flags.writeable = False
    return array
