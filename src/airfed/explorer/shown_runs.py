"""What the workers read for the runs section: a folder in, a list, curves and a ledger out. No NiceGUI here.

Whatever lies in a run directory is somebody's file. A run that cannot be read is listed as bad, with its sentence, and
hides no other.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from markupsafe import Markup

from airfed._disk import is_locked
from airfed.explorer import pictures_runs as draw
from airfed.explorer.library import Library
from airfed.running.run import Run
from airfed.showing.drawings import drawing
from airfed.showing.words import count

State = Literal["training", "done", "stopped", "bad"]
Stamp = tuple[tuple[str, int, int], ...]

CHARTS: Final = (
    ("accuracy", "test accuracy", ""),
    ("loss", "training loss", ""),
    ("epsilon_total", "ε spent so far", ""),
    ("power_transmitted_total", "W transmitted so far (dashed: charged)", "power_planned_total"),
)
_MOST_LISTED: Final = 100
_MOST_BYTES: Final = 64_000_000  # of one file
_PATIENCE: Final = 5.0  # seconds for reading all runs
_READ: Final = ("run.json", "plan.json", "metrics.jsonl", "ledger.jsonl", "scenario.toml", "devices.csv")
_WATCHED: Final = (*_READ, "model.safetensors")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run in the list: its name, a line about it, how far it is, and whether it can go on."""

    name: str
    text: str
    state: State
    done: int = 0
    planned: int = 0
    resumable: bool = False


@dataclass(frozen=True, kw_only=True)
class Details:
    """The ticked runs: curves, side by side, and the ledger of the first."""

    legend: Markup
    curves: tuple[Markup, ...]
    comparison: Markup
    ledger_of: str
    ledger: Markup


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What the section shows.

    Args:
        stamps: what the files looked like.
        entries: the list, the newest first.
        details: of the ticked runs, None where none can be shown.
        problem: why the list is not complete.
    """

    stamps: tuple[tuple[str, Stamp], ...]
    entries: tuple[Entry, ...]
    details: Details | None
    problem: str = ""


def read(
    root: Path,
    ticked: tuple[str, ...] | None,
    width: float,
    seen: tuple[tuple[str, Stamp], ...] | None,
) -> Runs | None:
    """Return the runs below a folder; None where nothing has changed.

    Args:
        root: the folder.
        ticked: runs to show in detail; None takes the newest that can be read.
        width: of a chart [px].
        seen: the `stamps` of the last answer, None to have one in any case.
    """
    library = Library(root)
    try:
        names, problem = library.names()[:_MOST_LISTED], ""
    except OSError as error:
        names, problem = [], f"Cannot list {root}: {error.strerror}."
    stamps = tuple((name, _stamp(root / name)) for name in names)
    if stamps == seen:
        return None
    entries: list[Entry] = []
    good: dict[str, Run] = {}
    end = time.monotonic() + _PATIENCE
    for name, stamp in stamps:
        run = None
        if time.monotonic() > end:
            entry = Entry(name=name, text="Not read: the runs before it took too long.", state="bad")
        else:
            entry, run = _entry(root, name, stamp)
        entries.append(entry)
        if run is not None:
            good[name] = run
    if ticked is None:
        ticked = tuple(good)[:1]
    chosen = {name: good[name] for name in ticked if name in good}
    details = _details(chosen, width) if chosen else None
    return Runs(stamps=stamps, entries=tuple(entries), details=details, problem=problem)


def _stamp(folder: Path) -> Stamp:
    found = []
    for name in _WATCHED:
        try:
            status = (folder / name).lstat()
        except OSError:
            continue
        found.append((name if stat.S_ISREG(status.st_mode) else f"!{name}", status.st_mtime_ns, status.st_size))
    return (*found, (".lock", int(is_locked(folder / ".lock")), 0))


def _entry(root: Path, name: str, stamp: Stamp) -> tuple[Entry, Run | None]:
    """The run's line in the list, and the run where it can be shown."""
    try:
        _check_files(stamp)
        run = _read(root, name, stamp)
        if run.errors:
            repairable = not run.running and not run.finished and "--resume" in run.problem
            return Entry(name=name, text=run.problem, state="bad", resumable=repairable), None
        _draw({name: run}, 400.0)  # what cannot be drawn is found here, and spoils no comparison
    except (ValueError, OSError, ArithmeticError) as error:
        return Entry(name=name, text=_damage(error), state="bad"), None
    state: State = "training" if run.running else "done" if run.finished else "stopped"
    done, planned = len(run.rounds), run.rounds_planned
    text = f"{run.figures['policy']} · {done} of {count(planned, 'round')} · {state}"
    text += "" if run.accuracy is None else f", {run.accuracy:.1%}"
    return Entry(name=name, text=text, state=state, done=done, planned=planned, resumable=state == "stopped"), run


def _check_files(stamp: Stamp) -> None:
    """Raise for what must not even be opened: a pipe would be waited for, and a huge file fills the memory."""
    for file, _, size in stamp:
        if file.startswith("!"):
            raise ValueError(f"Expected {file[1:]} to be a file; it is none.")
        if size > _MOST_BYTES and file in _READ:
            raise ValueError(f"Expected {file} of at most {_MOST_BYTES // 10**6} MB, got {size / 1e6:.0f} MB.")


def _details(chosen: Mapping[str, Run], width: float) -> Details:
    curves, comparison = _draw(chosen, width)
    first = next(iter(chosen))
    return Details(
        legend=drawing(draw.run_legend(chosen)),
        curves=curves,
        comparison=comparison,
        ledger_of=first,
        ledger=drawing(draw.ledger_table(chosen[first].ledger)),
    )


def _draw(runs: Mapping[str, Run], width: float) -> tuple[tuple[Markup, ...], Markup]:
    curves = tuple(
        drawing(draw.curves(runs, width, key=key, label=label, planned=planned)) for key, label, planned in CHARTS
    )
    return curves, drawing(draw.comparison_table(runs))


@lru_cache(maxsize=_MOST_LISTED)
def _read(root: Path, name: str, stamp: Stamp) -> Run:
    return Library(root).read(name)


def _damage(error: Exception) -> str:
    """The sentence of an error; errors of Python itself say too little to a reader."""
    if isinstance(error, ValueError) and str(error):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"Cannot read it: {error.strerror}."
    return f"Its figures cannot be drawn ({type(error).__name__})."
