"""How θ and ϖ move over the rounds of a training.

    θ_i² = θ²·κ^((i−(I−1))/I),   ϖ_i = ϖ·ρ^(i/I),   i = 0..I−1

with the growth κ ≥ 1 and the decay 0 < ρ ≤ 1: θ is that of the last round, the largest, ϖ that of the first. Limits on
a round hold θ; limits on the whole training hold θ_rms, the root of the mean of θ_i². Their ratio, the crest
c = θ/θ_rms ≥ 1, is all that the limits need to know of the shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed import _validate

LARGEST_GROWTH: Final = 1e6
SMALLEST_DECAY: Final = 1e-6
_ROUNDING: Final = 32 * float(np.finfo(np.float64).eps)  # more than a sum of squares of θ_i/θ differs from its formula


@dataclass(frozen=True, kw_only=True)
class Course:
    """How θ and ϖ move over the rounds.

    Args:
        growth: κ, about how many times larger θ² is in the last round than in the first.
        clip_decay: ρ, about how many times smaller ϖ is in the last round than in the first.
        power_share: q, the share of the worst-case power that devices are expected to transmit; below 1 the limit on
            the total power counts expected power.

    Raises:
        ValueError: a value is out of range.

    >>> Course(growth=4.0).alignment_factors(2), Course(clip_decay=0.25).clip_factors(2)
    (array([0.70710678, 1.        ]), array([1. , 0.5]))
    """

    growth: float = 1.0
    clip_decay: float = 1.0
    power_share: float = 1.0

    def __post_init__(self) -> None:
        values = {"growth": self.growth, "clip_decay": self.clip_decay, "power_share": self.power_share}
        _validate.positive(**values)
        if not 1.0 <= self.growth <= LARGEST_GROWTH:
            raise ValueError(f"Expected growth={self.growth!r} between 1 and {LARGEST_GROWTH:g}.")
        if not SMALLEST_DECAY <= self.clip_decay <= 1.0:
            raise ValueError(f"Expected clip_decay={self.clip_decay!r} between {SMALLEST_DECAY:g} and 1.")
        if not self.power_share <= 1.0:
            raise ValueError(f"Expected power_share={self.power_share!r} <= 1.")
        for name, value in values.items():
            object.__setattr__(self, name, float(value))

    @property
    def constant(self) -> bool:
        """Whether all rounds are alike."""
        return self.growth == 1.0 and self.clip_decay == 1.0

    def alignment_factors(self, rounds: int) -> NDArray[np.float64]:
        """Return θ_i/θ for i = 0..I−1; the last is 1."""
        return np.power(self.growth, np.arange(1 - rounds, 1) / (2 * rounds))

    def clip_factors(self, rounds: int) -> NDArray[np.float64]:
        """Return ϖ_i/ϖ for i = 0..I−1; the first is 1."""
        return np.power(self.clip_decay, np.arange(rounds) / rounds)

    def crests(self, rounds: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return c = θ/θ_rms for each number of rounds, rounded down; 1 where θ is constant.

        c² = I(1 − κ^(−1/I))/(1 − κ⁻¹).
        """
        if self.growth == 1.0:
            return np.ones(np.shape(rounds))
        decline = -math.log(self.growth)
        square = rounds * np.expm1(decline / rounds) / math.expm1(decline)
        return np.asarray(np.maximum(1.0, np.sqrt(square) * (1 - _ROUNDING)))


CONSTANT: Final = Course()
