"""Several processes that train one run together: each holds a share of the devices.

The all-reduce is the superposition. `Group` is the ordinary case of one process; `Cluster` joins the processes that
torchrun has started. What they exchange per round is one vector of d + 5 integers (2Ad + 5 with A antennas; d more
where devices are misaligned), the noise, one number and a few flags, whatever the number of devices. The sums are
integers, so their result has the same bits for every number of processes. Rank 0 alone draws the noise, keeps the
ledger and writes to the disk. A process waits for another as long as that one is alive, however long it computes.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from airfed.aircomp import Superposition
from airfed.training.heartbeat import Heartbeat

_FOREVER: Final = timedelta(days=365)  # how long an exchange may take; the heartbeat says when to give it up
_GATHERING: Final = 300.0  # s, at least, for all processes to come: people start hosts one after the other
_GIVEN_UP: Final = "Another process of this run has given it up."
_INTERFACE: Final = "GLOO_SOCKET_IFNAME"  # torch.distributed's variable for the network interface
_SIOCGIFADDR: Final = 0x8915  # Linux: the IPv4 address of an interface


class LostProcess(Exception):
    """Another process of the run has ended or is not alive; this one should end by `leave`."""


class Group:
    """The processes of one run: this one alone."""

    rank = 0
    size = 1

    def share(self, devices: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the devices that this process trains: every size-th, beginning with the rank-th."""
        return devices[self.rank :: self.size]

    def merge(self, superposition: Superposition) -> None:
        """Add the superpositions of all processes, in every one of them."""

    def any(self, flag: bool) -> bool:
        """Return whether the flag is raised in any process; all must call it together."""
        return flag

    def broadcast(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return rank 0's values in every process."""
        return values


class Cluster(Group):
    """The processes that torchrun has started; use it in a `with` statement.

    Args:
        patience: seconds after which a process without a sign of life is lost.

    Raises:
        LostProcess: from any call, where another process has not come or has gone.
        ValueError: the environment does not describe a group of processes.
    """

    def __init__(self, patience: float) -> None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost store is one sentence of ours, not a stack trace
        import torch
        import torch.distributed as dist

        self._torch: Any = torch
        self._dist: Any = dist
        self._patience, self._gathering = patience, max(patience, _GATHERING)
        self.rank, self.size = _number("RANK"), _number("WORLD_SIZE")
        master, port = os.environ["MASTER_ADDR"], _number("MASTER_PORT")
        address = "127.0.0.1" if _number("LOCAL_WORLD_SIZE", "1") == self.size else own_address(master, port)
        if _INTERFACE not in os.environ:
            os.environ[_INTERFACE] = _interface(address)
        store = self._store(master, port)
        self._heartbeat = Heartbeat(store.clone(), self.rank, self.size, patience)
        self._names = self._meet(store, f"rank {self.rank} on {socket.gethostname()} ({address})")
        _check_reachable(self._names)
        self._heartbeat.start()
        group = {"store": store, "rank": self.rank, "world_size": self.size}
        self._run(lambda: dist.init_process_group("gloo", timeout=_FOREVER, **group))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self._heartbeat.close(wait=self._intact)
        if self._intact:  # otherwise a thread may still wait in an exchange, and to destroy it waits for that thread
            self._dist.destroy_process_group()

    def merge(self, superposition: Superposition) -> None:
        """Add the integers of all processes and take the largest norm."""
        superposition.integers = self._reduce(superposition.integers, "SUM")
        superposition.norm_max = float(self._reduce(np.array([superposition.norm_max]), "MAX")[0])

    def any(self, flag: bool) -> bool:
        """Return whether the flag is raised in any process."""
        return bool(self._reduce(np.array([int(flag)]), "MAX")[0])

    def broadcast(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return rank 0's values."""
        tensor = self._torch.tensor(values)
        self._run(lambda: self._dist.broadcast(tensor, src=0))
        return np.asarray(tensor.numpy())

    def _reduce(self, values: NDArray[Any], operation: str) -> NDArray[Any]:
        tensor = self._torch.tensor(values)  # a copy: the caller's array stays as it is
        self._run(lambda: self._dist.all_reduce(tensor, getattr(self._dist.ReduceOp, operation)))
        return np.asarray(tensor.numpy())

    def _run(self, exchange: Callable[[], object]) -> None:
        """Wait for an exchange as long as all processes are alive; one that is given up hangs in its daemon thread."""
        done: Future[None] = Future()

        def work() -> None:
            try:
                exchange()
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)

        beat, unreached, self._intact = self._heartbeat, 0, False
        beat.exchange += 1
        threading.Thread(target=work, daemon=True).start()
        while not self._intact:
            try:
                done.result(beat.interval)
                self._intact = True
            except TimeoutError:
                if lost := beat.lost():
                    raise LostProcess(f"{self._have(lost)} not been heard for {self._patience:g} s.") from None
                unreached = unreached + 1 if beat.all_here() else 0
                if unreached >= beat.limit:
                    raise LostProcess(f"Not all processes have reached each other for {self._patience:g} s.") from None
            except RuntimeError as error:  # the other side has closed a connection
                ended = beat.ended()
                said = f"{self._have(ended)} ended, or cannot be reached." if ended else _GIVEN_UP
                raise LostProcess(said) from error

    def _have(self, ranks: Sequence[int]) -> str:
        """The processes as the beginning of a sentence."""
        text = ", ".join(self._names[rank] for rank in ranks)
        return f"{text[0].upper()}{text[1:]} {'has' if len(ranks) == 1 else 'have'}"

    def _store(self, host: str, port: int) -> Any:
        """Return the store where the processes meet; under torchrun its agent keeps it, otherwise rank 0."""
        leads, seconds = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True", self._gathering
        if not leads and not _within(seconds, lambda: _answers(host, port)):
            raise LostProcess(f"Nobody has answered at {host}:{port} (MASTER_ADDR, MASTER_PORT) for {seconds:g} s.")
        try:
            store = self._dist.TCPStore(host, port, is_master=leads, wait_for_workers=False)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"Expected to meet the other processes at {host}:{port}: {reason}") from error
        return self._dist.PrefixStore(f"airfed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def _meet(self, store: Any, name: str) -> list[str]:
        """Tell the others the name of this process, wait for them, and return all names."""
        keys = [f"name/{rank}" for rank in range(self.size)]
        try:
            store.set(keys[self.rank], name)
            if _within(self._gathering, lambda: store.check(keys)):
                return [value.decode() for value in store.multi_get(keys)]
            missing = next(rank for rank, key in enumerate(keys) if not store.check([key]))
        except RuntimeError as error:
            raise LostProcess(_GIVEN_UP) from error
        raise LostProcess(f"Rank {missing} of {self.size} has not come within {self._gathering:g} s.")


def leave(code: int) -> NoReturn:
    """End this process at once, for threads may hang in torch; Python aborts where one of them comes back meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def join(patience: float = 50.0) -> Iterator[Group]:
    """Yield the processes that torchrun has started together with this one, or `Group`; `patience` as in `Cluster`."""
    if "MASTER_ADDR" in os.environ and _number("WORLD_SIZE", "1") > 1:
        with Cluster(patience) as cluster:
            yield cluster
    else:
        yield Group()


def own_address(other: str, port: int) -> str:
    """Return the address of this host from which it would reach another; nothing is sent."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(other, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        why = error.strerror or error
        raise ValueError(f"Expected MASTER_ADDR to be a host that can be reached from here; {other}: {why}.") from None


def _interface(address: str) -> str:
    """Return the name of the network interface that has an address."""
    import fcntl  # not on Windows

    for _, name in socket.if_nameindex():
        if ipaddress.ip_address(address).is_loopback and name in ("lo", "lo0"):
            return name
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise ValueError(f"Expected {_INTERFACE} to name the network interface of {address}; it could not be found.")


def _check_reachable(names: Sequence[str]) -> None:
    """Raise where a host's address means that host alone."""
    inward = [name for name in names if "(127." in name or "(::1)" in name]
    if 0 < len(inward) < len(names):
        raise ValueError(
            f"Expected addresses that every host reaches; {inward[0]} is known by its own name for itself: "
            "let MASTER_ADDR (torchrun --local-addr or --master-addr) be its address in the network."
        )


def _number(variable: str, default: str = "") -> int:
    """Return the number in a variable of the environment."""
    text = os.environ.get(variable, default)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"Expected {variable} to be a number, as torchrun sets it; it is {text!r}.") from None


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Return whether the condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not (true := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return true


def _answers(host: str, port: int) -> bool:
    """Return whether somebody listens there; torch's own attempts would fill the screen."""
    with suppress(OSError), socket.create_connection((host, port), timeout=5.0):
        return True
    return False
