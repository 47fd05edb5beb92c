"""The result of a benchmark: accuracy and expenses of every method over the same seeds, as table, text and figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airfed.experiments.results import Estimate, Record, data_frame, estimate, holm
from airfed.text import output
from airfed.text.output import finite
from airfed.text.phrases import LIMITS, METRICS, compact, count, number
from airfed.text.tables import as_html, as_text, plain_table

if TYPE_CHECKING:
    from airfed.plotting.figure import Figure

REFERENCE: Final = "fedavg"  # of the gap
_OWN: Final = ("weighted", "optimal")  # airfed's plan is the first of these in a table
NOT_COMPARABLE: Final = {  # within the budgets, but under other assumptions
    "dp_fedavg": "A trusted server adds the noise, and power is unlimited.",
    "clairvoyant": "Knows the gains of all rounds in advance.",
}
_MEANS: Final = (
    *("epsilon_total", "mu_total", "power_total", "power_transmitted"),
    *("air_time", "channel_uses", "rounds", "num_scheduled"),
)
_WIDE: Final = 30.0  # losses that differ by a larger factor have a logarithmic axis; expenses above a third of it


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """The result of one method in a benchmark."""

    policy: str  # name of the method
    runs: Mapping[int, Mapping[str, Any]]  # results by seed, for seeds whose run ended
    reasons: Mapping[int, str]  # reason why there is no run, by seed
    failed: bool = False  # whether training failed although there is a plan
    applies: bool = True  # whether it differs from the other methods in this scenario

    @property
    def private(self) -> bool | None:
        """Whether its ε is finite; None if it has no run."""
        return all(run["private"] for run in self.runs.values()) if self.runs else None

    @property
    def broken(self) -> list[str]:
        """The limits that its plans exceed."""
        return list(dict.fromkeys(name for run in self.runs.values() for name in run["violations"]))

    @property
    def within(self) -> bool:
        """Whether it ran with every seed within every budget."""
        return bool(self.runs) and not self.reasons and bool(self.private) and not self.broken

    @property
    def marks(self) -> str:
        """† if it is not private, * if it exceeds a limit."""
        return "†" * (self.private is False) + "*" * bool(self.broken)

    def scores(self, metric: str, seeds: Iterable[int] | None = None) -> list[float]:
        """Return a metric over the seeds; empty if a seed has none."""
        values = [self.runs[seed][metric] for seed in (sorted(self.runs) if seeds is None else seeds)]
        return [] if None in values else values

    def note(self) -> str:
        """Return the caveats of its results, in sentences."""
        sentences = ["Not private."] if self.private is False else []
        if self.broken:
            sentences.append(f"Exceeds a limit: {', '.join(LIMITS[name] for name in self.broken)}.")
        if self.policy in NOT_COMPARABLE and self.runs:
            sentences.append(NOT_COMPARABLE[self.policy])
        for status in ("diverged", "exhausted"):
            if ended := [seed for seed, run in self.runs.items() if run["status"] == status]:
                sentences.append(
                    f"{status.capitalize()} with seed{'s' * (len(ended) > 1)} {', '.join(map(str, ended))}."
                )
        if self.runs:
            sentences += [f"Seed {seed}: {reason}" for seed, reason in self.reasons.items()]
        else:
            sentences += list(self.reasons.values())[:1]  # those of the other seeds differ in the gains only
        return " ".join(sentence[:1].upper() + sentence[1:] for sentence in sentences)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Methods on the same scenario, seeds and budgets, the best first; displayed as a table."""

    name: str  # of the scenario
    budget: str  # of every method, in words
    seeds: tuple[int, ...]  # of every method
    results: tuple[MethodResult, ...]  # the most accurate first (without a test set: the smallest loss)
    replaced: str = ""  # why the budget is not the one in the scenario, if it is not

    @classmethod
    def of(
        cls, name: str, budget: str, seeds: Sequence[int], results: Iterable[MethodResult], *, replaced: str = ""
    ) -> Benchmark:
        """Return the benchmark with its methods sorted."""
        found = cls(name=name, budget=budget, seeds=tuple(seeds), results=tuple(results), replaced=replaced)
        return replace(found, results=tuple(sorted(found.results, key=found.score, reverse=True)))

    @property
    def metric(self) -> str:
        """The metric of the ranking: "accuracy", or "loss" if the task has no test set."""
        tested = any(run["accuracy"] is not None for result in self.results for run in result.runs.values())
        return "accuracy" if tested else "loss"

    def score(self, result: MethodResult) -> float:
        """Return the mean that a method is ranked by; larger is better."""
        values = result.scores(self.metric) if result.runs else []
        mean = float(np.mean(values)) if values else -math.inf
        return -mean if values and self.metric == "loss" else mean

    def differences(self, first: MethodResult, second: MethodResult) -> NDArray[np.float64] | None:
        """Return how much better the first method is with each common seed; None if there are none."""
        shared = sorted(first.runs.keys() & second.runs.keys())
        left, right = first.scores(self.metric, shared), second.scores(self.metric, shared)
        if not shared or not left or not right:
            return None
        return np.subtract(left, right) if self.metric == "accuracy" else np.subtract(right, left)

    def find(self, policy: str) -> MethodResult | None:
        """Return the result of a method; None if it has no runs."""
        return next((result for result in self.results if result.policy == policy and result.runs), None)

    @property
    def own(self) -> MethodResult | None:
        """The result of airfed's plan; None if it has no runs."""
        return next((found for name in _OWN if (found := self.find(name)) is not None), None)

    @property
    def comparable(self) -> list[MethodResult]:
        """Methods within the budgets, with every seed, under the same assumptions; the best first."""
        return [result for result in self.results if result.within and result.policy not in NOT_COMPARABLE]

    def rows(self) -> list[dict[str, Any]]:
        """Return the table as plain values, one row per method, with means over the seeds."""
        return [self._row(result) for result in self.results]

    def _row(self, result: MethodResult) -> dict[str, Any]:
        reference = self.find(REFERENCE)
        gap = self.differences(reference, result) if reference is not None and self.metric == "accuracy" else None
        return {
            "policy": result.policy,
            **_estimated("accuracy", result),
            **{name: _mean([run[name] for run in result.runs.values()]) for name in _MEANS},
            "gap": None if gap is None else float(gap.mean()),
            **_estimated("loss", result),
            "private": result.private,
            "within_budgets": result.within,
            "seeds": len(result.runs),
            "note": result.note(),
        }

    def to_csv(self) -> str:
        """Return the rows as CSV with all digits."""
        return str(data_frame(self.rows()).to_csv(index=False))

    def to_json(self) -> str:
        """Return the rows as a JSON list; infinite values (ε of a method that is not private) are null."""
        return json.dumps(finite(self.rows()), allow_nan=False, indent=1) + "\n"

    def to_latex(self) -> str:
        """Return the rows as a LaTeX table; it needs the package booktabs."""
        lines = [
            r"% needs \usepackage{booktabs}; " + " ".join(self.budget.splitlines()),
            f"% means of {count(len(self.seeds), 'seed')}, with 95% intervals (Student's t)",
            output.exported(self._table(every=True), "latex").rstrip(),
        ]
        lines += [f"% {mark}: {meaning}" for mark, meaning in self._marks().items()]
        lines += [f"% {result.policy}: {' '.join(result.note().split())}" for result in self.results if result.reasons]
        return "\n".join(lines) + "\n"

    def verdict(self) -> list[str]:
        """Return the best mean within the budgets, and how each other method compares with airfed's plan, in sentences.

        The intervals of the paired differences are corrected for the number of methods (Holm).
        """
        comparable = self.comparable
        if not comparable or self.score(comparable[0]) == -math.inf:
            return ["No method has results within the budgets with every seed."]
        best, own = comparable[0], self.own
        sentences = [
            f"Best mean within the budgets: {best.policy}, {self.metric} {_score(self._row(best), self.metric)}."
        ]
        if own is None:
            return [*sentences, "airfed's plan (weighted) is not in the table."]
        differences = {result.policy: self.differences(result, own) for result in comparable if result is not own}
        known = holm({policy: sample for policy, sample in differences.items() if sample is not None})
        ranked = sorted(known, key=lambda policy: -known[policy].mean)
        words = {1: "Better than", 0: "Not separated from", -1: "Worse than"}
        for sign, relation in words.items():
            listed = [f"{policy}, {self._text(known[policy])}" for policy in ranked if known[policy].sign == sign]
            if listed:
                sentences.append(f"{relation} airfed's plan ({own.policy}): {'; '.join(listed)}.")
            elif sign == 1 and known:
                sentences.append(
                    f"No method within the budgets is shown to be better than airfed's plan ({own.policy})."
                )
        if len(known) > 1 and len(self.seeds) > 1:
            sentences.append("The intervals are corrected for the number of comparisons (Holm, 95% for all together).")
        return sentences

    def plot(self) -> dict[str, Any]:
        """Return matplotlib figures by name: accuracy over privacy, over power and over channel uses."""
        from airfed._extras import explained

        rows = [row for row in self.rows() if row[self.metric] is not None]
        timed = any(row["air_time"] is not None for row in rows)
        over = {
            "benchmark-privacy": ("epsilon_total", "exact ε in total"),
            "benchmark-power": ("power_transmitted", "transmitted power, summed over devices and rounds [W]"),
            "benchmark-air": ("air_time", "air time [s]") if timed else ("channel_uses", "symbols, all rounds"),
        }
        with explained():
            return {
                name: _figure(self, rows, column, label)
                for name, (column, label) in over.items()
                if any((row[column] or 0) > 0 for row in rows)
            }

    def __str__(self) -> str:
        return as_text(self.show)

    def _repr_html_(self) -> str:
        return as_html(self.show)

    def show(self, console: Console) -> None:
        """Print the budget, the table, the meaning of its columns, and the verdict."""
        console.print(f"[bold]{escape(self.name)}[/bold] · {count(len(self.seeds), 'seed')} · {self.budget}\n")
        if self.replaced:
            console.print(f"{self.replaced}\n", markup=False)
        table = self._table(every=output.exporting(console))
        if table.row_count:
            console.print(table)
            lines = ["means over the seeds" + ", ± 95% intervals of the means" * (len(self.seeds) > 1)]
            lines += [
                "ε total: exact, from the ledger",
                "W: summed over devices and rounds, planned for the worst case",
            ]
            lines += [f"gap: to {REFERENCE} in points, paired by seed"] if self._has_gap() else []
            lines += [f"{mark} {meaning}" for mark, meaning in self._marks().items()]
            console.print(f"[dim]{'; '.join(lines)}[/dim]")
        notes: dict[str, list[str]] = {}
        for result in self.results:
            if (note := result.note()) not in ("", "Not private."):
                notes.setdefault(note, []).append(result.policy)
        for note, policies in notes.items():
            console.print(f"{', '.join(policies)}: {note}", markup=False)
        console.print("")
        for sentence in self.verdict():
            console.print(f"[bold]{escape(sentence)}[/bold]")

    def _has_gap(self) -> bool:
        return self.find(REFERENCE) is not None and self.metric == "accuracy"

    def _marks(self) -> dict[str, str]:
        used = "".join(result.marks for result in self.results)
        return {mark: text for mark, text in (("†", "not private"), ("*", "exceeds a limit")) if mark in used}

    def _table(self, *, every: bool) -> Table:
        """Return the trained methods, the best first; with `every` also methods that apply and have no run."""
        timed = any(row["air_time"] is not None for row in self.rows())
        columns = ["method", self.metric, "ε total", "W planned", "W sent", "air [s]" if timed else "symbols"]
        table = plain_table(*columns, *(["gap"] if self._has_gap() else []), left=("method",))
        spent = ("epsilon_total", "power_total", "power_transmitted", "air_time" if timed else "channel_uses")
        for result, row in zip(self.results, self.rows(), strict=True):
            if not (result.runs or (every and result.applies)):
                continue
            gap = "-" if row["gap"] is None else f"{100 * row['gap']:.1f}"
            cells = [_score(row, self.metric), *(_number(row[name]) for name in spent), gap]
            table.add_row(
                escape(result.policy + result.marks),
                *cells[: len(table.columns) - 1],
                style="bold" if result is self.own else "",
            )
        return table

    def _text(self, difference: Estimate) -> str:
        """Return a paired difference with its interval, in words."""
        points = self.metric == "accuracy"
        mean, low, high = (
            f"{100 * value:.2f}" if points else number(value)
            for value in (difference.mean, difference.low, difference.high)
        )
        mean = "+" * (difference.mean > 0) + mean + (" points" if points else " of loss")
        interval = f"interval {low} to {high}, paired over {difference.count} seeds"
        return f"{mean} ({interval if difference.count > 1 else 'one seed, so no interval'})"


def spent(record: Record) -> dict[str, Any]:
    """Return the accuracy and loss of a run, and its expenses from the ledger."""
    run = record.run
    assert run is not None  # the point has ended
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


def _figure(benchmark: Benchmark, rows: Sequence[Mapping[str, Any]], column: str, label: str) -> Figure:
    """Return the metric over an expense, a mark with its interval per method; methods without privacy at the right."""
    from airfed.plotting import colours
    from airfed.plotting.figure import PAGE_INCHES, STYLE, Figure, mpl, plain
    from airfed.plotting.series import failed

    metric, several = benchmark.metric, len(benchmark.seeds) > 1
    shown = [row for row in rows if (row[column] or 0) > 0]
    at = np.array([row[column] for row in shown], dtype=np.float64)
    means = np.array([row[metric] for row in shown])
    lows = np.array([row[metric] if row[f"{metric}_low"] is None else row[f"{metric}_low"] for row in shown])
    outside = failed(means) if metric == "accuracy" else np.zeros(means.size, dtype=bool)
    outside &= means < lows[~outside].min()  # no gain where the axis has to reach as low for the others
    note = f"{benchmark.name}: mean of {count(len(benchmark.seeds), 'seed')}"
    note += ", with 95% intervals (Student's t)" if several else ""
    note += f". Budget of each method: {benchmark.budget}."
    missing = ", ".join(row["policy"] for row in rows if row not in shown)
    note += f" Methods without a mark spend none of it, or did not meter it: {missing}." if missing else ""
    note += " Marks at the same place of the horizontal axis are drawn side by side."
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, 3.4), layout="constrained")
        axes = figure.subplots()
        log = np.unique(at).size > 3 and at[np.isfinite(at)].max() > _WIDE / 3 * at.min()
        axes.set_xscale("log" if log else "linear")
        places, ends, wall = _side_by_side(np.log(at) if log else at)
        places, ends, wall = (np.exp(each) if log else each for each in (places, ends, wall))
        for index, row in enumerate(shown):
            half = None if row[f"{metric}_high"] is None else row[f"{metric}_high"] - row[metric]
            y, named = (row[metric], row["policy"])
            if outside[index]:
                y, half, named = (np.nan, None, f"{row['policy']}: {row[metric]:.1%}, outside the axis")
            mark: dict[str, Any] = {"ls": "none", "ms": 5.5, "capsize": 2, "lw": 1, **colours.marker(row["policy"])}
            axes.errorbar(places[index], y, half, label=plain(named), **mark)
        if not np.isfinite(at).all():
            axes.axvline(wall, color="black", lw=0.8, ls=":")
            axes.text(wall, 1.01, " not private", transform=axes.get_xaxis_transform(), fontsize=7)
        axes.set_xlim(*ends)
        locator = mpl.ticker.LogLocator(subs=(1, 2, 5)) if log else mpl.ticker.MaxNLocator(6)
        ticks = locator.tick_values(*ends) if np.unique(at).size > 1 else at[:1]
        ticks = [tick for tick in ticks if ends[0] <= tick < min(wall, ends[1])]
        axes.set_xticks(ticks, [number(tick) for tick in ticks])
        axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        if metric == "accuracy":
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, 0.0), min(high, 1.0))
            axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1))
        elif min(means) > 0 and max(means) > _WIDE * min(means):
            axes.set_yscale("log")
        axes.set_xlabel(label)
        axes.set_ylabel(METRICS[metric] + ", mean and 95% interval" * several)
        figure.legend(loc="outside right upper")
        figure.set_label(note)
    return figure


def _side_by_side(at: Any) -> tuple[Any, Any, Any]:
    """Return the places of marks, those at the same value side by side, the ends of the axis, and where ∞ begins."""
    bounded = at[np.isfinite(at)]
    low, high = (bounded.min(), bounded.max()) if bounded.size else (0.0, 0.0)
    width = (high - low) or max(abs(high), 1.0)
    wall, step = high + 0.14 * width, 0.015 * width
    at = np.where(np.isfinite(at), at, wall + 0.14 * width)
    column = np.round((at - low) / step)
    rank = np.array([np.count_nonzero(column[:index] == own) for index, own in enumerate(column)])
    size = np.array([np.count_nonzero(column == own) for own in column])
    places = at + (rank - (size - 1) / 2) * step
    edges = np.array([places.min(), places.max()]) + np.array([-0.07, 0.07]) * width
    return places, edges, wall


def _estimated(metric: str, result: MethodResult) -> dict[str, float | None]:
    values = result.scores(metric) if result.runs else []
    found = estimate(values) if values else None
    low, high = (found.low, found.high) if found is not None and found.count > 1 else (None, None)
    return {metric: None if found is None else found.mean, f"{metric}_low": low, f"{metric}_high": high}


def _mean(values: Sequence[Any]) -> Any:
    """Return the mean; None if a value is missing, an integer if all are the same integer."""
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


def _number(value: float | None) -> str:
    return "-" if value is None else compact(float(value), 4) if math.isfinite(value) else "∞"
