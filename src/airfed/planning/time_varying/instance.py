"""What the time-varying planners solve, as plain arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from airfed import _validate, bounds
from airfed.planning.amplitudes import Floats
from airfed.problem import InfeasibleError, Learning

_STEEPEST = 50.0  # −ln η at most: beyond, a round's weight is below float64's last digit in the next one's
_DEAREST = 300.0  # −ln of the smallest weight that a round is planned with


@dataclass(frozen=True, kw_only=True, eq=False)
class Instance:
    """The gains of all rounds and the limits, derived from a `Problem` and not checked again.

    Args:
        gain: |h_k^i|, (R, N): row i is round i; 0 marks a device that is unreachable in that round.
        peak_power: P_k [W], (N,).
        noise_weight: C = dσ²/2.
        learning: T, ϖ, ζ, ϱ, G.
        cap: the largest θ that privacy allows in any one round.
        total_power: P_tot [W, summed over devices and rounds].
        device_power: what each device may spend, Σ_{i: k∈K_i} θ_i²/|h_k^i|² [W], (N,); None: no limit.
        device_exposure: what each device may show, Σ_{i: k∈K_i} θ_i² ≤ (σμ/2)², (N,); None: no limit.
    """

    gain: Floats
    peak_power: Floats
    noise_weight: float
    learning: Learning
    cap: float
    total_power: float
    device_power: Floats | None = None
    device_exposure: Floats | None = None

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
        return bounds.round_weights(self.learning, rounds)

    def slopes(self, rounds: int) -> Floats:
        """−ln(w_i/w_{I−1}), within what float64 can hold: how much more a watt costs in round i than in the last."""
        return np.minimum(min(self.decay, _STEEPEST) * np.arange(rounds - 1.0, -1.0, -1.0), _DEAREST)

    def offsets(self) -> Floats:
        """What no schedule changes, for I = 1..most_rounds: η^I·G and the drift of the local steps."""
        return bounds.round_offsets(self.learning, np.arange(1, self.most_rounds + 1))

    def require_heard(self, rounds: int) -> None:
        """Raise unless there are so many rounds, and a device can be reached in each of them.

        Raises:
            ValueError: rounds is not in 1..most_rounds.
            InfeasibleError: no device can be reached in one of them.
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

    def scaled(self, units: tuple[int, float] | None = None) -> tuple[Instance, float]:
        """Return the same instance in units in which gains and P_tot are about 1, and the unit of θ.

        The units are powers of two: nothing is rounded, and θ in the old units is θ in the new ones times the unit.

        Args:
            units: those of another instance with the same limits.
        """
        field, unit = units or self.units()
        twice = -2 * self._watt()
        return Instance(
            gain=np.ldexp(self.gain, -field),
            peak_power=np.ldexp(self.peak_power, twice),
            noise_weight=self.noise_weight / unit / unit,
            learning=self.learning,
            cap=self.cap / unit,
            total_power=math.ldexp(self.total_power, twice),
            device_power=None if self.device_power is None else np.ldexp(self.device_power, twice),
            device_exposure=None if self.device_exposure is None else self.device_exposure / unit / unit,
        ), unit

    def with_gain(self, gain: Floats) -> Instance:
        """Return the instance with other gains."""
        return replace(self, gain=gain)
