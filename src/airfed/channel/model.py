"""Channel models: each is a [channel] table of a scenario and draws gains.

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
from airfed.channel.fading_process import ConditionalSampler, FadingProcess
from airfed.keys import Control, Count, Fraction, Key, NonNegative, Positive, Section, Spread, control_of
from airfed.problem import Link

_MAX_GAINS: Final = 2**28  # over all rounds: 2 GiB
_KEYS_OF: Final[dict[str, str]] = {}
MODELS: Final[dict[str, type[ChannelModel]]] = {}
"""Channel model by its name in scenarios; classes with a default for `model` register themselves."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FadingState:
    """Factors of the gains of a round: |h_k| = path_gain_k · shadowing_k · small_scale_k · common_shadowing."""

    small_scale: Floats  # modulus of the small-scale fading, (N,), or (samples, N)
    path_gain: Floats | float = 1.0  # scale and path loss
    shadowing: Floats | float = 1.0  # per device, 10^(X_k/20)
    common_shadowing: Floats | float = 1.0  # shared by all devices, 10^(Y/20), or (samples, 1)
    scattered: Complexes | None = None  # complex amplitude of the scattered paths; None if only the modulus was drawn
    white: Complexes | None = None  # CN(0, 1) entries of the vectors of several antennas, (..., N, A)

    @property
    def gain(self) -> Floats:
        """|h_k|, (N,) or (samples, N)."""
        return np.asarray(self.path_gain * self.shadowing * self.small_scale * self.common_shadowing)

    def vectors(self, array: Array, paths: tuple[float, float] | None) -> Complexes:
        """Return h_k ∈ C^A, (..., N, A); without `paths`, `small_scale` is the modulus at every antenna."""
        assert self.white is not None
        if paths is None:
            return self.gain[..., None] * array.directions(self.white)
        large_scale = np.asarray(self.path_gain * self.shadowing * self.common_shadowing)
        return large_scale[..., None] * array.small_scale(self.white, paths)


class ChannelModel(Section, ABC):
    """Draw the gains of a fleet.

    A subclass declares its own keys and `magnitudes`; all models share the keys here. With
    `model: Literal["mine"] = "mine"` scenarios, template, reference and explorer know it by that name, if it is defined
    before `airfed.scenario` is imported. Block fading calls `magnitudes` for each block. A model with constant or
    correlated components also overrides `initial_state` and `next_block`.
    """

    unsupported: ClassVar[Mapping[str, str]] = {"correlation": "its gains have no complex amplitudes"}
    """Shared keys that this model does not support -> reason."""

    renamed: ClassVar = {
        "estimation_error": "csi_error",
        "estimation_failure": "csi_failure",
        "trust_estimates": "assume_perfect_csi",
        "coherence": "coherence_rounds",
        "shadowing_coherence": "shadowing_coherence_rounds",
        "loss": "path_loss_model",
    }

    minimum: Annotated[
        NonNegative,
        Key("smallest gain in the cell", "h_min", note="smaller gains are raised to it"),
        Control("Minimum gain", 0.0, 1.0, "linear"),
    ] = 0.0
    pin_minimum: Annotated[
        bool,
        Key(
            "set the weakest gain to exactly minimum, as in the paper's figures",
            choices={True: "exactly h_min", False: "as drawn"},
        ),
        Control("Weakest device"),
    ] = False
    csi_error: Annotated[
        NonNegative,
        Key("normalised mean square error (NMSE) of the devices' CSI", note="the privacy accounting includes it"),
        Control("CSI error (NMSE)", 0.0, 0.2, "linear"),
    ] = Link.csi_error
    csi_failure: Annotated[
        Fraction, Key("probability that any received amplitude exceeds the accounted one because of CSI error", "β")
    ] = Link.csi_failure
    assume_perfect_csi: Annotated[
        bool, Key("plan and account as if the CSI were perfect; with CSI error the privacy guarantee does not hold")
    ] = Link.assume_perfect_csi
    coherence_rounds: Annotated[
        Count | None,
        Key("coherence time of the fading, in rounds", note="default: constant over the run"),
        Control("Coherence time of fading", 1, 100, "count", open=True),
    ] = None
    correlation: Annotated[
        float,
        Field(ge=0, lt=1),
        Key("correlation of the scattered paths' complex amplitude between consecutive fading blocks"),
        Control("Correlation of blocks", 0.0, 0.99, "linear"),
    ] = 0.0
    common_shadowing_db: Annotated[
        Spread,
        Key("standard deviation of log-normal shadowing common to all devices", unit="dB"),
        Control("Common shadowing", 0.0, 12.0, "linear"),
    ] = 0.0
    shadowing_coherence_rounds: Annotated[
        Count | None,
        Key("coherence time of all shadowing, in rounds", note="default: constant over the run"),
        Control("Coherence time of shadowing", 1, 100, "count", open=True),
    ] = None
    angle_spread: Annotated[
        float | None,
        Field(ge=0, le=180),
        Key(
            "with several antennas: standard deviation of the scattered paths' angles around a device's angle of "
            "arrival at a uniform linear array",
            unit="°",
            note="default: independent antennas",
        ),
        Control("Angle spread", 1.0, 60.0, open=True),
    ] = None
    sector: Annotated[
        float,
        Field(ge=0, le=180),
        Key("width of the sector around broadside from which angles of arrival are drawn", unit="°"),
        Control("Sector", 0.0, 180.0, "linear"),
    ] = 120.0
    antenna_spacing: Annotated[
        Positive, Key("distance between adjacent antennas", unit="wavelengths"), Control("Antenna spacing", 0.1, 10.0)
    ] = 0.5
    model: Annotated[str, Key("channel model, with its own keys", choices=_KEYS_OF), Control("Channel model")]
    _antennas: int = PrivateAttr(default=1)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Register the model under its name."""
        if not (field := cls.model_fields["model"]).is_required():
            MODELS[field.default] = cls
            _KEYS_OF[field.default] = ", ".join(cls._own_keys())

    @classmethod
    def _own_keys(cls) -> list[str]:
        return [key for key in cls.model_fields if key not in ChannelModel.model_fields]

    @classmethod
    def initial_values(cls) -> dict[str, Any]:
        """Return the model's own keys with their initial values on the explorer page, if they have one."""
        values = {}
        for key in cls._own_keys():
            control = control_of(info := cls.model_fields[key])
            values[key] = info.default if control is None or control.start is None else control.start
        return {key: value for key, value in values.items() if value is not None}

    @property
    def num_gains(self) -> int | None:
        """Number of given gains; None if the model draws any number."""
        return None

    @property
    def time_varying(self) -> bool:
        """Whether gains vary from round to round."""
        return self.coherence_rounds is not None or self.shadowing_coherence_rounds is not None

    @property
    def device_shadowing_db(self) -> float:
        """Standard deviation of the shadowing per device, in dB."""
        return float(getattr(self, "shadowing_db", 0.0))

    @property
    def paths(self) -> tuple[float, float] | None:
        """Amplitude of the direct path and standard deviation per real dimension of the scattered paths, if any."""
        return None

    def with_antennas(self, antennas: int, folder: Path = Path()) -> Self:
        """Return the model for a number of antennas: above 1, `trace` and `samples` return vectors.

        Paths in it are relative to `folder`.
        """
        copy = self.model_copy(update={key: str(folder / getattr(self, key)) for key in self.file_keys()})
        copy._antennas = antennas
        return copy

    def draw(self, num_devices: int, rng: np.random.Generator) -> Floats:
        """Return one gain |h_k| per device, at least `minimum`, in the first round."""
        return self.apply_minimum(self._first_state(num_devices, rng).gain)

    def trace(self, *, rounds: int, num_devices: int, seed: int) -> Floats | Complexes:
        """Return |h_k^i|, (rounds, N), with the first row of `draw`; (N,) if the gains are constant.

        With several antennas, return the complex vectors h_k^i, (rounds, N, A) or (N, A).
        """
        if self._antennas == 1 and not self.time_varying:
            return self.draw(num_devices, seeds.stream(seed, "channel"))
        self._check_size(rounds if self.time_varying else 1, num_devices)
        process = self.process(num_devices, seed)
        if not self.time_varying:
            return process.current
        gains = self.empty(rounds, num_devices)
        gains[0] = process.current
        process.fill(gains[1:], 1)
        return gains

    def empty(self, *shape: int) -> Floats | Complexes:
        """Return an uninitialised array for gains of this shape, or for vectors."""
        return np.empty(shape) if self._antennas == 1 else np.empty((*shape, self._antennas), dtype=np.complex128)

    def samples(
        self, *, rounds: int, num_devices: int, seed: int
    ) -> Floats | Complexes | Callable[[Any], Floats | Complexes] | None:
        """Return Monte Carlo samples of the gains, (samples, rounds, N); None if the gains are constant.

        If rounds are dependent, return a conditional sampler: a function from the gains so far, (i, N), to samples of
        the remaining rounds, (samples, rounds − i, N). With several antennas there is one more axis of length A.
        """
        if not self.time_varying:
            return None
        sampler = ConditionalSampler(self, rounds=rounds, num_devices=num_devices, seed=seed)
        shadowed = self.device_shadowing_db or self.common_shadowing_db
        dependent = (
            self.correlation
            or (self.coherence_rounds or 1) > 1
            or (shadowed and (self.shadowing_coherence_rounds or 1) > 1)
        )
        return sampler if dependent else sampler(np.empty((0, num_devices)))

    def process(self, num_devices: int, seed: int) -> FadingProcess:
        """Return the fading process of the seed, in its first round."""
        first = self._first_state(num_devices, seeds.stream(seed, "channel"))
        process = FadingProcess(self, first, (num_devices,), arrays.generators(3, seed, "fading"))
        if self._antennas > 1:
            layout: dict[str, Any] = {
                "sector": self.sector,
                "spacing": self.antenna_spacing,
                "spread": self.angle_spread,
            }
            array = Array.draw(number=self._antennas, num_devices=num_devices, seed=seed, **layout)
            process.attach(array, arrays.generators(self._antennas, seed, "array", 1))
        return process

    @abstractmethod
    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> Floats:
        """Return |h_k|, (N,), before `minimum` is applied."""

    def initial_state(self, num_devices: int, rng: np.random.Generator) -> FadingState:
        """Return the state of the first round, without the common shadowing."""
        return FadingState(small_scale=self.magnitudes(num_devices, rng))

    def next_block(
        self, state: FadingState, shape: tuple[int, ...], rng: np.random.Generator, correlation: float
    ) -> FadingState:
        """Return the state with the fading of the next block; `shape` is (N,), or (samples, N).

        `correlation` is that of the scattered paths with the block before; 0 if there is none.
        """
        *draws, num_devices = shape
        small_scale = [self.magnitudes(num_devices, rng) for _ in range(int(np.prod(draws)))]
        return replace(state, small_scale=np.reshape(small_scale, shape))

    def apply_minimum(self, gains: Floats) -> Floats:
        """Return the gains, (..., N), with smaller ones raised to `minimum` (h_min)."""
        raised = np.maximum(gains, self.minimum)
        if self.pin_minimum:
            np.put_along_axis(raised, np.argmin(gains, axis=-1, keepdims=True), self.minimum, axis=-1)
        return raised

    def apply_minimum_to_vectors(self, vectors: Complexes) -> Complexes:
        """Return the vectors, (..., N, A), with ‖h_k‖/√A raised to `minimum`."""
        return arrays.scale_vectors(vectors, self.apply_minimum(arrays.rms(vectors))) if self.minimum else vectors

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        self.model_fields_set.add("model")  # a dump without defaults keeps the name
        if self.pin_minimum and self.minimum == 0:
            raise ValueError("channel.minimum must be positive with channel.pin_minimum = true, got 0.")
        for key, reason in self.unsupported.items():
            if getattr(self, key) != ChannelModel.model_fields[key].default:
                raise ValueError(f'channel.{key} must not be set with channel.model = "{self.model}": {reason}.')
        if self.correlation and self.coherence_rounds is None:
            raise ValueError(
                f"channel.coherence_rounds must be set with channel.correlation={self.correlation!r}: "
                "without it, the fading is constant over the run."
            )
        return self

    def _check_size(self, rounds: int, num_devices: int) -> None:
        """Raise if the gains do not fit into memory; a complex number counts twice, and so do covariances."""
        number = self._antennas
        each = rounds if self.angle_spread is None else max(rounds, number)
        if each * num_devices * (1 if number == 1 else 2 * number) <= _MAX_GAINS:
            return
        limit = "2**28 gains" if number == 1 else "2**27 complex gains"
        raise ValueError(
            f"All rounds together must have at most {limit}, got {rounds} rounds of {num_devices} devices at {number} "
            "antennas. Reduce policy.rounds, fleet.num_devices or link.antennas."
        )

    def _first_state(self, num_devices: int, rng: np.random.Generator) -> FadingState:
        """Return the state of the first round; the common shadowing is drawn last."""
        state = self.initial_state(num_devices, rng)
        if not self.common_shadowing_db:
            return state
        return replace(state, common_shadowing=10.0 ** (rng.normal(0.0, self.common_shadowing_db) / 20.0))


_Scale = Annotated[Positive, Key("root mean square of the gain", "rms |h|"), Control("Scale", 0.01, 10.0)]


class Fixed(ChannelModel):
    """Given gains: `gains[k]` is the gain of device k."""

    unsupported: ClassVar = dict.fromkeys(("coherence_rounds", "correlation"), "its gains are given")
    model: Literal["fixed"] = "fixed"
    gains: Annotated[
        list[NonNegative],
        Field(min_length=1),
        Key("gains, one per device", "|h|"),
        Control("Gains", start=[0.2, 0.5, 0.8, 1.1, 1.6]),
    ]

    @property
    def num_gains(self) -> int:
        """Number of given gains."""
        return len(self.gains)

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> Floats:
        """Return the given gains."""
        return check_count(np.array(self.gains, np.float64), num_devices, "channel.gains")


class Fading(ChannelModel):
    """Block fading of a direct path and scattered paths, whose amplitude evolves as h' = ρ·h + √(1−ρ²)·w.

    A subclass declares `initial_state`, and `k_factor` if there is a direct path.
    """

    unsupported: ClassVar = {}

    @property
    def paths(self) -> tuple[float, float]:
        """Amplitude of the direct path and standard deviation per real dimension of the scattered paths, at rms 1."""
        factor = getattr(self, "k_factor", 0.0)
        return float(np.sqrt(factor / (factor + 1))), float(np.sqrt(0.5 / (factor + 1)))

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> Floats:
        """Return independent gains."""
        return self.initial_state(num_devices, rng).gain

    def next_block(
        self, state: FadingState, shape: tuple[int, ...], rng: np.random.Generator, correlation: float
    ) -> FadingState:
        """Return the state with the scattered paths of the next block."""
        direct, spread = self.paths
        *draws, num_devices = shape
        scattered = spread * rng.standard_normal((*draws, 2 * num_devices)).view(np.complex128)
        if correlation:
            # if only the modulus was drawn, there is no direct path, and any phase gives the same distribution of gains
            before = state.small_scale if state.scattered is None else state.scattered
            scattered = correlation * before + np.sqrt(1 - correlation**2) * scattered
        return replace(state, small_scale=np.abs(direct + scattered), scattered=scattered)


class Rayleigh(Fading):
    """Rayleigh fading, h ~ CN(0, scale²): no line of sight."""

    model: Literal["rayleigh"] = "rayleigh"
    scale: _Scale = 1.0

    def initial_state(self, num_devices: int, rng: np.random.Generator) -> FadingState:
        """Return independent Rayleigh gains."""
        return FadingState(path_gain=self.scale, small_scale=rng.rayleigh(np.sqrt(0.5), num_devices))


class Rician(Fading):
    """Rician fading: a direct path (line of sight) and scattered paths."""

    model: Literal["rician"] = "rician"
    scale: _Scale = 1.0
    k_factor: Annotated[
        NonNegative,
        Key("power ratio of the direct path to the scattered paths (Rician K-factor)", "K"),
        Control("Rician K-factor", 0.0, 20.0, "linear", start=3.0),
    ] = 1.0

    def initial_state(self, num_devices: int, rng: np.random.Generator) -> FadingState:
        """Return independent Rician gains."""
        direct, spread = self.paths
        real, imaginary = rng.normal(0.0, spread, (2, num_devices))
        return FadingState(
            path_gain=self.scale,
            small_scale=np.hypot(direct + real, imaginary),
            scattered=np.asarray(real + 1j * imaginary),
        )


class Uniform(ChannelModel):
    """Gains uniformly distributed between `low` and `high`."""

    model: Literal["uniform"] = "uniform"
    low: Annotated[NonNegative, Key("smallest gain"), Control("Smallest gain", 0.0, 2.0, "linear", start=0.1)]
    high: Annotated[Positive, Key("largest gain"), Control("Largest gain", 0.05, 5.0, start=2.0)]

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"channel.low must be at most channel.high={self.high!r}, got {self.low!r}.")
        return self

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> Floats:
        """Return independent uniform gains."""
        return rng.uniform(self.low, self.high, num_devices)


def true_channel(gain: Floats, phase: Floats, *, nmse: float, rng: np.random.Generator) -> Complexes:
    """Return the true channel h_k = ĥ_k + e_k, given the devices' CSI ĥ_k = gain·e^{j·phase}.

    e is circularly symmetric Gaussian, and `nmse` is E|e|² over the mean of |ĥ|²; 0 for perfect CSI.
    """
    estimate = gain * np.exp(1j * phase)
    spread = np.sqrt(0.5 * nmse * np.mean(np.square(gain)))
    real, imaginary = rng.normal(0.0, 1.0, (2, gain.size))
    return np.asarray(estimate + spread * (real + 1j * imaginary))


def check_count(gains: NDArray[Any], num_devices: int, source: str) -> NDArray[Any]:
    """Return gains (..., N), or complex vectors (..., N, A), if there is one per device."""
    if (count := gains.shape[-2 if np.iscomplexobj(gains) else -1]) != num_devices:
        raise ValueError(f"{source} must have {num_devices} gains (fleet.num_devices), got {count}.")
    return gains
