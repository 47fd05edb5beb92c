"""The tables of a scenario: which keys each has, of which type and in which range."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from airfed import channel
from airfed._validate import LARGEST_INTEGER
from airfed.problem import Budget, Learning
from airfed.scenario.units import METRES, WATTS, amplitude, in_si
from airfed.scenario.usercode import own_policy, user_code

Watts = Annotated[float, BeforeValidator(in_si(WATTS)), Field(gt=0, allow_inf_nan=False)]
Metres = Annotated[float, BeforeValidator(in_si(METRES)), Field(gt=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, le=2**128 - 1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=LARGEST_INTEGER)]


def _shown(text: str) -> str:
    """Return a text that is printed here and there, if nothing in it steers a terminal."""
    if not text.isprintable() and any(unicodedata.category(character) in UNSHOWN for character in text):
        raise ValueError("expected a text without control characters")
    return text


UNSHOWN: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that are not to be seen, or that move what is."""

Name = Annotated[str, AfterValidator(_shown)]


class Section(BaseModel):
    """A table: unknown keys are refused, values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FleetSection(Section):
    """[fleet]: how many devices, and their peak power."""

    num_devices: Count | None = None
    peak_power: Watts | Annotated[list[Watts], Field(min_length=1)]


class ChannelSection(Section):
    """[channel]: what every model has."""

    minimum: NonNegative = 0.0
    pin_minimum: bool = False
    estimation_error: NonNegative = 0.0
    estimation_failure: Annotated[float, Field(gt=0, lt=1)] = 1e-6
    trust_estimates: bool = False

    @model_validator(mode="after")
    def _check_minimum(self) -> Self:
        if self.pin_minimum and self.minimum == 0:
            raise ValueError("Expected channel.minimum > 0 with channel.pin_minimum = true: it is pinned to that.")
        return self

    def build(self, folder: Path) -> channel.ChannelModel:
        """Return the model; relative paths start at `folder`."""
        raise AssertionError("every channel section builds its own model")

    def draw(self, num_devices: int, rng: np.random.Generator, folder: Path) -> NDArray[np.float64]:
        """Return the gains of one realisation, after `minimum`."""
        gains = self.build(folder).draw(num_devices, rng)
        return channel.raise_to_minimum(gains, self.minimum, pin=self.pin_minimum)


class FixedChannel(ChannelSection):
    """[channel] model = "fixed": the gains themselves."""

    model: Literal["fixed"]
    gains: Annotated[list[NonNegative], Field(min_length=1)]

    def build(self, folder: Path) -> channel.ChannelModel:
        """Return the model."""
        return channel.Fixed(gains=tuple(self.gains))


class RayleighChannel(ChannelSection):
    """[channel] model = "rayleigh"."""

    model: Literal["rayleigh"]
    scale: Positive = 1.0

    def build(self, folder: Path) -> channel.ChannelModel:
        """Return the model."""
        return channel.Rayleigh(scale=self.scale)


class RicianChannel(ChannelSection):
    """[channel] model = "rician"."""

    model: Literal["rician"]
    scale: Positive = 1.0
    k_factor: NonNegative = 1.0

    def build(self, folder: Path) -> channel.ChannelModel:
        """Return the model."""
        return channel.Rician(scale=self.scale, k_factor=self.k_factor)


class UniformChannel(ChannelSection):
    """[channel] model = "uniform"."""

    model: Literal["uniform"]
    low: NonNegative
    high: Positive

    def build(self, folder: Path) -> channel.ChannelModel:
        """Return the model."""
        return channel.Uniform(low=self.low, high=self.high)


class CellChannel(ChannelSection):
    """[channel] model = "cell": a disc with path loss, shadowing and Rayleigh fading."""

    model: Literal["cell"]
    radius: Metres
    path_loss_exponent: Positive = 3.0
    shadowing_db: NonNegative = 0.0
    reference_distance: Metres = 1.0
    scale: Positive = 1.0

    def build(self, folder: Path) -> channel.ChannelModel:
        """Return the model."""
        return channel.Cell(
            radius=self.radius,
            path_loss_exponent=self.path_loss_exponent,
            shadowing_db=self.shadowing_db,
            reference_distance=self.reference_distance,
            scale=self.scale,
        )


class FileChannel(ChannelSection):
    """[channel] model = "file": gains from a .csv or .npy file, relative to the scenario's folder."""

    model: Literal["file"]
    path: str
    column: str = "gain"

    def build(self, folder: Path) -> channel.ChannelModel:
        """Return the model."""
        return channel.FromFile(path=folder / self.path, column=self.column)


Channel = Annotated[
    FixedChannel | RayleighChannel | RicianChannel | UniformChannel | CellChannel | FileChannel,
    Field(discriminator="model"),
]


class LinkSection(Section):
    """[link]: the receiver."""

    noise_std: Annotated[Positive, BeforeValidator(amplitude)]
    noise_source: Literal["seeded", "secure"] = "seeded"


class BudgetSection(Section):
    """[budget]: what may be spent."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]
    total_power: Watts
    scope: Literal["round", "total"] = "round"
    formula: Literal["classic", "exact"] = "exact"
    relation: Literal["replace", "add_remove"] = "replace"
    account: str | None = None

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


class LearningSection(Section):
    """[learning]: the task, and the constants of its bound."""

    dataset: str = "mnist-5k"
    partition: Literal["iid", "dirichlet", "shards"] = "iid"
    alpha: Positive = 0.5
    shards_per_device: Count = 2
    model: str = "cnn"
    dimension: Count | None = None
    total_steps: Count
    learning_rate: Positive
    batch_size: Count | None = None
    clip_norm: Positive
    smoothness: Positive
    strong_convexity: Positive
    initial_gap: Positive

    @model_validator(mode="after")
    def _check_constants(self) -> Self:
        user_code(self.model)
        self.build(self.dimension or 1)
        return self

    def build(self, dimension: int) -> Learning:
        """Return the constants for a model of the given dimension."""
        return Learning(
            dimension=dimension,
            total_steps=self.total_steps,
            clip_norm=self.clip_norm,
            learning_rate=self.learning_rate,
            smoothness=self.smoothness,
            strong_convexity=self.strong_convexity,
            initial_gap=self.initial_gap,
        )


class PolicySection(Section):
    """[policy]: who decides."""

    name: str = "optimal"
    rounds: Count | None = None
    size: Count | None = None
    threshold: NonNegative | None = None
    options: dict[str, bool | int | float | str] | None = None

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if own_policy(self.name) is None and self.options:
            raise ValueError(f"Expected no policy.options with policy {self.name!r}: they are for your own.")
        return self


class RunSection(Section):
    """[run]: how to compute; nothing here changes a result beyond rounding."""

    engine: Literal["auto", "torch", "fused"] = "auto"
    device: str = "auto"
    threads: Count | None = None
    chunk: Count = 32
    evaluate_every: Count = 1
    checkpoint_every: Count = 1
    record: Literal["full", "private"] = "full"
    patience: Positive = 60.0

    @model_validator(mode="after")
    def _check_device(self) -> Self:
        if re.fullmatch(r"[a-z]+(:\d{1,3})?", self.device) is None:
            raise ValueError(
                f"Expected run.device to be auto, cpu, cuda, cuda:1, mps or what else torch knows; got {self.device!r}."
            )
        return self
