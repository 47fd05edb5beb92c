"""What a plan for channels that change depends on, as arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from airfed import _validate, convergence
from airfed.planning._equal import Floats
from airfed.problem import InfeasibleError, Learning

_STEEPEST = 50.0  # −ln η at most: beyond, a round's weight is below float64's last digit in the next one's
_DEAREST = 300.0  # −ln of the smallest weight that a decision is made with


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """The gains of all rounds, and the limits.

    Args:
        gain: |h_k^i|, (R, N): row i is round i; 0 marks a device that cannot be heard in that round.
        peak_power: P_k [W], (N,) or one number for all.
        noise_std: σ.
        learning: d, T, ϖ, ζ, ϱ, G.
        cap: the largest θ that privacy allows in any one round.
        total_power: P_tot [W, summed over devices and rounds].
        device_power: what each device may spend, Σ_{i: k∈K_i} θ_i²/|h_k^i|² [W], (N,) or one number; None: no limit.
        device_exposure: what each device may show, Σ_{i: k∈K_i} θ_i² ≤ (σμ/2)², (N,) or one number; None: no limit.

    Raises:
        ValueError: a value is out of range, or shapes differ.

    >>> world = World(gain=[[0.5, 1.0], [1.0, 0.2]], peak_power=1.0, noise_std=0.1, cap=0.3, total_power=1.0,
    ...     learning=Learning(dimension=10, total_steps=4, clip_norm=1.0, learning_rate=0.1, smoothness=10.0,
    ...                       strong_convexity=0.1, initial_gap=2.3))
    >>> world.num_devices, world.most_rounds, world.weights(2).round(3)
    (2, 2, array([0.099, 0.1  ]))
    """

    gain: Floats
    peak_power: Floats
    noise_std: float
    learning: Learning
    cap: float
    total_power: float
    device_power: Floats | None
    device_exposure: Floats | None

    def __init__(
        self,
        *,
        gain: ArrayLike,
        peak_power: ArrayLike,
        noise_std: float,
        learning: Learning,
        cap: float,
        total_power: float,
        device_power: ArrayLike | None = None,
        device_exposure: ArrayLike | None = None,
    ) -> None:
        gains = np.asarray(gain, dtype=np.float64)
        if gains.ndim != 2 or not gains.size:
            raise ValueError(f"Expected gain of shape (rounds, devices); got shape {gains.shape}.")
        if not (np.isfinite(gains).all() and float(gains.min()) >= 0):
            raise ValueError("Expected every gain >= 0 and finite.")
        _validate.positive(noise_std=noise_std, cap=cap, total_power=total_power)
        object.__setattr__(self, "gain", gains)
        object.__setattr__(self, "noise_std", float(noise_std))
        object.__setattr__(self, "learning", learning)
        object.__setattr__(self, "cap", float(cap))
        object.__setattr__(self, "total_power", float(total_power))
        for name, value in (
            ("peak_power", peak_power),
            ("device_power", device_power),
            ("device_exposure", device_exposure),
        ):
            given = None if value is None else _per_device(name, value, gains.shape[1])
            object.__setattr__(self, name, given)

    @property
    def num_devices(self) -> int:
        """N."""
        return int(self.gain.shape[1])

    @property
    def most_rounds(self) -> int:
        """The largest I: there are gains for it, and each round has a local step."""
        return min(int(self.gain.shape[0]), self.learning.total_steps)

    @property
    def equal_peak_power(self) -> bool:
        """Whether all devices share one peak power."""
        return bool(np.all(self.peak_power == self.peak_power[0]))

    @property
    def one_price(self) -> bool:
        """Whether the total power is the only budget that ties the rounds together."""
        return self.device_power is None and self.device_exposure is None

    @property
    def noise_weight(self) -> float:
        """C = dσ²/2."""
        return 0.5 * self.learning.dimension * self.noise_std**2

    @property
    def weight(self) -> float:
        """ϖ²/ζ: what a round's error weighs in its own round."""
        return self.learning.clip_norm**2 / self.learning.smoothness

    @property
    def decay(self) -> float:
        """−ln η; infinite where one round closes the gap."""
        ratio = self.learning.strong_convexity / self.learning.smoothness
        return -math.log1p(-ratio) if ratio < 1 else math.inf

    def weights(self, rounds: int) -> Floats:
        """w_i = (ϖ²/ζ)η^(I−1−i) for i = 0..I−1."""
        return convergence.round_weights(self.learning, rounds)

    def slopes(self, rounds: int) -> Floats:
        """By how much dearer a watt is to round i than to round I−1: −ln(w_i/w_{I−1}), within what float64 can hold."""
        return np.minimum(min(self.decay, _STEEPEST) * np.arange(rounds - 1.0, -1.0, -1.0), _DEAREST)

    def offsets(self) -> Floats:
        """What no schedule changes, for I = 1..most_rounds: η^I·G and the drift of the local steps."""
        return convergence.round_offsets(self.learning, np.arange(1, self.most_rounds + 1))

    def require_heard(self, rounds: int) -> None:
        """Raise unless there are so many rounds, and somebody can be heard in each of them.

        Raises:
            ValueError: rounds is not in 1..most_rounds.
            InfeasibleError: nobody can be heard in one of them.
        """
        _validate.positive_integer(rounds=rounds)
        if rounds > self.most_rounds:
            raise ValueError(f"Expected rounds={rounds} <= {self.most_rounds}, the rounds with gains and local steps.")
        silent = np.flatnonzero(~self.gain[:rounds].any(axis=1))
        if silent.size:
            raise InfeasibleError(f"No plan fits: every gain of round {silent[0] + 1} is 0 (peak_power).")

    def units(self) -> tuple[int, float]:
        """Return the exponent of two of the strongest gain, and the unit of θ in which P_tot is about 1."""
        field = math.frexp(float(self.gain.max()))[1]
        return field, math.ldexp(1.0, field + self._watt())

    def _watt(self) -> int:
        return (math.frexp(self.total_power)[1] + 1) // 2

    def scaled(self, units: tuple[int, float] | None = None) -> tuple[World, float]:
        """Return the same world in units in which gains and P_tot are about 1, and the unit of θ.

        The units are powers of two: nothing is rounded, and θ in the old units is θ in the new ones times the unit.

        Args:
            units: those of another world with the same limits.
        """
        field, unit = units or self.units()
        twice = -2 * self._watt()
        return World(
            gain=np.ldexp(self.gain, -field),
            peak_power=np.ldexp(self.peak_power, twice),
            noise_std=self.noise_std / unit,
            learning=self.learning,
            cap=self.cap / unit,
            total_power=math.ldexp(self.total_power, twice),
            device_power=None if self.device_power is None else np.ldexp(self.device_power, twice),
            device_exposure=None if self.device_exposure is None else self.device_exposure / unit / unit,
        ), unit

    def with_gain(self, gain: Floats) -> World:
        """Return the world with other gains."""
        return World(
            gain=gain,
            peak_power=self.peak_power,
            noise_std=self.noise_std,
            learning=self.learning,
            cap=self.cap,
            total_power=self.total_power,
            device_power=self.device_power,
            device_exposure=self.device_exposure,
        )


def _per_device(name: str, value: ArrayLike, num: int) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    if array.shape not in ((), (num,)):
        raise ValueError(f"Expected one {name} for all or one per device; got shape {array.shape} for {num} devices.")
    if not (np.all(array > 0) and np.all(np.isfinite(array))):
        raise ValueError(f"Expected every {name} > 0 and finite.")
    return np.broadcast_to(array, (num,))
