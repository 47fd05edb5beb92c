"""The participation mask of a round, one bit per device, and the exposure of each device: Σμ_k² over its rounds.

Charges to all devices add up to one exact fraction. Charges to some devices are added per device in double-double
arithmetic (a sum and its rounding error), whose second part is rounded up. So no value is below the truth, and the
largest is less than 1e-15 above it, for any number of rounds. Where devices have different shares of a round's μ, each
product is rounded up as well, which adds less than 1e-15.
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

_MAX_DEVICES: Final = 10**7  # keeps the memory of a ledger below some hundred megabytes


@dataclass(frozen=True, kw_only=True)
class ParticipationMask:
    """The participation mask of a round: a non-empty set of devices out of a fleet of N, and their shares of its μ.

    >>> some = ParticipationMask.of([1, 2, 9], 10)
    >>> some.devices, some.count, ParticipationMask.parse(some.text, 10) == some
    (array([1, 2, 9]), 3, True)
    >>> ParticipationMask.of([1, 2, 9], 10, np.array([0.5, 1.0, 0.25])).share
    array([0.5 , 1.  , 0.25])
    """

    num_devices: int  # N
    bits: bytes = field(repr=False)  # ⌈N/8⌉ bytes, device 0 first; the bits after device N − 1 are 0
    # μ_k/μ in (0, 1] of each participating device, ascending, as little-endian float64; empty if all are 1
    shares: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        _check_fleet(self.num_devices)
        beyond = -self.num_devices % 8
        if len(self.bits) != -(-self.num_devices // 8) or self.bits[-1] & ((1 << beyond) - 1):
            raise ValueError(f"bits must be those of {self.num_devices} devices.")
        if not self.count:
            raise ValueError("A participation mask must contain at least one device.")
        if self.shares:
            if len(self.shares) != 8 * self.count:
                raise ValueError(f"shares must be those of {self.count} devices.")
            if not (self.share.min() > 0 and self.share.max() == 1 and self.share.min() < 1):
                raise ValueError("shares must be positive and at most 1, one of them 1 and one of them less.")

    @classmethod
    def of(
        cls, devices: NDArray[np.intp] | list[int], num_devices: int, shares: Floats | None = None
    ) -> ParticipationMask:
        """Return the mask of distinct devices in 0..N−1, in any order; ascending if their `shares` are given."""
        _check_fleet(num_devices)
        given = np.asarray(devices, dtype=np.intp)
        if not given.size or given.min() < 0 or given.max() >= num_devices:
            raise ValueError(f"devices must be at least one device, all of them in 0..{num_devices - 1}.")
        mask = np.zeros(num_devices, dtype=np.bool_)
        mask[given] = True
        if np.count_nonzero(mask) != given.size:
            raise ValueError("devices must be distinct.")
        unequal = shares is not None and bool(np.any(shares != 1))
        if unequal and np.any(given[1:] < given[:-1]):
            raise ValueError("devices must be ascending, in the order of their shares.")
        packed = np.asarray(shares, dtype="<f8").tobytes() if unequal else b""
        return cls(num_devices=num_devices, bits=np.packbits(mask).tobytes(), shares=packed)

    @classmethod
    def parse(cls, text: str, num_devices: int, shares_text: str = "") -> ParticipationMask:
        """Return the mask of a `text` and `shares_text`; raises ValueError if they are not those of N devices."""
        _check_fleet(num_devices)
        bits = _unpacked(text, -(-num_devices // 8), f"the bits of {num_devices} devices")
        shares = _unpacked(shares_text, 8 * num_devices, "the shares of the devices") if shares_text else b""
        return cls(num_devices=num_devices, bits=bits, shares=shares)

    @cached_property
    def text(self) -> str:
        """The bits, compressed, as text in base64."""
        return _packed(self.bits)

    @property
    def shares_text(self) -> str:
        """The shares, compressed, as text in base64."""
        return _packed(self.shares)

    @property
    def share(self) -> Floats:
        """μ_k/μ of the participating devices, (m,); (1,) if all are 1."""
        return np.frombuffer(self.shares, "<f8") if self.shares else np.ones(1)

    def charges(self, other: ParticipationMask) -> bool:
        """Return whether the same devices are charged the whole μ, or the other's shares up to rounding."""
        same = (self.num_devices, self.bits) == (other.num_devices, other.bits)
        return same and (not self.shares or np.allclose(self.share, other.share, rtol=1e-12, atol=0.0))

    @cached_property
    def count(self) -> int:
        """The number of participating devices."""
        return int.from_bytes(self.bits, "big").bit_count()

    @property
    def devices(self) -> NDArray[np.intp]:
        """The indices of the participating devices, ascending."""
        return np.flatnonzero(np.unpackbits(np.frombuffer(self.bits, np.uint8), count=self.num_devices))


@dataclass(frozen=True, kw_only=True, eq=False)
class Exposure:
    """Σμ² of every device."""

    common: Fraction = Fraction(0)  # of the rounds that were charged to all devices
    per_device: Floats | None = None  # of the other rounds, if any, (2, N): at most the sum of both rows

    @property
    def num_devices(self) -> int | None:
        """N; None while every round was charged to all devices."""
        return None if self.per_device is None else self.per_device.shape[1]

    def plus(self, mu: float, mask: ParticipationMask | None = None) -> Exposure:
        """Return the exposure after one more round, charged to the devices of a mask, or to all.

        Raises ArithmeticError if a sum exceeds the range of float64.
        """
        if mask is None:
            return Exposure(common=self.common + Fraction(mu) ** 2, per_device=self.per_device)
        return self.plus_shares(mu, mask.devices, mask.share, mask.num_devices)

    def plus_shares(self, mu: float, devices: NDArray[np.intp], share: Floats, num_devices: int) -> Exposure:
        """Return the exposure after one more round, charged to some of N devices, each μ times its share."""
        sums = np.zeros((2, num_devices)) if self.per_device is None else self.per_device.copy()
        at = slice(None) if devices.size == num_devices else devices
        before, lost = sums[:, at]
        with np.errstate(over="raise", invalid="raise"):
            own = np.nextafter(mu * share, np.inf)  # (μ·share)² is rounded up
            amount = np.where(share == 1, _double_up(Fraction(mu) ** 2), np.nextafter(own * own, np.inf))
            after = before + amount
            part = after - before
            error = (before - (after - part)) + (amount - part)  # the exact rounding error of the addition
            sums[:, at] = after, np.where(error == 0, lost, np.nextafter(lost + error, np.inf))
        return Exposure(common=self.common, per_device=sums)

    def most_exposed(self, mask: ParticipationMask | None = None) -> tuple[int | None, float]:
        """Return the most exposed device of a mask (None if all are equal), and its μ in total, rounded up."""
        if self.per_device is None:
            return None, root_up(self.common)
        at = np.arange(self.per_device.shape[1]) if mask is None else mask.devices
        sums = self.per_device[0, at] + self.per_device[1, at]
        index = int(np.argmax(sums))
        return int(at[index]), float(self._roots(sums[index : index + 1])[0])

    def mus(self) -> Floats:
        """Return μ in total, √Σμ², of each device, rounded up, (N,); raises ValueError if devices were not counted."""
        if self.per_device is None:
            raise ValueError("Every round was charged to all devices, so the devices were not counted.")
        return self._roots(self.per_device[0] + self.per_device[1])

    def _roots(self, sums: Floats) -> Floats:
        """Return the roots, rounded up, of sums that were rounded to the nearest double; monotone in the sums."""
        squares = _next(sums)
        if self.common:
            squares = _next(squares + _double_up(self.common))
        return _next(np.sqrt(squares))


def _check_fleet(num_devices: int) -> None:
    if not 1 <= num_devices <= _MAX_DEVICES:
        raise ValueError(f"num_devices must be between 1 and {_MAX_DEVICES}, got {num_devices}.")


def _next(values: Floats) -> Floats:
    """Return the next larger doubles; 0 stays 0."""
    return np.where(values > 0, np.nextafter(values, np.inf), 0.0)


def _packed(content: bytes) -> str:
    """Return bytes, compressed, as text in base64."""
    return base64.b64encode(zlib.compress(content)).decode()


def _unpacked(text: str, most: int, what: str) -> bytes:
    """Return at most `most` bytes of `_packed` text; raises ValueError otherwise."""
    stream = zlib.decompressobj()
    try:  # the output is limited: the text may decompress to gigabytes
        content = stream.decompress(base64.b64decode(text, validate=True), most + 1)
    except (ValueError, zlib.error):
        raise ValueError("text must be a compressed participation mask in base64.") from None
    if not stream.eof or stream.unused_data:
        raise ValueError(f"text must contain {what} and nothing else.")
    return content


def _double_up(value: Fraction) -> float:
    """Return the smallest double that is not below a fraction."""
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)
