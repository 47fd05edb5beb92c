"""The table of a league: what every scheme reached and what it spent, over the same seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from rich.console import Console

from airfed.experiments import statistics
from airfed.experiments.records import Record, csv_text
from airfed.experiments.statistics import Estimate
from airfed.text.output import finite
from airfed.text.phrases import LIMITS
from airfed.text.tables import as_html, as_text

CEILING: Final = "noise_free"  # what the others are measured by
OWN: Final = "optimal"  # airfed's plan
OUT_OF_REACH: Final = {  # within the budgets, but no rivals: they show what is left to win
    "central": "A trusted server adds the noise, and power has no limit.",
    "clairvoyant": "Knows the gains of all rounds beforehand.",
}
_MEANS: Final = (
    "epsilon_total",
    "mu_total",
    "power_total",
    "power_transmitted",
    "air_time",
    "channel_uses",
    "rounds",
    "num_scheduled",
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A scheme in a league.

    Args:
        policy: its name.
        runs: what each seed gave, for the seeds whose run ended.
        reasons: why there is no run, by seed.
        failed: whether it has a plan, and training failed all the same.
        applies: whether the scenario is one in which it differs from the others.
    """

    policy: str
    runs: Mapping[int, Mapping[str, Any]]
    reasons: Mapping[int, str]
    failed: bool = False
    applies: bool = True

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

    def scores(self, metric: str, seeds: Iterable[int] | None = None) -> list[float]:
        """Return a metric over the seeds; empty where one of them has none."""
        found = [self.runs[seed][metric] for seed in (sorted(self.runs) if seeds is None else seeds)]
        return [] if None in found else found

    def note(self) -> str:
        """Return what a reader of the figures must know, in sentences."""
        sentences = []
        if self.runs and not self.private:
            sentences.append("Not private.")
        if self.broken:
            sentences.append(f"Breaks a limit: {', '.join(LIMITS[name] for name in self.broken)}.")
        if self.policy in OUT_OF_REACH and self.runs:
            sentences.append(OUT_OF_REACH[self.policy])
        for status in ("diverged", "exhausted"):
            if ended := [seed for seed, run in self.runs.items() if run["status"] == status]:
                sentences.append(f"{status.capitalize()} with {_seeds(ended)}.")
        if not self.runs:
            sentences += list(self.reasons.values())[:1]  # the others are alike, if for other gains
        else:
            sentences += [f"{_seeds([seed])}: {reason}" for seed, reason in self.reasons.items()]
        return " ".join(sentence[:1].upper() + sentence[1:] for sentence in sentences)


@dataclass(frozen=True, kw_only=True)
class League:
    """Schemes on the same scenario, seeds and budgets, the best first; shows itself as a table.

    Args:
        name: of the scenario.
        budget: what each may spend, in words.
        seeds: that every scheme was trained with.
        entries: the schemes, the most accurate first (of a task without a test set: the one of smallest loss); those
            without figures come last.
    """

    name: str
    budget: str
    seeds: tuple[int, ...]
    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, name: str, budget: str, seeds: Sequence[int], entries: Iterable[Entry]) -> League:
        """Return the league of some schemes, in order."""
        found = cls(name=name, budget=budget, seeds=tuple(seeds), entries=tuple(entries))
        ordered = sorted(found.entries, key=lambda entry: -found.score(entry))
        return cls(name=name, budget=budget, seeds=tuple(seeds), entries=tuple(ordered))

    @property
    def metric(self) -> str:
        """What schemes are ranked by: "accuracy", or "loss" where the task has no test set."""
        measured = any(run["accuracy"] is not None for entry in self.entries for run in entry.runs.values())
        return "accuracy" if measured else "loss"

    def score(self, entry: Entry) -> float:
        """Return what a scheme is ranked by, the larger the better."""
        values = entry.scores(self.metric) if entry.runs else []
        mean = float(np.mean(values)) if values else -math.inf
        return -mean if values and self.metric == "loss" else mean

    def lead(self, first: Entry, second: Entry) -> Estimate | None:
        """Return how much better the first scheme is, paired by the seeds that both have; None where there is none."""
        shared = sorted(first.runs.keys() & second.runs.keys())
        ours, theirs = first.scores(self.metric, shared), second.scores(self.metric, shared)
        if not shared or not ours or not theirs:
            return None
        return statistics.paired(ours, theirs) if self.metric == "accuracy" else statistics.paired(theirs, ours)

    def entry(self, policy: str) -> Entry | None:
        """Return a scheme that has figures; None where there is none of that name."""
        return next((entry for entry in self.entries if entry.policy == policy and entry.runs), None)

    @property
    def contenders(self) -> list[Entry]:
        """Those within the budgets, for every seed, and within reach, the best first."""
        return [entry for entry in self.entries if entry.within and entry.policy not in OUT_OF_REACH]

    def rows(self) -> list[dict[str, Any]]:
        """Return the table as plain values, a row per scheme; means over the seeds."""
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
        """Return the rows as CSV, exact to the last bit; a cell without a figure is empty."""
        return csv_text(self.rows())

    def to_json(self) -> str:
        """Return the rows as a JSON list; what is not finite (the ε of a scheme that is not private) is null."""
        return json.dumps(finite(self.rows()), allow_nan=False, indent=1) + "\n"

    def to_latex(self) -> str:
        """Return the rows as a LaTeX table (booktabs)."""
        from airfed.experiments import league_tables

        return league_tables.latex(self)

    def verdict(self) -> list[str]:
        """Return the best mean within the budgets, and which rivals are ahead of, behind or not separated from it."""
        from airfed.experiments import league_tables

        return league_tables.verdict(self)

    def plot(self) -> dict[str, Any]:
        """Return the matplotlib figures by name: over privacy, over power, over the use of the channel."""
        from airfed._extras import explained

        with explained():
            from airfed.experiments import league_figures

        return league_figures.figures(self)

    def __str__(self) -> str:
        return as_text(self.show)

    def _repr_html_(self) -> str:
        return as_html(self.show)

    def show(self, console: Console) -> None:
        """Print the table, and the verdict under it."""
        from airfed.experiments import league_tables

        league_tables.show(console, self)


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
        "channel_uses": plan.channel_uses,
        "air_time": plan.air_time,
        "rounds": plan.rounds,
        "num_scheduled": plan.num_scheduled,
        "violations": list(plan.violations),
        "status": record.status,
    }


def _estimated(metric: str, entry: Entry) -> dict[str, float | None]:
    values = entry.scores(metric) if entry.runs else []
    found = statistics.estimate(values) if values else None
    sure = found is not None and found.count > 1
    return {
        metric: None if found is None else found.mean,
        f"{metric}_low": found.low if found is not None and sure else None,
        f"{metric}_high": found.high if found is not None and sure else None,
    }


def _mean(values: Sequence[Any]) -> Any:
    """The mean; None where a value is missing, whole where all are the same whole number."""
    if not values or None in values:
        return None
    return values[0] if all(value == values[0] for value in values) else math.fsum(values) / len(values)


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
