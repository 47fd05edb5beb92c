"""Colours of the page: those of the figures, by meaning, as CSS variables for a light and a dark page."""

from __future__ import annotations

from typing import Final

from airfed.experiments.style import LIMIT_COLOURS, POLICY_COLOURS, TERM_COLOURS

ACCENT: Final = POLICY_COLOURS["optimal"]
# Runs side by side: Okabe and Ito's palette in an order that keeps neighbours apart.
RUN_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def variables() -> str:
    """Return the CSS that turns every colour of the figures into a variable and a class.

    On a dark page each is mixed with white, so that lines and letters keep their contrast.
    """
    colours = {
        **{f"term-{name}": colour for name, colour in TERM_COLOURS.items()},
        **{f"lim-{name}": colour for name, colour in LIMIT_COLOURS.items()},
        **{f"policy-{name}": colour for name, colour in POLICY_COLOURS.items()},
        **{f"run-{index}": colour for index, colour in enumerate(RUN_COLOURS)},
    }
    light = "".join(f"--{name}:{colour};" for name, colour in colours.items())
    dark = "".join(f"--{name}:{_lighter(colour)};" for name, colour in colours.items())
    uses = "".join(f".{name}{{--own:var(--{name})}}" for name in colours)
    return f":root{{{light}}}body.body--dark{{{dark}}}{uses}"


def _lighter(colour: str) -> str:
    """The colour mixed with a quarter of white."""
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(0.75 * c + 0.25 * 255):02x}" for c in channels)
