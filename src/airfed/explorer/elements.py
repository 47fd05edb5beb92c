"""Elements of the page: escaped text, and the two dialogs (load a scenario, copy a command).

Whatever is not `Markup` is escaped. `Markup("<b>{}</b>").format(name)` escapes the name. The linter (S704) refuses
`Markup` around anything but a literal, so that markup is either written down in this package or comes from a drawing
(`plotting.drawings`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from markupsafe import escape
from nicegui import events, ui

from airfed.explorer import design as designs


class Text(ui.html):
    """An element that shows text, escaped, or `Markup` as it is.

    Args:
        content: a text, or `Markup`.
        tag: the HTML element.
    """

    def __init__(self, content: str = "", *, tag: str = "div") -> None:
        super().__init__(content, sanitize=_safe, tag=tag)


def _safe(content: str) -> str:
    return str(escape(content))


def command_dialog(text: str) -> None:
    """Show a command with a button that copies it."""
    with ui.dialog(value=True) as dialog, ui.card().classes("sheet"):
        Text("The same on the command line", tag="h2")
        area = ui.textarea(value=text).props("outlined readonly input-style=min-height:260px id=command")
        area.props["aria-label"] = "Command"

        async def copy() -> None:
            copied = await ui.run_javascript(f"return await airfed.copy({json.dumps(text)})", timeout=5)
            ui.notify("Copied." if copied else "Select the text and copy it.")

        with ui.element("div").classes("row"):
            ui.button("Close", on_click=dialog.close, color=None).props("flat no-caps").classes("plain")
            ui.button("Copy", on_click=copy).props("unelevated no-caps").classes("go")


def load_dialog(take: Callable[[str], Awaitable[str]]) -> None:
    """Ask for a scenario, pasted or from a file, and hand it over; `take` returns what is wrong with it."""
    with ui.dialog(value=True) as dialog, ui.card().classes("sheet"):
        Text("Load a scenario", tag="h2")
        area = ui.textarea(placeholder="Paste a scenario’s TOML here, or choose a file below.")
        area.props("outlined input-style=min-height:220px id=paste")
        area.props["aria-label"] = "Scenario as TOML"
        wrong = ui.label("").classes("wrong").props("id=load-error role=alert")

        async def accept(text: str) -> None:
            wrong.text = await take(text)
            if not wrong.text:
                dialog.close()

        async def uploaded(event: events.UploadEventArguments) -> None:
            try:
                await accept(await event.file.text())
            except UnicodeDecodeError:
                wrong.text = "Expected a text file, got binary data."

        upload = ui.upload(label="Choose a file", on_upload=uploaded, auto_upload=True, max_file_size=designs.MOST_TEXT)
        upload.props("accept=.toml flat bordered").style("width:100%")
        with ui.element("div").classes("row"):
            ui.button("Close", on_click=dialog.close, color=None).props("flat no-caps").classes("plain")
            load = ui.button("Load", on_click=lambda: accept(area.value or "")).props("unelevated no-caps id=load")
            load.classes("go")
