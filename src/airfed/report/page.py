"""The page: records and charts into one HTML file that opens offline."""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, StrictUndefined

from airfed import planning
from airfed._disk import write_whole
from airfed.planning import Plan
from airfed.plotting import colours, fading, plans, svg
from airfed.plotting import runs as charts
from airfed.plotting.chart import Cells, Chart
from airfed.plotting.drawings import drawing
from airfed.problem import InfeasibleError
from airfed.report.records import ReportError
from airfed.scenario import ScenarioError
from airfed.text.phrases import (
    LIMITS,
    METRICS,
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

# A chart is drawn for a narrow and for a wide card, and the page shows the one that fits: letters keep their size.
_WIDTHS: Final = {"narrow": 326.0, "wide": 520.0}
_HEIGHT: Final = 280.0
_MAP_HEIGHT: Final = 400.0  # a row for each of many devices
_DARK: Final = (
    '@media screen{:root[data-theme="dark"]{%s}}',
    "@media screen and (prefers-color-scheme: dark){:root:not([data-theme]){%s}}",
)


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
    runs = sorted(charts.distinct(runs), key=lambda run: run.place)
    groups = charts.groups(runs)
    first = [members[0] for members in groups.values()]  # the pictures of one seed stand for the others
    labels = {run.ledger.head: label for label, members in groups.items() for run in members}
    alike = Counter(run.label for run in first)
    shown = [run.label if alike[run.label] == 1 else labels[run.ledger.head] for run in runs]
    bases = dict.fromkeys((label, privacy_basis(run.plan)) for run, label in zip(runs, shown, strict=True))
    longest = max(run.plan.bound.total for run in runs)
    return template.render(
        tasks=charts.tasks(runs),
        title=runs[0].scenario.name if len(runs) == 1 else f"{len(runs)} runs",
        script=drawing(script),
        script_hash=f"sha256-{digest}",  # a browser runs this script and no other
        style=drawing(colours.stylesheet(_DARK)),
        runs=[{**_facts(run, drawn=run in first), "label": name} for run, name in zip(runs, shown, strict=True)],
        bases={basis for _, basis in bases},
        labelled_bases=list(bases),
        bounds=[
            {
                "label": label,
                "total": members[0].plan.bound.total,
                "bar": drawing(svg.stack(members[0].plan.bound.terms, longest)),
            }
            for label, members in groups.items()
        ],
        term_keys=drawing(svg.keyed(*(svg.box_key(label, f"term-{name}") for name, label in TERMS.items()))),
        learning=_drawn({METRICS[metric]: charts.learning(runs, metric) for metric in ("accuracy", "loss")}),
        budgets=_drawn({METRICS["epsilon_total"]: charts.privacy(runs), charts.power_title(runs): charts.power(runs)}),
    )


def _drawn(found: dict[str, Chart | None]) -> list[dict[str, str]]:
    """Charts with their titles and legends, as markup; those without data are left out."""
    return [
        {
            "title": title,
            "legend": drawing(svg.legend(chart)),
            **{
                name: drawing(svg.render(chart, width, _height(chart), y_label=title != chart.y.label))
                for name, width in _WIDTHS.items()
            },
        }
        for title, chart in found.items()
        if chart is not None
    ]


def _height(chart: Chart) -> float:
    return _MAP_HEIGHT if any(isinstance(part, Cells) for part in chart.parts) else _HEIGHT


def _plan_charts(run: Run) -> dict[str, Chart | None]:
    """The charts of the run's plan."""
    plan, rounds = run.plan, None
    devices = {"power per device over the run [W]": plans.devices_chart(run.devices) if run.devices else None}
    if fading.round_by_round(plan):
        return {**fading.pictures(plan), **devices}
    by_accuracy = plan.objective == "measured"
    with suppress(InfeasibleError, ScenarioError):  # a policy may break limits; a surrogate's file may have gone
        rounds = plans.over_rounds(plan, run.scenario.response if by_accuracy else None)
    return {
        "θ over the number of devices": plans.alignment_chart(plan, planning.candidates(plan)),
        f"{'expected accuracy' if by_accuracy else 'bound'} over the number of rounds": rounds,
        **devices,
    }


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
        "charts": _drawn(_plan_charts(run)) if drawn else [],
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
