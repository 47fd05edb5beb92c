"""The runs section: the command that trains the present design, and the runs on disk, followed as they grow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nicegui import ui

from airfed.explorer import pictures_runs as draw
from airfed.explorer import shown_runs
from airfed.explorer.compute import TooMuchError, compute
from airfed.explorer.design import resume_command
from airfed.explorer.dialogs import command_dialog
from airfed.explorer.safe import Text
from airfed.explorer.shown_runs import Details, Entry, Runs, Stamp


class RunsSection:
    """Runs on disk, and the command that adds one.

    Args:
        root: where runs are read.
        command: shows the command that trains the present design.
    """

    def __init__(self, root: Path, command: Callable[[], None]) -> None:
        self._root = root
        self._ticked: list[str] | None = None  # None: the newest, whichever that is
        self._asked: tuple[object, ...] = ()
        self._seen: tuple[tuple[str, Stamp], ...] | None = None
        self._entries: tuple[Entry, ...] = ()
        self._width = 400.0
        with ui.element("section").classes("section hide") as self.box:
            self.box.props["aria-label"] = "Runs"
            with ui.element("div").classes("card train"):
                with ui.element("div").classes("train-text"):
                    Text("Train the present design", tag="h2")
                    Text("Copy the command into a terminal. The run appears below and grows as it trains.", tag="p")
                button = ui.button("Command", icon="terminal", on_click=command)
                button.props("unelevated no-caps id=train").classes("go")
            with ui.element("div").classes("runs"):
                with ui.element("div").classes("card"):
                    Text("Runs", tag="h2")
                    Text(f"Below {root}. Tick up to {draw.MOST_COMPARED} to compare.").classes("sub")
                    self._problem = Text(tag="p").classes("note hide").props("role=alert")
                    self._list = ui.element("div").classes("run-list").props("id=runs")
                self._details()

    async def refresh(self, width: float) -> None:
        """Read what has changed on disk and redraw it; `width` is that of a chart [px]."""
        self._width = width
        ticked = None if self._ticked is None else tuple(self._ticked)
        asked = (ticked, width)
        seen = self._seen if asked == self._asked else None
        try:
            runs = await compute(shown_runs.read, self._root, ticked, width, seen)
        except TooMuchError as error:
            self._tell_problem(f"The runs were not read. {error}")
            return
        if runs is not None:
            self._asked, self._seen = asked, runs.stamps
            self._show(runs)

    def _details(self) -> None:
        with ui.element("div").classes("section"):
            with ui.element("div").classes("card") as self._empty:
                Text("No run is ticked.", tag="p").classes("quiet")
            with ui.element("div").classes("section hide") as self._shown:
                with ui.element("div").classes("card"):
                    Text("Curves", tag="h2")
                    self._legend = Text()
                    with ui.element("div").classes("pair").props("id=curves"):
                        self._curves = [Text() for _ in shown_runs.CHARTS]
                with ui.element("div").classes("card"):
                    Text("Side by side", tag="h2")
                    self._comparison = Text().props("id=comparison")
                with ui.element("div").classes("card"):
                    self._ledger_title = Text("Ledger", tag="h2")
                    self._ledger = Text().classes("ledger").props("id=ledger")

    def _show(self, runs: Runs) -> None:
        self._tell_problem(runs.problem)
        if self._ticked is None and runs.details is not None:
            self._ticked = [runs.details.ledger_of]
        if runs.entries != self._entries or not runs.entries:
            self._entries = runs.entries
            self._show_list()
        self._show_details(runs.details)

    def _show_list(self) -> None:
        self._list.clear()
        with self._list:
            if not self._entries:
                Text("None yet.", tag="p").classes("quiet").style("padding:0 10px")
            for entry in self._entries:
                self._show_entry(entry)

    def _show_entry(self, entry: Entry) -> None:
        bad = entry.state == "bad"
        with ui.element("div").classes("run bad" if bad else "run"):
            with ui.element("label").classes("run-label"):
                box = ui.checkbox(value=entry.name in (self._ticked or [])).props("dense")
                box.props["aria-label"] = f"Show {entry.name}"
                box.set_enabled(not bad)
                box.on_value_change(lambda event: self._tick(entry.name, bool(event.value)))
                with ui.element("div").classes("run-text"):
                    Text(entry.name).classes("run-name")
                    Text(f"Bad run: {entry.text}" if bad else entry.text).classes("run-more")
            if entry.resumable:
                command = resume_command(self._root / entry.name)
                button = ui.button("Resume", on_click=lambda: command_dialog(command), color=None)
                button.props("flat no-caps dense").classes("plain resume")
                button.props["aria-label"] = f"Command that resumes {entry.name}"

    async def _tick(self, name: str, ticked: bool) -> None:
        others = [other for other in self._ticked or [] if other != name]
        self._ticked = [*others, name][-draw.MOST_COMPARED :] if ticked else others
        self._show_list()  # the oldest tick may have gone
        await self.refresh(self._width)

    def _tell_problem(self, problem: str) -> None:
        self._problem.content = problem
        self._problem.classes(add=None if problem else "hide", remove="hide" if problem else None)

    def _show_details(self, details: Details | None) -> None:
        self._empty.classes(add="hide" if details else None, remove=None if details else "hide")
        self._shown.classes(add=None if details else "hide", remove="hide" if details else None)
        if details is None:
            return
        self._legend.content = details.legend
        for chart, drawn in zip(self._curves, details.curves, strict=True):
            chart.content = drawn
        self._comparison.content = details.comparison
        self._ledger_title.content = f"Ledger of {details.ledger_of}"
        self._ledger.content = details.ledger
