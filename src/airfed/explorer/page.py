"""One visitor's page: the top bar, the controls, three sections, and how a move becomes a picture.

Every visitor has a `Page`; visitors share only the folder of runs and the worker processes. The page is delivered
empty: nothing is computed before its web socket has connected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup
from nicegui import events, ui

from airfed.explorer import design as designs
from airfed.explorer import shown
from airfed.explorer.comparison import Front
from airfed.explorer.compute import Latest, TooMuchError, compute
from airfed.explorer.controls import Controls
from airfed.explorer.design import Design
from airfed.explorer.elements import Text, command_dialog, load_dialog
from airfed.explorer.sections import CompareSection, DesignSection, Hero, RunsSection
from airfed.explorer.shown import Refusal, Shown
from airfed.plotting import colours
from airfed.scenario import Scenario, ScenarioError

_TABS: Final = ("design", "compare", "runs")
_CARD: Final = 38.0  # padding and border of a card, left and right [px]
_GAP: Final = 18.0
_BRAND: Final = Markup(
    '<svg width="20" height="20" viewBox="0 0 20 20" aria-hidden="true"><g fill="none" stroke="var(--lit)" '
    'stroke-width="2" stroke-linecap="round"><path d="M3 17V12M8 17V8M13 17V10"/>'
    '<path d="M18 17V4" stroke="var(--out)"/></g></svg><b>airfed</b><span>explore</span>'
)


@dataclass(frozen=True, kw_only=True)
class House:
    """What all visitors share."""

    start: Design
    runs: Path


class Page:
    """A visitor's page.

    Args:
        house: shared by all visitors.
        query: of the address; without one the house's design is shown.
    """

    def __init__(self, house: House, query: Mapping[str, str]) -> None:
        self._house = house
        own = {key for key in query if key not in ("tab", "token")}
        self.design = designs.from_query(query, house.start.own) if own else house.start
        self._tab = query.get("tab", "design") if query.get("tab") in _TABS else "design"
        self._width = 900.0
        self._shown: Shown | Refusal | None = None
        self._front: Front | None = None
        self._compared: Design | None = None
        self._plan = Latest(self._compute)
        self._reading = False
        self._client = ui.context.client
        _style()
        ui.on("measured", self._measured)
        self._bar()
        self._hero = Hero()
        with ui.element("main").classes("frame") as self._frame:
            with ui.element("aside").classes("side").props("id=controls") as self._side:
                self._side.props["aria-label"] = "Controls"
                self._controls = Controls(self._changed, self.design.own)
            with ui.element("div").classes("content"):
                self._design_section = DesignSection()
                self._compare_section = CompareSection()
                self._runs_section = RunsSection(house.runs, self._train)
        self._drawer_button()
        self._controls.show(self.design)
        self._show_tab()
        self._ticking = ui.timer(1.0, self._tick, active=False)
        self._client.on_connect(self._enter)
        self._client.on_disconnect(self._leave)

    def _enter(self) -> None:
        """Begin to compute: the visitor is there. The browser says how wide it is, and is drawn for."""
        self._client.run_javascript("airfed.start()")
        self._plan.wish()
        self._plan.start()
        self._ticking.activate()

    def _leave(self) -> None:
        """Wait for no more results."""
        self._plan.stop()
        self._ticking.deactivate()

    def _bar(self) -> None:
        with ui.element("nav").classes("bar"):
            Text(_BRAND).classes("brand")
            tabs = ui.tabs(value=self._tab).props("no-caps dense narrow-indicator")  # type: ignore[arg-type]
            with tabs:
                for name in _TABS:
                    ui.tab(name, label=name.capitalize())
            tabs.on_value_change(lambda event: self._switch(str(event.value)))
            ui.element("div").classes("spacer")
            with ui.element("div").classes("actions"):
                for label, icon, action in (
                    ("Load", "upload_file", lambda: load_dialog(self._load)),
                    ("Save", "download", self._save),
                    ("Command", "terminal", self._command),
                    ("Link", "link", self._copy_link),
                ):
                    button = ui.button(label, icon=icon, on_click=action, color=None).props("flat no-caps dense")
                    button.props["aria-label"] = label
                    button.props["id"] = f"action-{label.lower()}"
                button = ui.button(icon="contrast", color=None).props("flat dense id=theme")
                button.on("click", js_handler="() => airfed.toggle()")
                button.props["aria-label"] = "Light or dark"

    def _drawer_button(self) -> None:
        """On a small screen the controls are a drawer at the bottom; the decision stays in sight above it."""
        button = ui.button("Controls", icon="tune", color=None).props("no-caps unelevated id=drawer")
        button.props["aria-controls"] = "controls"
        button.props["aria-expanded"] = "false"
        button.classes("drawer-button").on("click", js_handler="() => airfed.drawer()")

    def _changed(self, key: str, value: Any) -> None:
        self.design = self.design.change(key, value)
        self._controls.show(self.design, but=key)
        self._plan.wish()

    async def _load(self, text: str) -> str:
        """Take a scenario's TOML; returns what is wrong with it."""
        try:
            loaded = await compute(shown.load, text, self._house.start.own)
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
            self._hero.busy(True)
            wide, half = self._widths()
            try:
                self._shown = await compute(shown.show, self.design, wide, half)
            except TooMuchError as error:
                self._shown = Refusal(reason=_smaller(error))
            finally:
                self._hero.busy(False)
            if isinstance(self._shown, Refusal):
                self._hero.refuse(self._shown.reason)
                self._design_section.refuse(self._shown)
            else:
                self._hero.show(self._shown)
                self._design_section.show(self._shown, wide)
            self._write_address()
            if self._tab == "compare" and not self._plan.outdated:
                await self._compare()

    async def _compare(self) -> None:
        section, design = self._compare_section, self.design
        if not isinstance(self._shown, Shown):
            section.refuse("The present design has no plan; see above.")
            self._compared = None
            return
        if self._compared == design:
            self._draw_front()
            return
        section.busy(True)
        self._compared = self._front = None
        try:
            compared = await compute(shown.compare, design)
            if isinstance(compared, Refusal):
                section.refuse(compared.reason)
                return
            section.show(compared)
            if not compared.no_front:
                try:
                    self._front = await compute(shown.front, design)
                except TooMuchError as error:
                    section.refuse_front(str(error))
                    return
        except TooMuchError as error:
            section.refuse(_smaller(error))
            return
        finally:
            section.busy(False)
        self._compared = design
        self._draw_front()

    def _draw_front(self) -> None:
        wide, half = self._widths()
        if self._front is not None:
            self._compare_section.show_front(self._front, wide=wide, half=half)

    def _widths(self) -> tuple[float, float]:
        """Widths of a chart in a full and in half a card [px]."""
        padding = _CARD if self._width >= 700 else _CARD - 8
        wide = max(self._width - padding, 240.0)
        return wide, (self._width - _GAP) / 2 - padding if self._width >= 760 else wide

    def _measured(self, event: events.GenericEventArguments) -> None:
        width = event.args.get("width") if isinstance(event.args, dict) else None
        if not isinstance(width, int | float) or not 100 <= width <= 10_000 or abs(width - self._width) < 2:
            return
        self._width = float(width)
        self._plan.wish()

    async def _switch(self, name: str) -> None:
        self._tab = name if name in _TABS else "design"
        self._show_tab()
        self._write_address()
        if name == "compare":
            self._plan.wish()
        elif name == "runs":
            await self._tick()

    def _show_tab(self) -> None:
        boxes = (self._design_section.box, self._compare_section.box, self._runs_section.box)
        for name, box in zip(_TABS, boxes, strict=True):
            box.classes(add=None if name == self._tab else "hide", remove="hide" if name == self._tab else None)
        alone = self._tab == "runs"
        self._side.classes(add="hide" if alone else None, remove=None if alone else "hide")
        self._frame.classes(add="solo" if alone else None, remove=None if alone else "solo")

    async def _tick(self) -> None:
        if self._tab == "runs" and not self._reading:
            self._reading = True
            try:
                left = 338.0 if self._width >= 900 else 0.0  # the list beside the curves
                wide = max(self._width - left - _CARD, 240.0)
                await self._runs_section.refresh((wide - _GAP) / 2 if self._width >= 900 else wide)
            finally:
                self._reading = False

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
        world = self._checked()
        if world is not None:
            safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in world.name) or "scenario"
            ui.download.content(world.to_toml(), f"{safe}.toml", "application/toml")

    def _command(self) -> None:
        if self._checked() is not None:
            command_dialog(self.design.command("plan"))

    def _train(self) -> None:
        if self._checked() is not None:
            command_dialog(self.design.command("run", "--out", str(self._house.runs / "explored")))

    def _checked(self) -> Scenario | None:
        try:
            return self.design.world()
        except ScenarioError as error:
            ui.notify(str(error), type="warning")
            return None


def _smaller(error: TooMuchError) -> str:
    """Say what makes a plan smaller."""
    less = "with fewer devices or steps, or a fixed number of rounds (policy.rounds)"
    return f"{str(error).removesuffix('.')}, {less}."


def _style() -> None:
    folder = resources.files("airfed.explorer")
    css, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    ui.add_head_html(f"<style>{colours.stylesheet(['body.body--dark{%s}'])}{css}</style><script>{script}</script>")
