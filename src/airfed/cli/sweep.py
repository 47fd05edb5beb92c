"""airfed sweep, benchmark, frontier and figures: many plans or resumable runs."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from airfed import _extras
from airfed.cli.plan import Json, ScenarioFile, TableFormat, flag, read, whole
from airfed.cli.run import signals
from airfed.text import output
from airfed.text.tables import plain_table

if TYPE_CHECKING:
    from airfed.experiments.claims import Verdict
    from airfed.experiments.points import Point
    from airfed.experiments.results import Record

_MOST_ROWS = 20

FigureName = Literal["fig2", "fig3", "fig4", "fig5", "fig6"]  # as in `airfed.experiments.figures`, a slow import

Jobs = Annotated[int | None, whole("Number of parallel runs (default: one per processor).")]
BackendName = Annotated[
    Literal["loky", "ray", "dask"], Parameter(help="loky: processes on this machine; or a Ray or Dask cluster.")
]
Cluster = Annotated[str | None, Parameter(help="Address of the Ray or Dask cluster (default: one on this machine).")]


def sweep(
    experiment: Annotated[Path, Parameter(help="The experiment, a TOML file with a base scenario, axes and variants.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="The folder of the sweep; finished runs in it are not repeated.")],
    jobs: Jobs = None,
    backend: BackendName = "loky",
    address: Cluster = None,
    plot: Annotated[Path | None, Parameter(help="Draw accuracy and loss to this file (png, pdf, svg).")] = None,
    quick: Annotated[bool, flag("Apply the experiment's [quick] table.")] = False,
    json: Json = False,
    format: TableFormat = None,
) -> int:
    from airfed.experiments import points, results

    console = output.make_console(format, stderr=json, quiet=json)
    workers = _workers(jobs, backend, address)
    if plot is not None:  # before the training, which takes time
        from airfed.experiments import figures
        from airfed.plotting import figure

        figure.check_name(plot)
    if not _extras.has("pyarrow"):
        console.print("Tables: CSV only; Parquet needs pyarrow: pip install 'airfed[sweep]'.", markup=False)
    loaded = points.load(experiment, quick=quick)
    expanded = points.expand(loaded)
    records, caught = run_points(console, loaded.name, expanded, out, **workers)
    written = [str(file) for file in results.write_tables(out, records)]
    counts = Counter(record.status for record in records)
    if json:
        rows = [record.row() for record in records]
        summary = {"experiment": loaded.name, "out": str(out), "counts": counts, "points": rows, "tables": written}
        output.print_json(summary)
    else:
        print_outcome(console, records)
        _print_points(console, records)
        console.print("tables: " + ", ".join(written), markup=False, soft_wrap=True)
    if caught:
        return 128 + caught[0]
    if plot is not None:
        figure.save(figures.training(loaded, records), plot)
        console.print(f"drawn: {plot}", markup=False, soft_wrap=True)
    return 2 if counts["failed"] else 0


def benchmark(
    file: ScenarioFile,
    /,
    *,
    out: Annotated[Path, Parameter(help="The folder of the benchmark; finished runs in it are not repeated.")],
    seeds: Annotated[int, whole("Number of seeds, from the scenario's seed upwards.")] = 5,
    policies: Annotated[
        str | None, Parameter(help="Methods to train, as in optimal,full,top_k (default: all).")
    ] = None,
    total: Annotated[
        float | None,
        Parameter(help="ε in total for every method (default: the scenario's, or the total of full participation)."),
    ] = None,
    per_round: Annotated[bool, flag("Keep a budget per round; methods then spend different totals.")] = False,
    jobs: Jobs = None,
    backend: BackendName = "loky",
    address: Cluster = None,
    json: Json = False,
    format: TableFormat = None,
) -> int:
    from airfed.experiments.benchmark import BenchmarkRuns, claim, one_total, write

    console = output.make_console(format, stderr=json, quiet=json)
    workers = _workers(jobs, backend, address)
    given = read(file)
    if per_round and total is not None:
        raise ValueError("--total and --per-round exclude each other.")
    scenario = given if per_round else one_total(given, total)
    named = None if policies is None else [name.strip() for name in policies.split(",")]
    runs = BenchmarkRuns.of(scenario, seeds=seeds, policies=named, given=given)
    claim(scenario, out)
    if not _extras.has("matplotlib"):
        console.print("No figures: they need matplotlib: pip install 'airfed[report]'.", markup=False)
    records, caught = run_points(console, "benchmark", runs.points, out, **workers)
    if caught:
        print_outcome(console, records)
        return 128 + caught[0]
    table = runs.table(records)
    written = write(table, records, out)
    if json:
        output.print_json(table.rows())
    else:
        table.show(console)
        console.print(f"\n{len(written)} tables and figures in {out}", markup=False, soft_wrap=True)
    if any(result.failed for result in table.results):
        return 2
    return 0 if any(result.runs for result in table.results) else 3


def frontier(
    file: ScenarioFile,
    /,
    *,
    out: Annotated[Path, Parameter(help="The folder for the maps, their tables and the runs of --check.")],
    check: Annotated[bool, flag("Train at ε = 0.5, 1, 2, 4 and 8, and draw the results.")] = False,
    jobs: Jobs = None,
    json: Json = False,
    format: TableFormat = None,
) -> int:
    from airfed.experiments import frontier as maps
    from airfed.plotting import series

    console = output.make_console(format, stderr=json, quiet=json)
    loaded, workers = read(file), _workers(jobs, "loky", None) if check else {}
    points = maps.check_points(loaded) if check else []
    with console.status("planning"):
        found = series.frontier(loaded)
    records, caught = run_points(console, "frontier", points, out, **workers) if check else ([], [])
    found = maps.with_trainings(found, records)
    files = [str(path) for path in maps.write(found, out)]
    if json:
        output.print_json({"scenario": loaded.name, "points": found.rows(), "files": files})
    else:
        console.print(maps.table(found))
        for line in maps.remarks(found, shlex.quote(str(file))):
            console.print(line, markup=False, style="dim")
        console.print("written: " + ", ".join(files), markup=False, soft_wrap=True)
    if any(record.status != "finished" for record in records):
        print_outcome(console, records)
    return 128 + caught[0] if caught else 2 if any(record.status == "failed" for record in records) else 0


def figures(
    *names: Annotated[FigureName, Parameter(help="The figures to draw (default: all).")],
    out: Annotated[Path, Parameter(help="The folder for figures, tables and runs.")] = Path("figures"),
    quick: Annotated[bool, flag("Use mnist-5k and few seeds: minutes, not hours.")] = False,
    check: Annotated[bool, flag("Test the paper's claims on the records.")] = False,
    jobs: Jobs = None,
    backend: BackendName = "loky",
    address: Cluster = None,
    json: Json = False,
    format: TableFormat = None,
) -> int:
    from airfed.experiments import claims
    from airfed.experiments import figures as catalogue

    console = output.make_console(format, stderr=json, quiet=json)
    chosen = {name: catalogue.FIGURES[name] for name in names or catalogue.FIGURES}
    trains = any(definition.trains for definition in chosen.values())
    workers = _workers(jobs, backend, address) if trains else {}
    studies = catalogue.studies(chosen, quick=quick)
    trained = {title: study for title, study in studies.items() if study.points[0].key}
    points = [point for study in trained.values() for point in study.points]
    records, caught = run_points(console, "figures", points, out, **workers)
    if caught:
        print_outcome(console, records)
        return 128 + caught[0]
    studies |= catalogue.with_records(trained, records)
    failed = sum(record.status == "failed" for record in records)
    summary: dict[str, Any] = {"out": str(out), "quick": quick, "figures": {}, "problems": [], "failed_points": failed}
    for name, definition in chosen.items():
        try:
            with console.status(f"drawing {name}"):
                files = catalogue.save(name, *definition.build(studies), out)
            summary["figures"][name] = [str(file) for file in files]
            console.print("drawn: " + ", ".join(map(str, files)), markup=False, soft_wrap=True)
        except ValueError as error:  # the other figures are still drawn
            summary["problems"].append(f"{name}: {error}")
            console.print(f"not drawn: {name}: {error}", markup=False, soft_wrap=True)
    results = claims.final_results(studies) if records else None
    verdicts = claims.check(results) if check and results is not None else []
    if json:
        output.print_json(summary | ({"verdicts": [verdict.to_dict() for verdict in verdicts]} if check else {}))
    else:
        for name, rows in results.groupby("experiment", sort=False) if results is not None and len(results) else ():
            header, *body = claims.final_table(rows)
            table = plain_table(*header, left=("design", "limit"), wrapped=("design",), title=name)
            for row in body:
                table.add_row(*row)
            console.print(table, "")
        if check:
            print_verdicts(console, verdicts)
        if failed:
            print_outcome(console, records)
    return 2 if failed or summary["problems"] else 0


def _workers(jobs: int | None, backend: BackendName, address: str | None) -> dict[str, Any]:
    """Return the options of `sweep.run`; raise if the backend is missing, before any work is done."""
    from airfed.experiments.sweep import check_backend

    check_backend(backend, address)
    return {"jobs": job_count(jobs), "backend": backend, "address": address}


def job_count(jobs: int | None) -> int:
    """Return the number of parallel runs."""
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}.")
    return jobs or len(os.sched_getaffinity(0))


def run_points(
    console: Console, title: str, points: Sequence[Point], out: Path, **options: Any
) -> tuple[list[Record], list[int]]:
    """Run the unfinished points with a progress bar; return all records, and the signals received."""
    from airfed.experiments import sweep

    with signals() as caught:
        if points:
            console.print(sweep.remaining(points, out), soft_wrap=True)
        records = sweep.run(points, out, console=console, title=title, stop=lambda: bool(caught), **options)
    return records, caught


def _print_points(console: Console, records: Sequence[Record]) -> None:
    """Print the finished points, one per line (at most the first twenty)."""
    ended = [record for record in records if record.ended]
    shown = ended if output.exporting(console) else ended[:_MOST_ROWS]
    columns = {
        "devices": ("num_scheduled", "d"),
        "rounds": ("rounds", "d"),
        "accuracy": ("accuracy", ".1%"),
        "loss": ("loss", ".4g"),
        "W sent": ("power_transmitted_total", ".4g"),
        "ε/round": ("epsilon_round", ".3g"),
        "ε total": ("epsilon_total", ".3g"),
    }
    table = plain_table("point", *columns, left=("point",), wrapped=("point",))
    for record in shown:
        row = record.row()
        values = [f"{key.rpartition('.')[2]} {value}" for key, value in record.point.values.items()]
        cells = ["" if row[name] is None else format(row[name], form) for name, form in columns.values()]
        table.add_row(escape(", ".join(part for part in (record.point.label, *values) if part)), *cells)
    if ended:
        console.print(table)
    if len(ended) > len(shown):
        console.print(f"and {len(ended) - len(shown)} more")


def print_outcome(console: Console, records: Sequence[Record]) -> None:
    """Print the number of points by status, and the reasons of those that did not finish."""
    unique = {record.point.key or index: record for index, record in enumerate(records)}  # figures share points
    counts = Counter(record.status for record in unique.values())
    console.print(", ".join(f"{number} {status}" for status, number in counts.items()))
    bad = [record for record in records if record.status in ("failed", "diverged", "exhausted")]
    for record in {record.message: record for record in reversed(bad)}.values():
        values = ", ".join(f"{key}={value}" for key, value in record.point.values.items())
        name = " · ".join(part for part in (record.point.label, values) if part)
        console.print(f"{record.status}: {name}: {record.message}", markup=False, soft_wrap=True)
    if counts["stopped"]:
        console.print("Stopped; the same command resumes.")


def print_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Print each claim with its comparisons: effect, 95% interval, result, and the reason."""
    from airfed.experiments.claims import summary

    columns = ("claim", "comparison", "effect", "low", "high", "unit", "verdict", "notes")
    texts = ("claim", "comparison", "unit", "verdict", "notes")
    table = plain_table(*columns, left=texts, wrapped=texts)
    claim = ""
    for each in verdicts:
        shown = f"{each.claim} ({each.figure})" if each.claim != claim or output.exporting(console) else ""
        effect = (f"{value:+.2f}" for value in (each.effect.mean, each.effect.low, each.effect.high))
        notes = "; ".join(part for part in (each.reason, each.remark) if part)
        table.add_row(shown, each.comparison, *effect, each.unit, each.outcome, notes)
        claim = each.claim
    console.print(table)
    console.print(f"\n{summary(verdicts)}; 95% intervals (Student's t), paired by seed", soft_wrap=True)
