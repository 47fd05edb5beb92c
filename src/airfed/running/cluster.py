"""Several processes that train one run together: each holds a share of the devices.

The all-reduce is the superposition. `Solo` is the ordinary case of one process; `Cluster` joins the processes that
torchrun has started. What they exchange per round is one vector of d + 5 integers (2Ad + 5 with A antennas; d more
where devices are misaligned), the noise, one number and a few flags, whatever the number of devices. The sums are
integers, so their result has the same bits for every number of processes. Rank 0 alone draws the noise, keeps the
ledger and writes to the disk. Another process is waited for as long as it is heard, however long it computes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from airfed.air import Superposition
from airfed.running.exchange import Exchange, LostProcess, number_in

__all__ = ["Cluster", "Group", "LostProcess", "Solo", "join"]


class Group(Protocol):
    """The processes of one run."""

    rank: int
    size: int

    def check(self) -> None:
        """Raise `LostProcess` where another process is no longer heard; any process may call it at any time."""
        ...

    def share(self, devices: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the devices that this process trains."""
        ...

    def merge(self, superposition: Superposition) -> None:
        """Add the superpositions of all processes, in every one of them."""
        ...

    def any(self, flag: bool) -> bool:
        """Return whether the flag is raised in any process; all must call it together."""
        ...

    def broadcast(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return rank 0's values in every process."""
        ...


class Solo:
    """One process."""

    rank = 0
    size = 1

    def check(self) -> None:
        """There is nobody else."""

    def share(self, devices: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return all devices."""
        return devices

    def merge(self, superposition: Superposition) -> None:
        """There is nothing to add."""

    def any(self, flag: bool) -> bool:
        """Return the flag."""
        return flag

    def broadcast(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values."""
        return values


class Cluster:
    """The processes that torchrun has started; use it in a `with` statement.

    Args:
        patience: seconds after which a process that is not heard is lost.

    Raises:
        LostProcess: from any call, where another process has not come or has gone.
        ValueError: the environment does not describe a group of processes.
    """

    def __init__(self, patience: float = 60.0) -> None:
        self._exchange = Exchange(patience)
        self.rank, self.size = self._exchange.rank, self._exchange.size

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self._exchange.close()

    def check(self) -> None:
        """Raise where another process has not been heard for the patience."""
        self._exchange.check()

    def share(self, devices: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return every size-th device, beginning with the rank-th."""
        return devices[self.rank :: self.size]

    def merge(self, superposition: Superposition) -> None:
        """Add the integers of all processes and take the largest norm."""
        superposition.integers = self._exchange.reduce(superposition.integers, "SUM")
        superposition.norm_max = float(self._exchange.reduce(np.array([superposition.norm_max]), "MAX")[0])

    def any(self, flag: bool) -> bool:
        """Return whether the flag is raised in any process."""
        return bool(self._exchange.reduce(np.array([int(flag)]), "MAX")[0])

    def broadcast(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return rank 0's values."""
        return self._exchange.broadcast(values)


@contextmanager
def join(patience: float = 60.0) -> Iterator[Group]:
    """Yield the processes that torchrun has started together with this one, or `Solo`; `patience` as in `Cluster`."""
    if "MASTER_ADDR" in os.environ and number_in("WORLD_SIZE", "1") > 1:
        with Cluster(patience) as cluster:
            yield cluster
    else:
        yield Solo()
