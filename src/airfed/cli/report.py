"""airfed report: one HTML page about one or several runs."""

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
        list[Path], Parameter(help="Run directories, or folders that contain some, such as a sweep's.", negative="")
    ],
    /,
    *,
    out: Annotated[Path, Parameter(help="The HTML file to write.")] = Path("report.html"),
    json: Json = False,
) -> int:
    from airfed.report import ReportError, read_run, write_report

    runs, skipped = [], []
    for directory in dict.fromkeys(run for given in directories for run in _runs_in(given)):
        try:
            runs.append(read_run(directory))
        except ReportError as error:
            skipped.append(str(error))
    if not runs:
        raise ReportError(skipped[0] if skipped else "Give at least one run directory.")
    for sentence in skipped:
        output.say(f"airfed: skipped: {sentence}", file=sys.stderr)
    write_report(runs, out)
    summary = {"written": str(out), "runs": len(runs), "skipped": skipped}
    if json:
        output.print_json(summary)
    else:
        output.say(f"written: {out} ({count(len(runs), 'run')})")
    return 0


def _runs_in(given: Path) -> list[Path]:
    """Return the directory if it is a run or contains none, otherwise the runs up to three folders below it."""
    from airfed.training.directory import RunDirectory, runs_below

    return [given] if RunDirectory(given).exists else runs_below(given) or [given]
