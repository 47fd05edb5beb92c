"""Over-the-air federated averaging, round by round: the second half of the paper's Algorithm 2."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from airfed.aircomp import ReceivedAggregate, Superposition
from airfed.planning import Plan
from airfed.training.noise import NoiseSource

Parameters = NDArray[np.float32]

# A correct noise source exceeds this with probability below 2·exp(−33) ≈ 1e-14 per round (Chernoff, any d). For large d
# it is 8 standard deviations of the empirical variance; noise of half the σ is detected from d = 104 on.
_NOISE_SURPRISE: Final = 33.0


class Stopped(Exception):
    """A stop was requested during a round; the model is that before the round."""


class NoiseFault(RuntimeError):
    """The receiver's noise is missing or does not have the planned variance."""


class Diverged(ValueError):
    """Training produced values that are not finite."""


class Trainer(Protocol):
    """The part of an `Engine` that a round needs."""

    def updates(
        self, parameters: Parameters, devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.floating[Any]]]]:
        """Yield (devices, their updates), as `Engine.updates` does; devices that yield nothing are missing."""


class MultipleAccessChannel(Protocol):
    """The channel on which signals superpose, such as `airfed.aircomp.AirComp`."""

    def open_round(self, dimension: int, index: int, clip_norm: float | None = None) -> Superposition:
        """Return an empty superposition of round `index`, with ϖ_i of adaptive clipping."""


class Recorder:
    """Records the rounds of a training; this base class records nothing."""

    def charge(self, index: int) -> None:
        """Charge a round before it is transmitted and flush the charge, or raise BudgetExhausted."""

    def send(self, index: int, signal: str) -> str:
        """Record and flush that a charged round, with this digest of its signal, is received now.

        Return a name that distinguishes the noise of this transmission from that of the same signal elsewhere, or "".
        """
        return ""

    def settle(self, done: Round) -> None:
        """Record the transmitted power and the metrics of a round."""


class NoRecorder(Recorder):
    """Records nothing, for audits and pilot runs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """One finished round: its index, the model after it, and the received aggregate."""

    index: int
    steps: int
    parameters: Parameters
    aggregate: ReceivedAggregate
    clip_norm: float  # ϖ_i
    next_clip_norm: float  # ϖ_{i+1}, which differs with adaptive clipping


def federated_averaging(
    plan: Plan,
    aircomp: MultipleAccessChannel,
    trainer: Trainer,
    noise: NoiseSource,
    recorder: Recorder | None = None,
    *,
    parameters: Parameters,
    clip_norm: float | None = None,
    first_round: int = 0,
    stop: Callable[[], bool] = lambda: False,
    merge: Callable[[Any], None] = lambda superposition: None,
) -> Iterator[Round]:
    """Yield the rounds of a plan, from `first_round` on: charge, transmit, receive, settle.

    The updates that the trainer yields superpose in `aircomp`; `noise` is the receiver's r^i. `parameters` and
    `clip_norm` are the model m^i and, with adaptive clipping, ϖ_i at the start. `stop` is called between chunks of
    devices; True raises `Stopped`. `merge` adds the superpositions of other processes.

    Raises BudgetExhausted before a round that exceeds a budget, NoiseFault if the noise does not have the planned
    variance, and Diverged if no update of a round is finite, or the model is not.

    Implements [Yan23, Algorithm 2], second half.
    Deviations: Algorithm 2 cites (9), (10), (11) where (11), (12), (13) are meant.
    """
    recorder = NoRecorder() if recorder is None else recorder
    for index in range(first_round, plan.rounds):
        recorder.charge(index)
        superposition = transmit(
            plan, aircomp, trainer, parameters=parameters, index=index, clip_norm=clip_norm, stop=stop
        )
        merge(superposition)
        done = receive(plan, superposition, noise, recorder, parameters=parameters, index=index)
        recorder.settle(done)
        yield done
        parameters, clip_norm = done.parameters, done.next_clip_norm


def transmit(
    plan: Plan,
    aircomp: MultipleAccessChannel,
    trainer: Trainer,
    *,
    parameters: Parameters,
    index: int,
    clip_norm: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Superposition:
    """Train the devices scheduled in round `index`, and return the superposition of their signals."""
    entry = plan.sequence[index]
    superposition = aircomp.open_round(parameters.size, index, clip_norm)
    uploads = trainer.updates(parameters, entry.scheduled, steps=entry.local_steps, round_index=index)
    for chunk, updates in uploads:  # [Yan23, (3)] [Yan23, (4)] [Yan23, (5)]
        if stop():
            raise Stopped
        superposition.add(chunk, updates)  # [Yan23, (11)]
    return superposition


def receive(
    plan: Plan,
    superposition: Superposition,
    noise: NoiseSource,
    recorder: Recorder,
    *,
    parameters: Parameters,
    index: int,
) -> Round:
    """Add the receiver's noise, recover the mean update, update the model, and return the finished round.

    The digest of the exact sum is part of the noise key: two different signals never get the same noise.
    """
    learning, noise_std = plan.problem.learning, plan.sequence.signal(index).noise_std
    signal = superposition.digest()
    transmission = f"{recorder.send(index, signal)} {signal}"
    added = noise.draw(index, superposition.noise_size, noise_std, transmission=transmission)
    _check_noise(added.reshape(-1, superposition.entries), noise_std)
    aggregate = superposition.receive(added)  # [Yan23, (12)]
    if aggregate.usable == 0:
        raise Diverged(f"Round {index + 1}: no device sent a usable update (all are NaN, Inf or missing).")
    with np.errstate(over="ignore"):  # overflow gives Inf, which is reported below
        parameters = (parameters - learning.learning_rate * aggregate.estimate).astype(np.float32)  # [Yan23, (13)]
    if not np.isfinite(parameters).all():
        raise Diverged(f"Round {index + 1}: the model is no longer finite; try a smaller learning_rate.")
    clip_norm, adaptive = plan.clip_norm, learning.adaptive_clipping
    following = clip_norm
    if adaptive is not None and aggregate.unclipped is not None:
        clip_norm = superposition.aircomp.clip_norm
        following = adaptive.after(clip_norm, aggregate.unclipped, first=plan.clip_norm)
    return Round(
        index=index,
        steps=plan.sequence[index].local_steps,
        parameters=parameters,
        aggregate=aggregate,
        clip_norm=clip_norm,
        next_clip_norm=following,
    )


def _check_noise(noise: NDArray[np.float64], noise_std: float) -> None:
    """Raise NoiseFault if the noise (d,), or a part of that of several antennas (2A, d), does not have variance σ²."""
    noise = np.atleast_2d(noise)
    parts, dimension = noise.shape
    surprise = _NOISE_SURPRISE + math.log(parts)  # the more parts, the more chances of a false alarm
    energy = np.add.reduce(np.square(noise / noise_std), axis=1)
    for size, total in ((dimension * parts, float(energy.sum())), *((dimension, float(part)) for part in energy)):
        variance = total / size
        if not math.isfinite(variance) or variance == 0.0:
            raise NoiseFault("The receiver's noise is missing, so the round would not be private.")
        # d·variance is χ² with d degrees of freedom: P(as far off as v, on that side) ≤ exp(−(d/2)(v − 1 − ln v)).
        if size / 2 * (variance - 1.0 - math.log(variance)) > surprise:
            raise NoiseFault(
                f"The receiver's noise has {variance:.4f} times the planned variance, so the claimed ε would not hold."
            )
