"""The runs section: a list, curves, ledgers, and a button that trains the present design."""

from __future__ import annotations

import html
from collections.abc import Callable

from nicegui import run, ui

from airfed.explorer import pictures_runs as draw
from airfed.explorer.design import Design
from airfed.explorer.records import Library, Record, Spending
from airfed.explorer.trainer import DATASET, Trainer, Training
from airfed.running.directory import RunError
from airfed.scenario import ScenarioError

_CHARTS = (
    ("accuracy", "test accuracy", ""),
    ("loss", "training loss", ""),
    ("epsilon_total", "ε spent so far", ""),
    ("power_transmitted_total", "W transmitted so far (dashed: charged)", "power_planned_total"),
)
_MOST_LISTED = 100


class RunsSection:
    """Runs on disk and the training of the present design.

    Args:
        library: where runs are read.
        trainer: starts them.
        design: returns the present design.
    """

    def __init__(self, library: Library, trainer: Trainer, design: Callable[[], Design]) -> None:
        self._library, self._trainer, self._design = library, trainer, design
        self._mine: Training | None = None
        self._selected: list[str] = []
        self._first = True
        self._listed: list[tuple[str, str]] | None = None
        self._drawn: tuple[object, ...] = ()
        self._width = (820.0, 400.0)
        with ui.element("section").classes("section hide") as self.box:
            self.box.props["aria-label"] = "Runs"
            self._training_card()
            with ui.element("div").classes("runs"):
                with ui.element("div").classes("card"):
                    ui.html("Runs", sanitize=False, tag="h2")
                    ui.label(f"Below {library.root}. Tick up to {draw.MOST_COMPARED} to compare.").classes("sub")
                    self._list = ui.element("div").classes("run-list").props("id=runs")
                self._details()

    async def refresh(self, *, wide: float, half: float) -> None:
        """Read what has changed on disk and redraw it."""
        self._width = (wide, half)
        records = await run.io_bound(self._read_all)
        if records is None:  # the server is going down
            return
        if self._first and not self._selected:
            self._selected = [record.name for record in records[:1]]
        self._first = False
        self._show_list(records)
        self._show_training(records)
        chosen = [record for record in records if record.name in self._selected]
        chosen.sort(key=lambda record: self._selected.index(record.name))
        state = (wide, half, *((record.name, len(record.metrics), record.finished) for record in chosen))
        if state != self._drawn:
            self._drawn = state
            spending = await run.io_bound(self._spending, chosen[0].name) if chosen else None
            self._show_details(chosen, spending)

    def _training_card(self) -> None:
        with ui.element("div").classes("card"):
            ui.html(f"Train the present design on {DATASET}", sanitize=False, tag="h2")
            with ui.element("div").classes("train"):
                self._said = ui.html(
                    "Runs in the background and leaves an ordinary run directory.", sanitize=False, tag="p"
                ).props("id=training aria-live=polite")
                self._start = (
                    ui.button("Train", on_click=self._train).props("unelevated no-caps id=train").classes("go")
                )
                self._stop = ui.button("Stop", on_click=self._halt).props("flat no-caps id=stop").classes("plain hide")
            self._progress = ui.linear_progress(0.0, show_value=False).props("instant-feedback").classes("hide")
            self._progress.props["aria-label"] = "Progress of the training"

    def _details(self) -> None:
        with ui.element("div").classes("section"):
            with ui.element("div").classes("card") as self._empty:
                ui.html("No run is ticked.", sanitize=False, tag="p").classes("quiet")
            with ui.element("div").classes("section hide") as self._shown:
                with ui.element("div").classes("card"):
                    ui.html("Curves", sanitize=False, tag="h2")
                    self._legend = ui.html("", sanitize=False)
                    with ui.element("div").classes("pair").props("id=curves"):
                        self._curves = [ui.html("", sanitize=False) for _ in _CHARTS]
                with ui.element("div").classes("card"):
                    ui.html("Side by side", sanitize=False, tag="h2")
                    self._comparison = ui.html("", sanitize=False).props("id=comparison")
                with ui.element("div").classes("card"):
                    self._ledger_title = ui.html("Ledger", sanitize=False, tag="h2")
                    self._ledger = ui.html("", sanitize=False).classes("ledger").props("id=ledger")

    async def _train(self) -> None:
        try:
            self._mine = await run.io_bound(self._trainer.start, self._design())
        except (ScenarioError, RunError, OSError) as error:
            self._said.content = html.escape(str(error))
            return
        if self._mine is not None:
            self._selected = [self._mine.name, *self._selected][: draw.MOST_COMPARED]
            self._said.content = f"Preparing <b>{html.escape(self._mine.name)}</b> …"
            self._set_running(True)

    def _halt(self) -> None:
        if self._mine is not None:
            self._mine.stop()
            self._said.content = f"Stopping <b>{html.escape(self._mine.name)}</b> after a checkpoint …"

    def _set_running(self, running: bool) -> None:
        for element in (self._stop, self._progress):
            element.classes(add=None if running else "hide", remove="hide" if running else None)
        self._start.set_enabled(not running)

    def _read_all(self) -> list[Record]:
        found = []
        for name in self._library.names()[:_MOST_LISTED]:
            try:
                found.append(self._library.read(name))
            except RunError:
                continue  # it was removed since it was listed
        return found

    def _spending(self, name: str) -> Spending:
        try:
            return self._library.spending(name)
        except RunError as error:
            return Spending(verified=False, problem=str(error), charges=[], header={})

    def _show_list(self, records: list[Record]) -> None:
        listed = [(record.name, self._describe(record)) for record in records]
        if listed == self._listed:
            return
        self._listed = listed
        self._list.clear()
        with self._list:
            if not records:
                ui.html("None yet.", sanitize=False, tag="p").classes("quiet").style("padding:0 10px")
            for name, text in listed:
                with ui.element("label").classes("run"):
                    box = ui.checkbox(value=name in self._selected).props("dense")
                    box.props["aria-label"] = f"Show {name}"
                    box.on_value_change(lambda event, name=name: self._tick(name, bool(event.value)))
                    with ui.element("div").classes("run-text"):
                        ui.label(name).classes("run-name")
                        ui.label(text).classes("run-more")

    async def _tick(self, name: str, ticked: bool) -> None:
        others = [other for other in self._selected if other != name]
        self._selected = [*others, name][-draw.MOST_COMPARED :] if ticked else others
        self._listed = None
        await self.refresh(wide=self._width[0], half=self._width[1])

    def _describe(self, record: Record) -> str:
        if record.problem:
            return record.problem
        training = self._trainer.find(record.name)
        state = "training" if training is not None and training.running else "done" if record.finished else "stopped"
        accuracy = record.last("accuracy")
        quality = "" if accuracy is None else f", {accuracy:.1%}"
        rounds = f"{len(record.metrics)} of {record.rounds_planned} rounds"
        return f"{record.plan.get('policy', '')} · {rounds} · {state}{quality}"

    def _show_training(self, records: list[Record]) -> None:
        mine = self._mine
        if mine is None:
            return
        record = next((record for record in records if record.name == mine.name), None)
        done, planned = (len(record.metrics), record.rounds_planned) if record else (0, 0)
        name = f"<b>{html.escape(mine.name)}</b>"
        if mine.running:
            if record is not None:
                self._progress.value = done / max(planned, 1)
                self._said.content = f"Training {name}: {done} of {planned} rounds."
            return
        status, reason = mine.outcome
        rounds = f", {done} of {planned} rounds" if planned else ""
        self._said.content = f"{status.capitalize()}: {name}{rounds}. {html.escape(reason)}"
        self._set_running(False)
        self._mine = None

    def _show_details(self, records: list[Record], spending: Spending | None) -> None:
        self._empty.classes(add="hide" if records else None, remove=None if records else "hide")
        self._shown.classes(add=None if records else "hide", remove="hide" if records else None)
        if not records:
            return
        _, half = self._width
        self._legend.content = draw.run_legend(records)
        for chart, (key, label, planned) in zip(self._curves, _CHARTS, strict=True):
            chart.content = draw.curves(records, half, key=key, label=label, planned=planned)
        self._comparison.content = draw.comparison_table(records)
        self._ledger_title.content = f"Ledger of {html.escape(records[0].name)}"
        self._ledger.content = draw.ledger_table(spending) if spending is not None else ""
