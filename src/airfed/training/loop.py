"""The second half of Algorithm 2: federated averaging over the air, round by round, readable beside the paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from airfed.aircomp import Reception, Superposition
from airfed.planning import Plan
from airfed.training.noise import NoiseSource

Parameters = NDArray[np.float32]

# A healthy noise source exceeds this with probability below 2e⁻³³ a round (Chernoff, any d). It is 8 standard
# deviations of the empirical variance where d is large; half the σ is seen from d = 104 on.
_NOISE_SURPRISE: Final = 33.0


class Stopped(Exception):
    """Somebody asked for a stop in the middle of a round; the model is as it was before that round."""


class NoiseFault(RuntimeError):
    """The noise that privacy rests on is missing, or not what the plan claims."""


class Diverged(ValueError):
    """Training produced something that is not a number."""


class Trainer(Protocol):
    """The part of an `Engine` that a round needs."""

    def updates(
        self, parameters: Parameters, devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.floating[Any]]]]:
        """Yield (devices, their updates), as `Engine.updates` does; devices that yield nothing are missing."""


class Medium(Protocol):
    """Where signals add up: `airfed.aircomp.Airs`."""

    def open_round(self, dimension: int, index: int) -> Superposition:
        """Return an empty superposition of round `index`."""


class Books(Protocol):
    """Where the rounds of a training are written down."""

    def charge(self, index: int) -> None:
        """Write down a round that is about to be transmitted, on the disk, or raise BudgetExhausted."""

    def send(self, index: int, signal: str) -> str:
        """Write down, on the disk, that a charged round with this digest of its signal is received now.

        Returns a name that sets this transmission's noise apart from that of the same signal elsewhere, or "".
        """

    def settle(self, done: Round) -> None:
        """Write down what a round has really transmitted, and whatever else is kept of it."""


class NoBooks:
    """Nothing is written down: for an audit, or a measurement."""

    def charge(self, index: int) -> None:
        """Charge nothing."""

    def settle(self, done: Round) -> None:
        """Write nothing."""

    def send(self, index: int, signal: str) -> str:
        """Write nothing."""
        return ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """One finished round: its number, the model after it, and what was received."""

    index: int
    steps: int
    parameters: Parameters
    reception: Reception


def federated_averaging(
    plan: Plan,
    air: Medium,
    trainer: Trainer,
    noise: NoiseSource,
    books: Books | None = None,
    *,
    parameters: Parameters,
    first_round: int = 0,
    stop: Callable[[], bool] = lambda: False,
    merge: Callable[[Any], None] = lambda superposition: None,
) -> Iterator[Round]:
    """Yield the rounds of a plan, from `first_round` on: charge, transmit, receive, settle.

    Args:
        plan: K, θ_i, E_i and ϖ_i of each round; τ and σ.
        air: how the uploads arrive.
        trainer: trains the devices.
        noise: draws r^i.
        books: where rounds are charged and settled; without them nothing is written down.
        parameters: m^i at the start.
        first_round: i to begin with.
        stop: asked between chunks of devices; True raises `Stopped`.
        merge: adds the superpositions of other processes to this one's.

    Raises BudgetExhausted before a round that does not fit, NoiseFault for noise that is not what the plan claims, and
    Diverged where every update of a round, or the model, is not a number.

    Implements [Yan23, Algorithm 2], second half.
    Deviations: Algorithm 2 cites (9), (10), (11) for what are (11), (12), (13).
    """
    books = NoBooks() if books is None else books
    for index in range(first_round, plan.rounds):
        books.charge(index)
        superposition = transmit(plan, air, trainer, parameters=parameters, index=index, stop=stop)
        merge(superposition)
        done = receive(plan, superposition, noise, books, parameters=parameters, index=index)
        books.settle(done)
        yield done
        parameters = done.parameters


def transmit(
    plan: Plan,
    air: Medium,
    trainer: Trainer,
    *,
    parameters: Parameters,
    index: int,
    stop: Callable[[], bool] = lambda: False,
) -> Superposition:
    """Let the devices scheduled in round `index` train and send; return their signals, added up in the air."""
    decided = plan.sequence[index]
    superposition = air.open_round(parameters.size, index)
    uploads = trainer.updates(parameters, decided.scheduled, steps=decided.local_steps, round_index=index)
    for chunk, updates in uploads:  # [Yan23, (3)] [Yan23, (4)] [Yan23, (5)]
        if stop():
            raise Stopped
        superposition.add(chunk, updates)  # [Yan23, (11)]
    return superposition


def receive(
    plan: Plan, superposition: Superposition, noise: NoiseSource, books: Books, *, parameters: Parameters, index: int
) -> Round:
    """Add the receiver's noise, recover the mean, step the model along it, and return the finished round.

    The digest of the exact sum is a part of the noise's name: two different signals never get the same noise.
    """
    learning, noise_std = plan.problem.learning, plan.sequence.signal(index).noise_std
    signal = superposition.digest()
    transmission = f"{books.send(index, signal)} {signal}"
    added = noise.draw(index, superposition.noise_size, noise_std, transmission=transmission)
    _check_noise(added.reshape(-1, parameters.size), noise_std)
    reception = superposition.receive(added)  # [Yan23, (12)]
    if reception.usable == 0:
        raise Diverged(f"Round {index + 1}: no device sent a usable update (all are NaN, Inf or missing).")
    with np.errstate(over="ignore"):  # what no longer fits float32 becomes Inf, and is reported
        parameters = (parameters - learning.learning_rate * reception.estimate).astype(np.float32)  # [Yan23, (13)]
    if not np.isfinite(parameters).all():
        raise Diverged(f"Round {index + 1}: the model is no longer finite; try a smaller learning_rate.")
    steps = plan.sequence[index].local_steps
    return Round(index=index, steps=steps, parameters=parameters, reception=reception)


def _check_noise(noise: NDArray[np.float64], noise_std: float) -> None:
    """Raise where the noise (d,), or any part of that of several antennas (2A, d), is missing or not of size σ."""
    noise = np.atleast_2d(noise)
    parts, dimension = noise.shape
    surprise = _NOISE_SURPRISE + math.log(parts)  # the more parts, the more chances of a false alarm
    energy = np.add.reduce(np.square(noise / noise_std), axis=1)
    for size, total in ((dimension * parts, float(energy.sum())), *((dimension, float(part)) for part in energy)):
        variance = total / size
        if not math.isfinite(variance) or variance == 0.0:
            raise NoiseFault("The receiver's noise is missing: nothing would be private.")
        # d·variance is χ² with d degrees of freedom: P(as far off as v, on that side) ≤ exp(−(d/2)(v − 1 − ln v)).
        if size / 2 * (variance - 1.0 - math.log(variance)) > surprise:
            raise NoiseFault(
                f"The receiver's noise has {variance:.4f} times the variance that the plan claims: no ε would hold."
            )
