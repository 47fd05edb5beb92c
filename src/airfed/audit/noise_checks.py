"""The noise alone: its size, its distribution, where it comes from, and whether any of it is used twice.

The noise is that of rounds in which one device sends zeros, drawn by the real round loop. Statistics are taken of the
first 50 rounds; prefixes of all rounds are compared for repeated values. Each test is wrong
with a probability of about 1e-9, so that a thousand audits of sound code raise no alarm.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammainc, gammaincc, kolmogorov, ndtr

from airfed.audit.subject import Check, ScriptedEngine, Subject
from airfed.problem import Fleet
from airfed.training.loop import NoiseFault
from airfed.training.noise import NoiseSource
from airfed.training.setup import signal_digests

Vector = NDArray[np.float64]

LEVEL: Final = 1e-9
_TOLERANCE: Final = 0.01  # of the standard deviation
_BLOCKS: Final = 16  # parts of a round's noise that are looked at one by one: layers, workers
_FEWEST_DIMENSION: Final = 4096
_MOST_CORRELATED: Final = 16_384
_MOST_ROUNDS: Final = 50  # of which statistics are taken
_MOST_DRAWN, _MOST_KEPT = 20_000_000, 2_000_000  # values of all rounds together that are compared for repetition
_FEWEST_DRAWN: Final = 64  # of one round
_MOST_EQUAL: Final = 8  # among a million doubles two are equal by chance once in some thousand audits; nine are not


def noise_checks(subject: Subject, *, samples: int) -> list[Check]:
    """Return what is wrong with the receiver's noise, over at least `samples` values of it."""
    source, own, every = subject.noise(), subject.plan.problem.learning.dimension, subject.plan.rounds
    parts = len(_received(subject, source, 0, 1))
    dimension = max(math.ceil(own / parts), _FEWEST_DIMENSION)
    samples = math.ceil(samples / parts)
    rounds = min(_MOST_ROUNDS, every, max(4, math.ceil(samples / dimension)))
    blocks = math.ceil(_BLOCKS / parts)  # of each part
    dimension = blocks * math.ceil(max(dimension, samples / rounds) / blocks)
    seen = np.stack([_received(subject, source, index, dimension) for index in range(rounds)])
    dimension = min(own, max(_FEWEST_DRAWN, _MOST_DRAWN // (parts * every)))
    kept = max(1, _MOST_KEPT // (parts * every))
    prefixes = np.stack([_received(subject, source, index, dimension)[:, :kept] for index in range(every)])
    drawn = seen.reshape(rounds, -1)
    return [
        _scale(drawn),
        _law(drawn),
        _blocks(drawn, parts * blocks),
        _correlation(drawn, parts * blocks),
        _distinct(drawn, prefixes),
        _power(subject),
        _key(subject, source),
    ]


class _Tap:
    """A source of noise that remembers what it has drawn last."""

    def __init__(self, source: NoiseSource) -> None:
        self.source, self.privacy, self.repeatable, self.drawn = source, source.privacy, source.repeatable, np.empty(0)

    def draw(self, round_index: int, dimension: int, noise_std: float, *, transmission: str = "") -> Vector:
        self.drawn = self.source.draw(round_index, dimension, noise_std, transmission=transmission)
        return self.drawn


def _received(subject: Subject, source: NoiseSource, index: int, dimension: int) -> Vector:
    """What the adversary sees of a round in which nobody sends anything, in units of the planned noise, (parts, d)."""
    tap = _Tap(source)
    try:
        zeros = ScriptedEngine.of(subject.plan.sequence[index].scheduled[:1], np.zeros((1, dimension), np.float32))
        (done,) = subject.train(zeros, tap, [index])
        reception = done.reception
    except NoiseFault:  # the round loop refuses this noise; the checks say what is wrong with it
        reception = subject.airs.open_round(dimension, index).receive(tap.drawn)
    return subject.seen(reception) / subject.plan.sequence.signal(index).noise_std


def _scale(drawn: Vector) -> Check:
    ratio = math.sqrt(float(np.mean(np.square(drawn))))
    tolerance = max(_TOLERANCE, 6.5 / math.sqrt(2 * drawn.size))
    finding = f"the noise's standard deviation is {ratio:.5f} σ per real dimension, over {drawn.size} values"
    passed = abs(ratio - 1) <= tolerance
    return Check.of("noise scale", passed, finding, ratio=ratio, samples=drawn.size, tolerance=tolerance)


def _law(drawn: Vector) -> Check:
    """Kolmogorov-Smirnov against N(0, σ²)."""
    ordered = np.sort(drawn, axis=None)
    count = ordered.size
    expected = ndtr(ordered)
    steps = np.arange(count + 1) / count
    distance = float(max(np.max(steps[1:] - expected), np.max(expected - steps[:-1])))
    chance = float(kolmogorov(math.sqrt(count) * distance))
    finding = f"Kolmogorov-Smirnov distance to N(0, σ²): {distance:.2e} (p = {chance:.2g})"
    return Check.of("noise law", chance >= LEVEL, finding, distance=distance, p=chance)


def _blocks(drawn: Vector, blocks: int) -> Check:
    """The energy of each part of each round is σ² χ²."""
    parts = np.array_split(drawn, blocks, axis=1)
    energy = np.stack([np.sum(np.square(part), axis=1) for part in parts], axis=1)
    size = np.array([part.shape[1] for part in parts])
    chance = np.minimum(gammainc(size / 2, energy / 2), gammaincc(size / 2, energy / 2))
    worst = float(chance.min())
    index, part = np.unravel_index(int(np.argmin(chance)), chance.shape)
    ratio = math.sqrt(float(energy[index, part] / size[part]))
    return Check.of(
        "noise in every part",
        worst >= LEVEL / chance.size,
        f"{chance.size} parts of {drawn.shape[0]} rounds all carry noise of the right size",
        f"part {part} of {blocks} of round {index} carries {ratio:.4f} of the noise it should",
        **{"parts": int(chance.size), "p": worst},
    )


def _correlation(drawn: Vector, blocks: int) -> Check:
    """The largest correlation between any two parts of any two rounds; for independent ones r² ~ Beta(½, (n−1)/2)."""
    parts = drawn.reshape(len(drawn) * blocks, -1)[:, : _MOST_CORRELATED // blocks]
    length = parts.shape[1]
    norms = np.linalg.norm(parts, axis=1)
    parts = parts / np.where(norms > 0, norms, 1.0)[:, None]
    gram = np.abs(parts @ parts.T)
    np.fill_diagonal(gram, 0.0)
    largest = float(min(1.0, gram.max()))
    pairs = parts.shape[0] * (parts.shape[0] - 1) // 2
    chance = float(betainc((length - 1) / 2, 0.5, 1 - largest**2))
    finding = f"the largest correlation among {parts.shape[0]} parts of rounds is {largest:.4f}"
    return Check.of("noise correlation", chance >= LEVEL / pairs, finding, largest=largest, pairs=pairs, p=chance)


def _distinct(drawn: Vector, prefixes: Vector) -> Check:
    equal = sum(values.size - np.unique(np.abs(values)).size for values in (drawn, prefixes))
    samples, rounds = drawn.size + prefixes.size, len(prefixes)
    finding = f"{equal} of {samples} values of all {rounds} rounds occur twice"
    return Check.of("noise used once", equal <= _MOST_EQUAL, finding, equal=equal, samples=samples, rounds=rounds)


def _power(subject: Subject) -> Check:
    """Whether the planned noise has no more power than the receiver's own and what devices transmit as noise.

    Devices transmit as noise what they transmit with an update of zeros. Noise that a server or a device adds to
    numbers takes no power.
    """
    plan, worst = subject.plan, 0.0
    for index in range(1 if plan.constant else plan.rounds) if plan.method.radio else ():
        air = subject.airs.at(index)
        superposition = air.open_round(1)
        superposition.add(air.scheduled, np.zeros((air.scheduled.size, 1)))
        transmitted = superposition.receive(np.zeros(superposition.noise_size)).energy
        gain = plan.problem.fleet.gain_in(index)[air.scheduled]
        arriving = float(np.sum(np.square(gain) * transmitted)) / plan.problem.learning.dimension
        planned = plan.sequence.signal(index).noise_std ** 2
        worst = max(worst, planned / (plan.problem.link.noise_std**2 + arriving))
    finding = f"the noise has at most {worst:.6f} of the power that receiver and devices give it"
    finding = finding if plan.method.radio else "the noise is added to numbers and takes no power"
    return Check.of("noise power", worst <= 1 + 1e-9, finding, largest=worst)


def _key(subject: Subject, source: NoiseSource) -> Check:
    """Whether a round's noise repeats exactly where it must, and never where anything has changed."""
    scenario, fleet = subject.scenario, subject.plan.problem.fleet
    moved = signal_digests(scenario, Fleet(channel=fleet.channel * (1 + 2.0**-52), peak_power=fleet.peak_power))
    del moved["scenario"]
    first = source.draw(0, 64, 1.0)
    again = subject.noise().draw(0, 64, 1.0)
    link = scenario.link.model_copy(update={"noise_std": 2 * scenario.link.received_std})
    budget = scenario.budget.model_copy(update={"epsilon": 2 * scenario.budget.epsilon})
    others = {
        **{part: {part: digest} for part, digest in moved.items()},
        "link": {"scenario": scenario.model_copy(update={"link": link}).digest()},
        "budget": {"scenario": scenario.model_copy(update={"budget": budget}).digest()},
        **{part: {part: "changed"} for part in {"data": "", **subject.signal} if part not in moved},
    }
    changed = {
        "round": source.draw(1, 64, 1.0),
        "transmission": source.draw(0, 64, 1.0, transmission="another"),
        "seed": subject.noise(1).draw(0, 64, 1.0),
        **{name: subject.noise(changed=other).draw(0, 64, 1.0) for name, other in others.items()},
    }
    reused = [name for name, noise in changed.items() if np.any(noise == first)]
    if source.repeatable:
        right = source.privacy == "simulated" and np.array_equal(first, again)
        kept = "a round's noise repeats exactly" if right else "a repeated round's noise is not the same"
    else:
        right = source.privacy == "secure" and not np.any(first == again) and not vars(source)
        kept = "the noise is fresh and nothing of it is kept" if right else "the secure noise repeats or is kept"
    finding = f"{kept}; with another {', '.join(reused)} it is used again" if reused else kept
    return Check.of("noise key", right and not reused, finding, reused=reused)
