"""Checks of the sensitivity: adversarial pairs of updates, and adjacent trainings through the real round loop.

The claim: in round i the adversary's views of two fleets that differ in device k differ by at most μ_ik times the
standard deviation of the noise, with the plan's μ_ik. Pairs of updates go through `Superposition`, in many shapes,
without noise. In two adjacent trainings one device's data is replaced by extreme data. Devices train on a quadratic
task with many local steps, or send adversarial updates. Both trainings have the same noise, which cancels in their
difference. They also show whether only the noisy aggregate is released.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from functools import cache, reduce
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed.aircomp import AirCompRound, ReceivedAggregate
from airfed.audit.subject import Check, ScriptedEngine, Subject
from airfed.clipping import FARTHEST
from airfed.learning.quadratic import QuadraticEngine, QuadraticTask
from airfed.planning import Plan
from airfed.training.loop import NoiseFault, Round
from airfed.training.noise import SeededNoise, Vector

Update = NDArray[Any]
Shape = tuple[int, ...]

_FAMILIES: Final = tuple(
    ["huge", "boundary", "above", "layers", "accumulated", "spike", "constant", "denormal", "nan", "inf"]
)
_PAPER: Final = (250, 10, 5000, 20, 16000, 50, 500, 10)  # the paper's network, d = 21840
_SHAPES: Final[tuple[Shape, ...]] = ((1,), (7,), (128, 8, 24, 3), (5,) * 20, _PAPER)
_STEPS: Final = (1, 2, 5, 20)
_RTOL: Final = 1e-6
_CONTRIBUTION_RTOL: Final = 1e-9  # clipping stays 1e-6 below ϖ, so that rounding cannot exceed it
_MAX_DIMENSION: Final = 50_000  # of the pairs
_MAX_ORDERED: Final = 512
_MAX_TRAINED: Final = 200_000  # dimension of the adjacent trainings
_TRAINED: Final = 12  # devices


def _norm(vector: Update) -> float:
    """Return the 2-norm of all entries, without BLAS, whose threads are slow for short vectors."""
    return math.sqrt(float(np.add.reduce(np.square(vector), axis=None)))


def _update_of(family: str, rng: np.random.Generator, shape: Shape, clip: float, steps: int) -> Update:
    """Return a flat update for tensors of the given sizes, ϖ and local steps that reveals one clipping bug."""

    def direction(size: int = sum(shape)) -> NDArray[np.float64]:
        vector = rng.normal(size=size)
        return np.asarray(vector / _norm(vector))

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


def sensitivity_checks(subject: Subject, rng: np.random.Generator, *, pairs: int) -> list[Check]:
    """Return the checks by adversarial pairs: difference, contribution, bad updates, divisor and order."""
    found, plan = [], subject.plan  # the round with the tightest claim comes first; one round if all are equal
    rounds = [plan.rounds - 1] if plan.constant else np.argsort(-subject.exposure[0], kind="stable").tolist()
    turns: Counter[int] = Counter()
    suspects = cache(lambda index: np.argsort(-subject.measured(index), kind="stable"))
    own = (min(plan.problem.learning.dimension, _MAX_DIMENSION),)
    cases = list(itertools.product(_FAMILIES, _STEPS, (*_SHAPES, own)))
    shuffled = itertools.cycle([cases[turn] for turn in rng.permutation(len(cases))])
    for number, (family, steps, shape) in enumerate(itertools.islice(shuffled, pairs)):
        index = rounds[number % len(rounds)]
        adaptive = plan.problem.learning.adaptive_clipping is not None
        aircomp = subject.aircomp.at(index, plan.clip_norm * math.exp(rng.normal()) if adaptive else None)
        order = suspects(index)
        device = int(aircomp.scheduled[order[turns[index] % order.size]])
        turns[index] += 1
        update = _update_of(family, rng, shape, aircomp.clip_norm, steps)
        found.append(_attack(subject, rng, aircomp, index=index, device=device, update=update))
    differences, contributions, reported, divided = map(np.array, zip(*found, strict=True))
    difference, contribution = (float(np.fmax.reduce(each, initial=0.0)) for each in (differences, contributions))
    finite = bool(np.isfinite(differences).all() and np.isfinite(contributions).all())
    claim = max(plan.sequence.mus[index] * subject.noise_std_in(index) for index in rounds) / subject.sensitivity
    pair = f"largest difference of {pairs} adversarial pairs: {difference:.6f} of the claim"
    single = f"largest contribution of one device: {contribution:.7f} of the claim"
    within, below = difference <= 1 + _RTOL, contribution <= 1 + _CONTRIBUTION_RTOL
    pair, single = f"{pair}, threshold {1 + _RTOL:.6f}", f"{single}, threshold {1 + _CONTRIBUTION_RTOL:.7f}"
    sizes = {"largest": difference * 2 * claim, "claimed": 2 * claim}
    return [
        Check.of("sensitivity", finite and within, pair, pairs=pairs, **sizes),
        Check.of("contribution", finite and below, single, largest=contribution * claim, claimed=claim),
        Check.of(
            "bad updates",
            finite and bool(reported.all()),
            "updates with a NaN or an Inf count as zero and are reported",
            "an update with a NaN or an Inf is transmitted or not reported",
        ),
        Check.of(
            "divisor",
            bool(divided.all()),
            "the receiver divides by the planned number of devices",
            "the receiver's divisor depends on the devices that answer",
        ),
        _order_check(subject, rng),
    ]


def _attack(
    subject: Subject,
    rng: np.random.Generator,
    aircomp: AirCompRound,
    *,
    index: int,
    device: int,
    update: Update,
) -> tuple[float, float, bool, bool]:
    """Let one device send g, −g or nothing, and a few others the same in all three cases.

    Return the difference and the contribution over the claim, whether bad updates are reported, and whether the divisor
    is the planned one. With a clipping indicator −3g in place of −g: it flips that of an update g that is not clipped.
    """
    opposite = -3 * update if aircomp.indicator else -update
    claimed = subject.claimed(index, device) * subject.noise_std_in(index) / subject.sensitivity  # its contribution
    others = np.setdiff1d(_some_devices(aircomp.scheduled, rng, int(rng.integers(0, 4))), [device])
    common = 10 * aircomp.clip_norm * rng.normal(size=(others.size, update.size))
    plus, minus, absent = (_receive(aircomp, device, sent, others, common) for sent in (update, opposite, None))
    one, other, none = (subject.seen(case) for case in (plus, minus, absent))
    difference = _norm(one - other) / (2 * claimed)
    contribution = max(_norm(case - none) for case in (one, other)) / claimed
    reported = np.isfinite(update).all() or (device in plus.refused and device in minus.refused)
    planned = aircomp.scheduled.size * aircomp.alignment_coefficient
    divided = all(
        np.allclose(case.estimate * planned, case.received[: update.size], rtol=1e-9, atol=0.0)
        for case in (plus, absent)
    )
    return difference, contribution, bool(reported), divided


def _some_devices(scheduled: NDArray[np.intp], rng: np.random.Generator, count: int) -> NDArray[np.intp]:
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
    devices = _some_devices(aircomp.scheduled, rng, _MAX_ORDERED)
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


def round_loop_checks(subject: Subject, rng: np.random.Generator) -> list[Check]:
    """Return by how much adjacent trainings differ, and whether the models depend on the noisy aggregate only."""
    sends = subject.target_rounds  # the first, the middle and the last of them are tested
    rounds = sorted({int(sends[position]) for position in (0, sends.size // 2, -1)})
    largest, released, count = 0.0, True, 0
    pairs = 2 / subject.sensitivity  # the pairs replace a device's data
    device = subject.target_device
    claims = [subject.claimed(index, device) * subject.noise_std_in(index) * pairs for index in rounds]
    try:
        for plus, minus in _adjacent(subject, rounds, rng):
            count += 1
            ones, others = list(_train(subject, plus, rounds)), list(_train(subject, minus, rounds))
            for one, other, claimed in zip(ones, others, claims, strict=True):
                seen = subject.seen(one.aggregate)
                noise_std = subject.plan.sequence.signal(one.index).noise_std
                slack = 4e-16 * noise_std * math.sqrt(seen.size)  # rounding of the noise
                difference = _norm(seen - subject.seen(other.aggregate))
                largest = max(largest, (difference - slack) / claimed)
            released &= _only_noisy(subject.plan, ones) and _only_noisy(subject.plan, others)
    except NoiseFault as fault:
        return [Check.of("round loop", False, str(fault))]
    finding = f"largest difference of {count} adjacent trainings: {largest:.6f} of the claim, threshold {1 + _RTOL:.6f}"
    most = max(claims)
    clean = "each model follows from the noisy aggregate"
    leak = "the model does not follow from the noisy aggregate: something is released without noise"
    return [
        Check.of("round loop", largest <= 1 + _RTOL, finding, pairs=count, largest=largest * most, claimed=most),
        Check.of("release", released, clean, leak),
    ]


def _adjacent(
    subject: Subject, rounds: list[int], rng: np.random.Generator
) -> Iterator[tuple[ScriptedEngine, ScriptedEngine]]:
    """Yield pairs of engines that differ in one device's data, with 1 to 20 local steps."""
    device = subject.target_device
    everywhere = reduce(np.intersect1d, (subject.plan.sequence[index].scheduled for index in rounds))
    devices = np.union1d(_some_devices(everywhere, rng, _TRAINED), [device]).astype(np.intp)
    for steps in (1, 2, 5, 20):
        task = QuadraticTask(
            dimension=64, num_devices=subject.plan.problem.fleet.num_devices, smoothness=10.0, strong_convexity=0.1
        )
        engine = QuadraticEngine(task, learning_rate=0.05)
        for factor in (-1.0, 1e6, -1e30):
            yield _scaled(engine, devices, device, 1e3, steps), _scaled(engine, devices, device, factor, steps)
    own = min(subject.plan.problem.learning.dimension, _MAX_TRAINED)
    clip = subject.plan.clip_norm
    for shape in (*_SHAPES[:4], (own,)):
        family = _FAMILIES[int(rng.integers(len(_FAMILIES)))]
        updates = 3 * clip * rng.normal(size=(devices.size, sum(shape)))
        replaced = _update_of(family, rng, shape, clip, 1)
        if devices.size == 1 and not np.isfinite(replaced).all():  # a round needs one usable update
            replaced = _update_of("huge", rng, shape, clip, 1)
        updates[devices == device] = replaced
        plus = ScriptedEngine.of(devices, updates.copy())
        adaptive = subject.plan.problem.learning.adaptive_clipping is not None
        updates[devices == device] = -replaced * (3 if adaptive else 1)  # 3: to flip the clipping indicator
        yield plus, ScriptedEngine.of(devices, updates)


def _scaled(
    engine: QuadraticEngine, devices: NDArray[np.intp], device: int, factor: float, steps: int
) -> ScriptedEngine:
    """Return an engine that trains from a model of zeros; one device's update is multiplied by `factor`."""

    def script(*given: object) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        start = np.zeros(engine.dimension, np.float32)
        for part, updates in engine.updates(start, devices, steps=steps, round_index=0):
            changed = np.array(updates)
            changed[part == device] *= factor
            yield part, changed

    return ScriptedEngine(engine.dimension, script)


class _SameNoise(SeededNoise):
    """Noise that does not depend on the signal, so that it cancels in the difference of two adjacent trainings."""

    def draw(self, round_index: int, dimension: int, noise_std: float, *, transmission: str = "") -> Vector:
        return super().draw(round_index, dimension, noise_std)


def _train(subject: Subject, engine: ScriptedEngine, rounds: list[int]) -> Iterator[Round]:
    noise = _SameNoise(hashlib.sha256(f"round loop {engine.dimension}".encode()).digest())
    return subject.train(engine, noise, rounds)


def _only_noisy(plan: Plan, rounds: list[Round]) -> bool:
    """Return whether m^{i+1} is m^i − τ y/(|K|ν_i) for the noisy y, and an adaptive ϖ_{i+1} follows from y."""
    model, adaptive = np.zeros_like(rounds[0].parameters), plan.problem.learning.adaptive_clipping
    for done in rounds:
        planned, received = plan.sequence[done.index].signal.divisor / done.clip_norm, done.aggregate.received
        if adaptive is not None:
            signs = received[-1] / (planned * done.clip_norm * math.sqrt(adaptive.share / (1 - adaptive.share)))
            moved = done.clip_norm * math.exp(-adaptive.rate * ((1 + signs) / 2 - adaptive.quantile))
            moved = min(max(moved, plan.clip_norm / FARTHEST), plan.clip_norm * FARTHEST)
            if not math.isclose(done.next_clip_norm, moved, rel_tol=1e-9):
                return False
        step = plan.problem.learning.learning_rate * received[: model.size] / planned
        model = (model - step).astype(np.float32)
        scale = float(np.max(np.abs(model)))
        if not np.allclose(done.parameters, model, rtol=1e-5, atol=1e-6 * scale):
            return False
        model = done.parameters
    return True
