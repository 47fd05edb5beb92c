"""Checks of the sensitivity: adversarial pairs of updates, without noise.

The claim: in round i the adversary's views of two fleets that differ in device k differ by at most μ_ik times the
standard deviation of the noise, with the plan's μ_ik. The pairs go through `Superposition`, in many shapes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed.aircomp import AirCompRound, ReceivedAggregate
from airfed.audit.subject import Check, Subject

Update = NDArray[Any]
Shape = tuple[int, ...]

FAMILIES: Final = tuple(
    ["huge", "boundary", "above", "layers", "accumulated", "spike", "constant", "denormal", "nan", "inf"]
)
_PAPER: Final = (250, 10, 5000, 20, 16000, 50, 500, 10)  # the paper's network, d = 21840
SHAPES: Final[tuple[Shape, ...]] = ((1,), (7,), (128, 8, 24, 3), (5,) * 20, _PAPER)
_STEPS: Final = (1, 2, 5, 20)
RTOL: Final = 1e-6
_CONTRIBUTION_RTOL: Final = 1e-9  # clipping stays 1e-6 below ϖ, so that rounding cannot exceed it
_MAX_DIMENSION: Final = 50_000
_MAX_ORDERED: Final = 512


def norm(vector: Update) -> float:
    """Return the 2-norm of all entries, without BLAS, whose threads are slow for short vectors."""
    return math.sqrt(float(np.add.reduce(np.square(vector), axis=None)))


def update_of(family: str, rng: np.random.Generator, shape: Shape, clip: float, steps: int) -> Update:
    """Return a flat update for tensors of the given sizes, ϖ and local steps that reveals one clipping bug."""

    def direction(size: int = sum(shape)) -> NDArray[np.float64]:
        vector = rng.normal(size=size)
        return np.asarray(vector / norm(vector))

    match family:
        case "huge":
            return (1e3 * steps * clip * direction()).astype(np.float32)
        case "boundary":  # within rounding of the clip norm, on either side
            return (clip * (1 + rng.uniform(-1e-7, 1e-7)) * direction()).astype(np.float32)
        case "above":  # slightly too long: clipping in float32 exceeds ϖ here
            return (clip * (1 + 2.0**-20) * direction()).astype(np.float32)
        case "layers":  # every tensor at the clip norm: clipping per layer gives a norm of √L ϖ
            return np.concatenate([clip * direction(size) for size in shape])
        case "accumulated":  # every step at the clip norm, in one direction: clipping per step gives a norm of E ϖ
            return steps * clip * direction()
        case "constant":  # the squares of the last size overflow in float32
            return np.full(sum(shape), rng.choice((0.5 * clip, clip, 3e38)), np.float32)
        case "denormal":
            return np.append(np.full(sum(shape) - 1, 5e-324), 2 * clip)
        case "spike":
            vector, value = np.zeros(sum(shape)), 1e30
        case "nan":  # min(1, ϖ/NaN) is 1 or NaN: neither clips
            vector, value = 1e3 * clip * direction(), np.nan
        case _:  # ϖ/Inf·Inf is NaN
            vector, value = (clip * direction()).astype(np.float32), np.inf
    vector[rng.integers(vector.size)] = value
    return vector


@dataclass
class _Tally:
    """The worst case over all pairs; `difference` and `contribution` are relative to the claim of the round."""

    difference: float = 0.0
    contribution: float = 0.0
    finite: bool = True
    reported: bool = True
    divided: bool = True


def sensitivity_checks(subject: Subject, rng: np.random.Generator, *, pairs: int) -> list[Check]:
    """Return the checks by adversarial pairs: difference, contribution, bad updates, divisor and order."""
    tally = _Tally()
    rounds = _rounds(subject)
    turns: Counter[int] = Counter()
    suspects = cache(lambda index: np.argsort(-subject.measured(index), kind="stable"))
    for number, (shape, steps, family) in enumerate(_cases(subject, rng, pairs)):
        index = rounds[number % len(rounds)]
        adaptive = subject.plan.problem.learning.adaptive_clipping is not None
        aircomp = subject.aircomp.at(index, subject.plan.clip_norm * math.exp(rng.normal()) if adaptive else None)
        order = suspects(index)
        device = int(aircomp.scheduled[order[turns[index] % order.size]])
        turns[index] += 1
        update = update_of(family, rng, shape, aircomp.clip_norm, steps)
        _attack(subject, rng, tally, aircomp, index=index, device=device, update=update)
    sequence = subject.plan.sequence
    claim = max(sequence.mus[index] * subject.noise_std_in(index) for index in rounds) / subject.sensitivity
    largest, own = tally.difference * 2 * claim, tally.contribution * claim
    pair = f"largest difference of {pairs} adversarial pairs: {tally.difference:.6f} of the claim"
    single = f"largest contribution of one device: {tally.contribution:.7f} of the claim"
    within, below = tally.difference <= 1 + RTOL, tally.contribution <= 1 + _CONTRIBUTION_RTOL
    pair, single = f"{pair}, threshold {1 + RTOL:.6f}", f"{single}, threshold {1 + _CONTRIBUTION_RTOL:.7f}"
    return [
        Check.of("sensitivity", tally.finite and within, pair, pairs=pairs, largest=largest, claimed=2 * claim),
        Check.of("contribution", tally.finite and below, single, largest=own, claimed=claim),
        Check.of(
            "bad updates",
            tally.finite and tally.reported,
            "updates with a NaN or an Inf count as zero and are reported",
            "an update with a NaN or an Inf is transmitted or not reported",
        ),
        Check.of(
            "divisor",
            tally.divided,
            "the receiver divides by the planned number of devices",
            "the receiver's divisor depends on the devices that answer",
        ),
        _order_check(subject, rng),
    ]


def _rounds(subject: Subject) -> list[int]:
    """Return the rounds to attack, the one with the tightest claim first; one round if all are equal."""
    if subject.plan.constant:
        return [subject.plan.rounds - 1]
    order: list[int] = np.argsort(-subject.exposure[0], kind="stable").tolist()
    return order


def _cases(subject: Subject, rng: np.random.Generator, pairs: int) -> Iterator[tuple[Shape, int, str]]:
    """Return all combinations of shapes, local steps and families, shuffled."""
    own = (min(subject.plan.problem.learning.dimension, _MAX_DIMENSION),)
    cases = [(shape, steps, family) for family in FAMILIES for steps in _STEPS for shape in (*SHAPES, own)]
    return itertools.islice(itertools.cycle([cases[turn] for turn in rng.permutation(len(cases))]), pairs)


def _attack(
    subject: Subject,
    rng: np.random.Generator,
    tally: _Tally,
    aircomp: AirCompRound,
    *,
    index: int,
    device: int,
    update: Update,
) -> None:
    """Let one device send g, −g or nothing, and a few others the same in all three cases.

    With a clipping indicator −3g in place of −g: it flips the indicator of an update g that is not clipped.
    """
    opposite = -3 * update if aircomp.indicator else -update
    claimed = subject.claimed(index, device) * subject.noise_std_in(index) / subject.sensitivity  # its contribution
    others = np.setdiff1d(some_devices(aircomp.scheduled, rng, int(rng.integers(0, 4))), [device])
    common = 10 * aircomp.clip_norm * rng.normal(size=(others.size, update.size))
    plus, minus, absent = (_receive(aircomp, device, sent, others, common) for sent in (update, opposite, None))
    one, other, none = (subject.seen(case) for case in (plus, minus, absent))
    difference = norm(one - other) / (2 * claimed)
    contribution = max(norm(case - none) for case in (one, other)) / claimed
    tally.finite &= math.isfinite(difference) and math.isfinite(contribution)
    tally.difference, tally.contribution = max(tally.difference, difference), max(tally.contribution, contribution)
    if not np.isfinite(update).all():
        tally.reported &= device in plus.refused and device in minus.refused
    planned = aircomp.scheduled.size * aircomp.alignment_coefficient
    tally.divided &= all(
        np.allclose(case.estimate * planned, case.received[: update.size], rtol=1e-9, atol=0.0)
        for case in (plus, absent)
    )


def some_devices(scheduled: NDArray[np.intp], rng: np.random.Generator, count: int) -> NDArray[np.intp]:
    """Return up to `count` of the scheduled devices at random, ascending."""
    return scheduled if count >= scheduled.size else np.sort(rng.choice(scheduled, count, replace=False))


def _receive(
    aircomp: AirCompRound, device: int, update: Update | None, others: NDArray[np.intp], common: NDArray[np.float64]
) -> ReceivedAggregate:
    superposition = aircomp.open_round(common.shape[1])
    if others.size:
        superposition.add(others, common)
    if update is not None:
        superposition.add(np.array([device]), update[None, :])
    return superposition.receive(np.zeros(superposition.noise_size))


def _order_check(subject: Subject, rng: np.random.Generator) -> Check:
    """Return whether the sum is independent of the order and the chunks of devices; otherwise it would leak them."""
    aircomp = subject.aircomp.at(-1)
    devices = some_devices(aircomp.scheduled, rng, _MAX_ORDERED)
    updates = 10 * aircomp.clip_norm * rng.normal(size=(devices.size, 64)).astype(np.float32)
    received = []
    for chunk in (devices.size, 7, 1):
        superposition = aircomp.open_round(64)
        order = rng.permutation(devices.size)
        for first in range(0, devices.size, chunk):
            part = order[first : first + chunk]
            superposition.add(devices[part], updates[part])
        aggregate = superposition.receive(np.zeros(superposition.noise_size))
        received.append(np.append(aggregate.received, subject.seen(aggregate)))
    same = all(np.array_equal(received[0], other) for other in received[1:])
    findings = "sums have the same bits for every order and chunk size", "sums depend on the order of devices"
    return Check.of("order", same, *findings, devices=int(devices.size))
