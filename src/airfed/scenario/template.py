"""The commented scenario of `airfed new`: values from template.toml, comments from the declarations of the keys."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

from pydantic.fields import FieldInfo

from airfed.channel import MODELS, ChannelModel
from airfed.keys import Section, key_of
from airfed.scenario.scenario import Scenario

_COLUMN: Final = 35  # where the comments start
_WIDTH: Final = 120


def sections() -> Iterator[tuple[str, type[Section]]]:
    """Yield every table with its name; [channel] first with the shared keys, then once per model."""
    yield "", Scenario
    for name, info in Scenario.model_fields.items():
        if name == "channel":
            yield name, ChannelModel
            yield from ((name, model) for model in MODELS.values())
        elif isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield from _with_inner(name, info.annotation)


def _with_inner(name: str, kind: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    """Yield a table and its nested tables."""
    yield name, kind
    for key, info in kind.model_fields.items():
        for inner in get_args(info.annotation):
            if isinstance(inner, type) and issubclass(inner, Section):
                yield from _with_inner(f"{name}.{key}", inner)


def find(key: str) -> FieldInfo:
    """Return the declaration of a dotted key such as "budget.epsilon"."""
    table, _, name = key.rpartition(".")
    return next(kind.model_fields[name] for found, kind in sections() if found == table and name in kind.model_fields)


def commented(text: str) -> str:
    """Return the text of a scenario with the meaning of each key as a comment."""
    return "\n".join(_lines(text)) + "\n"


def _lines(text: str) -> Iterator[str]:
    declared = {(found, name) for found, kind in sections() for name in kind.model_fields}
    table = ""
    for line in text.splitlines():
        if header := re.fullmatch(r"(?:# )?\[([\w.]+)\]", line):
            table = header[1]
        value = re.fullmatch(r"(?:# )?(\w+) = .+", line)
        key = None
        if value is not None and (table, value[1]) in declared:  # a comment may contain "# h = ..."
            key = key_of(find(f"{table}.{value[1]}".removeprefix(".")))
        if key is None:
            yield line
            continue
        unit = f" [{key.unit}]" if key.unit else ""
        meaning = f"{key.symbol}{unit}: {key.text}" if key.symbol else f"{key.text}{unit}"
        whole = meaning.replace(" (", "\0(")  # no line break before a bracket
        wrapped = textwrap.wrap(whole, _WIDTH - _COLUMN - len("# "))
        for start, part in zip([line, *[""] * len(wrapped)], wrapped, strict=False):
            yield f"{start:<{_COLUMN}}# {part}".replace("\0", " ")


SCENARIO: Final = commented(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
