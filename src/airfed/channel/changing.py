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
    """

    small: Floats
    steady: Floats | float = 1.0
    own: Floats | float = 1.0
    common: Floats | float = 1.0
    scattered: NDArray[np.complex128] | None = None

    @property
    def gain(self) -> Floats:
        """|h_k|, of one draw or of each."""
        return np.asarray(self.steady * self.own * self.small * self.common)


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
    """

    def __init__(self, model: ChannelModel, state: State, shape: tuple[int, ...], drawn_from: Sources) -> None:
        self.state = state
        self._model, self._shape = model, shape
        self._small, self._own, self._common = drawn_from

    def move(self, index: int) -> bool:
        """Go on to round i and return whether that changes anything; before round 0 nothing is there to go on from."""
        model, state = self._model, self.state
        if model.coherence is not None and index % model.coherence == 0:
            correlation = model.correlation if index else 0.0
            self.state = model.renewed(self.state, self._shape, self._small, correlation)
        if model.shadowing_coherence is not None and index % model.shadowing_coherence == 0:
            self.state = replace(
                self.state,
                own=_shadow(model.own_shadowing_db, self._shape, self._own),
                common=_shadow(model.common_shadowing_db, (*self._shape[:-1], 1), self._common),
            )
        return self.state is not state

    def fill(self, gains: Floats, first: int) -> None:
        """Write the gains of the rounds from `first` on into (rounds, N) or (draws, rounds, N)."""
        row = self._model.raised(self.state.gain)
        for place in range(gains.shape[-2]):
            if self.move(first + place):
                row = self._model.raised(self.state.gain)
            gains[..., place, :] = row


def _shadow(spread_db: float, shape: tuple[int, ...], rng: np.random.Generator) -> Floats | float:
    return 10.0 ** (rng.normal(0.0, spread_db, shape) / 20.0) if spread_db else 1.0


def num_draws(rounds: int, num_devices: int) -> int:
    """Return how many draws of the rounds to come are made.

    >>> num_draws(200, 10), num_draws(200, 1000), num_draws(200, 100_000)
    (24, 20, 2)
    """
    return min(_MOST_DRAWS, max(_FEWEST_DRAWS, _MOST_DRAWN // (rounds * num_devices)))


class Forecast:
    """Draws of the rounds to come, given the rounds so far: a function from (i, N) to (draws, R − i, N).

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

    def __call__(self, seen: Floats) -> Floats:
        """Return the draws.

        Args:
            seen: the gains of the rounds so far, of which only the number is looked at: these are the rounds drawn.

        Raises:
            ValueError: there are more than R.
        """
        done = checked_rounds(seen, self._rounds)
        shape = (num_draws(self._rounds, self._num_devices), self._num_devices)
        ahead = Walk(self._model, self._state(done), shape, sources(self._seed, "law", done))
        gains = np.empty((shape[0], self._rounds - done, shape[1]))
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
        gains: the trace, (R, N). Of rounds that have not been yet, only the first is looked at, before it.
        seed: of the draws.
    """

    gains: Floats
    seed: int

    def __call__(self, seen: Floats) -> Floats:
        """Return draws of the rounds to come, (draws, R − i, N), after i rounds.

        Raises:
            ValueError: there are more than R.
        """
        rounds, num_devices = self.gains.shape
        done = checked_rounds(seen, rounds)
        rng = seeds.stream(self.seed, "law", done)
        return self.gains[rng.integers(0, max(done, 1), (num_draws(rounds, num_devices), rounds - done))]


def checked_rounds(seen: Floats, rounds: int) -> int:
    """Return how many rounds were seen.

    Raises:
        ValueError: there are not that many.
    """
    if len(seen) > rounds:
        raise ValueError(f"Expected gains of at most {rounds} rounds; got {len(seen)}.")
    return len(seen)
