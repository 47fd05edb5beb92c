"""The decision on top of the page, and its three sections: design, comparison, runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from markupsafe import Markup
from nicegui import ui

from airfed.explorer import comparison, pictures
from airfed.explorer.comparison import Front
from airfed.explorer.compute import TooMuchError, compute
from airfed.explorer.controls import Slider
from airfed.explorer.design import resume_command
from airfed.explorer.elements import Text, command_dialog
from airfed.explorer.pictures import Rounds, round_facts
from airfed.explorer.runs import CHARTS, MOST_COMPARED, Details, Entry, Runs, Stamp, read
from airfed.explorer.shown import Card, Compared, Refusal, Shown
from airfed.plotting.drawings import drawing
from airfed.plotting.figure import svg
from airfed.text.phrases import FLEET_LIMITS

_FACTS = 6


class Hero:
    """The decision in one sentence, the figures behind it, and remarks."""

    def __init__(self) -> None:
        with ui.element("header").classes("hero") as self._box:
            self._sentence = Text("Planning …", tag="h1").props("aria-live=polite id=decision")
            self._facts = Text(_placeholders()).classes("facts").props("id=facts")
            self._remarks = Text().classes("remarks")

    def show(self, shown: Shown) -> None:
        """Tell the decision."""
        self._box.classes(remove="wrong")
        self._sentence.content = shown.sentence
        self._facts.content = shown.facts
        self._remarks.content = shown.remarks

    def busy(self, working: bool) -> None:
        """Dim the decision while a new one is being found (the style waits a little, lest it flicker)."""
        self._box.classes(add="busy" if working else None, remove=None if working else "busy")

    def refuse(self, reason: str) -> None:
        """Tell why there is no decision."""
        self._box.classes(add="wrong")
        self._sentence.content = reason
        self._facts.content = self._remarks.content = ""


class _Place:
    """Where a card is shown."""

    def __init__(self) -> None:
        with ui.element("div").classes("card") as self.box:
            self._title = Text(tag="h2")
            self.text = Text(tag="p").classes("sub")
            self._key = Text()
            self.picture = Text()

    def show(self, card: Card | None) -> None:
        """Fill the place, or leave it empty."""
        self.box.classes(add="hide" if card is None else None, remove=None if card is None else "hide")
        if card is not None:
            self._title.content, self.text.content = card.title, card.text
            self._key.content, self.picture.content = card.key, card.picture


class Scrubber:
    """A slider over the rounds of a plan, and the figures of the one it stands at.

    Args:
        show: draws a round, from 0.
    """

    def __init__(self, show: Callable[[Rounds, int], None]) -> None:
        self._show = show
        self._rounds: Rounds | None = None
        self._index = 0
        with ui.element("div").classes("hide") as self._box:
            with ui.element("div").classes("scrub"):
                self._label = Text(tag="span").props("id=round")
                self._slider = Slider(min=1, max=1, step=1, value=1).props("dense")
                self._slider.props["aria-label"] = "Round"
                self._slider.classes("knob-slider").mark("rounds")
                self._slider.on_value_change(lambda event: self._moved(event.value))
            self._facts = Text().classes("facts").props("id=round-facts")

    def take(self, rounds: Rounds | None) -> None:
        """Show another plan's rounds: the same one as before, or the last; None where there are none to show."""
        self._rounds = rounds
        self._box.classes(add="hide" if rounds is None else None, remove=None if rounds is None else "hide")
        if rounds is not None:
            self._slider.props["max"] = len(rounds)
            self._go(self._index)
            self._slider.value = self._index + 1

    def _moved(self, value: Any) -> None:
        """Go where the slider is; what does not come from a slider of so many rounds is put within them."""
        if isinstance(value, int | float) and math.isfinite(value) and round(value) != self._index + 1:
            self._go(round(value) - 1)

    def _go(self, index: int) -> None:
        if self._rounds is None:
            return
        self._index = min(max(index, 0), len(self._rounds) - 1)
        self._label.content = f"Round {self._index + 1} of {len(self._rounds)}"
        self._facts.content = round_facts(self._rounds, self._index)
        self._show(self._rounds, self._index)


class DesignSection:
    """The pictures of a plan: one wide one, and up to four in pairs."""

    def __init__(self) -> None:
        self._width = 0.0
        with ui.element("section").classes("section") as self.box:
            self.box.props["aria-label"] = "Design"
            with ui.element("div").classes("section hide") as self._charts:
                self._wide = _Place()
                self._wide.text.props("id=waiting")
                with self._wide.box:
                    self._scrubber = Scrubber(self._show_round)
                    self._wide.picture.move(self._wide.box)  # below it
                self._half = []
                for _ in range(2):
                    with ui.element("div").classes("pair"):
                        self._half += [_Place(), _Place()]
            self._reason = Text().classes("card wrong hide").props("id=reason")

    def show(self, shown: Shown, width: float) -> None:
        """Draw the plan; `width` is that of the wide picture [px]."""
        self._charts.classes(remove="hide")
        self._reason.classes(add="hide")
        self._width = width
        for place, card in zip_longest((self._wide, *self._half), shown.cards):
            place.show(card)
        self._scrubber.take(shown.rounds)

    def _show_round(self, rounds: Rounds, index: int) -> None:
        self._wide.picture.content = drawing(rounds.strip(index, self._width))
        self._charts.style(f"--x: {index + 1}")

    def refuse(self, refusal: Refusal) -> None:
        """Show why there is nothing to draw."""
        self._scrubber.take(None)
        self._charts.classes(add="hide")
        self._reason.classes(remove="hide")
        title = "No plan fits" if refusal.infeasible else "This cannot be planned"
        advice = (
            "Raise the budget that the sentence names, or the peak power, or lower the noise."
            if refusal.infeasible
            else "Correct the value among the controls; files are checked by the same rules."
        )
        text = refusal.reason.removeprefix("No plan fits: ")
        told = Markup("<h2>{}</h2><p>{}</p><p>{}</p>")
        self._reason.content = told.format(title, text[:1].upper() + text[1:], advice)


def _placeholders() -> Markup:
    """Empty figures that keep their room until the first plan is there."""
    return Markup('<div class="fact"><small>&nbsp;</small><strong>&nbsp;</strong></div>') * _FACTS


class CompareSection:
    """The policies side by side, and what the budgets buy."""

    def __init__(self) -> None:
        with ui.element("section").classes("section hide") as self.box:
            self.box.props["aria-label"] = "Compare"
            with ui.element("div").classes("section hide") as self._charts:
                with ui.element("div").classes("card"):
                    Text("Policies on one channel draw", tag="h2")
                    Text("The bound of each, split into its terms.", tag="p").classes("sub")
                    Text(drawing(pictures.term_legend()))
                    self._table = Text().classes("scroll").props("id=policies tabindex=0 role=region")
                    self._table.props["aria-label"] = "Policies, a table that scrolls sideways"
                with ui.element("div").classes("card hide") as self._without:
                    Text("What the budgets buy", tag="h2")
                    self._no_front = Text(tag="p").classes("sub").props("id=no-front")
                with ui.element("div").classes("card") as bought:
                    Text("What the budgets buy", tag="h2")
                    Text("To the exact optimum at the larger budget.", tag="p").classes("sub")
                    self._sensitivities = Text().classes("sensitivities").props("id=sensitivities")
                    with ui.element("div").classes("pair"):
                        self._over_power = Text()
                        self._over_epsilon = Text()
                with ui.element("div").classes("card") as front:
                    Text("Privacy against power", tag="h2")
                    Text(
                        "Along a line the bound, or the expected accuracy, stays the same: a Pareto front, on which ε "
                        "is traded for watts. The green line is the present design; the colour is the binding limit.",
                        tag="p",
                    ).classes("sub")
                    Text(_limit_keys())
                    self._front = Text().props("id=front")
            self._reason = Text().classes("card wrong hide")
        self._with_front = (bought, front)

    def busy(self, working: bool) -> None:
        """Dim the section while it is out of date."""
        self._charts.classes(add="busy" if working else None, remove=None if working else "busy")

    def show(self, compared: Compared) -> None:
        """Show the policies and the sensitivities."""
        self._charts.classes(remove="hide")
        self._reason.classes(add="hide")
        self._table.content = compared.table
        self._sensitivities.content = compared.sensitivities
        self._no_front.content = compared.no_front
        without = bool(compared.no_front)
        self._without.classes(add=None if without else "hide", remove="hide" if without else None)
        for box in self._with_front:
            box.classes(add="hide" if without else None, remove=None if without else "hide")

    def show_front(self, front: Front, *, wide: float, half: float) -> None:
        """Draw the front and its two cuts; `wide` and `half` are the widths of the charts [px]."""
        inner = (wide - 18) / 2 if half < wide else wide
        self._over_power.content = drawing(comparison.slice_chart(front, inner, over="total_power"))
        self._over_epsilon.content = drawing(comparison.slice_chart(front, inner, over="epsilon"))
        self._front.content = drawing(comparison.front_map(front, wide))

    def refuse_front(self, reason: str) -> None:
        """Tell why there is no map."""
        self._over_power.content = self._over_epsilon.content = ""
        self._front.content = reason

    def refuse(self, reason: str) -> None:
        """Show why there is nothing to compare."""
        self._charts.classes(add="hide")
        self._reason.classes(remove="hide")
        self._reason.content = Markup("<h2>Nothing to compare</h2><p>{}</p>").format(reason)


def _limit_keys() -> Markup:
    return drawing(svg.keyed(*(svg.box_key(label, f"lim-{name}") for name, label in FLEET_LIMITS.items())))


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
                    Text(f"Below {root}. Tick up to {MOST_COMPARED} to compare.").classes("sub")
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
            runs = await compute(read, self._root, ticked, width, seen)
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
                        self._curves = [Text() for _ in CHARTS]
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
        self._ticked = [*others, name][-MOST_COMPARED:] if ticked else others
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
