"""Channel models: each is a [channel] table of a scenario that draws gains.

`scale` is the root mean square of the gain, so E|h|² = scale² for every fading model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, model_validator

from airfed import seeds
from airfed.antennas import Complexes, Floats
from airfed.channel import arrays
from airfed.channel.arrays import Array
from airfed.channel.changing import Forecast, Walk, sources
from airfed.keys import Control, Count, Fraction, Key, NonNegative, Positive, Section, Spread, control_of
from airfed.problem import Link

_MOST_GAINS: Final = 2**28  # of all rounds: 2 GiB
_OWN_KEYS: Final[dict[str, str]] = {}
MODELS: Final[dict[str, type[ChannelModel]]] = {}
"""Every model by its name in scenarios; a class with a default for `model` is one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """What the gains of a round are made of: |h_k| = steady_k · own_k · small_k · common."""

    small: Floats  # modulus of the small-scale part, (N,), or (draws, N)
    steady: Floats | float = 1.0  # scale and path loss
    own: Floats | float = 1.0  # each device's shadowing, 10^(X_k/20)
    common: Floats | float = 1.0  # shadowing that all devices share, 10^(Y/20), or (draws, 1)
    scattered: Complexes | None = None  # complex amplitude of the scattered paths, unless only a modulus was drawn
    white: Complexes | None = None  # CN(0, 1) entries that the vectors of several antennas are made of, (..., N, A)

    @property
    def gain(self) -> Floats:
        """|h_k|, of one draw or of each."""
        return np.asarray(self.steady * self.own * self.small * self.common)

    def vectors(self, array: Array, paths: tuple[float, float] | None) -> Complexes:
        """Return h_k ∈ C^A, of one draw or of each, (..., N, A); without `paths` `small` is every antenna's modulus."""
        assert self.white is not None
        if paths is None:
            return self.gain[..., None] * array.directions(self.white)
        large = np.asarray(self.steady * self.own * self.common)
        return large[..., None] * array.scattered(self.white, paths)


class ChannelModel(Section, ABC):
    """Draws the gains of a fleet.

    A subclass declares keys of its own and `magnitudes`; the keys here are every model's. With
    `model: Literal["mine"] = "mine"` it has a name, and scenarios, template, reference and explorer have it (if it is
    defined before `airfed.scenario` is imported). Where gains change, `magnitudes` is drawn anew for each block; where
    something stays, or is correlated, a model has `start` and `renewed`, too.
    """

    refuses: ClassVar[Mapping[str, str]] = {"correlation": "its gains have no complex amplitudes"}
    """Keys of every model that make no sense with this one, and why."""

    minimum: Annotated[
        NonNegative,
        Key("smallest gain in the cell", "h_min", note="weaker gains are raised to it"),
        Control("Minimum gain", 0.0, 1.0, "linear"),
    ] = 0.0
    pin_minimum: Annotated[
        bool,
        Key(
            "set the weakest device exactly to the minimum, as the paper's figures do",
            choices={True: "exactly at h_min", False: "as drawn"},
        ),
        Control("Weakest device"),
    ] = False
    estimation_error: Annotated[
        NonNegative,
        Key("NMSE of the gains as the devices know them", note="relative; privacy counts on it"),
        Control("Error of the known gains", 0.0, 0.2, "linear"),
    ] = Link.estimation_error
    estimation_failure: Annotated[
        Fraction, Key("probability with which some device may arrive stronger than is accounted for", "β")
    ] = Link.estimation_failure
    trust_estimates: Annotated[
        bool, Key("plan and account as if the known gains were exact; where they are not, the privacy is not kept")
    ] = Link.trust_estimates
    coherence: Annotated[
        Count | None,
        Key("rounds that a draw of the fading lasts", note="the whole run unless written down"),
        Control("Rounds of one draw", 1, 100, "count", open=True),
    ] = None
    correlation: Annotated[
        float,
        Field(ge=0, lt=1),
        Key("share of the scattered paths' complex amplitude that stays from one draw of the fading to the next"),
        Control("Correlation of draws", 0.0, 0.99, "linear"),
    ] = 0.0
    common_shadowing_db: Annotated[
        Spread,
        Key("standard deviation of log-normal shadowing that all devices share", unit="dB"),
        Control("Common shadowing", 0.0, 12.0, "linear"),
    ] = 0.0
    shadowing_coherence: Annotated[
        Count | None,
        Key("rounds that a draw of the shadowing lasts, common or not", note="the whole run unless written down"),
        Control("Rounds of one shadowing", 1, 100, "count", open=True),
    ] = None
    angle_spread: Annotated[
        float | None,
        Field(ge=0, le=180),
        Key(
            "of several antennas: standard deviation of the angles around a device's angle of arrival, at a uniform "
            "linear array",
            unit="°",
            note="antennas are independent unless written down",
        ),
        Control("Angle spread", 1.0, 60.0, open=True),
    ] = None
    sector: Annotated[
        float,
        Field(ge=0, le=180),
        Key("width of the sector, around broadside, in which angles of arrival are drawn", unit="°"),
        Control("Sector", 0.0, 180.0, "linear"),
    ] = 120.0
    antenna_spacing: Annotated[
        Positive, Key("distance of neighbouring antennas", unit="wavelengths"), Control("Antenna spacing", 0.1, 10.0)
    ] = 0.5
    model: Annotated[str, Key("law of the gains", choices=_OWN_KEYS), Control("Channel law")]
    _antennas: int = PrivateAttr(default=1)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Enter the model under its name."""
        if not (field := cls.model_fields["model"]).is_required():
            MODELS[field.default] = cls
            _OWN_KEYS[field.default] = ", ".join(cls._own())

    @classmethod
    def _own(cls) -> list[str]:
        return [key for key in cls.model_fields if key not in ChannelModel.model_fields]

    @classmethod
    def starts(cls) -> dict[str, Any]:
        """Return the keys that not every model has, each with the value that a page starts from, if there is one."""
        found = {}
        for key in cls._own():
            control = control_of(info := cls.model_fields[key])
            found[key] = info.default if control is None or control.start is None else control.start
        return {key: value for key, value in found.items() if value is not None}

    @property
    def num_gains(self) -> int | None:
        """How many gains it has; None where it draws as many as are asked for."""
        return None

    @property
    def changes(self) -> bool:
        """Whether gains change from round to round."""
        return self.coherence is not None or self.shadowing_coherence is not None

    @property
    def own_shadowing_db(self) -> float:
        """Standard deviation of each device's own shadowing, in dB."""
        return float(getattr(self, "shadowing_db", 0.0))

    @property
    def paths(self) -> tuple[float, float] | None:
        """Amplitude of the direct path, and standard deviation of the scattered ones per real dimension, if any."""
        return None

    def received_by(self, antennas: int, folder: Path = Path()) -> Self:
        """Return the model as so many antennas meet it (`trace` and `law` are of vectors), its files in `folder`."""
        found = self.model_copy(update={key: str(folder / getattr(self, key)) for key in self.file_keys()})
        found._antennas = antennas
        return found

    def draw(self, num_devices: int, rng: np.random.Generator) -> Floats:
        """Return one gain |h_k| per device, raised to the minimum; where gains change, those of the first round."""
        return self.raised(self._first(num_devices, rng).gain)

    def trace(self, *, rounds: int, num_devices: int, seed: int) -> Floats | Complexes:
        """Return |h_k^i|, (rounds, N), the first row as `draw` has it; (N,) where gains do not change.

        Of several antennas the vectors h_k^i themselves, complex, (rounds, N, A) or (N, A).
        """
        if self._antennas == 1 and not self.changes:
            return self.draw(num_devices, seeds.stream(seed, "channel"))
        self._check_size(rounds if self.changes else 1, num_devices)
        walk = self.walk(num_devices, seed)
        if not self.changes:
            return walk.row
        gains = self.empty(rounds, num_devices)
        gains[0] = walk.row
        walk.fill(gains[1:], 1)
        return gains

    def empty(self, *shape: int) -> Floats | Complexes:
        """Return room for gains of such a shape, or for the vectors in their place."""
        return np.empty(shape) if self._antennas == 1 else np.empty((*shape, self._antennas), dtype=np.complex128)

    def law(
        self, *, rounds: int, num_devices: int, seed: int
    ) -> Floats | Complexes | Callable[[Any], Floats | Complexes] | None:
        """Return Monte Carlo samples of the gains, (draws, rounds, N); None where gains do not change.

        Where rounds depend on each other, it is a conditional sampler: a function from the gains so far, (i, N), to
        samples of the rest, (draws, rounds − i, N). Of several antennas these are vectors, with A as one more axis.
        """
        if not self.changes:
            return None
        forecast = Forecast(self, rounds=rounds, num_devices=num_devices, seed=seed)
        shadowed = self.own_shadowing_db or self.common_shadowing_db
        slow = self.correlation or (self.coherence or 1) > 1 or (shadowed and (self.shadowing_coherence or 1) > 1)
        return forecast if slow else forecast(np.empty((0, num_devices)))

    def walk(self, num_devices: int, seed: int) -> Walk:
        """Return the channel that the seed draws, in its first round."""
        first = self._first(num_devices, seeds.stream(seed, "channel"))
        walk = Walk(self, first, (num_devices,), sources(seed, "fading"))
        if self._antennas > 1:
            line: dict[str, Any] = {"sector": self.sector, "spacing": self.antenna_spacing, "spread": self.angle_spread}
            array = Array.drawn(number=self._antennas, num_devices=num_devices, seed=seed, **line)
            walk.receive(array, arrays.generators(self._antennas, seed, "array", 1))
        return walk

    @abstractmethod
    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> Floats:
        """Return |h_k| as the law draws it; a law of complex amplitudes draws them here and returns their moduli."""

    def start(self, num_devices: int, rng: np.random.Generator) -> State:
        """Return what the gains of the first round are made of, without the common shadowing."""
        return State(small=self.magnitudes(num_devices, rng))

    def renewed(self, state: State, shape: tuple[int, ...], rng: np.random.Generator, correlation: float) -> State:
        """Return the state with the fading of the next block; `shape` is (N,), or (draws, N) for independent draws.

        `correlation` is the share of the scattered paths' amplitude that stays; 0 where there was no block before.
        """
        *draws, num_devices = shape
        small = [self.magnitudes(num_devices, rng) for _ in range(int(np.prod(draws)))]
        return replace(state, small=np.reshape(small, shape))

    def raised(self, gains: Floats) -> Floats:
        """Return the gains of one round, or of several, (..., N), with weaker ones raised to the minimum (h_min)."""
        raised = np.maximum(gains, self.minimum)
        if self.pin_minimum:
            np.put_along_axis(raised, np.argmin(gains, axis=-1, keepdims=True), self.minimum, axis=-1)
        return raised

    def raised_vectors(self, vectors: Complexes) -> Complexes:
        """Return the vectors of one round, or of several, with no ‖h_k‖/√A below the minimum."""
        return arrays.raise_vectors(vectors, self.raised(arrays.rms(vectors))) if self.minimum else vectors

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        self.model_fields_set.add("model")  # what is dumped without its defaults is still this model
        if self.pin_minimum and self.minimum == 0:
            raise ValueError("Expected channel.minimum > 0 with channel.pin_minimum = true: it is pinned to that.")
        for key, reason in self.refuses.items():
            if getattr(self, key) != ChannelModel.model_fields[key].default:
                raise ValueError(f'Expected no channel.{key} with channel.model = "{self.model}": {reason}.')
        if self.correlation and self.coherence is None:
            raise ValueError(
                f"Expected channel.coherence with channel.correlation={self.correlation!r}: without it, a draw of the "
                "fading lasts the whole run."
            )
        return self

    def _check_size(self, rounds: int, num_devices: int) -> None:
        """Refuse what does not fit into memory; a complex number counts twice, and so do covariances."""
        number = self._antennas
        each = rounds if self.angle_spread is None else max(rounds, number)
        if each * num_devices * (1 if number == 1 else 2 * number) <= _MOST_GAINS:
            return
        what = "2**28 gains" if number == 1 else "2**27 complex gains"
        raise ValueError(
            f"Expected at most {what} of all rounds, got {rounds} rounds of {num_devices} devices at {number} "
            "antennas; set fewer of them (policy.rounds, fleet.num_devices, link.antennas)."
        )

    def _first(self, num_devices: int, rng: np.random.Generator) -> State:
        """What the gains of the first round are made of, the common shadowing drawn last."""
        state = self.start(num_devices, rng)
        if not self.common_shadowing_db:
            return state
        return replace(state, common=10.0 ** (rng.normal(0.0, self.common_shadowing_db) / 20.0))


_Scale = Annotated[Positive, Key("root mean square of the gain", "rms |h|"), Control("Scale", 0.01, 10.0)]


class Fixed(ChannelModel):
    """Gains written down: `gains[k]` is device k's."""

    refuses: ClassVar = dict.fromkeys(("coherence", "correlation"), "its gains are written down")
    model: Literal["fixed"] = "fixed"
    gains: Annotated[
        list[NonNegative],
        Field(min_length=1),
        Key("the gains themselves", "|h|", note="one per device, with commas"),
        Control("Gains", start=[0.2, 0.5, 0.8, 1.1, 1.6]),
    ]

    @property
    def num_gains(self) -> int:
        """How many gains are written down."""
        return len(self.gains)

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> Floats:
        """Return the gains as given."""
        return checked_count(np.array(self.gains, np.float64), num_devices, "gains")


class Fading(ChannelModel):
    """Amplitudes of a direct path and of scattered ones; from block to block, h' = ρ·h + √(1−ρ²)·w of the scattered.

    A subclass declares `start`, and `k_factor` where there is a direct path.
    """

    refuses: ClassVar = {}

    @property
    def paths(self) -> tuple[float, float]:
        """Amplitude of the direct path, and standard deviation of the scattered ones per real dimension, at rms 1."""
        factor = getattr(self, "k_factor", 0.0)
        return float(np.sqrt(factor / (factor + 1))), float(np.sqrt(0.5 / (factor + 1)))

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> Floats:
        """Return independent gains."""
        return self.start(num_devices, rng).gain

    def renewed(self, state: State, shape: tuple[int, ...], rng: np.random.Generator, correlation: float) -> State:
        """Return the state with the scattered paths of the next block."""
        direct, spread = self.paths
        *draws, num_devices = shape
        scattered = spread * rng.standard_normal((*draws, 2 * num_devices)).view(np.complex128)
        if correlation:
            # where only a modulus was drawn there is no direct path, and any phase gives the same law of gains
            before = state.small if state.scattered is None else state.scattered
            scattered = correlation * before + np.sqrt(1 - correlation**2) * scattered
        return replace(state, small=np.abs(direct + scattered), scattered=scattered)


class Rayleigh(Fading):
    """Rayleigh fading, |h| of h ~ CN(0, scale²): no line of sight."""

    model: Literal["rayleigh"] = "rayleigh"
    scale: _Scale = 1.0

    def start(self, num_devices: int, rng: np.random.Generator) -> State:
        """Return independent Rayleigh gains."""
        return State(steady=self.scale, small=rng.rayleigh(np.sqrt(0.5), num_devices))


class Rician(Fading):
    """Rician fading: a direct path and scattered ones."""

    model: Literal["rician"] = "rician"
    scale: _Scale = 1.0
    k_factor: Annotated[
        NonNegative,
        Key("power of the direct path over that of the scattered ones", "K"),
        Control("Line of sight over scatter", 0.0, 20.0, "linear", start=3.0),
    ] = 1.0

    def start(self, num_devices: int, rng: np.random.Generator) -> State:
        """Return independent Rician gains."""
        direct, spread = self.paths
        real, imaginary = rng.normal(0.0, spread, (2, num_devices))
        return State(
            steady=self.scale, small=np.hypot(direct + real, imaginary), scattered=np.asarray(real + 1j * imaginary)
        )


class Uniform(ChannelModel):
    """Gains spread evenly between `low` and `high`."""

    model: Literal["uniform"] = "uniform"
    low: Annotated[NonNegative, Key("smallest gain"), Control("Smallest gain", 0.0, 2.0, "linear", start=0.1)]
    high: Annotated[Positive, Key("largest gain"), Control("Largest gain", 0.05, 5.0, start=2.0)]

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"Expected low={self.low!r} <= high={self.high!r}.")
        return self

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> Floats:
        """Return independent uniform gains."""
        return rng.uniform(self.low, self.high, num_devices)


def true_channel(gain: Floats, phase: Floats, *, nmse: float, rng: np.random.Generator) -> Complexes:
    """Return h_k = ĥ_k + e_k, the channel as it is where ĥ_k = gain·e^{j·phase} is what the devices know of it.

    e is circularly symmetric Gaussian, and `nmse` is E|e|² over the mean of |ĥ|²; 0 for perfect knowledge.
    """
    known = gain * np.exp(1j * phase)
    spread = np.sqrt(0.5 * nmse * np.mean(np.square(gain)))
    real, imaginary = rng.normal(0.0, 1.0, (2, gain.size))
    return np.asarray(known + spread * (real + 1j * imaginary))


def checked_count(gains: NDArray[Any], num_devices: int, source: str) -> NDArray[Any]:
    """Return gains (..., N), or vectors (..., N, A), which are complex, if they are as many as there are devices."""
    if (count := gains.shape[-2 if np.iscomplexobj(gains) else -1]) != num_devices:
        raise ValueError(f"Expected {num_devices} gains (fleet.num_devices), got {count} from {source}.")
    return gains
