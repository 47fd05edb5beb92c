"""What the record of a training says about why it went badly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from airfed.planning import Plan

MOST: Final = 3

_HARDLY: Final = 0.8  # a loss that keeps more than this part of its first value has hardly fallen
_GUESSING: Final = 1.5  # times the accuracy of guessing
_ABSENT: Final = 0.1  # part of the devices, on average
_CLIPPED: Final = 0.9  # part of the updates, in the typical round
_SMALL: Final = 0.5  # of the clip norm, the largest update of the typical round
_FAINT: Final = -10.0  # dB, in the typical round

_LIMITS: Final = {
    "privacy": "budget.epsilon",
    "total_power": "budget.total_power",
    "peak_power": "fleet.peak_power",
    "device_power": "budget.device_power",
}


def hints(plan: Plan, rounds: Sequence[Mapping[str, Any]], *, classes: int | None = None) -> list[str]:
    """Return up to three sentences, the most telling first; none after a training that went well.

    Args:
        plan: what was trained.
        rounds: the records of its rounds, as in metrics.jsonl.
        classes: of the data, where it has any.
    """
    if not rounds:
        return []
    found = _devices(plan, rounds)
    if complaint := _complaint(rounds, classes):
        found += [complaint, *_signal(plan, rounds)]
    return found[:MOST]


def _devices(plan: Plan, rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    found = []
    refused, missing = _values(rounds, "refused"), _values(rounds, "missing")
    if any(refused):
        bad = sum(map(bool, refused))
        found.append(
            f"Updates with NaN or Inf came in {bad} of {len(rounds)} rounds and were counted as zero: try a smaller "
            "learning_rate."
        )
    absent = sum(missing) / len(missing) if missing else 0.0
    if absent >= _ABSENT * plan.num_scheduled:
        found.append(
            f"{absent:.3g} of {plan.num_scheduled} devices were missing in the average round: their privacy was paid "
            "for, and their updates did not come."
        )
    return found


def _complaint(rounds: Sequence[Mapping[str, Any]], classes: int | None) -> str:
    """What is poor about the training; "" if nothing is."""
    accuracy = _values(rounds, "accuracy")
    losses = _losses(rounds)
    if _rose(losses):
        return f"The loss rose from {losses[0]:.3g} to {losses[-1]:.3g}: try a smaller learning_rate."
    if accuracy and classes and accuracy[-1] <= _GUESSING / classes:
        return f"The accuracy, {accuracy[-1]:.1%}, is that of guessing among {classes} classes."
    if losses and classes and losses[-1] > math.log(classes):
        return (
            f"The loss, {losses[-1]:.3g}, is above {math.log(classes):.3g}, that of guessing among {classes} classes."
        )
    if len(losses) > 1 and losses[-1] > _HARDLY * losses[0]:
        return f"The loss hardly fell, from {losses[0]:.3g} to {losses[-1]:.3g}: more total_steps may help."
    return ""


def _signal(plan: Plan, rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was wrong with the updates and with how they arrived."""
    found = []
    clip_norm = plan.problem.learning.clip_norm
    clipped, means = _values(rounds, "clipped_share"), _values(rounds, "update_norm_mean")
    largest, ratio = _values(rounds, "update_norm_max"), _values(rounds, "signal_to_noise_db")
    if clipped and means and median(clipped) >= _CLIPPED:
        share = "Every" if min(clipped) == 1 else "Nearly every"
        fact = f"{share} update was clipped, from a norm of {median(means):.3g} to clip_norm = {clip_norm:g}"
        # Where the loss rose, longer steps are no cure.
        advice = "." if _rose(_losses(rounds)) else ": raise it, or take more rounds of fewer steps."
        found.append(fact + advice)
    if ratio and median(ratio) <= _FAINT:
        faint = f"The sum of the updates arrived {-median(ratio):.0f} dB below the noise"
        if largest and median(largest) < _SMALL * clip_norm:
            found.append(
                f"{faint}: the largest update had a norm of {median(largest):.2g} where clip_norm is {clip_norm:g}; a "
                f"clip_norm of {_round_up(median(largest)):g} is louder at the same power and privacy."
            )
        else:
            found.append(f"{faint}: more {_LIMITS[plan.binding]}, which is the limit, or a smaller model would help.")
    return found


def _rose(losses: Sequence[float]) -> bool:
    return len(losses) > 1 and losses[-1] > losses[0]


def _losses(rounds: Sequence[Mapping[str, Any]]) -> list[float]:
    """The training loss or, where the record leaves it out, the test loss."""
    return _values(rounds, "loss") or _values(rounds, "test_loss")


def _values(rounds: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """The metric in the rounds that have it."""
    return [record[name] for record in rounds if record.get(name) is not None]


def _round_up(value: float) -> float:
    """The value, rounded up to two digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1) if value > 0 else 1.0
    return math.ceil(value / unit) * unit
