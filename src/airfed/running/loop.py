"""The second half of Algorithm 2: federated averaging over the air, round by round, readable beside the paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from airfed.air import Air, Reception, Superposition
from airfed.planning import Plan
from airfed.running.noise import NoiseSource

Parameters = NDArray[np.float32]

# A round's noise must look like what the plan claims. A healthy source exceeds this with probability below 2e⁻³³ a
# round (Chernoff, any d): no false alarm in 10⁵ rounds but with probability 1e-9. It is 8 standard deviations of the
# empirical variance where d is large; half the σ is seen from d = 104 on.
_NOISE_SURPRISE: Final = 33.0


class Stopped(Exception):
    """Somebody asked for a stop in the middle of a round; the model is as it was before that round."""


class NoiseFault(RuntimeError):
    """The noise that privacy rests on is missing, or not what the plan claims."""


class Diverged(ValueError):
    """Training produced something that is not a number."""


class Trainer(Protocol):
    """The part of an `Engine` that a round needs; the devices may be anywhere."""

    def updates(
        self, parameters: Parameters, devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.floating[Any]]]]:
        """Yield (devices, their updates), as `Engine.updates` does; devices that yield nothing are missing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """One finished round: its number, the model after it, and what was received."""

    index: int
    steps: int
    parameters: Parameters
    reception: Reception


def federated_averaging(
    plan: Plan,
    air: Air,
    engine: Trainer,
    noise: NoiseSource,
    *,
    parameters: Parameters,
    first_round: int = 0,
    devices: NDArray[np.intp] | None = None,
    before_round: Callable[[int], None] = lambda index: None,
    merge: Callable[[Superposition], None] = lambda superposition: None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Round]:
    """Yield the rounds of a plan, from `first_round` on.

    Args:
        plan: K, I, E_i, τ and σ.
        air: how the uploads arrive.
        engine: trains the devices.
        noise: draws r^i.
        parameters: m^i at the start.
        first_round: i to begin with.
        devices: the scheduled devices that this process trains; all of them unless given.
        before_round: called before anything of a round is transmitted (the ledger).
        merge: adds the superpositions of other processes (nothing to add where there is one).
        stop: asked between chunks of devices.

    Raises:
        Stopped: `stop` said so.
        NoiseFault: the noise drawn is not what the plan claims.
        Diverged: every update of a round, or the model, is not a number.

    Implements [Yan23, Algorithm 2], second half.
    Deviations: Algorithm 2 cites (9), (10), (11) for what are (11), (12), (13).
    """
    learning, link = plan.problem.learning, plan.problem.link
    devices = plan.scheduled if devices is None else devices
    for index in range(first_round, plan.rounds):
        before_round(index)
        superposition = air.open_round(learning.dimension)
        uploads = engine.updates(parameters, devices, steps=plan.local_steps[index], round_index=index)
        for chunk, updates in uploads:  # [Yan23, (3)] [Yan23, (4)] [Yan23, (5)]
            if stop():
                raise Stopped
            superposition.add(chunk, updates)  # [Yan23, (11)]
        merge(superposition)
        received = noise.draw(index, learning.dimension, link.noise_std)
        _check_noise(received, link.noise_std)
        reception = superposition.receive(received)  # [Yan23, (12)]
        if reception.usable == 0:
            raise Diverged(f"Round {index}: no device sent a usable update (all are NaN, Inf or missing).")
        with np.errstate(over="ignore"):  # what no longer fits float32 becomes Inf, and is reported
            parameters = (parameters - learning.learning_rate * reception.estimate).astype(np.float32)  # [Yan23, (13)]
        if not np.isfinite(parameters).all():
            raise Diverged(f"Round {index}: the model is no longer finite; try a smaller learning_rate.")
        yield Round(index=index, steps=plan.local_steps[index], parameters=parameters, reception=reception)


def _check_noise(noise: NDArray[np.float64], noise_std: float) -> None:
    """Raise where the noise that privacy rests on is missing or of another size than planned."""
    dimension = noise.size
    variance = float(np.add.reduce(np.square(noise / noise_std))) / dimension
    if not np.all(np.isfinite(noise)) or variance == 0.0:
        raise NoiseFault("The receiver's noise is missing: nothing would be private.")
    # d·variance is χ² with d degrees of freedom: P(as far off as v, on that side) ≤ exp(−(d/2)(v − 1 − ln v)).
    if dimension / 2 * (variance - 1.0 - math.log(variance)) > _NOISE_SURPRISE:
        raise NoiseFault(
            f"The receiver's noise has {variance:.4f} times the variance that the plan claims: no ε would hold."
        )
