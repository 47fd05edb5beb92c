"""The notebook API: run a scenario, compare runs, and benchmark all methods within the same budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from airfed._extras import explained
from airfed.scenario import Scenario, load
from airfed.text import output
from airfed.text.live import LiveLine
from airfed.text.tables import as_html, as_text, plain_table
from airfed.training.run import Run

if TYPE_CHECKING:
    from airfed.experiments.benchmark_table import Benchmark

_EPSILON: Final = {"epsilon_round": "ε/round", "epsilon_total": "ε total"}
_HEADINGS: Final = _EPSILON | {"power_planned": "W planned", "power_transmitted": "W sent"}


def run(scenario: Scenario | str | Path, out: str | Path, *, resume: bool = False, progress: bool = True) -> Run:
    """Plan, train over the air, meter and record; return the run. The same as `airfed run`.

    `scenario` may be a file; `out` is a new directory, or with `resume` that of an interrupted or finished run.

    Raises:
        MissingExtra: the model or its data need airfed[sim].
        RunError: the directory is not empty, is in use, or belongs to another scenario.
        ScenarioError, DataError, InfeasibleError: the scenario or its data are invalid, or no plan is feasible.

    >>> import airfed, tempfile, tomllib
    >>> from airfed.scenario import parse, template
    >>> scenario = parse(tomllib.loads(template.SCENARIO)).override({
    ...     "learning.model": "quadratic", "learning.dimension": 20, "fleet.num_devices": 5, "policy.rounds": 4})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = airfed.run(scenario, f"{folder}/run", progress=False)
    >>> done.finished, len(done.rounds), done.plan.num_scheduled
    (True, 4, 5)
    """
    from airfed.training.execution import execute  # lazy: reading runs needs no engine

    scenario = scenario if isinstance(scenario, Scenario) else load(scenario)
    with explained(), LiveLine(output.make_console(quiet=not progress)) as line:
        execute(
            scenario,
            Path(out),
            resume=resume,
            on_start=lambda setup, first_round: line.begin(setup.plan, first_round),
            on_round=line.update,
        )
    return Run.open(out)


@dataclass(frozen=True)
class Comparison:
    """Runs side by side; displayed as a table."""

    runs: tuple[Run, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return the table as plain values, a row per run."""
        return [
            {
                "run": run.path.name,
                "policy": run.label,
                "devices": run.plan.num_scheduled,
                "rounds": len(run.rounds),
                "accuracy": run.accuracy,
                "loss": run.last("loss"),
                "epsilon_round": run.plan.epsilon_round,
                "epsilon_total": run.ledger.epsilon_total,
                "power_planned": run.ledger.power_planned,
                "power_transmitted": run.last("power_transmitted_total"),
            }
            for run in self.runs
        ]

    def plot(self) -> Any:
        """Return a matplotlib figure of the runs' accuracy, loss, ε and power."""
        with explained():
            from airfed.plotting import figure

        return figure.runs_figure(self.runs)

    def __str__(self) -> str:
        return as_text(self._print)

    def _repr_html_(self) -> str:
        return as_html(self._print)

    def _print(self, console: Console) -> None:
        rows = self.rows()
        headings = [_HEADINGS.get(name, name) for name in rows[0]]
        table = plain_table(*headings, left=("run", "policy"), wrapped=headings)
        for row in rows:
            table.add_row(*(_cell(name, value) for name, value in row.items()))
        console.print(table)


def _cell(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1%}" if name == "accuracy" else f"{value:.4g}"
    return "-" if value is None else str(value)


def compare(runs: Sequence[Run | str | Path]) -> Comparison:
    """Return runs (or their directories) side by side, from verified records; raise ValueError for a damaged one.

    >>> compare([])
    Traceback (most recent call last):
    ValueError: Give at least one run to compare.
    """
    found = tuple((run if isinstance(run, Run) else Run.open(run)).checked() for run in runs)
    if not found:
        raise ValueError("Give at least one run to compare.")
    return Comparison(found)


def benchmark(
    scenario: Scenario | str | Path,
    out: str | Path,
    *,
    seeds: int = 5,
    policies: Sequence[str] | None = None,
    total: float | None = None,
    per_round: bool = False,
    jobs: int = 1,
    progress: bool = True,
) -> Benchmark:
    """Train every method that applies to a scenario, with the same seeds within the same budgets, and rank them.

    Finished runs in the folder `out` are not repeated. The scenario's seed is the first of the seeds.

    Args:
        policies: methods to train; by default all.
        total: ε in total for every method; by default the scenario's, or the total of full participation.
        per_round: keep a budget per round; methods then spend different totals.

    >>> import airfed, tempfile, tomllib
    >>> from airfed.scenario import parse, template
    >>> small = parse(tomllib.loads(template.SCENARIO)).override({
    ...     "learning.model": "quadratic", "learning.dimension": 20, "fleet.num_devices": 5, "policy.rounds": 4})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = airfed.benchmark(small, folder, seeds=2, policies=["optimal", "top_k"], progress=False)
    >>> [(row["policy"], row["rounds"], row["seeds"]) for row in table.rows()]
    [('optimal', 4, 2), ('top_k', 4, 2)]
    """
    from airfed.experiments.benchmark import one_total
    from airfed.experiments.benchmark import run as run_benchmark

    given = scenario if isinstance(scenario, Scenario) else load(scenario)
    console = output.make_console(quiet=not progress)
    with explained():
        fair = given if per_round else one_total(given, total)
        return run_benchmark(fair, Path(out), seeds=seeds, policies=policies, jobs=jobs, console=console, given=given)
