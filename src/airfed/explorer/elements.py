"""Small elements of the page: text (escaped by NiceGUI), charts, keys to colours, figures, sliders, and a dialog."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping

from nicegui import ui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement

from airfed.explorer.charts import Options
from airfed.explorer.view import Fact


class Chart(ui.echart):
    """A chart of a height [px], empty until `show`."""

    def __init__(self, height: int) -> None:
        super().__init__({"series": []}, renderer="svg")
        self.style(f"height: {height}px").classes("chart")

    def show(self, options: Options) -> None:
        """Draw these options."""
        self.props["options"] = options
        self.update()


class Slider(ui.slider):
    """A slider that moves under the hand at once and tells the server afterwards."""

    LOOPBACK = False


def text(content: str, tag: str = "div", css: str = "") -> TextElement:
    """Show a text."""
    return TextElement(tag=tag, text=content).classes(css)


def show_if(element: Element, shown: bool) -> None:
    """Show an element, or hide it."""
    element.classes(add=None if shown else "hide", remove="hide" if shown else None)


def keys(labels: Mapping[str, str]) -> None:
    """Show a key to colours by their names."""
    with ui.element("div").classes("legend"):
        for colour, label in labels.items():
            with ui.element("span").classes("key"):
                ui.element("i").classes(f"box {colour}")
                text(label, "span")


def fill(box: Element, facts: Iterable[Fact]) -> None:
    """Show figures in a box, in place of those before."""
    box.clear()
    with box:
        for fact in facts:
            with ui.element("div").classes("fact"):
                text(fact.label, "small")
                text(fact.value, "strong")
                text(fact.remark, "em")
                if fact.share is not None:
                    with ui.element("div").classes(f"meter lim-{fact.limit}"):
                        ui.element("i").style(f"width: {100 * min(max(fact.share, 0.0), 1.0):.1f}%")


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
