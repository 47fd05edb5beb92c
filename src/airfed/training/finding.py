"""Where runs are, and how far: cheap looks that verify nothing. What a run says is told by `airfed.training.run`."""

from __future__ import annotations

from pathlib import Path

from airfed.training.directory import RunDirectory, RunError


def runs_below(folder: Path, *, depth: int = 3, most: int | None = None) -> list[Path]:
    """Return the run directories up to `depth` levels below a folder, by their paths; a sweep keeps its runs two down.

    Nothing hidden is looked into, nor what a link leads to; `most` ends the search. A folder below that cannot be
    looked into is returned as well: there may be a run in it.

    Raises:
        OSError: the folder itself cannot be listed.
    """
    found: list[Path] = []
    todo = [(folder, 0)]
    while todo and (most is None or len(found) < most):
        here, level = todo.pop()
        try:
            if level and RunDirectory(here).exists:
                found.append(here)
            elif level < depth and here.is_dir():
                inner = (item for item in here.iterdir() if not item.name.startswith("."))
                todo += [(item, level + 1) for item in inner if item.is_dir() and not item.is_symlink()]
        except FileNotFoundError:  # gone since it was found
            continue
        except OSError:
            if not level:
                raise
            found.append(here)
    return sorted(found)


def progress(path: Path) -> float:
    """Return which part of a run is done, from 0 to 1, by the number of its lines alone; 0 where it has not begun."""
    directory = RunDirectory(path)
    try:
        planned = directory.manifest()["rounds"]
        done = directory.read("metrics.jsonl").count(b"\n") if directory.file("metrics.jsonl").exists() else 0
    except RunError:
        return 0.0
    return min(done / planned, 1.0)
