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
from airfed.showing import exports
from airfed.showing.tables import plain_table
from airfed.showing.words import compact, count, number

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
    columns += ["behind"] if ceiling else []
    table = plain_table(*columns, left=("scheme",))
    for entry, row in zip(league.entries, rows, strict=True):
        if not (entry.runs or (every and entry.applies)):
            continue
        spent = ("epsilon_total", "power_total", "power_transmitted", "air_time" if timed else "channel_uses")
        figures = [_score(row, league.metric), *(_figure(row[name]) for name in spent), _points(row["behind"])]
        table.add_row(
            escape(entry.policy + "".join(_MARKS[mark] for mark in _marks(entry))),
            *(figures[: len(columns) - 1] if entry.runs else ["-"] * (len(columns) - 1)),
            style="bold" if entry.policy == OWN else "",
        )
    return table


def _has_ceiling(league: League) -> bool:
    return league.entry(CEILING) is not None and league.metric == "accuracy"


def verdict(league: League) -> list[str]:
    """Return who is best within the budgets, and whether a rival beats airfed's plan, in sentences."""
    contenders = league.contenders
    if not contenders or league.score(contenders[0]) == -math.inf:
        return ["No scheme has figures within the budgets for every seed."]
    best, own = contenders[0], league.entry(OWN)
    row = next(row for row in league.rows() if row["policy"] == best.policy)
    found = f"Best within the budgets: {best.policy}, {league.metric} {_score(row, league.metric)}."
    if own is None:
        return [found, f"airfed's plan ({OWN}) is not in the table."]
    rivals = {entry.policy: entry for entry in contenders if entry is not own}
    leads = {policy: league.lead(entry, own) for policy, entry in rivals.items()}
    ahead = {policy: lead for policy, lead in leads.items() if lead is not None and lead.mean > 0}
    if ahead:
        ranked = sorted(ahead.items(), key=lambda item: -item[1].mean)
        return [found, *(_beaten(league, policy, lead) for policy, lead in ranked)]
    said = f"No rival within the budgets beats airfed's plan ({OWN})"
    level = [policy for policy, lead in leads.items() if lead is not None and lead.mean == 0]
    behind = {policy: league.lead(own, entry) for policy, entry in rivals.items() if policy not in level}
    if level:
        said += f"; {', '.join(level)} {'is' if len(level) == 1 else 'are'} level with it"
    if behind:
        nearest, lead = min(((policy, lead) for policy, lead in behind.items() if lead), key=lambda item: item[1].mean)
        said += f"; the nearest below, {nearest}, is {_difference(league, lead)} behind"
    return [found, f"{said}."] if rivals else [found]


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
    means += [f"behind: points below {CEILING}, seed by seed"] if _has_ceiling(league) else []
    means += ["† not private"] * ("private" in marks) + ["* breaks a limit"] * ("broken" in marks)
    console.print(f"[dim]{'; '.join(means)}[/dim]")
    for entry in league.entries:
        if entry.runs and not entry.reasons and (note := entry.note()) not in ("", "Not private."):
            console.print(f"{entry.policy}: {note}", markup=False)
    console.print("")


def _beaten(league: League, policy: str, lead: Estimate) -> str:
    by = _difference(league, lead)
    if lead.count > 1 and lead.low > 0:
        return f"{policy} beats airfed's plan ({OWN}) by {by}."
    return f"{policy} is ahead of airfed's plan ({OWN}) by {by}: more seeds would have to settle it."


def _difference(league: League, lead: Estimate) -> str:
    """A paired difference with its interval, in words."""
    scale, unit = (100.0, " points") if league.metric == "accuracy" else (1.0, " of loss")
    mean, low, high = (
        f"{scale * value:.2f}" if scale > 1 else number(value) for value in (lead.mean, lead.low, lead.high)
    )
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


def _points(behind: float | None) -> str:
    return "-" if behind is None else f"{100 * behind:.1f}"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return compact(float(value), 4) if math.isfinite(value) else "∞"
