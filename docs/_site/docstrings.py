"""Prepare docstrings for the reference: fence the examples, give every argument its own line."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SHARED = re.compile(r"^    (\w+(?:, \w+)+): ")


class Docstrings(griffe.Extension):
    """Rewrite every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(each_named(obj.docstring.value))


def fenced(text: str) -> str:
    r"""Return a text with fences around its examples, each from `>>>` to the next empty line.

    >>> fenced("Returns one.\n\n>>> one()\n1\n\nMore.")
    'Returns one.\n\n```pycon\n>>> one()\n1\n```\n\nMore.'
    """
    lines: list[str] = []
    inside = False
    for line in [*text.split("\n"), ""]:
        if not inside and line.startswith(">>>"):
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join(lines[:-1])


def each_named(text: str) -> str:
    r"""Return a text in which arguments that share a line get one line each.

    >>> each_named("Args:\n    low, high: of the\n        axis.\n    name: its own.")
    'Args:\n    low: of the\n        axis.\n    high: of the\n        axis.\n    name: its own.'
    """
    lines: list[str] = []
    pending: list[list[str]] = []
    inside = False
    for line in text.split("\n"):
        if not line.startswith("        "):  # an entry, or the section, has ended
            lines += [kept for entry in pending for kept in entry]
            pending = []
        if line and not line.startswith(" "):
            inside = line == "Args:"
        found = _SHARED.match(line) if inside else None
        if found:
            pending = [[f"    {name}: {line[found.end() :]}"] for name in found[1].split(", ")]
        elif pending:
            for entry in pending:
                entry.append(line)
        else:
            lines.append(line)
    return "\n".join(lines + [kept for entry in pending for kept in entry])
