"""The tables of a scenario, less [learning]: every key with its type, range, default and meaning."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self, Union

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
from airfed.problem import Budget, Combining, Formula, Link, Relation, Scope, Trust

if TYPE_CHECKING:
    Channel = ChannelModel
else:
    Channel = Annotated[Union[tuple(MODELS.values())], Field(discriminator="model")]  # noqa: UP007 - of a tuple


_POLICIES: Final = {
    name: ", ".join(sorted(policy.settings & {"size", "threshold", "objective"})) or name
    for name, policy in EVERY.items()
}
MOST_ANTENNAS: Final = 4096  # their Gram matrix is held, and its eigenvectors are looked for
ANTENNAS: Final = ("antennas", "combining", "trust")
"""Keys of [link] about several antennas."""

PHYSICS: Final = ("bandwidth", "noise_figure", "temperature", "noise_density")
"""Keys of [link] that stand in place of `noise_std`."""


def own_policy(policy: str) -> UserCode | None:
    """Return the code of a `policy.name`; None for a built-in policy, and a ValueError for another text."""
    return named(policy, builtin=EVERY, key="policy.name")


class FleetSection(Section):
    """[fleet]: how many devices, and their peak power."""

    num_devices: Annotated[
        Count | None,
        Key("number of devices, unless a list of gains or peak powers tells", "N"),
        Control("Devices", 1, 5000, "count"),
    ] = None
    peak_power: Annotated[
        Watts | Annotated[list[Watts], Field(min_length=1)],
        Key("largest transmit power", "P_k", "W", note='also "30 dBm", or a list with one per device'),
        Control("Peak power", 0.01, 100.0),
    ]


class LinkSection(Section):
    """[link]: the receiver, by its noise or by the physics that make it.

    Either `noise_std` is written down, or `bandwidth` B alone: then the noise is thermal, of power s² = N₀·B·F watts,
    and σ = s/√2 per real dimension. N₀ = kT is the density of the noise at `temperature` T, with Boltzmann's constant k
    = 1.380649e-23 J/K, or `noise_density` itself; F = 10^(noise_figure/10).
    """

    noise_std: Annotated[
        Positive | None,
        BeforeValidator(amplitude),
        Key("receiver noise", "σ", "√W", note="per real dimension: complex noise of s² W has σ = s/√2"),
        Control("Receiver noise", 0.01, 10.0),
    ] = None
    bandwidth: Annotated[
        Hertz | None,
        Key(
            "bandwidth, for seconds on the air; in place of noise_std, too",
            "B",
            "Hz",
            note='also "20 MHz"; without noise_std σ² = N₀·B·F/2 follows from it',
        ),
    ] = None
    noise_figure: Annotated[
        Decibels | None,
        Key("noise that the receiver adds to that of its bandwidth", "F", "dB", note='also "9 dB"; 0 unless written'),
    ] = None
    temperature: Annotated[
        Kelvin | None,
        Key("temperature of the noise, N₀ = kT", "T", "K", note=f"{NOISE_TEMPERATURE:g} unless written down"),
    ] = None
    noise_density: Annotated[
        WattsPerHertz | None,
        Key("density of the noise, in place of temperature", "N₀", "W/Hz", note='also "-174 dBm/Hz"'),
    ] = None
    antennas: Annotated[
        Annotated[int, Field(ge=1, le=MOST_ANTENNAS)],
        Key("antennas of the receiver", "A", note="channels are vectors, which a combiner makes one signal of"),
        Control("Antennas", 1, 64, "count"),
    ] = 1
    combining: Annotated[
        Combining,
        Key(
            "how a plan chooses the combiner of several antennas",
            "f",
            choices={
                "optimal": "the best that a search finds",
                "strongest_eigenvector": "the strongest eigenvector of the channels",
                "sum": "all antennas alike",
                "one": "the best antenna alone",
            },
        ),
        Control("Combining"),
    ] = Link.combining
    trust: Annotated[
        Trust,
        Key(
            "whom privacy is claimed against",
            note="with one antenna they are the same",
            choices={"radio": "who sees every antenna", "combiner": "who sees one combined signal"},
        ),
        Control("Privacy against"),
    ] = Link.trust
    noise_source: Annotated[
        Literal["seeded", "secure"],
        Key(
            "where the noise comes from",
            choices={
                "seeded": "the seed: a simulation that can be repeated",
                "secure": "the operating system, kept nowhere",
            },
        ),
    ] = "seeded"

    @property
    def received_std(self) -> float:
        """σ [√W] per real dimension: `noise_std`, or what the physics make of it."""
        if self.noise_std is not None:
            return self.noise_std
        density = self.noise_density or BOLTZMANN * (self.temperature or NOISE_TEMPERATURE)
        return thermal_std(bandwidth=self.bandwidth or 0.0, noise_figure=self.noise_figure or 0.0, density=density)

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        physics = [key for key in PHYSICS if getattr(self, key) is not None and key != "bandwidth"]
        if self.noise_std is not None and physics:
            raise ValueError(f"Expected link.noise_std or link.{physics[0]}, from which it follows; got both.")
        if self.noise_std is None and self.bandwidth is None:
            got = f"link.{physics[0]} alone" if physics else "neither"
            raise ValueError(
                f"Expected link.noise_std, a number > 0, or link.bandwidth, from which it follows; got {got}."
            )
        if self.temperature is not None and self.noise_density is not None:
            raise ValueError("Expected link.temperature or link.noise_density, which is kT; got both.")
        if self.noise_std is None:
            Link(noise_std=self.received_std)
        return self


class BudgetSection(Section):
    """[budget]: what may be spent."""

    removed: ClassVar = {"power": "total_power always counts the worst case, every device at the clip norm"}

    epsilon: Annotated[Positive, Key("privacy loss allowed", "ε"), Control("Privacy loss", 0.05, 50.0)]
    delta: Annotated[
        Fraction,
        Key("probability with which ε may be exceeded (ξ in the paper)", "δ"),
        Control("Failure probability", 1e-9, 0.1),
    ]
    total_power: Annotated[
        Watts,
        Key("transmit power that may be spent", "P_tot", "W", note="summed over all devices and rounds"),
        Control("Total power", 1.0, 1e5),
    ]
    scope: Annotated[
        Scope, Key("what (ε, δ) covers", choices={"round": "each round", "total": "the training"}), Control("ε covers")
    ] = Budget.scope
    formula: Annotated[
        Formula,
        Key(
            "how ε is computed",
            note="Lemma 1 speaks of one round only",
            choices={"exact": "exact", "classic": "Lemma 1"},
        ),
        Control("Formula"),
    ] = Budget.formula
    relation: Annotated[
        Relation,
        Key("what neighbouring fleets differ in", choices={"replace": "one's data", "add_remove": "one device"}),
        Control("Neighbours differ in"),
    ] = Budget.relation
    device_power: Annotated[
        Watts | Annotated[list[Watts], Field(min_length=1)] | None,
        Key(
            "battery: transmit power that a device may spend, summed over its rounds",
            unit="W",
            note='also "30 dBm", or a list with one per device; no limit but the total unless written down',
        ),
        Control("Battery of a device", 0.01, 1000.0, open=True),
    ] = None
    air_time: Annotated[
        Positive | None,
        Key(
            "time that all rounds may take on the air; no limit unless written down",
            unit="s",
            note="needs link.bandwidth",
        ),
    ] = None
    account: Annotated[
        str | None, Key('with scope = "total": a ledger that all trainings on the same data charge', file=True)
    ] = None

    def build(self, *, spent: float = 0.0) -> Budget:
        """Return the budget, of which an account may have spent μ already."""
        return Budget(**self.model_dump(exclude={"account"}), spent=spent)

    @model_validator(mode="after")
    def _check_scope(self) -> Self:
        self.build()
        if self.account is not None and self.scope != "total":
            raise ValueError(
                'Expected budget.scope = "total" with budget.account: an account counts what several trainings '
                "spend in total."
            )
        return self


class PolicySection(Section):
    """[policy]: who decides."""

    removed: ClassVar = {
        "growth": "the alignment no longer grows over the rounds by a given ratio",
        "clip_decay": "the clip norm no longer falls over the rounds by a given ratio",
    }

    name: Annotated[
        str, Key('who decides; your own "module:callable", or built in', choices=_POLICIES), Control("Who decides")
    ] = "optimal"
    rounds: Annotated[
        Count | None,
        Key("number of rounds", "I", note="the best one unless written down"),
        Control("Rounds, fixed", 1, 2000, "count"),
    ] = None
    clip_norm: Annotated[
        Positive | None,
        Key("clipping norm of a plan by measurement", "ϖ", note="the best one unless written down"),
        Control("Clip norm, fixed", 0.1, 20.0),
    ] = None
    size: Annotated[
        Count | None, Key("devices to schedule", "|K|"), Control("Devices to schedule", 1, 5000, "count")
    ] = None
    threshold: Annotated[
        NonNegative | None, Key("smallest gain to schedule"), Control("Smallest gain to schedule", 0.0, 2.0, "linear")
    ] = None
    objective: Annotated[
        Literal["bound", "measured"],
        Key(
            "what is best",
            choices={"bound": "the bound", "measured": "accuracy"},
            note="accuracy is what a response expects, and chooses clip_norm and average, too",
        ),
        Control("What is best"),
    ] = "bound"
    average: Annotated[
        Average | None,
        Key(
            "models that the receiver averages",
            choices={"none": "none", "tail": "the second half", "exponential": "all, the newer the more"},
            note="unless written down none, or what a response is for",
        ),
    ] = None
    response: Annotated[
        str | None,
        Key(
            "of airfed measure: what training gives, measured once; a file, or the name of one that airfed comes with",
            note="the fitting one of those, unless written down",
            file=True,
        ),
    ] = None
    options: Annotated[
        dict[str, bool | int | float | str] | None,
        Key("what else your own policy, or a rival, takes, by name: {share = 0.5}"),
    ] = None

    @field_validator("options", mode="before")
    @classmethod
    def _check_options(cls, options: Any) -> Any:
        for name, value in options.items() if isinstance(options, dict) else ():
            if not isinstance(value, bool | int | float | str) or value != value:
                raise ValueError(
                    f"Expected policy.options.{name} to be a number, a text or true or false, got {value!r:.60}."
                )
        return options

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if own_policy(self.name) is None and self.options and not EVERY[self.name].baseline:
            raise ValueError(f"Expected no policy.options with policy {self.name!r}: for your own or a baseline only.")
        return self


class RunSection(Section):
    """[run]: how to compute; nothing here changes a result beyond rounding."""

    engine: Annotated[
        Literal["auto", "torch", "fused"],
        Key("what trains", choices={"auto": "the fastest that fits", "torch": "any model", "fused": "networks"}),
    ] = "auto"
    device: Annotated[str, Key("where the torch engine computes: auto, cpu, cuda, cuda:1, mps")] = "auto"
    threads: Annotated[Count | None, Key("threads that train; one per processor unless written down")] = None
    chunk: Annotated[Count, Key("devices trained at a time; bounds the memory")] = 32
    evaluate_every: Annotated[Count, Key("rounds from one evaluation on the test data to the next")] = 1
    checkpoint_every: Annotated[Count, Key("rounds from one checkpoint to the next")] = 1
    record: Annotated[
        Literal["full", "private"],
        Key(
            "what a run writes down", choices={"full": "all", "private": "no figure of the devices' data without noise"}
        ),
    ] = "full"
    averages: Annotated[
        Literal["chosen", "all"],
        Key(
            "averages of the models that are kept and evaluated",
            choices={"chosen": "that of the policy", "all": "every one, to compare them"},
        ),
    ] = "chosen"
    log: Annotated[
        list[Literal["tensorboard"]],
        Key(
            "where the records are written for, beside the run's own files",
            choices={"tensorboard": "its events, in the folder tensorboard of the run; needs airfed[track]"},
        ),
    ] = Field(default=[])
    patience: Annotated[
        Positive, Key("time without a sign of life after which another process is taken for lost", unit="s")
    ] = 50.0

    @model_validator(mode="after")
    def _check_device(self) -> Self:
        if re.fullmatch(r"[a-z]+(:\d{1,3})?", self.device) is None:
            raise ValueError(
                f"Expected run.device to be auto, cpu, cuda, cuda:1, mps or what else torch knows; got {self.device!r}."
            )
        return self
