"""Tables for other programs: CSV, LaTeX and Markdown by pandas, and HTML for notebooks."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.console import RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from airfed._extras import explained
from airfed.text.output import CleanConsole, Format, clean, exporting, make_console

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["ExportConsole", "Format", "HtmlConsole", "exported", "exporting", "make_console", "markdown_table"]

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
        texts = []
        for each in objects:
            if isinstance(each, Table) and each.show_header:
                sys.stdout.write("\n" * self._several + exported(each, self._format))
                self._several = True
            else:
                texts.append(each)
        if texts or not objects:
            super().print(*texts, **options)


class HtmlConsole(CleanConsole):
    """Collects what is printed as HTML for notebooks, light or dark: tables as tables, texts as paragraphs."""

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
            if text.plain.strip():
                spans = "".join(_span(segment.text, segment.style) for segment in text.render(self))
                self._parts.append(f'<p style="{_css(options.get("style"))}">{spans}</p>')

    def html(self) -> str:
        """Return everything that was printed."""
        return f'<div style="max-width:52em">{"".join(self._parts)}</div>'


def html_table(table: Table) -> str:
    """Return a table as HTML that needs no stylesheet, its title first.

    >>> from airfed.text.tables import plain_table
    >>> table = plain_table("policy", "ε all", left=("policy",))
    >>> table.add_row("top_k", "1.2e-05")
    >>> "<td" in html_table(table), html_table(table).count("<tr")
    (True, 2)
    """
    head, *body = cells(table)
    sides = ["right" if column.justify == "right" else "left" for column in table.columns]
    title = html.escape(_plain(str(table.title or "").strip()))
    rows = [_html_row("td", row, sides, _css(given.style)) for row, given in zip(body, table.rows, strict=True)]
    return (
        f'<table style="font-variant-numeric:tabular-nums"><caption style="text-align:left">{title}</caption>'
        f"<thead>{_html_row('th', head, sides)}</thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _html_row(tag: str, row: Sequence[str], sides: Sequence[str], css: str = "") -> str:
    made = (
        f'<{tag} style="text-align:{side}">{html.escape(cell)}</{tag}>' for cell, side in zip(row, sides, strict=True)
    )
    return f'<tr style="{css}">{"".join(made)}</tr>'


def _span(text: str, style: Style | None) -> str:
    return f'<span style="{_css(style)}">{html.escape(clean(text))}</span>' if text.strip("\n") else ""


def _css(style: Style | str | None) -> str:
    """The parts of a terminal's style that a page shows, too."""
    style = Style.parse(style) if isinstance(style, str) else style or Style.null()
    red = style.color is not None and style.color.name == "red"
    return "font-weight:600;" * bool(style.bold) + "opacity:.7;" * bool(style.dim) + "color:#d33;" * red


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
    sides = ["right" if column.justify == "right" else "left" for column in table.columns]
    if format == "markdown":
        return (f"**{title}**\n\n" if title else "") + markdown_table(rows, sides) + "\n"
    with explained():
        if format == "csv":
            return str(_frame(rows).to_csv(index=False, lineterminator="\n"))
        columns = "".join(side[0] for side in sides)
        text: str = _frame(rows).replace("-", "--").to_latex(index=False, escape=True, column_format=columns)
    text = _POWER_OF_TEN.sub(r"$\1\\cdot10^{\2\3}$", text.translate(_MATHS))
    return (f"% {title}\n" if title else "") + text


def markdown_table(rows: Sequence[Sequence[str]], sides: Sequence[str] | None = None) -> str:
    """Return rows of cells, the headings first, as a table in Markdown.

    Args:
        rows: all equally long.
        sides: "left" or "right" for each column; left by default.

    >>> print(markdown_table([["I", "accuracy"], ["40", "88.1"]]))
    | I   | accuracy   |
    |:----|:-----------|
    | 40  | 88.1       |
    """
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    sides = sides or ["left"] * len(rows[0])
    with explained():
        return str(_frame(escaped).to_markdown(index=False, disable_numparse=True, colalign=sides))


def _frame(rows: Sequence[Sequence[str]]) -> DataFrame:
    import pandas

    return pandas.DataFrame(rows[1:], columns=list(rows[0]), dtype=str)


def cells(table: Table) -> list[list[str]]:
    """Return the contents of a table as plain text, the headings first."""
    columns = [[_plain(cell) for cell in (column.header, *column.cells)] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _plain(cell: RenderableType) -> str:
    return clean((cell if isinstance(cell, Text) else Text.from_markup(str(cell))).plain)
