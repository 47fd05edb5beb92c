"""Several processes that train one run together: each holds a share of the devices.

The all-reduce is the superposition. `Solo` is the ordinary case of one process; `Cluster` joins the processes that
torchrun has started, with torch.distributed. What they exchange per round is one vector of d + 5 integers (2d + 5 where
devices are misaligned), the noise, one number and a few flags, whatever the number of devices. The sums are integers,
so their result has the same bits for every number of processes. Rank 0 alone draws the noise, keeps the ledger and
writes to the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from airfed.air import Superposition

# A process that is silent for longer counts as lost; a round of the slowest device must fit into it.
_PATIENCE: Final = timedelta(minutes=30)


class LostProcess(Exception):
    """Another process of the run has ended or does not answer."""


class Group(Protocol):
    """The processes of one run."""

    rank: int
    size: int

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

    Raises:
        LostProcess: from any call, where another process has gone.
    """

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist = dist
        dist.init_process_group("gloo", timeout=_PATIENCE)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self._dist.destroy_process_group()

    def share(self, devices: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return every size-th device, beginning with the rank-th."""
        return devices[self.rank :: self.size]

    def merge(self, superposition: Superposition) -> None:
        """Add the integers of all processes and take the largest norm."""
        superposition.integers = self._reduce(superposition.integers, self._dist.ReduceOp.SUM)
        largest = self._reduce(np.array([superposition.norm_max]), self._dist.ReduceOp.MAX)
        superposition.norm_max = float(largest[0])

    def any(self, flag: bool) -> bool:
        """Return whether the flag is raised in any process."""
        return bool(self._reduce(np.array([int(flag)]), self._dist.ReduceOp.MAX)[0])

    def broadcast(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return rank 0's values."""
        return self._exchange(values, lambda tensor: self._dist.broadcast(tensor, 0))

    def _reduce(self, values: NDArray[Any], operation: Any) -> NDArray[Any]:
        return self._exchange(values, lambda tensor: self._dist.all_reduce(tensor, op=operation))

    def _exchange(self, values: NDArray[Any], collective: Callable[[Any], object]) -> NDArray[Any]:
        import torch

        tensor = torch.tensor(values)  # a copy: the caller's array stays as it is
        try:
            collective(tensor)
        except RuntimeError as error:
            raise LostProcess("Another process of this run has ended or does not answer.") from error
        result: NDArray[Any] = tensor.numpy()
        return result


@contextmanager
def join() -> Iterator[Group]:
    """Yield the processes that torchrun has started together with this one, or `Solo`."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "MASTER_ADDR" in os.environ:
        with Cluster() as cluster:
            yield cluster
    else:
        yield Solo()


def threads_per_process() -> int | None:
    """Return how many threads each process here should use under torchrun; None without it."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, (os.cpu_count() or 1) // here) if here > 1 else None
