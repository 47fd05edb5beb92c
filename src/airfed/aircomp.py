"""AirComp: clip, precode, superpose, add noise, rescale, and meter what was really transmitted.

Complex baseband, eq. (6)-(13) of [Yan23]. Device k transmits x_k = e^{−jψ̂_k} √(φ_k P_k)/ϖ · g_k on the in-phase axis.
A receiver with A antennas receives a vector Y of the sums of all h_k x_k, each with noise of standard deviation σ per
real dimension, and reads the real part of what its beamformer f makes of them, Re(fᴴY). One antenna is A = 1 and f = 1;
of it only the real part is formed.

Sums over devices are exact, at each antenna: every contribution is rounded once to a whole multiple of a tiny power of
two (about 2⁻⁶² of the largest possible sum) and added as a 64-bit integer. Integer addition is associative, so the
received signal has the same bits for every chunk size, worker count, process count and order of devices.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass
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

_LONGEST_NORM: Final = 2.0**20  # times ϖ: norms beyond count as this much in their mean, which they would swamp


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
        constant_power: [W] that each scheduled device transmits whatever its update is.
        reference_norm: None, or, where the largest update of a round sets the scale of all (COTAF), the norm that it
            is compared with: the noise grows, and the power falls, with it.
    """

    scheduled: NDArray[np.intp]
    clip_norm: float
    alignment_coefficient: float
    transmit_amplitude: Vector
    coefficient: Complexes
    arrival: Complexes
    combiner: Complexes
    transmit_phase: Vector
    constant_power: Vector
    reference_norm: float | None = None

    @classmethod
    def from_plan(
        cls, plan: Plan, index: int = -1, *, channel: Complexes | None = None, phase: Vector | None = None
    ) -> Air:
        """Return the air of one round of a plan.

        Args:
            plan: which devices transmit, and how strongly. Its channels are the devices' CSI (ĥ_k).
            index: i; the last round by default.
            channel: the true h_k of all devices, (N, A), or (N,) with one antenna; by default the CSI is exact.
            phase: the phase that every device corrects; by default arg(fᴴĥ_k).

        Implements [Yan23, (6)], [Yan23, (10)], [Yan23, (14)].
        """
        entry, fleet = plan.sequence[index], plan.problem.fleet
        signal, chosen, clip_norm = entry.signal, entry.scheduled, entry.clip_norm
        amplitude = psi = none = np.zeros(chosen.size)
        if signal.transmit_amplitude is None:  # no channel shapes what is added up
            combiner = np.ones(1, np.complex128)
            coefficient = (signal.amplitude / clip_norm).astype(np.complex128)
        else:
            # No device exceeds its peak power; one that a plan asks for more (a printed policy may) arrives weaker.
            amplitude = np.minimum(signal.transmit_amplitude, np.sqrt(fleet.peak_power[chosen]))  # [Yan23, (14)]
            combiner = fleet.combiner_in(entry.index)
            true = None if channel is None else np.reshape(channel, (-1, combiner.size))[chosen]
            vectors = fleet.channel_in(entry.index, chosen) if true is None else true
            received = antennas.heard(vectors, combiner)
            if phase is None:
                psi = np.angle(received if true is None else fleet.heard_in(entry.index, chosen))
            else:
                psi = np.asarray(phase)[chosen]
            turned = np.exp(-1j * psi)
            coefficient = received * turned * amplitude / clip_norm  # [Yan23, (6)] then [Yan23, (7)]
        arrival = coefficient[:, None]
        if combiner.size > 1:
            arrival = vectors * turned[:, None] * amplitude[:, None] / clip_norm
        equal = (signal.amplitude == entry.alignment).all()
        return cls(
            scheduled=chosen,
            clip_norm=clip_norm * signal.guard,
            alignment_coefficient=entry.alignment_coefficient if equal else signal.divisor / (chosen.size * clip_norm),
            transmit_amplitude=amplitude,
            coefficient=coefficient,
            arrival=arrival,
            combiner=combiner,
            transmit_phase=-psi,
            constant_power=none if signal.constant_power is None else signal.constant_power,
            reference_norm=clip_norm if signal.by_largest else None,
        )

    def slots(self, devices: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the positions of devices among the scheduled ones; raises ValueError where one is not scheduled."""
        slots = np.searchsorted(self.scheduled, devices)
        if np.any(slots == self.scheduled.size) or np.any(self.scheduled[slots] != devices):
            raise ValueError("Expected updates of scheduled devices only.")
        return slots

    def undo_precoding(self, devices: NDArray[np.intp], signals: ArrayLike) -> Vector:
        """Return the updates that devices have precoded into the given signals, (m, d); the inverse of `precode`."""
        scale = self.clip_norm / self.transmit_amplitude[self.slots(devices)]
        with np.errstate(over="ignore", invalid="ignore"):  # from a faulty device; `clip` refuses the row
            return np.asarray(signals, dtype=np.float64) * scale[:, None]

    @property
    def antennas(self) -> int:
        """A: at how many antennas signals add up."""
        return self.combiner.size

    @cached_property
    def factors(self) -> Vector:
        """The real and imaginary parts of `arrival`, (|K|, A, 2); with one antenna the real part only, (|K|, 1, 1)."""
        return _parts(self.arrival)[..., : min(self.antennas, 2)]

    @cached_property
    def aligned(self) -> bool:
        """Whether every update is multiplied by ν, but for rounding."""
        nu = self.alignment_coefficient
        return bool((np.abs(self.coefficient.real - nu) <= 1e-14 * nu).all())

    @cached_property
    def quanta(self) -> tuple[float, ...]:
        """Quantum of the signal, of the power and of the norms: sums of whole multiples of them are exact."""
        count, clip_norm = self.scheduled.size, self.clip_norm
        strongest = float(max(np.abs(self.coefficient).max(), np.abs(self.arrival).max(), self.alignment_coefficient))
        power = float(np.sum(np.square(self.transmit_amplitude))) + float(np.sum(self.constant_power))
        return tuple(map(_quantum, (count * (strongest * clip_norm), power, count * (clip_norm * _LONGEST_NORM))))

    def open_round(self, dimension: int) -> Superposition:
        """Return an empty superposition for one round's uploads of the given dimension."""
        return Superposition(self, dimension)


@dataclass(frozen=True, kw_only=True, eq=False)
class Airs:
    """The air of every round of a plan.

    Args:
        plan, phase: as in `Air.from_plan`.
        channel: as there, or of every round, too, (I, N, A) or (I, N).
    """

    plan: Plan
    channel: Complexes | None = None
    phase: Vector | None = None

    def at(self, index: int) -> Air:
        """Return the air of round `index`; that of −1 is that of the last, in which θ is largest."""
        return self._constant if self.plan.constant else self._of_round(index)

    def open_round(self, dimension: int, index: int) -> Superposition:
        """Return an empty superposition for the uploads of round `index`."""
        return self.at(index).open_round(dimension)

    @cached_property
    def _constant(self) -> Air:
        return self._of_round(-1)

    def _of_round(self, index: int) -> Air:
        fleet, true = self.plan.problem.fleet, self.channel
        if true is not None:
            true = np.reshape(true, (-1, fleet.num_devices, fleet.antennas))
            true = true[range(self.plan.rounds)[index] if len(true) > 1 else 0]
        return Air.from_plan(self.plan, index, channel=true, phase=self.phase)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reception:
    """What the receiver makes of one round, and what it cost.

    Args:
        received: y = Re(fᴴY), noise included.
        estimate: g̃ = y/(|K|ν), the recovered mean update.
        fading_error, noise_error: 2-norms of the two parts of the error (9).
        signal_to_noise: ‖y − r‖²/‖r‖², where r is the noise in y.
        power: [W] really transmitted by all devices, Σ φ_k P_k ‖g_k‖²/ϖ².
        heard, usable, clipped: how many uploads arrived, were finite, and were longer than ϖ.
        norm_mean, norm_max: of ‖g_k‖ before clipping over the usable uploads (in the mean, 2²⁰ϖ at most); 0 if none.
        norms, energy: ‖g_k‖ of each scheduled device, NaN where refused or missing, and the power [W] it transmitted.
        refused, missing: devices whose update had a NaN or an Inf, and who sent nothing: both count as zero.
        parts: Y, noise included: real and imaginary parts, (A, 2, d); with one antenna the real part only, (1, 1, d).

    Norms, refused, missing and energy are of the devices added in this process; all else is of the whole round.
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


class Superposition:
    """The signals of one round adding up in the air; `add` in any order, any chunks, then `receive` once.

    Partial superpositions of one round, say of two processes, merge by adding their `integers` and taking the larger
    `norm_max`: what they exchange does not grow with the number of devices.
    """

    def __init__(self, air: Air, dimension: int) -> None:
        count = air.scheduled.size
        self.air, self.dimension = air, dimension
        self._quantum, self._power_quantum, self._norm_quantum = air.quanta
        self.signal = np.zeros((*air.factors.shape[1:], dimension), np.int64)  # Y in quanta, (A, c, d)
        self.plain = None if air.aligned else np.zeros(dimension, np.int64)  # Σ ν g_k in quanta
        self.tally = np.zeros(5, np.int64)  # heard, usable, clipped; power and Σ‖g_k‖ in quanta of their own
        self.norm_max = 0.0
        self.norms, self.energy, self.heard = np.full(count, np.nan), np.zeros(count), np.zeros(count, np.bool_)

    @property
    def integers(self) -> NDArray[np.int64]:
        """All that adds up over processes, as one new vector; assign the sum back."""
        parts = [self.signal.ravel(), self.tally]
        return np.concatenate(parts if self.plain is None else [*parts, self.plain])

    @integers.setter
    def integers(self, total: NDArray[np.int64]) -> None:
        signal, self.tally, plain = np.split(total, [self.signal.size, self.signal.size + self.tally.size])
        self.signal, self.plain = signal.reshape(self.signal.shape), None if self.plain is None else plain

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
        air, slots = self.air, self.air.slots(devices)
        if np.any(self.heard[slots]) or np.unique(slots).size != slots.size:
            raise ValueError("Expected each device to transmit at most once a round.")
        rows, norms = clip(updates, air.clip_norm)
        if rows.shape != (len(devices), self.dimension):
            raise ValueError(f"Expected updates of shape ({len(devices)}, {self.dimension}), got {rows.shape}.")
        sent = np.add.reduce(np.square(rows), axis=1)
        energy = np.square(air.transmit_amplitude[slots] / air.clip_norm) * sent + air.constant_power[slots]
        self.heard[slots], self.norms[slots], self.energy[slots] = True, norms, energy
        usable = norms[np.isfinite(norms)]
        self.norm_max = max(self.norm_max, float(np.max(usable, initial=0.0)))
        clipped, longest = int(np.count_nonzero(usable > air.clip_norm)), air.clip_norm * _LONGEST_NORM
        power, length = _whole(energy, self._power_quantum), _whole(np.minimum(usable, longest), self._norm_quantum)
        self.tally += (slots.size, usable.size, clipped, power, length)
        if self.plain is not None:
            self.plain += self._quanta(rows * air.alignment_coefficient)
        factors = air.factors[slots]
        product = rows if self.signal.size == self.dimension else np.empty_like(rows)
        for place in itertools.product(*map(range, factors.shape[1:])):
            self.signal[place] += self._quanta(np.multiply(rows, factors[:, *place, None], out=product))

    def digest(self) -> str:
        """Return the SHA-256 of the sums: equal for equal signals, to the bit, and for no others."""
        scales = np.array([self._quantum, self.norm_max])  # without them other signals may have the same integers
        return hashlib.sha256(scales.tobytes() + self.integers.tobytes()).hexdigest()

    def receive(self, noise: Vector) -> Reception:
        """Return what the receiver recovers once all devices have transmitted.

        Args:
            noise: r of eq. (7), (Acd,), of standard deviation σ per real dimension: the real parts of the first
                antenna's, its imaginary parts, then those of the next antenna, and so on.

        Implements [Yan23, (8)], [Yan23, (9)], [Yan23, (12)].
        """
        if noise.shape != (self.noise_size,):
            raise ValueError(f"Expected noise of shape ({self.noise_size},), got {noise.shape}.")
        air, scale = self.air, self.air.scheduled.size * self.air.alignment_coefficient  # |K|ν: planned, not answered
        signal = self.signal.astype(np.float64) * self._quantum
        heard, usable, clipped, power, norms = self.tally.tolist()
        share = 1.0  # of the planned power
        if air.reference_norm is not None:
            largest = min(self.norm_max, air.clip_norm)
            noise = noise * (largest / air.reference_norm)
            share = (air.clip_norm / largest) ** 2 if largest else 0.0
        noise = noise.reshape(signal.shape)
        parts = signal + noise
        signal, noise = (_combined(air.combiner, each) for each in (signal, noise))
        received, noise_power = signal + noise, squared_norm(noise)
        # How far the noise-free signal is from that of devices that all arrive alike: ‖Σ (Re(a_k) − ν) g_k‖
        fading = 0.0 if self.plain is None else math.sqrt(squared_norm(signal - self.plain * self._quantum))
        return Reception(
            received=received,
            estimate=received / scale,
            fading_error=fading / scale,
            noise_error=math.sqrt(noise_power) / scale,
            signal_to_noise=squared_norm(signal) / noise_power if noise_power else math.inf,
            power=power * self._power_quantum * share,
            heard=heard,
            usable=usable,
            clipped=clipped,
            norm_mean=norms * self._norm_quantum / usable if usable else 0.0,
            norm_max=self.norm_max,
            norms=self.norms,
            refused=air.scheduled[self.heard & np.isnan(self.norms)],
            missing=air.scheduled[~self.heard],
            energy=self.energy * share,
            parts=parts,
        )

    def _quanta(self, contributions: Vector) -> NDArray[np.int64]:
        contributions *= 1.0 / self._quantum
        return np.asarray(np.add.reduce(np.rint(contributions, out=contributions).astype(np.int64), axis=0))


def _quantum(largest: float) -> float:
    """The power of two of which sums up to `largest` are fewer than 2^62: they cannot overflow an int64."""
    return 2.0 ** (math.ceil(math.log2(largest)) - 62) if largest else 1.0  # 0: nothing is transmitted


def _whole(values: Vector, quantum: float) -> int:
    """The sum of non-negative values in quanta, each rounded first."""
    return int(np.sum(np.rint(values / quantum).astype(np.int64)))


def _parts(values: Complexes) -> Vector:
    """The real and the imaginary parts, along a new last axis."""
    return np.ascontiguousarray(values).view(np.float64).reshape(*values.shape, 2)


def _combined(combiner: Complexes, parts: Vector) -> Vector:
    """Re(fᴴY), (d,), of the parts of Y, (A, c, d); antenna by antenna, in their order."""
    weights = _parts(combiner)[:, : parts.shape[1]]
    products = (weight[:, None] * antenna for weight, antenna in zip(weights, parts, strict=True))
    return np.asarray(reduce(np.add, (reduce(np.add, antenna) for antenna in products)))
