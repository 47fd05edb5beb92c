"""One visitor's page: the top bar, the headline, the controls and three tabs, and how a move becomes a picture.

Every visitor has a `Page`; visitors share only the folder of runs and the worker processes. The page is delivered
empty: nothing is computed before its web socket has connected.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from nicegui import ui

from airfed.explorer import charts, design, view
from airfed.explorer.compare_tab import CompareTab
from airfed.explorer.design import Design
from airfed.explorer.elements import Chart, command_dialog, fill, load_dialog, show_if, text
from airfed.explorer.knobs import Controls, Slider
from airfed.explorer.runs_tab import RunsTab
from airfed.explorer.view import Card, Refusal, Rounds, View
from airfed.explorer.worker import Latest, TooMuchError, compute
from airfed.plotting import colours
from airfed.scenario import ScenarioError

_TABS: Final = ("design", "compare", "runs")
_FIGURE: Final = re.compile(r"((?:ε = )?\d[\d.]*(?:e[-+]?\d+)?(?:-\d+)?(?: to \d+)?(?: of \d+(?! steps?\b))?)")


class Page:
    """A visitor's page.

    Args:
        start: the design that is shown where the address has none.
        runs: the folder of run directories.
        query: of the address.
    """

    def __init__(self, start: Design, runs: Path, query: Mapping[str, str]) -> None:
        own = query.keys() - {"tab", "token"}
        self.design = design.from_query(query, start.own) if own else start
        self._runs = runs
        self._tab = query.get("tab", "design") if query.get("tab") in _TABS else "design"
        self._plan = Latest(self._compute)
        self._client = ui.context.client
        folder = resources.files("airfed.explorer")
        css, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
        ui.add_head_html(f"<style>{colours.stylesheet(['body.body--dark{%s}'])}{css}</style><script>{script}</script>")
        self._bar()
        with ui.element("header").classes("hero") as self._hero:
            self._sentence = text("Planning …", "h1").props("aria-live=polite id=decision")
            self._facts = ui.element("div").classes("facts").props("id=facts")
            self._remarks = ui.element("div").classes("remarks")
        with ui.element("main").classes("frame") as self._frame:
            with ui.element("aside").classes("side").props("id=controls aria-label=Controls") as self._side:
                self._controls = Controls(self._changed, self.design.own)
            with ui.element("div").classes("content"):
                self._design_tab, self._compare_tab, self._runs_tab = (
                    DesignTab(),
                    CompareTab(),
                    RunsTab(runs, self._train),
                )
        # On a small screen the controls are a drawer at the bottom; the decision stays in sight above it.
        with ui.element("div").classes("drawer-bar"):
            drawer = ui.button("Controls", icon="tune", color=None).props("no-caps unelevated id=drawer")
            drawer.props("aria-controls=controls aria-expanded=false").on("click", js_handler="() => airfed.drawer()")
        self._controls.show(self.design)
        self._show_tab()
        self._ticking = ui.timer(1.0, self._tick, active=False)
        self._client.on_connect(self._enter)
        self._client.on_disconnect(self._leave)

    def _enter(self) -> None:
        self._client.run_javascript("airfed.start()")
        self._plan.wish()
        self._plan.start()
        self._ticking.activate()

    def _leave(self) -> None:
        self._plan.stop()
        self._ticking.deactivate()

    def _bar(self) -> None:
        with ui.element("nav").classes("bar"):
            with ui.element("div").classes("brand"):
                text("airfed", "b")
                text("explore", "span")
            with ui.tabs(value=self._tab).props("no-caps dense narrow-indicator") as tabs:  # type: ignore[arg-type]
                for name in _TABS:
                    ui.tab(name, label=name.capitalize())
            tabs.on_value_change(lambda event: self._switch(str(event.value)))
            ui.element("div").classes("spacer")
            with ui.element("div").classes("actions"):
                for label, icon, action in (
                    ("Load", "upload_file", lambda: load_dialog(self._load)),
                    ("Save", "download", self._save),
                    ("Command", "terminal", lambda: self._command("plan")),
                    ("Link", "link", self._copy_link),
                ):
                    button = ui.button(label, icon=icon, on_click=action, color=None).props("flat no-caps dense")
                    button.props(f"aria-label={label} id=action-{label.lower()}")
                button = ui.button(icon="contrast", color=None).props("flat dense id=theme")
                button.on("click", js_handler="() => airfed.toggle()").props["aria-label"] = "Light or dark"

    def _changed(self, key: str, value: Any) -> None:
        self.design = self.design.change(key, value)
        self._controls.show(self.design, but=key)
        self._plan.wish()

    async def _load(self, content: str) -> str:
        """Take a scenario's TOML; returns what is wrong with it."""
        try:
            loaded = await compute(view.load, content, self.design.own)
        except TooMuchError as error:
            return str(error)
        if isinstance(loaded, Refusal):
            return loaded.reason
        self.design = loaded
        self._controls.show(loaded)
        self._plan.wish()
        return ""

    async def _compute(self) -> None:
        with self._client:
            self._hero.classes(add="busy")  # the style waits a little, lest it flicker
            present = self.design
            found: View | Refusal
            try:
                found = await compute(view.show, present)
            except TooMuchError as error:
                less = "with fewer devices or steps, or a fixed number of rounds (policy.rounds)"
                found = Refusal(f"{str(error).removesuffix('.')}, {less}.")
            finally:
                self._hero.classes(remove="busy")
            self._show_decision(found)
            self._design_tab.show(found)
            self._write_address()
            if self._tab == "compare" and not self._plan.outdated:
                await self._compare_tab.show(present, isinstance(found, View))

    def _show_decision(self, found: View | Refusal) -> None:
        self._sentence.clear()
        self._remarks.clear()
        if isinstance(found, Refusal):
            self._hero.classes(add="wrong")
            self._sentence.text = found.reason
            self._facts.clear()
            return
        self._hero.classes(remove="wrong")
        self._sentence.text = ""
        with self._sentence:
            for place, part in enumerate(_FIGURE.split(found.sentence)):
                text(part, "b" if place % 2 else "span")
        fill(self._facts, found.facts)
        with self._remarks:
            for warning in found.warnings:
                text(warning, "p", "warn")
            for remark in found.remarks:
                last = text(remark, "p")
            with last:
                text(f" Planned in {found.milliseconds:.0f} ms.", "span").props("id=timing")

    async def _switch(self, name: str) -> None:
        self._tab = name if name in _TABS else "design"
        self._show_tab()
        self._write_address()
        if self._tab == "compare":
            self._plan.wish()
        await self._tick()

    def _show_tab(self) -> None:
        for name, box in zip(_TABS, (self._design_tab.box, self._compare_tab.box, self._runs_tab.box), strict=True):
            show_if(box, name == self._tab)
        alone = self._tab == "runs"  # they are of other designs: no headline, no controls
        show_if(self._side, not alone)
        show_if(self._hero, not alone)
        self._frame.classes(add="solo" if alone else None, remove=None if alone else "solo")

    async def _tick(self) -> None:
        if self._tab == "runs":
            await self._runs_tab.refresh()

    def _write_address(self) -> None:
        try:
            query = self.design.query()
        except ScenarioError:
            query = ""  # too long: the Link button says so
        if self._tab != "design":
            query = f"{query}&tab={self._tab}".removeprefix("&")
        self._client.run_javascript(f"airfed.address({json.dumps(query)})")

    async def _copy_link(self) -> None:
        try:
            self.design.query()
        except ScenarioError as error:
            ui.notify(str(error), type="warning")
            return
        copied = await ui.run_javascript("return await airfed.copy(location.href)", timeout=5)
        ui.notify("The link is in the clipboard." if copied else "Copy the address from the browser’s own bar.")

    def _save(self) -> None:
        try:
            world = self.design.world()
        except ScenarioError as error:
            ui.notify(str(error), type="warning")
            return
        safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in world.name) or "scenario"
        ui.download.content(world.to_toml(), f"{safe}.toml", "application/toml")

    def _train(self) -> None:
        self._command("run", "--out", str(self._runs / "explored"))

    def _command(self, *arguments: str) -> None:
        try:
            command_dialog(self.design.command(*arguments))
        except ScenarioError as error:
            ui.notify(str(error), type="warning")


class DesignTab:
    """The charts of a plan: one wide card, with a slider where rounds differ, and up to four in pairs."""

    def __init__(self) -> None:
        self._rounds: Rounds | None = None
        self._index = 0
        with ui.element("section").classes("section").props("aria-label=Design") as self.box:
            with ui.element("div").classes("section hide") as self._charts:
                self._cards = [_CardPlace(wide=True)]
                self._cards[0].text.props("id=waiting")
                with self._cards[0].above, ui.element("div").classes("hide") as self._scrubber:
                    with ui.element("div").classes("scrub"):
                        self._label = text("", "span").props("id=round")
                        self._slider = Slider(min=1, max=1, step=1, value=1).props("dense aria-label=Round")
                        self._slider.classes("knob-slider").on_value_change(lambda event: self._moved(event.value))
                    self._facts = ui.element("div").classes("facts").props("id=round-facts")
                for _ in range(2):
                    with ui.element("div").classes("pair"):
                        self._cards += [_CardPlace(), _CardPlace()]
            with ui.element("div").classes("card wrong hide").props("id=reason") as self._refused:
                self._title, self._reason, self._advice = text("", "h2"), text("", "p"), text("", "p")

    def show(self, found: View | Refusal) -> None:
        """Draw a plan, or say why there is none."""
        show_if(self._charts, isinstance(found, View))
        show_if(self._refused, isinstance(found, Refusal))
        self._rounds = found.rounds if isinstance(found, View) else None
        if isinstance(found, Refusal):
            self._title.text = "No plan fits" if found.infeasible else "This cannot be planned"
            said = found.reason.removeprefix("No plan fits: ")
            self._reason.text = said[:1].upper() + said[1:]
            raised = "Raise the budget that the sentence names, or the peak power, or lower the noise."
            checked = "Correct the value among the controls; files are checked by the same rules."
            self._advice.text = raised if found.infeasible else checked
            return
        for place, card in zip_longest(self._cards, found.cards):
            place.show(card)
        show_if(self._scrubber, found.rounds is not None)
        if found.rounds is not None:
            self._slider.props["max"] = len(found.rounds.strips)
            self._go(self._index)
            self._slider.value = self._index + 1

    def _moved(self, value: Any) -> None:
        if isinstance(value, int | float) and math.isfinite(value) and round(value) != self._index + 1:
            self._go(round(value) - 1)

    def _go(self, index: int) -> None:
        """Show a round, or the nearest that there is; nothing is planned anew."""
        if self._rounds is None:
            return
        last = len(self._rounds.strips)
        self._index = min(max(index, 0), last - 1)
        self._label.text = f"Round {self._index + 1} of {last}"
        fill(self._facts, self._rounds.facts(self._index))
        self._cards[0].draw([self._rounds.strip(self._index)])
        for place in self._cards[1:]:
            for options in place.options:
                charts.move_cursor(options, self._index + 1)
            place.draw(place.options)


class _CardPlace:
    """Where a card is shown."""

    def __init__(self, *, wide: bool = False) -> None:
        self._wide = wide
        self.options: list[charts.Options] = []
        self._drawn: list[Chart] = []
        with ui.element("div").classes("card") as self._box:
            self._title, self.text = text("", "h2"), text("", "p", "sub")
            self.above, self._charts = ui.element("div"), ui.element("div")

    def show(self, card: Card | None) -> None:
        """Fill the place, or leave it empty."""
        show_if(self._box, card is not None)
        if card is not None:
            self._title.text, self.text.text = card.title, card.text
        self.draw(card.charts if card is not None else [])

    def draw(self, options: list[charts.Options]) -> None:
        """Draw charts below each other."""
        self.options = options
        if len(self._drawn) != len(options):
            self._charts.clear()
            with self._charts:
                self._drawn = [Chart(226 if self._wide else 360 // len(options) + 10 * len(options)) for _ in options]
        for each, wanted in zip(self._drawn, options, strict=True):
            each.show(wanted)
