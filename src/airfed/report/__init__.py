"""Records of runs -> one self-contained HTML page that opens offline."""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from airfed._disk import write_whole
from airfed.planning import Plan
from airfed.plotting import colours, figure, series
from airfed.problem import InfeasibleError
from airfed.scenario import ScenarioError
from airfed.text.phrases import (
    LIMITS,
    SCOPES,
    TERMS,
    VALIDITY,
    air_sentence,
    antennas_sentence,
    decision_sentence,
    devices_text,
    expectation,
    exposure_sentence,
    gap_sentence,
    method_sentence,
    number,
    privacy_basis,
)
from airfed.training.run import Run

__all__ = ["ReportError", "read_run", "write_report"]

_DARK: Final = (
    '@media screen{:root[data-theme="dark"]{%s}}',
    "@media screen and (prefers-color-scheme: dark){:root:not([data-theme]){%s}}",
)


class ReportError(ValueError):
    """A run directory cannot be reported on; the message is the user's."""


def read_run(path: Path) -> Run:
    """Return the run in a directory.

    Raises:
        ReportError: it is no run, is damaged or was changed, or has no round yet; the message says which.
    """
    try:
        run = Run.open(path).checked()
    except ValueError as error:
        raise ReportError(f"{path} is not a complete run: {error}") from None
    if not run.rounds:
        raise ReportError(f"{path} is not a complete run: no round has been recorded yet.")
    return run


def write_report(runs: Sequence[Run], out: Path) -> None:
    """Write the report of one or several runs to an HTML file.

    Raises:
        ReportError: there is no run, or the file cannot be written.
    """
    if not runs:
        raise ReportError("Expected at least one complete run to report on.")
    try:
        write_whole(out, render(runs).encode())
    except OSError as error:
        raise ReportError(f"Cannot write {out}: {error.strerror}.") from None


def render(runs: Sequence[Run]) -> str:
    """Return the page as text: everything inside, nothing fetched."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = number
    own = resources.files("airfed.report")
    template = environment.from_string(own.joinpath("page.html").read_text("utf-8"))
    script = own.joinpath("page.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    runs = sorted(series.distinct(runs), key=lambda run: run.place)
    groups = series.groups(runs)
    first = [members[0] for members in groups.values()]  # the pictures of one seed stand for the others
    labels = {run.ledger.head: label for label, members in groups.items() for run in members}
    alike = Counter(run.label for run in first)
    shown = [run.label if alike[run.label] == 1 else labels[run.ledger.head] for run in runs]
    bases = dict.fromkeys((label, privacy_basis(run.plan)) for run, label in zip(runs, shown, strict=True))
    longest = max(run.plan.bound.total for run in runs)
    return template.render(
        tasks=series.tasks(runs),
        title=runs[0].scenario.name if len(runs) == 1 else f"{len(runs)} runs",
        script=Markup(script),  # noqa: S704
        script_hash=f"sha256-{digest}",  # a browser runs this script and no other
        style=Markup(colours.stylesheet(_DARK)),  # noqa: S704
        runs=[{**_facts(run, drawn=run in first), "label": name} for run, name in zip(runs, shown, strict=True)],
        bases={basis for _, basis in bases},
        labelled_bases=list(bases),
        bounds=[
            {
                "label": label,
                "total": members[0].plan.bound.total,
                "parts": [
                    (f"term-{name}", f"{TERMS[name]}: {number(value, 4)}", f"{100 * value / longest:.2f}%")
                    for name, value in members[0].plan.bound.terms.items()
                ],
            }
            for label, members in groups.items()
        ],
        term_names=TERMS,
        training=_drawn(figure.run_panels(runs), "training"),
    )


def _drawn(panels: Mapping[str, figure.Draw], place: str) -> list[dict[str, Any]]:
    """Charts with their titles, as markup; `place` tells the ids of their parts apart."""
    return [
        {
            "title": title,
            "tall": title == figure.MAP,
            "svg": Markup(figure.svg(draw, title, height=540 if title == figure.MAP else 240, salt=f"{place} {title}")),  # noqa: S704
        }
        for title, draw in panels.items()
    ]


def _plan_panels(run: Run) -> dict[str, figure.Draw]:
    """The charts of the run's plan, and of its devices where their powers were recorded."""
    plan, curve = run.plan, None
    if not series.round_by_round(plan):
        with suppress(InfeasibleError, ScenarioError):  # a policy may break limits; a surrogate's file may have gone
            curve = series.over_rounds(plan, run.scenario.response if plan.objective == "measured" else None)
    panels = figure.plan_panels(plan, curve)
    if run.devices:
        panels["power per device over the run [W]"] = partial(figure.plot_devices, rows=run.devices)
    return panels


def _held(plan: Plan) -> str:
    """What a limit holds: θ, or where rounds differ all of them."""
    least, largest = (number(float(theta), 4) for theta in (plan.amplitudes.level.min(), plan.alignment))
    return f"θ = {largest}" if least == largest else f"θ, {least} to {largest}, if all grew together"


def _facts(run: Run, *, drawn: bool) -> dict[str, Any]:
    """What the page says of one run in words and numbers, and pictures of its plan where they are `drawn`."""
    plan, final, budget, ledger = run.plan, run.final, run.plan.problem.budget, run.ledger
    return {
        "label": run.label,
        "seed": run.scenario.seed,
        "name": run.scenario.name,
        "path": run.path.name,
        "sentence": " ".join(filter(None, (decision_sentence(plan), method_sentence(plan)))),
        "expectation": expectation(plan),
        "gap": gap_sentence(plan),
        "antennas": antennas_sentence(plan),
        "exposure": exposure_sentence(plan),
        "one_round": "one round" if plan.constant else "most exposed round",
        "charts": _drawn(_plan_panels(run), run.ledger.head) if drawn else [],
        "complete": len(run.rounds) == plan.rounds,
        "rounds": len(run.rounds),
        "planned_rounds": plan.rounds,
        "scheduled": devices_text(plan, "–"),
        "devices": plan.problem.fleet.num_devices,
        "accuracy": final["accuracy"],
        "loss": final["loss"],
        "bound": plan.bound.total,
        "epsilon_round": plan.epsilon_round if plan.private else math.inf,
        "epsilon_total": ledger.epsilon_total if plan.private else math.inf,
        "private": plan.private,
        "air": air_sentence(plan),
        "epsilon_paper": plan.epsilon_paper,
        "validity": VALIDITY[plan.epsilon_paper_validity],
        "epsilon_budget": budget.epsilon,
        "scope": SCOPES[budget.scope],
        "formula": budget.formula,
        "basis": privacy_basis(plan),
        "privacy": ledger.header["privacy"],
        "power_planned": ledger.power_planned,
        "power_spent": final["power_transmitted_total"],
        "power_budget": budget.total_power,
        "charged": ledger.rounds,
        "limits": [
            {"name": LIMITS[name], "value": value, "binds": name == plan.binding} for name, value in plan.limits.items()
        ],
        "held": _held(plan),
        "terms": [{"name": TERMS[name], "value": value} for name, value in plan.bound.terms.items()],
        "notes": plan.notes,
        "toml": run.scenario.to_toml(),
        "engine": run.manifest.get("engine", ""),
        "versions": {"airfed": run.manifest.get("airfed"), **run.manifest.get("versions", {})},
        "digests": {key: value for key, value in run.manifest.items() if key.endswith("sha256")},
    }
