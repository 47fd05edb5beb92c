"""What a person calls in a notebook: run a scenario, lay runs side by side, and have schemes compete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from airfed._extras import explained
from airfed.scenario import Scenario, load
from airfed.text import output
from airfed.text import phrases as words
from airfed.text.live import LiveLine
from airfed.text.tables import as_html, as_text, plain_table
from airfed.training.run import Run

if TYPE_CHECKING:
    from airfed.experiments.benchmark_table import League


def run(scenario: Scenario | str | Path, out: str | Path, *, resume: bool = False, progress: bool = True) -> Run:
    """Plan, train over the air, meter and record; return the run. The command line's `airfed run`.

    Args:
        scenario: what to run, or its file.
        out: the run directory; new, or with `resume` an interrupted run's.
        resume: go on with an interrupted run; one that is finished is returned as it is.
        progress: show the live line, in a terminal or a notebook.

    Raises:
        MissingExtra: the model or its data need airfed[sim].
        RunError: the directory is in the way, is busy, or belongs to another scenario, and so on.
        ScenarioError, DataError, InfeasibleError: the scenario is wrong, its data are, or there is no plan.

    >>> import airfed, tempfile, tomllib
    >>> from airfed.scenario import parse, template
    >>> world = parse(tomllib.loads(template.SCENARIO)).override({
    ...     "learning.model": "quadratic", "learning.dimension": 20, "fleet.num_devices": 5, "policy.rounds": 4})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = airfed.run(world, f"{folder}/run", progress=False)
    >>> done.finished, len(done.rounds), done.plan.num_scheduled
    (True, 4, 4)
    """
    from airfed.training.execution import execute  # here: looking at runs needs no engine

    world = scenario if isinstance(scenario, Scenario) else load(scenario)
    with explained(), LiveLine(output.make_console(quiet=not progress)) as line:
        execute(
            world,
            Path(out),
            resume=resume,
            on_start=lambda setup, first_round: line.begin(setup.plan, first_round),
            on_round=line.update,
        )
    return Run.open(out)


@dataclass(frozen=True)
class Comparison:
    """Runs side by side; shows itself as a table."""

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
            from airfed.plotting import files

        return files.runs_figure(self.runs)

    def __str__(self) -> str:
        return as_text(self._print)

    def _repr_html_(self) -> str:
        return as_html(self._print)

    def _print(self, console: Console) -> None:
        rows = self.rows()
        columns = [words.COLUMNS.get(name, name) for name in rows[0]]
        table = plain_table(*columns, left=("run", "policy"), wrapped=columns)
        for row in rows:
            table.add_row(*(words.cell(name, value) for name, value in row.items()))
        console.print(table)


def compare(runs: Sequence[Run | str | Path]) -> Comparison:
    """Return runs side by side: what each has reached and spent, from its verified record.

    Args:
        runs: runs, or their directories.

    Raises:
        ValueError: there is none, or one of them is damaged or was changed.

    >>> import airfed, tempfile, tomllib
    >>> from airfed.scenario import parse, template
    >>> world = parse(tomllib.loads(template.SCENARIO)).override({
    ...     "learning.model": "quadratic", "learning.dimension": 20, "fleet.num_devices": 5, "policy.rounds": 4})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("optimal", "full"):
    ...         _ = airfed.run(world.override({"policy.name": name}), f"{folder}/{name}", progress=False)
    ...     side_by_side = airfed.compare([f"{folder}/optimal", f"{folder}/full"])
    >>> [(row["run"], row["rounds"]) for row in side_by_side.rows()]
    [('optimal', 4), ('full', 4)]
    """
    found = tuple((run if isinstance(run, Run) else Run.open(run)).checked() for run in runs)
    if not found:
        raise ValueError("Expected at least one run to compare.")
    return Comparison(found)


def league(
    scenario: Scenario | str | Path,
    out: str | Path,
    *,
    seeds: int = 5,
    policies: Sequence[str] | None = None,
    total: float | None = None,
    per_round: bool = False,
    jobs: int = 1,
    progress: bool = True,
) -> League:
    """Train every scheme that applies to a scenario, with the same seeds within the same budgets, and rank them.

    The command line's `airfed league`: what is in the folder already is not trained again.

    Args:
        scenario: the world and its budgets, or its file; its seed is the first.
        out: the folder of the league.
        seeds: how many.
        policies: who plays; by default all.
        total: ε of the whole training; by default the scenario's, or of one per round what full participation spends.
        per_round: keep a budget per round, though schemes then spend different totals.
        jobs: runs at a time.
        progress: show the live line.

    Raises:
        MissingExtra: the model, its data, or running several at a time need an extra.
        RunError: the folder belongs to another scenario, is busy, or cannot be written.
        ValueError: `seeds` is below 1, a policy is unknown, or the scenario is wrong.

    >>> import airfed, tempfile, tomllib
    >>> from airfed.scenario import parse, template
    >>> world = parse(tomllib.loads(template.SCENARIO)).override({
    ...     "learning.model": "quadratic", "learning.dimension": 20, "fleet.num_devices": 5, "policy.rounds": 4})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = airfed.league(world, folder, seeds=2, policies=["optimal", "top_k"], progress=False)
    >>> [(row["policy"], row["rounds"], row["seeds"]) for row in table.rows()]
    [('optimal', 4, 2), ('top_k', 4, 2)]
    """
    from airfed.experiments import benchmark

    world = scenario if isinstance(scenario, Scenario) else load(scenario)
    console = output.make_console(quiet=not progress)
    with explained():
        world = world if per_round else benchmark.one_total(world, total)
        return benchmark.run(world, Path(out), seeds=seeds, policies=policies, jobs=jobs, console=console)
