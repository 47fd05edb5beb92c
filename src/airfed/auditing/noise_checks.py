"""The noise alone: its size, its law, and whether any of it is used twice.

Each test is wrong with a probability of about 1e-9, so that a thousand audits of sound code raise no alarm.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammainc, gammaincc, kolmogorov, ndtr

from airfed.auditing.statistics import Check
from airfed.auditing.subject import Subject
from airfed.problem import Fleet
from airfed.running.noise import NoiseSource
from airfed.running.setup import signal_digests

Vector = NDArray[np.float64]

LEVEL: Final = 1e-9
_TOLERANCE: Final = 0.01  # of the standard deviation
_BLOCKS: Final = 16  # parts of a round's noise that are looked at one by one: layers, workers
_FEWEST_DIMENSION: Final = 4096
_MOST_CORRELATED: Final = 16_384
_MOST_ROUNDS: Final = 50
_MOST_EQUAL: Final = 8  # among a million doubles two are equal by chance once in some thousand audits; nine are not


def noise_checks(subject: Subject, *, samples: int) -> list[Check]:
    """Return what is wrong with the receiver's noise, over at least `samples` values of it."""
    source, std = subject.noise(), subject.noise_std
    parts = len(_received(subject, source, 0, 1))
    dimension = max(math.ceil(subject.plan.problem.learning.dimension / parts), _FEWEST_DIMENSION)
    samples = math.ceil(samples / parts)
    rounds = min(_MOST_ROUNDS, max(4, math.ceil(samples / dimension)))
    dimension = max(dimension, math.ceil(samples / rounds))
    seen = np.stack([_received(subject, source, index, dimension) for index in range(rounds)]) / std
    blocks = parts * math.ceil(_BLOCKS / parts)
    drawn = seen.reshape(rounds, -1)
    return [
        _scale(drawn),
        _law(drawn),
        _blocks(drawn, blocks),
        _correlation(seen[:, :, : _MOST_CORRELATED // parts].reshape(rounds, -1), blocks),
        _distinct(drawn),
        _key(subject, source),
    ]


def _received(subject: Subject, source: NoiseSource, index: int, dimension: int) -> Vector:
    """What the adversary sees of a round in which nobody sends: noise, (parts, d)."""
    air = subject.airs.at(index % subject.plan.rounds)
    superposition = air.open_round(dimension)
    noise = source.draw(index, superposition.noise_size, subject.noise_std)
    return subject.seen(superposition.receive(noise), air)


def _scale(drawn: Vector) -> Check:
    ratio = math.sqrt(float(np.mean(np.square(drawn))))
    tolerance = max(_TOLERANCE, 6.5 / math.sqrt(2 * drawn.size))
    return Check(
        name="noise scale",
        passed=abs(ratio - 1) <= tolerance,
        finding=f"the noise's standard deviation is {ratio:.5f} σ per real dimension, over {drawn.size} values",
        figures={"ratio": ratio, "samples": drawn.size, "tolerance": tolerance},
    )


def _law(drawn: Vector) -> Check:
    """Kolmogorov-Smirnov against N(0, σ²)."""
    ordered = np.sort(drawn, axis=None)
    count = ordered.size
    expected = ndtr(ordered)
    steps = np.arange(count + 1) / count
    distance = float(max(np.max(steps[1:] - expected), np.max(expected - steps[:-1])))
    chance = float(kolmogorov(math.sqrt(count) * distance))
    return Check(
        name="noise law",
        passed=chance >= LEVEL,
        finding=f"Kolmogorov-Smirnov distance to N(0, σ²): {distance:.2e} (p = {chance:.2g})",
        figures={"distance": distance, "p": chance},
    )


def _blocks(drawn: Vector, blocks: int) -> Check:
    """The energy of each part of each round is σ² χ²."""
    parts = np.array_split(drawn, blocks, axis=1)
    energy = np.stack([np.sum(np.square(part), axis=1) for part in parts], axis=1)
    size = np.array([part.shape[1] for part in parts])
    chance = np.minimum(gammainc(size / 2, energy / 2), gammaincc(size / 2, energy / 2))
    worst = float(chance.min())
    index, part = np.unravel_index(int(np.argmin(chance)), chance.shape)
    passed = worst >= LEVEL / chance.size
    ratio = math.sqrt(float(energy[index, part] / size[part]))
    return Check(
        name="noise in every part",
        passed=passed,
        finding=f"{chance.size} parts of {drawn.shape[0]} rounds all carry noise of the right size"
        if passed
        else f"part {part} of {blocks} of round {index} carries {ratio:.4f} of the noise it should",
        figures={"parts": int(chance.size), "p": worst},
    )


def _correlation(drawn: Vector, blocks: int) -> Check:
    """The largest correlation between any two parts of any two rounds; for independent ones r² ~ Beta(½, (n−1)/2)."""
    length = drawn.shape[1] // blocks
    parts = drawn[:, : length * blocks].reshape(-1, length)
    norms = np.linalg.norm(parts, axis=1)
    parts = parts / np.where(norms > 0, norms, 1.0)[:, None]
    gram = np.abs(parts @ parts.T)
    np.fill_diagonal(gram, 0.0)
    largest = float(min(1.0, gram.max()))
    pairs = parts.shape[0] * (parts.shape[0] - 1) // 2
    chance = float(betainc((length - 1) / 2, 0.5, 1 - largest**2))
    return Check(
        name="noise correlation",
        passed=chance >= LEVEL / pairs,
        finding=f"the largest correlation among {parts.shape[0]} parts of rounds is {largest:.4f}",
        figures={"largest": largest, "pairs": pairs, "p": chance},
    )


def _distinct(drawn: Vector) -> Check:
    equal = drawn.size - np.unique(drawn).size
    return Check(
        name="noise used once",
        passed=equal <= _MOST_EQUAL,
        finding=f"{equal} of {drawn.size} values occur twice",
        figures={"equal": equal, "samples": drawn.size},
    )


def _key(subject: Subject, source: NoiseSource) -> Check:
    """Whether a round's noise repeats exactly where it must, and never where anything has changed."""
    scenario, fleet = subject.scenario, subject.plan.problem.fleet
    barely = 1 + 2.0**-52
    other = {"gain": fleet.gain * barely} if fleet.channel is None else {"channel": fleet.channel * barely}
    moved = signal_digests(scenario, Fleet(peak_power=fleet.peak_power, **other))
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
    return Check(name="noise key", passed=right and not reused, finding=finding, figures={"reused": reused})
