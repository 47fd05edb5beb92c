"""Presets: scenarios of published papers, with their sources."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from airfed.keys import ScenarioError
from airfed.scenario.template import commented

FOLDER: Final = Path(__file__).parent.parent / "presets"
NAMES: Final = tuple(sorted(file.stem for file in FOLDER.glob("*.toml")))
"""Names of the presets."""


def preset(name: str) -> str:
    """Return a preset as a commented scenario, in TOML; its first lines name the paper."""
    if name not in NAMES:
        raise ScenarioError(f"The preset must be one of {', '.join(NAMES)}; got {name!r:.60}.")
    return commented((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
