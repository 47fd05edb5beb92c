"""docs/scenario.md: every key of a scenario, from its declaration.

python docs/_site/keys.py docs/scenario.md
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path

from airfed._validate import LARGEST
from airfed.channel import ChannelModel
from airfed.keys import (
    DECIBELS,
    HERTZ,
    JOULES,
    KELVIN,
    METRES,
    WATTS,
    WATTS_PER_HERTZ,
    Key,
    Section,
    expectation,
    key_of,
)
from airfed.scenario import Scenario
from airfed.scenario.template import sections

_HEAD = f"""\
# Keys of a scenario

A scenario is a TOML file. `airfed new FILE.toml` writes a commented one; `--preset NAME` writes that of a
[published paper](presets.md). Unknown keys are refused. Bare numbers are in SI units, or in dB where the unit is dB.
A text may give another unit, such as `"30 dBm"`: of power ({", ".join(WATTS)}), energy
({", ".join(JOULES)}), length ({", ".join(METRES)}), frequency ({", ".join(HERTZ)}),
temperature ({", ".join(KELVIN)}), noise density ({", ".join(WATTS_PER_HERTZ)}), gain and noise figure
({", ".join(DECIBELS)}). Numbers that are not counts or probabilities are at most {LARGEST:g}. Paths are relative to
the folder of the scenario. [Notation](notation.md) lists the symbols.

This page is generated from the declarations (`python docs/_site/keys.py docs/scenario.md`).
"""
_TABLE = ("| key | symbol | value | unit | default | meaning |", "|---|---|---|---|---|---|")


def page() -> str:
    """Return the reference of all keys, in Markdown."""
    parts = [_HEAD]
    for table, kind in sections():
        shared = ChannelModel.model_fields if table == "channel" and kind is not ChannelModel else {}
        keys = {name: key_of(info) for name, info in kind.model_fields.items() if name not in shared}
        rows = [_row(kind, name, key) for name, key in keys.items() if key is not None]
        parts.append("\n".join([*_title(table, kind), *_TABLE, *rows]) + "\n")
    return "\n".join(parts)


def _title(table: str, kind: type[Section]) -> list[str]:
    if kind is Scenario:
        return ["## Top level", ""]
    text = inspect.getdoc(kind) or ""
    if kind is ChannelModel:
        return [f"## [{table}]", "", "Keys of all channel models:", ""]
    if issubclass(kind, ChannelModel):
        return [f'### [{table}] model = "{kind.model_fields["model"].default}"', "", text, ""]
    meaning = text.removeprefix(f"[{table}]: ")
    return [f"## [{table}]", "", meaning[:1].upper() + meaning[1:], ""]


def _row(kind: type[Section], name: str, key: Key) -> str:
    info = kind.model_fields[name]
    default = "required" if info.is_required() else "" if info.default is None else f"`{json.dumps(info.default)}`"
    meaning = f"{key.text[:1].upper()}{key.text[1:]}."
    cells = [f"`{name}`", key.symbol, expectation(kind, name), key.unit, default, meaning]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
