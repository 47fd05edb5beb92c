"""Tables for elsewhere: CSV, LaTeX, Markdown and HTML, from the very tables that commands print."""

from __future__ import annotations

import csv
import html
import io
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from rich.console import Console, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from airfed.text import output

Format = Literal["csv", "latex", "markdown"]
Cells = Sequence[Sequence[str]]

_ESCAPED: Final = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
_SYMBOLS: Final = {
    **{"δ": "delta", "ε": "varepsilon", "ζ": "zeta", "θ": "theta", "μ": "mu", "ν": "nu", "ξ": "xi", "ϖ": "varpi"},
    **{"ϱ": "varrho", "σ": "sigma", "τ": "tau", "Σ": "Sigma", "√": "surd", "∞": "infty", "±": "pm", "·": "cdot"},
    **{"≤": "leq", "≥": "geq", "×": "times", "→": "to", "∇": "nabla", "‖": "Vert", "…": "ldots"},
}
_MATHS: Final = {
    **{character: f"$\\{name}$" for character, name in _SYMBOLS.items()},
    **{"†": r"$^{\dagger}$", "*": "$^{*}$", "²": "$^{2}$", "−": "$-$", "|": "$|$", "<": "$<$", ">": "$>$"},
}
_POWER_OF_TEN: Final = re.compile(r"(?<![\w.])(-?\d[\d.]*)e\+?(-?)0*(\d+)(?![\w.])", re.ASCII)


def make_console(format: Format | None, *, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console; with a format, one that prints tables in it, whole, and tells everything else on stderr."""
    return output.make_console(stderr=stderr, quiet=quiet) if format is None else _Exporting(format, quiet=quiet)


def exporting(console: Console) -> bool:
    """Return whether a console's tables are for elsewhere, so that no row is to be left out."""
    return isinstance(console, _Exporting)


class _Exporting(output.CleanConsole):
    """Diverts tables to standard output; those without headings are somebody's layout and stay."""

    def __init__(self, format: Format, *, quiet: bool) -> None:
        super().__init__(stderr=True, quiet=quiet)
        self._format: Format = format
        self._several = False

    def print(self, *objects: Any, **options: Any) -> None:
        told = []
        for each in objects:
            if not (isinstance(each, Table) and each.show_header):
                told.append(each)
                continue
            if self._several:
                print()  # parts two tables
            sys.stdout.write(exported(each, self._format))
            self._several = True
        if told or not objects:
            super().print(*told, **options)


class HtmlConsole(output.CleanConsole):
    """Collects what is printed as HTML: tables as tables, texts as paragraphs.

    Colours are the page's own, lines and stripes a translucent grey: it fits light and dark notebooks.
    """

    def __init__(self) -> None:
        super().__init__(stderr=False, quiet=True)
        self._parts: list[str] = []

    def print(self, *objects: Any, **options: Any) -> None:
        """Collect tables and texts."""
        style = options.get("style")
        for each in objects:
            if isinstance(each, Table):
                self._parts.append(html_table(each))
                continue
            text = Text.from_markup(each) if options.get("markup", True) else Text(each)
            if text.plain.strip():
                self._parts.append(f'<p style="margin:.3em 0;{_css(style)}">{self._marked(text)}</p>')

    def _marked(self, text: Text) -> str:
        return "".join(
            f'<span style="{_css(segment.style)}">{html.escape(output.clean(segment.text))}</span>'
            for segment in text.render(self)
            if segment.text.strip("\n")
        )

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
    sides = ["left" if column.justify != "right" else "right" for column in table.columns]
    title = html.escape(_plain(str(table.title or "").strip()))
    caption = f'<caption style="text-align:left;font-weight:600;caption-side:top">{title}</caption>' if title else ""
    rows = [_html_row("th", head, sides, "border-bottom:1px solid rgba(128,128,128,.6)")]
    for place, (cell_row, row) in enumerate(zip(body, table.rows, strict=True)):
        stripe = "background:rgba(128,128,128,.1)" if place % 2 else "background:transparent"
        rows.append(_html_row("td", cell_row, sides, f"{stripe};{_css(row.style)}"))
    look = "color:inherit;font-size:inherit;font-variant-numeric:tabular-nums;border-collapse:collapse;margin:.7em 0"
    return f'<table style="{look}">{caption}<thead>{rows[0]}</thead><tbody>{"".join(rows[1:])}</tbody></table>'


def _html_row(tag: str, row: Sequence[str], sides: Sequence[str], css: str) -> str:
    made = "".join(
        f'<{tag} style="text-align:{side};padding:.15em 1.2em .15em .3em">{html.escape(cell)}</{tag}>'
        for cell, side in zip(row, sides, strict=True)
    )
    return f'<tr style="{css}">{made}</tr>'


def _css(style: Style | str | None) -> str:
    """The parts of a terminal's style that a page shows, too."""
    style = Style.parse(style) if isinstance(style, str) else style
    if style is None:
        return ""
    red = style.color is not None and style.color.name == "red"
    return "font-weight:600;" * bool(style.bold) + "opacity:.7;" * bool(style.dim) + "color:#d33;" * red


def exported(table: Table, format: Format) -> str:
    """Return a table as text in a format, its title first: as a comment, or in bold; CSV has no place for one.

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
    to_the_left = [column.justify != "right" for column in table.columns]
    if format == "csv":
        return csv_table(rows)
    if format == "markdown":
        return (f"**{title}**\n\n" if title else "") + markdown_table(rows, to_the_left) + "\n"
    return (f"% {title}\n" if title else "") + latex_table(rows, to_the_left)


def cells(table: Table) -> list[list[str]]:
    """Return what stands in a table as plain text, the headings first."""
    columns = [[_plain(cell) for cell in (column.header, *column.cells)] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def csv_table(rows: Cells) -> str:
    """Return rows of cells as CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def markdown_table(rows: Cells, left: Iterable[bool] = ()) -> str:
    """Return rows of cells, the headings first, as a table in Markdown.

    Args:
        rows: all equally long.
        left: for each column whether it stands to the left; otherwise to the right. All do unless told.

    >>> print(markdown_table([["I", "accuracy"], ["40", "88.1"]]))
    | I | accuracy |
    |---|---|
    | 40 | 88.1 |
    """
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    rule = "".join("---|" if each else "--:|" for each in (list(left) or [True] * len(rows[0])))
    return "\n".join([lines[0], f"|{rule}", *lines[1:]])


def latex_table(rows: Cells, left: Sequence[bool]) -> str:
    """Return rows of cells, the headings first, as a tabular that needs the package booktabs.

    Args:
        rows: all equally long, as plain text.
        left: for each column whether it stands to the left; otherwise to the right.
    """
    head, *body = [" & ".join(latex_text(cell) for cell in row) + r" \\" for row in rows]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{''.join('l' if each else 'r' for each in left)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def latex_text(text: str) -> str:
    r"""Return a cell as LaTeX prints it: symbols in maths, everything else as it is.

    >>> print(latex_text("top_k & 5% of ε"), latex_text("6.17e4 ±2e-5"), latex_text("-"))
    top\_k \& 5\% of $\varepsilon$ $6.17\cdot10^{4}$ $\pm$$2\cdot10^{-5}$ --
    """
    if text == "-":
        return "--"
    written, place = "", 0
    for found in _POWER_OF_TEN.finditer(text):
        written += _escaped(text[place : found.start()]) + rf"${found[1]}\cdot10^{{{found[2]}{found[3]}}}$"
        place = found.end()
    return written + _escaped(text[place:])


def _escaped(text: str) -> str:
    return "".join(_ESCAPED.get(character) or _MATHS.get(character, character) for character in text)


def _plain(cell: RenderableType) -> str:
    return output.clean((cell if isinstance(cell, Text) else Text.from_markup(str(cell))).plain)
