"""Averages of the models at the receiver: weighted means of what was received, at no cost in power or privacy.

Each is one running sum, S ← βS + m, of the models after each round from some round on, over the sum of its weights.

- "none": the model itself.
- "tail": all models of the second half of the rounds alike, β = 1. Before that half it is the model itself.
- "exponential": all models, their weights falling by e in I/5 rounds. That averages the noise of about 2I/5 models,
  nearly as many as the tail's I/2; but they are I/5 rounds old on average, not I/4, and there is an average from the
  first round on. In the end the first model has e⁻⁵ of the last one's weight: the beginning is forgotten.

The weights depend on I and the number of the round alone, never on data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from airfed.planning import Average

Parameters = NDArray[np.float32]

AVERAGES: Final[tuple[Average, ...]] = get_args(Average)
_MEMORY: Final = 5  # time constants of the exponential average in a training


class _Rule(NamedTuple):
    """The models that an average is made of: from which round on, and β."""

    first: int
    decay: float

    def weight(self, done: int) -> float:
        """The sum of the weights after a number of rounds; 0 before the first that counts."""
        models = max(0, done - self.first)
        if self.decay == 1.0:
            return float(models)
        return math.expm1(models * math.log(self.decay)) / (self.decay - 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Averages:
    """The averages of a training's models so far.

    Args:
        rounds: I.
        names: the averages that are kept.
        latest: the newest model, float32; before the first round the initial one, which no average counts.
        done: how many rounds there were.
        sums: by name, float64; those alone that have begun.

    Raises:
        ValueError: the sums are not those of these averages after so many rounds.

    >>> some = Averages(rounds=4, names=("none", "tail"), latest=np.zeros(1, dtype=np.float32))
    >>> for value in (1.0, 2.0, 3.0, 5.0):
    ...     some = some.after(np.array([value], dtype=np.float32))
    >>> some.model("none").item(), some.model("tail").item()
    (5.0, 4.0)
    """

    rounds: int
    names: tuple[Average, ...]
    latest: Parameters
    done: int = 0
    sums: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        begun = {name for name in self.names if self._weight(name, self.done)}
        if begun != set(self.sums) or any(total.shape != self.latest.shape for total in self.sums.values()):
            raise ValueError(f"Expected sums of the averages {sorted(begun)}; got those of {sorted(self.sums)}.")

    def after(self, model: Parameters) -> Averages:
        """Return the averages with the model after one more round."""
        wide, sums = model.astype(np.float64), dict[str, NDArray[np.float64]]()
        for name in self.names:
            if self._weight(name, self.done + 1):
                before = self.sums.get(name)
                sums[name] = wide if before is None else wide + _rule(name, self.rounds).decay * before
        return replace(self, latest=model, done=self.done + 1, sums=sums)

    def model(self, name: Average) -> Parameters:
        """Return the model that the receiver would hand out.

        Raises:
            ValueError: that average is not kept.
        """
        if name not in self.names:
            raise ValueError(f"Expected one of the averages {', '.join(self.names)}; got {name!r}.")
        total = self.sums.get(name)
        return self.latest if total is None else (total / self._weight(name, self.done)).astype(np.float32)

    def _weight(self, name: Average, done: int) -> float:
        return 0.0 if name == "none" else _rule(name, self.rounds).weight(done)


def _rule(name: Average, rounds: int) -> _Rule:
    if name == "tail":
        return _Rule(first=rounds // 2, decay=1.0)
    return _Rule(first=0, decay=math.exp(-_MEMORY / rounds))
