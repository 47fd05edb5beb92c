"""Colours by meaning, safe for colour-blind readers (Okabe and Ito's palette), for files and pages, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Final

_GREEN, _BLUE, _RED, _ORANGE = "#009E73", "#0072B2", "#D55E00", "#E69F00"
_SKY, _PINK, _GREY = "#56B4E9", "#CC79A7", "#999999"
_METHODS: Final = {  # colour and marker; the markers of baselines are hollow and their lines dashed
    "optimal": (_GREEN, "o"),
    "weighted": ("#5D4FC4", "D"),
    "paper": (_BLUE, "s"),
    "full": (_RED, "^"),
    "uniform": (_ORANGE, "v"),
    "top_k": (_SKY, "<"),
    "threshold": (_PINK, ">"),
    "clairvoyant": (_GREY, "P"),
    "myopic": ("#882255", "X"),
}
_BASELINES: Final = {
    "fedavg": ("#555555", "o"),
    "dp_fedavg": ("#8A8A2B", "s"),
    "secure_aggregation": ("#44AA99", "D"),
    "digital": ("#8C510A", "^"),
    "truncated_inversion": ("#AA4499", "v"),
    "threshold_power": ("#CC6677", "<"),
    "liu_simeone": ("#117733", ">"),
    "artificial_noise": ("#E7298A", "p"),
    "cotaf": ("#1F8FA8", "h"),
}
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
    **{f"policy-{name}": colour for name, (colour, _) in (_METHODS | _BASELINES).items()},
    # Curves that are not methods, in an order that keeps neighbours apart.
    **{f"run-{index}": c for index, c in enumerate((_GREEN, _ORANGE, _SKY, _PINK, _RED, _BLUE, _GREY))},
}
# Surfaces and text of a page: (light, dark).
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
# Colours of a drawing -> the page's variables, which are declared for light and dark.
VARIABLES: Final = {light: f"var(--{name})" for name, (light, _) in PAGE.items()} | {
    colour.lower(): f"var(--{name})" for name, colour in sorted(PALETTE.items(), key=lambda item: item[0] not in PAGE)
}
DASHES: Final = ("solid", "dashed", "dashdot", "dotted")


def policy(name: str) -> str:
    """Return the colour of a policy; a user's own policy gets "ink"."""
    return f"policy-{name}" if f"policy-{name}" in PALETTE else "ink"


def marker(name: str) -> dict[str, str]:
    """Return colour and marker of a policy for matplotlib, the same in every picture."""
    colour = PALETTE[policy(name)]
    _, shape = (_METHODS | _BASELINES).get(name, ("", "*"))
    return {"color": colour, "marker": shape, "mfc": "white" if name in _BASELINES else colour}


def line_styles(policies: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return (colour, dash) of each label: its policy's colour, and another dash where that is taken.

    >>> line_styles({"optimal": "optimal", "optimal, I = 5": "optimal", "digital": "digital"})
    {'optimal': ('policy-optimal', 'solid'), 'optimal, I = 5': ('policy-optimal', 'dashed'), 'digital': ...'dashed')}
    """
    styles: dict[str, tuple[str, str]] = {}
    for label, name in policies.items():
        used = [colour for colour, _ in styles.values()].count(policy(name)) + (name in _BASELINES)
        styles[label] = (policy(name), DASHES[used % len(DASHES)])
    return styles


def stylesheet(dark: Iterable[str]) -> str:
    """Return the CSS of pages with charts; in the rules `dark` ("body.dark{%s}"), %s is the dark declarations."""
    meanings = {name: colour for name, colour in PALETTE.items() if name not in PAGE}
    on_light = meanings | {name: colour for name, (colour, _) in PAGE.items()}
    # Mixed with white on a dark page, so that lines and letters keep their contrast.
    on_dark = {name: f"color-mix(in srgb, {colour} 75%, white)" for name, colour in meanings.items()}
    on_dark |= {name: colour for name, (_, colour) in PAGE.items()}
    light, darker = ("".join(f"--{name}:{colour};" for name, colour in each.items()) for each in (on_light, on_dark))
    classes = "".join(f".{name}{{--own:var(--{name})}}" for name in PALETTE)
    rules = resources.files("airfed.plotting").joinpath("chart.css").read_text("utf-8")
    return f":root{{{light}}}" + "".join(rule % darker for rule in dark) + classes + rules
