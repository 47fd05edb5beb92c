"""Run directories below one root: found, read, never written, never left."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from airfed.privacy.ledger import Charge
from airfed.running.directory import RunDirectory, RunError
from airfed.running.run import Run

_MOST_RUNS: Final = 500
_DEPTH: Final = 3  # folders below the root that are looked into: a sweep keeps its runs one or two down


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """One run as it is on disk.

    Args:
        name: its path below the root.
        scenario: the name in its scenario.
        plan: `plan.json`.
        metrics: the rounds so far.
        finished: whether its model was written.
        problem: what is wrong with it, "" where nothing is.
    """

    name: str
    scenario: str
    plan: dict[str, Any]
    metrics: list[dict[str, Any]]
    finished: bool
    problem: str = ""

    @property
    def rounds_planned(self) -> int:
        """I."""
        return int(self.plan.get("rounds", 0))

    def last(self, key: str) -> float | None:
        """Return the latest value of a metric."""
        return next((float(r[key]) for r in reversed(self.metrics) if r.get(key) is not None), None)

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Return rounds (counted from 1) and values of a metric where it was taken."""
        taken = [(int(r["round"]) + 1, float(r[key])) for r in self.metrics if r.get(key) is not None]
        return [r for r, _ in taken], [v for _, v in taken]


@dataclass(frozen=True, kw_only=True, eq=False)
class Spending:
    """What a ledger says.

    Args:
        verified: whether its chain of hashes holds and it agrees with the rest of the run.
        problem: the sentence where it does not.
        charges: the rounds as charged.
        header: what is counted.
    """

    verified: bool
    problem: str
    charges: list[Charge]
    header: dict[str, Any]


@dataclass(frozen=True)
class Library:
    """The run directories below `root`."""

    root: Path

    def names(self) -> list[str]:
        """Return the paths of all runs below the root, the newest first, and of folders that cannot be looked into.

        Raises:
            OSError: the root cannot be listed.
        """
        found: list[tuple[float, str]] = []
        folders = [(self.root, 0)]
        while folders and len(found) < _MOST_RUNS:
            folder, depth = folders.pop()
            name = folder.relative_to(self.root).as_posix()
            try:
                if RunDirectory(folder).exists and depth:
                    found.append((_modified(folder), name))
                elif depth < _DEPTH and folder.is_dir():
                    inner = (item for item in folder.iterdir() if not item.name.startswith("."))
                    folders += [(item, depth + 1) for item in inner if item.is_dir() and not item.is_symlink()]
            except FileNotFoundError:  # gone since it was found
                continue
            except OSError:
                if not depth:
                    raise
                found.append((0.0, name))
        return [name for _, name in sorted(found, reverse=True)]

    def path(self, name: str) -> Path:
        """Return the folder of a run.

        Raises:
            RunError: the name leads out of the root, there is no run, or it cannot be looked into.
        """
        root = self.root.resolve()
        folder = (root / name).resolve()
        if folder == root or not folder.is_relative_to(root):
            raise RunError(f"Expected a run below {self.root}, got {name!r}.")
        try:
            if RunDirectory(folder).exists:
                return folder
            os.listdir(folder)  # says why it cannot be looked into
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise RunError(f"Cannot read {name!r}: {error.strerror}.") from None
        raise RunError(f"Expected a run in {name!r}; there is none.")

    def read(self, name: str) -> Record:
        """Return a run; damage is told in its `problem`, not raised, and nothing of a bad run is shown as right.

        Raises:
            RunError: as in `path`.
        """
        run = Run.open(self.path(name))
        good = not run.errors
        return Record(
            name=name,
            scenario=run.name,
            plan=dict(run.figures) if good else {},
            metrics=list(run.rounds) if good else [],
            finished=run.finished,
            problem=run.problem,
        )

    def spending(self, name: str) -> Spending:
        """Return what the run's ledger says, verified as `airfed ledger` does.

        Raises:
            RunError: as in `path`.
        """
        run = Run.open(self.path(name))
        if run.errors:
            return Spending(verified=False, problem=run.problem, charges=[], header={})
        return Spending(verified=True, problem="", charges=run.ledger.charges, header=run.ledger.header)


def _modified(folder: Path) -> float:
    for name in ("metrics.jsonl", "run.json"):
        try:
            return (folder / name).stat().st_mtime
        except OSError:
            continue
    return 0.0
