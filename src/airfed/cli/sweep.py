"""airfed sweep, league and figures: many runs, resumable."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from airfed import _extras
from airfed.cli.plan import OUTPUT, Json, ScenarioFile, TableFormat, read, whole_number
from airfed.cli.run import signals
from airfed.text import output
from airfed.text.tables import plain_table

if TYPE_CHECKING:
    from airfed.experiments.claims import Verdict
    from airfed.experiments.points import Point
    from airfed.experiments.results import Record

_MOST_ROWS = 20

FigureName = Literal["fig2", "fig3", "fig4", "fig5", "fig6"]  # as in `airfed.experiments.figures`, a slow import

Jobs = Annotated[int | None, Parameter(help="Points at a time (default: one per processor).", converter=whole_number)]
BackendName = Annotated[
    Literal["loky", "ray", "dask"], Parameter(help="Who runs the points: this machine's processes, Ray or Dask.")
]
Address = Annotated[str | None, Parameter(help="Of the Ray or Dask cluster (default: one on this machine).")]


def sweep(
    experiment: Annotated[Path, Parameter(help="The experiment, a TOML file: base scenario, axes, variants.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="The folder of the sweep; what is there already is not run again.")],
    jobs: Jobs = None,
    backend: BackendName = "loky",
    address: Address = None,
    plot: Annotated[Path | None, Parameter(help="Draw accuracy and loss over training (png, pdf, svg).")] = None,
    quick: Annotated[bool, Parameter(help="Apply the experiment's [quick] table.", negative="")] = False,
    json: Json = False,
    format: TableFormat = None,
) -> int:
    from airfed.experiments import points, results

    console = output.make_console(format, stderr=json, quiet=json)
    workers = _workers(jobs, backend, address)
    if plot is not None:  # before the training, which takes a while
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
        found = {"experiment": loaded.name, "out": str(out), "counts": counts, "points": rows, "tables": written}
        output.print_json(found)
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


def league(
    file: ScenarioFile,
    /,
    *,
    out: Annotated[Path, Parameter(help="The folder of the league; what is there already is not trained again.")],
    seeds: Annotated[
        int, Parameter(help="How many, from the scenario's on; the same for every scheme.", converter=whole_number)
    ] = 5,
    policies: Annotated[str | None, Parameter(help="Who plays, as in optimal,full,top_k (default: all).")] = None,
    total: Annotated[
        float | None,
        Parameter(help="ε of the whole training (default: the scenario's; of one per round, what full spends)."),
    ] = None,
    per_round: Annotated[
        bool, Parameter(help="Keep a budget per round, though schemes then spend different totals.", negative="")
    ] = False,
    jobs: Jobs = None,
    backend: BackendName = "loky",
    address: Address = None,
    json: Json = False,
    format: TableFormat = None,
    latex: Annotated[bool, Parameter(help="The same as --format latex.", negative="", group=OUTPUT)] = False,
) -> int:
    from airfed.experiments import benchmark

    format = "latex" if latex else format
    console = output.make_console(format, stderr=json, quiet=json)
    workers = _workers(jobs, backend, address)
    world = read(file)
    if per_round and total is not None:
        raise ValueError("Expected --total or --per-round, not both.")
    world = world if per_round else benchmark.one_total(world, total)
    named = None if policies is None else [name.strip() for name in policies.split(",")]
    field = benchmark.Field.of(world, seeds=seeds, policies=named)
    benchmark.claim(world, out)
    if not _extras.has("matplotlib"):
        console.print("No pictures: they need matplotlib: pip install 'airfed[report]'.", markup=False)
    results, caught = run_points(console, "league", field.points, out, **workers)
    if caught:
        print_outcome(console, results)
        return 128 + caught[0]
    found = field.league(results)
    written = benchmark.write(found, results, out)
    if json:
        output.print_json(found.rows())
    else:
        found.show(console)
        console.print(f"\n{len(written)} tables and pictures in {out}", markup=False, soft_wrap=True)
    if any(entry.failed for entry in found.entries):
        return 2
    return 0 if any(entry.runs for entry in found.entries) else 3


def figures(
    *names: Annotated[FigureName, Parameter(help="Which ones; all by default.")],
    out: Annotated[Path, Parameter(help="Where pictures, tables and records go.")] = Path("figures"),
    quick: Annotated[bool, Parameter(help="mnist-5k and few seeds: minutes instead of hours.", negative="")] = False,
    check: Annotated[bool, Parameter(help="Test every claim on the records.", negative="")] = False,
    jobs: Jobs = None,
    backend: BackendName = "loky",
    address: Address = None,
    json: Json = False,
    format: TableFormat = None,
) -> int:
    from airfed.experiments import claims
    from airfed.experiments import figures as catalogue

    console = output.make_console(format, stderr=json, quiet=json)
    chosen = {name: catalogue.FIGURES[name] for name in names or catalogue.FIGURES}
    trains = any(definition.trains for definition in chosen.values())
    workers = _workers(jobs, backend, address) if trains else {}
    found = catalogue.studies(chosen, quick=quick)
    trained = {title: study for title, study in found.items() if study.points[0].key}
    points = [point for study in trained.values() for point in study.points]
    records, caught = run_points(console, "figures", points, out, **workers)
    if caught:
        print_outcome(console, records)
        return 128 + caught[0]
    found |= catalogue.with_records(trained, records)
    failed = sum(record.status == "failed" for record in records)
    summary: dict[str, Any] = {"out": str(out), "quick": quick, "figures": {}, "problems": [], "failed_points": failed}
    for name, definition in chosen.items():
        try:
            with console.status(f"drawing {name}"):
                files = catalogue.save(name, *definition.build(found), out)
            summary["figures"][name] = [str(file) for file in files]
            console.print("drawn: " + ", ".join(map(str, files)), markup=False, soft_wrap=True)
        except ValueError as error:  # the other figures are still drawn
            summary["problems"].append(f"{name}: {error}")
            console.print(f"not drawn: {name}: {error}", markup=False, soft_wrap=True)
    results = claims.final_results(found) if records else None
    tested = claims.check(results) if check and results is not None else []
    if json:
        output.print_json(summary | ({"verdicts": [verdict.to_dict() for verdict in tested]} if check else {}))
    else:
        for name, rows in results.groupby("experiment", sort=False) if results is not None and len(results) else ():
            header, *body = claims.final_table(rows)
            table = plain_table(*header, left=("design", "limit"), wrapped=("design",), title=name)
            for row in body:
                table.add_row(*row)
            console.print(table, "")
        if check:
            print_verdicts(console, tested)
        if failed:
            print_outcome(console, records)
    return 2 if failed or summary["problems"] else 0


def _workers(jobs: int | None, backend: BackendName, address: str | None) -> dict[str, Any]:
    """How to run points, for `sweep.run`; raises where that is not possible, before any work is done."""
    from airfed.experiments.sweep import check_backend

    check_backend(backend, address)
    return {"jobs": job_count(jobs), "backend": backend, "address": address}


def job_count(jobs: int | None) -> int:
    """Return how many points to run at a time."""
    if jobs is not None and jobs < 1:
        raise ValueError(f"Expected --jobs={jobs} >= 1.")
    return jobs or len(os.sched_getaffinity(0))


def run_points(
    console: Console, title: str, points: Sequence[Point], out: Path, **options: Any
) -> tuple[list[Record], list[int]]:
    """Run the points that are left under a progress bar; return all records, and the signals that stopped it."""
    from airfed.experiments import sweep

    with signals() as caught:
        if points:
            console.print(sweep.remaining(points, out), soft_wrap=True)
        records = sweep.run(points, out, console=console, title=title, stop=lambda: bool(caught), **options)
    return records, caught


def _print_points(console: Console, records: Sequence[Record]) -> None:
    """Print the finished points, one line each (the first twenty of many)."""
    ended = [record for record in records if record.ended]
    shown = ended if output.exporting(console) else ended[:_MOST_ROWS]
    columns = {
        "devices": ("num_scheduled", "d"),
        "rounds": ("rounds", "d"),
        "accuracy": ("accuracy", ".1%"),
        "loss": ("loss", ".4g"),
        "W sent": ("power_transmitted_total", ".4g"),
        "ε each": ("epsilon_round", ".3g"),
        "ε all": ("epsilon_total", ".3g"),
    }
    table = plain_table("point", *columns, left=("point",), wrapped=("point",))
    for record in shown:
        row = record.row()
        place = [f"{key.rpartition('.')[2]} {value}" for key, value in record.point.values.items()]
        cells = ["" if row[name] is None else format(row[name], form) for name, form in columns.values()]
        table.add_row(escape(", ".join(part for part in (record.point.label, *place) if part)), *cells)
    if ended:
        console.print(table)
    if len(ended) > len(shown):
        console.print(f"and {len(ended) - len(shown)} more")


def print_outcome(console: Console, records: Sequence[Record]) -> None:
    """Print how many points ended in which way, and why the failed ones failed."""
    once = {record.point.key or index: record for index, record in enumerate(records)}  # figures share points
    counts = Counter(record.status for record in once.values())
    console.print(", ".join(f"{number} {status}" for status, number in counts.items()))
    bad = [record for record in records if record.status in ("failed", "diverged", "exhausted")]
    for record in {record.message: record for record in reversed(bad)}.values():
        place = ", ".join(f"{key}={value}" for key, value in record.point.values.items())
        where = " · ".join(part for part in (record.point.label, place) if part)
        console.print(f"{record.status}: {where}: {record.message}", markup=False, soft_wrap=True)
    if counts["stopped"]:
        console.print("Stopped; the same command goes on from there.")


def print_verdicts(console: Console, tested: Sequence[Verdict]) -> None:
    """Print each claim with its comparisons: effect, 95% interval, pass or fail, and why."""
    from airfed.experiments.claims import summary

    columns = ("claim", "comparison", "effect", "low", "high", "unit", "verdict", "notes")
    texts = ("claim", "comparison", "unit", "verdict", "notes")
    table = plain_table(*columns, left=texts, wrapped=texts)
    claim = ""
    for each in tested:
        named = f"{each.claim} ({each.figure})" if each.claim != claim or output.exporting(console) else ""
        figures = (f"{value:+.2f}" for value in (each.effect.mean, each.effect.low, each.effect.high))
        notes = "; ".join(part for part in (each.reason, each.remark) if part)
        table.add_row(named, each.comparison, *figures, each.unit, "pass" if each.passed else "FAIL", notes)
        claim = each.claim
    console.print(table)
    console.print(f"\n{summary(tested)}; 95% intervals, Student t, paired by seed", soft_wrap=True)
