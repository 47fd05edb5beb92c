"""Over-the-air computation (AirComp): clip, precode, superpose, add noise, rescale, and meter the transmit power.

The model is complex baseband, eq. (6)-(13) of [Yan23]. Device k clips its update to g_k, ‖g_k‖ ≤ ϖ, and transmits
x_k = e^{−jψ̂_k} √(φ_k P_k)/ϖ · g_k: ψ̂_k is its phase estimate, φ_k P_k the power [W] at norm ϖ. The A antennas receive
Y, the sum of all h_k x_k and noise of standard deviation σ per real dimension. The receiver applies its beamformer f
and uses Re(fᴴY). A single antenna is A = 1 and f = 1; then only the real part of Y is computed.

Sums do not depend on their order: each contribution is rounded once to a multiple of a quantum, a power of two (about
2⁻⁶² of the largest possible sum), and added as a 64-bit integer. Integer addition is associative, so the received
signal has the same bits for every chunk size, worker count, process count and order of devices.

With adaptive clipping an upload has one more entry, ±c with c = ϖ√(s/(1 − s)): plus if ‖g_k‖ ≤ ϖ, minus if the update
is clipped, 0 if it is not finite. All of the above holds for the upload (g_k, ±c), of norm ϖ/√(1 − s) at most, in place
of g_k.
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

__all__ = ["CLIP_MARGIN", "AirComp", "AirCompRound", "ReceivedAggregate", "Superposition", "clip", "precode"]

Vector = NDArray[np.float64]

_LONGEST_NORM: Final = 2.0**20  # times ϖ: longer norms count as this in the mean norm


@dataclass(frozen=True, kw_only=True, eq=False)
class AirCompRound:
    """Precoding, channel and beamforming of one round, for the scheduled devices."""

    scheduled: NDArray[np.intp]  # K, ascending device indices
    clip_norm: float  # ϖ, the largest 2-norm of an update
    alignment_coefficient: float  # ν [√W per unit of update]; the receiver divides by |K|ν
    transmit_amplitude: Vector  # √(φ_k P_k) [√W] of each scheduled device, for an update of norm ϖ
    coefficient: Complexes  # a_k/ϖ, (|K|,): the factor from g_k to the output of the beamformer [as ν]
    arrival: Complexes  # the factor from g_k to each antenna, (|K|, A) [as ν]
    beamformer: Complexes  # f, (A,), the receive beamformer, of norm 1
    transmit_phase: Vector  # −ψ̂_k = −arg(fᴴĥ_k) [rad], the phase that each scheduled device applies
    constant_power: Vector  # [W] that each scheduled device transmits regardless of its update
    reference_norm: float | None = None  # of COTAF, which scales all updates by the largest: that norm as planned
    indicator: float = 0.0  # c, the entry for the clipping indicator; 0 without adaptive clipping

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        index: int = -1,
        *,
        channel: Complexes | None = None,
        phase: Vector | None = None,
        clip_norm: float | None = None,
    ) -> AirCompRound:
        """Return the AirComp round of a plan.

        Args:
            plan: the plan; its channels are the devices' CSI (ĥ_k).
            index: i, from 0; the last round by default.
            channel: the true h_k of all devices, (N, A), or (N,) with one antenna; by default the CSI is perfect.
            phase: ψ̂_k [rad] of all devices, (N,); by default arg(fᴴĥ_k).
            clip_norm: ϖ_i of adaptive clipping; by default that of the plan.

        Implements [Yan23, (6)], [Yan23, (10)], [Yan23, (14)].
        """
        entry, fleet = plan.sequence[index], plan.problem.fleet
        signal, scheduled, adaptive = entry.signal, entry.scheduled, plan.problem.learning.adaptive_clipping
        clip_norm = entry.clip_norm if clip_norm is None else clip_norm
        indicator = 0.0 if adaptive is None else adaptive.indicator * clip_norm
        norm = math.hypot(clip_norm, indicator)  # of an upload, at most
        amplitude = psi = none = np.zeros(scheduled.size)
        if signal.transmit_amplitude is None:  # a digital method: no channel
            beamformer = np.ones(1, np.complex128)
            coefficient = (signal.amplitude / clip_norm).astype(np.complex128)
        else:
            # No device exceeds its peak power: where a plan asks for more (policy "paper" may), it arrives weaker.
            amplitude = np.minimum(signal.transmit_amplitude, np.sqrt(fleet.peak_power[scheduled]))  # [Yan23, (14)]
            beamformer = fleet.beamformer_in(entry.index)
            true = None if channel is None else np.reshape(channel, (-1, beamformer.size))[scheduled]
            vectors = fleet.channel_in(entry.index, scheduled) if true is None else true
            known = effective = antennas.effective(vectors, beamformer)
            if true is not None and phase is None:
                known = antennas.effective(fleet.channel_in(entry.index, scheduled), beamformer)
            psi = np.angle(known) if phase is None else np.asarray(phase)[scheduled]
            rotation = np.exp(-1j * psi)
            coefficient = effective * rotation * amplitude / norm  # [Yan23, (6)] then [Yan23, (7)]
        arrival = coefficient[:, None]
        if beamformer.size > 1:
            arrival = vectors * rotation[:, None] * amplitude[:, None] / norm
        equal = (signal.amplitude == entry.alignment).all()
        nu = entry.alignment / norm if equal else signal.divisor / (scheduled.size * clip_norm)
        return cls(
            scheduled=scheduled,
            clip_norm=clip_norm * signal.clip_factor,
            alignment_coefficient=nu,
            transmit_amplitude=amplitude,
            coefficient=coefficient,
            arrival=arrival,
            beamformer=beamformer,
            transmit_phase=-psi,
            constant_power=none if signal.constant_power is None else signal.constant_power,
            reference_norm=clip_norm if signal.scale_by_largest else None,
            indicator=indicator,
        )

    def slots(self, devices: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the positions of devices in `scheduled`; raise ValueError if one is not scheduled."""
        slots = np.searchsorted(self.scheduled, devices)
        if np.any(slots == self.scheduled.size) or np.any(self.scheduled[slots] != devices):
            raise ValueError("devices must all be scheduled in this round.")
        return slots

    def undo_precoding(self, devices: NDArray[np.intp], signals: ArrayLike) -> Vector:
        """Return the updates that devices have precoded into the given signals, (m, d); the inverse of `precode`."""
        scale = self.clip_norm / self.transmit_amplitude[self.slots(devices)]
        with np.errstate(over="ignore", invalid="ignore"):  # from a faulty device; `clip` zeroes the row
            return np.asarray(signals, dtype=np.float64) * scale[:, None]

    @property
    def antennas(self) -> int:
        """A, the number of receive antennas."""
        return self.beamformer.size

    @cached_property
    def factors(self) -> Vector:
        """The real and imaginary parts of `arrival`, (|K|, A, 2); with one antenna the real part only, (|K|, 1, 1)."""
        return _parts(self.arrival)[..., : min(self.antennas, 2)]

    @cached_property
    def aligned(self) -> bool:
        """Whether every update arrives multiplied by ν, up to rounding."""
        nu = self.alignment_coefficient
        return bool((np.abs(self.coefficient.real - nu) <= 1e-14 * nu).all())

    @cached_property
    def quanta(self) -> tuple[float, ...]:
        """The quanta of the signal [√W], the power [W] and the norms; sums of their multiples are exact."""
        count, norm = self.scheduled.size, self.upload_norm
        strongest = float(max(np.abs(self.coefficient).max(), np.abs(self.arrival).max(), self.alignment_coefficient))
        power = float(np.sum(np.square(self.transmit_amplitude))) + float(np.sum(self.constant_power))
        return tuple(map(_quantum, (count * (strongest * norm), power, count * (self.clip_norm * _LONGEST_NORM))))

    @property
    def upload_norm(self) -> float:
        """The largest 2-norm of an upload: ϖ, or that of the update and the clipping indicator."""
        return math.hypot(self.clip_norm, self.indicator)

    def indicators(self, norms: Vector) -> Vector:
        """Return the entries ±c for the clipping indicators of updates with the given norms (NaN: not finite)."""
        return self.indicator * np.where(np.isnan(norms), 0.0, np.where(norms <= self.clip_norm, 1.0, -1.0))

    def open_round(self, dimension: int) -> Superposition:
        """Return an empty superposition for one round's uploads of the given dimension."""
        return Superposition(self, dimension)


@dataclass(frozen=True, kw_only=True, eq=False)
class AirComp:
    """Over-the-air computation in every round of a plan; the fields are arguments of `AirCompRound.from_plan`."""

    plan: Plan
    channel: Complexes | None = None  # also with one row per round, (I, N, A) or (I, N)
    phase: Vector | None = None

    def at(self, index: int, clip_norm: float | None = None) -> AirCompRound:
        """Return round `index`, from 0 (−1 is the last), with ϖ_i of adaptive clipping; by default ϖ of the plan."""
        if self.plan.constant and (clip_norm is None or clip_norm == self.plan.clip_norm):
            return self._constant
        return self._of_round(index, clip_norm)

    def open_round(self, dimension: int, index: int, clip_norm: float | None = None) -> Superposition:
        """Return an empty superposition for the uploads of round `index`."""
        return self.at(index, clip_norm).open_round(dimension)

    @cached_property
    def _constant(self) -> AirCompRound:
        return self._of_round(-1, None)

    def _of_round(self, index: int, clip_norm: float | None) -> AirCompRound:
        fleet, true = self.plan.problem.fleet, self.channel
        if true is not None:
            true = np.reshape(true, (-1, fleet.num_devices, fleet.antennas))
            true = true[range(self.plan.rounds)[index] if len(true) > 1 else 0]
        return AirCompRound.from_plan(self.plan, index, channel=true, phase=self.phase, clip_norm=clip_norm)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReceivedAggregate:
    """The aggregate that the receiver recovers in one round, and the power that was transmitted.

    Norms, refused, missing and energy cover the devices added in this process; all other values cover the whole round.
    """

    received: Vector  # y = Re(fᴴY) [√W], (d,), or (d + 1,) with the clipping indicator; noise included
    estimate: Vector  # g̃ = y/(|K|ν), the recovered mean update, (d,)
    fading_error: float  # 2-norms of the two parts of the error (9) of `estimate`, in units of the update
    noise_error: float
    signal_to_noise: float  # ‖y − r‖²/‖r‖², a power ratio (not dB) of the sum of all devices; r is the noise in y
    power: float  # [W] transmitted by all devices, Σ ‖x_k‖² = Σ φ_k P_k ‖g_k‖²/ϖ², and the constant powers
    arrived: int  # number of updates that arrived; of these, finite ones; of these, longer than ϖ
    usable: int
    clipped: int
    norm_mean: float  # of the usable updates before clipping (2²⁰ϖ at most in the mean); 0 if there are none
    norm_max: float
    norms: Vector  # of each scheduled device, before clipping; NaN if unusable
    refused: NDArray[np.intp]  # devices whose update had a NaN or an Inf, and devices that sent nothing: both are zero
    missing: NDArray[np.intp]
    energy: Vector  # ‖x_k‖² [W] of each scheduled device
    parts: Vector  # real and imaginary parts of Y, noise included, (A, 2, d); with one antenna the real part, (1, 1, d)
    unclipped: float | None = None  # b̃, noisy fraction of updates that are not clipped; with adaptive clipping

    @property
    def antennas(self) -> Complexes:
        """Y, complex, (A, d)."""
        return np.asarray(np.tensordot(np.array([1, 1j])[: self.parts.shape[1]], self.parts, axes=(0, 1)))


class Superposition:
    """The superposition of one round's signals; `add` in any order and any chunks, then `receive` once.

    To merge partial superpositions of several processes, add their `integers` and take the larger `norm_max`: the
    traffic does not grow with the number of devices.
    """

    def __init__(self, aircomp: AirCompRound, dimension: int) -> None:
        count = aircomp.scheduled.size
        self.aircomp, self.dimension = aircomp, dimension
        self.entries = dimension + (aircomp.indicator > 0)  # of an upload
        self._quantum, self._power_quantum, self._norm_quantum = aircomp.quanta
        self.signal = np.zeros((*aircomp.factors.shape[1:], self.entries), np.int64)  # Y in quanta, (A, c, d)
        self.plain = None if aircomp.aligned else np.zeros(self.entries, np.int64)  # Σ ν g_k in quanta
        self.tally = np.zeros(5, np.int64)  # arrived, usable, clipped; power and Σ‖g_k‖ in their own quanta
        self.norm_max = 0.0
        self.norms, self.energy, self.arrived = np.full(count, np.nan), np.zeros(count), np.zeros(count, np.bool_)

    @property
    def integers(self) -> NDArray[np.int64]:
        """All values that add up over processes, as one new vector; assign the sum back."""
        parts = [self.signal.ravel(), self.tally]
        return np.concatenate(parts if self.plain is None else [*parts, self.plain])

    @integers.setter
    def integers(self, total: NDArray[np.int64]) -> None:
        signal, self.tally, plain = np.split(total, [self.signal.size, self.signal.size + self.tally.size])
        self.signal, self.plain = signal.reshape(self.signal.shape), None if self.plain is None else plain

    @property
    def noise_size(self) -> int:
        """The number of noise values of the round, one for each value of the signal."""
        return self.signal.size

    def add(self, devices: NDArray[np.intp], updates: ArrayLike) -> None:
        """Superpose the updates of the given devices, (len(devices), d).

        Implements [Yan23, (7)].
        """
        aircomp, slots = self.aircomp, self.aircomp.slots(devices)
        if np.any(self.arrived[slots]) or np.unique(slots).size != slots.size:
            raise ValueError("devices must each transmit at most once a round.")
        rows, norms = clip(updates, aircomp.clip_norm)
        if rows.shape != (len(devices), self.dimension):
            raise ValueError(f"updates must have shape ({len(devices)}, {self.dimension}), got {rows.shape}.")
        if aircomp.indicator:
            rows = np.column_stack((rows, aircomp.indicators(norms)))
        sent = np.add.reduce(np.square(rows), axis=1)
        scale = aircomp.transmit_amplitude[slots] / aircomp.upload_norm
        energy = np.square(scale) * sent + aircomp.constant_power[slots]
        self.arrived[slots], self.norms[slots], self.energy[slots] = True, norms, energy
        usable = norms[np.isfinite(norms)]
        self.norm_max = max(self.norm_max, float(np.max(usable, initial=0.0)))
        clipped, longest = int(np.count_nonzero(usable > aircomp.clip_norm)), aircomp.clip_norm * _LONGEST_NORM
        power, length = _whole(energy, self._power_quantum), _whole(np.minimum(usable, longest), self._norm_quantum)
        self.tally += (slots.size, usable.size, clipped, power, length)
        if self.plain is not None:
            self.plain += self._quanta(rows * aircomp.alignment_coefficient)
        factors = aircomp.factors[slots]
        product = rows if self.signal.size == self.entries else np.empty_like(rows)
        for part in itertools.product(*map(range, factors.shape[1:])):  # antenna, and real or imaginary
            self.signal[part] += self._quanta(np.multiply(rows, factors[:, *part, None], out=product))

    def digest(self) -> str:
        """Return the SHA-256 of the sums: equal exactly for signals with the same bits."""
        scales = np.array([self._quantum, self.norm_max])  # different signals may have the same integers
        return hashlib.sha256(scales.tobytes() + self.integers.tobytes()).hexdigest()

    def receive(self, noise: Vector) -> ReceivedAggregate:
        """Return the aggregate that the receiver recovers after all devices have transmitted.

        Args:
            noise: r of eq. (7) [√W], (Acd,), of standard deviation σ per real dimension: the first antenna's real
                parts, its imaginary parts, then the next antenna's; c = 2, or 1 (real parts) with one antenna.

        Implements [Yan23, (8)], [Yan23, (9)], [Yan23, (12)].
        """
        if noise.shape != (self.noise_size,):
            raise ValueError(f"noise must have shape ({self.noise_size},), got {noise.shape}.")
        aircomp = self.aircomp
        scale = aircomp.scheduled.size * aircomp.alignment_coefficient  # |K|ν of the plan
        signal = self.signal.astype(np.float64) * self._quantum
        arrived, usable, clipped, power, norms = self.tally.tolist()
        power_ratio = 1.0  # transmitted over planned
        if aircomp.reference_norm is not None:
            largest = min(self.norm_max, aircomp.clip_norm)
            noise = noise * (largest / aircomp.reference_norm)
            power_ratio = (aircomp.clip_norm / largest) ** 2 if largest else 0.0
        noise = noise.reshape(signal.shape)
        parts = signal + noise
        signal, noise = (_combined(aircomp.beamformer, each) for each in (signal, noise))
        received, unclipped, update = signal + noise, None, slice(self.dimension)
        if aircomp.indicator:  # Σ ±c over scale is c(2b̃ − 1)
            unclipped = 0.5 + float(received[-1]) / (2.0 * aircomp.indicator * scale)
        signal, noise_power = signal[update], squared_norm(noise[update])
        # Distance of the noise-free signal from the aligned one: ‖Σ (Re(a_k)/ϖ − ν) g_k‖
        fading = 0.0
        if self.plain is not None:
            fading = math.sqrt(squared_norm(signal - self.plain[update] * self._quantum))
        return ReceivedAggregate(
            received=received,
            estimate=received[update] / scale,
            fading_error=fading / scale,
            noise_error=math.sqrt(noise_power) / scale,
            signal_to_noise=squared_norm(signal) / noise_power if noise_power else math.inf,
            power=power * self._power_quantum * power_ratio,
            arrived=arrived,
            usable=usable,
            clipped=clipped,
            norm_mean=norms * self._norm_quantum / usable if usable else 0.0,
            norm_max=self.norm_max,
            norms=self.norms,
            refused=aircomp.scheduled[self.arrived & np.isnan(self.norms)],
            missing=aircomp.scheduled[~self.arrived],
            energy=self.energy * power_ratio,
            parts=parts,
            unclipped=unclipped,
        )

    def _quanta(self, contributions: Vector) -> NDArray[np.int64]:
        contributions *= 1.0 / self._quantum
        return np.asarray(np.add.reduce(np.rint(contributions, out=contributions).astype(np.int64), axis=0))


def _quantum(largest: float) -> float:
    """Return a power of two such that sums up to `largest` are at most 2⁶² quanta and cannot overflow an int64."""
    return 2.0 ** (math.ceil(math.log2(largest)) - 62) if largest else 1.0  # 0: nothing is transmitted


def _whole(values: Vector, quantum: float) -> int:
    """Return the sum of non-negative values in quanta, each rounded first."""
    return int(np.sum(np.rint(values / quantum).astype(np.int64)))


def _parts(values: Complexes) -> Vector:
    """Return the real and imaginary parts along a new last axis."""
    return np.ascontiguousarray(values).view(np.float64).reshape(*values.shape, 2)


def _combined(beamformer: Complexes, parts: Vector) -> Vector:
    """Return Re(fᴴY), (d,), from the parts of Y, (A, c, d), added antenna by antenna."""
    weights = _parts(beamformer)[:, : parts.shape[1]]
    products = (weight[:, None] * antenna for weight, antenna in zip(weights, parts, strict=True))
    return np.asarray(reduce(np.add, (reduce(np.add, antenna) for antenna in products)))
