"""Neighbouring trainings through the real round loop: what one device changes, and what is released.

Both sides carry the same noise, which cancels in their difference. Devices train on a quadratic task with many local
steps, or send adversarial updates; one device's data is replaced by something absurd.
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
from airfed.learning.quadratic import QuadraticEngine, QuadraticTask
from airfed.planning import Plan
from airfed.training.loop import NoiseFault, Round
from airfed.training.noise import SeededNoise, Vector

_DEVICES: Final = 12
_MOST_DIMENSION: Final = 200_000


def round_loop_checks(subject: Subject, rng: np.random.Generator) -> list[Check]:
    """Return by how much neighbouring trainings differ, and whether only the noised signal gets out."""
    sends = subject.sends  # rounds in which the most exposed device transmits: the first, the middle and the last
    rounds = sorted({int(sends[place]) for place in (0, sends.size // 2, -1)})
    largest, honest, count = 0.0, True, 0
    neighbours = 2 / subject.sensitivity  # the pairs replace a device's data
    claims = [subject.plan.sequence[index].mu * subject.noise_std_in(index) * neighbours for index in rounds]
    try:
        for plus, minus in _neighbours(subject, rounds, rng):
            count += 1
            ones, others = list(_train(subject, plus, rounds)), list(_train(subject, minus, rounds))
            for one, other, claimed in zip(ones, others, claims, strict=True):
                seen = subject.seen(one.reception)
                noise_std = subject.plan.sequence.signal(one.index).noise_std
                slack = 4e-16 * noise_std * math.sqrt(seen.size)  # the noise's rounding
                moved = norm(seen - subject.seen(other.reception))
                largest = max(largest, (moved - slack) / claimed)
            honest &= _only_noised(subject.plan, ones) and _only_noised(subject.plan, others)
    except NoiseFault as fault:
        return [Check.of("round loop", False, str(fault))]
    finding = f"{count} neighbouring trainings differ in a round by at most {largest:.6f} of what is claimed"
    most = max(claims)
    kept = "each model follows from the noised signal alone"
    leaked = "the model does not follow from the noised signal: something un-noised gets out"
    return [
        Check.of("round loop", largest <= 1 + RTOL, finding, pairs=count, largest=largest * most, claimed=most),
        Check.of("release", honest, kept, leaked),
    ]


def _neighbours(
    subject: Subject, rounds: list[int], rng: np.random.Generator
) -> Iterator[tuple[ScriptedEngine, ScriptedEngine]]:
    """Two engines each that differ in one device's data, with 1 to 20 local steps."""
    device = subject.victim
    everywhere = reduce(np.intersect1d, (subject.plan.sequence[index].scheduled for index in rounds))
    devices = np.union1d(some_devices(everywhere, rng, _DEVICES), [device]).astype(np.intp)
    for steps in (1, 2, 5, 20):
        task = QuadraticTask(
            dimension=64, num_devices=subject.plan.problem.fleet.num_devices, smoothness=10.0, strong_convexity=0.1
        )
        engine = QuadraticEngine(task, learning_rate=0.05)
        for factor in (-1.0, 1e6, -1e30):
            yield _scaled(engine, devices, device, 1e3, steps), _scaled(engine, devices, device, factor, steps)
    own = min(subject.plan.problem.learning.dimension, _MOST_DIMENSION)
    clip = subject.plan.clip_norm
    for shape in (*SHAPES[:4], (own,)):
        family = FAMILIES[int(rng.integers(len(FAMILIES)))]
        updates = 3 * clip * rng.normal(size=(devices.size, sum(shape)))
        replaced = update_of(family, rng, shape, clip, 1)
        if devices.size == 1 and not np.isfinite(replaced).all():  # nobody else sends: there would be no round
            replaced = update_of("huge", rng, shape, clip, 1)
        updates[devices == device] = replaced
        plus = ScriptedEngine.of(devices, updates.copy())
        updates[devices == device] = -replaced
        yield plus, ScriptedEngine.of(devices, updates)


def _scaled(
    engine: QuadraticEngine, devices: NDArray[np.intp], device: int, factor: float, steps: int
) -> ScriptedEngine:
    """Trains some devices from a model of zeros; one device's data makes its update `factor` times as large."""

    def script(_: NDArray[np.intp], round_index: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        start = np.zeros(engine.dimension, np.float32)
        for part, updates in engine.updates(start, devices, steps=steps, round_index=round_index):
            changed = np.array(updates)
            changed[part == device] *= factor
            yield part, changed

    return ScriptedEngine(engine.dimension, script)


class _SameNoise(SeededNoise):
    """The noise of a round whatever is sent in it, so that it cancels in the difference of two neighbours."""

    def draw(self, round_index: int, dimension: int, noise_std: float, *, transmission: str = "") -> Vector:
        return super().draw(round_index, dimension, noise_std)


def _train(subject: Subject, engine: ScriptedEngine, rounds: list[int]) -> Iterator[Round]:
    noise = _SameNoise(hashlib.sha256(f"round loop {engine.dimension}".encode()).digest())
    return subject.train(engine, noise, rounds)


def _only_noised(plan: Plan, rounds: list[Round]) -> bool:
    """Whether m^{i+1} is m^i − τ y/(|K|ν_i), with a y that has noise on it."""
    model = np.zeros_like(rounds[0].parameters)
    for done in rounds:
        planned = plan.sequence[done.index].signal.divisor / plan.sequence[done.index].clip_norm
        step = plan.problem.learning.learning_rate * done.reception.received / planned
        model = (model - step).astype(np.float32)
        scale = float(np.max(np.abs(model)))
        if not np.allclose(done.parameters, model, rtol=1e-5, atol=1e-6 * scale):
            return False
        model = done.parameters
    return True
