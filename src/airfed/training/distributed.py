"""Several processes that train one run together: each holds a share of the devices.

The all-reduce is the superposition. Per round the processes exchange one vector of d + 5 integers (2Ad + 5 with A
antennas; d more where devices are misaligned), the noise, one number and a few flags, whatever the number of devices.
The sums are integers, so their result has the same bits for every number of processes. Rank 0 alone draws the noise,
keeps the ledger and writes to the disk; the `Shared...` wrappers see to that, and the round loop knows nothing of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from airfed.aircomp import Superposition
from airfed.planning import Plan
from airfed.training.directory import RunError
from airfed.training.loop import Books, NoBooks, Parameters, Round, Stopped, Trainer
from airfed.training.noise import NoiseSource, Vector
from airfed.training.setup import Setup

_FOREVER: Final = timedelta(days=365)  # how long an exchange may take; the heartbeat says when to give it up
_GATHERING: Final = 300.0  # s, at least, for all processes to come: people start hosts one after the other
_GIVEN_UP: Final = "Another process of this run has given it up."
_BEAT: Final = 1.0  # s between two beats, at most
_BEATS: Final = 20  # within the patience, at least
_SILENT: Final = 4  # beats without a sign of a process whose connections are closed: it has ended
_RTOL: Final = 1e-12  # by which the sums behind a plan may differ from one processor to another


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
    """The processes that torchrun has started.

    A process waits for another as long as that one is alive, however long it computes. Where one has not come, or has
    given no sign of life for `patience` seconds, any call raises LostProcess.
    """

    def __init__(self, patience: float) -> None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost store is one sentence of ours, not a stack trace
        import torch.distributed

        self._torch: Any = torch
        self._patience, self._gathering = patience, max(patience, _GATHERING)
        self.rank, self.size = _number("RANK"), _number("WORLD_SIZE")
        master, port = os.environ["MASTER_ADDR"], _number("MASTER_PORT")
        address = "127.0.0.1" if _number("LOCAL_WORLD_SIZE", "1") == self.size else own_address(master, port)
        store = self._store(master, port)
        self._heartbeat = Heartbeat(store.clone(), self.rank, self.size, patience)
        self._names = self._meet(store, f"rank {self.rank} on {socket.gethostname()} ({address})")
        _check_reachable(self._names)
        self._heartbeat.start()
        interface, gloo = os.environ.get("GLOO_SOCKET_IFNAME"), self._torch.distributed.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = _FOREVER
        options._devices = [gloo.create_device(interface=interface) if interface else gloo.create_device(address)]
        self._group = self._run(lambda: gloo(store, self.rank, self.size, options))

    def close(self) -> None:
        """Leave the group."""
        self._heartbeat.close(wait=self._intact)

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
        self._run(lambda: self._group.broadcast(tensor, root=0).wait())
        return np.asarray(tensor.numpy())

    def _reduce(self, values: NDArray[Any], operation: str) -> NDArray[Any]:
        tensor = self._torch.tensor(values)  # a copy: the caller's array stays as it is
        self._run(lambda: self._group.allreduce([tensor], getattr(self._torch.distributed.ReduceOp, operation)).wait())
        return np.asarray(tensor.numpy())

    def _run(self, exchange: Callable[[], Any]) -> Any:
        """Wait for an exchange as long as all processes are alive; one that is given up hangs in its daemon thread."""
        done: Future[Any] = Future()

        def work() -> None:
            try:
                done.set_result(exchange())
            except BaseException as error:
                done.set_exception(error)

        beat, unreached, self._intact = self._heartbeat, 0, False
        beat.exchange += 1
        threading.Thread(target=work, daemon=True).start()
        while True:
            try:
                found = done.result(beat.interval)
                self._intact = True
                return found
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
        """The store where the processes meet; under torchrun its agent keeps it, otherwise rank 0."""
        leads, seconds = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True", self._gathering

        def answers() -> bool:  # torch's own attempts would fill the screen
            with suppress(OSError), socket.create_connection((host, port), timeout=5.0):
                return True
            return False

        if not leads and not _within(seconds, answers):
            raise LostProcess(f"Nobody has answered at {host}:{port} (MASTER_ADDR, MASTER_PORT) for {seconds:g} s.")
        try:
            store = self._torch.distributed.TCPStore(host, port, is_master=leads, wait_for_workers=False)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"Expected to meet the other processes at {host}:{port}: {reason}") from error
        return self._torch.distributed.PrefixStore(f"airfed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

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


class Heartbeat:
    """Counts for this process in a key of the store from `start` on, and knows which processes have stopped counting.

    A thread counts, so a process that computes for hours is alive, and one that is stopped, or cut off from the store,
    is not. Silence is counted in beats, not by the clock: processes that sleep and wake together lose nobody. Nothing
    else uses the connection to the store: a call to one that is cut off hangs.
    """

    def __init__(self, store: Any, rank: int, size: int, patience: float) -> None:
        self.interval = min(_BEAT, patience / _BEATS)
        self.limit = math.ceil(patience / self.interval)
        self.exchange = 0  # the exchange with the others that this process has come to
        self._store, self._key = store, f"beat/{rank}"
        self._keys = [f"beat/{one}" for one in range(size)]
        self._missed, self._exchanges = [0] * size, [0] * size
        self._beats = self._seen = self._stale = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._count, name="airfed-heartbeat", daemon=True)
        store.set(self._key, "0 0")  # before anybody looks: reading a key that is missing waits for it

    def start(self) -> None:
        """Begin to count; all processes have made their heartbeats."""
        self._thread.start()

    def close(self, *, wait: bool = False) -> None:
        """Fall silent; `wait` for the thread: Python aborts where one comes back from the store while it ends."""
        self._closed.set()
        if wait:
            self._thread.join(self.limit * self.interval)

    def lost(self) -> list[int]:
        """Return the ranks that are lost; a waiting process asks once an interval. A dead store is rank 0, its host."""
        self._stale = 0 if self._seen != self._beats else self._stale + 1
        self._seen = self._beats
        return [0] if self._stale >= self.limit else self._silent(self.limit)

    def ended(self) -> list[int]:
        """Wait a few beats, and return the ranks that are silent."""
        for _ in range(3 * _SILENT):
            if not self._thread.is_alive():
                return [0]
            if silent := self._silent(_SILENT):
                return silent
            self._closed.wait(self.interval)
        return []

    def all_here(self) -> bool:
        """Return whether all processes are alive and have come to the exchange in which this one waits."""
        return self._stale <= 1 and not self._silent(2) and min(self._exchanges) >= self.exchange

    def _silent(self, beats: int) -> list[int]:
        return [rank for rank, missed in enumerate(self._missed) if missed >= beats]

    def _count(self) -> None:
        before: list[bytes] = [b""] * len(self._keys)
        with suppress(RuntimeError):  # the store has ended: `ended` and `lost` notice
            while not self._closed.wait(self.interval):
                self._store.set(self._key, f"{self._beats + 1} {self.exchange}")
                now = self._store.multi_get(self._keys)
                pairs = zip(self._missed, now, before, strict=True)
                self._missed = [missed + 1 if new == old else 0 for missed, new, old in pairs]
                self._exchanges = [int(value.split()[1]) for value in now]
                before = now
                self._beats += 1


def leave(code: int) -> NoReturn:
    """End this process at once, for threads may hang in torch; Python aborts where one of them comes back meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def join(patience: float = 50.0) -> Iterator[Group]:
    """Yield the processes that torchrun has started together with this one, or `Group`; `patience` as in `Cluster`."""
    if "MASTER_ADDR" in os.environ and _number("WORLD_SIZE", "1") > 1:
        with closing(Cluster(patience)) as cluster:
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


def _check_reachable(names: Sequence[str]) -> None:
    inward = [name for name in names if "(127." in name or "(::1)" in name]
    if 0 < len(inward) < len(names):
        raise ValueError(
            f"Expected addresses that every host reaches; {inward[0]} is known by its own name for itself: "
            "let MASTER_ADDR (torchrun --local-addr or --master-addr) be its address in the network."
        )


def _number(variable: str, default: str = "") -> int:
    text = os.environ.get(variable, default)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"Expected {variable} to be a number, as torchrun sets it; it is {text!r}.") from None


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not (true := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return true


@contextmanager
def all_or_none(group: Group, otherwise: Exception | None = None) -> Iterator[None]:
    """Take a step in every process: where it fails in one of them, it fails in all, elsewhere with `otherwise`."""
    try:
        yield
    except (ValueError, OSError):
        group.any(True)
        raise
    if group.any(False):
        raise otherwise or LostProcess("Another process of this run could not go on; what it says is the reason.")


def check_equal(group: Group, setup: Setup) -> None:
    """Raise RunError unless this process has rank 0's plan and, where noise is seeded, trains exactly as it does."""
    signal = json.dumps(dict(setup.signal), sort_keys=True).encode()
    decision = _decision(setup.plan)
    mine = np.array([*decision, *hashlib.sha256(signal).digest()], np.float64)
    first = group.broadcast(mine)  # the same calls in every process, whatever it has been told
    decided = len(decision)
    if not np.allclose(first[:decided], mine[:decided], rtol=_RTOL, atol=0.0):
        raise RunError(
            f"Expected process {group.rank} to decide as process 0 does; its plan is another, and what it sends would "
            "not be charged. Give all of them the same scenario and files, and a policy that decides once and for all."
        )
    if setup.noise.repeatable and not np.array_equal(first[decided:], mine[decided:]):
        raise RunError(
            f"Expected process {group.rank} to train as process 0 does; its data, code, versions or processor differ, "
            'and seeded noise would repeat for another signal. Make them equal, or use noise_source = "secure".'
        )


def _decision(plan: Plan) -> list[float]:
    """Figures that tell one plan from another: a digest of the schedule, and moments that rounding hardly moves."""
    schedule = hashlib.sha256()
    for row in plan.amplitudes.share:
        schedule.update(np.packbits(row > 0).tobytes())
    totals, beamformer, moments = plan.sequence.totals, plan.combiner, list[float]()
    square = np.square(plan.amplitudes.level)
    for values in (square, totals.divisor, totals.device_power, beamformer.real, beamformer.imag):
        # The sum, and one in which the order counts; none is near 0, where a relative error says nothing.
        size = float(np.sum(np.abs(values))) or 1.0
        moments += [size, 2.0 * size + float(np.cos(np.arange(1.0, 1.0 + values.size)) @ values.ravel())]
    return [*schedule.digest(), plan.rounds, plan.clip_norm, plan.mu_round, plan.mu_total, *moments]


class SharedTrainer:
    """Trains this process's share of the devices; at its end all processes go on, or all stop."""

    def __init__(self, trainer: Trainer, group: Group, stop: Callable[[], bool]) -> None:
        self._trainer, self._group, self._stop = trainer, group, stop

    def updates(
        self, parameters: Parameters, devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.floating[Any]]]]:
        """Yield the updates of the share."""
        share = self._group.share(devices)
        yield from self._trainer.updates(parameters, share, steps=steps, round_index=round_index)
        if self._group.any(self._stop()):
            raise Stopped


class SharedNoise:
    """Noise that rank 0 draws, once, for all processes."""

    def __init__(self, source: NoiseSource, group: Group) -> None:
        self._source, self._group = source, group
        self.privacy, self.repeatable = source.privacy, source.repeatable

    def draw(self, round_index: int, dimension: int, noise_std: float, *, transmission: str = "") -> Vector:
        """Return rank 0's draw."""
        if self._group.rank:
            return self._group.broadcast(np.empty(dimension))
        return self._group.broadcast(self._source.draw(round_index, dimension, noise_std, transmission=transmission))


class SharedBooks:
    """Books that rank 0 keeps; the others wait for each charge, and stop where rank 0 cannot go on."""

    def __init__(self, books: Books | None, group: Group, stop: Callable[[], bool]) -> None:
        self._books: Books = NoBooks() if books is None else books
        self._group, self._stop = group, stop

    def charge(self, index: int) -> None:
        """Charge the round in rank 0, before anything of it is transmitted anywhere."""
        if self._group.any(self._stop()):
            raise Stopped
        with all_or_none(self._group, Stopped()):
            self._books.charge(index)

    def send(self, index: int, signal: str) -> str:
        """Write it down in rank 0; where that fails, the others stop."""
        with all_or_none(self._group):
            return self._books.send(index, signal)

    def settle(self, done: Round) -> None:
        """Settle in rank 0; where that fails, the others stop."""
        with all_or_none(self._group, Stopped()):
            self._books.settle(done)
