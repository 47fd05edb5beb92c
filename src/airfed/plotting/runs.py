"""Charts of runs, for reports and files. Pure functions: runs in, charts out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence, Set
from typing import Any, Final

import numpy as np

from airfed.plotting import colours
from airfed.plotting.chart import Chart, Floats, Level, Line
from airfed.plotting.intervals import half_width
from airfed.plotting.training import training_chart
from airfed.text.phrases import METRICS
from airfed.training.run import Run

_SENT: Final = f"{METRICS['power_transmitted_total']} (dotted: planned)"


def distinct(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, each once: a copy of a run has its ledger, and is no second seed."""
    return list({run.ledger.head: run for run in reversed(runs)}.values())[::-1]


def tasks(runs: Sequence[Run]) -> int:
    """Return how many learning tasks the runs are of: losses and bounds of different ones do not compare."""
    return len({json.dumps(run.scenario.content()["learning"], sort_keys=True) for run in runs})


def groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by label; those that differ in their seed alone belong together."""
    found: dict[str, list[Run]] = {}
    for run in distinct(runs):
        found.setdefault(run.group, []).append(run)
    several = tasks(runs) > 1
    told = Counter(members[0].label for members in found.values())
    worlds = Counter((members[0].label, members[0].scenario.name) for members in found.values())
    named: dict[str, list[Run]] = {}
    for members in found.values():
        label = members[0].label
        if several or told[label] > 1:  # the same policy in another world: none of them is just that policy
            label = f"{label} · {members[0].scenario.name}"
        if worlds[members[0].label, members[0].scenario.name] > 1:  # both are called alike: by the folder
            label = f"{label} ({members[0].path.name})"
        while label in named:
            label += "′"
        named[label] = members
    return named


def learning(runs: Sequence[Run], metric: str) -> Chart | None:
    """Return a metric over the local steps: the mean over seeds and its 95% band, or None if no run has it."""
    lines = []
    for label, members, look in _looks(runs):
        steps, values = _series(members, metric)
        spread, name = None, label
        if len(members) > 1 and steps.size:
            spread = half_width(values)
            name = f"{label} ({len(members)} seeds)"
        lines.append(Line(x=steps, y=values.mean(axis=0) if steps.size else steps, name=name, spread=spread, **look))
    return training_chart(metric, lines)


def privacy(runs: Sequence[Run]) -> Chart | None:
    """Return ε so far over the rounds as the ledger has it, with the budget where it covers the whole training."""
    lines = [_spent(run, "epsilon_total", label, look) for label, (run, *_), look in _looks(runs) if run.plan.private]
    level = _budget({run.scenario.budget.epsilon if run.scenario.budget.scope == "total" else None for run in runs})
    return training_chart("epsilon_total", lines, over="rounds charged", start=1, level=level)


def power_title(runs: Sequence[Run]) -> str:
    """Return what `power` shows: private records do not say what was transmitted."""
    metered = any(run.last("power_transmitted_total") is not None for run in runs)
    return _SENT if metered else METRICS["power_planned_total"]


def power(runs: Sequence[Run]) -> Chart | None:
    """Return the power transmitted so far, and the planned worst case as a thin dotted line."""
    lines = []
    for label, (run, *_), look in _looks(runs):
        lines.append(_spent(run, "power_transmitted_total", label, look))
        dotted = {**look, "dash": "dot", "weight": 0.7, "listed": False}
        lines.append(_spent(run, "power_planned_total", f"{label}, planned", dotted))
    level = _budget({run.scenario.budget.total_power for run in runs})
    return training_chart(
        "power_transmitted_total", lines, over="rounds", start=1, level=level, label=power_title(runs)
    )


def _budget(limits: Set[float | None]) -> Level | None:
    """The line of a budget that all runs share; none where they differ, or it does not cover the training."""
    (limit,) = limits if len(limits) == 1 else (None,)
    return None if limit is None else Level(at=limit, name="budget", colour="warn")


def _looks(runs: Sequence[Run]) -> list[tuple[str, list[Run], dict[str, Any]]]:
    """Each group with its label, and the colour and dash of its line."""
    grouped = groups(runs)
    looks = colours.told_apart({label: members[0].scenario.policy.name for label, members in grouped.items()})
    return [
        (label, members, dict(zip(("colour", "dash"), looks[label], strict=True))) for label, members in grouped.items()
    ]


def _spent(run: Run, metric: str, name: str, look: dict[str, Any]) -> Line:
    x, y = run.series(metric)
    return Line(x=x, y=y, name=name, **look)


def _series(members: Sequence[Run], metric: str) -> tuple[Floats, Floats]:
    """The steps and the metric of every member, at the steps where all have it."""
    columns = [
        {step: record[metric] for step, record in zip(run.steps, run.rounds, strict=True) if record[metric] is not None}
        for run in members
    ]
    steps = sorted(set.intersection(*(set(column) for column in columns)))
    return np.array(steps, dtype=np.float64), np.array([[column[step] for step in steps] for column in columns])
