"""Who is charged for a round: one bit for each device of the fleet, in memory and on the disk."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

MOST_DEVICES: Final = 10**7  # N; what a ledger holds for each device then stays within some hundred megabytes


@dataclass(frozen=True, kw_only=True)
class Members:
    """A set of devices, at least one, out of a fleet of N.

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
        if len(self.bits) != _size(self.num_devices) or self.bits[-1] & ((1 << beyond) - 1):
            raise ValueError(f"Expected the bits of {self.num_devices} devices.")
        if not self.count:
            raise ValueError("Expected at least one device in a round.")

    @classmethod
    def of(cls, devices: NDArray[np.intp] | list[int], num_devices: int) -> Members:
        """Return the set of the given devices, whatever their order.

        Raises:
            ValueError: there is none, one is given twice, or one is not in 0..N−1.
        """
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
        """Return the set that `text` was written for.

        Raises:
            ValueError: it is no such text, or not one of N devices.
        """
        _check_fleet(num_devices)
        size, stream = _size(num_devices), zlib.decompressobj()
        try:
            bits = stream.decompress(base64.b64decode(text, validate=True), size + 1)  # whatever it would swell to
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


def _check_fleet(num_devices: int) -> None:
    if not 1 <= num_devices <= MOST_DEVICES:
        raise ValueError(f"Expected a fleet of 1 to {MOST_DEVICES} devices; got {num_devices}.")


def _size(num_devices: int) -> int:
    return -(-num_devices // 8)
