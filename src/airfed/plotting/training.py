"""Charts of trainings: a metric over steps or rounds, several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from airfed.plotting.chart import Axis, Chart, Level, Line, highest
from airfed.text.phrases import METRICS


def training_chart(
    metric: str,
    lines: Sequence[Line],
    *,
    over: str = "local steps",
    start: float = 0.0,
    last: float = 0.0,
    top: float | None = None,
    level: Level | None = None,
    label: str = "",
) -> Chart | None:
    """Return a metric over the training, or None where no line has a value.

    Args:
        metric: a column of the record.
        lines: what is compared: runs, or the means of several with their bands.
        over: what x counts.
        start, last: where the x axis begins, and how far it must reach at least.
        top: upper end of the y axis; by default all of it is seen, and accuracy reaches up to 1.
        level: a budget to draw across.
        label: of the y axis, if it says more than the metric's name.
    """
    seen = [line for line in lines if np.isfinite(line.y).any()]
    if not seen:
        return None
    percent = metric == "accuracy"
    reach = [line.y if line.spread is None else line.y + np.nan_to_num(line.spread) for line in seen]
    if top is None:
        top = 1.0 if percent else highest([*reach, *([level.at] if level else [])])
    bottom = min(float(line.y[np.isfinite(line.y)].min()) for line in seen)
    right = max([last, *(float(line.x.max()) for line in seen)])
    label = label or METRICS[metric]
    return Chart(
        title=f"{label} over {over}",
        x=Axis(label=over, low=start, high=right if right > start else start + 1, whole=True),
        y=Axis(label=label, low=min(0.0, bottom), high=top, percent=percent),
        parts=(*seen, *([level] if level else [])),
    )
