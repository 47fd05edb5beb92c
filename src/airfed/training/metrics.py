"""What a run writes down of each round, and of each device at its end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed.planning import Average, Plan
from airfed.privacy.ledger import Charge
from airfed.training.loop import Round

# Figures that depend on the devices' data without any noise on them: no ε covers them. The noise's own norm is one:
# with the received signal it tells how far the noise-free one is. `run.record = "private"` leaves them out.
UNNOISED: Final = (
    "loss",
    "update_norm_mean",
    "update_norm_max",
    "clipped_share",
    "refused",
    "missing",
    "fading_error",
    "noise_error",
    "signal_to_noise_db",
    "power_transmitted",
    "power_transmitted_total",
)


def round_record(
    plan: Plan, done: Round, charge: Charge, quality: Mapping[str, float], *, transmitted_total: float, private: bool
) -> dict[str, Any]:
    """Return the line of a round in `metrics.jsonl`.

    Args:
        plan: what was decided.
        done: the round.
        charge: what it has cost.
        quality: loss, accuracy and test loss, as far as they were evaluated.
        transmitted_total: [W] of all rounds so far.
        private: leave out what no ε covers.
    """
    reception, decided = done.reception, plan.sequence[done.index]
    record = {
        "round": done.index,
        "steps": done.steps,
        "loss": _finite(quality.get("loss")),
        "accuracy": _finite(quality.get("accuracy")),
        "test_loss": _finite(quality.get("test_loss")),
        "update_norm_mean": reception.norm_mean,
        "update_norm_max": reception.norm_max,
        "clipped_share": reception.clipped / decided.scheduled.size,
        "refused": reception.heard - reception.usable,
        "missing": decided.scheduled.size - reception.heard,
        "fading_error": reception.fading_error,
        "noise_error": reception.noise_error,
        "signal_to_noise_db": 10 * math.log10(reception.signal_to_noise) if reception.signal_to_noise else None,
        "power_planned": decided.power_planned,
        "power_transmitted": reception.power,
        "power_planned_total": plan.sequence.power_planned(done.index + 1),
        "power_transmitted_total": transmitted_total,
        "epsilon_round": charge.epsilon_round,
        "epsilon_total": charge.epsilon_total,
    }
    if private:
        record |= dict.fromkeys(UNNOISED)
    return record


def compared(
    worth: Mapping[Average, Mapping[str, float]], *, private: bool
) -> dict[Average, dict[str, float | None]] | None:
    """Return what the record of a round says of every average of the models; None where none was evaluated.

    Args:
        worth: loss, accuracy and test loss of each, as far as they were evaluated.
        private: leave out what no ε covers.
    """
    names = ("loss", "accuracy", "test_loss")
    hidden = UNNOISED if private else ()
    return {
        average: {name: None if name in hidden else _finite(quality.get(name)) for name in names}
        for average, quality in worth.items()
    } or None


def device_rows(plan: Plan, energy: NDArray[np.float64], rounds: int) -> list[dict[str, Any]]:
    """Return the lines of `devices.csv` after a number of rounds, with what each device has transmitted [W]."""
    columns = {
        "device": plan.scheduled,
        "gain": plan.problem.fleet.mean_gain(rounds)[plan.scheduled],
        "power_planned": plan.sequence.device_power(rounds),
        "power_transmitted": energy,
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _finite(value: float | None) -> float | None:
    """The value, or None where it cannot be written as JSON."""
    return value if value is not None and math.isfinite(value) else None
