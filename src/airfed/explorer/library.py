"""Run directories below one root: found, read, never written, never left."""

from __future__ import annotations

import os
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
        """Return the paths of all runs below the root, the newest first, and of folders that cannot be looked into.

        Raises:
            OSError: the root cannot be listed.
        """
        found = sorted(runs_below(self.root, most=_MOST_RUNS), reverse=True)
        return [folder.relative_to(self.root).as_posix() for folder in sorted(found, key=_modified, reverse=True)]

    def read(self, name: str) -> Run:
        """Return a run, whatever state it is in.

        Raises:
            RunError: the name leads out of the root, there is no run, or it cannot be looked into.
        """
        root = self.root.resolve()
        folder = (root / name).resolve()
        if folder == root or not folder.is_relative_to(root):
            raise RunError(f"Expected a run below {self.root}, got {name!r}.")
        try:
            if RunDirectory(folder).exists:
                return Run.open(folder)
            os.listdir(folder)  # says why it cannot be looked into
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise RunError(f"Cannot read {name!r}: {error.strerror}.") from None
        raise RunError(f"Expected a run in {name!r}; there is none.")


def _modified(folder: Path) -> float:
    for name in ("metrics.jsonl", "run.json"):
        try:
            return (folder / name).stat().st_mtime
        except OSError:
            continue
    return 0.0
