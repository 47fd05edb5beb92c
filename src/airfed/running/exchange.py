"""Sums and broadcasts between the processes that torchrun has started, given up when one of them is lost.

torch.distributed's gloo moves the numbers. It has no way to give up an exchange whose other side has gone in silence,
so the wait for it looks at the heartbeat, and its connections are shut when that says that somebody is lost.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from airfed.running.heartbeat import Heartbeat, Peer, own_address

_GLANCE: Final = timedelta(seconds=1)  # how often a process that waits for the others looks whether they are heard
_FOREVER: Final = timedelta(days=10_000)
_GATHERING: Final = 300.0  # s, at least, for all processes to come: people start hosts one after the other
_FAREWELL: Final = 5.0  # s, within which a process that closes its connections falls silent


class LostProcess(Exception):
    """Another process of the run has ended or is not heard."""


class Exchange:
    """Connections between the processes of one run.

    Args:
        patience: seconds after which a process that is not heard is lost.

    Raises:
        LostProcess: another process has not come, or has gone; from every method but `close`.
        ValueError: the environment does not describe a group of processes.
    """

    def __init__(self, patience: float) -> None:
        import torch
        import torch.distributed as dist

        self._torch: Any = torch
        self._dist: Any = dist
        self._patience, self._gathering = patience, max(patience, _GATHERING)
        self.rank, self.size = number_in("RANK"), number_in("WORLD_SIZE")
        self._connections: set[tuple[int, int]] = set()
        master, port = os.environ["MASTER_ADDR"], number_in("MASTER_PORT")
        all_here = number_in("LOCAL_WORLD_SIZE", "1") == self.size
        address = "127.0.0.1" if all_here else own_address(master, port)
        self._heartbeat = Heartbeat(self.rank, address)
        try:
            store = self._store(master, port)
            peers = self._meet(store)
            _check_reachable(peers)
            self._heartbeat.watch(peers, patience)
            self._gloo = self._connect(store, address)
        except BaseException:
            self._heartbeat.close()
            raise

    def close(self) -> None:
        """End the connections."""
        self._heartbeat.close()
        del self._gloo  # joins its threads

    def check(self) -> None:
        """Raise where somebody has not been heard for the patience."""
        if lost := self._heartbeat.lost():
            raise LostProcess(f"{_names(lost)} not been heard for {self._patience:g} s.")

    def reduce(self, values: NDArray[Any], operation: Literal["SUM", "MAX"]) -> NDArray[Any]:
        """Return the values of all processes, reduced to one array."""
        options = self._dist.AllreduceOptions()
        options.reduceOp = getattr(self._dist.ReduceOp, operation)
        return self._run(values, lambda tensors: self._gloo.allreduce(tensors, options))

    def broadcast(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return rank 0's values."""
        options = self._dist.BroadcastOptions()
        options.rootRank = 0
        return self._run(values, lambda tensors: self._gloo.broadcast(tensors, options))

    def _run(self, values: NDArray[Any], collective: Callable[[list[Any]], Any]) -> NDArray[Any]:
        tensor = self._torch.tensor(values)  # a copy: the caller's array stays as it is
        try:
            self._wait(collective([tensor]))
        except RuntimeError as error:
            self._sever()
            raise self._gone() from error
        except BaseException:
            self._sever()
            raise
        return np.asarray(tensor.numpy())

    def _wait(self, work: Any) -> None:
        """Wait as long as everybody is heard."""
        while True:
            try:
                work.wait(_GLANCE)
                return
            except RuntimeError:
                if work.is_completed():  # it has failed, or was done at the last moment
                    work.wait()
                    return
                self.check()

    def _gone(self) -> LostProcess:
        """What to say where a connection was closed from the other side."""
        if silent := self._heartbeat.silent(_FAREWELL):
            return LostProcess(f"{_names(silent)} ended, or cannot be reached.")
        return LostProcess("Another process of this run has given it up.")

    def _sever(self) -> None:
        """Shut the connections: what waits for them fails, here and elsewhere, instead of waiting forever."""
        for number, _ in self._connections & _sockets():
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                connection.getpeername()  # fails for the one that listens: gloo would abort, were that one shut
                connection.shutdown(socket.SHUT_RDWR)

    def _store(self, host: str, port: int) -> Any:
        """Return the store where the processes meet; under torchrun its agent keeps it, otherwise rank 0."""
        leads = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        if not leads and not _within(self._gathering, partial(_answers, host, port)):
            raise LostProcess(
                f"Nobody has answered at {host}:{port} (MASTER_ADDR, MASTER_PORT) for {self._gathering:g} s."
            )
        try:
            store = self._dist.TCPStore(host, port, is_master=leads, wait_for_workers=False)
        except RuntimeError as error:
            raise ValueError(f"Expected to meet the other processes at {host}:{port}: {_first_line(error)}") from error
        return self._dist.PrefixStore(f"airfed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def _meet(self, store: Any) -> list[Peer]:
        """Tell the others where this process is, and wait for them."""
        keys = [str(rank) for rank in range(self.size)]
        try:
            store.set(str(self.rank), self._heartbeat.here.to_text())
            if not _within(self._gathering, lambda: store.check(keys)):
                missing = next(key for key in keys if not store.check([key]))
                raise LostProcess(f"Rank {missing} of {self.size} has not come within {self._gathering:g} s.")
            return [Peer.from_text(rank, store.get(key).decode()) for rank, key in enumerate(keys)]
        except RuntimeError as error:
            raise LostProcess(f"The processes could not meet: {_first_line(error)}") from error

    def _connect(self, store: Any, address: str) -> Any:
        """Connect to every other process, from the address at which this one is known."""
        gloo = self._dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=self._patience)
        before = _sockets()
        try:
            group = gloo(store, self.rank, self.size, options)
        except RuntimeError as error:
            raise self._gone() from error
        self._connections = _sockets() - before
        group._set_default_timeout(_FOREVER)  # how long to wait is for the heartbeat to say
        return group


def number_in(variable: str, default: str = "") -> int:
    """Return the number in a variable of the environment."""
    text = os.environ.get(variable, default)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"Expected {variable} to be a number, as torchrun sets it; it is {text!r}.") from None


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Return whether the condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _answers(host: str, port: int) -> bool:
    """Return whether somebody listens there; torch's own attempts would fill the screen."""
    try:
        socket.create_connection((host, port), timeout=5.0).close()
    except OSError:
        return False
    return True


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _sockets() -> set[tuple[int, int]]:
    """This process's open sockets: the number of each and its inode, since the heartbeat's give theirs to the next."""
    found = set()
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found.add((int(name), status.st_ino))
    return found


def _check_reachable(peers: Sequence[Peer]) -> None:
    """Raise where a host's address means that host alone."""
    inward = [peer for peer in peers if ipaddress.ip_address(peer.address).is_loopback]
    if 0 < len(inward) < len(peers):
        raise ValueError(
            f"Expected addresses that every host reaches; {inward[0]} is known by its own name for itself: "
            "let MASTER_ADDR (torchrun --local-addr or --master-addr) be its address in the network."
        )


def _names(peers: Sequence[Peer]) -> str:
    """The processes as the beginning of a sentence."""
    text = ", ".join(map(str, peers))
    return f"{text[0].upper()}{text[1:]} {'has' if len(peers) == 1 else 'have'}"
