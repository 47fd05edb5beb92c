"""Figures of the studies."""

from itertools import product

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from airfed.plotting.colours import PALETTE
from airfed.text.phrases import LIMITS
from studies import curves


@pytest.mark.parametrize("left_out", LIMITS)
def test_the_map_of_limits_draws_each_limit_in_its_own_colour(left_out):
    kinds = [kind for kind in LIMITS if kind != left_out]
    grid = list(product((1.0, 2.0, 4.0), (1.0, 2.0, 4.0)))
    names = ("num_devices", "power_per_device", "epsilon", "binding", "num_scheduled")
    rows = [
        dict(zip(names, (10, power, epsilon, kinds[index % len(kinds)], 5), strict=True))
        for index, (power, epsilon) in enumerate(grid)
    ]
    figure = curves.limits_figure(rows, "")
    mesh = figure.axes[0].collections[0]
    drawn = mesh.to_rgba(mesh.get_array().ravel())[:, :3]
    np.testing.assert_allclose(drawn, [to_rgb(PALETTE[f"lim-{row['binding']}"]) for row in rows])
    named = {text.get_text() for text in figure.legends[0].get_texts()}
    assert named == {f"{LIMITS[kind]} binds" for kind in kinds}
