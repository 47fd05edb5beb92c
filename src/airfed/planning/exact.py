"""The exact joint optimum of [Yan23, P1]: which devices, at which alignment factor, in how many rounds.

    minimise   W = offset_r + scale_r · (4(1 − |K|/N)² + noise_weight/(|K|θ)²)
    over       candidates r, nonempty K, θ > 0
    subject to θ ≤ cap_r                        privacy
               θ ≤ c_k = |h_k|√P_k, k ∈ K       peak power
               θ² Σ_{k∈K} 1/|h_k|² ≤ budget_r   total power

W falls with |K| and with θ, so only the largest θ of each size matters. With equal peak powers the m
strongest devices are best for all limits at once and θ has a closed form (`_equal`). With different peak
powers the orders of c and |h| differ, and the best schedule of a size is found by a sweep over both
(`_sweep`); `_unequal` leaves out all but the small part of the fleet on which the optimum hinges. Both
searches run over all numbers of rounds together and discard by bounds only what cannot win, so that the
answer is the global optimum. Where there are thousands of numbers of rounds, or where W is so nearly the same for all
that bounds have no hold, they are solved one by one in the order of their promise (`_rounds`).

This module knows arrays only; `optimal` builds them from a problem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed.planning._equal import Floats, Integers, Rounds, best_prefix
from airfed.planning._rounds import search_rounds
from airfed.planning._sweep import Sweep
from airfed.planning._unequal import best_subset
from airfed.problem import InfeasibleError

Binding = Literal["privacy", "peak_power", "total_power"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """An optimal decision.

    Args:
        round_index: r, the index into the candidate arrays.
        scheduled: the devices of K, ascending.
        alignment: θ.
        binding: the limit that holds θ; of equal limits the first of privacy, peak_power, total_power.
        objective: W.
    """

    round_index: int
    scheduled: Integers
    alignment: float
    binding: Binding
    objective: float

    @property
    def size(self) -> int:
        """m = |K|."""
        return self.scheduled.size


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidateSpace:
    """The best schedule of every size m = 1..N for one number of rounds (the paper's Fig. 2).

    Args:
        size: m.
        alignment: θ_m, the largest feasible θ of any schedule of m devices; 0 where fewer have a gain.
        privacy_limit, peak_limit, total_limit: the largest θ that each limit alone would allow m devices.
            With equal peak powers θ_m is their minimum; with different ones it can be smaller, because no
            one schedule need attain both.
        objective: Ψ_m = 4(1 − m/N)² + noise_weight/(mθ_m)².
    """

    size: Integers
    alignment: Floats
    privacy_limit: Floats
    peak_limit: Floats
    total_limit: Floats
    objective: Floats


def best_schedule(
    gain: Floats,
    peak_power: ArrayLike,
    *,
    cap: Floats,
    round_budget: Floats,
    offset: Floats,
    scale: Floats,
    noise_weight: float,
) -> Choice:
    """The joint optimum over all candidate numbers of rounds, all schedules and all alignment factors.

    The problem is the one in the head of this module. Among optima of equal W (as far as float64 tells) the
    lowest candidate index wins, then the larger schedule; among devices of equal gain the lower index is
    scheduled first. θ never exceeds a limit as evaluated in float64.

    Args:
        gain: |h_k| ≥ 0, (N,). A device of gain 0 is never scheduled but counts in N.
        peak_power: P_k > 0 [W], (N,) or one number for all.
        cap: (R,) the largest θ that privacy allows in candidate r.
        round_budget: P_tot/I_r [W per round], (R,).
        offset, scale: (R,) finite, scale > 0.
        noise_weight: dσ²/2 > 0.

    Raises:
        InfeasibleError: no schedule has a finite objective; the message names the limit.
        ValueError: the shapes do not match, or noise_weight is not positive.

    >>> one = np.ones(1)
    >>> choice = best_schedule(np.array([0.1, 0.9, 1.0]), 1.0, cap=one * 0.5, round_budget=one,
    ...                        offset=one * 0, scale=one, noise_weight=0.5)
    >>> choice.scheduled, choice.alignment, choice.binding
    (array([1, 2]), 0.5, 'privacy')

    Implements [Yan23, P1], [Yan23, Lemma 6] and [Yan23, Sec. IV-E].

    Deviations: jointly optimal over the number of rounds, where Algorithm 2 stops at a partial optimum;
    feasible and optimal for different peak powers, where the print can break the peak or the total limit.
    """
    gain = np.asarray(gain, dtype=np.float64)
    power, equal = _peak_power(peak_power, gain)
    require_gain(gain)
    candidates, rounds = usable_rounds(
        gain.size, cap=cap, round_budget=round_budget, offset=offset, scale=scale, noise_weight=noise_weight
    )
    with np.errstate(divide="ignore", over="ignore"):
        if equal:
            strongest, peak, load = _sorted_fleet(gain, float(power[0]))
            found = search_rounds(rounds, lambda some: best_prefix(some, peak, load))
            weakest, eligible = float(strongest[found.size - 1]), None
        else:
            peak, load = gain * np.sqrt(power), 1.0 / np.square(gain)
            found = search_rounds(rounds, lambda some: best_subset(some, load, peak))
            eligible = peak >= found.threshold
            pool, size = gain[eligible], found.size
            weakest = float(np.partition(pool, pool.size - size)[pool.size - size]) if size else 0.0
    if not math.isfinite(found.objective):
        raise InfeasibleError(_hopeless(rounds, gain, power))
    scheduled = _strongest(gain, found.size, weakest, eligible)
    return _settle(gain, power, rounds, found.index, scheduled, int(candidates[found.index]))


def candidate_space(
    gain: Floats, peak_power: ArrayLike, *, cap: float, round_budget: float, noise_weight: float
) -> CandidateSpace:
    """The largest alignment factor, the three limits and Ψ for every schedule size, at one number of rounds.

    Args:
        gain, peak_power, noise_weight: as in `best_schedule`.
        cap: the largest θ that privacy allows.
        round_budget: P_tot/I [W per round].

    Raises:
        InfeasibleError: every gain is 0.

    >>> space = candidate_space(np.array([0.1, 0.9, 1.0]), 1.0, cap=0.5, round_budget=1.0, noise_weight=0.5)
    >>> space.alignment.round(4), int(space.size[space.objective.argmin()])
    (array([0.5   , 0.5   , 0.0989]), 2)

    Implements [Yan23, Lemma 3], [Yan23, Lemma 5] and [Yan23, Lemma 6].

    Deviations: with different peak powers θ_m is exact (Sec. IV-E is not).
    """
    gain = np.asarray(gain, dtype=np.float64)
    power, _ = _peak_power(peak_power, gain)
    require_gain(gain)
    num, heard = gain.size, gain > 0
    count = int(np.count_nonzero(heard))
    peak_limit, total_limit = np.zeros(num), np.zeros(num)
    size = np.arange(1, num + 1)
    alignment = largest_alignments(gain, power, cap=np.array([cap]), round_budget=np.array([round_budget]))[0]
    with np.errstate(divide="ignore", over="ignore"):
        peak_limit[:count] = -np.sort(-gain[heard] * np.sqrt(power[heard]))  # [Yan23, Lemma 3]
        total_limit[:count] = np.sqrt(round_budget / np.cumsum(np.sort(1.0 / np.square(gain[heard]))))
        objective = 4.0 * np.square(1.0 - size / num) + noise_weight / np.square(size * alignment)
    return CandidateSpace(
        size=size,
        alignment=alignment,
        privacy_limit=np.full(num, float(cap)),
        peak_limit=peak_limit,
        total_limit=total_limit,
        objective=objective,
    )


def largest_alignments(gain: Floats, peak_power: ArrayLike, *, cap: Floats, round_budget: Floats) -> Floats:
    """The largest feasible θ of any schedule of m = 1..N devices, (R, N); 0 where fewer have a gain.

    Args:
        gain, peak_power: as in `best_schedule`.
        cap, round_budget: (R,), as in `best_schedule`.

    >>> largest_alignments(np.array([0.1, 0.9, 1.0]), 1.0, cap=np.full(1, 0.5), round_budget=np.ones(1)).round(4)
    array([[0.5   , 0.5   , 0.0989]])
    """
    power, equal = _peak_power(peak_power, gain)
    heard = gain > 0
    found = np.zeros((cap.size, gain.size))
    with np.errstate(divide="ignore", over="ignore"):
        peak, load = gain[heard] * np.sqrt(power[heard]), 1.0 / np.square(gain[heard])
        if equal:
            total = np.sqrt(round_budget[:, None] / np.cumsum(np.sort(load)))  # [Yan23, Lemma 3]
            theta = np.minimum(cap[:, None], np.minimum(-np.sort(-peak), total))  # [Yan23, Lemma 5]
        else:
            theta, _ = Sweep(load, peak).alignment(cap, round_budget)
    found[:, : peak.size] = theta
    return found


def _peak_power(peak_power: ArrayLike, gain: Floats) -> tuple[Floats, bool]:
    """One peak power per device, and whether they are all equal."""
    power = np.asarray(peak_power, dtype=np.float64)
    if gain.ndim != 1 or power.shape not in ((), gain.shape):
        raise ValueError(
            "Expected a vector of gains and one peak_power for all or one per gain; "
            f"got shapes {gain.shape} and {power.shape}."
        )
    power = np.broadcast_to(power, gain.shape)
    return power, power.strides == (0,) or bool(np.all(power == power[:1]))


def require_gain(gain: Floats) -> None:
    """Raise where no device can be heard.

    Raises:
        InfeasibleError: every gain is 0.
    """
    if not np.any(gain > 0):
        raise InfeasibleError("No plan fits: every device has gain 0, so none can reach the receiver.")


def usable_rounds(
    num_devices: int,
    *,
    cap: Floats,
    round_budget: Floats,
    offset: Floats,
    scale: Floats,
    noise_weight: float,
) -> tuple[Integers, Rounds]:
    """The candidates in which anything may be sent, and their indices."""
    arrays = [np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in (cap, round_budget, offset, scale)]
    if len({x.shape for x in arrays}) != 1 or arrays[0].ndim != 1 or not arrays[0].size:
        shapes = ", ".join(str(x.shape) for x in arrays)
        raise ValueError(f"Expected cap, round_budget, offset and scale to be vectors of one length; got {shapes}.")
    if not noise_weight > 0:
        raise ValueError(f"Expected noise_weight={noise_weight!r} > 0.")
    if not np.any(arrays[0] > 0):
        raise InfeasibleError("No plan fits: the privacy budget allows no transmission at all.")
    if not np.any(arrays[1] > 0):
        raise InfeasibleError("No plan fits: the total power budget leaves no power for any round.")
    kept = np.flatnonzero((arrays[0] > 0) & (arrays[1] > 0) & np.isfinite(arrays[2]) & np.isfinite(arrays[3]))
    if not kept.size:
        raise InfeasibleError("No plan fits: the bound is not a finite number in any number of rounds.")
    usable = [x[kept] for x in arrays]
    return kept, Rounds(
        cap=usable[0],
        budget=usable[1],
        offset=usable[2],
        scale=usable[3],
        noise_weight=float(noise_weight),
        num_devices=num_devices,
    )


def _sorted_fleet(gain: Floats, power: float) -> tuple[Floats, Floats, Floats]:
    """Positive gains in falling order, c_m and S_m. Values are sorted, not indices: several times faster."""
    strongest = np.sort(gain)[::-1]
    strongest = strongest[: np.count_nonzero(strongest)]
    load = np.square(strongest)
    np.divide(1.0, load, out=load)
    return strongest, strongest * math.sqrt(power), np.cumsum(load, out=load)


def _strongest(gain: Floats, size: int, weakest: float, eligible: NDArray[np.bool_] | None) -> Integers:
    """The `size` eligible devices of largest gain, ascending; `weakest` is the last gain among them."""
    chosen = gain > weakest
    tied = gain == weakest
    if eligible is not None:
        chosen &= eligible
        tied &= eligible
    room = size - int(np.count_nonzero(chosen))
    chosen[np.flatnonzero(tied)[:room]] = True
    return np.flatnonzero(chosen)


def _settle(gain: Floats, power: Floats, rounds: Rounds, index: int, scheduled: Integers, round_index: int) -> Choice:
    """The decision with θ computed afresh from the scheduled devices, on the safe side of each limit."""
    strength = gain[scheduled]
    peak = strength * np.sqrt(power[scheduled])  # [Yan23, (14)]
    load = float(np.sum(1.0 / np.square(strength)))  # [Yan23, (17)]
    budget = float(rounds.budget[index])
    limits: dict[Binding, float] = {
        "privacy": float(rounds.cap[index]),
        "peak_power": float(peak.min()),
        "total_power": math.sqrt(budget / load),
    }
    binding = min(limits, key=lambda name: limits[name])
    alignment = limits[binding]
    near = peak <= alignment * (1 + 1e-12)
    step = 0.5
    while alignment * alignment * load > budget or np.any((alignment / strength[near]) ** 2 > power[scheduled[near]]):
        # Rounding of the root or the product: an ulp or two; many more where a square is too small to be exact.
        step = max(1.0, 1.5 * step)
        alignment = max(alignment - math.floor(step) * math.ulp(alignment), alignment / 2)
    with np.errstate(over="ignore"):  # at the edge of float64 that ulp may be the last; no plan has such a bound
        value = float(rounds.objective(index, scheduled.size, alignment))
    return Choice(round_index=round_index, scheduled=scheduled, alignment=alignment, binding=binding, objective=value)


def _hopeless(rounds: Rounds, gain: Floats, power: Floats) -> str:
    """The sentence for an objective that is infinite whatever is done: what limits the best device alone."""
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        limits = {
            "the privacy budget": float(rounds.cap.max()),
            "the peak power": float((gain * np.sqrt(power)).max()),
            "the total power budget": float(np.sqrt(rounds.budget.max()) * gain.max()),
        }
    name = min(limits, key=lambda key: limits[key])
    return f"No plan fits: {name} holds the alignment factor to {limits[name]:.3g}, which the noise drowns."
