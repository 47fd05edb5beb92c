"""Run directories below one root: found, read, never written, never left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airfed.running.directory import RunDirectory, RunError
from airfed.running.finding import runs_below
from airfed.running.run import Run

_MOST_RUNS: Final = 500


@dataclass(frozen=True)
class Library:
    """The run directories below `root`."""

    root: Path

    def names(self) -> list[str]:
        """Return the paths of all runs below the root, the newest first.

        Raises:
            OSError: a folder cannot be listed.
        """
        found = sorted(runs_below(self.root, most=_MOST_RUNS), reverse=True)
        return [folder.relative_to(self.root).as_posix() for folder in sorted(found, key=_modified, reverse=True)]

    def read(self, name: str) -> Run:
        """Return a run, whatever state it is in.

        Raises:
            RunError: the name leads out of the root, or there is no run.
        """
        root = self.root.resolve()
        folder = (root / name).resolve()
        if folder == root or not folder.is_relative_to(root):
            raise RunError(f"Expected a run below {self.root}, got {name!r}.")
        if not RunDirectory(folder).exists:
            raise RunError(f"Expected a run in {name!r}; there is none.")
        return Run.open(folder)


def _modified(folder: Path) -> float:
    for name in ("metrics.jsonl", "run.json"):
        try:
            return (folder / name).stat().st_mtime
        except OSError:
            continue
    return 0.0
