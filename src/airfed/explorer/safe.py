"""One way to put text on the page: whatever is not `Markup` is escaped.

`Markup("<b>{}</b>").format(name)` escapes the name. The linter (S704) refuses `Markup` around anything but a literal,
so that markup is either written down in this package or comes from a drawing (`showing.drawings`).
"""

from __future__ import annotations

from markupsafe import escape
from nicegui import ui


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
