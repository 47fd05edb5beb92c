"""Small elements of the page: text (escaped by NiceGUI), charts, cards, tables, and a dialog."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from nicegui import ui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement

from airfed.explorer.charts import Options

Table = list[dict[str, str]]


class Chart(ui.echart):
    """A chart of a height [px], empty until `show`."""

    def __init__(self, height: int) -> None:
        super().__init__({"series": []}, renderer="svg")
        self.style(f"height: {height}px").classes("chart")

    def show(self, options: Options) -> None:
        """Draw these options."""
        self.props["options"] = options
        self.update()


def text(content: str, tag: str = "div", css: str = "") -> TextElement:
    """Show a text."""
    return TextElement(tag=tag, text=content).classes(css)


def show_if(element: Element, shown: bool) -> None:
    """Show an element, or hide it."""
    element.classes(add=None if shown else "hide", remove="hide" if shown else None)


def card(title: str, sentence: str = "") -> ui.element:
    """Open a card under a title; a sentence may follow it."""
    with ui.element("div").classes("card") as made:
        text(title, "h2")
        text(sentence, "p", "sub")
    return made


def show_table(table: ui.table, rows: Table) -> None:
    """Show rows in place of those before; all columns but the first are aligned to the right."""
    names = list(rows[0]) if rows else []
    table.columns = [{"name": n, "label": n, "field": n, "align": "left" if n == names[0] else "right"} for n in names]
    table.rows = rows


def command_dialog(command: str) -> None:
    """Show a command with a button that copies it."""

    async def copy(command: str) -> str:
        copied = await ui.run_javascript(f"return await airfed.copy({json.dumps(command)})", timeout=5)
        return "" if copied else "Select the text and copy it."

    text_dialog("The same on the command line", "Copy", copy, command)


def text_dialog(title: str, verb: str, use: Callable[[str], Awaitable[str]], content: str = "") -> None:
    """Show a text to copy, or take one that is pasted; `use` returns what is wrong with it."""
    with ui.dialog(value=True) as dialog, ui.card().classes("sheet"):
        text(title, "h2")
        area = ui.textarea(value=content).props("outlined input-style=min-height:260px" + " readonly" * bool(content))
        area.props["aria-label"] = title
        wrong = text("", css="wrong").props("id=wrong role=alert")

        async def accept() -> None:
            wrong.text = await use(area.value or "")
            if not wrong.text:
                dialog.close()

        with ui.element("div").classes("row"):
            ui.button("Close", on_click=dialog.close, color=None).props("flat no-caps").classes("plain")
            ui.button(verb, on_click=accept).props("unelevated no-caps id=use").classes("go")
