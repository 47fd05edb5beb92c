"""A league in words: the table for a terminal, the table for a paper, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airfed.experiments.standings import CEILING, OWN, Entry, League
from airfed.experiments.statistics import Estimate
from airfed.text import exports
from airfed.text.phrases import compact, count, number
from airfed.text.tables import plain_table

_MARKS: Final = {"private": "†", "broken": "*"}


def show(console: Console, league: League) -> None:
    """Print the table, what its marks mean, and the verdict."""
    console.print(f"[bold]{escape(league.name)}[/bold] · {count(len(league.seeds), 'seed')} · {league.budget}\n")
    table = _table(league, every=exports.exporting(console))
    if table.row_count:
        console.print(table)
        _print_meaning(console, league)
    told: dict[str, list[str]] = {}
    for entry in league.entries:
        if entry.reasons:
            told.setdefault(entry.note(), []).append(entry.policy)
    for note, policies in told.items():
        console.print(f"{', '.join(policies)}: {note}", markup=False)
    for sentence in verdict(league):
        console.print(f"[bold]{escape(sentence)}[/bold]")


def _table(league: League, *, every: bool) -> Table:
    """The schemes that were trained, the best first; or every one that applies, those without a run as well."""
    rows = league.rows()
    timed, ceiling = any(row["air_time"] is not None for row in rows), _has_ceiling(league)
    columns = ["scheme", league.metric, "ε all", "W planned", "W sent", "air [s]" if timed else "symbols"]
    columns += ["gap"] if ceiling else []
    table = plain_table(*columns, left=("scheme",))
    for entry, row in zip(league.entries, rows, strict=True):
        if not (entry.runs or (every and entry.applies)):
            continue
        spent = ("epsilon_total", "power_total", "power_transmitted", "air_time" if timed else "channel_uses")
        figures = [_score(row, league.metric), *(_figure(row[name]) for name in spent), _points(row["gap"])]
        table.add_row(
            escape(entry.policy + "".join(_MARKS[mark] for mark in _marks(entry))),
            *(figures[: len(columns) - 1] if entry.runs else ["-"] * (len(columns) - 1)),
            style="bold" if entry.policy == OWN else "",
        )
    return table


def _has_ceiling(league: League) -> bool:
    return league.entry(CEILING) is not None and league.metric == "accuracy"


def verdict(league: League) -> list[str]:
    """Return the best mean within the budgets, and how each rival compares with airfed's plan, in sentences.

    "ahead" and "behind" only where the 95% interval of the paired difference excludes 0.
    """
    contenders = league.contenders
    if not contenders or league.score(contenders[0]) == -math.inf:
        return ["No scheme has figures within the budgets for every seed."]
    best, own = contenders[0], league.entry(OWN)
    row = next(row for row in league.rows() if row["policy"] == best.policy)
    found = f"Best mean within the budgets: {best.policy}, {league.metric} {_score(row, league.metric)}."
    if own is None:
        return [found, f"airfed's plan ({OWN}) is not in the table."]
    every = [(entry.policy, league.lead(entry, own)) for entry in contenders if entry is not own]
    leads = [(policy, lead) for policy, lead in every if lead is not None]
    ahead = [each for each in leads if each[1].sign > 0]
    level = [each for each in leads if each[1].sign == 0]
    behind = [each for each in leads if each[1].sign < 0]
    ranked = sorted(ahead, key=lambda each: -each[1].mean)
    said = [f"{policy} is ahead of airfed's plan ({OWN}) by {_difference(league, lead)}." for policy, lead in ranked]
    if leads and not ahead:
        said.append(f"No rival within the budgets is ahead of airfed's plan ({OWN}).")
    if level:
        differences = "; ".join(f"{policy}, {_difference(league, lead, signed=True)}" for policy, lead in level)
        said.append(f"Not separated from airfed's plan: {differences}.")
    if behind:
        nearest, lead = max(behind, key=lambda each: each[1].mean)
        said.append(f"{nearest} is behind airfed's plan by {_difference(league, -lead)}.")
        if others := [policy for policy, _ in behind if policy != nearest]:
            said.append(f"Further behind in the mean: {', '.join(others)}.")
    return [found, *said]


def latex(league: League) -> str:
    """Return the table for a paper: a tabular that needs the package booktabs."""
    lines = [
        r"% needs \usepackage{booktabs}; " + " ".join(league.budget.splitlines()),
        f"% means of {count(len(league.seeds), 'seed')}, with 95% intervals (Student's t)",
        exports.exported(_table(league, every=True), "latex").rstrip(),
    ]
    marks = {mark for entry in league.entries for mark in _marks(entry)}
    lines += [r"% \dagger: not private"] * ("private" in marks) + ["% *: breaks a limit"] * ("broken" in marks)
    lines += [f"% {entry.policy}: {' '.join(entry.note().split())}" for entry in league.entries if entry.reasons]
    return "\n".join(lines) + "\n"


def _marks(entry: Entry) -> list[str]:
    return ["private"] * (entry.private is False) + ["broken"] * bool(entry.broken)


def _print_meaning(console: Console, league: League) -> None:
    marks = {mark for entry in league.entries for mark in _marks(entry)}
    means = ["means over the seeds" + ", ± 95% intervals of their means" * (len(league.seeds) > 1)]
    means += ["ε exact, of all rounds, by the ledger"]
    means += [f"gap: mean points below {CEILING}, seed by seed"] if _has_ceiling(league) else []
    means += ["† not private"] * ("private" in marks) + ["* breaks a limit"] * ("broken" in marks)
    console.print(f"[dim]{'; '.join(means)}[/dim]")
    for entry in league.entries:
        if entry.runs and not entry.reasons and (note := entry.note()) not in ("", "Not private."):
            console.print(f"{entry.policy}: {note}", markup=False)
    console.print("")


def _difference(league: League, lead: Estimate, *, signed: bool = False) -> str:
    """A paired difference with its interval, in words."""
    scale, unit = (100.0, " points") if league.metric == "accuracy" else (1.0, " of loss")
    mean, low, high = (
        f"{scale * value:.2f}" if scale > 1 else number(value) for value in (lead.mean, lead.low, lead.high)
    )
    if signed and lead.mean > 0:
        mean = f"+{mean}"
    if lead.count < 2:
        return f"{mean}{unit} (one seed, so no interval)"
    return f"{mean}{unit} ({low} to {high}, paired over {lead.count} seeds)"


def _score(row: Mapping[str, Any], metric: str) -> str:
    mean, high = row[metric], row[f"{metric}_high"]
    if mean is None:
        return "-"
    if metric == "accuracy":
        return f"{mean:.1%}" + ("" if high is None else f" ±{100 * (high - mean):.1f}")
    return number(mean) + ("" if high is None else f" ±{number(high - mean, 2)}")


def _points(gap: float | None) -> str:
    return "-" if gap is None else f"{100 * gap:.1f}"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return compact(float(value), 4) if math.isfinite(value) else "∞"
