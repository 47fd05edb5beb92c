"""The Runs tab: run directories below one folder, followed as they grow. They are read, never written, never left.

A run that cannot be read is listed as bad, with its sentence, and hides no other.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from nicegui import ui

from airfed._disk import is_locked
from airfed.explorer.charts import Options, axis, chart, line
from airfed.explorer.design import resume_command
from airfed.explorer.elements import Chart, command_dialog, keys, show_if, text
from airfed.explorer.worker import TooMuchError, compute
from airfed.privacy.ledger import Ledger
from airfed.text.phrases import ADVERSARIES, count, number, privacy_terms
from airfed.training.directory import RunDirectory, RunError, runs_below
from airfed.training.run import Run

Stamp = tuple[tuple[str, int, int], ...]
Stamps = tuple[tuple[str, Stamp], ...]
Table = list[dict[str, str]]

MOST_COMPARED: Final = 6
_MOST_LISTED: Final = 100
_MOST_ROWS: Final = 60  # of a ledger
_MOST_BYTES: Final = 64_000_000  # of one file
_PATIENCE: Final = 5.0  # seconds for reading all runs
_READ: Final = ("run.json", "plan.json", "metrics.jsonl", "ledger.jsonl", "scenario.toml", "devices.csv")
CHARTS: Final = {
    "accuracy": "test accuracy",
    "loss": "training loss",
    "epsilon_total": "ε spent so far",
    "power_transmitted_total": "W transmitted so far (dashed: charged)",
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run in the list: its name, a line about it, its state ("training", "done", "stopped", "bad")."""

    name: str
    text: str
    state: str = "bad"
    resumable: bool = False


@dataclass(frozen=True, kw_only=True)
class Details:
    """The ticked runs: their curves (None where nothing was recorded), side by side, and the ledger of the first."""

    names: list[str]
    curves: list[Options | None]
    comparison: Table
    ledger_text: str
    ledger: Table


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What the tab shows: the list, the newest first, the ticked runs, and why the list is not complete."""

    stamps: Stamps
    entries: tuple[Entry, ...]
    details: Details | None
    problem: str = ""


def names(root: Path) -> list[str]:
    """Return the paths of runs below the root, the newest first, and of folders that cannot be looked into.

    Raises:
        OSError: the root cannot be listed.
    """

    def modified(folder: Path) -> float:
        times = [_status(folder / name) for name in ("metrics.jsonl", "run.json")]
        return next((found.st_mtime for found in times if found), 0.0)

    found = sorted(runs_below(root, most=500), reverse=True)
    return [folder.relative_to(root).as_posix() for folder in sorted(found, key=modified, reverse=True)]


def open_run(root: Path, name: str) -> Run:
    """Return a run, whatever state it is in.

    Raises:
        RunError: the name leads out of the root, or there is no run.
        OSError: it cannot be looked into.
    """
    folder = (root.resolve() / name).resolve()
    if root.resolve() not in folder.parents:
        raise RunError(f"Expected a run below {root}, got {name!r}.")
    if folder.is_dir():
        next(folder.iterdir(), None)  # says why it cannot be looked into
    if not RunDirectory(folder).exists:
        raise RunError(f"Expected a run in {name!r}; there is none.")
    return Run.open(folder)


def read(root: Path, ticked: tuple[str, ...] | None, seen: Stamps | None) -> Runs | None:
    """Return the runs below a folder; None where nothing has changed.

    Args:
        root: the folder.
        ticked: runs to show in detail; None takes the newest that can be read.
        seen: the `stamps` of the last answer, None to have one in any case.
    """
    listed, problem = [], ""
    try:
        listed = names(root)[:_MOST_LISTED]
    except OSError as error:
        problem = f"Cannot list {root}: {error.strerror}."
    stamps = tuple((name, _stamp(root / name)) for name in listed)
    if stamps == seen:
        return None
    entries: list[Entry] = []
    good: dict[str, Run] = {}
    end = time.monotonic() + _PATIENCE
    for name, stamp in stamps:
        if time.monotonic() > end:
            entries.append(Entry(name=name, text="Not read: the runs before it took too long."))
            continue
        entry, run = _entry(root, name, stamp)
        entries.append(entry)
        if run is not None:
            good[name] = run
    chosen = {name: good[name] for name in (tuple(good)[:1] if ticked is None else ticked) if name in good}
    return Runs(stamps=stamps, entries=tuple(entries), details=details(chosen) if chosen else None, problem=problem)


def _status(file: Path) -> Any:
    try:
        return file.lstat()
    except OSError:
        return None


def _stamp(folder: Path) -> Stamp:
    found = [(name, _status(folder / name)) for name in (*_READ, "model.safetensors")]
    files = ((name if stat.S_ISREG(s.st_mode) else f"!{name}", s.st_mtime_ns, s.st_size) for name, s in found if s)
    return (*files, (".lock", int(is_locked(folder / ".lock")), 0))


def _entry(root: Path, name: str, stamp: Stamp) -> tuple[Entry, Run | None]:
    """The run's line in the list, and the run where it can be shown."""
    try:
        for file, _, size in stamp:  # a pipe would be waited for, and a huge file fills the memory
            if file.startswith("!"):
                raise ValueError(f"Expected {file[1:]} to be a file; it is none.")
            if size > _MOST_BYTES and file in _READ:
                raise ValueError(f"Expected {file} of at most {_MOST_BYTES // 10**6} MB, got {size / 1e6:.0f} MB.")
        run = _opened(root, name, stamp)
        if run.errors:
            repairable = not run.running and not run.finished and "--resume" in run.problem
            return Entry(name=name, text=run.problem, resumable=repairable), None
        details({name: run})  # what cannot be drawn is found here, and spoils no comparison
    except OSError as error:
        return Entry(name=name, text=f"Cannot read {name!r}: {error.strerror}."), None
    except (ValueError, ArithmeticError, LookupError) as error:  # Python's own errors say too little to a reader
        said = str(error) if isinstance(error, ValueError) else f"Its figures cannot be drawn ({type(error).__name__})."
        return Entry(name=name, text=said), None
    state = "training" if run.running else "done" if run.finished else "stopped"
    line = f"{run.figures['policy']} · {len(run.rounds)} of {count(run.rounds_planned, 'round')} · {state}"
    line += "" if run.accuracy is None else f", {run.accuracy:.1%}"
    return Entry(name=name, text=line, state=state, resumable=state == "stopped"), run


@lru_cache(maxsize=_MOST_LISTED)
def _opened(root: Path, name: str, stamp: Stamp) -> Run:
    return open_run(root, name)


def details(runs: Mapping[str, Run]) -> Details:
    """Return everything that is shown of ticked runs."""
    ledger = next(iter(runs.values())).ledger
    header, rows = ledger.header, ledger.charges[-_MOST_ROWS:]
    against = f", against {ADVERSARIES[str(header['trust'])]}" if header.get("antennas", 1) > 1 else ""
    terms = privacy_terms(float(header["delta"]), header["relation"])
    said = (
        f"The chain of {count(ledger.rounds, 'charge')} holds. ε = {number(ledger.epsilon_total, 4)} in total at "
        f"{terms}{against}; {header['privacy']} noise."
    )
    return Details(
        names=list(runs),
        curves=[curve_chart(runs, key) for key in CHARTS],
        comparison=[_compared(name, run) for name, run in runs.items()],
        ledger_text=said + (f" The last {_MOST_ROWS} are shown." if ledger.rounds > len(rows) else ""),
        ledger=ledger_rows(ledger),
    )


def curve_chart(runs: Mapping[str, Run], key: str) -> Options | None:
    """Return one metric of several runs over the rounds, None where nothing was recorded."""
    lines, last, top, bottom = [], max(run.rounds_planned for run in runs.values()), 1e-300, 0.0
    for place, (name, run) in enumerate(runs.items()):
        for metric, dash in ((key, "solid"), ("power_planned_total", "dashed"))[
            : 1 + (key == "power_transmitted_total")
        ]:
            rounds, values = run.series(metric)
            if np.isfinite(values).any():
                shown = name if metric == key else f"{name}, charged"
                lines.append(line(shown, rounds, values, f"run-{place}", dash=dash, listed=False))
                top, bottom = max(top, np.nanmax(values)), min(bottom, np.nanmin(values))
                last = max(last, int(rounds[-1]))
    if not lines:
        return None
    share = key == "accuracy"
    top, bottom = (min(max(end, -1e150), 1e150) for end in (1.0 if share else 1.08 * min(top, 1e300), bottom))
    up = axis(CHARTS[key], bottom, top, text="airfed.percent" if share else "airfed.number", upright=True)
    over = "rounds charged" if key == "epsilon_total" else "round"
    return chart(axis(over, 1.0, max(last, 2.0)), up, *lines, spoken=f"{CHARTS[key]} over the rounds")


def _compared(name: str, run: Run) -> dict[str, str]:
    plan, ledger = run.figures, run.ledger
    return {
        "run": name,
        "policy": str(plan["policy"]),
        "devices": f"{plan['num_scheduled']} of {plan['num_devices']}",
        "rounds": f"{len(run.rounds)} of {run.rounds_planned}",
        "accuracy": "" if run.accuracy is None else f"{run.accuracy:.1%}",
        "loss": _figure(run.last("loss")),
        "ε in total": _figure(ledger.epsilon_total),
        "W planned": _figure(ledger.power_planned),
        "W transmitted": _figure(run.last("power_transmitted_total")),
    }


def ledger_rows(ledger: Ledger) -> Table:
    """Return the latest rounds of a verified ledger, the last one first."""
    return [
        {
            "round": str(row.round_index + 1),
            "μ": number(row.mu, 4),
            "ε": number(row.epsilon_round, 4),
            "ε so far": number(row.epsilon_total, 4),
            "W charged": number(row.power_planned, 4),
            "W metered": _figure(row.power_metered),
        }
        for row in reversed(ledger.charges[-_MOST_ROWS:])
    ]


def _figure(value: float | None) -> str:
    return "" if value is None else number(value, 4)


def _show_table(table: ui.table, rows: Table) -> None:
    aligned = {name: "right" if place else "left" for place, name in enumerate(rows[0] if rows else {})}
    table.columns = [{"name": n, "label": n, "field": n, "align": align} for n, align in aligned.items()]
    table.rows = rows


class RunsTab:
    """Runs on disk, and the command that adds one.

    Args:
        root: where runs are read.
        command: shows the command that trains the present design.
    """

    def __init__(self, root: Path, command: Callable[[], None]) -> None:
        self._root = root
        self._ticked: list[str] | None = None  # None: the newest, whichever that is
        self._asked: object = ()
        self._seen: Stamps | None = None
        self._reading = False
        with ui.element("section").classes("section hide").props("aria-label=Runs") as self.box:
            with ui.element("div").classes("card train"):
                with ui.element("div").classes("train-text"):
                    text("Train the present design", "h2")
                    text("Copy the command into a terminal. The run appears below and grows as it trains.", "p")
                button = ui.button("Command", icon="terminal", on_click=command)
                button.props("unelevated no-caps id=train").classes("go")
            with ui.element("div").classes("runs"):
                with ui.element("div").classes("card"):
                    text("Runs", "h2")
                    text(f"Read from the folder “{root}”. Tick up to {MOST_COMPARED} to compare.", css="sub")
                    self._problem = text("", "p", "note hide").props("role=alert")
                    self._list = ui.element("div").classes("run-list").props("id=runs")
                self._show_places()

    def _show_places(self) -> None:
        with ui.element("div").classes("section"):
            self._empty = text("No run is ticked.", "p", "card quiet")
            with ui.element("div").classes("section hide") as self._shown:
                with ui.element("div").classes("card"):
                    text("Curves", "h2")
                    self._legend = ui.element("div")
                    with ui.element("div").classes("pair").props("id=curves"):
                        self._curves = [Chart(196) for _ in CHARTS]
                    self._missing = text("", "p", "quiet")
                with ui.element("div").classes("card"):
                    text("Side by side", "h2")
                    self._comparison = ui.table(rows=[]).props("flat dense id=comparison")
                with ui.element("div").classes("card").props("id=ledger"):
                    self._ledger_title = text("Ledger", "h2")
                    self._ledger_text = text("", "p", "sub")
                    self._ledger = ui.table(rows=[]).props("flat dense").classes("ledger")

    async def refresh(self) -> None:
        """Read what has changed on disk and show it."""
        if self._reading:
            return
        self._reading = True
        ticked = None if self._ticked is None else tuple(self._ticked)
        try:
            runs = await compute(read, self._root, ticked, self._seen if ticked == self._asked else None)
        except TooMuchError as error:
            self._show_problem(f"The runs were not read. {error}")
        else:
            if runs is not None:
                self._asked, self._seen = ticked, runs.stamps
                self._show(runs)
        finally:
            self._reading = False

    def _show_problem(self, problem: str) -> None:
        self._problem.text = problem
        show_if(self._problem, bool(problem))

    def _show(self, runs: Runs) -> None:
        self._show_problem(runs.problem)
        if self._ticked is None and runs.details is not None:
            self._ticked = runs.details.names[:1]
        self._list.clear()
        with self._list:
            if not runs.entries:
                text("None yet.", "p", "quiet")
            for entry in runs.entries:
                self._show_entry(entry)
        found = runs.details
        show_if(self._empty, found is None)
        show_if(self._shown, found is not None)
        if found is None:
            return
        self._legend.clear()
        with self._legend:
            keys({f"run-{place}": name for place, name in enumerate(found.names)})
        missing = []
        for each, options, label in zip(self._curves, found.curves, CHARTS.values(), strict=True):
            show_if(each, options is not None)
            if options is None:
                missing.append(label)
            else:
                each.show(options)
        self._missing.text = f"Nothing was recorded yet of: {', '.join(missing)}." if missing else ""
        _show_table(self._comparison, found.comparison)
        self._ledger_title.text = f"Ledger of {found.names[0]}"
        self._ledger_text.text = found.ledger_text
        _show_table(self._ledger, found.ledger)

    def _show_entry(self, entry: Entry) -> None:
        bad = entry.state == "bad"
        with ui.element("div").classes("run bad" if bad else "run"):
            with ui.element("label").classes("run-label"):
                box = ui.checkbox(value=entry.name in (self._ticked or [])).props("dense")
                box.props["aria-label"] = f"Show {entry.name}"
                box.set_enabled(not bad)
                box.on_value_change(lambda event: self._tick(entry.name, bool(event.value)))
                with ui.element("div").classes("run-text"):
                    text(entry.name, css="run-name")
                    text(f"Bad run: {entry.text}" if bad else entry.text, css="run-more")
            if entry.resumable:
                command = resume_command(self._root / entry.name)
                button = ui.button("Resume", on_click=lambda: command_dialog(command), color=None)
                button.props("flat no-caps dense").classes("plain resume")
                button.props["aria-label"] = f"Command that resumes {entry.name}"

    async def _tick(self, name: str, ticked: bool) -> None:
        others = [other for other in self._ticked or [] if other != name]
        self._ticked = [*others, name][-MOST_COMPARED:] if ticked else others
        await self.refresh()
