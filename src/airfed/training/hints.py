"""Hints from the record of a training: why the model did not learn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final

from airfed.planning import Plan

MOST: Final = 3

_HARDLY: Final = 0.8  # final over initial loss
_CHANCE: Final = 1.5  # accuracy over chance level
_ABSENT: Final = 0.1  # mean fraction of missing devices
_CLIPPED: Final = 0.9  # fraction of clipped updates in the median round
_SMALL: Final = 0.5  # largest update over clip norm in the median round
_LOW_SNR: Final = -10.0  # dB, in the median round

_LIMITS: Final = {
    "privacy": "budget.epsilon",
    "total_power": "budget.total_power",
    "peak_power": "fleet.peak_power or peak_power_per_symbol",
    "device_power": "budget.device_power or device_energy",
}


def hints(plan: Plan, rounds: Sequence[Mapping[str, Any]], *, classes: int | None = None) -> list[str]:
    """Return up to three hints, the most important first, from the records of rounds; none after a good training."""

    def values(name: str) -> list[float]:
        return [record[name] for record in rounds if record.get(name) is not None]

    found = []
    if bad := sum(map(bool, values("refused"))):
        found.append(
            f"Updates with NaN or Inf arrived in {bad} of {len(rounds)} rounds and were counted as zero: try a smaller "
            "learning_rate."
        )
    absent = fmean(values("missing") or [0.0])
    if rounds and absent >= _ABSENT * plan.num_scheduled:
        found.append(
            f"{absent:.3g} of {plan.num_scheduled} devices were missing in the average round: they were charged, but "
            "their updates did not arrive."
        )
    losses, accuracy = values("loss") or values("test_loss"), values("accuracy")
    rose = len(losses) > 1 and losses[-1] > losses[0]
    if rose:
        found.append(f"The loss rose from {losses[0]:.3g} to {losses[-1]:.3g}: try a smaller learning_rate.")
    elif accuracy and classes and accuracy[-1] <= _CHANCE / classes:
        found.append(f"The accuracy, {accuracy[-1]:.1%}, is at chance level for {classes} classes.")
    elif losses and classes and losses[-1] > math.log(classes):
        chance = f"{math.log(classes):.3g}, the chance level for {classes} classes"
        found.append(f"The loss, {losses[-1]:.3g}, is above {chance}.")
    elif len(losses) > 1 and losses[-1] > _HARDLY * losses[0]:
        found.append(f"The loss hardly fell, from {losses[0]:.3g} to {losses[-1]:.3g}: more total_steps may help.")
    else:
        return found[:MOST]
    fixed = plan.problem.learning.adaptive_clipping is None
    clip_norm = plan.problem.learning.clip_norm if fixed else 0.0
    clipped, means = values("clipped_share"), values("update_norm_mean")
    if fixed and clipped and means and median(clipped) >= _CLIPPED:
        every = "Every" if min(clipped) == 1 else "Nearly every"
        advice = "." if rose else ": raise it, or plan more rounds with fewer local steps."  # if the loss rose: neither
        found.append(
            f"{every} update was clipped, from a norm of {median(means):.3g} to clip_norm = {clip_norm:g}{advice}"
        )
    largest, ratio = values("update_norm_max"), values("signal_to_noise_db")
    if ratio and median(ratio) <= _LOW_SNR:
        snr = f"The received aggregate was {-median(ratio):.0f} dB below the noise"
        if largest and 0 < median(largest) < _SMALL * clip_norm:
            unit = 10.0 ** (math.floor(math.log10(median(largest))) - 1)
            found.append(
                f"{snr}: the largest update had a norm of {median(largest):.2g}, but clip_norm is {clip_norm:g}; a "
                f"clip_norm of {math.ceil(median(largest) / unit) * unit:g} raises the SNR at equal power and privacy."
            )
        else:
            found.append(f"{snr}: a larger {_LIMITS[plan.binding]}, the binding limit, or a smaller model would help.")
    return found[:MOST]
