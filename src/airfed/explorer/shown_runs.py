"""What the workers read for the runs section: a folder in, a list, curves and a ledger out. No NiceGUI here.

Whatever lies in a run directory is somebody's file. A run that cannot be read is listed as bad, with its sentence, and
hides no other.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from markupsafe import Markup

from airfed._disk import is_locked
from airfed.explorer import pictures_runs as draw
from airfed.explorer.records import Library, Record, Spending
from airfed.showing.drawings import drawing

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
# What a value of the wrong type or size may cause where it is used; a run's own errors are ValueErrors.
_DAMAGE: Final = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


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
    training: frozenset[str],
    ticked: tuple[str, ...] | None,
    width: float,
    seen: tuple[tuple[str, Stamp], ...] | None,
) -> Runs | None:
    """Return the runs below a folder; None where nothing has changed.

    Args:
        root: the folder.
        training: runs that are being trained by the page.
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
    records: dict[str, Record] = {}
    end = time.monotonic() + _PATIENCE
    for name, stamp in stamps:
        record = None
        if time.monotonic() > end:
            entry = Entry(name=name, text="Not read: the runs before it took too long.", state="bad")
        else:
            entry, record = _entry(root, name, stamp, name in training)
        entries.append(entry)
        if record is not None:
            records[name] = record
    if ticked is None:
        ticked = tuple(records)[:1]
    chosen = [records[name] for name in ticked if name in records]
    details = _details(library, chosen, width, dict(stamps)) if chosen else None
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


def _entry(root: Path, name: str, stamp: Stamp, training: bool) -> tuple[Entry, Record | None]:
    """The run's line in the list, and its record where it can be shown."""
    for file, _, size in stamp:
        if file.startswith("!"):
            return Entry(name=name, text=f"Expected {file[1:]} to be a file; it is none.", state="bad"), None
        if size > _MOST_BYTES and file in _READ:
            text = f"Expected {file} of at most {_MOST_BYTES // 10**6} MB, got {size / 1e6:.0f} MB."
            return Entry(name=name, text=text, state="bad"), None
    try:
        record = _read(root, name, stamp)
        training = training or is_locked(root / name / ".lock")
        if record.problem:
            repairable = not training and not record.finished and "--resume" in record.problem
            return Entry(name=name, text=record.problem, state="bad", resumable=repairable), None
        state: State = "training" if training else "done" if record.finished else "stopped"
        done, planned = len(record.metrics), record.rounds_planned
        accuracy = record.last("accuracy")
        quality = "" if accuracy is None else f", {accuracy:.1%}"
        rounds = f"{done} of {planned} round{'' if planned == 1 else 's'}"
        text = f"{record.plan.get('policy', '')} · {rounds} · {state}{quality}"
        _draw([record], 400.0)  # what cannot be drawn is found here, and spoils no comparison
    except _DAMAGE as error:
        return Entry(name=name, text=_damage(error), state="bad"), None
    resumable = state == "stopped"
    return Entry(name=name, text=text, state=state, done=done, planned=planned, resumable=resumable), record


def _details(library: Library, chosen: Sequence[Record], width: float, stamps: dict[str, Stamp]) -> Details:
    curves, comparison = _draw(chosen, width)
    first = chosen[0].name
    try:
        ledger = drawing(draw.ledger_table(_spending(library.root, first, stamps[first])))
    except _DAMAGE as error:
        ledger = Markup('<p class="note">{}</p>').format(_damage(error))
    return Details(
        legend=drawing(draw.run_legend(chosen)),
        curves=curves,
        comparison=comparison,
        ledger_of=first,
        ledger=ledger,
    )


def _draw(records: Sequence[Record], width: float) -> tuple[tuple[Markup, ...], Markup]:
    curves = tuple(
        drawing(draw.curves(records, width, key=key, label=label, planned=planned)) for key, label, planned in CHARTS
    )
    return curves, drawing(draw.comparison_table(records))


@lru_cache(maxsize=_MOST_LISTED)
def _read(root: Path, name: str, stamp: Stamp) -> Record:
    return Library(root).read(name)


@lru_cache(maxsize=_MOST_LISTED)
def _spending(root: Path, name: str, stamp: Stamp) -> Spending:
    return Library(root).spending(name)


def _damage(error: Exception) -> str:
    """The sentence of an error; errors of Python itself say too little to a reader."""
    if isinstance(error, ValueError) and str(error):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"Cannot read it: {error.strerror}."
    return f"Its record is damaged ({type(error).__name__})."
