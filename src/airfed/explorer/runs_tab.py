"""The Runs tab: run directories below a folder, read while they grow. A damaged run does not affect the others."""

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
from airfed.explorer.elements import CardBox, Cards, command_dialog, text
from airfed.explorer.view import Card
from airfed.explorer.worker import RefusedError, compute
from airfed.text.phrases import ADVERSARIES, METRICS, count, number, privacy_terms
from airfed.training.directory import runs_below
from airfed.training.run import Run

Stamp = tuple[tuple[str, int, int], ...]

MOST_SELECTED: Final = 6
_MOST_LISTED: Final = 100
_MOST_BYTES: Final = 64_000_000  # of one file
_READ: Final = ("run.json", "plan.json", "metrics.jsonl", "ledger.jsonl", "scenario.toml", "devices.csv")
_CHARTS: Final = ("accuracy", "loss", "epsilon_total", "power_planned_total", "clip_norm")


class RunItem(NamedTuple):
    """A run in the list: name, summary, state ("training", "done", "stopped", "bad")."""

    name: str
    text: str
    state: str = "bad"
    resumable: bool = False


class RunsView(NamedTuple):
    """Content of the tab: the runs, newest first, and the cards of the selected ones."""

    seen: object  # the selection and the times and sizes of the files
    entries: list[RunItem]
    names: list[str]
    cards: list[Card]


def read(root: Path, selected: tuple[str, ...] | None, seen: object) -> RunsView | None:
    """Return the runs below a folder (selected None: the newest); None if nothing has changed since `seen`."""
    try:
        found = [(folder.relative_to(root).as_posix(), _stamp(folder)) for folder in runs_below(root, most=500)]
    except OSError:
        found = [(".", _stamp(root))]  # reading it gives the reason
    found.sort(key=lambda each: max(written for _, written, _ in each[1]), reverse=True)
    if (selected, found) == seen:
        return None
    runs = [_read_run(root, name, stamp) for name, stamp in found[:_MOST_LISTED]]
    good = {entry.name: run for entry, run in runs if run is not None}
    shown = {name: good[name] for name in (list(good)[:1] if selected is None else selected) if name in good}
    return RunsView((selected, found), [entry for entry, _ in runs], list(shown), _cards(shown))


def _stamp(folder: Path) -> Stamp:
    """Return name, time and size of the files that are read; "!" marks those that are not regular files."""
    found = [(".lock", 0, int(is_locked(folder / ".lock")))]
    for name in (*_READ, "model.safetensors"):
        with contextlib.suppress(OSError):
            status = (folder / name).lstat()
            found.append((name if stat.S_ISREG(status.st_mode) else f"!{name}", status.st_mtime_ns, status.st_size))
    return tuple(found)


_opened: Final = lru_cache(maxsize=_MOST_LISTED)(lambda folder, stamp: Run.open(folder))  # once for each stamp


def _read_run(root: Path, name: str, stamp: Stamp) -> tuple[RunItem, Run | None]:
    try:
        for file, _, size in stamp:  # reading a pipe would block, a huge file would fill the memory
            if file.startswith("!") or (size > _MOST_BYTES and file in _READ):
                raise ValueError(f"{file.lstrip('!')} must be a regular file of at most {_MOST_BYTES // 10**6} MB.")
        os.listdir(root / name)  # raises if the directory cannot be read
        run = _opened(root / name, stamp).checked()
        _cards({name: run})  # raises if damaged
    except (OSError, ValueError, ArithmeticError, LookupError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"This run cannot be read: {error!r}."
        return RunItem(name, reason, resumable="--resume" in reason), None
    state = "training" if run.running else "done" if run.finished else "stopped"
    reached = "" if run.accuracy is None else f", {run.accuracy:.1%}"
    rounds = f"{len(run.rounds)} of {count(run.rounds_planned, 'round')}"
    return RunItem(name, f"{run.figures['policy']} · {rounds} · {state}{reached}", state, state == "stopped"), run


def _cards(runs: Mapping[str, Run]) -> list[Card]:
    """Return curves and ledgers of the runs; the hash chains were verified when the runs were read."""
    curves = [options for metric in _CHARTS if (options := _curves(runs, metric))]
    rows, verified = [_ledger(name, run) for name, run in runs.items()], "All hash chains are verified; ε is exact."
    ledgers = Card("Ledgers", verified, [], rows=rows, key="ledger")
    return [Card("Curves", "", curves, 218 * len(curves), key="curves"), ledgers] if runs else []


def _curves(runs: Mapping[str, Run], metric: str) -> Options | None:
    drawn = [(name, f"run-{index}", *run.series(metric)) for index, (name, run) in enumerate(runs.items())]
    lines = [line(name, x, y, colour) for name, colour, x, y in drawn if np.isfinite(y).any()]
    if not lines:
        return None
    last = max(2, *(run.rounds_planned for run in runs.values()), *(x.size for _, _, x, _ in drawn))
    across = axis("rounds charged" if metric in ("epsilon_total", "power_planned_total") else "round", 1.0, last)
    up = axis(METRICS[metric], text="airfed.percent" if metric == "accuracy" else "airfed.number", vertical=True)
    return chart(across, up, *lines)


def _ledger(name: str, run: Run) -> dict[str, str]:
    header = run.ledger.header
    against = f", against {ADVERSARIES[str(header['adversary'])]}" if header.get("antennas", 1) > 1 else ""
    return {
        "run": name,
        "charges": str(run.ledger.rounds),
        "ε in total": number(run.ledger.epsilon_total, 4),
        "W planned": number(run.ledger.power_planned, 4),
        "noise": str(header["privacy"]),
        "ε at": privacy_terms(float(header["delta"]), header["adjacency"]) + against,
    }


class RunsTab:
    """The runs below `root`, and a button that shows the `command` that trains the current scenario."""

    def __init__(self, root: Path, command: Callable[[], None]) -> None:
        self._root = root
        self._selected: tuple[str, ...] | None = None  # None: the newest
        self._seen: object = None
        with ui.element("section").classes("section").props("aria-label=Runs") as self.box:
            how = "Run the command in a terminal. The run appears below and is updated while it trains."
            with CardBox(Card("Train the current scenario", how, [])):
                button = ui.button("Command", icon="terminal", on_click=command)
                button.props("unelevated no-caps id=train").classes("go")
            with ui.element("div").classes("runs"):
                where = f"Run directories in “{root}”. Select up to {MOST_SELECTED} to compare."
                with CardBox(Card("Runs", where, [])):
                    self._problem = text("", "p", "note").props("role=alert")
                    self._list = ui.element("div").classes("run-list").props("id=runs")
                self._shown = Cards("Ticked runs")

    async def refresh(self) -> None:
        """Update the tab if the files have changed."""
        try:
            if (runs := await compute(read, self._root, self._selected, self._seen)) is not None:
                self._seen = runs.seen
                self._show(runs)
        except RefusedError as error:
            self._problem.text = f"The runs cannot be read. {error}"

    def _show(self, runs: RunsView) -> None:
        self._problem.text = ""
        self._selected = self._selected if self._selected is not None else tuple(runs.names) or None
        self._list.clear()
        with self._list:
            for entry in runs.entries:
                self._show_entry(entry)
        self._shown.show(runs.cards)

    def _show_entry(self, entry: RunItem) -> None:
        bad = entry.state == "bad"
        with ui.element("div").classes("run bad" if bad else "run"):
            with ui.element("label").classes("run-label"):
                box = ui.checkbox(value=entry.name in (self._selected or ())).props("dense")
                box.props["aria-label"] = f"Show {entry.name}"
                box.set_enabled(not bad)
                box.on_value_change(lambda event: self._select(entry.name, bool(event.value)))
                with ui.element("div").classes("run-text"):
                    text(entry.name, css="run-name")
                    text(f"Bad run: {entry.text}" if bad else entry.text, css="run-more")
            if entry.resumable:
                command = resume_command(self._root / entry.name)
                button = ui.button("Resume", on_click=lambda: command_dialog(command), color=None)
                button.props("flat no-caps dense").classes("plain resume")
                button.props["aria-label"] = f"Command that resumes {entry.name}"

    async def _select(self, name: str, selected: bool) -> None:
        others = tuple(other for other in self._selected or () if other != name)
        self._selected = (*others, name)[-MOST_SELECTED:] if selected else others
        await self.refresh()
