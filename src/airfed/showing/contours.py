"""Lines of equal value and smooth regions on a grid, for maps drawn as SVG."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from airfed.showing.chart import Floats

Point = tuple[float, float]


def contour(x: Floats, y: Floats, z: Floats, level: float) -> list[list[Point]]:
    """Return the line z = level on a grid as polylines (marching squares); cells with an infinite corner are left out.

    A polyline that ends where it began is closed.

    Args:
        x: (m,) of the columns.
        y: (n,) of the rows.
        z: (n, m).
        level: the value to follow.
    """
    neighbours: dict[Point, list[Point]] = {}
    for i in range(y.size - 1):
        for j in range(x.size - 1):
            corners = [(x[b], y[a], z[a, b]) for a, b in ((i, j), (i, j + 1), (i + 1, j + 1), (i + 1, j))]
            if not all(math.isfinite(value) for _, _, value in corners):
                continue
            crossings = [
                _crossing(*sorted((one, other)), level)  # in one order, so that neighbouring cells agree to the bit
                for one, other in zip(corners, corners[1:] + corners[:1], strict=True)
                if (one[2] < level) != (other[2] < level)
            ]
            for one, other in zip(crossings[::2], crossings[1::2], strict=True):
                neighbours.setdefault(one, []).append(other)
                neighbours.setdefault(other, []).append(one)
    return _chained(neighbours)


def regions(x: Floats, y: Floats, labels: NDArray[np.str_]) -> dict[str, list[list[Point]]]:
    """Return the outlines of equally labelled grid points, rounded within half a cell, as closed polylines.

    Regions meet without a gap, and reach half a cell beyond the grid, where the map ends.

    Args:
        x: (m,) of the columns.
        y: (n,) of the rows.
        labels: (n, m).
    """
    names = np.unique(labels).tolist()
    shares = np.stack(
        [gaussian_filter(np.pad((labels == name).astype(np.float64), 1, mode="edge"), 0.8) for name in names]
    )
    found = {}
    for index, name in enumerate(names):
        others = np.delete(shares, index, axis=0)
        lead = shares[index] - (others.max(axis=0) if others.size else 0.0)
        found[name] = _filled(x, y, lead, 0.0)
    return found


def below(x: Floats, y: Floats, z: Floats, level: float) -> list[list[Point]]:
    """Return the outlines of where z < level, as closed polylines, to half a cell beyond the grid; z is finite."""
    return _filled(x, y, -np.pad(z, 1, mode="edge"), -level)


def _filled(x: Floats, y: Floats, z: Floats, level: float) -> list[list[Point]]:
    """The outlines of z >= level on a grid that is one point larger than x and y on each side."""
    framed = np.pad(z, 1, constant_values=level - 1.0)  # a step around everything closes what runs off the map
    return contour(_extended(x), _extended(y), framed, level)


def _extended(values: Floats) -> Floats:
    first, last = values[1] - values[0], values[-1] - values[-2]
    ends = values[0] - 0.5 * first, values[-1] + 0.5 * last
    return np.concatenate([[ends[0] - 1e-6 * first, ends[0]], values, [ends[1], ends[1] + 1e-6 * last]])


def _crossing(one: tuple[float, float, float], other: tuple[float, float, float], level: float) -> Point:
    share = (level - one[2]) / (other[2] - one[2])
    return float(one[0] + share * (other[0] - one[0])), float(one[1] + share * (other[1] - one[1]))


def _chained(neighbours: dict[Point, list[Point]]) -> list[list[Point]]:
    """Segments joined into as few polylines as they form, open ones from end to end."""
    lines = []
    starts = sorted(neighbours, key=lambda point: len(neighbours[point]) != 1)  # the ends of open lines first
    for start in starts:
        while neighbours[start]:
            line = [start]
            while neighbours[line[-1]]:
                step = neighbours[line[-1]].pop()
                neighbours[step].remove(line[-1])
                line.append(step)
            lines.append(line)
    return lines
