"""What the record of a training says about why it went badly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
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

    def values(name: str) -> list[float]:
        return [record[name] for record in rounds if record.get(name) is not None]

    found = []
    if bad := sum(map(bool, values("refused"))):
        found.append(
            f"Updates with NaN or Inf came in {bad} of {len(rounds)} rounds and were counted as zero: try a smaller "
            "learning_rate."
        )
    absent = fmean(values("missing") or [0.0])
    if rounds and absent >= _ABSENT * plan.num_scheduled:
        found.append(
            f"{absent:.3g} of {plan.num_scheduled} devices were missing in the average round: their privacy was paid "
            "for, and their updates did not come."
        )
    losses, accuracy = values("loss") or values("test_loss"), values("accuracy")
    rose = len(losses) > 1 and losses[-1] > losses[0]
    if rose:
        found.append(f"The loss rose from {losses[0]:.3g} to {losses[-1]:.3g}: try a smaller learning_rate.")
    elif accuracy and classes and accuracy[-1] <= _GUESSING / classes:
        found.append(f"The accuracy, {accuracy[-1]:.1%}, is that of guessing among {classes} classes.")
    elif losses and classes and losses[-1] > math.log(classes):
        guess = f"{math.log(classes):.3g}, that of guessing among {classes} classes"
        found.append(f"The loss, {losses[-1]:.3g}, is above {guess}.")
    elif len(losses) > 1 and losses[-1] > _HARDLY * losses[0]:
        found.append(f"The loss hardly fell, from {losses[0]:.3g} to {losses[-1]:.3g}: more total_steps may help.")
    else:
        return found[:MOST]
    clip_norm = plan.problem.learning.clip_norm
    clipped, means = values("clipped_share"), values("update_norm_mean")
    if clipped and means and median(clipped) >= _CLIPPED:
        share = "Every" if min(clipped) == 1 else "Nearly every"
        # Where the loss rose, longer steps are no cure.
        advice = "." if rose else ": raise it, or take more rounds of fewer steps."
        found.append(
            f"{share} update was clipped, from a norm of {median(means):.3g} to clip_norm = {clip_norm:g}{advice}"
        )
    largest, ratio = values("update_norm_max"), values("signal_to_noise_db")
    if ratio and median(ratio) <= _FAINT:
        faint = f"The sum of the updates arrived {-median(ratio):.0f} dB below the noise"
        if largest and 0 < median(largest) < _SMALL * clip_norm:
            unit = 10.0 ** (math.floor(math.log10(median(largest))) - 1)
            found.append(
                f"{faint}: the largest update had a norm of {median(largest):.2g} where clip_norm is {clip_norm:g}; a "
                f"clip_norm of {math.ceil(median(largest) / unit) * unit:g} is louder at the same power and privacy."
            )
        else:
            found.append(f"{faint}: more {_LIMITS[plan.binding]}, which is the limit, or a smaller model would help.")
    return found[:MOST]
