"""One realisation of a scenario in SI units: the fleet, the link, the learning constants and the budgets.

All values are checked on construction and frozen; arrays are float64 and read-only. Numbers that are not counts or
probabilities lie between 1e-100 and 1e100 (budgets may be smaller), so that no square, product or quotient of two
leaves the range of float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _validate, antennas
from airfed.antennas import Complexes

Scope = Literal["round", "total"]
Formula = Literal["classic", "exact"]
Relation = Literal["replace", "add_remove"]
Trust = Literal["radio", "combiner"]
Combining = Literal["optimal", "strongest_eigenvector", "sum", "one"]

_ONE: Final = np.ones(1, np.complex128)  # the combiner of one antenna
_ONE.flags.writeable = False

MOST_STEPS: Final = 1_000_000  # T: what is held for each number of rounds in 1..T then stays within megabytes


class InfeasibleError(ValueError):
    """No plan meets every limit; the message names the limit that cannot be met.

    >>> import airfed
    >>> problem = Problem(
    ...     fleet=Fleet(gain=[0.0], peak_power=1.0), link=Link(noise_std=0.1),
    ...     learning=Learning(dimension=10, total_steps=4, clip_norm=1.0, learning_rate=0.1,
    ...                       smoothness=10.0, strong_convexity=0.1, initial_gap=2.3),
    ...     budget=Budget(epsilon=2.0, delta=1e-3, total_power=1000.0))
    >>> airfed.plan(problem)
    Traceback (most recent call last):
    airfed.problem.InfeasibleError: No plan fits: ...
    """


def _as_float(value: object, *names: str) -> None:
    """Store the checked fields as float64: a float32 that came in would spread to every result."""
    for name in names:
        object.__setattr__(value, name, float(getattr(value, name)))


def _unit(combiner: ArrayLike, vectors: Complexes) -> Complexes:
    """The combiner of the given channels at norm 1."""
    chosen = antennas.checked("combiner", combiner, (1, 2))
    expected = (vectors.shape[-1],) if chosen.ndim == 1 or vectors.ndim == 2 else (len(vectors), vectors.shape[-1])
    if chosen.shape != expected or not np.abs(chosen).max(axis=-1).all():
        raise ValueError(f"Expected a combiner of shape {expected} other than 0; got shape {chosen.shape}.")
    if np.abs(antennas.strengths(chosen) - 1.0).max() > 1e-15:  # what is recorded comes back to the bit
        chosen = antennas.unit(chosen)
    chosen.flags.writeable = False
    return chosen


def _require_moderate(name: str, values: NDArray[np.float64], *, zero: bool) -> None:
    odd = (values < _validate.SMALLEST) | (values > _validate.LARGEST)
    if zero:
        odd &= values != 0
    if odd.any():
        raise ValueError(
            f"Expected {_validate.entry(name, values, ~odd)} to be {'0 or ' if zero else ''}between "
            f"{_validate.SMALLEST:g} and {_validate.LARGEST:g}."
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Fleet:
    """The devices, as the receiver hears them.

    Args:
        gain: |h_k|, the channel magnitude of each device, (N,); or |h_k^i|, (rounds, N), where it changes: row i is
            round i. 0 marks a device that cannot be heard at all. With several antennas it is |fᴴh_k|, what the
            combiner hears.
        peak_power: P_k [W], one number for all devices or one per device.
        channel: h_k in place of `gain`, complex, (N, A) or (rounds, N, A), of a receiver with A antennas. One antenna
            is a beamformer of length 1: of its channels only the gains are kept.
        combiner: f, (A,), or one for each round, (rounds, A), which is brought to norm 1; (1,) with one antenna.
            Without it `gain` is what the dominant eigenvector of Σ h_k h_kᴴ receives, until a plan chooses.

    >>> Fleet(gain=[0.2, 0.5], peak_power=1.0).num_devices
    2
    >>> changing = Fleet(gain=[[0.2, 0.5], [0.7, 0.1], [0.3, 0.3]], peak_power=1.0)
    >>> changing.num_devices, changing.changes, changing.at(1).gain
    (2, True, array([0.7, 0.1]))
    >>> two = Fleet(channel=[[3j, 4.0], [1.0, 0.0]], peak_power=1.0, combiner=[1.0, 0.0])
    >>> two.antennas, two.gain, two.exposure
    (2, array([3., 1.]), array([1.66666667, 1.        ]))
    """

    gain: NDArray[np.float64]
    peak_power: NDArray[np.float64]
    antennas: int
    combiner: Complexes | None

    def __init__(
        self,
        *,
        gain: ArrayLike | None = None,
        peak_power: ArrayLike,
        channel: ArrayLike | None = None,
        combiner: ArrayLike | None = None,
    ) -> None:
        if (gain is None) == (channel is None):
            raise ValueError("Expected either gain or channel of a fleet.")
        if combiner is not None and channel is None:
            raise ValueError("Expected a combiner only with channel: it combines antennas.")
        values: dict[str, object] = {"antennas": 1, "combiner": _ONE}
        if channel is not None:
            vectors = antennas.checked("channel", channel, (2, 3))
            _require_moderate("‖channel‖", antennas.strengths(vectors), zero=True)
            chosen = None if combiner is None else _unit(combiner, vectors)
            gain = np.abs(vectors[..., 0])
            if vectors.shape[-1] > 1:
                best = antennas.eigenvectors(vectors)[..., 0, :] if chosen is None else chosen
                gain = np.abs(antennas.heard(vectors, best))
                values = {"antennas": vectors.shape[-1], "combiner": chosen, "channel": vectors}
        assert gain is not None
        gains = _validate.vector(gain=gain, minimum=0.0, strict=False, table=True)
        if channel is None:  # a combiner may all but miss a device
            _require_moderate("gain", gains, zero=True)
        num_devices = gains.shape[-1]
        if np.ndim(peak_power) == 0:
            _validate.moderate(peak_power=peak_power)
            powers = np.broadcast_to(np.float64(peak_power), num_devices)  # type: ignore[arg-type]
        else:
            powers = _validate.vector(peak_power=peak_power, minimum=0.0, strict=True)
            _require_moderate("peak_power", powers, zero=False)
            if powers.size != num_devices:
                expected = f"Expected one peak_power per device: {num_devices} gains"
                raise ValueError(f"{expected} but {powers.size} peak powers.")
        self._keep({"gain": gains, "peak_power": powers, **values})

    def _keep(self, values: dict[str, object]) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @cached_property
    def channel(self) -> Complexes:
        """h_k, (N, A) or (rounds, N, A); with one antenna the gains, made complex when they are asked for."""
        return self.gain[..., None].astype(np.complex128)

    @property
    def drawn(self) -> NDArray[np.float64] | Complexes:
        """What a channel model draws: |h_k| with one antenna, h_k with several."""
        return self.gain if self.antennas == 1 else self.channel

    @cached_property
    def exposure(self) -> NDArray[np.float64]:
        """‖h_k‖/|fᴴh_k| ≥ 1, of the shape of `gain`: how much more of a device all antennas hear than the combiner."""
        if self.antennas == 1:
            return np.ones(self.gain.shape)
        with np.errstate(divide="ignore", invalid="ignore"):
            more = antennas.strengths(self.channel) / self.gain * (1 + 8 * np.finfo(np.float64).eps)
        return np.where(self.gain > 0, np.maximum(more, 1.0), np.inf)

    def heard_by(self, combiner: ArrayLike | None) -> Fleet:
        """Return the same fleet, heard through a combiner, (A,) or (rounds, A); None: a plan is to choose."""
        return Fleet(channel=self.channel, peak_power=self.peak_power, combiner=combiner)

    @property
    def num_devices(self) -> int:
        """N, the size of the fleet."""
        return int(self.gain.shape[-1])

    @property
    def changes(self) -> bool:
        """Whether gains change from round to round."""
        return self.gain.ndim == 2

    def gain_in(self, index: int) -> NDArray[np.float64]:
        """Return |h_k| of round i, (N,)."""
        return self.gain[index] if self.changes else self.gain

    @cached_property
    def reach(self) -> NDArray[np.float64]:
        """|h_k|√P_k, of the shape of `gain`: the largest amplitude with which a device can arrive."""
        return self.gain * np.sqrt(self.peak_power)  # [Yan23, (15)]

    def channel_in(self, index: int, devices: NDArray[np.intp] | slice = slice(None)) -> Complexes:
        """Return h_k of round i, of all devices or of some, (m, A)."""
        if "channel" not in vars(self):  # of many gains only those that are asked for are made complex
            return self.gain_in(index)[devices, None].astype(np.complex128)
        return (self.channel[index] if self.changes else self.channel)[devices]

    def combiner_in(self, index: int) -> Complexes:
        """Return f of round i, (A,)."""
        if self.combiner is None:
            raise ValueError("Expected a fleet whose combiner is chosen.")
        return self.combiner[index] if self.combiner.ndim == 2 else self.combiner

    def heard_in(self, index: int, devices: NDArray[np.intp] | slice = slice(None)) -> Complexes:
        """Return fᴴh_k of round i, of all devices or of some, (m,); its modulus is the gain."""
        return antennas.heard(self.channel_in(index, devices), self.combiner_in(index))

    def mean_gain(self, rounds: int) -> NDArray[np.float64]:
        """Return the mean of |h_k| over the first rounds, (N,)."""
        return np.asarray(self.gain[:rounds].mean(axis=0)) if self.changes else self.gain

    def at(self, index: int) -> Fleet:
        """Return the fleet of round i, whose gains are that round's."""
        if not self.changes:
            return self
        there = object.__new__(Fleet)  # all of it is checked already
        there._keep(vars(self))
        if self.combiner is not None:
            there._keep({"combiner": self.combiner_in(index)})
        tables = {"gain", "channel", "exposure", "reach"} & vars(self).keys()
        there._keep({name: vars(self)[name][index] for name in tables})
        return there

    @property
    def equal_peak_power(self) -> bool:
        """Whether all devices share one peak power (then one sorted order settles the schedule)."""
        return self.peak_power.strides == (0,) or bool(np.all(self.peak_power == self.peak_power[0]))


@dataclass(frozen=True, kw_only=True)
class Link:
    """The receiver.

    Args:
        noise_std: σ, the standard deviation of the received noise *per real dimension*. A complex receiver
            with CN(0, s²) noise has σ = s/√2.
        estimation_error: NMSE of the gains as the devices know them: E|h − ĥ|² over the mean of |ĥ|².
        estimation_failure: β, the probability with which some device may arrive stronger than is accounted for.
        trust_estimates: plan and account as if the estimates were exact (what the paper does). Where they are not, the
            privacy claimed is not kept, and an audit says so.
        bandwidth: B [Hz], symbols a second, if time is to be told in seconds.
        combining: how a plan chooses the combiner of several antennas: the "optimal" one that a search finds, the
            "strongest_eigenvector" of Σ h_k h_kᴴ, the plain "sum" of all antennas, or "one" of them, the best.
        trust: whom privacy is claimed against: a server that keeps every antenna's signal ("radio", the safe one), or
            one that is handed fᴴY alone ("combiner"). With one antenna they are the same.

    >>> Link(noise_std=0.0)
    Traceback (most recent call last):
    ValueError: Expected noise_std=0.0 > 0 and finite.
    """

    noise_std: float
    estimation_error: float = 0.0
    estimation_failure: float = 1e-6
    trust_estimates: bool = False
    bandwidth: float | None = None
    combining: Combining = "optimal"
    trust: Trust = "radio"

    def __post_init__(self) -> None:
        _validate.moderate(noise_std=self.noise_std)
        _validate.one_of(get_args(Combining), combining=self.combining)
        _validate.one_of(get_args(Trust), trust=self.trust)
        _validate.non_negative(estimation_error=self.estimation_error)
        if self.estimation_error:
            _validate.moderate(estimation_error=self.estimation_error)
        _validate.fraction(estimation_failure=self.estimation_failure)
        _as_float(self, "noise_std", "estimation_error", "estimation_failure")
        if self.bandwidth is not None:
            _validate.moderate(bandwidth=self.bandwidth)
            _as_float(self, "bandwidth")


@dataclass(frozen=True, kw_only=True)
class Learning:
    """The constants of the learning task that the convergence bound needs.

    >>> Learning(dimension=21840, total_steps=200, clip_norm=1.0, learning_rate=0.1,
    ...          smoothness=10.0, strong_convexity=0.1, initial_gap=2.3).total_steps
    200
    """

    dimension: int  # d, the number of model parameters
    total_steps: int  # T, local steps per device over the whole training, at most a million
    clip_norm: float  # ϖ, the 2-norm to which every upload is clipped
    learning_rate: float  # τ, between 1e-30 and 1e30 (training is in float32). The bounds are proved for τ = 1/ζ
    smoothness: float  # ζ
    strong_convexity: float  # ϱ, at most ζ
    initial_gap: float  # G = L(m⁰) − L(m*)

    def __post_init__(self) -> None:
        _validate.positive_integer(dimension=self.dimension, total_steps=self.total_steps)
        constants = ("clip_norm", "learning_rate", "smoothness", "strong_convexity", "initial_gap")
        _validate.moderate(**{name: getattr(self, name) for name in constants})
        if self.strong_convexity > self.smoothness:
            raise ValueError(f"Expected strong_convexity={self.strong_convexity!r} <= smoothness={self.smoothness!r}.")
        if not 1e-30 <= float(self.learning_rate) <= 1e30:
            raise ValueError(f"Expected learning_rate={self.learning_rate!r} between 1e-30 and 1e+30.")
        if self.total_steps > MOST_STEPS:
            raise ValueError(
                f"Expected total_steps={self.total_steps} <= {MOST_STEPS}: every number of rounds is weighed."
            )
        _as_float(self, *constants)
        for name in ("dimension", "total_steps"):
            object.__setattr__(self, name, int(getattr(self, name)))

    def noise_weight(self, noise_std: float) -> float:
        """Return dσ²/2: term C of Theorem 1 is that, divided by (Σ_k a_k)²."""
        return 0.5 * self.dimension * noise_std**2

    @property
    def contraction(self) -> float:
        """η = 1 − ϱ/ζ, the factor by which one round shrinks the gap."""
        return 1.0 - self.strong_convexity / self.smoothness


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What may be spent.

    Args:
        epsilon: ε, the privacy loss allowed.
        delta: ξ in the paper, the probability with which ε may be exceeded.
        total_power: P_tot [W], summed over devices and rounds; every device counts at its worst, ‖g_k‖ = ϖ.
        scope: what (epsilon, delta) covers: each "round" alone (the paper) or the "total" training.
        formula: "exact" (the Gaussian mechanism's own trade-off) or "classic" (Lemma 1). Lemma 1 speaks of one
            round only, so "total" with "classic" is refused.
        relation: neighbouring fleets. "replace" one device's data (sensitivity 2ϖ, the paper) or "add_remove"
            one device (sensitivity ϖ).
        spent: μ, the Gaussian-DP parameter of earlier trainings on the same data, which (epsilon, delta) covers too;
            only with scope "total".
        device_power: a battery [W, summed over its rounds], one for all devices or one per device; None: no limit but
            the total.
        air_time: seconds that all rounds may take on the air; None: no limit. It needs the link's bandwidth.

    >>> Budget(epsilon=2.0, delta=1e-3, total_power=1000.0).scope
    'round'
    """

    epsilon: float
    delta: float
    total_power: float
    scope: Scope = "round"
    formula: Formula = "exact"
    relation: Relation = "replace"
    spent: float = 0.0
    device_power: float | tuple[float, ...] | None = None
    air_time: float | None = None

    def __post_init__(self) -> None:
        if self.device_power is not None:
            batteries = _validate.vector(device_power=np.atleast_1d(self.device_power), minimum=0.0, strict=True)
            _require_moderate("device_power", batteries, zero=False)
            one = np.ndim(self.device_power) == 0
            object.__setattr__(self, "device_power", float(batteries[0]) if one else tuple(batteries.tolist()))
        for name, value in (("epsilon", self.epsilon), ("total_power", self.total_power)):
            _validate.positive(**{name: value})
            if float(value) > _validate.LARGEST:
                raise ValueError(f"Expected {name}={value!r} <= {_validate.LARGEST:g}.")
        if self.air_time is not None:
            _validate.moderate(air_time=self.air_time)
            _as_float(self, "air_time")
        _validate.fraction(delta=self.delta)
        _validate.non_negative(spent=self.spent)
        _as_float(self, "epsilon", "delta", "total_power", "spent")
        if self.spent and self.scope != "total":
            raise ValueError('Expected spent=0 with scope="round": what was spent before counts towards a total only.')
        for kind, name in ((Scope, "scope"), (Formula, "formula"), (Relation, "relation")):
            _validate.one_of(get_args(kind), **{name: getattr(self, name)})
        if self.scope == "total" and self.formula == "classic":
            raise ValueError(
                'Expected formula="exact" with scope="total": '
                "the classic formula (Lemma 1) covers one round only and says nothing of totals."
            )

    @property
    def sensitivity(self) -> float:
        """The most that one device can move the received signal, in units of θ: 2 to replace, 1 to add or remove."""
        return 2.0 if self.relation == "replace" else 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Everything that a plan depends on, and nothing else (no data: a plan must not leak any).

    >>> problem = Problem(
    ...     fleet=Fleet(gain=[0.2, 0.5, 1.1], peak_power=1.0), link=Link(noise_std=0.1),
    ...     learning=Learning(dimension=21840, total_steps=200, clip_norm=1.0, learning_rate=0.1,
    ...                       smoothness=10.0, strong_convexity=0.1, initial_gap=2.3),
    ...     budget=Budget(epsilon=2.0, delta=1e-3, total_power=1000.0))
    >>> problem.fleet.num_devices, problem.link.noise_std
    (3, 0.1)
    """

    fleet: Fleet
    link: Link
    learning: Learning
    budget: Budget

    def __post_init__(self) -> None:
        for name, kind in (("fleet", Fleet), ("link", Link), ("learning", Learning), ("budget", Budget)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"Expected {name} to be a {kind.__name__}, got {getattr(self, name)!r}.")
        batteries, num_devices = self.budget.device_power, self.fleet.num_devices
        if isinstance(batteries, tuple) and len(batteries) != num_devices:
            raise ValueError(
                f"Expected one device_power per device: {num_devices} devices, {len(batteries)} batteries."
            )
        if self.fleet.antennas > 1 and self.link.estimation_error:
            raise ValueError(
                f"Expected estimation_error=0 with several antennas, got {self.link.estimation_error:g}: what errors "
                "do to combined channels is not accounted for."
            )
        if self.budget.air_time is not None and self.link.bandwidth is None:
            raise ValueError("Expected a bandwidth of the link with air_time: how many symbols a second has.")

    @property
    def seen_by_all(self) -> bool:
        """Whether privacy is claimed against somebody who keeps the signals of several antennas."""
        return self.fleet.antennas > 1 and self.link.trust == "radio"

    @property
    def trusted(self) -> Trust:
        """Whom privacy is claimed against, where that makes a difference; "radio" with one antenna."""
        return self.link.trust if self.fleet.antennas > 1 else "radio"

    def heard_by(self, combiner: ArrayLike | None) -> Problem:
        """Return the problem with the receiver's combiner decided, (A,) or (rounds, A), or None: still to be."""
        return replace(self, fleet=self.fleet.heard_by(combiner))

    @property
    def noise_weight(self) -> float:
        """dσ²/2: term C of Theorem 1 is that, divided by (Σ_k a_k)²."""
        return self.learning.noise_weight(self.link.noise_std)

    @property
    def varies(self) -> bool:
        """Whether rounds differ in who had best transmit: gains change, or devices have batteries of their own."""
        return self.fleet.changes or self.budget.device_power is not None

    @property
    def symbols(self) -> float:
        """How many symbols all rounds may take on the air; infinite where time is not limited."""
        if self.budget.air_time is None or self.link.bandwidth is None:
            return math.inf
        return self.budget.air_time * self.link.bandwidth * (1 + 1e-12)

    @property
    def most_rounds(self) -> int:
        """The largest I: a round has a local step or more and takes d symbols on the air."""
        fit = self.symbols / self.learning.dimension
        if fit < 1:
            raise InfeasibleError(
                f"No plan fits: a round takes {self.learning.dimension / (self.link.bandwidth or 1.0):.4g} s on the "
                f"air, and there are {self.budget.air_time:.4g} s (air_time)."
            )
        return int(min(fit, self.learning.total_steps))

    def at(self, index: int) -> Problem:
        """Return the problem as round i alone shows it: its gains, and its share β/R of what may fail."""
        if not self.fleet.changes:
            return self
        link = replace(self.link, estimation_failure=self.link.estimation_failure / len(self.fleet.gain))
        return replace(self, fleet=self.fleet.at(index), link=link)
