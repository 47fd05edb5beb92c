"""Check a built site: every public name is documented, and no page fetches anything from another host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path

import griffe

_FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
_FOREIGN = re.compile(r"^(https?:)?//")


def undocumented(site: Path, expected: Mapping[str, Sequence[griffe.Object]]) -> list[str]:
    """Return a message for every public name, or public member of a class, that lacks a docstring or a page."""
    wrong = []
    for page, items in expected.items():
        there = set(re.findall(r'id="(airfed[\w.]*)"', (site / "api" / f"{page}.html").read_text("utf-8")))
        for found in (each for item in items for each in _with_members(item)):
            if not found.has_docstring:
                wrong.append(f"{found.path} is public and has no docstring ({found.relative_filepath}:{found.lineno}).")
            elif found.path not in there:
                wrong.append(f"{found.path} is public, but api/{page} does not show it.")
    return wrong


def _with_members(item: griffe.Object) -> Iterator[griffe.Object]:
    """Yield an object and, of a class, its methods and properties; fields are in the class's docstring."""
    yield item
    if isinstance(item, griffe.Class):
        for name, member in item.members.items():
            called = isinstance(member, griffe.Function) or "property" in member.labels
            if called and not name.startswith("_") and isinstance(member, griffe.Object):
                yield member


def external_resources(site: Path) -> list[str]:
    """Return a message for every resource that a page or a style sheet fetches from another host."""
    wrong = []
    for page in site.rglob("*.html"):
        seen = _Resources()
        seen.feed(page.read_text("utf-8"))
        wrong += [f"{page.relative_to(site)} fetches {address}" for address in seen.foreign]
    for sheet in site.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)", sheet.read_text("utf-8"))
        wrong += [f"{sheet.relative_to(site)} fetches {address}" for address in found]
    return wrong


class _Resources(HTMLParser):
    """Collect the addresses that a browser fetches on its own, without links that a reader follows."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Check one tag."""
        values = dict(attrs)
        if tag == "link" and values.get("rel") in ("canonical", "prev", "next"):
            return
        address = values.get(_FETCHED.get(tag, "")) or ""
        if _FOREIGN.match(address):
            self.foreign.append(address)
