"""Run studies: train the missing runs, draw figures, test claims, write a page of results.

python -m studies regret prediction --quick --out out/regret
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, Parameter

from airfed.cli.sweep import job_count, print_outcome, print_verdicts, run_points
from airfed.experiments import claims, figures
from airfed.text import output
from airfed.text.tables import plain_table
from studies import catalogue, coverage, networks, page

FROM_RECORDS: Final = {"coverage": coverage.write, "page": page.rewrite}


def main(
    *names: Annotated[
        str,
        Parameter(
            help=f"Studies: {', '.join(catalogue.STUDIES)}; or figures of the paper; or coverage, networks "
            "or page alone."
        ),
    ],
    out: Path = Path("out/studies"),
    quick: bool = False,
    jobs: int | None = None,
    docs: Annotated[Path | None, Parameter(help="Write the results to this Markdown file.")] = None,
) -> int:
    """Run the missing runs of the named studies, draw figures and write their numbers."""
    if len(names) == 1 and names[0] in FROM_RECORDS:
        FROM_RECORDS[names[0]]()
        return 0
    if names == ("networks",):
        networks.train(out, jobs=job_count(jobs))
        return 0
    console = output.make_console(None)
    every = figures.FIGURES | catalogue.STUDIES
    chosen = {name: every[name] for name in names or catalogue.STUDIES}
    found = figures.studies(chosen, quick=quick)
    trained = {title: study for title, study in found.items() if study.points[0].key}
    points = [point for study in trained.values() for point in study.points]
    records, caught = run_points(console, "studies", points, out, jobs=job_count(jobs))
    print_outcome(console, records)
    if caught:
        return 128 + caught[0]
    found |= figures.with_records(trained, records)
    own = []
    for name, definition in chosen.items():
        rows, figure = definition.build(found)
        figures.save(name, rows, figure, out)
        own += catalogue.CHECKS[name](rows) if name in catalogue.CHECKS else []
        if name in catalogue.TABLES:
            header, *body = catalogue.TABLES[name](rows)
            table = plain_table(*header, title=name)
            for cells in body:
                table.add_row(*cells)
            console.print(table)
    results = page.final_results(found)
    if verdicts := claims.check(results) + own:
        print_verdicts(console, verdicts)
    if docs is not None:
        page.write(docs, results, figures=list(chosen), quick=quick, pictures=out)
    return 2 if any(record.status == "failed" for record in records) else 0


if __name__ == "__main__":
    app = App(help=__doc__)
    app.default(main)
    sys.exit(app())
