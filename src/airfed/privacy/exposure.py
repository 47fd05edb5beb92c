"""What each device has been exposed to: Σμ² over the rounds in which it was charged.

What everybody is charged is one exact fraction. What some are charged is added for each device in double-double
arithmetic (a sum, and what its roundings have lost), of which the second part is rounded up. So no figure is below
the truth, and the largest of them is less than 1e-15 above it, however many rounds there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from airfed.privacy.gaussian import root_up
from airfed.privacy.members import Members

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Exposure:
    """The sums of all devices. `plus` makes the next one.

    Args:
        everybody: Σμ² of the rounds in which everybody was charged.
        high, low: Σμ² of the other rounds for each device, at most high + low, (N,); None before the first of them.
    """

    everybody: Fraction = Fraction(0)
    high: Floats | None = None
    low: Floats | None = None

    @property
    def num_devices(self) -> int | None:
        """N; None while everybody was charged alike, so that nobody was counted."""
        return None if self.high is None else self.high.size

    def plus(self, mu: float, members: Members | None = None) -> Exposure:
        """Return the exposure after one more round.

        Args:
            mu: μ of the round.
            members: who is charged for it, of as many devices as before; None for everybody.

        Raises:
            ArithmeticError: a sum is beyond float64.
        """
        square = Fraction(mu) ** 2
        if members is None:
            return Exposure(everybody=self.everybody + square, high=self.high, low=self.low)
        if self.high is None or self.low is None:
            high, low = np.zeros(members.num_devices), np.zeros(members.num_devices)
        else:
            high, low = self.high.copy(), self.low.copy()
        at, amount = members.devices, _double_up(square)
        before, lost = high[at], low[at]
        with np.errstate(over="raise", invalid="raise"):
            after = before + amount
            part = after - before
            error = (before - (after - part)) + (amount - part)  # exactly what the addition has lost
            low[at] = np.where(error == 0, lost, np.nextafter(lost + error, np.inf))
        high[at] = after
        return Exposure(everybody=self.everybody, high=high, low=low)

    def mu(self, members: Members | None = None) -> float:
        """Return √Σμ² of the most exposed device, of some or of all, rounded up."""
        return self.most_exposed(members)[1]

    def most_exposed(self, members: Members | None = None) -> tuple[int | None, float]:
        """Return the most exposed device, of some or of all, and its √Σμ², rounded up; None where all are alike."""
        if self.high is None or self.low is None:
            return None, root_up(self.everybody)
        if members is None:
            sums = self.high + self.low
            device = place = int(np.argmax(sums))
        else:
            at = members.devices
            sums = self.high[at] + self.low[at]
            place = int(np.argmax(sums))
            device = int(at[place])
        return device, float(self._roots(sums[place : place + 1])[0])

    def mus(self) -> Floats:
        """Return √Σμ² of each device, rounded up, (N,).

        Raises:
            ValueError: everybody was charged alike, so that nobody was counted.
        """
        if self.high is None or self.low is None:
            raise ValueError("Expected charges of some devices; everybody was charged alike.")
        return self._roots(self.high + self.low)

    def _roots(self, sums: Floats) -> Floats:
        """Of sums that were rounded to the nearest double; never falling, so that the largest stays the largest."""
        squares = _next(sums)
        if self.everybody:
            squares = _next(squares + _double_up(self.everybody))
        return _next(np.sqrt(squares))


def _next(values: Floats) -> Floats:
    """The next doubles above; who has spent nothing keeps that."""
    return np.where(values > 0, np.nextafter(values, np.inf), 0.0)


def _double_up(value: Fraction) -> float:
    """The smallest double that is not below a fraction."""
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)
