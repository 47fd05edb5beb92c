"""A scenario: the world and what is wanted of it, as a TOML file.

`load` reads and checks one, `Scenario.problem` draws one realisation of it. Every mistake in the file is a
`ScenarioError` whose one sentence names the key, what was expected and what came.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from airfed import channel, network, seeds
from airfed._scenario_errors import ScenarioError as ScenarioError
from airfed._scenario_errors import sentence
from airfed._units import METRES, WATTS, in_si
from airfed.problem import Budget, Fleet, Learning, Link, Problem

DATASET_SHAPES: dict[str, tuple[tuple[int, int, int], int]] = {
    name: ((1, 28, 28), 10) for name in ("mnist-5k", "mnist", "fashion-mnist")
}

_MOST_DEVICES = 2**48  # far beyond any memory; NumPy speaks of "dimensions" above

Watts = Annotated[float, BeforeValidator(in_si(WATTS)), Field(gt=0, allow_inf_nan=False)]
Metres = Annotated[float, BeforeValidator(in_si(METRES)), Field(gt=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FleetSection(_Section):
    """[fleet]: how many devices, and their peak power."""

    num_devices: Count | None = None
    peak_power: Watts | Annotated[list[Watts], Field(min_length=1)]


class _ChannelSection(_Section):
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
        raise AssertionError("every channel section builds its own model")

    def draw(self, num_devices: int, rng: np.random.Generator, folder: Path) -> NDArray[np.float64]:
        """Return the gains of one realisation, after `minimum`."""
        gains = self.build(folder).draw(num_devices, rng)
        return channel.raise_to_minimum(gains, self.minimum, pin=self.pin_minimum)


class FixedChannel(_ChannelSection):
    """[channel] model = "fixed": the gains themselves."""

    model: Literal["fixed"]
    gains: Annotated[list[NonNegative], Field(min_length=1)]

    def build(self, folder: Path) -> channel.ChannelModel:
        """Return the model."""
        return channel.Fixed(gains=tuple(self.gains))


class RayleighChannel(_ChannelSection):
    """[channel] model = "rayleigh"."""

    model: Literal["rayleigh"]
    scale: Positive = 1.0

    def build(self, folder: Path) -> channel.ChannelModel:
        """Return the model."""
        return channel.Rayleigh(scale=self.scale)


class RicianChannel(_ChannelSection):
    """[channel] model = "rician"."""

    model: Literal["rician"]
    scale: Positive = 1.0
    k_factor: NonNegative = 1.0

    def build(self, folder: Path) -> channel.ChannelModel:
        """Return the model."""
        return channel.Rician(scale=self.scale, k_factor=self.k_factor)


class UniformChannel(_ChannelSection):
    """[channel] model = "uniform"."""

    model: Literal["uniform"]
    low: NonNegative
    high: Positive

    def build(self, folder: Path) -> channel.ChannelModel:
        """Return the model."""
        return channel.Uniform(low=self.low, high=self.high)


class CellChannel(_ChannelSection):
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


class FileChannel(_ChannelSection):
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


class LinkSection(_Section):
    """[link]: the receiver."""

    noise_std: Positive
    noise_source: Literal["seeded", "secure"] = "seeded"


class BudgetSection(_Section):
    """[budget]: what may be spent."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]
    total_power: Watts
    scope: Literal["round", "total"] = "round"
    formula: Literal["classic", "exact"] = "exact"
    relation: Literal["replace", "add_remove"] = "replace"

    def build(self) -> Budget:
        """Return the budget."""
        return Budget(**self.model_dump())

    @model_validator(mode="after")
    def _check_formula(self) -> Self:
        self.build()
        return self


class LearningSection(_Section):
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


class PolicySection(_Section):
    """[policy]: who decides."""

    name: Literal["optimal", "paper", "full", "uniform", "top_k", "threshold"] = "optimal"
    rounds: Count | None = None
    size: Count | None = None
    threshold: NonNegative | None = None


class RunSection(_Section):
    """[run]: how to compute; nothing here changes a result beyond rounding."""

    engine: Literal["auto", "torch", "fused"] = "auto"
    threads: Count | None = None
    chunk: Count = 32
    evaluate_every: Count = 1
    checkpoint_every: Count = 1
    record: Literal["full", "private"] = "full"


class Scenario(_Section):
    """A checked scenario. `folder` is where relative paths in it start."""

    name: str = "scenario"
    seed: Annotated[int, Field(ge=0)] = 0
    fleet: FleetSection
    channel: Channel
    link: LinkSection
    budget: BudgetSection
    learning: LearningSection
    policy: PolicySection = PolicySection()
    run: RunSection = RunSection()
    folder: Path = Field(default=Path(), exclude=True)

    @property
    def num_devices(self) -> int:
        """N, from [fleet], from the list of gains or peak powers, or from the file of gains."""
        if self.fleet.num_devices is not None:
            return self.fleet.num_devices
        if isinstance(self.channel, FixedChannel):
            return len(self.channel.gains)
        if isinstance(self.channel, FileChannel):
            return channel.FromFile(path=self.folder / self.channel.path, column=self.channel.column).read().size
        if isinstance(self.fleet.peak_power, list):
            return len(self.fleet.peak_power)
        raise ScenarioError("Missing key fleet.num_devices: expected a whole number >= 1.")

    @property
    def dimension(self) -> int:
        """d, from the file or from the built-in model on a built-in data set.

        Raises:
            ScenarioError: neither knows it; `learning.dimension` must then be written.
        """
        if self.learning.dimension is not None:
            return self.learning.dimension
        known = self.learning.model in ("cnn", "mlp", "logistic") and self.learning.dataset in DATASET_SHAPES
        if not known:
            raise ScenarioError(
                f"Missing key learning.dimension: the size of model {self.learning.model!r} on data set "
                f"{self.learning.dataset!r} is not built in; expected a whole number >= 1."
            )
        shape, classes = DATASET_SHAPES[self.learning.dataset]
        return network.builtin(self.learning.model, input_shape=shape, classes=classes).dimension

    def problem(self, *, dimension: int | None = None) -> Problem:
        """Return one realisation: the gains drawn from the seed's channel stream.

        Args:
            dimension: d where the model's size is known better than the file knows it.

        Raises:
            ScenarioError: the file of gains is bad or a length does not fit.
        """
        try:
            if self.num_devices > _MOST_DEVICES:
                raise MemoryError
            rng = seeds.stream(self.seed, "channel")
            with np.errstate(over="ignore"):  # an infinite gain is named below
                gains = self.channel.draw(self.num_devices, rng, self.folder)
            return Problem(
                fleet=Fleet(gain=gains, peak_power=self.fleet.peak_power),
                link=Link(
                    noise_std=self.link.noise_std,
                    estimation_error=self.channel.estimation_error,
                    estimation_failure=self.channel.estimation_failure,
                    trust_estimates=self.channel.trust_estimates,
                ),
                learning=self.learning.build(self.dimension if dimension is None else dimension),
                budget=self.budget.build(),
            )
        except ScenarioError:
            raise
        except ValueError as error:
            raise ScenarioError(str(error)) from None
        except MemoryError:
            raise ScenarioError(f"Expected a fleet that fits into memory, got {self.num_devices} devices.") from None

    def override(self, changes: dict[str, Any]) -> Scenario:
        """Return the scenario with dotted keys changed, checked like a file: {"policy.rounds": 20}."""
        tables = self.model_dump(mode="python", exclude_unset=True)
        for key, value in changes.items():
            *path, last = key.split(".")
            table = tables
            for part in path:
                table = table.setdefault(part, {})
                if not isinstance(table, dict):
                    raise ScenarioError(f"Unknown key {key!r}: {part!r} is not a table.")
            if value is None:
                table.pop(last, None)
            else:
                table[last] = value
        return parse(tables, folder=self.folder)

    def anchored(self) -> Scenario:
        """Return the scenario with the files it names by their full paths, so that it means the same elsewhere."""
        changes: dict[str, Any] = {}
        if isinstance(self.channel, FileChannel):
            changes["channel.path"] = str((self.folder / self.channel.path).resolve())
        data = self.folder / self.learning.dataset
        if self.learning.dataset not in DATASET_SHAPES and data.exists():
            changes["learning.dataset"] = str(data.resolve())
        return self.override(changes) if changes else self

    def digest(self) -> str:
        """Return the SHA-256 of everything that shapes a result, less the policy.

        `name`, [policy] and [run] are left out: policies compared on one seed share their noise stream.
        """
        content = self.model_dump(mode="json", exclude={"name", "policy", "run"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def to_toml(self) -> str:
        """Return the scenario as resolved, defaults included, as TOML."""
        tables = self.model_dump(mode="json", exclude_none=True)
        lines = [f"{key} = {_toml(value)}" for key, value in tables.items() if not isinstance(value, dict)]
        for name, table in tables.items():
            if isinstance(table, dict):
                lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"


def load(path: str | Path) -> Scenario:
    """Return the scenario in a TOML file.

    Raises:
        ScenarioError: there is no such file, it is not TOML, or a key or value in it is wrong.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ScenarioError(
            f"Expected a scenario at {file}; there is no such file (airfed new {file} writes one)."
        ) from None
    except IsADirectoryError:
        raise ScenarioError(f"Expected a scenario file at {file}, got a folder.") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"Expected a text in UTF-8 at {file}, got other data.") from None
    except (OSError, ValueError) as error:
        raise ScenarioError(f"Cannot read {file}: {getattr(error, 'strerror', error)}.") from None
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of too many digits and brackets too deep
        raise ScenarioError(f"{file}: not valid TOML: {error}.") from None
    try:
        return parse(tables, folder=file.parent)
    except ScenarioError as error:
        raise ScenarioError(f"{file}: {error}") from None


def parse(tables: dict[str, Any], *, folder: Path = Path()) -> Scenario:
    """Return the scenario in a dictionary of tables, as TOML gives them.

    Raises:
        ScenarioError: a key is unknown or missing, or a value is of the wrong type or out of range.
    """
    if "folder" in tables:
        raise ScenarioError("Unknown key 'folder'.")
    try:
        return Scenario.model_validate({**tables, "folder": folder})
    except ValidationError as error:
        raise ScenarioError(sentence(error, Scenario)) from None


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
