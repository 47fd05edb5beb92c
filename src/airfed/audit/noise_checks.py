"""Checks of the receiver's noise: its scale, distribution, independence and key, and that it is used only once.

The real round loop draws the noise of rounds in which one device sends zeros. Statistics use the first 50 rounds;
prefixes of all rounds are compared for repeated values. Each check has a false alarm rate of about 1e-9, shared by its
tests (Bonferroni).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import betainc, betaincinv, gammainc, gammaincc, kolmogi, kolmogorov, ndtr

from airfed.audit.subject import Check, ScriptedEngine, Subject
from airfed.problem import Fleet
from airfed.training.loop import NoiseFault
from airfed.training.noise import NoiseSource
from airfed.training.setup import signal_digests

Vector = NDArray[np.float64]

LEVEL: Final = 1e-9
_TOLERANCE: Final = 0.01  # of the standard deviation
_BLOCKS: Final = 16  # parts of a round's noise that are tested separately: layers, workers
_MIN_DIMENSION: Final = 4096
_MAX_CORRELATED: Final = 16_384
_MAX_LAG: Final = 5  # rounds, entries and parts, of groups of entries and of pairs of parts
_MAX_LAGGED: Final = 1_000_000  # values whose correlations are pooled at every lag
_LAGS: Final = "lags in rounds, parts and entries:"
_MAX_ROUNDS: Final = 50  # for the statistics
_MAX_DRAWN, _MAX_KEPT = 20_000_000, 2_000_000  # values of all rounds together that are compared for repetition
_MIN_DRAWN: Final = 64  # of one round
_MAX_EQUAL: Final = 8  # two of a million doubles are equal by chance in one of some thousand audits


def noise_checks(subject: Subject, *, samples: int) -> list[Check]:
    """Return the checks of the receiver's noise, over at least `samples` values of it."""
    source, own, every = subject.noise(), subject.plan.problem.learning.dimension, subject.plan.rounds
    parts = len(_received(subject, source, 0, 1))
    dimension = max(math.ceil(own / parts), _MIN_DIMENSION)
    samples = math.ceil(samples / parts)
    rounds = min(_MAX_ROUNDS, every, max(4, math.ceil(samples / dimension)))
    blocks = math.ceil(_BLOCKS / parts)  # of each part
    dimension = blocks * math.ceil(max(dimension, samples / rounds) / blocks)
    received = np.stack([_received(subject, source, index, dimension) for index in range(rounds)])
    dimension = min(own, max(_MIN_DRAWN, _MAX_DRAWN // (parts * every)))
    kept = max(1, _MAX_KEPT // (parts * every))
    prefixes = np.stack([_received(subject, source, index, dimension)[:, :kept] for index in range(every)])
    drawn = received.reshape(rounds, -1)
    return [
        _scale(drawn),
        _distribution(drawn),
        _blocks(drawn, parts * blocks, prefixes.reshape(every, -1), received[..., -1].reshape(1, -1)),
        _correlation(drawn, parts * blocks),
        _autocorrelation(received, prefixes),
        _distinct(drawn, prefixes),
        _power(subject),
        _key(subject, source),
    ]


class _Tap:
    """A noise source that stores its last draw."""

    def __init__(self, source: NoiseSource) -> None:
        self.source, self.privacy, self.repeatable, self.drawn = source, source.privacy, source.repeatable, np.empty(0)

    def draw(self, round_index: int, dimension: int, noise_std: float, *, transmission: str = "") -> Vector:
        self.drawn = self.source.draw(round_index, dimension, noise_std, transmission=transmission)
        return self.drawn


def _received(subject: Subject, source: NoiseSource, index: int, dimension: int) -> Vector:
    """Return the adversary's view of a round of zero updates, in units of the planned noise, (parts, d)."""
    tap, devices = _Tap(source), subject.plan.sequence[index].scheduled[:1]
    indicated = subject.aircomp.at(index).indicator > 0  # one more entry, which a device always sends
    zeros = np.zeros((1, max(1, dimension - indicated)), np.float32)
    try:
        (done,) = subject.train(ScriptedEngine.of(devices, zeros), tap, [index])
        seen = subject.seen(done.aggregate)
        if indicated:
            seen = seen - subject.quiet(subject.aircomp.at(index), devices, zeros)
    except NoiseFault:  # the round loop refuses this noise; the checks report why
        seen = subject.seen(subject.aircomp.open_round(zeros.size, index).receive(tap.drawn))
    return seen[:, :dimension] / subject.plan.sequence.signal(index).noise_std


def _scale(drawn: Vector) -> Check:
    ratio = math.sqrt(float(np.mean(np.square(drawn))))
    tolerance = max(_TOLERANCE, 6.5 / math.sqrt(2 * drawn.size))
    finding = f"standard deviation {ratio:.5f} σ of {drawn.size} values, threshold (1 ± {tolerance:.2g}) σ"
    passed = abs(ratio - 1) <= tolerance
    return Check.of("noise scale", passed, finding, ratio=ratio, samples=drawn.size, tolerance=tolerance)


def _distribution(drawn: Vector) -> Check:
    """Return the Kolmogorov-Smirnov test against N(0, σ²)."""
    ordered = np.sort(drawn, axis=None)
    count = ordered.size
    expected = ndtr(ordered)
    steps = np.arange(count + 1) / count
    distance = float(max(np.max(steps[1:] - expected), np.max(expected - steps[:-1])))
    chance = float(kolmogorov(math.sqrt(count) * distance))
    threshold = float(kolmogi(LEVEL)) / math.sqrt(count)
    finding = f"Kolmogorov-Smirnov distance to N(0, σ²) {distance:.2e}, threshold {threshold:.2e} (p = {chance:.2g})"
    passed = chance >= LEVEL
    return Check.of("noise distribution", passed, finding, distance=distance, threshold=threshold, p=chance)


def _blocks(drawn: Vector, blocks: int, prefixes: Vector, last: Vector) -> Check:
    """Return whether the energy of each round, of each part and prefix of it, and of the last entries is σ² χ².

    The last entry of a round is that of the clipping indicator, if there is one.
    """
    groups = [
        (f"part {part + 1} of {blocks} of ", rows) for part, rows in enumerate(np.array_split(drawn, blocks, axis=1))
    ]
    lowest, tests, worst = 1.0, 0, ""
    groups += [("", drawn), ("the beginning of ", prefixes), ("the last entry of each round from ", last)]
    for name, rows in groups:
        half, energy = rows.shape[1] / 2, np.sum(np.square(rows), axis=1)
        chance = np.nan_to_num(np.minimum(gammainc(half, energy / 2), gammaincc(half, energy / 2)), nan=0.0)
        tests += chance.size
        if chance.min() < lowest:
            index, lowest = int(np.argmin(chance)), float(chance.min())
            worst = f"{name}round {index + 1} has a standard deviation of {math.sqrt(energy[index] / 2 / half):.4f} σ"
    threshold = LEVEL / tests
    finding = f"energy of {tests} rounds and parts of them: smallest p {lowest:.2g}, threshold {threshold:.2g}"
    figures = {"parts": tests, "p": lowest, "threshold": threshold}
    return Check.of("noise in every part", lowest >= threshold, finding, f"{finding}; {worst}", **figures)


def _correlation(drawn: Vector, blocks: int) -> Check:
    """Return the check of the largest correlation between two parts; if independent, r² ~ Beta(½, (n−1)/2)."""
    parts = drawn.reshape(len(drawn) * blocks, -1)[:, : _MAX_CORRELATED // blocks]
    length = parts.shape[1]
    norms = np.linalg.norm(parts, axis=1)
    parts = parts / np.where(norms > 0, norms, 1.0)[:, None]
    gram = np.abs(parts @ parts.T)
    np.fill_diagonal(gram, 0.0)
    largest = float(min(1.0, gram.max()))
    pairs = parts.shape[0] * (parts.shape[0] - 1) // 2
    chance = float(betainc((length - 1) / 2, 0.5, 1 - largest**2))
    threshold = math.sqrt(1 - float(betaincinv((length - 1) / 2, 0.5, LEVEL / pairs)))
    finding = f"largest correlation between {parts.shape[0]} parts of rounds: {largest:.4f}, threshold {threshold:.4f}"
    figures = {"largest": largest, "threshold": threshold, "pairs": pairs, "p": chance}
    return Check.of("noise correlation", chance >= LEVEL / pairs, finding, **figures)


def _autocorrelation(received: Vector, prefixes: Vector) -> Check:
    """Return the check of the correlations of all values, (I, parts, d), over lags in rounds, entries and parts.

    Coloured noise hides less than white noise of the same variance. Every correlation of `_lag_sums` is tested, and
    where the plan has more rounds than `received`, those of the prefixes too.
    """
    tests, largest = 0, (0.0, 0.0, "none")  # (standard errors, correlation, where)
    for values in (received, prefixes)[: 1 + (len(prefixes) > len(received))]:
        power = float(np.mean(np.square(values))) or 1.0
        for name, sums, count in _lag_sums(values):
            tests += int(np.count_nonzero(count))
            correlation = np.divide(sums, count * power, out=np.zeros(sums.shape), where=count > 0)
            statistic = np.nan_to_num(_standard_errors(correlation, count), nan=math.inf)
            at = np.unravel_index(int(np.argmax(statistic)), sums.shape)
            if statistic[at] > largest[0]:
                middle = [size // 2 if name == _LAGS and axis else 0 for axis, size in enumerate(sums.shape)]
                where = ", ".join(str(index - zero) for index, zero in zip(at, middle, strict=True))
                largest = float(statistic[at]), float(correlation[at]), f"{name} {where}"
    errors, value, where = largest
    threshold = math.sqrt(2 * math.log(2 * max(1, tests) / LEVEL))
    finding = (
        f"most significant of {tests} correlations: {value:.5f} ({where}), {errors:.2f} standard errors, "
        f"threshold {threshold:.2f}"
    )
    figures: dict[str, Any] = {"correlation": value, "statistic": errors, "threshold": threshold, "tests": tests}
    return Check.of("noise autocorrelation", errors <= threshold, finding, **figures)


def _standard_errors(correlation: Vector, count: Vector) -> Vector:
    """Return t such that a mean of `count` products of N(0, 1) is as far from 0 with probability at most 2e^(−t²/2).

    Chernoff's bound at s = r/(1 + 2r); t = √n |r| for small r. The products may form chains as in Σ z_i z_{i+1}: per
    product, their cumulant function is at most −½ ln((1 + √(1 − 4s²))/2).
    """
    size = np.abs(correlation)
    s = size / (1 + 2 * size)
    cumulant = -np.log((1 + np.sqrt(1 - 4 * s**2)) / 2) / 2
    return np.asarray(np.sqrt(2 * count * np.maximum(s * size - cumulant, 0.0)))


def _lag_sums(values: Vector) -> Iterator[tuple[str, Vector, Vector]]:
    """Yield sums of products of values, (I, parts, d), with the number of products in each, and what its indices are.

    Pooled over all values at every lag; of each pair of rounds and of parts (antennas, real and imaginary); and, at
    lags along one axis, of groups of 1, 2, 4, … neighbouring entries.
    """
    cut = values[..., : max(1, _MAX_LAGGED // (values.shape[0] * values.shape[1]))]
    padded = [fft.next_fast_len(2 * size - 1, real=True) for size in cut.shape]
    sums = fft.irfftn(np.square(np.abs(fft.rfftn(cut, padded))), padded)
    count = np.ones(())
    for axis, size in enumerate(cut.shape):  # negative lags are at the end at first
        pairs = np.maximum(0, size - np.minimum(np.arange(padded[axis]), padded[axis] - np.arange(padded[axis])))
        count = count[..., None] * pairs
    count[0, 0, 0] = 0
    yield _LAGS, *(fft.fftshift(each[: len(cut)], axes=(1, 2)) for each in (sums, count))  # -lags are the same pairs
    rows = values.reshape(len(values), -1)
    yield "rounds", np.triu(rows @ rows.T, 1), np.triu(np.full(2 * [len(rows)], float(rows.shape[1])), 1)
    if values.shape[1] > 1:
        yield from _pairs_of_parts(values)
    names = ("rounds", "parts", "entries")
    for axis, size in enumerate(values.shape):
        for lag in range(1, min(_MAX_LAG, size - 1) + 1):
            ahead = np.moveaxis(values, axis, 0)
            products = np.moveaxis(ahead[:-lag] * ahead[lag:], 0, axis).sum(axis=(0, 1))
            number = float((size - lag) * values.size / size / products.size)
            width = 1
            while products.size > 1:
                where = f"lag of {lag} in {names[axis]}, group of {width} entries"
                yield where, products, np.full(products.shape, number * width)
                products, width = products[: products.size // 2 * 2].reshape(-1, 2).sum(axis=1), 2 * width


def _pairs_of_parts(values: Vector) -> Iterator[tuple[str, Vector, Vector]]:
    rounds, parts, size = values.shape
    for lag, shift in itertools.product(range(min(_MAX_LAG, rounds - 1) + 1), range(-_MAX_LAG, _MAX_LAG + 1)):
        if abs(shift) >= size or (lag == 0 and shift < 0):  # the same pairs as in the other direction
            continue
        first = values[: rounds - lag, :, max(0, -shift) : size - max(0, shift)]
        then = values[lag:, :, max(0, shift) : size + min(0, shift)]
        sums = np.tensordot(first, then, axes=((0, 2), (0, 2)))
        count = np.full(sums.shape, float(first.size // parts))
        if lag == shift == 0:
            sums, count = np.triu(sums, 1), np.triu(count, 1)
        yield f"lag of {lag} in rounds, {shift} in entries; parts", sums, count


def _distinct(drawn: Vector, prefixes: Vector) -> Check:
    equal = sum(values.size - np.unique(np.abs(values)).size for values in (drawn, prefixes))
    samples, rounds = drawn.size + prefixes.size, len(prefixes)
    finding = f"{equal} repeated values among {samples} of all {rounds} rounds, threshold {_MAX_EQUAL}"
    return Check.of("noise used once", equal <= _MAX_EQUAL, finding, equal=equal, samples=samples, rounds=rounds)


def _power(subject: Subject) -> Check:
    """Return whether the planned noise has at most the power of the receiver's noise and the devices' artificial noise.

    Artificial noise is the signal that devices transmit without a usable update. Noise that a server or a device adds
    digitally needs no power.
    """
    plan, worst = subject.plan, 0.0
    for index in range(1 if plan.constant else plan.rounds) if plan.method.analog else ():
        aircomp = subject.aircomp.at(index)
        superposition = aircomp.open_round(1)
        superposition.add(aircomp.scheduled, np.full((aircomp.scheduled.size, 1), np.nan))
        transmitted = superposition.receive(np.zeros(superposition.noise_size)).energy
        gain = plan.problem.fleet.gain_in(index)[aircomp.scheduled]
        arriving = float(np.sum(np.square(gain) * transmitted)) / plan.problem.learning.dimension
        planned = plan.sequence.signal(index).noise_std ** 2
        worst = max(worst, planned / (plan.problem.link.noise_std**2 + arriving))
    finding = f"planned noise power over that of receiver and devices: {worst:.6f}, threshold 1"
    finding = finding if plan.method.analog else "the noise is added digitally and needs no power"
    return Check.of("noise power", worst <= 1 + 1e-9, finding, largest=worst)


def _key(subject: Subject, source: NoiseSource) -> Check:
    """Return whether a round's noise repeats exactly for the same signal, and never for another."""
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
        state = "the noise of a repeated round is the same" if right else "the noise of a repeated round differs"
    else:
        right = source.privacy == "secure" and not np.any(first == again) and not vars(source)
        state = "the noise is fresh and not stored" if right else "the secure noise repeats or is stored"
    finding = f"{state}; it is reused with another {', '.join(reused)}" if reused else state
    return Check.of("noise key", right and not reused, finding, reused=reused)
