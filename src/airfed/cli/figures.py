"""airfed figures: redraw the paper's figures, and test its claims on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from airfed.cli.plan import Json, TableFormat
from airfed.cli.sweep import Address, BackendName, Jobs, job_count, print_outcome, run_points
from airfed.text import output
from airfed.text.tables import plain_table

if TYPE_CHECKING:
    from airfed.experiments.claims import Verdict

FigureName = Literal["fig2", "fig3", "fig4", "fig5", "fig6"]  # as in `airfed.experiments.figures`, a slow import


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
    from airfed.experiments import claims
    from airfed.experiments import figures as catalogue
    from airfed.experiments.sweep import check_backend

    console = output.make_console(format, stderr=json, quiet=json)
    at_a_time = job_count(jobs)
    chosen = {name: catalogue.FIGURES[name] for name in names or catalogue.FIGURES}
    if any(definition.trains for definition in chosen.values()):
        check_backend(backend, address)
    found = catalogue.studies(chosen, quick=quick)
    trained = {title: study for title, study in found.items() if study.points[0].key}
    points = [point for study in trained.values() for point in study.points]
    records, caught = run_points(console, "figures", points, out, jobs=at_a_time, backend=backend, address=address)
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
