"""One visitor's page: the top bar, the controls, three sections, and how a move becomes a picture.

Every visitor has a `Page` of their own, and nothing that it holds is shared but the folder of runs and the trainer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

from nicegui import events, run, ui

from airfed.explorer import design as designs
from airfed.explorer.controls import Controls
from airfed.explorer.design import Design
from airfed.explorer.dialogs import command_dialog, load_dialog
from airfed.explorer.page_compare import CompareSection, compare
from airfed.explorer.page_design import DesignSection, Hero
from airfed.explorer.page_runs import RunsSection
from airfed.explorer.records import Library
from airfed.explorer.tradeoffs import Front, front
from airfed.explorer.trainer import Trainer
from airfed.explorer.view import View, look
from airfed.problem import InfeasibleError
from airfed.scenario import Scenario, ScenarioError
from airfed.showing import colours

_TABS: Final = ("design", "compare", "runs")
_CARD: Final = 38.0  # padding and border of a card, left and right [px]
_GAP: Final = 18.0
_BRAND: Final = (
    '<svg width="20" height="20" viewBox="0 0 20 20" aria-hidden="true"><g fill="none" stroke="var(--lit)" '
    'stroke-width="2" stroke-linecap="round"><path d="M3 17V12M8 17V8M13 17V10"/>'
    '<path d="M18 17V4" stroke="var(--out)"/></g></svg>'
)


class Page:
    """A visitor's page.

    Args:
        start: the design without a query in the address.
        query: of the address.
        library, trainer: shared by all visitors.
    """

    def __init__(self, start: Design, query: Mapping[str, str], library: Library, trainer: Trainer) -> None:
        own = {key for key in query if key not in ("tab", "token")}
        self.design = designs.from_query(query) if own else start
        self._tab = query.get("tab", "design") if query.get("tab") in _TABS else "design"
        self._width = 900.0
        self._view: View | None = None
        self._front: Front | None = None
        self._compared: str = ""
        self._working = self._dirty = False
        _style()
        ui.on("measured", self._measured)
        self._bar()
        self._hero = Hero()
        with ui.element("main").classes("frame") as self._frame:
            with ui.element("aside").classes("side") as self._side:
                self._side.props["aria-label"] = "Controls"
                self._controls = Controls(self._changed)
            with ui.element("div").classes("content"):
                self._design_section = DesignSection()
                self._compare_section = CompareSection()
                self._runs_section = RunsSection(library, trainer, lambda: self.design)
        self._controls.show(self.design)
        self._show_tab()

    async def begin(self) -> None:
        """Draw for the first time; the browser then says how wide it is."""
        await self._recompute()
        ui.run_javascript("airfed.start()")
        ui.timer(1.0, self._tick)  # last: a timer makes NiceGUI deliver the page, decided or not

    def _bar(self) -> None:
        with ui.element("nav").classes("bar"):
            ui.html(f"{_BRAND}<b>airfed</b><span>explore</span>", sanitize=False).classes("brand")
            tabs = ui.tabs(value=self._tab).props("no-caps dense narrow-indicator")  # type: ignore[arg-type]
            with tabs:
                for name in _TABS:
                    ui.tab(name, label=name.capitalize())
            tabs.on_value_change(lambda event: self._switch(str(event.value)))
            ui.element("div").classes("spacer")
            with ui.element("div").classes("actions"):
                for label, icon, action in (
                    ("Load", "upload_file", lambda: load_dialog(self._replace)),
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

    def _changed(self, key: str, value: Any) -> None:
        self.design = self.design.change(key, value)
        self._controls.show(self.design, but=key)
        self._soon()

    def _replace(self, design: Design) -> None:
        self.design = design
        self._controls.show(design)
        self._soon()

    def _soon(self) -> None:
        """Recompute; moves that arrive meanwhile are gathered into one more computation."""
        self._dirty = True
        if not self._working:
            ui.timer(0.0, self._recompute, once=True)

    async def _recompute(self) -> None:
        if self._working:
            return
        self._working = True
        try:
            while True:
                self._dirty = False
                await self._compute_once()
                if not self._dirty:
                    break
        finally:
            self._working = False

    async def _compute_once(self) -> None:
        design = self.design
        self._hero.busy(True)
        outcome = await run.io_bound(_attempt, design)
        self._hero.busy(False)
        if outcome is None:  # the server is going down
            return
        view, reason, infeasible, milliseconds = outcome
        self._view = view
        if view is None:
            self._hero.refuse(reason)
            self._design_section.refuse(reason, infeasible=infeasible)
        else:
            self._hero.show(view, milliseconds)
            self._draw()
        self._write_address()
        if self._tab == "compare" and not self._dirty:
            await self._compare()

    async def _compare(self) -> None:
        section = self._compare_section
        if self._view is None:
            section.refuse("The present design has no plan; see above.")
            self._compared = ""
            return
        world = self._view.world
        if self._compared == world.to_toml():
            return
        section.busy(True)
        try:
            comparison = await run.io_bound(compare, world)
            if comparison is None:  # the server is going down
                return
            section.show(comparison)
            self._front = await run.io_bound(front, world, stop=lambda: self._dirty)
        except InfeasibleError as error:
            section.refuse(str(error))
            return
        finally:
            section.busy(False)
        if self._front is not None:
            self._compared = world.to_toml()
            self._draw_front()

    def _draw(self) -> None:
        wide, half = self._widths()
        if self._view is not None:
            self._design_section.show(self._view, wide=wide, half=half)

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
        if width < 700 <= self._width:
            self._controls.fold()
        self._width = float(width)
        self._draw()
        self._draw_front()

    async def _switch(self, name: str) -> None:
        self._tab = name
        self._show_tab()
        self._write_address()
        if name == "compare":
            await self._compare()
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
        if self._tab == "runs":
            left = 338.0 if self._width >= 900 else 0.0  # the list beside the curves
            wide = max(self._width - left - _CARD, 240.0)
            half = (wide - _GAP) / 2 if self._width >= 900 else wide
            await self._runs_section.refresh(wide=wide, half=half)

    def _write_address(self) -> None:
        try:
            query = self.design.query()
        except ScenarioError:
            query = ""  # too long: the Link button says so
        if self._tab != "design":
            query = f"{query}&tab={self._tab}".removeprefix("&")
        ui.run_javascript(f"airfed.address({json.dumps(query)})")

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
            command_dialog(self.design.command())

    def _checked(self) -> Scenario | None:
        try:
            return self.design.world()
        except ScenarioError as error:
            ui.notify(str(error), type="warning")
            return None


def _attempt(design: Design) -> tuple[View | None, str, bool, float]:
    """The view, or the reason why there is none (and whether it is that no plan fits), and the time it took [ms]."""
    start = time.perf_counter()
    try:
        view = look(design.world())
        _ = view.plan.epsilon_round, view.plan.epsilon_total  # computed here, in the thread
    except InfeasibleError as error:
        return None, str(error), True, 0.0
    except ScenarioError as error:
        return None, str(error), False, 0.0
    return view, "", False, 1e3 * (time.perf_counter() - start)


def _style() -> None:
    folder = resources.files("airfed.explorer")
    css, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    ui.add_head_html(f"<style>{colours.stylesheet(['body.body--dark{%s}'])}{css}</style><script>{script}</script>")
