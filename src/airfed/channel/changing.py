"""Channels that change: how they go on from round to round, and what is known of that ahead.

Small-scale fading is drawn anew every `coherence` rounds, shadowing every `shadowing_coherence` rounds; distances, and
what has no coherence, last the whole run and are known before it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from airfed import seeds
from airfed.antennas import Complexes, Floats
from airfed.channel import arrays
from airfed.channel.arrays import Array, Generators

if TYPE_CHECKING:
    from airfed.channel.model import ChannelModel, State

Sources = tuple[np.random.Generator, ...]

_MOST_DRAWN: Final = 2**22  # gains in all draws of the rounds to come


def sources(seed: int, name: str, *key: int) -> Sources:
    """Return generators of small-scale fading, devices' own shadowing and common shadowing: none shifts another."""
    return tuple(seeds.stream(seed, name, *key, part) for part in range(3))


class Walk:
    """The channel of a fleet, (N,), or several draws of it at once, (draws, N), round after round."""

    def __init__(self, model: ChannelModel, state: State, shape: tuple[int, ...], drawn_from: Sources) -> None:
        self.state = state
        self.array: Array | None = None
        self._each: Generators = ()
        self._model, self._shape, self._sources = model, shape, drawn_from

    def receive(self, array: Array, each: Generators) -> None:
        """Have several antennas, each with randomness of its own."""
        self.array, self._each = array, each
        if self.state.white is None:
            self.state = replace(self.state, white=array.white(self._shape, each))

    @property
    def row(self) -> Floats | Complexes:
        """The gains of the present round, or the vectors of several antennas, raised to the minimum."""
        if self.array is None:
            return self._model.raised(self.state.gain)
        return self._model.raised_vectors(self.state.vectors(self.array, self._model.paths))

    def move(self, index: int) -> bool:
        """Go on to round i and return whether that changes anything; before round 0 nothing is there to go on from."""
        model, before = self._model, self.state
        small, own, common = self._sources
        if model.coherence is not None and index % model.coherence == 0:
            correlation = model.correlation if index else 0.0
            self.state = model.renewed(before, self._shape, small, correlation)
            if self.array is not None and before.white is not None:
                white = self.array.white(self._shape, self._each)
                if correlation:
                    white = correlation * before.white + np.sqrt(1 - correlation**2) * white
                self.state = replace(self.state, white=white)
        if model.shadowing_coherence is not None and index % model.shadowing_coherence == 0:
            self.state = replace(
                self.state,
                own=_shadow(model.own_shadowing_db, self._shape, own),
                common=_shadow(model.common_shadowing_db, (*self._shape[:-1], 1), common),
            )
        return self.state is not before

    def fill(self, gains: Floats | Complexes, first: int) -> None:
        """Write the rounds from `first` on into (..., rounds, N), or vectors into (..., rounds, N, A)."""
        rounds = np.moveaxis(gains, len(self._shape) - 1, 0)  # draws come before the rounds
        row = self.row
        for place, written in enumerate(rounds):
            if self.move(first + place):
                row = self.row
            written[...] = row


def _shadow(spread_db: float, shape: tuple[int, ...], rng: np.random.Generator) -> Floats | float:
    return 10.0 ** (rng.normal(0.0, spread_db, shape) / 20.0) if spread_db else 1.0


def num_draws(rounds: int, num_devices: int) -> int:
    """Return how many draws of the rounds to come are made: 2 to 24; N devices at A antennas count as N·A."""
    return min(24, max(2, _MOST_DRAWN // (rounds * num_devices)))


class Forecast:
    """Conditional sampler: a function from the gains so far, (i, N) or (i, N, A), to samples of the R − i to come.

    It knows the complex amplitudes and the shadowing of round i − 1, and what lasts the whole run; of later rounds only
    the law. Of the gains so far only their number is looked at. The same number of rounds gives the same draws.
    """

    def __init__(self, model: ChannelModel, *, rounds: int, num_devices: int, seed: int) -> None:
        self._model, self._seed = model, seed
        self._rounds, self._num_devices = rounds, num_devices
        self._restart()

    def __call__(self, seen: Floats | Complexes) -> Floats | Complexes:
        """Return the draws."""
        done = len(seen)
        if done <= self._index:
            self._restart()
        while self._index < done - 1:
            self._index += 1
            self._walk.move(self._index)
        array = self._walk.array
        number = 1 if array is None else array.number
        shape = (num_draws(self._rounds, self._num_devices * number), self._num_devices)
        ahead = Walk(self._model, self._walk.state, shape, sources(self._seed, "law", done))
        if array is not None:
            ahead.receive(array, arrays.generators(number, self._seed, "law", done, 3))
        gains = self._model.empty(shape[0], self._rounds - done, shape[1])
        with np.errstate(over="ignore"):
            ahead.fill(gains, done)
        return gains

    def _restart(self) -> None:
        self._index = 0
        self._walk = self._model.walk(self._num_devices, self._seed)
