"""Grids of cells on a page, as SVG text."""

from __future__ import annotations

import html
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed.plotting.chart import Cells, Floats
from airfed.plotting.colours import known

Place = Callable[[ArrayLike], Floats]  # from values of an axis to pixels


def painted(part: Cells, across: Place, up: Place) -> str:
    """Return the cells as one path for each shade, a stroke for each run of neighbours in a row.

    The path counts in cells, and a transformation lays it over the axes: thousands of cells take a few characters each.
    """
    (left, right), (low, high) = (
        place([start, start + size]).tolist()
        for place, start, size in zip((across, up), part.corner, part.size, strict=True)
    )
    place = f"matrix({right - left:.5g} 0 0 {high - low:.5g} {left:.2f} {low:.2f})"
    shades = part.shades
    drawn = "".join(
        f'<path stroke-opacity="{opacity:g}" d="{_runs(shades == shade)}"/>'
        for shade, opacity in enumerate(part.opacities)
        if (shades == shade).any()
    )
    return f'<g class="cells {known(part.colour)}" transform="{place}">{drawn}</g>'


def cells_key(part: Cells) -> str:
    """Return the key to the shades, as HTML."""
    boxes = "".join(
        f'<span class="key"><i class="box {known(part.colour)}" style="opacity:{opacity:g}"></i>'
        f"{html.escape(part.text(place))}</span>"
        for place, opacity in enumerate(part.opacities)
    )
    return f'<span class="key">{html.escape(part.name)}:</span>{boxes}'


def _runs(on: NDArray[np.bool_]) -> str:
    """The `d` of horizontal strokes through the middle of every cell that is on."""
    edges = np.diff(np.pad(on, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    starts, ends = np.argwhere(edges == 1), np.argwhere(edges == -1)
    return "".join(
        f"M{start} {row}.5h{end - start}" for (row, start), (_, end) in zip(starts.tolist(), ends.tolist(), strict=True)
    )
