"""Adjacent trainings through the real round loop: the sensitivity, and whether only the noisy aggregate is released.

Both trainings have the same noise, which cancels in their difference. Devices train on a quadratic task with many local
steps, or send adversarial updates; one device's data is replaced by extreme data.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed.audit.sensitivity import FAMILIES, RTOL, SHAPES, norm, some_devices, update_of
from airfed.audit.subject import Check, ScriptedEngine, Subject
from airfed.clipping import FARTHEST
from airfed.learning.quadratic import QuadraticEngine, QuadraticTask
from airfed.planning import Plan
from airfed.training.loop import NoiseFault, Round
from airfed.training.noise import SeededNoise, Vector

_DEVICES: Final = 12
_MAX_DIMENSION: Final = 200_000


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
                difference = norm(seen - subject.seen(other.aggregate))
                largest = max(largest, (difference - slack) / claimed)
            released &= _only_noisy(subject.plan, ones) and _only_noisy(subject.plan, others)
    except NoiseFault as fault:
        return [Check.of("round loop", False, str(fault))]
    finding = f"largest difference of {count} adjacent trainings: {largest:.6f} of the claim, threshold {1 + RTOL:.6f}"
    most = max(claims)
    clean = "each model follows from the noisy aggregate"
    leak = "the model does not follow from the noisy aggregate: something is released without noise"
    return [
        Check.of("round loop", largest <= 1 + RTOL, finding, pairs=count, largest=largest * most, claimed=most),
        Check.of("release", released, clean, leak),
    ]


def _adjacent(
    subject: Subject, rounds: list[int], rng: np.random.Generator
) -> Iterator[tuple[ScriptedEngine, ScriptedEngine]]:
    """Yield pairs of engines that differ in one device's data, with 1 to 20 local steps."""
    device = subject.target_device
    everywhere = reduce(np.intersect1d, (subject.plan.sequence[index].scheduled for index in rounds))
    devices = np.union1d(some_devices(everywhere, rng, _DEVICES), [device]).astype(np.intp)
    for steps in (1, 2, 5, 20):
        task = QuadraticTask(
            dimension=64, num_devices=subject.plan.problem.fleet.num_devices, smoothness=10.0, strong_convexity=0.1
        )
        engine = QuadraticEngine(task, learning_rate=0.05)
        for factor in (-1.0, 1e6, -1e30):
            yield _scaled(engine, devices, device, 1e3, steps), _scaled(engine, devices, device, factor, steps)
    own = min(subject.plan.problem.learning.dimension, _MAX_DIMENSION)
    clip = subject.plan.clip_norm
    for shape in (*SHAPES[:4], (own,)):
        family = FAMILIES[int(rng.integers(len(FAMILIES)))]
        updates = 3 * clip * rng.normal(size=(devices.size, sum(shape)))
        replaced = update_of(family, rng, shape, clip, 1)
        if devices.size == 1 and not np.isfinite(replaced).all():  # a round needs one usable update
            replaced = update_of("huge", rng, shape, clip, 1)
        updates[devices == device] = replaced
        plus = ScriptedEngine.of(devices, updates.copy())
        adaptive = subject.plan.problem.learning.adaptive_clipping is not None
        updates[devices == device] = -replaced * (3 if adaptive else 1)  # 3: to flip the clipping indicator
        yield plus, ScriptedEngine.of(devices, updates)


def _scaled(
    engine: QuadraticEngine, devices: NDArray[np.intp], device: int, factor: float, steps: int
) -> ScriptedEngine:
    """Return an engine that trains from a model of zeros; one device's update is multiplied by `factor`."""

    def script(_: NDArray[np.intp], round_index: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        start = np.zeros(engine.dimension, np.float32)
        for part, updates in engine.updates(start, devices, steps=steps, round_index=round_index):
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
