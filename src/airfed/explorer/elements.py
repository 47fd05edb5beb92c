"""Small elements of the page: text (escaped by NiceGUI), charts, keys to colours, figures, and the two dialogs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping

from nicegui import events, ui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement

from airfed.explorer.charts import Options
from airfed.explorer.design import MOST_TEXT
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
    with ui.dialog(value=True) as dialog, ui.card().classes("sheet"):
        text("The same on the command line", "h2")
        area = ui.textarea(value=command).props("outlined readonly input-style=min-height:260px id=command")
        area.props["aria-label"] = "Command"

        async def copy() -> None:
            copied = await ui.run_javascript(f"return await airfed.copy({json.dumps(command)})", timeout=5)
            ui.notify("Copied." if copied else "Select the text and copy it.")

        with ui.element("div").classes("row"):
            ui.button("Close", on_click=dialog.close, color=None).props("flat no-caps").classes("plain")
            ui.button("Copy", on_click=copy).props("unelevated no-caps").classes("go")


def load_dialog(take: Callable[[str], Awaitable[str]]) -> None:
    """Ask for a scenario, pasted or from a file; `take` returns what is wrong with it."""
    with ui.dialog(value=True) as dialog, ui.card().classes("sheet"):
        text("Load a scenario", "h2")
        area = ui.textarea(placeholder="Paste a scenario’s TOML here, or choose a file below.")
        area.props("outlined input-style=min-height:220px id=paste").props["aria-label"] = "Scenario as TOML"
        wrong = text("", css="wrong").props("id=load-error role=alert")

        async def accept(content: str) -> None:
            wrong.text = await take(content)
            if not wrong.text:
                dialog.close()

        async def uploaded(event: events.UploadEventArguments) -> None:
            try:
                await accept(await event.file.text())
            except UnicodeDecodeError:
                wrong.text = "Expected a text file, got binary data."

        upload = ui.upload(label="Choose a file", on_upload=uploaded, auto_upload=True, max_file_size=MOST_TEXT)
        upload.props("accept=.toml flat bordered").style("width:100%")
        with ui.element("div").classes("row"):
            ui.button("Close", on_click=dialog.close, color=None).props("flat no-caps").classes("plain")
            load = ui.button("Load", on_click=lambda: accept(area.value or "")).props("unelevated no-caps id=load")
            load.classes("go")
