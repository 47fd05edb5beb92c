"""Known worlds: scenarios of papers in the field, with their sources, to start from or to compare on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from airfed.keys import ScenarioError
from airfed.scenario.template import commented

FOLDER: Final = Path(__file__).parent.parent / "worlds"
NAMES: Final = tuple(sorted(file.stem for file in FOLDER.glob("*.toml")))
"""Every known world by its name."""


def world(name: str) -> str:
    """Return a known world as a commented scenario, in TOML; its first lines name the paper."""
    if name not in NAMES:
        raise ScenarioError(f"Expected a known world, one of {', '.join(NAMES)}; got {name!r:.60}.")
    return commented((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
