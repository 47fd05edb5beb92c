"""One training in several processes: wrappers around trainer, noise and books that keep them in step.

Each process trains its share of the devices; the superpositions are added before they are received; rank 0 alone draws
the noise and keeps the books. Nothing else knows that there are several.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed.planning import Plan
from airfed.training.cluster import Group, LostProcess
from airfed.training.directory import RunError
from airfed.training.loop import Books, NoBooks, Parameters, Round, Stopped, Trainer
from airfed.training.noise import NoiseSource
from airfed.training.setup import Setup

_RTOL: Final = 1e-12  # by which the sums behind a decision may differ from one processor to another


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
    """Raise unless every process transmits what rank 0 charges, and trains exactly as it does where noise is seeded.

    The decision must be the same whatever the noise: a policy of the user's own may decide another time otherwise.
    What is trained must be the same data, code, versions and probe update.

    Raises:
        RunError: this one does not.
    """
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
    totals, beamformer = plan.sequence.totals, plan.combiner
    figures = (np.square(plan.amplitudes.level), totals.divisor, totals.device_power, beamformer.real, beamformer.imag)
    moments = [moment for values in figures for moment in _moments(values)]
    return [*schedule.digest(), plan.rounds, plan.clip_norm, plan.mu_round, plan.mu_total, *moments]


def _moments(values: NDArray[np.float64]) -> list[float]:
    """The sum, and one in which the order counts; none of them is near 0, where a relative error says nothing."""
    size = float(np.sum(np.abs(values))) or 1.0
    return [size, 2.0 * size + float(np.cos(np.arange(1.0, 1.0 + values.size)) @ values.ravel())]


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

    def draw(
        self, round_index: int, dimension: int, noise_std: float, *, transmission: str = ""
    ) -> NDArray[np.float64]:
        """Return rank 0's draw."""
        if self._group.rank:
            return self._group.broadcast(np.empty(dimension))
        return self._group.broadcast(self._source.draw(round_index, dimension, noise_std, transmission=transmission))


class SharedBooks:
    """Books that rank 0 keeps; the others wait for each charge, and stop where rank 0 cannot go on."""

    def __init__(self, books: Books | None, group: Group, stop: Callable[[], bool], *, last_round: int) -> None:
        self._books: Books = NoBooks() if books is None else books
        self._group, self._stop, self._last_round = group, stop, last_round

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
        """Settle in rank 0; where that fails, the others, who wait at the next charge, are told."""
        try:
            self._books.settle(done)
        except (ValueError, OSError):
            if done.index < self._last_round:
                self._group.any(True)
            raise
