"""airfed sweep: many runs, resumable."""

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
from airfed.cli.plan import Json, TableFormat, whole_number
from airfed.cli.run import signals
from airfed.text import output
from airfed.text.tables import plain_table

if TYPE_CHECKING:
    from airfed.experiments.points import Point
    from airfed.experiments.results import Record

_MOST_ROWS = 20

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
    """Run every point of an experiment, in parallel; skip what is done, resume what was interrupted."""
    from airfed.experiments import points, results
    from airfed.experiments.sweep import check_backend

    console = output.make_console(format, stderr=json, quiet=json)
    at_a_time = job_count(jobs)
    check_backend(backend, address)
    if plot is not None:  # before the training, which takes a while
        from airfed.experiments import figures
        from airfed.plotting import figure

        figure.check_name(plot)
    if not _extras.has("pyarrow"):
        console.print("Tables: CSV only; Parquet needs pyarrow: pip install 'airfed[sweep]'.", markup=False)
    loaded = points.load(experiment, quick=quick)
    expanded = points.expand(loaded)
    records, caught = run_points(console, loaded.name, expanded, out, jobs=at_a_time, backend=backend, address=address)
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
