"""Contours follow their level, regions meet, and what is closed is closed."""

from __future__ import annotations

import numpy as np

from airfed.plotting.contours import contour, filled, refined, regions

X, Y = np.linspace(-1, 1, 21), np.linspace(1, -1, 25)  # y downwards, as pixels are
BOWL = X[None, :] ** 2 + Y[:, None] ** 2


def area(lines: list[list[tuple[float, float]]]) -> float:
    """By the shoelace formula; holes count against."""
    total = 0.0
    for line in lines:
        x, y = np.array(line).T
        total += abs(float(np.sum(x[:-1] * y[1:] - x[1:] * y[:-1])) / 2)
    return total


def test_a_contour_follows_its_level_in_one_line() -> None:
    (line,) = contour(X, Y, BOWL, 0.5)
    assert line[0] == line[-1]
    points = np.array(line)
    assert len(points) > 20
    assert np.abs(np.square(points).sum(axis=1) - 0.5).max() < 0.01
    ends = contour(X, Y, np.broadcast_to(X, BOWL.shape), 0.05)
    assert len(ends) == 1
    assert {end[1] for end in (ends[0][0], ends[0][-1])} == {-1.0, 1.0}


def test_an_infinite_corner_leaves_its_cells_out() -> None:
    assert contour(X, Y, np.full_like(BOWL, np.inf), 0.5) == []
    holed = BOWL.copy()
    holed[12, 17] = np.nan
    assert all(np.isfinite(line).all() for line in contour(X, Y, holed, 0.5))


def test_a_filled_area_is_closed_at_the_edge_of_the_map() -> None:
    lines = filled(X, Y, BOWL, -1.0)
    assert all(line[0] == line[-1] for line in lines)
    assert abs(area(lines) - 4.0) < 1e-4
    assert filled(X, Y, BOWL, 3.0) == []
    assert abs(area(filled(X, Y, -BOWL, -0.5)) - np.pi / 2) < 0.02


def test_a_finer_grid_goes_through_the_points_of_the_coarse_one() -> None:
    x, y, z = refined(X, Y, BOWL)
    assert z.shape == (y.size, x.size)
    inner = contour(x, y, z, 0.5)
    assert np.abs(np.square(np.array(inner[0])).sum(axis=1) - 0.5).max() < 0.003


def test_regions_cover_the_map_once_and_have_no_steps() -> None:
    labels = np.where(X[None, :] + 0.6 * Y[:, None] > 0.1, "a", np.where(Y[:, None] > 0, "b", "")).astype(str)
    found = regions(X, Y, labels)
    assert set(found) == {"", "a", "b"}
    step = X[1] - X[0], Y[0] - Y[1]
    whole = (2 + step[0]) * (2 + step[1])
    assert abs(sum(map(area, found.values())) / whole - 1) < 0.01
    line = max(found["a"], key=len)
    border = [p for p in line if abs(p[0]) < 0.9 and -0.9 < p[1] < 0.9]  # away from the frame
    off = [abs(x + 0.6 * y - 0.1) / np.hypot(1, 0.6) for x, y in border]
    assert max(off) < 0.75 * step[0]
    assert list(regions(X, Y, np.full(BOWL.shape, "a"))) == ["a"]
