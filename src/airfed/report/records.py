"""The runs of a report: complete, and verified."""

from __future__ import annotations

from pathlib import Path

from airfed.training.run import Run


class ReportError(ValueError):
    """A run directory cannot be reported on; the message is the user's."""


def read_run(path: Path) -> Run:
    """Return the run in a directory.

    Raises:
        ReportError: it is no run, is damaged or was changed, or has no round yet; the message says which.
    """
    try:
        run = Run.open(path).checked()
    except ValueError as error:
        raise ReportError(f"{path} is not a complete run: {error}") from None
    if not run.rounds:
        raise ReportError(f"{path} is not a complete run: no round has been recorded yet.")
    return run
