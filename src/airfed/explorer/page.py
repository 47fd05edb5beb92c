"""The page of one visitor. Nothing is computed before its web socket has connected."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Final

from nicegui import background_tasks, ui

from airfed.explorer import compare_tab, design, view
from airfed.explorer.charts import Options
from airfed.explorer.design import Design
from airfed.explorer.elements import Cards, command_dialog, text, text_dialog
from airfed.explorer.knobs import Controls
from airfed.explorer.runs_tab import RunsTab
from airfed.explorer.view import Card, View
from airfed.explorer.worker import RefusedError, compute
from airfed.plotting import colours
from airfed.scenario import ScenarioError

_TABS: Final = ("plan", "compare", "runs")
_FIGURE: Final = re.compile(r"((?:ε = )?\d[\d.]*(?:e[-+]?\d+)?(?:-\d+)?(?: to \d+)?(?: of \d+(?! local\b))?)")


class Page:
    """The page of one visitor: the design of the query, or `start`, and the runs of a folder."""

    def __init__(self, start: Design, runs: Path, query: Mapping[str, str]) -> None:
        self.design = design.from_query(query, start.own) if query.keys() - {"tab", "token"} else start
        self._client = ui.context.client
        folder = resources.files("airfed.explorer")
        css, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
        ui.add_head_html(f"<style>{colours.stylesheet(['body.body--dark{%s}'])}{css}</style><script>{script}</script>")
        self._top_bar(query.get("tab", ""))
        with ui.element("header").classes("hero") as self._hero:
            self._headline = text("Planning …", "h1").props("aria-live=polite id=headline")
            self._facts = ui.element("div").classes("facts").props("id=facts")
            self._remarks = ui.element("div").classes("remarks")
        with ui.element("main").classes("frame"):
            with ui.element("aside").classes("side").props("id=controls aria-label=Controls") as self._side:
                self._controls = Controls(lambda key, to: self._edit(self.design.change(key, to), key), self.design.own)
            with ui.element("div").classes("content"):
                self._cards = Cards("Plan", "cards")
                self._compared = Cards("Compare")
                legend = "Best aligned plans (policy optimal). A stronger colour is better; the star marks the budgets."
                self._front = Card("Privacy-power trade-off", legend, [{"series": []}], 420, key="front")
                legend = "One budget changes at a time. No linear method is expected to reach the shaded region."
                empty: list[Options] = [{"series": []}, {"series": []}]
                self._frontier = Card("What no linear method can beat", legend, empty, 600, key="frontier")
                self._runs_tab = RunsTab(runs, lambda: self._command("run", "--out", str(runs / "explored")))
        # On a small screen the controls are a drawer at the bottom; the headline stays visible.
        with ui.element("div").classes("drawer-bar"):
            drawer = ui.button("Controls", icon="tune", color=None).props("no-caps unelevated id=drawer")
            drawer.props("aria-controls=controls aria-expanded=false").on("click", js_handler="() => airfed.drawer()")
        self._controls.show(self.design)
        for name, box in zip(_TABS, (self._cards, self._compared, self._runs_tab.box), strict=True):
            box.bind_visibility_from(self._tabs, "value", value=name)
        for box in (self._hero, self._side):  # runs have their own scenarios
            box.bind_visibility_from(self._tabs, "value", backward=lambda tab: tab != "runs")
        ui.timer(1.0, self._tick)  # it starts when the client has connected
        self._client.on_connect(self._on_connect)
        self._client.on_disconnect(self._on_disconnect)

    def _on_connect(self) -> None:
        self._client.run_javascript("airfed.start()")
        self._replan()

    def _on_disconnect(self) -> None:
        task = background_tasks.lazy_tasks_running.get(self._client.id)
        if task is not None and not self._client.has_socket_connection:
            task.cancel()

    def _replan(self) -> None:
        """Plan again; requests during a computation become one more."""
        background_tasks.create_lazy(self._compute(), name=self._client.id)

    def _top_bar(self, tab: str) -> None:
        with ui.element("nav").classes("bar"):
            with ui.element("div").classes("brand"):
                text("airfed", "b")
                text("explore", "span")
            with ui.tabs().props("no-caps dense narrow-indicator") as self._tabs:
                for name in _TABS:
                    ui.tab(name, label=name.capitalize())
            self._tabs.set_value(tab if tab in _TABS else "plan").on_value_change(self._switch)
            ui.element("div").classes("spacer")
            with ui.element("div").classes("actions"):
                for label, icon, action in (
                    ("Load", "upload_file", lambda: text_dialog("Paste a scenario (TOML)", "Load", self._load)),
                    ("Save", "download", self._save),
                    ("Command", "terminal", lambda: self._command("plan")),
                ):
                    button = ui.button(label, icon=icon, on_click=action, color=None).props("flat no-caps dense")
                    button.props(f"aria-label={label} id=action-{label.lower()}")
                button = ui.button(icon="contrast", color=None).props('flat dense id=theme aria-label="Light or dark"')
                button.on("click", js_handler="() => airfed.toggle()")

    def _edit(self, new: Design, key: str = "") -> None:
        self.design = new
        self._controls.show(new, but=key)
        self._replan()

    async def _load(self, content: str) -> None:
        self._edit(await compute(design.from_text, content, self.design.own))

    async def _compute(self) -> None:
        if not self._client.has_socket_connection:
            return
        with self._client:
            self._hero.classes(add="busy")  # the style is delayed to avoid flicker
            current = self.design
            try:
                answer = await compute(view.show, current)
            except RefusedError as error:
                answer = View(str(error), [], [], [], [])
            self._hero.classes(add="" if answer.facts else "invalid", remove="busy invalid")
            self._show_plan(answer)
            self._cards.show(answer.cards)
            self._write_address()
            outdated = self._client.id in background_tasks.lazy_coroutines_waiting
            if self._tabs.value == "compare" and not outdated:
                self._compared.classes(add="busy")
                self._compared.show(await self._compare(current) if answer.facts else [])
                self._compared.classes(remove="busy")

    async def _compare(self, current: Design) -> list[Card]:
        try:
            cards = await compute(compare_tab.compare, current)
            if len(cards) > 1:
                self._compared.show([*cards, self._front, self._frontier])  # the maps take longer
                self._front = self._front._replace(charts=[await compute(compare_tab.front_map, current)])
                cards.append(self._front)
                self._compared.show([*cards, self._frontier])
                self._frontier = await self._mapped(current)
                cards.append(self._frontier)
            return cards
        except RefusedError as error:
            return [Card("", str(error), [], key="refused")]

    async def _mapped(self, current: Design) -> Card:
        """Return the card of the frontier; a refusal becomes its note, and the other cards stay."""
        try:
            return self._frontier._replace(charts=await compute(compare_tab.frontier_charts, current), note="")
        except RefusedError as error:
            return self._frontier._replace(charts=[{"series": []}, {"series": []}], note=str(error))

    def _show_plan(self, answer: View) -> None:
        for box in (self._headline, self._facts, self._remarks):
            box.clear()
        self._headline.text = ""
        with self._headline:
            for index, part in enumerate(_FIGURE.split(answer.sentence)):
                text(part, "b" if index % 2 and answer.facts else "span")
        with self._facts:
            for fact in answer.facts:
                with ui.element("div").classes("fact"):
                    text(fact.label, "small")
                    text(fact.value, "strong")
                    text(fact.remark, "em")
                    if fact.share is not None:
                        with ui.element("div").classes(f"meter lim-{fact.limit}"):
                            ui.element("i").style(f"width: {100 * min(max(fact.share, 0.0), 1.0):.1f}%")
        with self._remarks:
            for css, lines in (("warn", answer.warnings), ("", answer.remarks)):
                for line in lines:
                    text(line, "p", css)

    async def _switch(self) -> None:
        self._write_address()
        if self._tabs.value == "compare":
            self._replan()
        await self._tick()

    async def _tick(self) -> None:
        if self._tabs.value == "runs":
            await self._runs_tab.refresh()

    def _write_address(self) -> None:
        query = ""
        with _errors_notified():  # the query may be too long
            query = self.design.query()
        query += f"&tab={self._tabs.value}" * (self._tabs.value != "plan")
        self._client.run_javascript(f"airfed.address({json.dumps(query.removeprefix('&'))})")

    def _save(self) -> None:
        with _errors_notified():
            ui.download.content(self.design.scenario().to_toml(), "explored.toml", "application/toml")

    def _command(self, *arguments: str) -> None:
        with _errors_notified():
            command_dialog(self.design.command(*arguments))


@contextmanager
def _errors_notified() -> Iterator[None]:
    try:
        yield
    except ScenarioError as error:
        ui.notify(str(error), type="warning")
