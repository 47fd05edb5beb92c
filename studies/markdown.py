"""Tables and sources of records in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells, the headings first, as a table in Markdown."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def wrapped(text: str) -> str:
    """Return Markdown with lines of at most 120 characters; tables and pictures stay as they are."""
    lines = text.split("\n")
    for index, line in enumerate(lines):
        if len(line) > 120 and not line.startswith(("|", "!")):
            indent = "  " if line.startswith("- ") else ""
            lines[index] = fill(line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def recorded(rows: DataFrame, *, by: str | None = None) -> str:
    """Return how many seeds records have, and the versions of airfed that made them, in words.

    Args:
        rows: the records.
        by: a column whose values may have different numbers of seeds.
    """
    counts = sorted({rows["seed"].nunique()} if by is None else set(rows.groupby(by)["seed"].nunique()))
    number = " to ".join(dict.fromkeys(str(each) for each in (counts[0], counts[-1])))
    return f"{number} {'seed' if counts == [1] else 'seeds'}; airfed {', '.join(sorted(set(rows['version'])))}"
