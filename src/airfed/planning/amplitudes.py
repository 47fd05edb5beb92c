"""The table of received amplitudes a_ik: what a plan is, stored compactly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _validate

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Devices = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, eq=False)
class Amplitudes:
    """Received amplitudes a_ik = θ_i · share_ik of I rounds and N devices; 0 means that a device is not scheduled.

    Only what differs is stored: a plan of equal rounds has one row of shares and a level that is broadcast, so that
    10⁶ devices and 200 rounds take one row of booleans.

    Args:
        level: θ_i > 0, the largest amplitude of each round, (I,).
        share: a_ik/θ_i in [0, 1], (I, N), stored as (1, N) where it is the same in all rounds; booleans where all
            scheduled devices arrive equally strong.

    Raises:
        ValueError: a shape or a value is out of range, or a round schedules no device.

    >>> table = Amplitudes.aligned([0, 2], num_devices=3, level=0.5, rounds=4)
    >>> table.dense.shape, table.dense[0], table.constant
    ((4, 3), array([0.5, 0. , 0.5]), True)
    """

    level: Floats
    share: Bools | Floats

    def __post_init__(self) -> None:
        level, share = np.asarray(self.level, dtype=np.float64), np.asarray(self.share)
        if share.dtype != np.bool_:
            share = share.astype(np.float64, copy=False)
        if level.ndim != 1 or share.ndim != 2 or not level.size or len(share) not in (1, level.size):
            raise ValueError(f"Expected shares of (1 or rounds, devices), got {share.shape} for {level.size} rounds.")
        if not np.all((level > 0) & np.isfinite(level)):
            raise ValueError("Expected the amplitude of every round to be positive and finite.")
        if not share.any(axis=1).all():
            raise ValueError("Expected at least one scheduled device in every round.")
        if share.dtype != np.bool_:
            if not (share.min() >= 0 and np.all(share.max(axis=1) == 1.0)):
                raise ValueError("Expected shares between 0 and 1, the largest of a round being 1.")
            if np.all((share == 0) | (share == 1)):
                share = share == 1
        if all(np.array_equal(row, share[0]) for row in share[1:]):
            share = share[:1]
        for name, array in (("level", level), ("share", share)):
            array = array.copy() if array.flags.writeable else array  # nobody can change it afterwards
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @classmethod
    def aligned(cls, devices: ArrayLike, *, num_devices: int, level: float, rounds: int) -> Amplitudes:
        """Return equal rounds in which the given devices arrive with θ = level."""
        _validate.positive_integer(rounds=rounds)
        share = np.zeros((1, num_devices), dtype=np.bool_)
        share[0, indices(devices, num_devices)] = True
        return cls(level=np.broadcast_to(np.float64(level), (rounds,)), share=share)

    @classmethod
    def of_table(cls, table: Floats, *, rounds: int | None = None) -> Amplitudes:
        """Return the compact form of a_ik, (I, N), or of one row (N,) that holds for all `rounds`."""
        rows = np.atleast_2d(np.asarray(table, dtype=np.float64))
        if rows.ndim != 2 or not rows.size or not (np.all(rows >= 0) and np.all(np.isfinite(rows))):
            raise ValueError(f"Expected finite amplitudes of (rounds, devices), none negative; got shape {rows.shape}.")
        level = rows.max(axis=1)
        if not np.all(level > 0):
            raise ValueError("Expected at least one amplitude above 0 in every round.")
        share = rows / level[:, None]
        if np.count_nonzero(share) != np.count_nonzero(rows):
            raise ValueError("Expected amplitudes of one round within 300 orders of magnitude of each other.")
        return cls(level=level if rounds is None else np.broadcast_to(level[0], (rounds,)), share=share)

    @property
    def rounds(self) -> int:
        """I."""
        return self.level.size

    @property
    def num_devices(self) -> int:
        """N."""
        return int(self.share.shape[1])

    @property
    def equal(self) -> bool:
        """Whether all devices that are scheduled in a round arrive equally strong (the paper's alignment)."""
        return self.share.dtype == np.bool_

    @cached_property
    def constant(self) -> bool:
        """Whether all rounds are alike."""
        return len(self.share) == 1 and bool(np.all(self.level == self.level[0]))

    @cached_property
    def scheduled(self) -> Devices:
        """The devices that are scheduled in at least one round, ascending."""
        devices = np.flatnonzero(self.share.any(axis=0))
        devices.flags.writeable = False
        return devices

    @cached_property
    def sizes(self) -> NDArray[np.intp]:
        """|K_i|, (I,)."""
        return np.broadcast_to(np.count_nonzero(self.share, axis=1), (self.rounds,))

    def shares(self, index: int) -> Bools | Floats:
        """Return a_ik/θ_i of round i, (N,)."""
        return np.asarray(self.share[index if len(self.share) > 1 else 0])

    def devices(self, index: int) -> Devices:
        """Return K_i, ascending."""
        return self.scheduled if len(self.share) == 1 else np.flatnonzero(self.share[index])

    def received(self, index: int) -> Floats:
        """Return a_ik of the scheduled devices of round i, (|K_i|,)."""
        share = self.shares(index)[self.devices(index)]
        return np.asarray(share * self.level[index], dtype=np.float64)

    def sends(self, device: int) -> NDArray[np.intp]:
        """Return the rounds in which a device is scheduled."""
        column = self.share[:, device] > 0
        return np.flatnonzero(np.broadcast_to(column, (self.rounds,)))

    @property
    def dense(self) -> Floats:
        """a_ik, (I, N), read-only; allocated only where rounds differ."""
        if self.constant:
            return np.broadcast_to(self.share[0] * self.level[0], (self.rounds, self.num_devices))
        table = self.share * self.level[:, None]
        table.flags.writeable = False
        return table


def indices(devices: ArrayLike, num_devices: int) -> Devices:
    """Return device indices, ascending.

    Raises:
        ValueError: they are not indices from 0 to N − 1, each once, and at least one.
    """
    found = np.asarray(devices)
    if found.ndim != 1 or found.dtype.kind not in "iu" or not found.size:
        raise ValueError(f"Expected scheduled to be a list of device indices, got {devices!r:.80}.")
    found = np.sort(found)
    if found[0] < 0 or found[-1] >= num_devices or np.any(found[1:] == found[:-1]):
        raise ValueError(f"Expected scheduled to be indices from 0 to {num_devices - 1}, each once.")
    return found.astype(np.intp, copy=False)
