"""One visitor's page, delivered empty: nothing is computed before its web socket has connected."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Final

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from airfed.explorer import design, view
from airfed.explorer.compare_tab import CompareTab
from airfed.explorer.design import Design
from airfed.explorer.elements import Chart, command_dialog, show_if, text, text_dialog
from airfed.explorer.knobs import Controls
from airfed.explorer.runs_tab import RunsTab
from airfed.explorer.view import Card, View
from airfed.explorer.worker import Latest, RefusedError, compute
from airfed.plotting import colours
from airfed.scenario import ScenarioError

_TABS: Final = ("design", "compare", "runs")
_FIGURE: Final = re.compile(r"((?:ε = )?\d[\d.]*(?:e[-+]?\d+)?(?:-\d+)?(?: to \d+)?(?: of \d+(?! steps?\b))?)")


class Page:
    """A visitor's page: the design of the address's query, or `start`, and the runs of a folder."""

    def __init__(self, start: Design, runs: Path, query: Mapping[str, str]) -> None:
        self.design = design.from_query(query, start.own) if query.keys() - {"tab", "token"} else start
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
                self._controls = Controls(lambda key, to: self._take(self.design.change(key, to), key), self.design.own)
            with ui.element("div").classes("content"):
                self._cards = ui.element("section").classes("cards").props("aria-label=Design")
                self._drawn: list[tuple[TextElement, TextElement, list[Chart]]] = []  # of each card
                self._compare_tab = CompareTab()
                self._runs_tab = RunsTab(runs, lambda: self._command("run", "--out", str(runs / "explored")))
        # On a small screen the controls are a drawer at the bottom; the decision stays in sight above it.
        with ui.element("div").classes("drawer-bar"):
            drawer = ui.button("Controls", icon="tune", color=None).props("no-caps unelevated id=drawer")
            drawer.props("aria-controls=controls aria-expanded=false").on("click", js_handler="() => airfed.drawer()")
        self._controls.show(self.design)
        self._show_tab()
        self._ticking = ui.timer(1.0, self._tick, active=False)
        self._client.on_connect(self._enter)
        self._client.on_disconnect(self._plan.stop)
        self._client.on_disconnect(self._ticking.deactivate)

    def _enter(self) -> None:
        self._client.run_javascript("airfed.start()")
        self._plan.wish()
        self._plan.start()
        self._ticking.activate()

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
                    ("Load", "upload_file", lambda: text_dialog("Paste a scenario’s TOML", "Load", self._load)),
                    ("Save", "download", self._save),
                    ("Command", "terminal", lambda: self._command("plan")),
                ):
                    button = ui.button(label, icon=icon, on_click=action, color=None).props("flat no-caps dense")
                    button.props(f"aria-label={label} id=action-{label.lower()}")
                button = ui.button(icon="contrast", color=None).props("flat dense id=theme")
                button.on("click", js_handler="() => airfed.toggle()").props["aria-label"] = "Light or dark"

    def _take(self, new: Design, key: str = "") -> None:
        self.design = new
        self._controls.show(new, but=key)
        self._plan.wish()

    async def _load(self, content: str) -> str:
        try:
            self._take(await compute(design.from_text, content, self.design.own))
        except RefusedError as error:
            return str(error)
        return ""

    async def _compute(self) -> None:
        with self._client:
            self._hero.classes(add="busy")  # the style waits a little, lest it flicker
            present, found, reason = self.design, None, ""
            try:
                found = await compute(view.show, present)
            except RefusedError as error:
                reason = str(error)
            finally:
                self._hero.classes(add="wrong" if reason else None, remove="busy" if reason else "busy wrong")
            self._show_decision(found or View(reason, [], [], [], []))
            self._show_cards(found.cards if found else [])
            self._write_address()
            if self._tab == "compare" and not self._plan.outdated():
                await self._compare_tab.show(present, found is not None)

    def _show_decision(self, found: View) -> None:
        for box in (self._sentence, self._facts, self._remarks):
            box.clear()
        self._sentence.text = ""
        with self._sentence:
            for place, part in enumerate(_FIGURE.split(found.sentence)):
                text(part, "b" if place % 2 and found.facts else "span")
        with self._facts:
            for fact in found.facts:
                with ui.element("div").classes("fact"):
                    text(fact.label, "small")
                    text(fact.value, "strong")
                    text(fact.remark, "em")
                    if fact.share is not None:
                        with ui.element("div").classes(f"meter lim-{fact.limit}"):
                            ui.element("i").style(f"width: {100 * min(max(fact.share, 0.0), 1.0):.1f}%")
        with self._remarks:
            for warning in found.warnings:
                text(warning, "p", "warn")
            for remark in found.remarks:
                text(remark, "p")

    def _show_cards(self, cards: list[Card]) -> None:
        shape = [len(card.charts) for card in cards]
        if [len(charts) for _, _, charts in self._drawn] != shape:
            self._cards.clear()
            self._drawn = []
            for number in shape:
                height = 360 if self._drawn else 226  # the first one is wide
                with self._cards, ui.element("div").classes("card"):
                    title, said = text("", "h2"), text("", "p", "sub")
                    self._drawn.append((title, said, [Chart(height // number) for _ in range(number)]))
        for (title, said, charts), card in zip(self._drawn, cards, strict=True):
            title.text, said.text = card.title, card.text
            for chart, options in zip(charts, card.charts, strict=True):
                chart.show(options)

    async def _switch(self, name: str) -> None:
        self._tab = name if name in _TABS else "design"
        self._show_tab()
        self._write_address()
        if self._tab == "compare":
            self._plan.wish()
        await self._tick()

    def _show_tab(self) -> None:
        for name, box in zip(_TABS, (self._cards, self._compare_tab.box, self._runs_tab.box), strict=True):
            show_if(box, name == self._tab)
        alone = self._tab == "runs"  # they are of other designs: no headline, no controls
        show_if(self._side, not alone)
        show_if(self._hero, not alone)
        self._frame.classes(add="solo" if alone else None, remove=None if alone else "solo")

    async def _tick(self) -> None:
        if self._tab == "runs":
            await self._runs_tab.refresh()

    def _write_address(self) -> None:
        query = ""
        with _told():  # it may be too long
            query = self.design.query()
        query += f"&tab={self._tab}" * (self._tab != "design")
        self._client.run_javascript(f"airfed.address({json.dumps(query.removeprefix('&'))})")

    def _save(self) -> None:
        with _told():
            ui.download.content(self.design.world().to_toml(), "explored.toml", "application/toml")

    def _command(self, *arguments: str) -> None:
        with _told():
            command_dialog(self.design.command(*arguments))


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except ScenarioError as error:
        ui.notify(str(error), type="warning")
