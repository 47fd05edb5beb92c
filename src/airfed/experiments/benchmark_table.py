"""The result of a benchmark: what every method reached and spent over the same seeds, as table, text and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airfed.experiments.results import Estimate, Record, data_frame, estimate
from airfed.text import output
from airfed.text.output import finite
from airfed.text.phrases import LIMITS, METRICS, compact, count, number
from airfed.text.tables import as_html, as_text, plain_table

if TYPE_CHECKING:
    from airfed.plotting.figure import Figure

CEILING: Final = "noise_free"  # the reference of the gap
OWN: Final = "optimal"  # airfed's plan
OUT_OF_REACH: Final = {  # within the budgets, but not comparable
    "central": "A trusted server adds the noise, and power has no limit.",
    "clairvoyant": "Knows the gains of all rounds beforehand.",
}
_MEANS: Final = (
    *("epsilon_total", "mu_total", "power_total", "power_transmitted"),
    *("air_time", "channel_uses", "rounds", "num_scheduled"),
)
_MARKERS: Final = "osD^v<>pPX*hd8H."
_WIDE: Final = 30.0  # losses that differ by a larger factor have a logarithmic axis


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A method in a benchmark."""

    policy: str  # its name
    runs: Mapping[int, Mapping[str, Any]]  # results by seed, for the seeds whose run ended
    reasons: Mapping[int, str]  # why there is no run, by seed
    failed: bool = False  # whether it has a plan, and training failed all the same
    applies: bool = True  # whether it differs from the other methods in this scenario

    @property
    def private(self) -> bool | None:
        """Whether it keeps any privacy; None where it has no run."""
        return all(run["private"] for run in self.runs.values()) if self.runs else None

    @property
    def broken(self) -> list[str]:
        """The limits that its plans break."""
        return list(dict.fromkeys(name for run in self.runs.values() for name in run["violations"]))

    @property
    def within(self) -> bool:
        """Whether it ran, for every seed, and kept every budget."""
        return bool(self.runs) and not self.reasons and bool(self.private) and not self.broken

    @property
    def marks(self) -> str:
        """† where it is not private, * where it breaks a limit."""
        return "†" * (self.private is False) + "*" * bool(self.broken)

    def scores(self, metric: str, seeds: Iterable[int] | None = None) -> list[float]:
        """Return a metric over the seeds; empty where one of them has none."""
        found = [self.runs[seed][metric] for seed in (sorted(self.runs) if seeds is None else seeds)]
        return [] if None in found else found

    def note(self) -> str:
        """Return the caveats of its results, in sentences."""
        sentences = ["Not private."] if self.private is False else []
        if self.broken:
            sentences.append(f"Breaks a limit: {', '.join(LIMITS[name] for name in self.broken)}.")
        if self.policy in OUT_OF_REACH and self.runs:
            sentences.append(OUT_OF_REACH[self.policy])
        for status in ("diverged", "exhausted"):
            if ended := [seed for seed, run in self.runs.items() if run["status"] == status]:
                sentences.append(
                    f"{status.capitalize()} with seed{'s' * (len(ended) > 1)} {', '.join(map(str, ended))}."
                )
        if self.runs:
            sentences += [f"Seed {seed}: {reason}" for seed, reason in self.reasons.items()]
        else:
            sentences += list(self.reasons.values())[:1]  # the others are alike, for other gains
        return " ".join(sentence[:1].upper() + sentence[1:] for sentence in sentences)


@dataclass(frozen=True, kw_only=True)
class League:
    """Methods on the same scenario, seeds and budgets, the best first; shows itself as a table.

    Args:
        name: of the scenario.
        budget: what each may spend, in words.
        seeds: that every method was trained with.
        entries: the methods, the most accurate first (of a task without a test set: the one of smallest loss); those
            without results come last.
    """

    name: str
    budget: str
    seeds: tuple[int, ...]
    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, name: str, budget: str, seeds: Sequence[int], entries: Iterable[Entry]) -> League:
        """Return the benchmark of some methods, sorted."""
        found = cls(name=name, budget=budget, seeds=tuple(seeds), entries=tuple(entries))
        return replace(found, entries=tuple(sorted(found.entries, key=found.score, reverse=True)))

    @property
    def metric(self) -> str:
        """What methods are ranked by: "accuracy", or "loss" where the task has no test set."""
        measured = any(run["accuracy"] is not None for entry in self.entries for run in entry.runs.values())
        return "accuracy" if measured else "loss"

    def score(self, entry: Entry) -> float:
        """Return what a method is ranked by, the larger the better."""
        values = entry.scores(self.metric) if entry.runs else []
        mean = float(np.mean(values)) if values else -math.inf
        return -mean if values and self.metric == "loss" else mean

    def lead(self, first: Entry, second: Entry) -> Estimate | None:
        """Return how much better the first method is, paired by the seeds that both have; None where there is none."""
        shared = sorted(first.runs.keys() & second.runs.keys())
        ours, theirs = first.scores(self.metric, shared), second.scores(self.metric, shared)
        if not shared or not ours or not theirs:
            return None
        return estimate(np.subtract(ours, theirs) if self.metric == "accuracy" else np.subtract(theirs, ours))

    def entry(self, policy: str) -> Entry | None:
        """Return a method that has results; None where there is none of that name."""
        return next((entry for entry in self.entries if entry.policy == policy and entry.runs), None)

    @property
    def contenders(self) -> list[Entry]:
        """Those within the budgets, for every seed, and comparable, the best first."""
        return [entry for entry in self.entries if entry.within and entry.policy not in OUT_OF_REACH]

    def rows(self) -> list[dict[str, Any]]:
        """Return the table as plain values, a row per method; means over the seeds."""
        return [self._row(entry) for entry in self.entries]

    def _row(self, entry: Entry) -> dict[str, Any]:
        ceiling = self.entry(CEILING)
        gap = self.lead(ceiling, entry) if ceiling is not None and self.metric == "accuracy" else None
        return {
            "policy": entry.policy,
            **_estimated("accuracy", entry),
            **{name: _mean([run[name] for run in entry.runs.values()]) for name in _MEANS},
            "gap": None if gap is None else gap.mean,
            **_estimated("loss", entry),
            "private": entry.private,
            "within_budgets": entry.within,
            "seeds": len(entry.runs),
            "note": entry.note(),
        }

    def to_csv(self) -> str:
        """Return the rows as CSV, exact to the last bit."""
        return str(data_frame(self.rows()).to_csv(index=False))

    def to_json(self) -> str:
        """Return the rows as a JSON list; what is not finite (the ε of a method that is not private) is null."""
        return json.dumps(finite(self.rows()), allow_nan=False, indent=1) + "\n"

    def to_latex(self) -> str:
        """Return the rows as a LaTeX table that needs the package booktabs."""
        lines = [
            r"% needs \usepackage{booktabs}; " + " ".join(self.budget.splitlines()),
            f"% means of {count(len(self.seeds), 'seed')}, with 95% intervals (Student's t)",
            output.exported(self._table(every=True), "latex").rstrip(),
        ]
        lines += [f"% {mark}: {meaning}" for mark, meaning in self._marks().items()]
        lines += [f"% {entry.policy}: {' '.join(entry.note().split())}" for entry in self.entries if entry.reasons]
        return "\n".join(lines) + "\n"

    def verdict(self) -> list[str]:
        """Return the best mean within the budgets, and how each other method compares with airfed's plan, in sentences.

        "ahead" and "behind" only where the 95% interval of the paired difference excludes 0.
        """
        contenders = self.contenders
        if not contenders or self.score(contenders[0]) == -math.inf:
            return ["No scheme has figures within the budgets for every seed."]
        best, own = contenders[0], self.entry(OWN)
        said = [f"Best mean within the budgets: {best.policy}, {self.metric} {_score(self._row(best), self.metric)}."]
        if own is None:
            return [*said, f"airfed's plan ({OWN}) is not in the table."]
        leads = {entry.policy: self.lead(entry, own) for entry in contenders if entry is not own}
        known = {policy: lead for policy, lead in leads.items() if lead is not None}
        ranked = sorted(known, key=lambda policy: -known[policy].mean)
        words = {1: "Ahead of", 0: "Not separated from", -1: "Behind"}
        for sign, where in words.items():
            listed = [f"{policy}, {self._difference(known[policy])}" for policy in ranked if known[policy].sign == sign]
            if listed:
                said.append(f"{where} airfed's plan ({OWN}): {'; '.join(listed)}.")
            elif sign == 1 and known:
                said.append(f"No rival within the budgets is ahead of airfed's plan ({OWN}).")
        return said

    def plot(self) -> dict[str, Any]:
        """Return the matplotlib figures by name: over privacy, over power, over the use of the channel."""
        from airfed._extras import explained

        rows = [row for row in self.rows() if row[self.metric] is not None]
        timed = any(row["air_time"] is not None for row in rows)
        over = {
            "league-privacy": ("epsilon_total", "exact ε of all rounds"),
            "league-power": ("power_transmitted", "power transmitted, all devices and rounds [W]"),
            "league-air": ("air_time", "air time [s]") if timed else ("channel_uses", "symbols sent, all rounds"),
        }
        with explained():
            return {
                name: _picture(self, rows, column, label)
                for name, (column, label) in over.items()
                if any((row[column] or 0) > 0 for row in rows)
            }

    def __str__(self) -> str:
        return as_text(self.show)

    def _repr_html_(self) -> str:
        return as_html(self.show)

    def show(self, console: Console) -> None:
        """Print the table, what its marks mean, and the verdict under it."""
        console.print(f"[bold]{escape(self.name)}[/bold] · {count(len(self.seeds), 'seed')} · {self.budget}\n")
        table = self._table(every=output.exporting(console))
        if table.row_count:
            console.print(table)
            means = ["means over the seeds" + ", ± 95% intervals of their means" * (len(self.seeds) > 1)]
            means += ["ε exact, of all rounds, by the ledger"]
            means += [f"gap: mean points below {CEILING}, seed by seed"] if self._has_gap() else []
            means += [f"{mark} {meaning}" for mark, meaning in self._marks().items()]
            console.print(f"[dim]{'; '.join(means)}[/dim]")
        told: dict[str, list[str]] = {}
        for entry in self.entries:
            if (note := entry.note()) not in ("", "Not private."):
                told.setdefault(note, []).append(entry.policy)
        for note, policies in told.items():
            console.print(f"{', '.join(policies)}: {note}", markup=False)
        console.print("")
        for sentence in self.verdict():
            console.print(f"[bold]{escape(sentence)}[/bold]")

    def _has_gap(self) -> bool:
        return self.entry(CEILING) is not None and self.metric == "accuracy"

    def _marks(self) -> dict[str, str]:
        used = "".join(entry.marks for entry in self.entries)
        return {mark: text for mark, text in (("†", "not private"), ("*", "breaks a limit")) if mark in used}

    def _table(self, *, every: bool) -> Table:
        """The methods that were trained, the best first; with `every` also those that apply and have no run."""
        timed = any(row["air_time"] is not None for row in self.rows())
        columns = ["scheme", self.metric, "ε all", "W planned", "W sent", "air [s]" if timed else "symbols"]
        table = plain_table(*columns, *(["gap"] if self._has_gap() else []), left=("scheme",))
        spent = ("epsilon_total", "power_total", "power_transmitted", "air_time" if timed else "channel_uses")
        for entry, row in zip(self.entries, self.rows(), strict=True):
            if not (entry.runs or (every and entry.applies)):
                continue
            gap = "-" if row["gap"] is None else f"{100 * row['gap']:.1f}"
            cells = [_score(row, self.metric), *(_figure(row[name]) for name in spent), gap]
            table.add_row(
                escape(entry.policy + entry.marks),
                *cells[: len(table.columns) - 1],
                style="bold" if entry.policy == OWN else "",
            )
        return table

    def _difference(self, lead: Estimate) -> str:
        """A paired difference with its interval, in words."""
        points = self.metric == "accuracy"
        mean, low, high = (
            f"{100 * value:.2f}" if points else number(value) for value in (lead.mean, lead.low, lead.high)
        )
        mean = "+" * (lead.mean > 0) + mean + (" points" if points else " of loss")
        sure = f"{low} to {high}, paired over {lead.count} seeds"
        return f"{mean} ({sure if lead.count > 1 else 'one seed, so no interval'})"


def spent(record: Record) -> dict[str, Any]:
    """Return what a run reached, and what it has spent by its ledger."""
    run = record.run
    assert run is not None  # its point has ended
    plan, ledger, private = run.plan, run.ledger, run.plan.private
    return {
        "accuracy": record.final.get("accuracy"),
        "loss": record.final.get("loss"),
        "epsilon_total": ledger.epsilon_total if private else math.inf,
        "mu_total": ledger.mu_total if private else math.inf,
        "power_total": ledger.power_planned,
        "power_transmitted": ledger.power_metered,
        "private": private,
        **{name: getattr(plan, name) for name in ("channel_uses", "air_time", "rounds", "num_scheduled")},
        "violations": list(plan.violations),
        "status": record.status,
    }


def _picture(league: League, rows: Sequence[Mapping[str, Any]], column: str, label: str) -> Figure:
    """The metric over what was spent, a mark with its interval per method; methods without privacy at the right."""
    from airfed.experiments.figures import write_note
    from airfed.plotting import colours
    from airfed.plotting.figure import PAGE_INCHES, STYLE, Figure, mpl, plain

    metric, shown = league.metric, [row for row in rows if (row[column] or 0) > 0]
    bounded = [row[column] for row in shown if math.isfinite(row[column])]
    edge = max(bounded, default=1.0) * (max(bounded, default=1.0) / min(bounded, default=1.0)) ** 0.15 * 1.2
    note = f"{league.name}: mean of {count(len(league.seeds), 'seed')}"
    note += ", with 95% intervals (Student t)" if len(league.seeds) > 1 else ""
    note += f". Each scheme may spend {league.budget}."
    missing = ", ".join(row["policy"] for row in rows if row not in shown)
    note += f" Without a mark, as they spend none of it or did not meter it: {missing}." if missing else ""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, 3.4), layout="constrained")
        axes = figure.subplots()
        axes.set_xscale("log")
        for place, row in enumerate(shown):
            at = row[column] if math.isfinite(row[column]) else 1.2 * edge
            half = None if row[f"{metric}_high"] is None else row[f"{metric}_high"] - row[metric]
            mark: dict[str, Any] = {
                "fmt": _MARKERS[place % len(_MARKERS)],
                "color": colours.PALETTE[colours.policy(row["policy"])],
            }
            axes.errorbar(at, row[metric], half, ms=6, capsize=2, lw=1, alpha=0.85, label=plain(row["policy"]), **mark)
        if len(bounded) < len(shown):
            axes.axvline(edge, color="black", lw=0.8, ls=":")
            axes.text(edge, 1.01, " not private", transform=axes.get_xaxis_transform(), fontsize=7)
        means = [row[metric] for row in shown]
        if metric == "accuracy":
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, 0.0), min(high, 1.0))
            axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, decimals=0))
        elif min(means) > 0 and max(means) > _WIDE * min(means):
            axes.set_yscale("log")
        axes.set_xlabel(label)
        axes.set_ylabel(METRICS[metric])
        figure.legend(loc="outside right upper")
        write_note(figure, note)
    return figure


def _estimated(metric: str, entry: Entry) -> dict[str, float | None]:
    values = entry.scores(metric) if entry.runs else []
    found = estimate(values) if values else None
    low, high = (found.low, found.high) if found is not None and found.count > 1 else (None, None)
    return {metric: None if found is None else found.mean, f"{metric}_low": low, f"{metric}_high": high}


def _mean(values: Sequence[Any]) -> Any:
    """The mean; None where a value is missing, whole where all are the same whole number."""
    if not values or None in values:
        return None
    return values[0] if all(value == values[0] for value in values) else math.fsum(values) / len(values)


def _score(row: Mapping[str, Any], metric: str) -> str:
    mean, high = row[metric], row[f"{metric}_high"]
    if mean is None:
        return "-"
    if metric == "accuracy":
        return f"{mean:.1%}" + ("" if high is None else f" ±{100 * (high - mean):.1f}")
    return number(mean) + ("" if high is None else f" ±{number(high - mean, 2)}")


def _figure(value: float | None) -> str:
    return "-" if value is None else compact(float(value), 4) if math.isfinite(value) else "∞"
