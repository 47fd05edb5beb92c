"""The schemas of a run's files, which are checked on reading, and the records that a run writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from airfed.planning import Average, Plan
from airfed.privacy.ledger import Charge
from airfed.scenario import flatten
from airfed.training.loop import Round

FORMAT: Final = 3  # of the run directory; increased when an older airfed could misread it


Whole = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Text = Annotated[str, Field(max_length=10_000)]


class _Read(TypedDict):
    """A table in a file of a run."""

    __pydantic_config__ = ConfigDict(strict=True, extra="ignore")  # type: ignore[misc]  # later versions may add to it


class Quality(_Read):
    """The metrics of a model."""

    loss: Number | None
    accuracy: Share | None
    test_loss: Number | None


class RoundRecord(_Read):
    """A line of `metrics.jsonl`."""

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
    clip_norm: NotRequired[Amount]  # with adaptive clipping: ϖ of the round, and the received fraction of unclipped
    unclipped: NotRequired[Number]
    averages: NotRequired[dict[Average, Quality] | None]  # with `run.averages = "all"`; None where none was evaluated


METRICS: Final = tuple(name for name in RoundRecord.__annotations__ if name != "averages")  # a number each

# Values that depend on the devices' data without noise: no ε covers them. The norm of the noise is one of them: it
# reveals the distance of the noise-free signal from the received one. `run.record = "private"` leaves them out.
UNNOISED: Final = (
    *("loss", "update_norm_mean", "update_norm_max", "clipped_share", "refused", "missing"),
    *("fading_error", "noise_error", "signal_to_noise_db", "power_transmitted", "power_transmitted_total"),
)


class PlanFigures(TypedDict):
    """`plan.json`, a plan's `to_dict`; `Plan.from_dict` checks all values that follow from others."""

    __pydantic_config__ = ConfigDict(strict=True, extra="allow")  # type: ignore[misc]

    policy: Text
    num_devices: Count
    num_scheduled: Count
    dimension: Count
    rounds: Count
    objective: Literal["bound", "accuracy"]
    average: Average
    predicted_accuracy: Share | None
    predicted_loss: Amount | None
    predicted_basis: Text
    predicted_interval: Annotated[list[Share], Field(min_length=2, max_length=2)] | None
    notes: list[Text]
    lower_bound: Amount | None


class Manifest(_Read):
    """`run.json`: versions, digests, and the key of the noise, which must be unchanged on resume."""

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


class AuditFigures(_Read):
    """`audit.json`: the result of `airfed audit DIR`."""

    ledger: Sha256  # its head at the time
    verdict: Literal["pass", "fail"]
    epsilon_total_lower: Number | None


class DeviceRow(TypedDict):
    """A line of `devices.csv`."""

    device: Whole
    gain: Amount
    power_planned: Amount
    power_transmitted: Amount


ROUND: Final = TypeAdapter(RoundRecord)
PLAN: Final = TypeAdapter(PlanFigures)
MANIFEST: Final = TypeAdapter(Manifest)
AUDIT: Final = TypeAdapter(AuditFigures)
DEVICE: Final = TypeAdapter(DeviceRow)


def describe(error: ValidationError) -> str:
    """Return the first validation error in a few words: its location, the expected and the actual value."""
    first: dict[str, Any] = dict(error.errors(include_url=False)[0])
    location = ".".join(str(part) for part in first["loc"]) or "it"
    actual = "" if first["type"] in ("missing", "json_invalid") else f", got {str(first['input'])[:60]!r}"
    return f"{location}: {first['msg'][:1].lower()}{first['msg'][1:]}{actual}"


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as a flat row; nested tables become columns such as "averages.tail.accuracy"."""
    row = flatten(record)
    row.pop("averages", None)  # None in rounds without evaluation
    return row


def round_record(
    plan: Plan, done: Round, charge: Charge, quality: Mapping[str, float], *, transmitted_total: float, private: bool
) -> dict[str, Any]:
    """Return the line of a round in `metrics.jsonl`, with all values or, if `private`, those that ε covers."""
    aggregate, entry = done.aggregate, plan.sequence[done.index]
    record = {
        "round": done.index,
        "steps": done.steps,
        **quality_record(quality, private=private),
        "update_norm_mean": aggregate.norm_mean,
        "update_norm_max": aggregate.norm_max,
        "clipped_share": aggregate.clipped / entry.scheduled.size,
        "refused": aggregate.arrived - aggregate.usable,
        "missing": entry.scheduled.size - aggregate.arrived,
        "fading_error": aggregate.fading_error,
        "noise_error": aggregate.noise_error,
        "signal_to_noise_db": 10 * math.log10(aggregate.signal_to_noise) if aggregate.signal_to_noise else None,
        "power_planned": entry.power_planned,
        "power_transmitted": aggregate.power,
        "power_planned_total": plan.sequence.power_planned(done.index + 1),
        "power_transmitted_total": transmitted_total,
        "epsilon_round": charge.epsilon_round,
        "epsilon_total": charge.epsilon_total,
        **({} if aggregate.unclipped is None else {"clip_norm": done.clip_norm, "unclipped": aggregate.unclipped}),
    }
    return record | dict.fromkeys(UNNOISED) if private else record


def quality_record(quality: Mapping[str, float], *, private: bool) -> dict[str, float | None]:
    """Return the metrics of a model for a record; None if not evaluated or not finite."""
    finite = {name: value for name, value in quality.items() if math.isfinite(value)}
    hidden = UNNOISED if private else ()
    return {name: None if name in hidden else finite.get(name) for name in Quality.__annotations__}


def device_rows(plan: Plan, energy: NDArray[np.float64], rounds: int) -> list[dict[str, Any]]:
    """Return the rows of `devices.csv` after a number of rounds; `energy` is the transmitted power [W] per device."""
    columns = {
        "device": plan.scheduled,
        "gain": np.atleast_2d(plan.problem.fleet.gain)[: max(1, rounds)].mean(axis=0)[plan.scheduled],
        "power_planned": plan.sequence.device_power(rounds),
        "power_transmitted": energy,
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]
