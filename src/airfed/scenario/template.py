"""The commented scenario of `airfed new`: values from here, comments from the declarations of the keys."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Final, get_args

from pydantic.fields import FieldInfo

from airfed.channel import MODELS, ChannelModel
from airfed.keys import Section, key_of
from airfed.scenario.scenario import Scenario

_VALUES: Final = """\
# An airfed scenario. Numbers are in SI units; powers may also be texts such as "30 dBm" or "500 mW".
# airfed plan FILE            plans which devices transmit, how strongly, and for how many rounds
# airfed compare FILE         compares the policies
# airfed run FILE --out DIR   trains over the air and records the run

name = "my-scenario"
seed = 0

[fleet]
num_devices = 100
peak_power = 1.0
# peak_power_per_symbol = "23 dBm"

[channel]
model = "rayleigh"
scale = 1.0
minimum = 0.2
pin_minimum = true
# csi_error = 0.01

[link]
noise_std = 1.0

[budget]
epsilon = 5.0
delta = 1e-3
scope = "round"
formula = "exact"
adjacency = "replace_one"
total_power = 1000.0
# shared_ledger = "privacy.jsonl"

[learning]
dataset = "mnist-5k"
partition = "iid"
model = "cnn"
total_steps = 200
learning_rate = 0.1
clip_norm = 5.0
smoothness = 10.0
strong_convexity = 0.1
initial_gap = 2.3

[policy]
name = "weighted"
# rounds = 40

# [run]
# device = "auto"
# threads = 2
"""
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


SCENARIO: Final = commented(_VALUES)
