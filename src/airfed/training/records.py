"""What the files of a run may hold: types and ranges, checked on reading; nothing in a file is believed before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,  # before Python 3.12 pydantic needs these
)

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from airfed.planning import Average
from airfed.problem import Combining, Trust
from airfed.scenario import flatten

FORMAT: Final = 3  # of the run directory; raised when an older airfed could misread it

_READING = ConfigDict(strict=True, extra="ignore")  # a later version may have added something

Whole = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Pair = Annotated[list[Number], Field(min_length=2, max_length=2)]  # real and imaginary part
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Text = Annotated[str, Field(max_length=10_000)]


class Quality(TypedDict):
    """What a model is worth."""

    __pydantic_config__ = _READING  # type: ignore[misc]

    loss: Number | None
    accuracy: Share | None
    test_loss: Number | None


class RoundRecord(TypedDict):
    """A line of `metrics.jsonl`."""

    __pydantic_config__ = _READING  # type: ignore[misc]

    round: Whole
    steps: Count
    loss: Number | None
    accuracy: Share | None
    test_loss: Number | None
    update_norm_mean: Amount | None
    update_norm_max: Amount | None
    clipped_share: Share | None
    refused: Whole | None
    missing: Whole | None
    fading_error: Amount | None
    noise_error: Amount | None
    signal_to_noise_db: Number | None
    power_planned: Amount
    power_transmitted: Amount | None
    power_planned_total: Amount
    power_transmitted_total: Amount | None
    epsilon_round: Amount
    epsilon_total: Amount
    averages: NotRequired[dict[Average, Quality] | None]  # with `run.averages = "all"`; None where none was evaluated


METRICS: Final = tuple(name for name in RoundRecord.__annotations__ if name != "averages")  # a number each


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as the row of a table: a table within it as columns of its own, "averages.tail.accuracy"."""
    row = flatten(record)
    row.pop("averages", None)  # of a round in which none was evaluated
    return row


class Terms(TypedDict):
    """The terms of the bound."""

    initial_gap: Amount
    participation: Amount
    local_drift: Amount
    noise: Amount


class BoundFigures(TypedDict):
    """The bound of a plan."""

    total: Amount
    terms: Terms


class Limits(TypedDict):
    """The largest θ that each limit allows."""

    privacy: NotRequired[Amount]
    peak_power: NotRequired[Amount]
    total_power: NotRequired[Amount]
    device_power: NotRequired[Amount]


LimitName = Literal["privacy", "peak_power", "total_power", "device_power"]


class RoundFigures(TypedDict):
    """What `plan.json` says of one round, where rounds differ."""

    __pydantic_config__ = _READING  # type: ignore[misc]

    members: Text
    num_scheduled: Count
    alignment: Amount
    amplitude: NotRequired[list[Amount]]  # of the devices, where they are not aligned
    local_steps: Count
    power: Amount
    mu: Amount


class PlanFigures(TypedDict):
    """`plan.json`: a plan's `to_dict`."""

    __pydantic_config__ = _READING  # type: ignore[misc]

    policy: Text
    num_devices: Count
    dimension: Count
    num_scheduled: Count
    scheduled: list[Whole]
    alignment: Amount
    alignment_coefficient: Amount
    amplitude: NotRequired[list[Amount]]
    clip_norm: Amount
    rounds: Count
    local_steps: list[Count]
    objective: Literal["bound", "measured"]
    average: Average
    method: dict[Text, bool | int | float | Text]
    private: bool
    channel_uses: Amount
    air_time: Amount | None
    predicted_accuracy: Share | None
    predicted_loss: Amount | None
    predicted_basis: Text
    predicted_interval: Annotated[list[Share], Field(min_length=2, max_length=2)] | None
    bound: BoundFigures
    binding: LimitName
    limits: Limits
    violations: list[LimitName]
    power: list[Amount]
    power_total: Amount
    amplification: Amount
    mu_round: Amount
    mu_total: Amount
    epsilon_round: Amount
    epsilon_total: Amount
    epsilon_paper: Amount
    epsilon_paper_validity: Literal["proved", "unproven", "unsafe"]
    delta: Amount
    scope: Literal["round", "total"]
    relation: Literal["replace", "add_remove"]
    notes: list[Text]
    antennas: NotRequired[Annotated[int, Field(ge=2)]]
    combining: NotRequired[Combining]
    trust: NotRequired[Trust]
    combiner: NotRequired[list[Pair] | list[list[Pair]]]
    epsilon_total_against: NotRequired[dict[Trust, Amount | None]]
    lower_bound: Amount | None
    most_exposed: NotRequired[Whole]
    sequence: NotRequired[list[RoundFigures]]


class Manifest(TypedDict):
    """`run.json`: versions and digests, with all that keys the noise and that a resume must find unchanged."""

    __pydantic_config__ = _READING  # type: ignore[misc]

    format: Literal[3]
    airfed: Text
    name: Text
    engine: Text
    privacy: Literal["simulated", "secure"]
    scenario_sha256: Sha256
    plan_sha256: Sha256
    data_sha256: Text
    versions: dict[Text, Text | None]
    rounds: Count
    signal: dict[Text, Text]


class DeviceRow(TypedDict):
    """A line of `devices.csv`."""

    device: Whole
    gain: Amount
    power_planned: Amount
    power_transmitted: Amount


ROUND: Final = TypeAdapter(RoundRecord)
PLAN: Final = TypeAdapter(PlanFigures)
MANIFEST: Final = TypeAdapter(Manifest)
DEVICE: Final = TypeAdapter(DeviceRow)


def complaint(error: ValidationError) -> str:
    """Return what is wrong, in a few words: where, what was expected, what came."""
    first: dict[str, Any] = dict(error.errors(include_url=False)[0])
    place = ".".join(str(part) for part in first["loc"]) or "it"
    came = "" if first["type"] in ("missing", "json_invalid") else f", got {str(first['input'])[:60]!r}"
    return f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}{came}"
