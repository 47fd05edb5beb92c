"""How commands print: text that cannot steer a terminal, JSON that every reader accepts."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable
from typing import Any, Final, Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

Format = Literal["csv", "latex", "markdown"]
_CONTROL: Final = ("Cc", "Cs", "Zl", "Zp")
_TURNING: Final = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # these reorder what follows


def clean(text: str, *, keep: str = "") -> str:
    r"""Return the text with characters that steer a terminal written out, as in \x1b, except those to `keep`.

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


def make_console(format: Format | None = None, *, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console that cleans whatever it prints.

    Args:
        format: print only the tables to standard output, complete and in this format; messages go to stderr.
        stderr: print to stderr.
        quiet: print nothing.
    """
    if format is None:
        return CleanConsole(stderr=stderr, quiet=quiet)
    from airfed.text.exports import ExportConsole

    return ExportConsole(format, quiet=quiet)


def exporting(console: Console) -> bool:
    """Return whether a console prints tables in an export format, so that no row may be left out."""
    return getattr(console, "exporting", False)


class CleanConsole(Console):
    """Cleans what it prints, and leaves a closed pipe, say of `head`, to the caller."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        super().__init__(highlight=False, stderr=stderr, quiet=quiet)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, cleaned."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text, keep="\n"), segment.style)

    def on_broken_pipe(self) -> None:
        """Raise what `main` knows."""
        raise BrokenPipeError
