"""The best θ of every round when the schedules are given, and schedules that are better together.

With the schedules fixed, and x_i = θ_i²,

    min Σ_i w_i·C/(m_i²x_i)   subject to   Σ_i x_i·S_i ≤ P,  x_i ≤ limit_i

is convex: x_i = min{limit_i, r_i/κ} with r_i = √(w_iC/S_i)/m_i, and one κ at which the whole budget is spent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airfed.planning._equal import Floats, Integers
from airfed.planning.time_varying._round import Answers

_MOST_EXCHANGES = 50
_NEAR = 1e-7  # as good as the best
_MOST_MOVES = 500  # exchanges that are weighed at once
_AT_ONCE = 1 << 18


def fill(pull: Floats, load: Floats, limit: Floats, budget: float) -> tuple[Floats, Floats]:
    """Return x, (…, I), and κ = √ν, (…,); κ = 0 where the budget is no limit.

    Args:
        pull: r_i = √(w_iC/S_i)/m_i, (…, I).
        load: S_i.
        limit: of x_i.
        budget: P.
    """
    full = load * limit
    edge = pull / limit  # below this κ round i is at its limit
    order = np.argsort(-edge, axis=-1)
    edge, full, free = (np.take_along_axis(x, order, axis=-1) for x in (edge, full, load * pull))
    capped = np.cumsum(full, axis=-1) - full  # of those before
    rest = np.cumsum(free[..., ::-1], axis=-1)[..., ::-1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        kappa = np.where(budget > capped, rest / (budget - capped), np.inf)
        # the first t before which the limits hold and from which on κ is at least every edge
        good = kappa >= edge
    first = np.argmax(good, axis=-1)[..., None]
    found = np.where(good.any(axis=-1), np.take_along_axis(kappa, first, axis=-1)[..., 0], 0.0)
    with np.errstate(divide="ignore"):
        return np.minimum(limit, pull / found[..., None]), found


@dataclass(frozen=True, kw_only=True, eq=False)
class Options:
    """Some schedules for each of I rounds, (E, I) each.

    Args:
        size: m = |K|.
        load: S = Σ_{k∈K} 1/|h_k|².
        limit: the largest x.
    """

    size: Integers
    load: Floats
    limit: Floats

    @classmethod
    def of(cls, answers: list[Answers], rounds: int) -> Options:
        """The schedules that were the answers at several prices."""
        return cls(
            size=np.array([each.size[:rounds] for each in answers]),
            load=np.array([each.load[:rounds] for each in answers]),
            limit=np.array([each.limit[:rounds] for each in answers]),
        )

    def joined(self, others: Options) -> Options:
        """Both."""
        return Options(
            size=np.concatenate((self.size, others.size)),
            load=np.concatenate((self.load, others.load)),
            limit=np.concatenate((self.limit, others.limit)),
        )


class Mixer:
    """Chooses one option for each round, so that together they are good.

    Args:
        options: to choose from.
        weights: w_i, (I,).
        num_devices, noise_weight, budget: N, C, P.
    """

    def __init__(
        self, options: Options, weights: Floats, *, num_devices: int, noise_weight: float, budget: float
    ) -> None:
        unheard = ~np.isfinite(options.load) | (options.limit <= 0)  # with somebody who cannot be heard: never chosen
        options = Options(
            size=options.size,
            load=np.where(unheard, 1.0, options.load),
            limit=np.where(unheard, 1.0, options.limit),
        )
        self.options, self.budget = options, budget
        self.round = np.arange(weights.size)
        left_out = weights * 4.0 * np.square(1.0 - options.size / num_devices)
        self.missing = np.where(unheard, np.inf, left_out)
        self.noise = weights * noise_weight / np.square(options.size, dtype=np.float64)
        self.pull = np.sqrt(self.noise / options.load)

    def value(self, choice: Integers) -> tuple[Floats, Floats, Floats]:
        """Σ w_iφ_i, x and κ of one choice per round, (…, I)."""
        pick = (choice, self.round)
        square, kappa = fill(self.pull[pick], self.options.load[pick], self.options.limit[pick], self.budget)
        with np.errstate(divide="ignore", over="ignore"):
            return np.sum(self.missing[pick] + self.noise[pick] / square, axis=-1), square, kappa

    def improve(self, choice: Integers, *, floor: float) -> tuple[float, Integers]:
        """Exchange single rounds' options, or all at once, as long as that helps; no value is below `floor`."""
        best = float(self.value(choice)[0])
        for _ in range(_MOST_EXCHANGES):
            if best <= floor * (1 + _NEAR):
                break
            moves = self._moves(choice)
            values = self.value(moves)[0]
            place = int(np.argmin(values))
            if not values[place] < best * (1 - 1e-12):
                break
            best, choice = float(values[place]), moves[place]
        return best, choice

    def _moves(self, choice: Integers) -> Integers:
        """The exchanges that promise most at the present price of a watt."""
        _, _, kappa = self.value(choice)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            square = np.minimum(self.options.limit, self.pull / kappa)
            worth = self.missing + self.noise / square + kappa**2 * square * self.options.load
            gain = worth - worth[choice, self.round]
        gain[choice, self.round] = np.inf
        most = min(gain.size, max(1, _AT_ONCE // self.round.size), _MOST_MOVES)
        flat = np.argpartition(gain, most - 1, axis=None)[:most] if most < gain.size else np.arange(gain.size)
        option, place = np.unravel_index(flat, gain.shape)
        moves = np.repeat(choice[None], flat.size + 1, axis=0)
        moves[np.arange(flat.size), place] = option
        moves[-1] = np.argmin(worth, axis=0)
        return moves
