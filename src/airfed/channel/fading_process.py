"""Block fading: the fading process from round to round, and Monte Carlo samples of future rounds.

Small-scale fading is drawn every `coherence_rounds` rounds, shadowing every `shadowing_coherence_rounds` rounds.
Distances, and components without a coherence time, are constant over the run and known before it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from airfed.antennas import Complexes, Floats
from airfed.channel import arrays
from airfed.channel.arrays import Array, Generators

if TYPE_CHECKING:
    from airfed.channel.model import ChannelModel, FadingState

_MAX_GAINS: Final = 2**22  # in all samples of future rounds


class FadingProcess:
    """The channel of a fleet round by round, (N,), or several samples of it at once, (samples, N).

    Its generators are those of small-scale fading, shadowing per device and common shadowing.
    """

    def __init__(self, model: ChannelModel, state: FadingState, shape: tuple[int, ...], rngs: Generators) -> None:
        self.state = state
        self.array: Array | None = None
        self._antenna_rngs: Generators = ()
        self._model, self._shape, self._rngs = model, shape, rngs

    def attach(self, array: Array, rngs: Generators) -> None:
        """Use several antennas, each with its own generator."""
        self.array, self._antenna_rngs = array, rngs
        if self.state.white is None:
            self.state = replace(self.state, white=array.white(self._shape, rngs))

    @property
    def current(self) -> Floats | Complexes:
        """The gains of the current round, or the vectors of several antennas, at least `minimum`."""
        if self.array is None:
            return self._model.apply_minimum(self.state.gain)
        return self._model.apply_minimum_to_vectors(self.state.vectors(self.array, self._model.paths))

    def advance(self, index: int) -> bool:
        """Advance to round i and return whether the state changed; round 0 is not correlated with the state before."""
        model, before = self._model, self.state
        small_scale, shadowing, common_shadowing = self._rngs
        if model.coherence_rounds is not None and index % model.coherence_rounds == 0:
            correlation = model.correlation if index else 0.0
            self.state = model.next_block(before, self._shape, small_scale, correlation)
            if self.array is not None and before.white is not None:
                white = self.array.white(self._shape, self._antenna_rngs)
                if correlation:
                    white = correlation * before.white + np.sqrt(1 - correlation**2) * white
                self.state = replace(self.state, white=white)
        if model.shadowing_coherence_rounds is not None and index % model.shadowing_coherence_rounds == 0:
            self.state = replace(
                self.state,
                shadowing=_shadowing(model.device_shadowing_db, self._shape, shadowing),
                common_shadowing=_shadowing(model.common_shadowing_db, (*self._shape[:-1], 1), common_shadowing),
            )
        return self.state is not before

    def fill(self, gains: Floats | Complexes, first: int) -> None:
        """Fill `gains`, (..., rounds, N), or vectors (..., rounds, N, A), from round `first` on."""
        rounds = np.moveaxis(gains, len(self._shape) - 1, 0)  # samples come before rounds
        row = self.current
        for index, target in enumerate(rounds, first):
            if self.advance(index):
                row = self.current
            target[...] = row


def _shadowing(spread_db: float, shape: tuple[int, ...], rng: np.random.Generator) -> Floats | float:
    return 10.0 ** (rng.normal(0.0, spread_db, shape) / 20.0) if spread_db else 1.0


def num_samples(rounds: int, num_devices: int) -> int:
    """Return the number of Monte Carlo samples of future rounds, 2 to 24; N devices at A antennas count as N·A."""
    return min(24, max(2, _MAX_GAINS // (rounds * num_devices)))


class ConditionalSampler:
    """Map the gains so far, (i, N) or (i, N, A), to samples of the remaining R − i rounds.

    The samples are conditional on the state of the fading process in round i − 1. Only the number of past rounds is
    read from the argument, so the same number gives the same samples.
    """

    def __init__(self, model: ChannelModel, *, rounds: int, num_devices: int, seed: int) -> None:
        self._model, self._seed = model, seed
        self._rounds, self._num_devices = rounds, num_devices
        self._restart()

    def __call__(self, seen: Floats | Complexes) -> Floats | Complexes:
        """Return samples, (samples, R − i, N) or (samples, R − i, N, A)."""
        done = len(seen)
        if done <= self._index:
            self._restart()
        while self._index < done - 1:
            self._index += 1
            self._past.advance(self._index)
        array = self._past.array
        number = 1 if array is None else array.number
        shape = (num_samples(self._rounds, self._num_devices * number), self._num_devices)
        future = FadingProcess(self._model, self._past.state, shape, arrays.generators(3, self._seed, "samples", done))
        if array is not None:
            future.attach(array, arrays.generators(number, self._seed, "samples", done, 3))
        gains = self._model.empty(shape[0], self._rounds - done, shape[1])
        with np.errstate(over="ignore"):
            future.fill(gains, done)
        return gains

    def _restart(self) -> None:
        self._index = 0
        self._past = self._model.process(self._num_devices, self._seed)
