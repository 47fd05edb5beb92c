"""Accuracy surrogates: response surfaces of pilot runs over the rounds, the clipping norm and the noise.

The channel affects training through the noise per coordinate of the recovered mean, s = ϖσ/(|K|θ) (docs/surrogate.md).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _files
from airfed.problem import InfeasibleError

Average = Literal["none", "tail", "exponential"]
"""Averages of the models at the receiver; see `airfed.training.state`."""
Floats = NDArray[np.float64]
Integers = NDArray[np.intp]
AXES: Final = ("participation", "rounds", "clip_norm", "noise")
ROUNDING: Final = 1e-9  # relative; a value may lie so far outside an axis
FORMAT: Final = 4
_LARGEST: Final = 1e100  # of any value, so that sums and products are finite
_OF_AVERAGES: Final = {"accuracy": 1.0, "spread": 1.0, "loss": _LARGEST, "loss_spread": _LARGEST}
_AXIS_LIMITS: Final = {"participation": (1 / _LARGEST, 1.0), "rounds": (1.0, _LARGEST)}  # others: _LARGEST
CHOSEN_ON_DATA: Final = "These settings were chosen on the devices' data; ε does not cover that choice."
INTERVALS: Final = Path(__file__).parent.parent / "surrogates" / "intervals.json"
"""Quantiles of the errors of recorded trainings, and their coverage; `python -m studies coverage` writes them."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The test accuracy that a surrogate expects of a plan."""

    accuracy: float  # in 0..1
    low: float  # [low, high] is a nominal 90% interval for a single training
    high: float
    basis: str = ""  # the measured coverage of such intervals, and a short description of the pilot runs
    loss: float | None = None  # on the test data; None if not recorded


class NetworkAccuracy(NamedTuple):
    """The expected accuracy of the best plan with a candidate network."""

    name: str
    dimension: int  # d
    accuracy: float | None  # in 0..1; None if the network has no plan within the surrogate's range


class BestAccuracy(NamedTuple):
    """The best accuracy at given points over ϖ and the averages: arrays of one shape."""

    accuracy: Floats  # −inf outside the grid
    clip_norm: Floats  # ϖ
    average: Integers  # index into `Surrogate.averages`


class BestCandidate(NamedTuple):
    """The candidate of the highest expected accuracy."""

    row: int  # index of the number of rounds
    column: int  # index of the candidate for that number of rounds
    clip_norm: float
    average: Average


class _Multilinear(NamedTuple):
    """Multilinear interpolation on a grid, to the bit that of SciPy, whose import takes a fifth of a plan's time."""

    axes: tuple[Floats, ...]  # ascending, of at least two points
    values: Floats  # (points of each axis..., channels)

    def __call__(self, points: Floats) -> Floats:
        """Return the values at points, (points, axes), as (points, channels); NaN outside the grid."""
        sides, inside = [], np.ones(len(points), dtype=bool)
        for axis, at in zip(self.axes, points.T, strict=True):
            inside &= (at >= axis[0]) & (at <= axis[-1])
            below = np.clip(np.searchsorted(axis, at, side="right") - 1, 0, axis.size - 2)
            share = (at - axis[below]) / (axis[below + 1] - axis[below])
            sides.append(((below, 1 - share), (below + 1, share)))
        found = np.zeros((len(points), self.values.shape[-1]))
        for corner in itertools.product(*sides):
            weight = np.ones(len(points))
            for _, share in corner:
                weight = weight * share
            found = found + self.values[tuple(index for index, _ in corner)] * weight[:, None]
        return np.where(inside[:, None], found, np.nan)


@dataclass(frozen=True, kw_only=True, eq=False)
class Surrogate:
    """Results of pilot runs on a grid of ascending axes."""

    participation: Floats  # |K|/N; one value if the surrogate does not depend on it
    rounds: Floats  # I
    clip_norm: Floats  # ϖ
    noise: Floats  # s/ϖ = σ/(|K|θ)
    averages: tuple[Average, ...]  # as in `Plan.average`
    accuracy: Floats  # (averages, participation, rounds, clip_norm, noise), mean over seeds, in 0..1
    spread: Floats  # standard deviation of the accuracy of a single training, same shape
    loss: Floats  # mean loss on the test data, same shape
    loss_spread: Floats
    about: Mapping[str, Any] = field(default_factory=dict)  # the pilots: model, data, T, τ, partition, devices, seeds
    same_data: bool = False  # whether the pilots trained on the devices' data set

    def __post_init__(self) -> None:
        for name in AXES:
            axis = np.asarray(getattr(self, name), dtype=np.float64)
            low, high = _AXIS_LIMITS.get(name, (1 / _LARGEST, _LARGEST))
            if axis.ndim != 1 or not axis.size or not np.all((axis >= low) & (axis <= high)):
                raise ValueError(f"{name} of a surrogate must be a list of numbers from {low:g} to {high:g}.")
            if np.any(np.diff(np.log(axis)) <= ROUNDING):
                raise ValueError(f"{name} of a surrogate must be ascending.")
            object.__setattr__(self, name, axis)
        averages = tuple(self.averages)
        if not averages or len(set(averages)) < len(averages) or not set(averages) <= set(get_args(Average)):
            raise ValueError(f"averages of a surrogate must be distinct ones of {', '.join(get_args(Average))}.")
        object.__setattr__(self, "averages", averages)
        grid = tuple(getattr(self, name).size for name in AXES)
        for name, most in _OF_AVERAGES.items():
            values, shape = np.asarray(getattr(self, name), dtype=np.float64), (len(averages), *grid)
            if values.shape != shape or not np.all((values >= 0.0) & (values <= most)):
                raise ValueError(f"{name} of a surrogate must be numbers from 0 to {most:g} of shape {shape}.")
            object.__setattr__(self, name, values)

    @cached_property
    def _values(self) -> _Multilinear:
        """Interpolator of accuracy and loss over the logarithms of the axes, monotone in the noise."""
        channels = [
            *(_monotone(accuracy, increasing=False) for accuracy in self.accuracy),
            *(_monotone(loss, increasing=True) for loss in self.loss),
        ]
        axes, values = [getattr(self, name) for name in AXES], np.stack(channels, axis=-1)
        for dimension, axis in enumerate(axes):
            if axis.size == 1:  # the interpolation needs two grid points
                axes[dimension] = np.array([axis[0], axis[0] * (1 + ROUNDING)])
                values = np.repeat(values, 2, axis=dimension)
        return _Multilinear(tuple(np.log(axis) for axis in axes), values)

    def _interpolate(self, **given: ArrayLike) -> tuple[Floats, Floats]:
        """Return accuracy and loss at given points, (..., averages) each; NaN outside.

        Noise below the grid is raised to its smallest value. With a single participation ratio, all ratios count as it.
        """
        arrays = {name: np.asarray(given[name], dtype=np.float64) for name in AXES}
        arrays["noise"] = np.maximum(arrays["noise"], self.noise[0])
        if self.participation.size == 1:
            arrays["participation"] = np.full_like(arrays["participation"], self.participation[0])
        for name, values in arrays.items():
            for end in getattr(self, name)[[0, -1]]:  # move values outside by rounding onto the end
                values = np.where(np.abs(values - end) <= ROUNDING * end, end, values)
            arrays[name] = values
        with np.errstate(divide="ignore"):
            grid = np.stack(np.broadcast_arrays(*map(np.log, arrays.values())), axis=-1)
        with np.errstate(invalid="ignore"):  # infinite noise is outside
            found: Floats = self._values(grid.reshape(-1, len(AXES))).reshape(*grid.shape[:-1], -1)
        accuracy, loss = np.split(found, 2, axis=-1)
        return np.clip(accuracy, 0.0, 1.0), loss  # the interpolation weights sum to 1 up to rounding

    def predict(
        self, *, rounds: ArrayLike, clip_norm: ArrayLike, noise: ArrayLike, participation: ArrayLike = 1.0
    ) -> Floats:
        """Return the expected accuracy, (..., averages); NaN outside the grid."""
        return self._interpolate(rounds=rounds, clip_norm=clip_norm, noise=noise, participation=participation)[0]

    def best(self, *, rounds: ArrayLike, noise: ArrayLike, participation: ArrayLike) -> BestAccuracy:
        """Return the accuracy with the best ϖ, a grid point, and the best average."""
        mean = self.predict(
            clip_norm=self.clip_norm,
            rounds=np.asarray(rounds)[..., None],
            noise=np.asarray(noise)[..., None],
            participation=np.asarray(participation)[..., None],
        )
        flat = np.where(np.isnan(mean), -np.inf, mean).reshape(*mean.shape[:-2], -1)
        norm, average = np.divmod(flat.argmax(axis=-1), len(self.averages))
        return BestAccuracy(accuracy=flat.max(axis=-1), clip_norm=self.clip_norm[norm], average=average)

    def best_candidate(self, rounds: NDArray[np.int64], noise: Floats, participation: Floats) -> BestCandidate:
        """Return the best of the candidates for each I, (R, C); candidates of NaN noise are excluded."""
        best = self.best(rounds=rounds[:, None], noise=noise, participation=participation)
        accuracy = np.where(np.isnan(noise), -np.inf, best.accuracy)
        at = np.unravel_index(int(np.argmax(accuracy)), accuracy.shape)
        if not np.isfinite(accuracy[at]):
            least, covers = float(np.nanmin(noise, initial=math.inf)), "and the surrogate covers"
            if self.participation.size > 1 and least <= self.noise[-1]:
                raise InfeasibleError(
                    f"No plan fits: the participation ratio would be at most {np.max(participation):.3g}, {covers} "
                    f"{self.participation[0]:.3g} to {self.participation[-1]:.3g}."
                )
            raise InfeasibleError(
                f"No plan fits: the noise per coordinate would be at least {least:.3g} times the clipping norm, "
                f"{covers} up to {self.noise[-1]:.3g}."
            )
        return BestCandidate(int(at[0]), int(at[1]), float(best.clip_norm[at]), self.averages[best.average[at]])

    def only(self, average: Average) -> Surrogate:
        """Return the surrogate of one average; raise InfeasibleError if it has none."""
        if average not in self.averages:
            raise InfeasibleError(
                f"No plan fits: the surrogate covers the averages {', '.join(self.averages)} (average is {average})."
            )
        index = [self.averages.index(average)]
        return replace(self, averages=(average,), **{name: getattr(self, name)[index] for name in _OF_AVERAGES})

    def at(self, clip_norm: float) -> Surrogate:
        """Return the surrogate at one ϖ; raise InfeasibleError outside the grid."""
        if not self.clip_norm[0] <= clip_norm <= self.clip_norm[-1]:
            raise InfeasibleError(
                f"No plan fits: the surrogate covers clipping norms from {self.clip_norm[0]:g} to "
                f"{self.clip_norm[-1]:g} (clip_norm is {clip_norm:g})."
            )
        position = float(np.interp(math.log(clip_norm), np.log(self.clip_norm), np.arange(self.clip_norm.size)))
        below, above = math.floor(position), math.ceil(position)
        values = {
            name: (1 - position + below) * getattr(self, name)[..., [below], :]
            + (position - below) * getattr(self, name)[..., [above], :]
            for name in _OF_AVERAGES
        }
        return replace(self, clip_norm=np.array([clip_norm]), **values)

    def covered(self, rounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of rounds within the grid; raise InfeasibleError if there are none."""
        inside: NDArray[np.int64] = rounds[(rounds >= self.rounds[0]) & (rounds <= self.rounds[-1])]
        if not inside.size:
            raise InfeasibleError(
                f"No plan fits: the surrogate covers {self.rounds[0]:g} to {self.rounds[-1]:g} rounds."
            )
        return inside

    def prediction(
        self, *, rounds: int, clip_norm: float, noise: float, participation: float, average: str
    ) -> Prediction | None:
        """Return the prediction for one plan; None outside the grid.

        The low end is convex in the accuracy and negative at 0, so it never falls where the accuracy rises: the plan of
        the highest expected accuracy also has the highest low end.
        """
        if average not in self.averages:
            return None
        index = self.averages.index(average)
        found = self._interpolate(rounds=rounds, clip_norm=clip_norm, noise=noise, participation=participation)
        middle, loss = (float(each[index]) for each in found)
        if not math.isfinite(middle):
            return None
        known = _intervals()["same" if self.same_data else "other"]
        low, high = (float(np.clip(middle + known[end] * error_scale(middle), 0.0, 1.0)) for end in ("low", "high"))
        return Prediction(accuracy=middle, low=low, high=high, basis=self.basis, loss=loss)

    @property
    def basis(self) -> str:
        """The measured coverage of the intervals, and a short description of the pilot runs if the file has one."""
        known = _intervals()["same" if self.same_data else "other"]
        data = "" if self.same_data else " with pilots on another data set"
        inside = math.floor(100 * known["coverage"])
        coverage = f"{inside}% of {known['trainings']} recorded trainings of other scenarios{data} lay inside"
        devices, images = (self.about.get(name) for name in ("devices", "images_per_device"))
        if not all(type(number) is int and number > 0 for number in (devices, images)):
            return coverage
        return f"{coverage}; the pilot runs had {devices} devices with {images} images each"

    def to_json(self, *others: Surrogate) -> str:
        """Return the text of a surrogate file, which may hold those of other networks too."""

        def content(one: Surrogate) -> dict[str, Any]:
            values = {name: getattr(one, name).tolist() for name in (*AXES, *_OF_AVERAGES)}
            return {"format": FORMAT, "about": dict(one.about), "averages": one.averages, **values}

        several = {"format": FORMAT, "networks": [content(one) for one in (self, *others)]}
        return json.dumps(several if others else content(self), allow_nan=False) + "\n"


def error_scale(accuracy: Any) -> Any:
    """Return the scale of the error of an expected accuracy, p(1 − p) + 0.02."""
    return accuracy * (1 - accuracy) + 0.02


@cache
def _intervals() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(INTERVALS.read_text(encoding="utf-8"))
    return found


def load_surrogate(path: Path) -> Surrogate:
    """Return the surrogate in a file of one network; raise DataError if it is none."""
    found = load_surrogates(path)
    if len(found) > 1:
        raise _files.DataError(f"{path} must be a surrogate of one network, got {len(found)} networks.")
    return found[0]


def load_surrogates(path: Path) -> tuple[Surrogate, ...]:
    """Return the surrogates in a file, one for each network; raise DataError if there is none."""
    problem = f"{path} is not a surrogate, such as airfed pilot writes"
    text = _files.read_text(path, "a surrogate")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise _files.DataError(f"{problem}: it is not JSON.") from None
    networks = content.get("networks") if isinstance(content, dict) else None
    several = networks if isinstance(networks, list) and networks else [content]
    return tuple(_parsed(one, problem) for one in several)


def _parsed(content: Any, problem: str) -> Surrogate:
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("about"), dict):
        raise _files.DataError(f"{problem}: it is not of format {FORMAT}.")
    try:
        arrays: dict[str, Any] = {name: _numbers(content[name], name) for name in (*AXES, *_OF_AVERAGES)}
        return Surrogate(**arrays, averages=tuple(content["averages"]), about=content["about"])
    except KeyError as error:
        raise _files.DataError(f"{problem}: it has no {error.args[0]}.") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise _files.DataError(f"{problem}: {' '.join(str(error).split()).removesuffix('.')}.") from None


def _numbers(values: object, name: str) -> Floats:
    found = np.asarray(values)
    if found.dtype.kind not in "iuf":
        raise ValueError(f"{name} of a surrogate must be numbers.")
    return found.astype(np.float64)


def _monotone(values: Floats, *, increasing: bool) -> Floats:
    """Return the isotonic regression of values along the last axis, the noise."""
    order = slice(None, None, 1 if increasing else -1)
    return np.apply_along_axis(_isotonic, -1, values[..., order])[..., order]


def _isotonic(row: Floats) -> Floats:
    """Return the nondecreasing values closest to a row, by pooling adjacent violators; to the bit those of SciPy."""
    blocks: list[tuple[float, int]] = []  # mean and number of values
    left = row[::-1].tolist()
    while left:
        total, number = left.pop(), 1
        if blocks and blocks[-1][0] >= total:
            mean, number = blocks.pop()
            total, number = number * mean + total, number + 1
            while left and total / number >= left[-1]:
                total, number = total + left.pop(), number + 1
            while blocks and blocks[-1][0] >= total / number:
                mean, more = blocks.pop()
                total, number = total + more * mean, number + more
        blocks.append((total / number, number))
    means, numbers = zip(*blocks, strict=True)
    return np.repeat(means, numbers)
