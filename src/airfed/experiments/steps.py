"""Work in named steps that tells how far it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Tell = Callable[[str, float], None]
Product = Callable[[NDArray[np.float64]], NDArray[np.float64]]


class Steps:
    """Tells which step is at work and which share of the whole is done.

    Args:
        shares: each step's share of the whole, in the order of the steps.
        tell: told the name of the step and the share that is done.

    >>> steps = Steps({"first": 0.25, "second": 0.75}, lambda name, share: print(name, share))
    >>> steps.begin("first")
    first 0.0
    >>> steps.begin("second")
    second 0.25
    >>> steps.part(1.0)
    second 1.0
    """

    def __init__(self, shares: Mapping[str, float], tell: Tell) -> None:
        self.shares, self.tell = shares, tell
        self.before, self.name = 0.0, ""

    def begin(self, name: str) -> None:
        """Begin the next step."""
        if self.name:
            self.before += self.shares[self.name]
        self.name = name
        self.part(0.0)

    def part(self, share: float) -> None:
        """Tell that this share of the step is done."""
        self.tell(self.name, min(self.before + share * self.shares[self.name], 1.0))


def counted(product: Product, tell: Callable[[int], None]) -> Product:
    """Return the same function, which tells how often it was called."""
    number = itertools.count(1)

    def called(direction: NDArray[np.float64]) -> NDArray[np.float64]:
        tell(next(number))
        return product(direction)

    return called
