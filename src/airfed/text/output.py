"""Printing: text without terminal control characters, strict JSON, and tables as CSV, LaTeX, Markdown or HTML."""

from __future__ import annotations

import html
import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from airfed._extras import explained

if TYPE_CHECKING:
    from pandas import DataFrame

Format = Literal["csv", "latex", "markdown"]
# C0 and C1 controls, line and paragraph separators, characters that reorder the text, and surrogates.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SYMBOLS: Final = {
    **{"δ": "delta", "ε": "varepsilon", "ζ": "zeta", "θ": "theta", "μ": "mu", "ν": "nu", "ξ": "xi", "ϖ": "varpi"},
    **{"ϱ": "varrho", "σ": "sigma", "τ": "tau", "Σ": "Sigma", "√": "surd", "∞": "infty", "±": "pm", "·": "cdot"},
    **{"≤": "leq", "≥": "geq", "×": "times", "→": "to", "∇": "nabla", "‖": "Vert", "…": "ldots"},
}
_MATHS: Final = str.maketrans(
    {character: f"$\\{name}$" for character, name in _SYMBOLS.items()}
    | {"†": r"$^{\dagger}$", "*": "$^{*}$", "²": "$^{2}$", "−": "$-$", "|": "$|$", "<": "$<$", ">": "$>$"}
)
_POWER_OF_TEN: Final = re.compile(r"(?<![\w.])(-?\d[\d.]*)e\+?(-?)0*(\d+)(?![\w.])", re.ASCII)


def clean(text: str, *, keep: str = "") -> str:
    r"""Return the text with control characters escaped, as in \x1b, except those to `keep`.

    >>> clean("a name\x1b[31m")
    'a name\\x1b[31m'
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


def say(text: str, *, keep: str = "", **options: Any) -> None:
    """Print plain text, cleaned; on one line unless `keep` has the line break."""
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
    """Return a console that cleans its output; with a `format` it prints messages to stderr, and tables complete."""
    return CleanConsole(stderr=stderr, quiet=quiet) if format is None else ExportConsole(format, quiet=quiet)


def exporting(console: Console) -> bool:
    """Return whether a console prints tables in an export format, which must have all rows."""
    return isinstance(console, ExportConsole)


class CleanConsole(Console):
    """Cleans its output, and raises BrokenPipeError when the reader closes the pipe."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        super().__init__(highlight=False, stderr=stderr, quiet=quiet)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, cleaned."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text, keep="\n"), segment.style)

    def on_broken_pipe(self) -> None:
        """Raise the error that `main` handles."""
        raise BrokenPipeError


class ExportConsole(CleanConsole):
    """Prints tables to standard output in a format, everything else (and tables without headings) to stderr."""

    def __init__(self, format: Format, *, quiet: bool) -> None:
        super().__init__(stderr=True, quiet=quiet)
        self._format: Format = format
        self._several = False

    def print(self, *objects: Any, **options: Any) -> None:
        """Print tables and texts."""
        tables = [each for each in objects if isinstance(each, Table) and each.show_header]
        for table in tables:
            sys.stdout.write("\n" * self._several + exported(table, self._format))
            self._several = True
        if len(tables) < len(objects) or not objects:
            super().print(*(each for each in objects if each not in tables), **options)


class HtmlConsole(CleanConsole):
    """Collects its output as HTML for notebooks, light or dark: tables as tables, texts as paragraphs."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self._parts: list[str] = []

    def print(self, *objects: Any, **options: Any) -> None:
        """Collect tables and texts."""
        for each in objects:
            if isinstance(each, Table):
                self._parts.append(html_table(each))
                continue
            text = Text.from_markup(each) if options.get("markup", True) else Text(each)
            styles = f"{options.get('style')} {text.spans}"
            style = "font-weight:600" if "bold" in styles else "opacity:.7" if "dim" in styles else ""
            if plain := clean(text.plain.strip()):
                self._parts.append(f'<p style="{style}">{html.escape(plain)}</p>')

    def html(self) -> str:
        """Return the collected HTML."""
        return f'<div style="max-width:52em">{"".join(self._parts)}</div>'


def html_table(table: Table) -> str:
    """Return a table as HTML without a stylesheet; its title is the caption."""
    rows: list[str] = []
    for row in cells(table):
        tag = "td" if rows else "th"
        aligned = ((column.justify, html.escape(cell)) for column, cell in zip(table.columns, row, strict=True))
        rows.append("".join(f'<{tag} style="text-align:{side}">{cell}</{tag}>' for side, cell in aligned))
    title, body = html.escape(_plain(str(table.title or "").strip())), "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table><caption style="text-align:left">{title}</caption>{body}</table>'


def exported(table: Table, format: Format) -> str:
    """Return a table as text in a format; its title becomes a comment (LaTeX) or bold text (Markdown).

    >>> from airfed.text.tables import plain_table
    >>> table = plain_table("policy", "ε total", left=("policy",))
    >>> table.add_row("top_k", "1.2e-05")
    >>> print(exported(table, "csv"), exported(table, "latex"), sep="")
    policy,ε total
    top_k,1.2e-05
    \\begin{tabular}{lr}
    \\toprule
    policy & $\\varepsilon$ total \\\\
    \\midrule
    top\\_k & $1.2\\cdot10^{-5}$ \\\\
    \\bottomrule
    \\end{tabular}
    <BLANKLINE>
    """
    title, rows = _plain(str(table.title or "").strip()), cells(table)
    sides = [column.justify for column in table.columns]
    with explained():
        if format == "csv":
            return str(_frame(rows).to_csv(index=False, lineterminator="\n"))
        if format == "markdown":
            escaped = _frame([[cell.replace("|", r"\|") for cell in row] for row in rows])
            text = escaped.to_markdown(index=False, disable_numparse=True, colalign=sides)
            return (f"**{title}**\n\n" if title else "") + f"{text}\n"
        columns = "".join(side[0] for side in sides)
        text = _frame(rows).replace("-", "--").to_latex(index=False, escape=True, column_format=columns)
    text = _POWER_OF_TEN.sub(r"$\1\\cdot10^{\2\3}$", text.translate(_MATHS))
    return (f"% {title}\n" if title else "") + text


def _frame(rows: Sequence[Sequence[str]]) -> DataFrame:
    import pandas

    return pandas.DataFrame(rows[1:], columns=list(rows[0]), dtype=str)


def cells(table: Table) -> list[list[str]]:
    """Return the cells of a table as plain text, the headings first."""
    columns = [[_plain(cell) for cell in (column.header, *column.cells)] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _plain(cell: RenderableType) -> str:
    return clean((cell if isinstance(cell, Text) else Text.from_markup(str(cell))).plain)
