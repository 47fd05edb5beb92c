"""Render records of runs as one self-contained HTML page that opens offline."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from airfed._disk import write_atomic
from airfed.plotting import colours, figure, series
from airfed.problem import InfeasibleError
from airfed.scenario import ScenarioError
from airfed.text import phrases
from airfed.training.directory import RunDirectory
from airfed.training.run import Run

__all__ = ["ReportError", "read_run", "write_report"]

_DARK: Final = (
    '@media screen{:root[data-theme="dark"]{%s}}',
    "@media screen and (prefers-color-scheme: dark){:root:not([data-theme]){%s}}",
)


class ReportError(ValueError):
    """A report cannot be made of a run directory; the message is for the user."""


def read_run(path: Path) -> Run:
    """Return the run in a directory, or raise ReportError if it is missing, damaged, changed, or without a round."""
    try:
        run = Run.open(path).checked()
        RunDirectory(path).audit()
    except ValueError as error:
        raise ReportError(f"{path} is not a complete run: {error}") from None
    if not run.rounds:
        raise ReportError(f"{path} is not a complete run: no round has been recorded yet.")
    return run


def write_report(runs: Sequence[Run], out: Path) -> None:
    """Write the report of one or several runs to an HTML file, or raise ReportError."""
    if not runs:
        raise ReportError("A report needs at least one complete run.")
    try:
        write_atomic(out, render(runs).encode())
    except OSError as error:
        raise ReportError(f"Cannot write {out}: {error.strerror}.") from None


def render(runs: Sequence[Run]) -> str:
    """Return the page as text; it loads no other file."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = phrases.number
    environment.globals["phrases"] = phrases
    own = resources.files("airfed.report")
    template = environment.from_string(own.joinpath("page.html").read_text("utf-8"))
    script = own.joinpath("page.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    runs = sorted(series.distinct(runs), key=lambda run: run.sort_key)
    groups = series.groups(runs)
    first = [group[0] for group in groups.values()]  # plans are drawn for one seed of each group
    by_ledger = {run.ledger.head: label for label, group in groups.items() for run in group}
    labels = [by_ledger[run.ledger.head] for run in runs]
    bases = dict.fromkeys((label, phrases.privacy_basis(run.plan)) for run, label in zip(runs, labels, strict=True))
    return template.render(
        tasks=series.tasks(runs),
        title=runs[0].scenario.name if len(runs) == 1 else f"{len(runs)} runs",
        script=Markup(script),  # noqa: S704
        script_hash=f"sha256-{digest}",  # the browser runs no other script
        style=Markup(colours.stylesheet(_DARK)),  # noqa: S704
        runs=[_facts(run, label, drawn=run in first) for run, label in zip(runs, labels, strict=True)],
        bases=list(bases),
        bounds={label: group[0].plan.bound for label, group in groups.items()},
        predicted=any(run.plan.prediction for run in runs),
        longest=max(run.plan.bound.total for run in runs),
        training=_drawn(figure.run_panels(runs), "training"),
    )


def _drawn(panels: Mapping[str, figure.Draw], salt: str) -> list[dict[str, Any]]:
    """Return charts with their titles, as markup; `salt` makes the ids of their parts unique."""
    tall = 540 if len(panels) == 5 else 800  # of the power map: two or three rows of the page
    charts = []
    for title, draw in panels.items():
        height = tall if title == figure.MAP else 240
        drawn = Markup(figure.svg(draw, title, height=height, salt=f"{salt} {title}"))  # noqa: S704
        charts.append({"title": title, "tall": title == figure.MAP, "svg": drawn})
    return charts


def _plan_panels(run: Run) -> dict[str, figure.Draw]:
    """Return the charts of the run's plan, and of its devices where their powers were recorded."""
    plan, curve = run.plan, None
    if not series.round_by_round(plan):
        with suppress(InfeasibleError, ScenarioError):  # a policy may break limits; a surrogate's file may be missing
            curve = series.over_rounds(plan, run.scenario.surrogate if plan.objective == "accuracy" else None)
    panels = figure.plan_panels(plan, curve)
    if run.devices:
        panels["power per device over the run [W]"] = partial(figure.plot_devices, rows=run.devices)
    return panels


def _facts(run: Run, label: str, *, drawn: bool) -> dict[str, Any]:
    """Return the values that the page shows of one run, and charts of its plan where they are `drawn`."""
    plan, ledger, audit = run.plan, run.ledger, RunDirectory(run.path).audit()
    least, largest = (phrases.number(float(theta), 4) for theta in (plan.amplitudes.level.min(), plan.alignment))
    sentences = (phrases.schedule_sentence(plan), phrases.method_sentence(plan), phrases.expected_accuracy(plan))
    return {
        **{name: getattr(run, name) for name in ("scenario", "plan", "final", "ledger", "manifest")},
        "label": label,
        "budget": plan.problem.budget,
        "audit": audit if audit and audit["ledger"] == ledger.head else None,  # of the run as it is now
        "rounds": len(run.rounds),
        "sentence": " ".join(filter(None, sentences)),
        "alignment": f"θ = {largest}" if least == largest else f"θ = {least} to {largest}, scaled together",
        "one_round": "one round" if plan.constant else "most exposed round",
        "epsilon_round": plan.epsilon_round if plan.private else math.inf,
        "epsilon_total": ledger.epsilon_total if plan.private else math.inf,
        "charts": _drawn(_plan_panels(run), ledger.head) if drawn else [],
    }
