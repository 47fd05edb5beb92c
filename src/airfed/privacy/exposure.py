"""Which devices a round is charged to, one bit each, and what each device has been exposed to: Σμ² over its rounds.

What all devices are charged is one exact fraction. What some are charged is added for each device in double-double
arithmetic (a sum, and what its roundings have lost), of which the second part is rounded up. So no figure is below
the truth, and the largest of them is less than 1e-15 above it, however many rounds there are.
"""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed.privacy.gaussian import root_up

Floats = NDArray[np.float64]

_MOST_DEVICES: Final = 10**7  # N; what a ledger holds for each device then stays within some hundred megabytes


@dataclass(frozen=True, kw_only=True)
class Members:
    """The participation mask of a round: a set of devices, at least one, out of a fleet of N.

    Args:
        num_devices: N.
        bits: ⌈N/8⌉ bytes, device 0 first; the bits after device N − 1 are 0.

    Raises:
        ValueError: N is out of range, the bits are not of N devices, or none of them is set.

    >>> some = Members.of([1, 2, 9], 10)
    >>> some.devices, some.count, Members.parse(some.text, 10) == some
    (array([1, 2, 9]), 3, True)
    """

    num_devices: int
    bits: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _check_fleet(self.num_devices)
        beyond = -self.num_devices % 8
        if len(self.bits) != -(-self.num_devices // 8) or self.bits[-1] & ((1 << beyond) - 1):
            raise ValueError(f"Expected the bits of {self.num_devices} devices.")
        if not self.count:
            raise ValueError("Expected at least one device in a round.")

    @classmethod
    def of(cls, devices: NDArray[np.intp] | list[int], num_devices: int) -> Members:
        """Return the set of the given devices, in any order; raises ValueError unless they are some of N, each once."""
        _check_fleet(num_devices)
        given = np.asarray(devices, dtype=np.intp)
        if not given.size or given.min() < 0 or given.max() >= num_devices:
            raise ValueError(f"Expected at least one device, all of them in 0..{num_devices - 1}.")
        mask = np.zeros(num_devices, dtype=np.bool_)
        mask[given] = True
        members = cls(num_devices=num_devices, bits=np.packbits(mask).tobytes())
        if members.count != given.size:
            raise ValueError("Expected each device once.")
        return members

    @classmethod
    def parse(cls, text: str, num_devices: int) -> Members:
        """Return the set that `text` was written for; raises ValueError where it is not one of N devices."""
        _check_fleet(num_devices)
        stream = zlib.decompressobj()
        try:  # whatever it would swell to
            bits = stream.decompress(base64.b64decode(text, validate=True), -(-num_devices // 8) + 1)
        except (ValueError, zlib.error):
            raise ValueError("Expected devices as the text of compressed bits.") from None
        if not stream.eof or stream.unused_data:
            raise ValueError(f"Expected the bits of {num_devices} devices, and nothing else.")
        return cls(num_devices=num_devices, bits=bits)

    @cached_property
    def text(self) -> str:
        """The bits, compressed, as text in base64."""
        return base64.b64encode(zlib.compress(self.bits)).decode()

    @cached_property
    def count(self) -> int:
        """How many devices it has."""
        return int.from_bytes(self.bits, "big").bit_count()

    @property
    def devices(self) -> NDArray[np.intp]:
        """Their indices, ascending."""
        return np.flatnonzero(np.unpackbits(np.frombuffer(self.bits, np.uint8), count=self.num_devices))


@dataclass(frozen=True, kw_only=True, eq=False)
class Exposure:
    """The sums of all devices. `plus` makes the next one.

    Args:
        everybody: Σμ² of the rounds in which all devices were charged.
        some: Σμ² of the other rounds for each device, (2, N): at most the sum of both rows; None before the first of
            them.
    """

    everybody: Fraction = Fraction(0)
    some: Floats | None = None

    @property
    def num_devices(self) -> int | None:
        """N; None while all devices were charged alike, so that none was counted."""
        return None if self.some is None else self.some.shape[1]

    def plus(self, mu: float, members: Members | None = None) -> Exposure:
        """Return the exposure after one more round, charged to some devices of N, or to all.

        Raises:
            ArithmeticError: a sum is beyond float64.
        """
        square = Fraction(mu) ** 2
        if members is None:
            return Exposure(everybody=self.everybody + square, some=self.some)
        sums = np.zeros((2, members.num_devices)) if self.some is None else self.some.copy()
        at, amount = members.devices, _double_up(square)
        before, lost = sums[:, at]
        with np.errstate(over="raise", invalid="raise"):
            after = before + amount
            part = after - before
            error = (before - (after - part)) + (amount - part)  # exactly what the addition has lost
            sums[:, at] = after, np.where(error == 0, lost, np.nextafter(lost + error, np.inf))
        return Exposure(everybody=self.everybody, some=sums)

    def most_exposed(self, members: Members | None = None) -> tuple[int | None, float]:
        """Return the most exposed device, of some or of all, and its √Σμ², rounded up; None where all are alike."""
        if self.some is None:
            return None, root_up(self.everybody)
        at = np.arange(self.some.shape[1]) if members is None else members.devices
        sums = self.some[0, at] + self.some[1, at]
        place = int(np.argmax(sums))
        return int(at[place]), float(self._roots(sums[place : place + 1])[0])

    def mus(self) -> Floats:
        """Return √Σμ² of each device, rounded up, (N,); raises ValueError where all were charged alike."""
        if self.some is None:
            raise ValueError("Expected charges of some devices; everybody was charged alike.")
        return self._roots(self.some[0] + self.some[1])

    def _roots(self, sums: Floats) -> Floats:
        """Of sums that were rounded to the nearest double; never falling, so that the largest stays the largest."""
        squares = _next(sums)
        if self.everybody:
            squares = _next(squares + _double_up(self.everybody))
        return _next(np.sqrt(squares))


def _check_fleet(num_devices: int) -> None:
    if not 1 <= num_devices <= _MOST_DEVICES:
        raise ValueError(f"Expected a fleet of 1 to {_MOST_DEVICES} devices; got {num_devices}.")


def _next(values: Floats) -> Floats:
    """The next doubles above; who has spent nothing keeps that."""
    return np.where(values > 0, np.nextafter(values, np.inf), 0.0)


def _double_up(value: Fraction) -> float:
    """The smallest double that is not below a fraction."""
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)
