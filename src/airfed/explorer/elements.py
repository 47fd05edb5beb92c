"""Elements of the page: text (escaped by NiceGUI), cards with charts and tables, and dialogs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Final

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from airfed.explorer.view import Card
from airfed.explorer.worker import RefusedError

_LOOK: Final = json.loads((resources.files("airfed.explorer") / "charts.json").read_text(encoding="utf-8"))
_THEME: Final = _LOOK | {f"{kind}Axis": _LOOK["axis"] for kind in ("value", "log", "category")}


def text(content: str, tag: str = "div", css: str = "") -> TextElement:
    """Add a text."""
    return TextElement(tag=tag, text=content).classes(css)


class CardBox(ui.element):
    """A card on the page."""

    def __init__(self, card: Card) -> None:
        super().__init__("div")
        self.classes("card").props["id"] = card.key or self.html_id
        with self:
            self._heading, self._subtitle = text("", "h2"), text("", "p", "sub")
            with ui.element("div").classes("charts"):
                self._charts = [ui.echart({}, renderer="svg", theme=_THEME).classes("chart") for _ in card.charts]
            self._table = ui.table(rows=[]).props("flat dense tabindex=0") if card.rows else None
            self._note = text("", "p", "note")
        self.show(card)

    def show(self, card: Card) -> None:
        """Replace the content by a card with the same number of charts."""
        self._heading.text, self._subtitle.text, self._note.text = card.title, card.text, card.note
        for chart, options in zip(self._charts, card.charts, strict=True):
            chart.style(f"height: {card.height // len(card.charts)}px").props["options"] = options
        if self._table is not None:
            self._table.columns = [{"name": n, "label": n, "field": n, "align": "right"} for n in card.rows[0]]
            self._table.rows = list(card.rows)


class Cards(ui.element):
    """A list of cards; elements are reused when the new cards have the same shape, to avoid flicker."""

    def __init__(self, label: str, css: str = "section") -> None:
        super().__init__("section")
        self.classes(css).props["aria-label"] = label
        self._boxes: list[CardBox] = []
        self._shape: list[tuple[str, int, bool]] = []

    def show(self, cards: list[Card]) -> None:
        """Show these cards."""
        shape = [(card.key, len(card.charts), bool(card.rows)) for card in cards]
        if shape != self._shape:
            self.clear()
            with self:
                self._shape, self._boxes = shape, [CardBox(card) for card in cards]
        for box, card in zip(self._boxes, cards, strict=True):
            box.show(card)


def command_dialog(command: str) -> None:
    """Show a command with a button that copies it."""

    async def copy(command: str) -> None:
        if not await ui.run_javascript(f"return await airfed.copy({json.dumps(command)})", timeout=5):
            raise RefusedError("The browser refused to copy. Select the text and copy it.")

    text_dialog("Run this in a terminal", "Copy", copy, command)


def text_dialog(title: str, verb: str, use: Callable[[str], Awaitable[None]], content: str = "") -> None:
    """Show a text to copy, or accept a pasted one; `use` raises RefusedError if it is invalid."""
    with ui.dialog(value=True) as dialog, ui.card().classes("sheet"):
        text(title, "h2")
        area = ui.textarea(value=content).props("outlined input-style=min-height:260px" + " readonly" * bool(content))
        area.props["aria-label"] = title
        problem = text("", css="problem").props("id=problem role=alert")

        async def accept() -> None:
            try:
                await use(area.value or "")
                dialog.close()
            except RefusedError as error:
                problem.text = str(error)

        with ui.element("div").classes("row"):
            ui.button("Close", on_click=dialog.close, color=None).props("flat no-caps").classes("plain")
            ui.button(verb, on_click=accept).props("unelevated no-caps id=use").classes("go")
