"""Accuracy surrogates: what training gives, measured once over the rounds, the clipping norm and the noise.

Everything that the radio does to learning goes through one number, the noise per coordinate of the recovered mean,
s = ϖσ/(|K|θ). A response surface holds what pilot runs reached over (I, ϖ, s/ϖ), and over |K|/N where the data are not
alike on all devices: accuracy and loss of each average of the models that the receiver may take.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _files
from airfed.problem import InfeasibleError

Average = Literal["none", "tail", "exponential"]
"""Averages of the models that the receiver may take; `airfed.training.state` says what they are."""
Floats = NDArray[np.float64]
Integers = NDArray[np.intp]
AXES: Final = ("share", "rounds", "clip_norm", "noise")
ROUNDING: Final = 1e-9  # by which a value may lie outside an axis
FORMAT: Final = 3
_LARGEST: Final = 1e100  # of any value, so that sums and products of them are finite
_OF_AVERAGES: Final = {"accuracy": 1.0, "spread": 1.0, "loss": _LARGEST, "loss_spread": _LARGEST}  # at most
_AXIS_LIMITS: Final = {"share": (1 / _LARGEST, 1.0), "rounds": (1.0, _LARGEST)}  # others: up to _LARGEST
_WIDE: Final = 1.6448536269514722  # standard deviations to each side that hold 90%


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The test accuracy that a response expects of a plan."""

    accuracy: float  # in 0..1
    low: float  # 90% of single trainings lie between low and high, as far as the pilots tell
    high: float
    basis: str = ""  # which pilots, in a few words; the level is theirs, and more data give more
    loss: float | None = None  # on the test data; None where it was not written down


class Best(NamedTuple):
    """The best that a response knows at some grid points: arrays of one shape."""

    accuracy: Floats  # −inf outside of what was measured
    clip_norm: Floats  # ϖ
    average: Integers  # index into `Response.averages`


class Design(NamedTuple):
    """The candidate of the highest expected accuracy."""

    place: int  # of the number of rounds among those asked for
    column: int  # of the candidate among those of that number of rounds
    clip_norm: float
    average: Average


@dataclass(frozen=True, kw_only=True, eq=False)
class Response:
    """What pilots reached, on a grid of ascending axes."""

    share: Floats  # |K|/N; one value where it makes no difference
    rounds: Floats  # I
    clip_norm: Floats  # ϖ
    noise: Floats  # s/ϖ = σ/(|K|θ)
    averages: tuple[Average, ...]  # what the receiver did with the models, as in `Plan.average`
    accuracy: Floats  # (averages, share, rounds, clip_norm, noise), mean over the seeds, in 0..1
    spread: Floats  # standard deviation of the accuracy of a single training, same shape
    loss: Floats  # the same of the loss on the test data
    loss_spread: Floats
    about: Mapping[str, Any] = field(default_factory=dict)  # the pilots: model, data, T, τ, partition, devices, seeds

    def __post_init__(self) -> None:
        for name in AXES:
            axis = np.asarray(getattr(self, name), dtype=np.float64)
            low, high = _AXIS_LIMITS.get(name, (1 / _LARGEST, _LARGEST))
            if axis.ndim != 1 or not axis.size or not np.all((axis >= low) & (axis <= high)):
                raise ValueError(f"Expected {name} of a response to be a list of numbers from {low:g} to {high:g}.")
            if np.any(np.diff(np.log(axis)) <= ROUNDING):
                raise ValueError(f"Expected {name} of a response to be ascending.")
            object.__setattr__(self, name, axis)
        averages = tuple(self.averages)
        if not averages or len(set(averages)) < len(averages) or not set(averages) <= set(get_args(Average)):
            raise ValueError(f"Expected averages of a response to be different ones of {', '.join(get_args(Average))}.")
        object.__setattr__(self, "averages", averages)
        grid = tuple(getattr(self, name).size for name in AXES)
        for name, most in _OF_AVERAGES.items():
            values, shape = np.asarray(getattr(self, name), dtype=np.float64), (len(averages), *grid)
            if values.shape != shape or not np.all((values >= 0.0) & (values <= most)):
                raise ValueError(f"Expected {name} of a response to be numbers from 0 to {most:g} of shape {shape}.")
            object.__setattr__(self, name, values)

    @cached_property
    def _values(self) -> Any:
        """Accuracy, variance and loss of each average over the logarithms of the axes; more noise is never better."""
        from scipy.interpolate import RegularGridInterpolator  # here: planning by the bound starts sooner without them
        from scipy.ndimage import uniform_filter

        channels = [
            *(_monotone(accuracy, increasing=False) for accuracy in self.accuracy),
            *(uniform_filter(np.square(spread), size=(1, 3, 3, 3), mode="nearest") for spread in self.spread),
            *(_monotone(loss, increasing=True) for loss in self.loss),
        ]
        axes, values = [getattr(self, name) for name in AXES], np.stack(channels, axis=-1)
        for place, axis in enumerate(axes):
            if axis.size == 1:  # the interpolation needs two places: the second is a hair away
                axes[place] = np.array([axis[0], axis[0] * (1 + ROUNDING)])
                values = np.repeat(values, 2, axis=place)
        return RegularGridInterpolator([np.log(axis) for axis in axes], values, bounds_error=False, fill_value=np.nan)

    def _look(self, **given: ArrayLike) -> tuple[Floats, Floats, Floats]:
        """Accuracy, its standard deviation and the loss at some places, (..., averages) each; NaN outside.

        Less noise than the least measured counts as the least. Where only one share was measured, every share counts
        as that one.
        """
        arrays = {name: np.asarray(given[name], dtype=np.float64) for name in AXES}
        arrays["noise"] = np.maximum(arrays["noise"], self.noise[0])
        if self.share.size == 1:
            arrays["share"] = np.full_like(arrays["share"], self.share[0])
        for name, values in arrays.items():
            for end in getattr(self, name)[[0, -1]]:  # what lies outside by rounding only is put onto the end
                values = np.where(np.abs(values - end) <= ROUNDING * end, end, values)
            arrays[name] = values
        with np.errstate(divide="ignore"):
            grid = np.stack(np.broadcast_arrays(*map(np.log, arrays.values())), axis=-1)
        found: Floats = self._values(grid.reshape(-1, len(AXES))).reshape(*grid.shape[:-1], -1)
        accuracy, variance, loss = np.split(found, 3, axis=-1)
        # The weights of the neighbours add up to 1 but for rounding.
        return np.clip(accuracy, 0.0, 1.0), np.sqrt(np.maximum(variance, 0.0)), loss

    def predict(
        self, *, rounds: ArrayLike, clip_norm: ArrayLike, noise: ArrayLike, share: ArrayLike = 1.0
    ) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the accuracy, each (..., averages); NaN outside the grid."""
        return self._look(rounds=rounds, clip_norm=clip_norm, noise=noise, share=share)[:2]

    def best(self, *, rounds: ArrayLike, noise: ArrayLike, share: ArrayLike) -> Best:
        """Return the accuracy with the best ϖ, always one of the measured ones, and the best average."""
        mean, _ = self.predict(
            clip_norm=self.clip_norm,
            rounds=np.asarray(rounds)[..., None],
            noise=np.asarray(noise)[..., None],
            share=np.asarray(share)[..., None],
        )
        flat = np.where(np.isnan(mean), -np.inf, mean).reshape(*mean.shape[:-2], -1)
        place = flat.argmax(axis=-1)
        norm, average = np.divmod(place, len(self.averages))
        return Best(accuracy=flat.max(axis=-1), clip_norm=self.clip_norm[norm], average=average)

    def best_design(self, rounds: NDArray[np.int64], noise: Floats, share: Floats) -> Design:
        """Return the best of the candidates of each I, (R, C), but for those whose noise is NaN."""
        best = self.best(rounds=rounds[:, None], noise=noise, share=share)
        accuracy = np.where(np.isnan(noise), -np.inf, best.accuracy)
        at = np.unravel_index(int(np.argmax(accuracy)), accuracy.shape)
        if not np.isfinite(accuracy[at]):
            least, there = float(np.nanmin(noise, initial=math.inf)), "and the response was measured"
            if self.share.size > 1 and least <= self.noise[-1]:
                raise InfeasibleError(
                    f"No plan fits: the devices would be {np.max(share):.3g} of the fleet at most, {there} for "
                    f"{self.share[0]:.3g} to {self.share[-1]:.3g} of it."
                )
            raise InfeasibleError(
                f"No plan fits: the limits leave a noise of {least:.3g} of the clipping norm in each coordinate, "
                f"{there} up to {self.noise[-1]:.3g}."
            )
        return Design(int(at[0]), int(at[1]), float(best.clip_norm[at]), self.averages[best.average[at]])

    def only(self, average: Average) -> Response:
        """Return the response of one average; InfeasibleError where it was not measured."""
        if average not in self.averages:
            raise InfeasibleError(
                f"No plan fits: the response was measured with the averages {', '.join(self.averages)} (average is "
                f"{average})."
            )
        place = [self.averages.index(average)]
        return replace(self, averages=(average,), **{name: getattr(self, name)[place] for name in _OF_AVERAGES})

    def at(self, clip_norm: float) -> Response:
        """Return the response at one ϖ; InfeasibleError where it was not measured."""
        if not self.clip_norm[0] <= clip_norm <= self.clip_norm[-1]:
            raise InfeasibleError(
                f"No plan fits: the response was measured for clipping norms of {self.clip_norm[0]:g} to "
                f"{self.clip_norm[-1]:g} (clip_norm is {clip_norm:g})."
            )
        place = float(np.interp(math.log(clip_norm), np.log(self.clip_norm), np.arange(self.clip_norm.size)))
        below, above = math.floor(place), math.ceil(place)
        values = {
            name: (1 - place + below) * getattr(self, name)[..., [below], :]
            + (place - below) * getattr(self, name)[..., [above], :]
            for name in _OF_AVERAGES
        }
        return replace(self, clip_norm=np.array([clip_norm]), **values)

    def known(self, rounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those numbers of rounds that were measured, or lie between two that were; InfeasibleError if none."""
        inside: NDArray[np.int64] = rounds[(rounds >= self.rounds[0]) & (rounds <= self.rounds[-1])]
        if not inside.size:
            raise InfeasibleError(
                f"No plan fits: the response was measured for {self.rounds[0]:g} to {self.rounds[-1]:g} rounds."
            )
        return inside

    def prediction(
        self, *, rounds: int, clip_norm: float, noise: float, share: float, average: str
    ) -> Prediction | None:
        """Return what is expected of one plan; None outside of what was measured."""
        if average not in self.averages:
            return None
        place = self.averages.index(average)
        found = self._look(rounds=rounds, clip_norm=clip_norm, noise=noise, share=share)
        middle, deviation, loss = (float(each[place]) for each in found)
        if not math.isfinite(middle):
            return None
        low, high = max(0.0, middle - _WIDE * deviation), min(1.0, middle + _WIDE * deviation)
        return Prediction(accuracy=middle, low=low, high=high, basis=self.basis, loss=loss)

    @property
    def basis(self) -> str:
        """Which pilots the response rests on, in a few words; "" where it does not say."""
        devices, images = (self.about.get(name) for name in ("devices", "images_per_device"))
        if not all(type(number) is int and number > 0 for number in (devices, images)):
            return ""
        return f"pilots of {devices} devices with {images} images each"

    def to_json(self) -> str:
        """Return the text of a response file."""
        values = {name: getattr(self, name).tolist() for name in (*AXES, *_OF_AVERAGES)}
        head = {"format": FORMAT, "about": dict(self.about), "averages": self.averages}
        return json.dumps({**head, **values}, allow_nan=False) + "\n"


def load_response(path: Path) -> Response:
    """Return the response in a file; DataError where there is none."""
    expected = f"Expected a response at {path} (airfed measure writes one)"
    text = _files.read_text(path, "a response")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise _files.DataError(f"{expected}; it is not JSON.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("about"), dict):
        raise _files.DataError(f"{expected} of format {FORMAT}.")
    try:
        arrays = {name: _numbers(content[name], name) for name in (*AXES, *_OF_AVERAGES)}
        return Response(**arrays, averages=tuple(content["averages"]), about=content["about"])
    except KeyError as error:
        raise _files.DataError(f"{expected}; it has no {error.args[0]}.") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise _files.DataError(f"{expected}; {' '.join(str(error).split()).removesuffix('.')}.") from None


def _numbers(values: object, name: str) -> Floats:
    found = np.asarray(values)
    if found.dtype.kind not in "iuf":
        raise ValueError(f"Expected {name} of a response to be numbers.")
    return found.astype(np.float64)


def _monotone(values: Floats, *, increasing: bool) -> Floats:
    """Values along the last axis, the noise, smoothed so that they rise or fall."""
    from scipy.optimize import isotonic_regression

    return np.apply_along_axis(lambda row: isotonic_regression(row, increasing=increasing).x, -1, values)
