"""A response between its places: everything that pilots reached, over the logarithms of the axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from airfed.planning.response import Response

Floats = NDArray[np.float64]
AXES: Final = ("share", "rounds", "clip_norm", "noise")
ROUNDING: Final = 1e-9  # by which a value may lie outside an axis


class Found(NamedTuple):
    """What is expected at some places: (..., averages) each."""

    accuracy: Floats
    deviation: Floats
    loss: Floats


class Surface:
    """What is expected at any place: more noise is never better, and neighbours share a variance.

    Args:
        response: what was measured.
    """

    def __init__(self, response: Response) -> None:
        from scipy.interpolate import RegularGridInterpolator  # here: planning by the bound starts sooner without them
        from scipy.ndimage import uniform_filter

        self._axes = {name: getattr(response, name) for name in AXES}
        # The last axis: accuracy, variance and loss of each average.
        channels = [
            *(_monotone(accuracy, increasing=False) for accuracy in response.accuracy),
            *(uniform_filter(np.square(spread), size=(1, 3, 3, 3), mode="nearest") for spread in response.spread),
            *(_monotone(loss, increasing=True) for loss in response.loss),
        ]
        self._values = RegularGridInterpolator(
            [np.log(_padded(axis)) for axis in self._axes.values()],
            _repeated(np.stack(channels, axis=-1)),
            bounds_error=False,
            fill_value=np.nan,
        )

    def look(self, *, rounds: ArrayLike, clip_norm: ArrayLike, noise: ArrayLike, share: ArrayLike) -> Found:
        """Return what is expected at some places, broadcast against each other; NaN outside.

        Less noise than the least measured counts as the least. Where only one share was measured, every share counts
        as that one.
        """
        given = {"share": share, "rounds": rounds, "clip_norm": clip_norm, "noise": noise}
        arrays = {name: np.asarray(value, dtype=np.float64) for name, value in given.items()}
        arrays["noise"] = np.maximum(arrays["noise"], self._axes["noise"][0])
        if self._axes["share"].size == 1:
            arrays["share"] = np.full_like(arrays["share"], self._axes["share"][0])
        with np.errstate(divide="ignore"):
            places = [np.log(_snapped(arrays[name], axis)) for name, axis in self._axes.items()]
        grid = np.stack(np.broadcast_arrays(*places), axis=-1)
        found: Floats = self._values(grid.reshape(-1, len(AXES))).reshape(*grid.shape[:-1], -1)
        accuracy, variance, loss = np.split(found, 3, axis=-1)
        # The weights of the neighbours add up to 1 but for rounding.
        return Found(accuracy=np.clip(accuracy, 0.0, 1.0), deviation=np.sqrt(np.maximum(variance, 0.0)), loss=loss)


def _monotone(values: Floats, *, increasing: bool) -> Floats:
    """Values along the last axis, the noise, smoothed so that they rise or fall."""
    from scipy.optimize import isotonic_regression

    return np.apply_along_axis(lambda row: isotonic_regression(row, increasing=increasing).x, -1, values)


def _padded(axis: Floats) -> Floats:
    """An axis of at least two places, as the interpolation needs them; the second of one is a hair away."""
    return axis if axis.size > 1 else np.array([axis[0], axis[0] * (1 + ROUNDING)])


def _repeated(values: Floats) -> Floats:
    for axis in range(values.ndim - 1):
        if values.shape[axis] == 1:
            values = np.repeat(values, 2, axis=axis)
    return values


def _snapped(values: Floats, axis: Floats) -> Floats:
    """Values that lie outside an axis by rounding only, put onto its end."""
    values = np.where(np.abs(values - axis[0]) <= ROUNDING * axis[0], axis[0], values)
    return np.where(np.abs(values - axis[-1]) <= ROUNDING * axis[-1], axis[-1], values)
