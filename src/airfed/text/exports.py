"""Tables for other programs: CSV, LaTeX and Markdown by pandas, and HTML for notebooks."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from airfed._extras import explained
from airfed.text.output import CleanConsole, Format, clean, exporting, make_console

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["ExportConsole", "Format", "HtmlConsole", "exported", "exporting", "make_console"]

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


class ExportConsole(CleanConsole):
    """Prints tables to standard output in a format, everything else (and tables without headings) to stderr."""

    exporting = True

    def __init__(self, format: Format, *, quiet: bool) -> None:
        super().__init__(stderr=True, quiet=quiet)
        self._format: Format = format
        self._several = False

    def print(self, *objects: Any, **options: Any) -> None:
        """Print tables and texts."""
        texts = [each for each in objects if not (isinstance(each, Table) and each.show_header)]
        for table in objects:
            if table not in texts:
                sys.stdout.write("\n" * self._several + exported(table, self._format))
                self._several = True
        if texts or not objects:
            super().print(*texts, **options)


class HtmlConsole(CleanConsole):
    """Collects what is printed as HTML for notebooks, light or dark: tables as tables, texts as paragraphs."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self._parts: list[str] = []

    def print(self, *objects: Any, markup: bool = True, style: str = "", **options: Any) -> None:
        """Collect tables and texts."""
        for each in objects:
            if isinstance(each, Table):
                self._parts.append(html_table(each))
                continue
            text = Text.from_markup(each) if markup else Text(each)
            styles = f"{style} {text.spans}"
            look = "font-weight:600" if "bold" in styles else "opacity:.7" if "dim" in styles else ""
            if text.plain.strip():
                self._parts.append(f'<p style="{look}">{html.escape(_plain(text))}</p>')

    def html(self) -> str:
        """Return everything that was printed."""
        return f'<div style="max-width:52em">{"".join(self._parts)}</div>'


def html_table(table: Table) -> str:
    """Return a table as HTML that needs no stylesheet, its title first."""
    rows = "".join(
        "<tr>"
        + "".join(
            f'<{tag} style="text-align:{column.justify}">{html.escape(cell)}</{tag}>'
            for cell, column in zip(row, table.columns, strict=True)
        )
        + "</tr>"
        for tag, row in zip(chain(["th"], repeat("td")), cells(table), strict=False)
    )
    title = html.escape(_plain(str(table.title or "").strip()))
    return f'<table><caption style="text-align:left">{title}</caption>{rows}</table>'


def exported(table: Table, format: Format) -> str:
    """Return a table as text in a format; its title becomes a comment (LaTeX) or bold text (Markdown).

    Raises:
        MissingExtra: pandas, or what it needs for the format, is not installed.

    >>> from airfed.text.tables import plain_table
    >>> table = plain_table("policy", "ε all", left=("policy",))
    >>> table.add_row("top_k", "1.2e-05")
    >>> print(exported(table, "csv"), exported(table, "latex"), sep="")
    policy,ε all
    top_k,1.2e-05
    \\begin{tabular}{lr}
    \\toprule
    policy & $\\varepsilon$ all \\\\
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
    """Return the contents of a table as plain text, the headings first."""
    columns = [[_plain(cell) for cell in (column.header, *column.cells)] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _plain(cell: RenderableType) -> str:
    return clean((cell if isinstance(cell, Text) else Text.from_markup(str(cell))).plain)
