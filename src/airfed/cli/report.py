"""airfed report: records of runs -> one HTML page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from airfed.cli.plan import Json
from airfed.text import output
from airfed.text.phrases import count


def report(
    directories: Annotated[
        list[Path], Parameter(help="Run directories, or a folder such as a sweep's with runs below it.", negative="")
    ],
    /,
    *,
    out: Annotated[Path, Parameter(help="The HTML file to write.")] = Path("report.html"),
    json: Json = False,
) -> int:
    from airfed.report import ReportError, read_run, write_report

    runs, passed_over = [], []
    for directory in dict.fromkeys(run for given in directories for run in _runs_in(given)):
        try:
            runs.append(read_run(directory))
        except ReportError as error:
            passed_over.append(str(error))
    if not runs:
        raise ReportError(passed_over[0] if passed_over else "Expected at least one run directory.")
    for sentence in passed_over:
        output.say(f"airfed: passed over: {sentence}", file=sys.stderr)
    write_report(runs, out)
    summary = {"written": str(out), "runs": len(runs), "passed_over": passed_over}
    if json:
        output.print_json(summary)
    else:
        output.say(f"written: {out} ({count(len(runs), 'run')})")
    return 0


def _runs_in(given: Path) -> list[Path]:
    """The directory itself where it is a run, else every run up to three folders below it, else itself again."""
    from airfed.training.directory import RunDirectory, runs_below

    return [given] if RunDirectory(given).exists else runs_below(given) or [given]
