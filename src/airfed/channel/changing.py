"""Channels that change: what gains are made of, how that goes on from round to round, and what is known of it ahead.

Small-scale fading is drawn anew every `coherence` rounds, shadowing every `shadowing_coherence` rounds; distances, and
what has no coherence, last the whole run and are known before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from airfed import seeds
from airfed.antennas import Complexes
from airfed.channel import arrays
from airfed.channel.arrays import Array, Generators

if TYPE_CHECKING:
    from airfed.channel.model import ChannelModel

Floats = NDArray[np.float64]
Sources = tuple[np.random.Generator, np.random.Generator, np.random.Generator]

MOST_GAINS: Final = 2**28  # of all rounds: 2 GiB
_MOST_DRAWN: Final = 2**22  # gains in all draws of the rounds to come
_FEWEST_DRAWS: Final = 2
_MOST_DRAWS: Final = 24


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """What the gains of a round are made of: |h_k| = steady_k · own_k · small_k · common.

    Args:
        small: modulus of the small-scale part, (N,); of several draws, (draws, N).
        steady: what stays as it is: scale and path loss, (N,) or one number.
        own: shadowing of each device, as an amplitude: 10^(X_k/20).
        common: shadowing that all devices share, 10^(Y/20); (draws, 1) of several draws.
        scattered: complex amplitude of the scattered paths, of which `small` is made; None where only its modulus was
            drawn.
        white: of several antennas, independent CN(0, 1) entries of which the small-scale vectors are made, (..., N, A).
    """

    small: Floats
    steady: Floats | float = 1.0
    own: Floats | float = 1.0
    common: Floats | float = 1.0
    scattered: NDArray[np.complex128] | None = None
    white: Complexes | None = None

    @property
    def gain(self) -> Floats:
        """|h_k|, of one draw or of each."""
        return np.asarray(self.steady * self.own * self.small * self.common)

    def vectors(self, array: Array, paths: tuple[float, float] | None) -> Complexes:
        """Return h_k ∈ C^A, of one draw or of each, (..., N, A).

        Args:
            array: the antennas.
            paths: amplitude of the direct path and spread of the scattered ones, in place of `small`; None: `small` is
                the modulus at every antenna.
        """
        assert self.white is not None
        if paths is None:
            return self.gain[..., None] * array.directions(self.white)
        large = np.asarray(self.steady * self.own * self.common)
        return large[..., None] * array.scattered(self.white, paths)


def sources(seed: int, name: str, *key: int) -> Sources:
    """Return generators of small-scale fading, devices' own shadowing and common shadowing: none shifts another."""
    small, own, common = (seeds.stream(seed, name, *key, part) for part in range(3))
    return small, own, common


class Walk:
    """The channel of a fleet, or several draws of it at once, round after round.

    Args:
        model: the law.
        state: where it starts.
        shape: (N,), or (draws, N).
        drawn_from: randomness of what is drawn anew.
        array: several antennas; None: one.
        each: randomness of what each of them has of its own.
    """

    def __init__(
        self,
        model: ChannelModel,
        state: State,
        shape: tuple[int, ...],
        drawn_from: Sources,
        array: Array | None = None,
        each: Generators = (),
    ) -> None:
        self.state, self.array = state, array
        self._model, self._shape = model, shape
        self._small, self._own, self._common = drawn_from
        self._each = each
        if array is not None and state.white is None:
            self.state = replace(state, white=array.white(shape, each))

    @property
    def row(self) -> Floats | Complexes:
        """The gains of the present round, or the vectors of several antennas, raised to the minimum."""
        if self.array is None:
            return self._model.raised(self.state.gain)
        return self._model.raised_vectors(self.state.vectors(self.array, self._model.paths))

    def move(self, index: int) -> bool:
        """Go on to round i and return whether that changes anything; before round 0 nothing is there to go on from."""
        model, state = self._model, self.state
        if model.coherence is not None and index % model.coherence == 0:
            correlation = model.correlation if index else 0.0
            self.state = self._renewed(model.renewed(self.state, self._shape, self._small, correlation), correlation)
        if model.shadowing_coherence is not None and index % model.shadowing_coherence == 0:
            self.state = replace(
                self.state,
                own=_shadow(model.own_shadowing_db, self._shape, self._own),
                common=_shadow(model.common_shadowing_db, (*self._shape[:-1], 1), self._common),
            )
        return self.state is not state

    def _renewed(self, state: State, correlation: float) -> State:
        """The state with the next block at each of several antennas, too."""
        if self.array is None or state.white is None:
            return state
        white = self.array.white(self._shape, self._each)
        if correlation:
            white = correlation * state.white + np.sqrt(1 - correlation**2) * white
        return replace(state, white=white)

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
    """Return how many draws of the rounds to come are made; N devices at A antennas count as N·A.

    >>> num_draws(200, 10), num_draws(200, 1000), num_draws(200, 100_000)
    (24, 20, 2)
    """
    return min(_MOST_DRAWS, max(_FEWEST_DRAWS, _MOST_DRAWN // (rounds * num_devices)))


class Forecast:
    """Draws of the rounds to come, given the rounds so far: a function from (i, N) to (draws, R − i, N).

    Of several antennas, from (i, N, A) to (draws, R − i, N, A).

    It knows the complex amplitudes and the shadowing of round i − 1, and what lasts the whole run; of later rounds only
    the law. Whoever asks after the same number of rounds gets the same draws.

    Args:
        model, num_devices, seed: whose gains they are.
        rounds: R.
    """

    def __init__(self, model: ChannelModel, *, rounds: int, num_devices: int, seed: int) -> None:
        self._model, self._seed = model, seed
        self._rounds, self._num_devices = rounds, num_devices
        self._restart()

    def __call__(self, seen: Floats | Complexes) -> Floats | Complexes:
        """Return the draws.

        Args:
            seen: the gains of the rounds so far, of which only the number is looked at: these are the rounds drawn.

        Raises:
            ValueError: there are more than R.
        """
        done = checked_rounds(seen, self._rounds)
        state, array = self._state(done), self._walk.array
        number = 1 if array is None else array.number
        shape = (num_draws(self._rounds, self._num_devices * number), self._num_devices)
        each = () if array is None else arrays.generators(number, self._seed, "law", done, 3)
        ahead = Walk(self._model, state, shape, sources(self._seed, "law", done), array, each)
        gains = self._model.empty(shape[0], self._rounds - done, shape[1])
        with np.errstate(over="ignore"):
            ahead.fill(gains, done)
        return gains

    def _restart(self) -> None:
        self._index = 0
        self._walk = self._model.walk(self._num_devices, self._seed)

    def _state(self, done: int) -> State:
        """The channel as it is when that many rounds are done: in the last of them, or as it was first set up."""
        if done <= self._index:
            self._restart()
        while self._index < done - 1:
            self._index += 1
            self._walk.move(self._index)
        return self._walk.state


@dataclass(frozen=True, kw_only=True, eq=False)
class Resampled:
    """The law of a trace as it is known so far: whole rounds up to the present one, each as likely as any other.

    Args:
        gains: the trace, (R, N) or (R, N, A). Of rounds that have not been yet, only the first is looked at, before it.
        seed: of the draws.
    """

    gains: Floats | Complexes
    seed: int

    def __call__(self, seen: Floats | Complexes) -> Floats | Complexes:
        """Return draws of the rounds to come, (draws, R − i, N) or (draws, R − i, N, A), after i rounds.

        Raises:
            ValueError: there are more than R.
        """
        rounds = len(self.gains)
        done = checked_rounds(seen, rounds)
        rng = seeds.stream(self.seed, "law", done)
        return self.gains[rng.integers(0, max(done, 1), (num_draws(rounds, self.gains[0].size), rounds - done))]


def checked_rounds(seen: Floats | Complexes, rounds: int) -> int:
    """Return how many rounds were seen.

    Raises:
        ValueError: there are not that many.
    """
    if len(seen) > rounds:
        raise ValueError(f"Expected gains of at most {rounds} rounds; got {len(seen)}.")
    return len(seen)
