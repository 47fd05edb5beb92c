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

from airfed.auditing.adversary import FAMILIES, SHAPES
from airfed.auditing.engines import Neighbour, ScriptedEngine
from airfed.auditing.sensitivity import RTOL, some_devices
from airfed.auditing.statistics import Check, norm
from airfed.auditing.subject import Subject
from airfed.learning.engine import Engine
from airfed.learning.quadratic import QuadraticEngine, QuadraticTask
from airfed.planning import Plan
from airfed.running.loop import NoiseFault, Round, federated_averaging
from airfed.running.noise import SeededNoise, Vector

_ROUNDS: Final = 3
_DEVICES: Final = 12
_MOST_DIMENSION: Final = 200_000


def round_loop_checks(subject: Subject, rng: np.random.Generator) -> list[Check]:
    """Return by how much neighbouring trainings differ, and whether only the noised signal gets out."""
    neighbours = 1.0 if subject.replaces else 2.0
    whole = subject.plan.mu_round * subject.noise_std * neighbours
    largest, honest, count = 0.0, True, 0
    try:
        for cut, plus, minus in _neighbours(subject, rng):
            count += 1
            plan = cut.plan
            ones, others = list(_train(cut, plus)), list(_train(cut, minus))
            for one, other, decided in zip(ones, others, plan.sequence, strict=True):
                air = cut.airs.at(one.index)
                seen = cut.seen(one.reception, air)
                slack = 4e-16 * subject.noise_std * math.sqrt(seen.size)  # the noise's rounding
                moved = norm(seen - cut.seen(other.reception, air))
                largest = max(largest, (moved - slack) / (decided.mu * subject.noise_std * neighbours))
            honest &= _only_noised(plan, ones) and _only_noised(plan, others)
    except NoiseFault as fault:
        return [Check(name="round loop", passed=False, finding=str(fault), figures={})]
    return [
        Check(
            name="round loop",
            passed=largest <= 1 + RTOL,
            finding=f"{count} neighbouring trainings differ in a round by at most {largest:.6f} of what is claimed",
            figures={"pairs": count, "largest": largest * whole, "claimed": whole},
        ),
        Check(
            name="release",
            passed=honest,
            finding="each model follows from the noised signal alone"
            if honest
            else "the model does not follow from the noised signal: something un-noised gets out",
            figures={},
        ),
    ]


def _neighbours(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[Subject, Engine, Engine]]:
    """Few rounds with 1 to 20 local steps each, and two engines each that differ in one device's data."""
    cut = subject.few_rounds(_ROUNDS)
    device = int(cut.air.scheduled[cut.strongest(1)[0]])
    everywhere = reduce(np.intersect1d, (decided.scheduled for decided in cut.plan.sequence))
    if device not in everywhere:
        device = int(everywhere[0])
    devices = np.union1d(some_devices(everywhere, rng, _DEVICES), [device]).astype(np.intp)
    for steps in (1, 2, 5, 20):
        stepped = cut.resized(dimension=64, total_steps=_ROUNDS * steps)
        task = QuadraticTask(
            dimension=64, num_devices=subject.plan.problem.fleet.num_devices, smoothness=10.0, strong_convexity=0.1
        )
        engine = QuadraticEngine(task, learning_rate=0.05)
        for factor in (-1.0, 1e6, -1e30):
            plus, minus = (Neighbour(engine, devices, device=device, factor=f) for f in (1e3, factor))
            yield stepped, plus, minus
    own = min(subject.plan.problem.learning.dimension, _MOST_DIMENSION)
    clip = subject.plan.clip_norm
    for shape in (*SHAPES[:4], (own,)):
        family = FAMILIES[int(rng.integers(len(FAMILIES)))]
        updates = 3 * clip * rng.normal(size=(devices.size, sum(shape)))
        replaced = family(rng, shape, clip, 1)
        if devices.size == 1 and not np.isfinite(replaced).all():  # nobody else sends: there would be no round
            replaced = FAMILIES[0](rng, shape, clip, 1)
        updates[devices == device] = replaced
        plus_script = ScriptedEngine(devices, updates.copy())
        updates[devices == device] = -replaced
        stepped = cut.resized(dimension=sum(shape), total_steps=_ROUNDS)
        yield stepped, plus_script, ScriptedEngine(devices, updates)


class _SameNoise(SeededNoise):
    """The noise of a round whatever is sent in it, so that it cancels in the difference of two neighbours."""

    def draw(self, round_index: int, dimension: int, noise_std: float, *, transmission: str = "") -> Vector:
        return super().draw(round_index, dimension, noise_std)


def _train(subject: Subject, engine: Engine) -> Iterator[Round]:
    noise = _SameNoise(hashlib.sha256(f"round loop {engine.dimension}".encode()).digest())
    start = np.zeros(engine.dimension, np.float32)
    return federated_averaging(subject.plan, subject.airs, engine, noise, parameters=start)


def _only_noised(plan: Plan, rounds: list[Round]) -> bool:
    """Whether m^{i+1} is m^i − τ y/(|K|ν_i), with a y that has noise on it."""
    model: NDArray[np.float32] = np.zeros(plan.problem.learning.dimension, np.float32)
    for done, decided in zip(rounds, plan.sequence, strict=True):
        planned = plan.uploads_in(done.index).divisor / decided.clip_norm  # |K|ν_i where all arrive alike
        step = plan.problem.learning.learning_rate * done.reception.received / planned
        model = (model - step).astype(np.float32)
        scale = float(np.max(np.abs(model)))
        if not np.allclose(done.parameters, model, rtol=1e-5, atol=1e-6 * scale):
            return False
        model = done.parameters
    return True
