"""Checks of arguments; the keyword becomes the message."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def number(**named: Any) -> None:
    """Raise unless every value is a real number (not a bool) and not NaN."""
    for name, value in named.items():
        if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
            raise ValueError(f"Expected {name} to be a number, got {value!r}.")
        if math.isnan(value):
            raise ValueError(f"Expected {name} to be a number, got NaN.")


def positive(**named: Any) -> None:
    """Raise unless every value is a finite number above zero."""
    number(**named)
    for name, value in named.items():
        if not 0 < value < math.inf:
            raise ValueError(f"Expected {name}={value!r} > 0 and finite.")


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


def positive_integer(**named: Any) -> None:
    """Raise unless every value is a whole number of at least 1."""
    for name, value in named.items():
        if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
            raise ValueError(f"Expected {name} to be a whole number, got {value!r}.")
        if value < 1:
            raise ValueError(f"Expected {name}={value!r} >= 1.")


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
        array = np.array(value, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
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
