"""Distributed runs: several processes train one run together, each with a part of the devices.

The all-reduce is the superposition: sums of integers, which have the same bits for every number of processes. Only rank
0 draws the noise, keeps the ledger and writes to the disk; the `Shared...` wrappers hide this from the round loop.
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
from airfed.training.loop import NoRecorder, Parameters, Recorder, Round, Stopped, Trainer
from airfed.training.noise import NoiseSource, Vector
from airfed.training.setup import Setup

_FOREVER: Final = timedelta(days=365)  # timeout of an exchange; the heartbeat detects lost processes
_START_TIMEOUT: Final = 300.0  # s, at least, for all processes to start: people start hosts one after the other
_STOPPED: Final = "Another process of this run has stopped."
_BEAT: Final = 1.0  # s between two beats, at most
_BEATS: Final = 20  # within the process_timeout, at least
_MISSED: Final = 4  # missed beats after which a process whose connections are closed has ended
_RTOL: Final = 1e-12  # by which the sums behind a plan may differ between processors


class LostProcess(Exception):
    """Another process of the run has ended or does not respond; this one should end by `leave`."""


class ProcessGroup:
    """The processes of a run; this base class is a group of one process."""

    rank = 0
    size = 1

    def share(self, devices: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the devices that this process trains: every size-th, beginning with the rank-th."""
        return devices[self.rank :: self.size]

    def merge(self, superposition: Superposition) -> None:
        """Add the superpositions of all processes, in each of them."""

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process; all processes must call it together."""
        return flag

    def broadcast(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return rank 0's values in every process."""
        return values


class TorchProcessGroup(ProcessGroup):
    """The processes that torchrun has started.

    If one does not start, or sends no heartbeat for `process_timeout` seconds, every call raises LostProcess.
    """

    def __init__(self, process_timeout: float) -> None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no stack trace for a lost store
        import torch.distributed

        self._torch: Any = torch
        self._timeout, self._start_timeout = process_timeout, max(process_timeout, _START_TIMEOUT)
        self.rank, self.size = _number("RANK"), _number("WORLD_SIZE")
        master, port = os.environ["MASTER_ADDR"], _number("MASTER_PORT")
        address = "127.0.0.1" if _number("LOCAL_WORLD_SIZE", "1") == self.size else own_address(master, port)
        store = self._store(master, port)
        self._heartbeat = Heartbeat(store.clone(), self.rank, self.size, process_timeout)
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
        """Return whether the flag is set in any process."""
        return bool(self._reduce(np.array([int(flag)]), "MAX")[0])

    def broadcast(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return rank 0's values."""
        tensor = self._torch.tensor(values)
        self._run(lambda: self._group.broadcast(tensor, root=0).wait())
        return np.asarray(tensor.numpy())

    def _reduce(self, values: NDArray[Any], operation: str) -> NDArray[Any]:
        tensor = self._torch.tensor(values)  # a copy of the caller's array
        self._run(lambda: self._group.allreduce([tensor], getattr(self._torch.distributed.ReduceOp, operation)).wait())
        return np.asarray(tensor.numpy())

    def _run(self, exchange: Callable[[], Any]) -> Any:
        """Wait for an exchange as long as all processes are alive; an abandoned one hangs in its daemon thread."""
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
                result = done.result(beat.interval)
                self._intact = True
                return result
            except TimeoutError:
                if lost := beat.lost():
                    raise LostProcess(f"{self._have(lost)} not responded for {self._timeout:g} s.") from None
                unreached = unreached + 1 if beat.all_here() else 0
                if unreached >= beat.limit:
                    raise LostProcess(f"Not all processes have reached each other for {self._timeout:g} s.") from None
            except RuntimeError as error:  # the other side has closed a connection
                ended = beat.ended()
                raise LostProcess(f"{self._have(ended)} ended or cannot be reached." if ended else _STOPPED) from error

    def _have(self, ranks: Sequence[int]) -> str:
        """Return the processes as the start of a sentence."""
        text = ", ".join(self._names[rank] for rank in ranks)
        return f"{text[0].upper()}{text[1:]} {'has' if len(ranks) == 1 else 'have'}"

    def _store(self, host: str, port: int) -> Any:
        """Return the store of the process group; torchrun's agent hosts it, otherwise rank 0."""
        leads = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        seconds = self._start_timeout

        def answers() -> bool:  # torch would print every attempt
            with suppress(OSError), socket.create_connection((host, port), timeout=5.0):
                return True
            return False

        if not leads and not _within(seconds, answers):
            raise LostProcess(f"No process has answered at {host}:{port} (MASTER_ADDR, MASTER_PORT) for {seconds:g} s.")
        try:
            store = self._torch.distributed.TCPStore(host, port, is_master=leads, wait_for_workers=False)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"Cannot connect to the other processes at {host}:{port}: {reason}") from error
        return self._torch.distributed.PrefixStore(f"airfed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def _meet(self, store: Any, name: str) -> list[str]:
        """Publish the name of this process, wait for the others, and return all names."""
        keys = [f"name/{rank}" for rank in range(self.size)]
        try:
            store.set(keys[self.rank], name)
            if _within(self._start_timeout, lambda: store.check(keys)):
                return [value.decode() for value in store.multi_get(keys)]
            missing = next(rank for rank, key in enumerate(keys) if not store.check([key]))
        except RuntimeError as error:
            raise LostProcess(_STOPPED) from error
        raise LostProcess(f"Rank {missing} of {self.size} has not started within {self._start_timeout:g} s.")


class Heartbeat:
    """Counts up a key of the store for this process from `start` on, and detects processes that stop counting.

    A thread counts, so a process that computes for hours is alive. Missed beats are counted instead of seconds: if all
    processes sleep and wake together, none is lost. Nothing else uses the connection: a call hangs when it is cut.
    """

    def __init__(self, store: Any, rank: int, size: int, process_timeout: float) -> None:
        self.interval = min(_BEAT, process_timeout / _BEATS)
        self.limit = math.ceil(process_timeout / self.interval)
        self.exchange = 0  # the index of the current exchange of this process
        self._store, self._key = store, f"beat/{rank}"
        self._keys = [f"beat/{one}" for one in range(size)]
        self._missed, self._exchanges = [0] * size, [0] * size
        self._beats = self._seen = self._stale = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._count, name="airfed-heartbeat", daemon=True)
        store.set(self._key, "0 0")  # before any process reads it: reading a missing key blocks

    def start(self) -> None:
        """Start counting, after all processes have created their heartbeats."""
        self._thread.start()

    def close(self, *, wait: bool = False) -> None:
        """Stop counting; `wait` for the thread: Python aborts if it returns from the store during shutdown."""
        self._closed.set()
        if wait:
            self._thread.join(self.limit * self.interval)

    def lost(self) -> list[int]:
        """Return the lost ranks; call once per interval. A lost store counts as rank 0, its host."""
        self._stale = 0 if self._seen != self._beats else self._stale + 1
        self._seen = self._beats
        return [0] if self._stale >= self.limit else self._unresponsive(self.limit)

    def ended(self) -> list[int]:
        """Wait a few beats, and return the ranks that do not respond."""
        for _ in range(3 * _MISSED):
            if not self._thread.is_alive():
                return [0]
            if ranks := self._unresponsive(_MISSED):
                return ranks
            self._closed.wait(self.interval)
        return []

    def all_here(self) -> bool:
        """Return whether all processes are alive and have reached the current exchange."""
        return self._stale <= 1 and not self._unresponsive(2) and min(self._exchanges) >= self.exchange

    def _unresponsive(self, beats: int) -> list[int]:
        return [rank for rank, missed in enumerate(self._missed) if missed >= beats]

    def _count(self) -> None:
        before: list[bytes] = [b""] * len(self._keys)
        with suppress(RuntimeError):  # the store has ended: `ended` and `lost` detect it
            while not self._closed.wait(self.interval):
                self._store.set(self._key, f"{self._beats + 1} {self.exchange}")
                now = self._store.multi_get(self._keys)
                pairs = zip(self._missed, now, before, strict=True)
                self._missed = [missed + 1 if new == old else 0 for missed, new, old in pairs]
                self._exchanges = [int(value.split()[1]) for value in now]
                before = now
                self._beats += 1


def leave(code: int) -> NoReturn:
    """End this process at once: threads may hang in torch, and Python aborts if one returns during shutdown."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def join(process_timeout: float = 50.0) -> Iterator[ProcessGroup]:
    """Yield the process group that torchrun has started, or one of this process alone."""
    if "MASTER_ADDR" in os.environ and _number("WORLD_SIZE", "1") > 1:
        with closing(TorchProcessGroup(process_timeout)) as group:
            yield group
    else:
        yield ProcessGroup()


def own_address(other: str, port: int) -> str:
    """Return the address of this host on the route to another; nothing is sent."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(other, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        why = error.strerror or error
        raise ValueError(f"MASTER_ADDR must be a host that this one can reach, got {other}: {why}.") from None


def _check_reachable(names: Sequence[str]) -> None:
    inward = [name for name in names if "(127." in name or "(::1)" in name]
    if 0 < len(inward) < len(names):
        raise ValueError(
            f"Other hosts cannot reach {inward[0]} at its loopback address. Set MASTER_ADDR (torchrun --local-addr or "
            "--master-addr) to its address in the network."
        )


def _number(variable: str, default: str = "") -> int:
    text = os.environ.get(variable, default)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{variable} must be a whole number, as torchrun sets it, got {text!r}.") from None


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not (true := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return true


@contextmanager
def all_or_none(group: ProcessGroup, otherwise: Exception | None = None) -> Iterator[None]:
    """Run a block in every process; if it fails in one, it fails in all, in the others with `otherwise`."""
    try:
        yield
    except (ValueError, OSError):
        group.any(True)
        raise
    if group.any(False):
        raise otherwise or LostProcess("Another process of this run has failed; its message states the reason.")


def check_equal(group: ProcessGroup, setup: Setup) -> None:
    """Raise RunError unless this process has rank 0's plan and, with seeded noise, trains exactly like it."""
    signal = json.dumps(dict(setup.signal), sort_keys=True).encode()
    fingerprint = _fingerprint(setup.plan)
    mine = np.array([*fingerprint, *hashlib.sha256(signal).digest()], np.float64)
    first = group.broadcast(mine)
    size = len(fingerprint)
    if not np.allclose(first[:size], mine[:size], rtol=_RTOL, atol=0.0):
        raise RunError(
            f"The plan of process {group.rank} differs from that of process 0, so its transmissions would not be "
            "charged. Use the same scenario and files in all processes, and a deterministic policy."
        )
    if setup.noise.repeatable and not np.array_equal(first[size:], mine[size:]):
        raise RunError(
            f"The data, code, versions or processor of process {group.rank} differ from those of process 0, so seeded "
            'noise would repeat for another signal. Make them equal, or use noise_source = "secure".'
        )


def _fingerprint(plan: Plan) -> list[float]:
    """Return values that identify a plan: a digest of the schedule, and moments that are robust to rounding."""
    schedule = hashlib.sha256()
    for row in plan.amplitudes.share:
        schedule.update(np.packbits(row > 0).tobytes())
    totals, beamformer, moments = plan.sequence.totals, plan.beamformer, list[float]()
    square = np.square(plan.amplitudes.level)
    for values in (square, totals.divisor, totals.device_power, totals.exposure, beamformer.real, beamformer.imag):
        # The sum, and one that depends on the order; neither is near 0, where a relative error is meaningless.
        size = float(np.sum(np.abs(values))) or 1.0
        moments += [size, 2.0 * size + float(np.cos(np.arange(1.0, 1.0 + values.size)) @ values.ravel())]
    rule = plan.problem.learning.adaptive_clipping
    moments += [0.0] * 3 if rule is None else [rule.quantile, rule.rate, rule.share]
    return [*schedule.digest(), plan.rounds, plan.clip_norm, plan.mu_round, plan.mu_total, *moments]


class SharedTrainer:
    """Trains this process's part of the devices; afterwards all processes continue, or all stop."""

    def __init__(self, trainer: Trainer, group: ProcessGroup, stop: Callable[[], bool]) -> None:
        self._trainer, self._group, self._stop = trainer, group, stop

    def updates(
        self, parameters: Parameters, devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.floating[Any]]]]:
        """Yield the updates of this process's devices."""
        share = self._group.share(devices)
        yield from self._trainer.updates(parameters, share, steps=steps, round_index=round_index)
        if self._group.any(self._stop()):
            raise Stopped


class SharedNoise:
    """Noise that rank 0 draws once for all processes."""

    def __init__(self, source: NoiseSource, group: ProcessGroup) -> None:
        self._source, self._group = source, group
        self.privacy, self.repeatable = source.privacy, source.repeatable

    def draw(self, round_index: int, dimension: int, noise_std: float, *, transmission: str = "") -> Vector:
        """Return rank 0's draw."""
        if self._group.rank:
            return self._group.broadcast(np.empty(dimension))
        return self._group.broadcast(self._source.draw(round_index, dimension, noise_std, transmission=transmission))


class SharedRecorder(Recorder):
    """The recorder of rank 0; the other processes wait for each charge, and stop if rank 0 fails."""

    def __init__(self, recorder: Recorder | None, group: ProcessGroup, stop: Callable[[], bool]) -> None:
        self._recorder: Recorder = NoRecorder() if recorder is None else recorder
        self._group, self._stop = group, stop

    def charge(self, index: int) -> None:
        """Charge the round in rank 0, before any process transmits."""
        if self._group.any(self._stop()):
            raise Stopped
        with all_or_none(self._group, Stopped()):
            self._recorder.charge(index)

    def send(self, index: int, signal: str) -> str:
        """Record it in rank 0; if that fails, the others stop."""
        with all_or_none(self._group):
            return self._recorder.send(index, signal)

    def settle(self, done: Round) -> None:
        """Settle in rank 0; if that fails, the others stop."""
        with all_or_none(self._group, Stopped()):
            self._recorder.settle(done)
