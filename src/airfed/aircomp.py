"""The air: clip, precode, superpose, add noise, rescale, and meter what was really transmitted.

Complex baseband, eq. (6)-(13) of [Yan23]. Device k transmits x_k = e^{−jψ̂_k} √(φ_k P_k)/ϖ · g_k on the in-phase axis;
its channel h_k turns that into a_k g_k with one complex number a_k, and the receiver reads the real part of the sum
plus noise of standard deviation σ per real dimension. A receiver with A antennas receives a vector Y of such sums,
each with noise of its own, and reads the real part of what its combiner f makes of them, Re(fᴴY). One antenna is A = 1
and f = 1; of it only the real part is formed.

Sums over devices are exact, at each antenna: every contribution is rounded once to a whole multiple of a tiny power of
two (about 2⁻⁶² of the largest possible sum) and added as a 64-bit integer. Integer addition is associative, so the
received signal has the same bits for every chunk size, worker count, process count and order of devices.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import antennas
from airfed.antennas import Complexes
from airfed.clipping import CLIP_MARGIN, clip, precode, squared_norm
from airfed.planning import Plan

__all__ = ["CLIP_MARGIN", "Air", "Airs", "Reception", "Superposition", "clip", "precode"]

Vector = NDArray[np.float64]

# Norms beyond this multiple of ϖ count as this much in their mean (a diverging device must not swamp it).
_LONGEST_NORM: Final = 2.0**20


@dataclass(frozen=True, kw_only=True, eq=False)
class Air:
    """What the channel does to the uploads of a plan's devices in one round.

    Args:
        scheduled: K, ascending device indices.
        clip_norm: ϖ.
        alignment_coefficient: ν, by which the receiver divides.
        transmit_amplitude: √(φ_k P_k) [√W] of each scheduled device at full norm.
        coefficient: a_k, complex: what device k's clipped update is multiplied by up to what the combiner makes of it.
        arrival: the same up to each antenna, (|K|, A).
        combiner: f, (A,), with which the antennas are combined.
        transmit_phase: −arg(fᴴh_k), by which each scheduled device turns its carrier.
        noise_std: of what is received, per real dimension.
        constant_power: [W] that each scheduled device transmits whatever its update is.
        by_largest: whether the largest update of a round sets the scale of all (COTAF): the noise grows, and the power
            falls, with it. `clip_norm` is then only a guard, at `guard` times the norm of reference.
        guard: how many times ϖ `clip_norm` is; 1 where updates are clipped to ϖ.
    """

    scheduled: NDArray[np.intp]
    clip_norm: float
    alignment_coefficient: float
    transmit_amplitude: Vector
    coefficient: Complexes
    arrival: Complexes
    combiner: Complexes
    transmit_phase: Vector
    noise_std: float
    constant_power: Vector
    by_largest: bool = False
    guard: float = 1.0

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        index: int = -1,
        *,
        channel: Complexes | None = None,
        phase: Vector | None = None,
    ) -> Air:
        """Return the air of one round of a plan.

        Args:
            plan: which devices transmit, and how strongly. Its channels are the devices' CSI (ĥ_k).
            index: i; the last round by default.
            channel: the true h_k of every device of the fleet, (N, A), or (N,) with one antenna; by default the CSI is
                exact.
            phase: the phase that every device corrects; by default arg(fᴴĥ_k).

        Implements [Yan23, (6)], [Yan23, (10)], [Yan23, (14)].
        """
        entry, fleet = plan.sequence[index], plan.problem.fleet
        signal, chosen, clip_norm = entry.signal, entry.scheduled, entry.clip_norm
        equal = bool(np.all(signal.amplitude == entry.alignment))
        if signal.transmit_amplitude is None:  # no channel shapes what is added up
            amplitude, psi, combiner = np.zeros(chosen.size), np.zeros(chosen.size), np.ones(1, np.complex128)
            coefficient = (signal.amplitude / clip_norm).astype(np.complex128)
            arrival = coefficient[:, None]
        else:
            # No device exceeds its peak power; one that a plan asks for more (a printed policy may) arrives weaker.
            amplitude = np.minimum(signal.transmit_amplitude, np.sqrt(fleet.peak_power[chosen]))  # [Yan23, (14)]
            psi = np.angle(fleet.heard_in(entry.index, chosen)) if phase is None else np.asarray(phase)[chosen]
            combiner = fleet.combiner_in(entry.index)
            if channel is None:
                vectors = fleet.channel_in(entry.index, chosen)
            else:
                vectors = np.reshape(channel, (-1, fleet.antennas))[chosen]
            received, turned = antennas.heard(vectors, combiner), np.exp(-1j * psi)
            coefficient = received * turned * amplitude / clip_norm  # [Yan23, (6)] then [Yan23, (7)]
            arrival = vectors * turned[:, None] * amplitude[:, None] / clip_norm
        return cls(
            scheduled=chosen,
            clip_norm=clip_norm * signal.guard,
            alignment_coefficient=entry.alignment_coefficient if equal else signal.divisor / (chosen.size * clip_norm),
            transmit_amplitude=amplitude,
            coefficient=coefficient,
            arrival=arrival,
            combiner=combiner,
            transmit_phase=-psi,
            noise_std=signal.noise_std,
            constant_power=np.zeros(chosen.size) if signal.constant_power is None else signal.constant_power,
            by_largest=signal.by_largest,
            guard=signal.guard,
        )

    def slots(self, devices: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the positions of devices among the scheduled ones.

        Raises:
            ValueError: a device is not scheduled.
        """
        slots = np.searchsorted(self.scheduled, devices)
        inside = slots < self.scheduled.size
        if not inside.all() or np.any(self.scheduled[slots] != devices):
            raise ValueError("Expected updates of scheduled devices only.")
        return slots

    def undo_precoding(self, devices: NDArray[np.intp], signals: ArrayLike) -> Vector:
        """Return the updates that devices have precoded into the given signals, (m, d); the inverse of `precode`.

        Only where updates modulate the carrier, and alone.
        """
        scale = self.clip_norm / self.transmit_amplitude[self.slots(devices)]
        with np.errstate(over="ignore", invalid="ignore"):  # from a faulty device; `clip` refuses the row
            return np.asarray(signals, dtype=np.float64) * scale[:, None]

    @property
    def largest_amplitude(self) -> float:
        """max_k |a_k|ϖ, with which the strongest device arrives at full norm; θ if all are aligned."""
        return float(np.max(np.abs(self.coefficient))) * self.clip_norm

    @property
    def antennas(self) -> int:
        """A: at how many antennas signals add up."""
        return self.combiner.size

    @cached_property
    def factors(self) -> Vector:
        """What an update is multiplied by in each part of the signal, (|K|, A, c).

        c = 2: the real and the imaginary part of `arrival`. With one antenna the receiver reads the real part only, and
        c = 1.
        """
        parts = (self.arrival.real, self.arrival.imag)
        return np.stack(parts[: min(self.antennas, 2)], axis=-1)

    def open_round(self, dimension: int) -> Superposition:
        """Return an empty superposition for one round's uploads of the given dimension."""
        return Superposition(air=self, dimension=dimension)


@dataclass(frozen=True, kw_only=True, eq=False)
class Airs:
    """The air of every round of a plan.

    Args:
        plan, phase: as in `Air.from_plan`.
        channel: the true h_k of every device, (N, A), or of every round, too, (I, N, A); with one antenna the last axis
            may be left out. By default the CSI is exact.
    """

    plan: Plan
    channel: Complexes | None = None
    phase: Vector | None = None

    def at(self, index: int) -> Air:
        """Return the air of round `index`; that of −1 is that of the last, in which θ is largest."""
        return self._only if self.plan.constant else self._made(index)

    def open_round(self, dimension: int, index: int) -> Superposition:
        """Return an empty superposition for the uploads of round `index`."""
        return self.at(index).open_round(dimension)

    @cached_property
    def _only(self) -> Air:
        return self._made(-1)

    def _made(self, index: int) -> Air:
        fleet, true = self.plan.problem.fleet, self.channel
        if true is not None:
            rows = np.reshape(true, (-1, fleet.num_devices, fleet.antennas))
            true = rows[range(self.plan.rounds)[index] if len(rows) > 1 else 0]
        return Air.from_plan(self.plan, index, channel=true, phase=self.phase)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reception:
    """What the receiver makes of one round, and what it cost.

    Args:
        received: y = Re(fᴴY), noise included.
        estimate: g̃ = y/(|K|ν), the recovered mean update.
        fading_error, noise_error: 2-norms of the two parts of the error (9).
        signal_to_noise: ‖y − r‖²/‖r‖², where r is the noise in y.
        power: [W] really transmitted by all devices.
        heard, usable, clipped: how many uploads arrived, were finite, and were longer than ϖ.
        norm_mean, norm_max: of ‖g_k‖ before clipping over the usable uploads (in the mean, 2²⁰ϖ at most); 0 if none.
        norms: ‖g_k‖ for each scheduled device; NaN where refused or missing.
        refused: devices whose update had a NaN or an Inf and counted as zero.
        missing: scheduled devices that sent nothing (they count as zero; the divisor stays |K|).
        energy: [W] really transmitted by each scheduled device, φ_k P_k ‖g_k‖²/ϖ².
        parts: Y, what every antenna has received, noise included: real and imaginary parts, (A, 2, d); with one antenna
            the real part only, (1, 1, d).

    Norms, refused, missing and energy speak of the devices that were added in this process; all else is of the whole
    round.
    """

    received: Vector
    estimate: Vector
    fading_error: float
    noise_error: float
    signal_to_noise: float
    power: float
    heard: int
    usable: int
    clipped: int
    norm_mean: float
    norm_max: float
    norms: Vector
    refused: NDArray[np.intp]
    missing: NDArray[np.intp]
    energy: Vector
    parts: Vector

    @property
    def antennas(self) -> Complexes:
        """Y, complex, (A, d)."""
        return np.asarray(np.tensordot(np.array([1, 1j])[: self.parts.shape[1]], self.parts, axes=(0, 1)))


@dataclass(kw_only=True, eq=False)
class Superposition:
    """The signals of one round adding up in the air; `add` in any order, any chunks, then `receive` once.

    Partial superpositions of one round, say of two processes, merge by adding their `integers` and taking the larger
    `norm_max`: what they exchange does not grow with the number of devices.
    """

    air: Air
    dimension: int
    signal: NDArray[np.int64] = field(init=False)  # Y in quanta, (A, c, d)
    plain: NDArray[np.int64] | None = field(init=False)  # Σ ν g_k in quanta; None while all are aligned
    tally: NDArray[np.int64] = field(init=False)  # heard, usable, clipped; power and Σ‖g_k‖ in quanta of their own
    norm_max: float = 0.0
    norms: Vector = field(init=False)
    energy: Vector = field(init=False)
    heard: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        count = self.air.scheduled.size
        self.signal = np.zeros((*self.air.factors.shape[1:], self.dimension), np.int64)
        real = self.air.coefficient.real
        nu = self.air.alignment_coefficient
        aligned = bool(np.all(np.abs(real - nu) <= 1e-14 * nu))
        self.plain = None if aligned else np.zeros(self.dimension, np.int64)
        self.tally = np.zeros(5, np.int64)
        self.norms = np.full(count, np.nan)
        self.energy = np.zeros(count)
        self.heard = np.zeros(count, np.bool_)
        antenna = float(np.max(np.abs(self.air.arrival))) * self.air.clip_norm
        strongest = max(self.air.largest_amplitude, nu * self.air.clip_norm, antenna)
        self._quantum = _quantum(count * strongest)
        self._power_quantum = _quantum(
            float(np.sum(np.square(self.air.transmit_amplitude))) + float(np.sum(self.air.constant_power))
        )
        self._longest_norm = self.air.clip_norm * _LONGEST_NORM
        self._norm_quantum = _quantum(count * self._longest_norm)

    @property
    def integers(self) -> NDArray[np.int64]:
        """All that adds up over processes, as one new vector; assign the sum back."""
        parts = [self.signal.ravel(), self.tally]
        return np.concatenate(parts if self.plain is None else [*parts, self.plain])

    @integers.setter
    def integers(self, total: NDArray[np.int64]) -> None:
        signal, self.tally, plain = np.split(total, [self.signal.size, self.signal.size + self.tally.size])
        self.signal = signal.reshape(self.signal.shape)
        if self.plain is not None:
            self.plain = plain

    @property
    def noise_size(self) -> int:
        """How many values the noise of the round has: one for each of the signal."""
        return self.signal.size

    def add(self, devices: NDArray[np.intp], updates: ArrayLike) -> None:
        """Let the given devices transmit their updates, (len(devices), d).

        Raises:
            ValueError: a device is not scheduled, transmits twice, or the shape is wrong.

        Implements [Yan23, (7)].
        """
        slots = self._slots(devices)
        rows, norms = clip(updates, self.air.clip_norm)
        if rows.shape != (len(devices), self.dimension):
            raise ValueError(f"Expected updates of shape ({len(devices)}, {self.dimension}), got {rows.shape}.")
        self.heard[slots] = True
        self.norms[slots] = norms
        sent = np.add.reduce(np.square(rows), axis=1)
        self.energy[slots] = np.square(self.air.transmit_amplitude[slots] / self.air.clip_norm) * sent
        self.energy[slots] += self.air.constant_power[slots]
        self._count(slots)
        if self.plain is not None:
            self.plain += self._quanta(rows * self.air.alignment_coefficient)
        factors = self.air.factors[slots]
        product = rows if self.signal.size == self.dimension else np.empty_like(rows)  # one for all parts
        for place in np.ndindex(factors.shape[1:]):
            self.signal[place] += self._quanta(np.multiply(rows, factors[:, *place, None], out=product))

    def _count(self, slots: NDArray[np.intp]) -> None:
        norms = self.norms[slots]
        usable = norms[np.isfinite(norms)]
        self.norm_max = max(self.norm_max, float(np.max(usable, initial=0.0)))
        self.tally += np.array(
            [
                slots.size,
                usable.size,
                np.count_nonzero(usable > self.air.clip_norm),
                _whole(self.energy[slots], self._power_quantum),
                _whole(np.minimum(usable, self._longest_norm), self._norm_quantum),
            ]
        )

    def digest(self) -> str:
        """Return the SHA-256 of the sums: equal for equal signals, to the bit, and for no others.

        It covers the quantum, without which sums of two plans may be the same integers, and the largest norm, by which
        some receivers scale their noise.
        """
        scales = np.array([self._quantum, self.norm_max])
        return hashlib.sha256(scales.tobytes() + self.integers.tobytes()).hexdigest()

    def receive(self, noise: Vector) -> Reception:
        """Return what the receiver recovers once all devices have transmitted.

        Args:
            noise: r of eq. (7), (Acd,): already of standard deviation σ per real dimension. The real parts of the first
                antenna's come first, then its imaginary parts, those of the next antenna, and so on.

        Implements [Yan23, (8)], [Yan23, (9)], [Yan23, (12)].
        """
        if noise.shape != (self.noise_size,):
            raise ValueError(f"Expected noise of shape ({self.noise_size},), got {noise.shape}.")
        scale = self.air.scheduled.size * self.air.alignment_coefficient  # |K|ν: who was planned, not who answered
        signal = self.signal.astype(np.float64) * self._quantum
        heard, usable, clipped, power, norms = (int(value) for value in self.tally)
        share = 1.0
        if self.air.by_largest:
            largest = min(self.norm_max, self.air.clip_norm)
            noise = noise * (largest / (self.air.clip_norm / self.air.guard))
            share = (self.air.clip_norm / largest) ** 2 if largest else 0.0
        noise = noise.reshape(signal.shape)
        parts = signal + noise
        signal, noise = (_combined(self.air.combiner, each) for each in (signal, noise))
        received = signal + noise
        noise_power = squared_norm(noise)
        refused = self.heard & np.isnan(self.norms)
        return Reception(
            received=received,
            estimate=received / scale,
            fading_error=self._fading(signal) / scale,
            noise_error=math.sqrt(noise_power) / scale,
            signal_to_noise=squared_norm(signal) / noise_power if noise_power else math.inf,
            power=power * self._power_quantum * share,
            heard=heard,
            usable=usable,
            clipped=clipped,
            norm_mean=norms * self._norm_quantum / usable if usable else 0.0,
            norm_max=self.norm_max,
            norms=self.norms,
            refused=self.air.scheduled[refused],
            missing=self.air.scheduled[~self.heard],
            energy=self.energy * share if self.air.by_largest else self.energy,
            parts=parts,
        )

    def _fading(self, signal: Vector) -> float:
        """‖Σ (Re(a_k) − ν) g_k‖: how far the noise-free signal is from that of devices that all arrive alike."""
        if self.plain is None:
            return 0.0
        return math.sqrt(squared_norm(signal - self.plain.astype(np.float64) * self._quantum))

    def _slots(self, devices: NDArray[np.intp]) -> NDArray[np.intp]:
        slots = self.air.slots(devices)
        if np.any(self.heard[slots]) or np.unique(slots).size != slots.size:
            raise ValueError("Expected each device to transmit at most once a round.")
        return slots

    def _quanta(self, contributions: Vector) -> NDArray[np.int64]:
        contributions *= 1.0 / self._quantum
        np.rint(contributions, out=contributions)
        total: NDArray[np.int64] = np.add.reduce(contributions.astype(np.int64), axis=0)
        return total


def _quantum(largest: float) -> float:
    """The power of two of which sums up to `largest` are fewer than 2^62: they cannot overflow an int64."""
    if not largest:  # nothing is transmitted
        return 1.0
    return float(2.0 ** (math.ceil(math.log2(largest)) - 62))


def _whole(values: Vector, quantum: float) -> int:
    """The sum of non-negative values in quanta, each rounded first."""
    return int(np.sum(np.rint(values / quantum).astype(np.int64)))


def _combined(combiner: Complexes, parts: Vector) -> Vector:
    """Re(fᴴY), (d,), of the parts of Y, (A, c, d); antenna by antenna, in their order."""
    weights = np.stack((combiner.real, combiner.imag), axis=-1)[:, : parts.shape[1]]
    products = (weight[:, None] * antenna for weight, antenna in zip(weights, parts, strict=True))
    return np.asarray(reduce(np.add, (reduce(np.add, antenna) for antenna in products)))
