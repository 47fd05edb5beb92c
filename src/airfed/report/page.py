"""The page: records and charts into one HTML file that opens offline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from airfed._disk import write_whole
from airfed.experiments import style
from airfed.report import charts
from airfed.report.records import ReportError, RunRecord

try:
    from jinja2 import Environment, StrictUndefined
    from plotly.offline import get_plotlyjs
except ModuleNotFoundError:
    raise ValueError('Reports need plotly and jinja2: pip install "airfed[report]".') from None


def write_report(runs: Sequence[RunRecord], out: Path) -> None:
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


def render(runs: Sequence[RunRecord]) -> str:
    """Return the page as text: everything inside, nothing fetched."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(resources.files("airfed.report").joinpath("page.html").read_text("utf-8"))
    runs = sorted(runs, key=lambda run: run.place)
    drawn = _charts(runs)
    return template.render(
        title=runs[0].scenario.name if len(runs) == 1 else f"{len(runs)} runs",
        runs=[_facts(run) for run in runs],
        charts=list(drawn),
        chart_data=_script_safe(drawn),
        plotly=get_plotlyjs(),
    )


def _charts(runs: Sequence[RunRecord]) -> dict[str, dict[str, charts.Chart]]:
    """Charts by section and name; those without data are left out."""
    sections: dict[str, dict[str, charts.Chart | None]] = {
        "learning": {
            "accuracy": charts.learning(runs, "accuracy", "test accuracy", percent=True),
            "loss": charts.learning(runs, "loss", "training loss"),
        },
        "budget": {"epsilon": charts.privacy(runs), "power": charts.power(runs)},
        "decision": {"bound": charts.bound(runs)},
    }
    for index, run in enumerate(runs):
        sections[f"run{index}"] = {"candidates": charts.candidates(run), "devices": charts.devices(run)}
    return {
        section: {name: chart for name, chart in named.items() if chart is not None}
        for section, named in sections.items()
    }


def _facts(run: RunRecord) -> dict[str, Any]:
    """What the page says of one run in words and numbers."""
    plan, final, budget = run.plan, run.final, run.plan.problem.budget
    steps = sorted({min(plan.local_steps), max(plan.local_steps)})
    used = f"{final['epsilon_total']:.4g}"
    return {
        "label": run.label,
        "seed": run.scenario.seed,
        "name": run.scenario.name,
        "path": run.path.name,
        "sentence": (
            f"Schedule {plan.num_scheduled} of {plan.problem.fleet.num_devices} devices, {plan.rounds} rounds of "
            f"{'-'.join(map(str, steps))} steps; {style.LIMIT_NAMES[plan.binding]} is the limit."
        ),
        "complete": len(run.rounds) == plan.rounds,
        "rounds": len(run.rounds),
        "planned_rounds": plan.rounds,
        "scheduled": plan.num_scheduled,
        "devices": plan.problem.fleet.num_devices,
        "accuracy": final["accuracy"],
        "loss": final["loss"],
        "bound": plan.bound.total,
        "epsilon_round": plan.epsilon_round,
        "epsilon_total": used,
        "epsilon_paper": plan.epsilon_paper,
        "validity": plan.epsilon_paper_validity,
        "epsilon_budget": budget.epsilon,
        "scope": "each round" if budget.scope == "round" else "the whole training",
        "formula": budget.formula,
        "delta": budget.delta,
        "relation": "replace one device's data" if budget.relation == "replace" else "add or remove one device",
        "privacy": run.manifest.get("privacy", "simulated"),
        "power_planned": final["power_planned_total"],
        "power_spent": final["power_transmitted_total"],
        "power_budget": budget.total_power,
        "charged": run.ledger.rounds,
        "limits": [
            {"name": style.LIMIT_NAMES[name], "value": value, "binds": name == plan.binding}
            for name, value in plan.limits.items()
        ],
        "alignment": plan.alignment,
        "terms": [{"name": style.TERM_NAMES[name], "value": value} for name, value in plan.bound.terms.items()],
        "notes": plan.notes,
        "toml": run.scenario.to_toml(),
        "engine": run.manifest.get("engine", ""),
        "versions": {"airfed": run.manifest.get("airfed"), **run.manifest.get("versions", {})},
        "digests": {key: value for key, value in run.manifest.items() if key.endswith("sha256")},
    }


def _script_safe(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
