"""What training gives, measured once: accuracy over the rounds, the clipping norm and the noise.

Everything that the radio does to learning goes through one number, the noise per coordinate of the recovered mean,
s = ϖσ/(|K|θ). A response holds what pilots reached over (I, ϖ, s/ϖ), and over |K|/N where the data are not alike on all
devices: accuracy and loss of each average of the models that the receiver may take. It knows nothing of budgets: a plan
does.
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
from airfed.planning._surface import AXES, ROUNDING, Floats, Surface
from airfed.problem import InfeasibleError

Average = Literal["none", "tail", "exponential"]
"""Averages of the models that the receiver may take; `airfed.training.state` says what they are."""
Integers = NDArray[np.intp]
FORMAT: Final = 3
_LARGEST: Final = 1e100  # of any value, so that sums and products of them are finite
_OF_AVERAGES: Final = {"accuracy": 1.0, "spread": 1.0, "loss": _LARGEST, "loss_spread": _LARGEST}  # at most
_AXIS_LIMITS: Final = {"share": (1 / _LARGEST, 1.0), "rounds": (1.0, _LARGEST)}  # others: up to _LARGEST
_WIDE: Final = 1.6448536269514722  # standard deviations to each side that hold 90%


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The test accuracy that a response expects of a plan.

    Args:
        accuracy: in 0..1.
        low, high: 90% of single trainings lie between them, as far as the pilots tell.
        basis: which pilots, in a few words; the level is theirs, and more data give more.
        loss: on the test data; None where it was not written down.
    """

    accuracy: float
    low: float
    high: float
    basis: str = ""
    loss: float | None = None


class Best(NamedTuple):
    """The best that a response knows at some places: arrays of one shape.

    Args:
        accuracy: −inf outside of what was measured.
        clip_norm: ϖ.
        average: index into `Response.averages`.
    """

    accuracy: Floats
    clip_norm: Floats
    average: Integers


@dataclass(frozen=True, kw_only=True, eq=False)
class Response:
    """What pilots reached, on a grid.

    Args:
        share: |K|/N, ascending; one value where it makes no difference.
        rounds: I, ascending.
        clip_norm: ϖ, ascending.
        noise: s/ϖ = σ/(|K|θ), ascending.
        averages: what the receiver did with the models, as in `Plan.average`.
        accuracy: (averages, share, rounds, clip_norm, noise), mean over the seeds, in 0..1.
        spread: standard deviation of the accuracy of a single training, same shape.
        loss, loss_spread: the same of the loss on the test data.
        about: what the pilots were: model, data and their digest, T, τ, partition, devices, seeds, versions.

    Raises:
        ValueError: an axis is not ascending and positive, or a shape or a value does not fit.
    """

    share: Floats
    rounds: Floats
    clip_norm: Floats
    noise: Floats
    averages: tuple[Average, ...]
    accuracy: Floats
    spread: Floats
    loss: Floats
    loss_spread: Floats
    about: Mapping[str, Any] = field(default_factory=dict)

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
    def _surface(self) -> Surface:
        return Surface(self)

    def predict(
        self,
        *,
        rounds: ArrayLike,
        clip_norm: ArrayLike,
        noise: ArrayLike,
        share: ArrayLike = 1.0,
    ) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the accuracy, each (..., averages); NaN outside of what was measured.

        Args:
            rounds, clip_norm, noise, share: I, ϖ, σ/(|K|θ) and |K|/N, broadcast against each other.
        """
        found = self._surface.look(rounds=rounds, clip_norm=clip_norm, noise=noise, share=share)
        return found.accuracy, found.deviation

    def best(self, *, rounds: ArrayLike, noise: ArrayLike, share: ArrayLike) -> Best:
        """Return the accuracy with the best ϖ and the best average.

        Between two measured ϖ the accuracy is a straight line, so that one of the measured ones is always best.

        Args:
            rounds, noise, share: as in `predict`.
        """
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

    def only(self, average: Average) -> Response:
        """Return the response of one average.

        Raises:
            InfeasibleError: it was not measured.
        """
        if average not in self.averages:
            raise InfeasibleError(
                f"No plan fits: the response was measured with the averages {', '.join(self.averages)} (average is "
                f"{average})."
            )
        place = [self.averages.index(average)]
        return replace(self, averages=(average,), **{name: getattr(self, name)[place] for name in _OF_AVERAGES})

    def at(self, clip_norm: float) -> Response:
        """Return the response at one ϖ.

        Raises:
            InfeasibleError: it was not measured there.
        """
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
        """Return those numbers of rounds that were measured, or lie between two that were.

        Raises:
            InfeasibleError: there is none.
        """
        inside: NDArray[np.int64] = rounds[(rounds >= self.rounds[0]) & (rounds <= self.rounds[-1])]
        if not inside.size:
            raise InfeasibleError(
                f"No plan fits: the response was measured for {self.rounds[0]:g} to {self.rounds[-1]:g} rounds."
            )
        return inside

    def outside(self, noise: Floats, share: Floats) -> str:
        """Return the sentence for plans of which none lies within what was measured."""
        least = float(np.nanmin(noise, initial=math.inf))
        if self.share.size > 1 and least <= self.noise[-1]:
            return (
                f"the devices would be {np.max(share):.3g} of the fleet at most, and the response was measured for "
                f"{self.share[0]:.3g} to {self.share[-1]:.3g} of it."
            )
        return (
            f"the limits leave a noise of {least:.3g} of the clipping norm in each coordinate, and the response was "
            f"measured up to {self.noise[-1]:.3g}."
        )

    def prediction(
        self, *, rounds: int, clip_norm: float, noise: float, share: float, average: str
    ) -> Prediction | None:
        """Return what is expected of one plan; None outside of what was measured."""
        if average not in self.averages:
            return None
        place = self.averages.index(average)
        found = self._surface.look(rounds=rounds, clip_norm=clip_norm, noise=noise, share=share)
        middle = float(found.accuracy[place])
        if not math.isfinite(middle):
            return None
        half = _WIDE * float(found.deviation[place])
        return Prediction(
            accuracy=middle,
            low=max(0.0, middle - half),
            high=min(1.0, middle + half),
            basis=self.basis,
            loss=float(found.loss[place]),
        )

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
    """Return the response in a file.

    Raises:
        DataError: there is no such file, or it is no response.
    """
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
