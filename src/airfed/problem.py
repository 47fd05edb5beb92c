"""One realisation of a scenario in SI units: the fleet, the link, the learning constants and the budgets.

All values are checked on construction and frozen; arrays are float64 and read-only. Numbers other than counts and
probabilities lie between 1e-100 and 1e100 (budgets may be smaller), so that squares, products and quotients of two of
them stay in the range of float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _validate, antennas
from airfed.antennas import Complexes, Covariance
from airfed.clipping import AdaptiveClipping

Scope = Literal["round", "total"]
Formula = Literal["classic", "exact"]
Adjacency = Literal["replace_one", "add_remove"]
Adversary = Literal["all_antennas", "combined"]
Beamforming = Literal["optimal", "dominant_eigenvector", "equal_gain", "antenna_selection"]

_ONE: Final = np.ones(1, np.complex128)  # the beamformer of one antenna
_ONE.flags.writeable = False

MOST_STEPS: Final = 1_000_000  # T; arrays over all numbers of rounds 1..T then take megabytes


class InfeasibleError(ValueError):
    """Raised when no plan meets every limit; the message names the limit that cannot be met.

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
    """Store the checked fields as float64, so that no result is computed in float32."""
    for name in names:
        object.__setattr__(value, name, float(getattr(value, name)))


def _optional(value: object, *names: str) -> None:
    """Check those of the fields that are not None as moderate numbers, and store them as float64."""
    given = [name for name in names if getattr(value, name) is not None]
    _validate.moderate(**{name: getattr(value, name) for name in given})
    _as_float(value, *given)


@dataclass(frozen=True, kw_only=True, eq=False)
class Fleet:
    """The devices and their channels to the receiver.

    Args:
        gain: |h_k|, the channel magnitude of each device, (N,); or |h_k^i|, (rounds, N), for a time-varying channel:
            row i is round i. 0 marks an unreachable device. With several antennas it is the effective gain |fᴴh_k|.
        peak_power: P_k [W], the power of an upload summed over its symbols, ‖x_k‖² ≤ P_k; one number for all devices
            or one per device. A radio of P W sends an upload of S symbols with P_k = S·P (`Link.symbols`).
        channel: h_k in place of `gain`, complex, (N, A) or (rounds, N, A), for a receiver with A antennas. With one
            antenna only the gains are kept.
        beamformer: f, (A,), or one for each round, (rounds, A), scaled to norm 1; (1,) with one antenna. Without it
            `gain` is that of the dominant eigenvector of Σ h_k h_kᴴ until a plan chooses f.

    >>> Fleet(gain=[0.2, 0.5], peak_power=1.0).num_devices
    2
    >>> fading = Fleet(gain=[[0.2, 0.5], [0.7, 0.1], [0.3, 0.3]], peak_power=1.0)
    >>> fading.num_devices, fading.time_varying, fading.at(1).gain
    (2, True, array([0.7, 0.1]))
    >>> two = Fleet(channel=[[3j, 4.0], [1.0, 0.0]], peak_power=1.0, beamformer=[1.0, 0.0])
    >>> two.antennas, two.gain, two.exposure
    (2, array([3., 1.]), array([1.66666667, 1.        ]))
    """

    gain: NDArray[np.float64]
    peak_power: NDArray[np.float64]
    antennas: int
    beamformer: Complexes | None
    noise_covariance: Covariance | None = None  # R, if `channel` and `beamformer` are those after whitening

    def __init__(
        self,
        *,
        gain: ArrayLike | None = None,
        peak_power: ArrayLike,
        channel: ArrayLike | None = None,
        beamformer: ArrayLike | None = None,
    ) -> None:
        if (gain is None) == (channel is None):
            raise ValueError("A fleet needs either gain or channel, and not both.")
        if beamformer is not None and channel is None:
            raise ValueError("A beamformer needs channel: it combines the antennas. Give channel in place of gain.")
        values: dict[str, object] = {"antennas": 1, "beamformer": _ONE}
        if channel is not None:
            vectors = antennas.checked("channel", channel, (2, 3))
            _validate.moderate_entries("‖channel‖", antennas.norms(vectors), zero=True)
            unit = None if beamformer is None else antennas.checked_beamformer(beamformer, vectors)
            gain = np.abs(vectors[..., 0])
            if vectors.shape[-1] > 1:
                best = antennas.eigenvectors(vectors)[..., 0, :] if unit is None else unit
                gain = np.abs(antennas.effective(vectors, best))
                values = {"antennas": vectors.shape[-1], "beamformer": unit, "channel": vectors}
        assert gain is not None
        gains = _validate.vector(gain=gain, minimum=0.0, strict=False, table=True)
        if channel is None:  # an effective gain |fᴴh_k| may be smaller
            _validate.moderate_entries("gain", gains, zero=True)
        num_devices = gains.shape[-1]
        if np.ndim(peak_power) == 0:
            _validate.moderate(peak_power=peak_power)
            powers = np.broadcast_to(np.float64(peak_power), num_devices)  # type: ignore[arg-type]
        else:
            powers = _validate.vector(peak_power=peak_power, minimum=0.0, strict=True)
            _validate.moderate_entries("peak_power", powers, zero=False)
            if powers.size != num_devices:
                raise ValueError(f"peak_power must have one entry per device, {num_devices}; got {powers.size}.")
        self._keep({"gain": gains, "peak_power": powers, **values})

    def _keep(self, values: dict[str, object]) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @cached_property
    def channel(self) -> Complexes:
        """h_k, (N, A) or (rounds, N, A); with one antenna the gains as complex numbers."""
        return self.gain[..., None].astype(np.complex128)

    @property
    def drawn(self) -> NDArray[np.float64] | Complexes:
        """The sample of a channel model: |h_k| with one antenna, h_k with several."""
        return self.gain if self.antennas == 1 else self.channel

    @cached_property
    def exposure(self) -> NDArray[np.float64]:
        """‖h_k‖/|fᴴh_k| ≥ 1, of the shape of `gain`: received amplitude at all antennas over that after combining."""
        if self.antennas == 1:
            return np.ones(self.gain.shape)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = antennas.norms(self.channel) / self.gain * (1 + 8 * np.finfo(np.float64).eps)
        return np.where(self.gain > 0, np.maximum(ratio, 1.0), np.inf)

    def with_beamformer(self, beamformer: ArrayLike | None) -> Fleet:
        """Return the fleet with a beamformer, (A,) or (rounds, A); None leaves it to the plan."""
        return self._like(channel=self.channel, beamformer=beamformer)

    def with_gain(self, gain: ArrayLike) -> Fleet:
        """Return a fleet of one antenna with these gains, (N,) or (rounds, N), of the combined signal."""
        return self._like(gain=gain)

    def _like(self, **values: Any) -> Fleet:
        fleet = Fleet(peak_power=self.peak_power, **values)
        fleet._keep({"noise_covariance": self.noise_covariance})
        return fleet

    def whitened(self, covariance: Covariance) -> Fleet:
        """Return the fleet after whitening of the noise, with R^(−1/2)h_k and R^(1/2)f; itself if it is whitened."""
        if self.noise_covariance == covariance:
            return self
        if self.antennas == 1:
            raise ValueError("noise_covariance must be None with one antenna: it needs several antennas.")
        if self.noise_covariance is not None:
            raise ValueError("noise_covariance must be that of the fleet, which is already whitened with another one.")
        vectors, beamformer = antennas.whitened(self.channel, covariance), self.beamformer
        if beamformer is not None:
            beamformer = antennas.whitened_beamformer(beamformer, covariance)
        fleet = self._like(channel=vectors, beamformer=beamformer)
        fleet._keep({"noise_covariance": covariance})
        return fleet

    @property
    def num_devices(self) -> int:
        """N, the size of the fleet."""
        return int(self.gain.shape[-1])

    @property
    def time_varying(self) -> bool:
        """Whether gains differ from round to round."""
        return self.gain.ndim == 2

    def gain_in(self, index: int) -> NDArray[np.float64]:
        """Return |h_k| of round i, (N,)."""
        return self.gain[index] if self.time_varying else self.gain

    @cached_property
    def reach(self) -> NDArray[np.float64]:
        """|h_k|√P_k, of the shape of `gain`: the largest received amplitude within the peak power."""
        return self.gain * np.sqrt(self.peak_power)  # [Yan23, (15)]

    def channel_in(self, index: int, devices: NDArray[np.intp] | slice = slice(None)) -> Complexes:
        """Return h_k of the given devices (default: all) in round i, (m, A)."""
        if "channel" not in vars(self):  # convert only the requested gains
            return self.gain_in(index)[devices, None].astype(np.complex128)
        return (self.channel[index] if self.time_varying else self.channel)[devices]

    def beamformer_in(self, index: int) -> Complexes:
        """Return f of round i, (A,)."""
        if self.beamformer is None:
            raise ValueError("This fleet has no beamformer yet. Plan first, or give beamformer.")
        return self.beamformer[index] if self.beamformer.ndim == 2 else self.beamformer

    def at(self, index: int) -> Fleet:
        """Return the fleet with the gains of round i."""
        if not self.time_varying:
            return self
        fleet = object.__new__(Fleet)  # all values have been checked
        fleet._keep(vars(self))
        if self.beamformer is not None:
            fleet._keep({"beamformer": self.beamformer_in(index)})
        tables = {"gain", "channel", "exposure", "reach"} & vars(self).keys()
        fleet._keep({name: vars(self)[name][index] for name in tables})
        return fleet

    @property
    def equal_peak_power(self) -> bool:
        """Whether all devices have the same peak power (the search then needs only one sorted order)."""
        return self.peak_power.strides == (0,) or bool(np.all(self.peak_power == self.peak_power[0]))


@dataclass(frozen=True, kw_only=True)
class Link:
    """The receiver.

    σ is *per real dimension*: complex noise CN(0, s²) has σ = s/√2. If antennas share noise, its covariance over them
    is σ²R per real dimension, with a Hermitian and positive definite R, or a number ρ for 1 on the diagonal and ρ
    elsewhere; a problem then holds the fleet after whitening (`Fleet.whitened`). The plan's beamformer is that of a
    search ("optimal"), the "dominant_eigenvector" of Σ h_k h_kᴴ, "equal_gain" combining, or the best single antenna
    ("antenna_selection"). The adversary of the privacy claim observes the signals of "all_antennas" (conservative), or
    only the "combined" signal fᴴY; with one antenna they are the same.

    >>> Link(noise_std=0.0)
    Traceback (most recent call last):
    ValueError: noise_std must be positive and finite, got 0.0.
    """

    noise_std: float  # σ, with which learning counts
    noise_std_lower: float | None = None  # lower confidence limit of a measured σ, with which privacy counts
    noise_failure: float = 1e-6  # the probability that σ is below it; like β it adds to δ
    noise_covariance: Any = None  # R, (A, A), or ρ; None: independent noise
    csi_error: float = 0.0  # normalised mean squared error of the devices' CSI: E|h − ĥ|² over the mean of |ĥ|²
    csi_failure: float = 1e-6  # β, the probability that some received amplitude exceeds that of the accounting
    assume_perfect_csi: bool = False  # as in the paper; with a csi_error the claim then fails, and the audit reports it
    bandwidth: float | None = None  # B [Hz], symbols per second, for times in seconds and energies in joules
    iq: bool = True  # whether a symbol carries two entries of an update (I and Q); if not, one, in twice the air time
    beamforming: Beamforming = "optimal"
    adversary: Adversary = "all_antennas"

    def __post_init__(self) -> None:
        _validate.moderate(noise_std=self.noise_std)
        _optional(self, "noise_std_lower", "bandwidth")
        if not isinstance(self.iq, bool):
            raise ValueError(f"iq must be True or False, got {self.iq!r}.")
        _validate.one_of(get_args(Beamforming), beamforming=self.beamforming)
        _validate.one_of(get_args(Adversary), adversary=self.adversary)
        _validate.non_negative(csi_error=self.csi_error)
        if self.csi_error:
            _validate.moderate(csi_error=self.csi_error)
        _validate.fraction(csi_failure=self.csi_failure, noise_failure=self.noise_failure)
        _as_float(self, "noise_std", "noise_failure", "csi_error", "csi_failure")
        if self.noise_std_lower is not None and self.noise_std_lower > self.noise_std:
            raise ValueError(
                f"noise_std_lower must be at most noise_std, {self.noise_std!r}; got {self.noise_std_lower!r}."
            )
        if self.noise_covariance is not None:
            object.__setattr__(self, "noise_covariance", antennas.checked_covariance(self.noise_covariance))

    def symbols(self, dimension: int) -> int:
        """Return S, the symbols of an upload of d entries over the air: ⌈d/2⌉ with `iq`, else d."""
        return (dimension + 1) // 2 if self.iq else dimension

    @property
    def measured_noise(self) -> dict[str, float]:
        """The lower confidence limit of σ and its failure probability for records; empty without a limit."""
        limit = self.noise_std_lower
        return {} if limit is None else {"noise_std_lower": limit, "noise_failure": self.noise_failure}

    @property
    def privacy_noise_std(self) -> float:
        """The σ that privacy counts with: `noise_std_lower` of a measured σ, or `noise_std`."""
        return self.noise_std if self.noise_std_lower is None else self.noise_std_lower


@dataclass(frozen=True, kw_only=True)
class Learning:
    """The constants of the learning task in the convergence bound.

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
    adaptive_clipping: AdaptiveClipping | None = None  # ϖ follows the norms; clip_norm is that of the first round

    def __post_init__(self) -> None:
        _validate.positive_integer(dimension=self.dimension, total_steps=self.total_steps)
        constants = ("clip_norm", "learning_rate", "smoothness", "strong_convexity", "initial_gap")
        _validate.moderate(**{name: getattr(self, name) for name in constants})
        if self.strong_convexity > self.smoothness:
            raise ValueError(
                f"strong_convexity must be at most smoothness, {self.smoothness!r}; got {self.strong_convexity!r}."
            )
        if not 1e-30 <= float(self.learning_rate) <= 1e30:
            raise ValueError(f"learning_rate must be between 1e-30 and 1e+30, got {self.learning_rate!r}.")
        if self.total_steps > MOST_STEPS:
            raise ValueError(f"total_steps must be at most {MOST_STEPS}, got {self.total_steps}.")
        _as_float(self, *constants)
        for name in ("dimension", "total_steps"):
            object.__setattr__(self, name, int(getattr(self, name)))

    def noise_weight(self, noise_std: float) -> float:
        """Return dσ²/2; term C of Theorem 1 is dσ²/2 over (Σ_k a_k)²."""
        return 0.5 * self.dimension * noise_std**2

    @property
    def entries(self) -> int:
        """The entries of an upload: d, and one for the clipping indicator."""
        return self.dimension + (self.adaptive_clipping is not None)

    @property
    def contraction(self) -> float:
        """η = 1 − ϱ/ζ, the factor by which one round reduces the optimality gap."""
        return 1.0 - self.strong_convexity / self.smoothness


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The privacy, power and air-time budgets.

    >>> Budget(epsilon=2.0, delta=1e-3, total_power=1000.0).scope
    'round'
    """

    epsilon: float  # ε of device-level (ε, δ)-differential privacy
    delta: float  # δ, ξ in the paper
    total_power: float  # P_tot [W], summed over devices and rounds, for updates of full norm, ‖g_k‖ = ϖ
    scope: Scope = "round"  # what (epsilon, delta) covers: each round alone (the paper) or the "total" training
    formula: Formula = "exact"  # or "classic": Lemma 1, for one round only, so not with scope "total"
    adjacency: Adjacency = "replace_one"  # sensitivity 2ϖ, the paper; or "add_remove", sensitivity ϖ
    spent: float = 0.0  # μ of earlier trainings on the same data, composed with this one; only with scope "total"
    device_power: float | tuple[float, ...] | None = None  # battery [W, summed over rounds], one for all or per device
    air_time: float | None = None  # of all rounds [s]; None: no limit. It needs the link's bandwidth

    def __post_init__(self) -> None:
        if self.device_power is not None:
            batteries = _validate.vector(device_power=np.atleast_1d(self.device_power), minimum=0.0, strict=True)
            _validate.moderate_entries("device_power", batteries, zero=False)
            one = np.ndim(self.device_power) == 0
            object.__setattr__(self, "device_power", float(batteries[0]) if one else tuple(batteries.tolist()))
        for name, value in (("epsilon", self.epsilon), ("total_power", self.total_power)):
            _validate.positive(**{name: value})
            if float(value) > _validate.LARGEST:
                raise ValueError(f"{name} must be at most {_validate.LARGEST:g}, got {value!r}.")
        _optional(self, "air_time")
        _validate.fraction(delta=self.delta)
        _validate.non_negative(spent=self.spent)
        _as_float(self, "epsilon", "delta", "total_power", "spent")
        if self.spent and self.scope != "total":
            raise ValueError('spent must be 0 with scope="round": earlier privacy loss counts only towards a total.')
        for kind, name in ((Scope, "scope"), (Formula, "formula"), (Adjacency, "adjacency")):
            _validate.one_of(get_args(kind), **{name: getattr(self, name)})
        if self.scope == "total" and self.formula == "classic":
            raise ValueError('formula must be "exact" with scope="total", got "classic", which covers one round only.')

    @property
    def sensitivity(self) -> float:
        """The L2 sensitivity of the received signal in units of θ: 2 for replace-one, 1 for add-remove adjacency."""
        return 2.0 if self.adjacency == "replace_one" else 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Everything that a plan depends on. It contains no training data, so that a plan cannot leak any.

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
                raise ValueError(f"{name} must be a {kind.__name__}, got {getattr(self, name)!r}.")
        if self.link.noise_covariance is not None:
            object.__setattr__(self, "fleet", self.fleet.whitened(self.link.noise_covariance))
        batteries, num_devices = self.budget.device_power, self.fleet.num_devices
        if isinstance(batteries, tuple) and len(batteries) != num_devices:
            raise ValueError(f"device_power must have one entry per device, {num_devices}; got {len(batteries)}.")
        if (error := self.link.csi_error) and self.fleet.antennas > 1:
            raise ValueError(f"csi_error must be 0 with several antennas, got {error:g}: it is not accounted for.")
        if self.budget.air_time is not None and self.link.bandwidth is None:
            raise ValueError("air_time needs the bandwidth of the link, got none.")

    @property
    def all_antennas_seen(self) -> bool:
        """Whether the adversary observes the signals of several antennas."""
        return self.fleet.antennas > 1 and self.link.adversary == "all_antennas"

    @property
    def adversary(self) -> Adversary:
        """The adversary of the privacy claim; "all_antennas" with one antenna, where both are the same."""
        return self.link.adversary if self.fleet.antennas > 1 else "all_antennas"

    @property
    def shared_noise(self) -> dict[str, Any]:
        """The covariance of the noise over antennas for records, complex entries as pairs; empty without one."""
        found = self.fleet.noise_covariance
        if isinstance(found, tuple):
            return {"noise_covariance": [[[entry.real, entry.imag] for entry in row] for row in found]}
        return {} if found is None else {"noise_covariance": found}

    def with_beamformer(self, beamformer: ArrayLike | None) -> Problem:
        """Return the problem with a receive beamformer, (A,) or (rounds, A); None leaves it to the plan."""
        return replace(self, fleet=self.fleet.with_beamformer(beamformer))

    @property
    def noise_weight(self) -> float:
        """dσ²/2; term C of Theorem 1 is dσ²/2 over (Σ_k a_k)²."""
        return self.learning.noise_weight(self.update_noise_std)

    @property
    def update_noise_std(self) -> float:
        """σ over the share √(1 − s) of an upload's amplitude that the update keeps; σ without adaptive clipping."""
        adaptive = self.learning.adaptive_clipping
        return self.link.noise_std if adaptive is None else self.link.noise_std / math.sqrt(1.0 - adaptive.share)

    @property
    def time_varying(self) -> bool:
        """Whether rounds may differ: gains vary from round to round, or devices have batteries."""
        return self.fleet.time_varying or self.budget.device_power is not None

    @property
    def symbols(self) -> float:
        """The limit on the symbols of all rounds together; infinite without `air_time`."""
        if self.budget.air_time is None or self.link.bandwidth is None:
            return math.inf
        return self.budget.air_time * self.link.bandwidth * (1 + 1e-12)

    @property
    def most_rounds(self) -> int:
        """The largest I: a round has at least one local step and takes S symbols."""
        needed = self.link.symbols(self.learning.entries)
        self.require_time(needed, "a round takes")
        return int(min(self.symbols / needed, self.learning.total_steps))

    def round_candidates(self, rounds: int | None = None) -> NDArray[np.int64]:
        """Return the possible numbers of rounds, 1 to the largest, or only the given one."""
        return np.arange(1, self.most_rounds + 1) if rounds is None else np.array([int(rounds)])

    def require_time(self, symbols: float, what: str) -> None:
        """Raise InfeasibleError if these symbols exceed the budget's air time; `what` starts the sentence."""
        if symbols > self.symbols:
            raise InfeasibleError(
                f"No plan fits: {what} {symbols / (self.link.bandwidth or 1.0):.4g} s of air time, and the budget is "
                f"{self.budget.air_time:.4g} s (air_time)."
            )

    def at(self, index: int) -> Problem:
        """Return the problem of round i alone: its gains, and its share β/R of the CSI failure probability."""
        if not self.fleet.time_varying:
            return self
        link = replace(self.link, csi_failure=self.link.csi_failure / len(self.fleet.gain))
        return replace(self, fleet=self.fleet.at(index), link=link)
