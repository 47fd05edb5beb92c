"""How far can one device move what is received? Adversarial pairs of updates, with the noise off.

Claimed: in round i the signals that the adversary sees of two neighbours differ by at most μ_i times the standard
deviation of the noise; μ_i is the one that the plan prints. The pairs go through `Superposition`, in many shapes.
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

from airfed.aircomp import Air, Reception
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
_CONTRIBUTION_RTOL: Final = 1e-9  # the clip aims 1e-6 below ϖ, so that even the last digit is on the safe side
_MOST_DIMENSION: Final = 50_000
_MOST_ORDERED: Final = 512


def norm(vector: Update) -> float:
    """Return the 2-norm of all entries; not by BLAS, whose threads are slow to wake for short vectors."""
    return math.sqrt(float(np.add.reduce(np.square(vector), axis=None)))


def update_of(family: str, rng: np.random.Generator, shape: Shape, clip: float, steps: int) -> Update:
    """Return a flat update for tensors of the given sizes, ϖ and local steps, aimed at one mistake in the clip."""

    def direction(size: int = sum(shape)) -> NDArray[np.float64]:
        vector = rng.normal(size=size)
        return np.asarray(vector / norm(vector))

    match family:
        case "huge":
            return (1e3 * steps * clip * direction()).astype(np.float32)
        case "boundary":  # within rounding of the clip norm, on either side
            return (clip * (1 + rng.uniform(-1e-7, 1e-7)) * direction()).astype(np.float32)
        case "above":  # hardly too long: a clip in float32 overshoots here
            return (clip * (1 + 2.0**-20) * direction()).astype(np.float32)
        case "layers":  # every tensor at the clip norm: clipping per layer lets √L times too much through
            return np.concatenate([clip * direction(size) for size in shape])
        case "accumulated":  # every step at the clip norm, in one direction: clipping per step lets E times too much
            return steps * clip * direction()
        case "constant":  # the squares of the last size overflow in float32
            return np.full(sum(shape), rng.choice((0.5 * clip, clip, 3e38)), np.float32)
        case "denormal":
            return np.append(np.full(sum(shape) - 1, 5e-324), 2 * clip)
        case "spike":
            vector, value = np.zeros(sum(shape)), 1e30
        case "nan":  # min(1, ϖ/NaN) is 1 in some languages, NaN in others: neither is a clip
            vector, value = 1e3 * clip * direction(), np.nan
        case _:  # ϖ/Inf·Inf is NaN
            vector, value = (clip * direction()).astype(np.float32), np.inf
    vector[rng.integers(vector.size)] = value
    return vector


@dataclass
class _Tally:
    """The worst that was seen; `moved` and `alone` as shares of what is claimed for the round."""

    moved: float = 0.0
    alone: float = 0.0
    finite: bool = True
    reported: bool = True
    divided: bool = True


def sensitivity_checks(subject: Subject, rng: np.random.Generator, *, pairs: int) -> list[Check]:
    """Return what the adversarial pairs found: difference, contribution, bad updates, divisor and order."""
    tally = _Tally()
    rounds = _rounds(subject)
    turns: Counter[int] = Counter()
    strongest = cache(lambda index: np.argsort(-np.linalg.norm(subject.responses(subject.airs.at(index)), axis=1)))
    for number, (shape, steps, family) in enumerate(_cases(subject, rng, pairs)):
        index = rounds[number % len(rounds)]
        air = subject.airs.at(index)
        order = strongest(index)  # devices in turn
        device = int(air.scheduled[order[turns[index] % order.size]])
        turns[index] += 1
        update = update_of(family, rng, shape, air.clip_norm, steps)
        _attack(subject, rng, tally, index=index, device=device, update=update)
    alone = max(_claimed(subject, index) for index in rounds)
    largest, own = tally.moved * 2 * alone, tally.alone * alone
    moved = f"{pairs} adversarial pairs move the received signal by at most {tally.moved:.6f} of what is claimed"
    added = f"one device contributes at most {tally.alone:.7f} of what is claimed"
    within, below = tally.moved <= 1 + RTOL, tally.alone <= 1 + _CONTRIBUTION_RTOL
    return [
        Check.of("sensitivity", tally.finite and within, moved, pairs=pairs, largest=largest, claimed=2 * alone),
        Check.of("contribution", tally.finite and below, added, largest=own, claimed=alone),
        Check.of(
            "bad updates",
            tally.finite and tally.reported,
            "updates with a NaN or an Inf count as zero and are reported",
            "an update with a NaN or an Inf gets through or goes unreported",
        ),
        Check.of(
            "divisor",
            tally.divided,
            "the receiver divides by the number of devices that were planned",
            "the receiver's divisor changes with who answers",
        ),
        _order_check(subject, rng),
    ]


def _rounds(subject: Subject) -> list[int]:
    """The rounds to attack, the one of the least claim for what is seen first; one where all are alike."""
    if subject.plan.constant:
        return [subject.plan.rounds - 1]
    most, _ = subject.exposure
    order: list[int] = np.argsort(-most / subject.plan.sequence.mus, kind="stable").tolist()
    return order


def _claimed(subject: Subject, index: int) -> float:
    """How much the plan claims that one device adds to what is seen of a round, at most."""
    return subject.plan.sequence[index].mu * subject.noise_std_in(index) / subject.sensitivity


def _cases(subject: Subject, rng: np.random.Generator, pairs: int) -> Iterator[tuple[Shape, int, str]]:
    """Shapes, local steps and families in all combinations, shuffled."""
    own = (min(subject.plan.problem.learning.dimension, _MOST_DIMENSION),)
    cases = [(shape, steps, family) for family in FAMILIES for steps in _STEPS for shape in (*SHAPES, own)]
    return itertools.islice(itertools.cycle([cases[turn] for turn in rng.permutation(len(cases))]), pairs)


def _attack(
    subject: Subject, rng: np.random.Generator, tally: _Tally, *, index: int, device: int, update: Update
) -> None:
    """One device sends g, −g or nothing, a few others the same in all three worlds."""
    air, claimed = subject.airs.at(index), _claimed(subject, index)
    others = np.setdiff1d(some_devices(air.scheduled, rng, int(rng.integers(0, 4))), [device])
    common = 10 * air.clip_norm * rng.normal(size=(others.size, update.size))
    plus, minus, absent = (_receive(air, device, sent, others, common) for sent in (update, -update, None))
    one, other, none = (subject.seen(world) for world in (plus, minus, absent))
    moved = norm(one - other) / (2 * claimed)
    alone = max(norm(world - none) for world in (one, other)) / claimed
    tally.finite &= math.isfinite(moved) and math.isfinite(alone)
    tally.moved, tally.alone = max(tally.moved, moved), max(tally.alone, alone)
    if not np.isfinite(update).all():
        tally.reported &= device in plus.refused and device in minus.refused
    planned = air.scheduled.size * air.alignment_coefficient
    tally.divided &= all(
        np.allclose(world.estimate * planned, world.received, rtol=1e-9, atol=0.0) for world in (plus, absent)
    )


def some_devices(scheduled: NDArray[np.intp], rng: np.random.Generator, count: int) -> NDArray[np.intp]:
    """Return up to `count` of the scheduled devices at random, ascending."""
    return scheduled if count >= scheduled.size else np.sort(rng.choice(scheduled, count, replace=False))


def _receive(
    air: Air, device: int, update: Update | None, others: NDArray[np.intp], common: NDArray[np.float64]
) -> Reception:
    superposition = air.open_round(common.shape[1])
    if others.size:
        superposition.add(others, common)
    if update is not None:
        superposition.add(np.array([device]), update[None, :])
    return superposition.receive(np.zeros(superposition.noise_size))


def _order_check(subject: Subject, rng: np.random.Generator) -> Check:
    """Whether the order and the chunks in which devices are added change the sum: that would leak, too."""
    air = subject.airs.at(-1)
    devices = some_devices(air.scheduled, rng, _MOST_ORDERED)
    updates = 10 * air.clip_norm * rng.normal(size=(devices.size, 64)).astype(np.float32)
    received = []
    for chunk in (devices.size, 7, 1):
        superposition = air.open_round(64)
        order = rng.permutation(devices.size)
        for first in range(0, devices.size, chunk):
            part = order[first : first + chunk]
            superposition.add(devices[part], updates[part])
        reception = superposition.receive(np.zeros(superposition.noise_size))
        received.append(np.append(reception.received, subject.seen(reception)))
    same = all(np.array_equal(received[0], other) for other in received[1:])
    found = "sums have the same bits in any order and chunks", "sums depend on the order of devices"
    return Check.of("order", same, *found, devices=int(devices.size))
