"""How commands speak: text that cannot steer a terminal, JSON that every reader accepts."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.measure import Measurement
from rich.segment import Segment

_CONTROL: Final = ("Cc", "Cs", "Zl", "Zp")
_TURNING: Final = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # these reorder what follows


def clean(text: str, *, keep: str = "") -> str:
    r"""Return the text with characters that steer a terminal written out, as in \x1b.

    Args:
        text: any, say out of a file.
        keep: characters to leave as they are.

    >>> clean("a name\x1b[31m")
    'a name\\x1b[31m'
    """
    return "".join(
        character.encode("unicode_escape").decode() if _steers(character) and character not in keep else character
        for character in text
    )


def _steers(character: str) -> bool:
    if " " <= character <= "~":
        return False
    return unicodedata.category(character) in _CONTROL or unicodedata.bidirectional(character) in _TURNING


def say(text: str, *, keep: str = "", **options: Any) -> None:
    """Print plain text, cleaned: one line, unless line breaks are kept."""
    print(clean(text, keep=keep), **options)


def print_json(value: Any) -> None:
    """Print a value as one line of strict JSON; numbers that JSON does not know (NaN, Infinity) become null."""
    print(json.dumps(finite(value), allow_nan=False))


def finite(value: Any) -> Any:
    """Return plain values with every number that is not finite replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def make_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console on which whatever came out of a file is cleaned, be it in a line, a table or the log."""
    return CleanConsole(stderr=stderr, quiet=quiet)


class CleanConsole(Console):
    """Cleans what it prints, and leaves a reader that has gone, say `head`, to who called."""

    def __init__(self, *, stderr: bool, quiet: bool) -> None:
        super().__init__(highlight=False, stderr=stderr, quiet=quiet)
        self.push_render_hook(_Cleaning())

    def on_broken_pipe(self) -> None:
        """Raise what `main` knows."""
        raise BrokenPipeError


class _Cleaning(RenderHook):
    """Cleans everything that a console is asked to print, after its style was worked out."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Clean(renderable) for renderable in renderables]


class _Clean:
    def __init__(self, inner: RenderableType) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments: Iterable[Segment] = console.render(self.inner, options)
        for segment in segments:
            yield segment if segment.control else Segment(clean(segment.text, keep="\n"), segment.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.inner)
