"""Lines of equal value and smooth regions on a grid, for maps drawn as SVG."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, zoom

from airfed.plotting.chart import Floats

Point = tuple[float, float]
Edge = tuple[tuple[int, int], tuple[int, int]]  # of the grid, by its two corners

_FINER: Final = 3  # cells drawn for each cell computed, in each direction
_HAIR: Final = 1e-6  # how far beyond the grid an outline is closed; nobody sees it


def contour(x: Floats, y: Floats, z: Floats, level: float) -> list[list[Point]]:
    """Return the line z = level on a grid as polylines (marching squares); cells with an infinite corner are left out.

    A polyline that ends where it began is closed.

    Args:
        x: (m,) of the columns.
        y: (n,) of the rows.
        z: (n, m).
        level: the value to follow.
    """
    across, up, values = x.tolist(), y.tolist(), z.tolist()
    neighbours: dict[Edge, list[Edge]] = {}
    for i, j in _crossed(z, level):
        corners = [(i, j), (i, j + 1), (i + 1, j + 1), (i + 1, j)]
        sides = zip(corners, corners[1:] + corners[:1], strict=True)
        crossed = [
            (min(one, other), max(one, other))
            for one, other in sides
            if (values[one[0]][one[1]] < level) != (values[other[0]][other[1]] < level)
        ]
        for one, other in zip(crossed[::2], crossed[1::2], strict=True):
            neighbours.setdefault(one, []).append(other)
            neighbours.setdefault(other, []).append(one)

    def crossing(edge: Edge) -> Point:
        (a, b), (c, d) = edge
        share = (level - values[a][b]) / (values[c][d] - values[a][b])
        return across[b] + share * (across[d] - across[b]), up[a] + share * (up[c] - up[a])

    return [[crossing(edge) for edge in line] for line in _chained(neighbours)]


def refined(x: Floats, y: Floats, z: Floats) -> tuple[Floats, Floats, Floats]:
    """Return a finer grid through the same points (cubic splines), reaching half a cell beyond; z is finite."""
    wider = [np.concatenate([[1.5 * v[0] - 0.5 * v[1]], v, [1.5 * v[-1] - 0.5 * v[-2]]]) for v in (x, y)]
    fine = [np.interp(np.linspace(0, v.size - 1, _FINER * (v.size - 1) + 1), np.arange(v.size), v) for v in wider]
    padded = np.pad(z, 1, mode="edge")
    return fine[0], fine[1], zoom(padded, [v.size / n for v, n in zip(fine[::-1], padded.shape, strict=True)], order=3)


def regions(x: Floats, y: Floats, labels: NDArray[np.str_]) -> dict[str, list[list[Point]]]:
    """Return the outlines of equally labelled grid points, rounded within about half a cell, as closed polylines.

    Regions meet without a gap, and reach half a cell beyond the grid, where the map ends.

    Args:
        x: (m,) of the columns.
        y: (n,) of the rows.
        labels: (n, m).
    """
    names = np.unique(labels).tolist()
    fields = [refined(x, y, gaussian_filter((labels == name).astype(np.float64), 0.8)) for name in names]
    shares = np.stack([field for _, _, field in fields])
    found = {}
    for index, name in enumerate(names):
        others = np.delete(shares, index, axis=0)
        lead = shares[index] - (others.max(axis=0) if others.size else 0.0)
        found[name] = filled(fields[0][0], fields[0][1], lead, 0.0)
    return found


def filled(x: Floats, y: Floats, z: Floats, level: float) -> list[list[Point]]:
    """Return the outlines of where z >= level on a grid, as closed polylines; along its edge they follow the edge."""
    framed = np.pad(z, 1, constant_values=level - 1.0)  # a step around everything closes what runs off the map
    across, up = (np.concatenate([[v[0] - _HAIR], v, [v[-1] + _HAIR]]) for v in (x, y))
    return contour(across, up, framed, level)


def _crossed(z: Floats, level: float) -> list[list[int]]:
    """The cells, by their first corner, that the level runs through and that are finite."""
    corners = np.stack([z[:-1, :-1], z[:-1, 1:], z[1:, 1:], z[1:, :-1]])
    under = corners < level
    found: list[list[int]] = np.argwhere(
        np.isfinite(corners).all(axis=0) & under.any(axis=0) & ~under.all(axis=0)
    ).tolist()
    return found


def _chained(neighbours: dict[Edge, list[Edge]]) -> list[list[Edge]]:
    """Segments joined into as few polylines as they form, open ones from end to end."""
    lines = []
    starts = sorted(neighbours, key=lambda edge: len(neighbours[edge]) != 1)  # the ends of open lines first
    for start in starts:
        while neighbours[start]:
            line = [start]
            while neighbours[line[-1]]:
                step = neighbours[line[-1]].pop()
                neighbours[step].remove(line[-1])
                line.append(step)
            lines.append(line)
    return lines
