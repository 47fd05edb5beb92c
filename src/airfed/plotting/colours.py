"""Colours by meaning, safe for colour-blind readers (Okabe and Ito's palette), for files and, light and dark, pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Final

_GREEN, _BLUE, _RED, _ORANGE = "#009E73", "#0072B2", "#D55E00", "#E69F00"
_SKY, _PINK, _GREY = "#56B4E9", "#CC79A7", "#999999"
PALETTE: Final = {
    "ink": "#000000",
    "lit": _GREEN,
    "out": "#bbbbbb",
    "warn": _RED,
    "term-initial_gap": _GREY,
    "term-participation": _BLUE,
    "term-local_drift": _ORANGE,
    "term-noise": _RED,
    "lim-privacy": _PINK,
    "lim-peak_power": _BLUE,
    "lim-total_power": _ORANGE,
    "lim-device_power": _RED,
    "policy-optimal": _GREEN,
    "policy-paper": _BLUE,
    "policy-full": _RED,
    "policy-uniform": _ORANGE,
    "policy-top_k": _SKY,
    "policy-threshold": _PINK,
    "policy-clairvoyant": _GREY,
    "policy-myopic": _SKY,
    # Schemes of the field's: names stand beside the marks, colours only group them (none, trusted, other ways to send).
    "policy-noise_free": _GREY,
    "policy-central": _GREY,
    "policy-cotaf": _GREY,
    **{f"policy-{name}": _BLUE for name in ("truncated", "threshold_power", "liu_simeone", "seif", "digital")},
    # Runs and curves side by side, in an order that keeps neighbours apart.
    **{f"run-{place}": c for place, c in enumerate((_GREEN, _ORANGE, _SKY, _PINK, _RED, _BLUE, _GREY))},
}
# What a page is made of: (light, dark).
PAGE: Final = {
    "paper": ("#f5f4ef", "#11161c"),
    "surface": ("#ffffff", "#1a2129"),
    "raised": ("#fbfaf7", "#202832"),
    "ink": ("#1b2430", "#e9ecef"),
    "muted": ("#5c6675", "#a3adba"),
    "faint": ("#8a93a0", "#7c8796"),
    "rule": ("#e3e1d8", "#2c3642"),
    "grid": ("#ecebe4", "#26303a"),
    "accent": ("#00795a", "#35c79a"),
    "lit": ("#009e73", "#2fbf93"),
    "out": ("#cfd3d8", "#46515e"),
    "warn": ("#b54708", "#f5a45d"),
    "wash": ("rgba(0, 158, 115, 0.08)", "rgba(53, 199, 154, 0.1)"),
}
# The colours of a drawing -> the page's variables, which exist for light and dark.
VARIABLES: Final = {light: f"var(--{name})" for name, (light, _) in PAGE.items()} | {
    colour.lower(): f"var(--{name})" for name, colour in sorted(PALETTE.items(), key=lambda item: item[0] not in PAGE)
}
DASHES: Final = ("solid", "dashed", "dashdot", "dotted")


def policy(name: str) -> str:
    """Return the colour of a policy; one that came with a user's own code gets "ink"."""
    return f"policy-{name}" if f"policy-{name}" in PALETTE else "ink"


def told_apart(policies: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return (colour, dash) of each label: its policy's colour, and another dash where that is taken.

    >>> told_apart({"optimal": "optimal", "optimal, I = 5": "optimal"})["optimal, I = 5"]
    ('policy-optimal', 'dashed')
    """
    chosen: dict[str, tuple[str, str]] = {}
    for label, name in policies.items():
        used = [colour for colour, _ in chosen.values()].count(policy(name))
        chosen[label] = (policy(name), DASHES[used % len(DASHES)])
    return chosen


def stylesheet(dark: Iterable[str]) -> str:
    """Return the CSS of pages with charts: every colour as a variable and a class, and how charts are painted.

    Args:
        dark: rules with %s for the declarations that make the page dark, such as "body.dark{%s}".
    """
    bright = {name: colour for name, colour in PALETTE.items() if name not in PAGE}
    light = bright | {name: colour for name, (colour, _) in PAGE.items()}
    # Mixed with white on a dark page, so that lines and letters keep their contrast.
    darker = {name: _lighter(colour) for name, colour in bright.items()} | {
        name: each for name, (_, each) in PAGE.items()
    }
    declared = ["".join(f"--{name}:{colour};" for name, colour in of.items()) for of in (light, darker)]
    uses = "".join(f".{name}{{--own:var(--{name})}}" for name in PALETTE)
    painted = resources.files("airfed.plotting").joinpath("chart.css").read_text("utf-8")
    return f":root{{{declared[0]}}}" + "".join(rule % declared[1] for rule in dark) + uses + painted


def _lighter(colour: str) -> str:
    """The colour mixed with a quarter of white."""
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(0.75 * c + 0.25 * 255):02x}" for c in channels)
