"""The runs section: a list, curves, ledgers, and buttons that train the present design and go on with a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from markupsafe import Markup
from nicegui import run, ui

from airfed.explorer import pictures_runs as draw
from airfed.explorer import shown_runs
from airfed.explorer.design import Design
from airfed.explorer.safe import Text
from airfed.explorer.shown_runs import Details, Entry, Runs, Stamp
from airfed.explorer.trainer import Trainer, Training, dataset
from airfed.explorer.workers import TooMuchError, Workers


class RunsSection:
    """Runs on disk and the training of the present design.

    Args:
        root: where runs are read.
        workers: who reads them.
        trainer: starts them.
        design: returns the present design.
    """

    def __init__(self, root: Path, workers: Workers, trainer: Trainer, design: Callable[[], Design]) -> None:
        self._root, self._workers, self._trainer, self._design = root, workers, trainer, design
        self._mine: Training | None = None
        self._ticked: list[str] | None = None  # None: the newest, whichever that is
        self._asked: tuple[object, ...] = ()
        self._seen: tuple[tuple[str, Stamp], ...] | None = None
        self._entries: tuple[Entry, ...] = ()
        self._width = 400.0
        with ui.element("section").classes("section hide") as self.box:
            self.box.props["aria-label"] = "Runs"
            self._training_card()
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
        training = frozenset(self._trainer.running())
        ticked = None if self._ticked is None else tuple(self._ticked)
        asked = (training, ticked, width)
        seen = self._seen if asked == self._asked else None
        try:
            runs = await self._workers.run(shown_runs.read, self._root, training, ticked, width, seen)
        except TooMuchError as error:
            self._tell_problem(f"The runs were not read. {error}")
            return
        if runs is not None:
            self._asked, self._seen = asked, runs.stamps
            self._show(runs)
        self._show_training(training)

    def _training_card(self) -> None:
        with ui.element("div").classes("card train"):
            with ui.element("div").classes("train-text"):
                self._title = Text("Train the present design", tag="h2")
                self._said = Text("Runs in the background and leaves an ordinary run directory.", tag="p")
                self._said.props("id=training aria-live=polite")
                self._progress = ui.linear_progress(0.0, show_value=False, size="6px").props("instant-feedback rounded")
                self._progress.classes("hide").props["aria-label"] = "Progress of the training"
            with ui.element("div").classes("train-buttons"):
                self._stop = ui.button("Stop", on_click=self._halt, color=None).props("flat no-caps id=stop")
                self._stop.classes("plain hide")
                ui.button("Train", on_click=self._train).props("unelevated no-caps id=train").classes("go")

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

    async def _train(self) -> None:
        await self._launch(lambda: self._trainer.start(self._design()), "Preparing {} …")

    async def _resume(self, name: str) -> None:
        await self._launch(lambda: self._trainer.resume(name), "Going on with {} …")

    async def _launch(self, start: Callable[[], Training], said: str) -> None:
        try:
            mine = await run.io_bound(start)
        except (ValueError, OSError) as error:  # of the design, or of the run
            self._said.content = str(error)
            return
        if mine is not None:  # None: the server is going down
            self._mine = mine
            others = [name for name in self._ticked or [] if name != mine.name]
            self._ticked = [mine.name, *others][: draw.MOST_COMPARED]
            self._said.content = said.format(mine.name)
            self._progress.value = 0.0
            self._set_running(True)

    def _halt(self) -> None:
        if self._mine is not None:
            self._mine.stop()
            self._said.content = Markup("Stopping <b>{}</b> after a checkpoint …").format(self._mine.name)

    def _set_running(self, running: bool) -> None:
        for element in (self._stop, self._progress):
            element.classes(add=None if running else "hide", remove="hide" if running else None)

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
                button = ui.button("Resume", on_click=lambda: self._resume(entry.name), color=None)
                button.props("flat no-caps dense").classes("plain resume")
                button.props["aria-label"] = f"Resume {entry.name}"

    async def _tick(self, name: str, ticked: bool) -> None:
        others = [other for other in self._ticked or [] if other != name]
        self._ticked = [*others, name][-draw.MOST_COMPARED :] if ticked else others
        self._show_list()  # the oldest tick may have gone
        await self.refresh(self._width)

    def _tell_problem(self, problem: str) -> None:
        self._problem.content = problem
        self._problem.classes(add=None if problem else "hide", remove="hide" if problem else None)

    def _show_training(self, training: frozenset[str]) -> None:
        """Tell how the training goes; `training` are the runs that were still on their way when they were read."""
        self._title.content = f"Train the present design on {dataset(self._design())}"
        mine = self._mine
        if mine is None:
            running = self._trainer.running()
            if running:  # another visitor's, or one's own before a reload
                self._mine = self._trainer.find(running[-1])
                self._set_running(True)
            return
        entry = next((entry for entry in self._entries if entry.name == mine.name), None)
        done, planned = (entry.done, entry.planned) if entry else (0, 0)
        if mine.name in training or mine.running:
            if planned:
                self._progress.value = done / planned
                self._said.content = Markup("Training <b>{}</b>: {} of {} rounds.").format(mine.name, done, planned)
            return
        status, reason = mine.outcome
        rounds = f", {done} of {planned} rounds" if planned else ""
        self._said.content = Markup("{}: <b>{}</b>{}. {}").format(status.capitalize(), mine.name, rounds, reason)
        self._set_running(False)
        self._mine = None

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
