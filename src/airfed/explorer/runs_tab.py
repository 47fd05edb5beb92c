"""The Runs tab: run directories below one folder, read as they grow, never written; a bad one hides no other."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from nicegui import ui

from airfed._disk import is_locked
from airfed.explorer.charts import Options, axis, chart, line
from airfed.explorer.design import resume_command
from airfed.explorer.elements import Chart, Table, card, command_dialog, show_if, show_table, text
from airfed.explorer.worker import RefusedError, compute
from airfed.text.phrases import ADVERSARIES, METRICS, count, number, privacy_terms
from airfed.training.directory import runs_below
from airfed.training.run import Run

Stamp = tuple[tuple[str, int, int], ...]

MOST_COMPARED: Final = 6
_MOST_LISTED: Final = 100
_MOST_BYTES: Final = 64_000_000  # of one file
_READ: Final = ("run.json", "plan.json", "metrics.jsonl", "ledger.jsonl", "scenario.toml", "devices.csv")
_CHARTS: Final = ("accuracy", "loss", "epsilon_total", "power_planned_total")


class Entry(NamedTuple):
    """A run in the list: its name, a line about it, its state ("training", "done", "stopped", "bad")."""

    name: str
    text: str
    state: str = "bad"
    resumable: bool = False


class Runs(NamedTuple):
    """What the tab shows: the list, newest first, and of the ticked runs curves (None: not recorded) and ledgers."""

    seen: object  # of which runs it tells, and when their files were written
    entries: list[Entry]
    names: list[str]
    curves: list[Options | None]
    ledgers: Table


def read(root: Path, ticked: tuple[str, ...] | None, seen: object) -> Runs | None:
    """Return the runs below a folder (ticked None: the newest in detail); None if nothing has changed since `seen`."""
    try:
        found = [(folder.relative_to(root).as_posix(), _stamp(folder)) for folder in runs_below(root, most=500)]
    except OSError:
        found = [(".", _stamp(root))]  # which says why it cannot be listed
    found.sort(key=lambda each: max(written for _, written, _ in each[1]), reverse=True)
    if (ticked, found) == seen:
        return None
    runs = [_read_run(root, name, stamp) for name, stamp in found[:_MOST_LISTED]]
    good = {entry.name: run for entry, run in runs if run is not None}
    chosen = {name: good[name] for name in (list(good)[:1] if ticked is None else ticked) if name in good}
    curves = [_curves(chosen, metric) for metric in _CHARTS]
    ledgers = [_ledger(name, run) for name, run in chosen.items()]
    return Runs((ticked, found), [entry for entry, _ in runs], list(chosen), curves, ledgers)


def _stamp(folder: Path) -> Stamp:
    """Name, time and size of every file that is read; "!" stands before what is no file."""
    found = [(".lock", 0, int(is_locked(folder / ".lock")))]
    for name in (*_READ, "model.safetensors"):
        with contextlib.suppress(OSError):
            status = (folder / name).lstat()
            found.append((name if stat.S_ISREG(status.st_mode) else f"!{name}", status.st_mtime_ns, status.st_size))
    return tuple(found)


_opened: Final = lru_cache(maxsize=_MOST_LISTED)(lambda folder, stamp: Run.open(folder))  # once for each stamp


def _read_run(root: Path, name: str, stamp: Stamp) -> tuple[Entry, Run | None]:
    try:
        for file, _, size in stamp:  # a pipe would be waited for, and a huge file fills the memory
            if file.startswith("!") or (size > _MOST_BYTES and file in _READ):
                raise ValueError(f"Expected {file.lstrip('!')} to be a file of at most {_MOST_BYTES // 10**6} MB.")
        os.listdir(root / name)  # says why it cannot be looked into
        run = _opened(root / name, stamp).checked()
        _ = _ledger(name, run), [_curves({name: run}, metric) for metric in _CHARTS]  # what fails, fails here
    except (OSError, ValueError, ArithmeticError, LookupError) as error:
        said = str(error) if isinstance(error, ValueError) else f"Cannot be read: {error!r}."
        return Entry(name, said, resumable="--resume" in said), None
    state = "training" if run.running else "done" if run.finished else "stopped"
    reached = "" if run.accuracy is None else f", {run.accuracy:.1%}"
    rounds = f"{len(run.rounds)} of {count(run.rounds_planned, 'round')}"
    return Entry(name, f"{run.figures['policy']} · {rounds} · {state}{reached}", state, state == "stopped"), run


def _curves(runs: Mapping[str, Run], metric: str) -> Options | None:
    drawn = [(name, f"run-{place}", *run.series(metric)) for place, (name, run) in enumerate(runs.items())]
    lines = [line(name, x, y, colour, listed=False) for name, colour, x, y in drawn if np.isfinite(y).any()]
    if not lines:
        return None
    last = max(2, *(run.rounds_planned for run in runs.values()), *(x.size for _, _, x, _ in drawn))
    across = axis("rounds charged" if metric in ("epsilon_total", "power_planned_total") else "round", 1.0, last)
    up = axis(METRICS[metric], text="airfed.percent" if metric == "accuracy" else "airfed.number", upright=True)
    return chart(across, up, *lines)


def _ledger(name: str, run: Run) -> dict[str, str]:
    """The totals of a run's ledger, whose chain was verified when it was read."""
    header = run.ledger.header
    against = f", against {ADVERSARIES[str(header['trust'])]}" if header.get("antennas", 1) > 1 else ""
    return {
        "run": name,
        "charges": str(run.ledger.rounds),
        "ε in total": number(run.ledger.epsilon_total, 4),
        "W planned": number(run.ledger.power_planned, 4),
        "noise": str(header["privacy"]),
        "ε at": privacy_terms(float(header["delta"]), header["relation"]) + against,
    }


class RunsTab:
    """Runs below `root`, and a button that shows the `command` that trains the present design."""

    def __init__(self, root: Path, command: Callable[[], None]) -> None:
        self._root = root
        self._ticked: list[str] | None = None  # None: the newest, whichever that is
        self._seen: object = None
        with ui.element("section").classes("section hide").props("aria-label=Runs") as self.box:
            with card("Train the present design", "Copy the command into a terminal. The run appears below and grows."):
                button = ui.button("Command", icon="terminal", on_click=command)
                button.props("unelevated no-caps id=train").classes("go")
            with ui.element("div").classes("runs"):
                with card("Runs", f"Read from the folder “{root}”. Tick up to {MOST_COMPARED} to compare."):
                    self._problem = text("", "p", "note").props("role=alert")
                    self._list = ui.element("div").classes("run-list").props("id=runs")
                with ui.element("div").classes("section hide") as self._shown:
                    with card("Curves"):
                        self._legend = ui.element("div").classes("legend")
                        with ui.element("div").classes("pair").props("id=curves"):
                            self._curves = [Chart(196) for _ in _CHARTS]
                    with card("Ledgers", "Every chain of hashes was verified; ε is exact."):
                        self._ledgers = ui.table(rows=[]).props("flat dense id=ledger")

    async def refresh(self) -> None:
        """Read what has changed on disk and show it."""
        ticked = None if self._ticked is None else tuple(self._ticked)
        try:
            if (runs := await compute(read, self._root, ticked, self._seen)) is not None:
                self._seen = runs.seen
                self._show(runs)
        except RefusedError as error:
            self._problem.text = f"The runs were not read. {error}"

    def _show(self, runs: Runs) -> None:
        self._problem.text = ""
        self._ticked = (runs.names or None) if self._ticked is None else self._ticked
        self._list.clear()
        self._legend.clear()
        with self._list:
            for entry in runs.entries:
                self._show_entry(entry)
        show_if(self._shown, bool(runs.names))
        with self._legend:
            for place, name in enumerate(runs.names):
                with ui.element("span").classes("key"):
                    ui.element("i").classes(f"box run-{place}")
                    text(name, "span")
        for each, options in zip(self._curves, runs.curves, strict=True):
            show_if(each, options is not None)
            each.show(options or {})
        show_table(self._ledgers, runs.ledgers)

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
