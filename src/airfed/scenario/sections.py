"""Tables of a scenario except [learning]: every key with its type, range, default and meaning."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self, Union

import numpy as np
from pydantic import BeforeValidator, Field, field_validator, model_validator

from airfed._usercode import UserCode, named
from airfed.channel import MODELS, ChannelModel
from airfed.channel.path_loss import BOLTZMANN, NOISE_TEMPERATURE, thermal_std
from airfed.keys import (
    Control,
    Count,
    Decibels,
    Fraction,
    Hertz,
    Joules,
    Kelvin,
    Key,
    NonNegative,
    Positive,
    Section,
    Watts,
    WattsPerHertz,
    amplitude,
)
from airfed.planning import Average
from airfed.policies import EVERY
from airfed.problem import Adjacency, Adversary, Beamforming, Budget, Formula, Link, Scope

if TYPE_CHECKING:
    Channel = ChannelModel
else:
    Channel = Annotated[Union[tuple(MODELS.values())], Field(discriminator="model")]  # noqa: UP007 - of a tuple


_POLICIES: Final = {
    name: ", ".join(sorted(policy.settings & {"size", "threshold", "objective"})) or name
    for name, policy in EVERY.items()
}
_EachWatts = Annotated[list[Watts], Field(min_length=1)]
_LIST: Final = "or a list with one value per device"
MOST_ANTENNAS: Final = 4096  # limited by the eigendecomposition of their Gram matrix
ANTENNAS: Final = ("antennas", "beamforming", "adversary")
"""Keys of [link] for several antennas."""

PHYSICS: Final = ("bandwidth", "noise_figure", "temperature", "noise_density")
"""Keys of [link] that determine the thermal noise, instead of `noise_std`."""


def own_policy(policy: str) -> UserCode | None:
    """Return the user code that a `policy.name` names; None for a built-in policy. Raise ValueError otherwise."""
    return named(policy, builtin=EVERY, key="policy.name")


class FleetSection(Section):
    """[fleet]: number of devices and their peak power.

    Set either `peak_power_per_symbol` P, the power of the radio, or `peak_power` P_k = S·P, summed over the symbols of
    an upload: S = ⌈d/2⌉ with link.iq, else d.
    """

    num_devices: Annotated[
        Count | None,
        Key("number of devices; default: length of the list of gains or peak powers", "N"),
        Control("Devices", 1, 5000, "count"),
    ] = None
    peak_power: Annotated[
        Watts | _EachWatts | None,
        Key("peak power of an upload, summed over its symbols", "P_k", "W", note=f'also "30 dBm", {_LIST}'),
        Control("Peak power of an upload", 0.01, 100.0),
    ] = None
    peak_power_per_symbol: Annotated[
        Watts | _EachWatts | None,
        Key("peak power of a symbol (of the radio), instead of peak_power", "P", "W", note=f'also "23 dBm", {_LIST}'),
        Control("Peak power of a symbol", 1e-4, 10.0),
    ] = None

    @property
    def power(self) -> Any:
        """The peak power that is set [W], one for all devices or one per device."""
        return self.peak_power_per_symbol if self.peak_power is None else self.peak_power

    def upload_power(self, symbols: int) -> Any:
        """Return P_k [W], one for all devices or one per device, for uploads of S symbols."""
        return np.multiply(self.power, symbols if self.peak_power is None else 1).tolist()

    @model_validator(mode="after")
    def _check_power(self) -> Self:
        if (self.peak_power is None) == (self.peak_power_per_symbol is None):
            got = "neither" if self.peak_power is None else "both"
            raise ValueError(
                f"Set fleet.peak_power (of an upload) or fleet.peak_power_per_symbol (of the radio); got {got}."
            )
        return self


class LinkSection(Section):
    """[link]: noise, antennas and adversary of the receiver.

    Set either `noise_std`, or `bandwidth` B for thermal noise of power s² = N₀·B·F watts, σ = s/√2 per real dimension.
    The noise density is N₀ = kT at `temperature` T, with Boltzmann's constant k = 1.380649e-23 J/K, or
    `noise_density`; F = 10^(noise_figure/10).
    """

    renamed: ClassVar = {
        "trust": "adversary",
        "combining": "beamforming",
        "adversary=radio": "all_antennas",
        "adversary=combiner": "combined",
        "beamforming=strongest_eigenvector": "dominant_eigenvector",
        "beamforming=sum": "equal_gain",
        "beamforming=one": "antenna_selection",
    }

    noise_std: Annotated[
        Positive | None,
        BeforeValidator(amplitude),
        Key(
            "standard deviation of the receiver noise per real dimension",
            "σ",
            "√W",
            note="complex noise of s² W has σ = s/√2",
        ),
        Control("Receiver noise", 0.01, 10.0),
    ] = None
    bandwidth: Annotated[
        Hertz | None,
        Key(
            "bandwidth, which determines the air time and, without noise_std, the noise σ² = N₀·B·F/2",
            "B",
            "Hz",
            note='also "20 MHz"',
        ),
    ] = None
    iq: Annotated[
        bool,
        Key("whether a complex symbol carries two entries of an update; false: one entry, twice the air time"),
    ] = Link.iq
    noise_std_lower: Annotated[
        Positive | None,
        BeforeValidator(amplitude),
        Key(
            "lower confidence limit of a measured σ; privacy counts with it, learning with σ",
            "",
            "√W",
            note="default: σ is known exactly",
        ),
    ] = Link.noise_std_lower
    noise_failure: Annotated[Fraction, Key("probability that σ is below noise_std_lower", note="it adds to δ")] = (
        Link.noise_failure
    )
    noise_covariance: Annotated[
        float | list[list[Any]] | None,
        Key(
            "covariance of the noise over antennas, divided by σ²: one correlation of any two antennas, or a matrix",
            "R",
            note='complex entries as "0.3+0.2j"; default: independent noise',
        ),
    ] = Link.noise_covariance
    noise_figure: Annotated[
        Decibels | None,
        Key("noise figure of the receiver", "F", "dB", note='also "9 dB"; default: 0'),
    ] = None
    temperature: Annotated[
        Kelvin | None,
        Key("noise temperature, N₀ = kT", "T", "K", note=f"default: {NOISE_TEMPERATURE:g}"),
    ] = None
    noise_density: Annotated[
        WattsPerHertz | None,
        Key("noise density, instead of temperature", "N₀", "W/Hz", note='also "-174 dBm/Hz"'),
    ] = None
    antennas: Annotated[
        Annotated[int, Field(ge=1, le=MOST_ANTENNAS)],
        Key("number of receive antennas", "A", note="above 1, a beamformer combines them"),
        Control("Antennas", 1, 64, "count"),
    ] = 1
    beamforming: Annotated[
        Beamforming,
        Key(
            "receive beamforming with several antennas",
            "f",
            choices={
                "optimal": "best beamformer of a search",
                "dominant_eigenvector": "dominant eigenvector of the channels",
                "equal_gain": "equal-gain combining",
                "antenna_selection": "best single antenna",
            },
        ),
        Control("Beamforming"),
    ] = Link.beamforming
    adversary: Annotated[
        Adversary,
        Key(
            "threat model: signals that the adversary observes",
            note="the same with one antenna",
            choices={"all_antennas": "every antenna", "combined": "only the combined signal"},
        ),
        Control("Adversary observes"),
    ] = Link.adversary
    noise_source: Annotated[
        Literal["seeded", "secure"],
        Key(
            "source of the receiver noise",
            choices={"seeded": "a reproducible simulation", "secure": "operating system, never stored"},
        ),
    ] = "seeded"

    @property
    def received_std(self) -> float:
        """σ [√W] per real dimension: `noise_std`, or that of thermal noise."""
        if self.noise_std is not None:
            return self.noise_std
        density = self.noise_density or BOLTZMANN * (self.temperature or NOISE_TEMPERATURE)
        return thermal_std(bandwidth=self.bandwidth or 0.0, noise_figure=self.noise_figure or 0.0, density=density)

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        physics = [key for key in PHYSICS if getattr(self, key) is not None and key != "bandwidth"]
        if self.noise_std is not None and physics:
            raise ValueError(f"Set link.noise_std or link.{physics[0]}, not both: the first follows from the second.")
        if self.noise_std is None and self.bandwidth is None:
            got = f"only link.{physics[0]}" if physics else "neither"
            raise ValueError(f"Set link.noise_std, a number > 0, or link.bandwidth, from which it follows; got {got}.")
        if self.temperature is not None and self.noise_density is not None:
            raise ValueError("Set link.temperature or link.noise_density, not both: the noise density is kT.")
        if self.noise_std_lower is None and self.noise_failure != Link.noise_failure:
            raise ValueError("link.noise_failure must not be set without link.noise_std_lower.")
        if self.noise_covariance is not None and self.antennas == 1:
            raise ValueError("link.noise_covariance must not be set with link.antennas = 1: it needs several antennas.")
        Link(noise_std=self.received_std, noise_std_lower=self.noise_std_lower, noise_covariance=self.shared_noise)
        return self

    @property
    def shared_noise(self) -> Any:
        """R as a number or a matrix; raise ValueError if an entry is no number."""
        if not isinstance(self.noise_covariance, list):
            return self.noise_covariance
        if len({len(row) for row in self.noise_covariance}) > 1:
            raise ValueError("link.noise_covariance must be a matrix: its rows must have the same number of entries.")
        return [[_complex(entry) for entry in row] for row in self.noise_covariance]


def _complex(entry: Any) -> complex:
    """Return an entry of R; raise ValueError if it is no number."""
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(entry, bool):
            return complex(entry)
    raise ValueError(
        f'link.noise_covariance must be numbers, or texts such as "0.3+0.2j" for complex ones, got {entry!r}.'
    )


class BudgetSection(Section):
    """[budget]: privacy budget and power budget."""

    renamed: ClassVar = {"relation": "adjacency", "account": "shared_ledger", "adjacency=replace": "replace_one"}
    removed: ClassVar = {"power": "total_power always counts the worst case, all updates at the clipping norm"}

    epsilon: Annotated[
        Positive, Key("privacy budget ε of (ε, δ)-differential privacy", "ε"), Control("Privacy budget", 0.05, 50.0)
    ]
    delta: Annotated[
        Fraction,
        Key("privacy budget δ of (ε, δ)-differential privacy (ξ in the paper)", "δ"),
        Control("Failure probability", 1e-9, 0.1),
    ]
    total_power: Annotated[
        Watts,
        Key("total transmit power, summed over all devices and rounds", "P_tot", "W"),
        Control("Total power", 1.0, 1e5),
    ]
    scope: Annotated[
        Scope, Key("scope of (ε, δ)", choices={"round": "each round", "total": "whole training"}), Control("Scope of ε")
    ] = Budget.scope
    formula: Annotated[
        Formula,
        Key(
            "formula for ε of the Gaussian mechanism",
            note='classic needs scope = "round"',
            choices={"exact": "exact", "classic": "Lemma 1"},
        ),
        Control("Formula"),
    ] = Budget.formula
    adjacency: Annotated[
        Adjacency,
        Key(
            "adjacency of device-level differential privacy",
            choices={"replace_one": "replace one device's data", "add_remove": "add or remove one device"},
        ),
        Control("Adjacency"),
    ] = Budget.adjacency
    device_power: Annotated[
        Watts | _EachWatts | None,
        Key(
            "transmit power per device, summed over its rounds (battery)",
            unit="W",
            note=f'also "30 dBm", {_LIST}; default: no limit',
        ),
        Control("Power per device", 0.01, 1000.0, open=True),
    ] = None
    device_energy: Annotated[
        Joules | Annotated[list[Joules], Field(min_length=1)] | None,
        Key(
            "transmit energy per device over all rounds (battery), instead of device_power; needs link.bandwidth",
            unit="J",
            note=f'also "3 mJ", {_LIST}; default: no limit',
        ),
    ] = None
    air_time: Annotated[
        Positive | None,
        Key("air time of all rounds; default: no limit", unit="s", note="needs link.bandwidth"),
    ] = None
    shared_ledger: Annotated[
        str | None, Key('ledger shared by all runs on the same data; needs scope = "total"', file=True)
    ] = None

    def build(self, *, spent: float = 0.0, bandwidth: float | None = None) -> Budget:
        """Return the budget; `spent` is the μ that a shared ledger has already spent."""
        values = self.model_dump(exclude={"shared_ledger", "device_energy"})
        if self.device_energy is not None and bandwidth is not None:  # a symbol of p W has p/B joules
            values["device_power"] = np.multiply(self.device_energy, bandwidth).tolist()
        return Budget(**values, spent=spent)

    @model_validator(mode="after")
    def _check_scope(self) -> Self:
        self.build()
        if self.device_power is not None and self.device_energy is not None:
            raise ValueError("Set budget.device_power or budget.device_energy, not both: each is a battery.")
        if self.shared_ledger is not None and self.scope != "total":
            raise ValueError(
                'budget.scope must be "total" with budget.shared_ledger, which composes several runs; got "round".'
            )
        return self


class PolicySection(Section):
    """[policy]: policy that makes the plan."""

    removed: ClassVar = {
        "growth": "the alignment no longer grows over the rounds",
        "clip_decay": "the clipping norm no longer decays over the rounds",
    }

    renamed: ClassVar = {"response": "surrogate", "objective=measured": "accuracy"}

    name: Annotated[
        str, Key('policy or baseline: your own "module:callable", or built in', choices=_POLICIES), Control("Policy")
    ] = "optimal"
    rounds: Annotated[
        Count | None,
        Key("number of rounds", "I", note="default: optimised"),
        Control("Rounds, fixed", 1, 2000, "count"),
    ] = None
    clip_norm: Annotated[
        Positive | None,
        Key('clipping norm with objective = "accuracy"', "ϖ", note="default: optimised"),
        Control("Clip norm, fixed", 0.1, 20.0),
    ] = None
    size: Annotated[
        Count | None, Key("number of scheduled devices", "|K|"), Control("Scheduled devices", 1, 5000, "count")
    ] = None
    threshold: Annotated[
        NonNegative | None,
        Key("smallest gain of a scheduled device"),
        Control("Smallest scheduled gain", 0.0, 2.0, "linear"),
    ] = None
    objective: Annotated[
        Literal["bound", "accuracy"] | None,
        Key(
            "objective of the plan; the accuracy is that of the surrogate, and optimises clip_norm and average too",
            choices={"bound": "convergence bound", "accuracy": "accuracy"},
            note="default: accuracy if a surrogate fits, and bound if none does or rounds may differ",
        ),
        Control("Objective"),
    ] = None
    average: Annotated[
        Average | None,
        Key(
            "average of the models over rounds at the receiver",
            choices={"none": "none", "tail": "second half of the rounds", "exponential": "exponential moving average"},
            note='default: none, or the surrogate\'s choice with objective = "accuracy"',
        ),
    ] = None
    surrogate: Annotated[
        str | None,
        Key(
            "accuracy surrogate: a file of airfed pilot, or the name of one in the package",
            note="default: one in the package that fits",
            file=True,
        ),
    ] = None
    options: Annotated[
        dict[str, bool | int | float | str] | None,
        Key("options of your own policy or a baseline, by name: {fraction = 0.5}"),
    ] = None

    @field_validator("options", mode="before")
    @classmethod
    def _check_options(cls, options: Any) -> Any:
        for name, value in options.items() if isinstance(options, dict) else ():
            if not isinstance(value, bool | int | float | str) or value != value:
                raise ValueError(f"policy.options.{name} must be a number, a text, true or false, got {value!r:.60}.")
        return options

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if own_policy(self.name) is None and self.options and not EVERY[self.name].baseline:
            raise ValueError(
                f"policy.options must not be set with policy {self.name!r}, only with your own or a baseline."
            )
        return self


class RunSection(Section):
    """[run]: computation and recording; these keys change results only by rounding."""

    renamed: ClassVar = {"patience": "process_timeout"}

    engine: Annotated[
        Literal["auto", "torch", "fused"],
        Key("training engine", choices={"auto": "fastest that fits", "torch": "any model", "fused": "networks"}),
    ] = "auto"
    device: Annotated[str, Key("device of the torch engine: auto, cpu, cuda, cuda:1, mps")] = "auto"
    threads: Annotated[Count | None, Key("training threads; default: one per processor")] = None
    chunk: Annotated[Count, Key("devices trained at a time, which bounds the memory")] = 32
    evaluate_every: Annotated[Count, Key("rounds between evaluations on the test data")] = 1
    checkpoint_every: Annotated[Count, Key("rounds between checkpoints")] = 1
    record: Annotated[
        Literal["full", "private"],
        Key(
            "content of the records",
            choices={"full": "everything", "private": "nothing that depends on the devices' data without noise"},
        ),
    ] = "full"
    averages: Annotated[
        Literal["chosen", "all"],
        Key(
            "model averages that are kept and evaluated",
            choices={"chosen": "that of the policy", "all": "all, for comparison"},
        ),
    ] = "chosen"
    log: Annotated[
        list[Literal["tensorboard"]],
        Key(
            "additional loggers",
            choices={"tensorboard": "events in the folder tensorboard of the run; needs airfed[track]"},
        ),
    ] = Field(default=[])
    process_timeout: Annotated[
        Positive, Key("time without a message after which another process counts as lost", unit="s")
    ] = 50.0

    @model_validator(mode="after")
    def _check_device(self) -> Self:
        if re.fullmatch(r"[a-z]+(:\d{1,3})?", self.device) is None:
            raise ValueError(
                f"run.device must be auto, cpu, cuda, cuda:1, mps or another torch device; got {self.device!r}."
            )
        return self
