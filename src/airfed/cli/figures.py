"""airfed figures: redraw the paper's figures, and test its claims on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from airfed.cli.plan import Json, TableFormat
from airfed.cli.sweep import Address, BackendName, Jobs, job_count, print_outcome, run_points
from airfed.text import exports, output
from airfed.text.tables import plain_table

if TYPE_CHECKING:
    from airfed.experiments.results import Results
    from airfed.experiments.verdicts import Verdict

FigureName = Literal["fig2", "fig3", "fig4", "fig5", "fig6"]  # as in `airfed.experiments.figures`, a slow import
Write = Callable[["Results", list[str]], list[Path]]


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
    """Run what is missing, draw NAME.png and NAME.pdf, and write NAME.csv, the numbers behind it."""
    options: dict[str, Any] = {"backend": backend, "address": address, "json": json, "format": format}
    return run_figures(list(names), out=out, quick=quick, check=check, jobs=jobs, **options)


def run_figures(
    names: Sequence[str],
    *,
    out: Path,
    quick: bool,
    check: bool,
    jobs: int | None = None,
    backend: BackendName = "loky",
    address: str | None = None,
    json: bool = False,
    format: exports.Format | None = None,
    write: Write | None = None,
) -> int:
    """Draw figures of the catalogue, and return the exit code.

    Args:
        names: which ones; all by default.
        out, quick, check, jobs, backend, address, json, format: as on the command line.
        write: with `check`, what else is made of the results and the figures that were drawn, and its files.
    """
    from airfed.experiments import figures as catalogue
    from airfed.experiments import verdicts, workers
    from airfed.experiments.results import Results, final_table
    from airfed.training.directory import RunError

    console = exports.make_console(format, stderr=json, quiet=json)
    at_a_time = job_count(jobs)
    chosen = list(dict.fromkeys(names)) or list(catalogue.FIGURES)
    found = catalogue.studies(chosen, quick=quick)
    started = time.monotonic()
    trained = {title: study for title, study in found.items() if catalogue.trains(title)}
    expanded = [point for study in trained.values() for point in study.points]
    if expanded:
        workers.check(backend, address)
    records, caught = run_points(console, "figures", expanded, out, jobs=at_a_time, backend=backend, address=address)
    if caught:
        print_outcome(console, records)
        return 128 + caught[0]
    found |= catalogue.with_records(trained, records)
    summary: dict[str, Any] = {"out": str(out), "quick": quick, "figures": {}, "problems": []}
    own: list[Verdict] = []
    tables: dict[str, list[list[str]]] = {}
    for name in chosen:
        definition = catalogue.FIGURES[name]
        if definition.takes:
            console.print(f"{name}: {definition.takes}")
        try:
            with console.status(f"drawing {name}"):
                rows, figure = definition.build(found)
                own += definition.check(rows)
                tables |= {name: definition.table(rows)} if definition.table else {}
        except ValueError as error:  # one figure's records must not keep the others from being drawn
            summary["problems"].append(f"{name}: {error}")
            continue
        try:
            summary["figures"][name] = [str(file) for file in catalogue.save(name, rows, figure, out)]
        except OSError as error:
            raise RunError(f"Cannot write {name} to {out}: {error.strerror or error}. The runs are kept.") from None
    results = Results.of(found)
    summary["seconds"] = round(time.monotonic() - started, 1)
    if check:
        tested = verdicts.check(results) + own
        summary["verdicts"] = [verdict.to_dict() for verdict in tested]
        summary["comparisons"] = asdict(verdicts.count(tested))
        if write is not None:
            summary["docs"] = [str(file) for file in write(results, list(summary["figures"]))]
    summary["failed_points"] = sum(record.status == "failed" for record in records)
    if json:
        output.print_json(summary)
    else:
        finals = {name: final_table(results.of_experiment(name)) for name in results.values("experiment")}
        _print(console, summary, finals | tables)
        if check:
            print_verdicts(console, tested)
        if summary["failed_points"]:
            print_outcome(console, records)
    return 2 if summary["failed_points"] or summary["problems"] else 0


def _print(console: Console, summary: dict[str, Any], tables: dict[str, list[list[str]]]) -> None:
    for name, cells in tables.items():
        # All is in the CSV; here a number must not be cut in the middle.
        for unneeded in ("loss", "limit", "best place"):
            if unneeded in cells[0] and _width(cells) > console.width and not exports.exporting(console):
                place = cells[0].index(unneeded)
                cells = [row[:place] + row[place + 1 :] for row in cells]
        header, *body = cells
        table = plain_table(*header, left=("design", "limit", "world", "best place"), title=name)
        for row in body:
            table.add_row(*row)
        console.print(table, "")
    for problem in summary["problems"]:
        console.print(f"not drawn: {problem}", markup=False, soft_wrap=True)
    for files in summary["figures"].values():
        console.print("drawn: " + ", ".join(files), markup=False, soft_wrap=True)
    console.print(f"{summary['seconds']:.0f} s")


def _width(cells: list[list[str]]) -> int:
    """The width of a table without borders, two spaces between columns."""
    return sum(max(map(len, column)) + 2 for column in zip(*cells, strict=True)) - 2


def print_verdicts(console: Console, tested: list[Verdict]) -> None:
    """Print each claim with its comparisons: effect, interval, pass or fail, and why."""
    from airfed.experiments.verdicts import count

    if exports.exporting(console):
        columns = ("claim", "figure", "comparison", "effect", "low", "high", "unit", "verdict", "notes")
        table = plain_table(*columns, left=("claim", "figure", "comparison", "unit", "verdict", "notes"))
        for each in tested:
            figures = (f"{value:.4g}" for value in (each.effect.mean, each.effect.low, each.effect.high))
            said = "pass" if each.passed else "fail"
            cells = (each.claim, each.figure, each.comparison, *figures, each.unit, said, each.notes)
            table.add_row(*(escape(cell) for cell in cells))
        console.print(table)
    claim = ""
    for verdict in tested:
        if verdict.claim != claim:
            claim = verdict.claim
            console.print(f"\n[bold]{claim}[/bold] ({verdict.figure})")
        mark = "[green]pass[/green]" if verdict.passed else "[bold red]FAIL[/bold red]"
        effect = verdict.effect
        interval = f"{effect.mean:+.2f} [{effect.low:+.2f}, {effect.high:+.2f}] {verdict.unit}"
        tail = f" ({verdict.notes})" if verdict.notes else ""
        console.print(f"  {mark}  {verdict.comparison}: {interval}{tail}", soft_wrap=True)
    console.print(f"\n{count(tested).sentence()}; 95% intervals, Student t, paired by seed", soft_wrap=True)
