"""What training gives, measured once: accuracy over the rounds, the clipping norm and the noise.

Everything that the radio does to learning goes through one number, the noise per coordinate of the recovered mean,
s = ϖσ/(|K|θ). A response holds what pilots reached over (I, ϖ, s/ϖ), and over |K|/N where the data are not alike on all
devices: accuracy and loss of each average of the models that the receiver may take, and the power that was really
transmitted. It knows nothing of budgets: a plan does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _files
from airfed.course import CONSTANT, Course
from airfed.planning._surface import AXES, ROUNDING, Floats, Surface
from airfed.planning.decision import Average
from airfed.problem import InfeasibleError

Integers = NDArray[np.intp]
FORMAT: Final = 2
_LARGEST: Final = 1e100  # of any value, so that sums and products of them are finite
_OF_AVERAGES: Final = {"accuracy": 1.0, "spread": 1.0, "loss": _LARGEST, "loss_spread": _LARGEST}  # at most
_AXIS_LIMITS: Final = {"share": (1 / _LARGEST, 1.0), "rounds": (1.0, _LARGEST)}  # others: up to _LARGEST
_ARRAYS: Final = (*_OF_AVERAGES, "power", "gain", "reach")
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
        clip_norm: ϖ, ascending; of the first round where it falls.
        noise: s/ϖ = σ/(|K|θ), ascending; with the root of the mean θ² where θ grows.
        averages: what the receiver did with the models, as in `Plan.average`.
        accuracy: (averages, share, rounds, clip_norm, noise), mean over the seeds, in 0..1.
        spread: standard deviation of the accuracy of a single training, same shape.
        loss, loss_spread: the same of the loss on the test data.
        power: (share, rounds, clip_norm, noise), power that was transmitted, as a share of what ‖g_k‖ = ϖ would take.
        courses: how θ and ϖ may move over the rounds.
        gain: (courses, averages, noise), by how much each course is more accurate than `accuracy`, in which neither
            moves, at the best place of each noise.
        reach: (courses, noise), what each course reached there with its best average. No other place is expected to
            gain beyond it: there the gain was not measured.
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
    power: Floats
    courses: tuple[Course, ...]
    gain: Floats
    reach: Floats
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
        averages, courses = tuple(self.averages), tuple(self.courses)
        if not averages or len(set(averages)) < len(averages) or not set(averages) <= set(get_args(Average)):
            raise ValueError(f"Expected averages of a response to be different ones of {', '.join(get_args(Average))}.")
        if not courses or len(set(courses)) < len(courses):
            raise ValueError("Expected courses of a response to be different ones.")
        object.__setattr__(self, "averages", averages)
        object.__setattr__(self, "courses", courses)
        grid = tuple(getattr(self, name).size for name in AXES)
        for name, most in _OF_AVERAGES.items():
            self._set_values(name, (len(averages), *grid), 0.0, most)
        self._set_values("power", grid, np.finfo(np.float64).tiny, 1.0)
        self._set_values("gain", (len(courses), len(averages), grid[-1]), -1.0, 1.0)
        self._set_values("reach", (len(courses), grid[-1]), 0.0, 1.0)

    def _set_values(self, name: str, shape: tuple[int, ...], low: float, high: float) -> None:
        values = np.asarray(getattr(self, name), dtype=np.float64)
        if values.shape != shape or not np.all((values >= low) & (values <= high)):
            raise ValueError(f"Expected {name} of a response to be numbers from {low:g} to {high:g} of shape {shape}.")
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
        course: Course = CONSTANT,
    ) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the accuracy, each (..., averages); NaN outside of what was measured.

        Args:
            rounds, clip_norm, noise, share: I, ϖ, σ/(|K|θ) and |K|/N, broadcast against each other.
            course: how θ and ϖ move; one of `courses`.
        """
        found = self._surface.look(rounds=rounds, clip_norm=clip_norm, noise=noise, share=share)
        return found.accuracy[..., self.courses.index(course), :], found.deviation

    def power_share(self, *, rounds: ArrayLike, clip_norm: ArrayLike, noise: ArrayLike, share: ArrayLike) -> Floats:
        """Return the share of the worst-case power that is transmitted; NaN outside of what was measured.

        Args:
            rounds, clip_norm, noise, share: as in `predict`.
        """
        return self._surface.look(rounds=rounds, clip_norm=clip_norm, noise=noise, share=share).power

    def best(self, *, rounds: ArrayLike, noise: ArrayLike, share: ArrayLike, course: Course = CONSTANT) -> Best:
        """Return the accuracy with the best ϖ and the best average.

        Between two measured ϖ the accuracy is a straight line, so that one of the measured ones is always best.

        Args:
            rounds, noise, share: as in `predict`.
            course: how θ and ϖ move.
        """
        mean, _ = self.predict(
            clip_norm=self.clip_norm,
            rounds=np.asarray(rounds)[..., None],
            noise=np.asarray(noise)[..., None],
            share=np.asarray(share)[..., None],
            course=course,
        )
        flat = np.where(np.isnan(mean), -np.inf, mean).reshape(*mean.shape[:-2], -1)
        place = flat.argmax(axis=-1)
        norm, average = np.divmod(place, len(self.averages))
        return Best(accuracy=flat.max(axis=-1), clip_norm=self.clip_norm[norm], average=average)

    def only(
        self, *, average: str | None = None, growth: float | None = None, clip_decay: float | None = None
    ) -> Response:
        """Return the response of one average, and of those courses that have the given values.

        Raises:
            InfeasibleError: there is none.
        """
        wanted = {"growth": growth, "clip_decay": clip_decay}
        courses = [
            place
            for place, course in enumerate(self.courses)
            if all(value is None or getattr(course, name) == value for name, value in wanted.items())
        ]
        averages = [place for place, name in enumerate(self.averages) if average is None or name == average]
        if not courses or not averages:
            known = "; ".join(f"growth {each.growth:g}, clip_decay {each.clip_decay:g}" for each in self.courses)
            raise InfeasibleError(
                f"No plan fits: the response was measured with the averages {', '.join(self.averages)} and with "
                f"{known}."
            )
        return replace(
            self,
            averages=tuple(self.averages[place] for place in averages),
            courses=tuple(self.courses[place] for place in courses),
            gain=self.gain[np.ix_(courses, averages)],
            reach=self.reach[courses],
            **{name: getattr(self, name)[averages] for name in _OF_AVERAGES},
        )

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
            for name in (*_OF_AVERAGES, "power")
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
        self, *, rounds: int, clip_norm: float, noise: float, share: float, average: str, course: Course = CONSTANT
    ) -> Prediction | None:
        """Return what is expected of one plan; None outside of what was measured."""
        if average not in self.averages or course not in self.courses:
            return None
        place = self.averages.index(average)
        found = self._surface.look(rounds=rounds, clip_norm=clip_norm, noise=noise, share=share)
        middle = float(found.accuracy[self.courses.index(course), place])
        if not math.isfinite(middle):
            return None
        half = _WIDE * float(found.deviation[place])
        return Prediction(
            accuracy=middle,
            low=max(0.0, middle - half),
            high=min(1.0, middle + half),
            basis=self.basis,
            loss=float(found.loss[place]) if course == CONSTANT else None,
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
        values = {name: getattr(self, name).tolist() for name in (*AXES, *_ARRAYS)}
        courses = [[course.growth, course.clip_decay] for course in self.courses]
        head = {"format": FORMAT, "about": dict(self.about), "averages": self.averages, "courses": courses}
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
        arrays = {name: _numbers(content[name], name) for name in (*AXES, *_ARRAYS)}
        courses = tuple(Course(growth=growth, clip_decay=decay) for growth, decay in content["courses"])
        return Response(**arrays, averages=tuple(content["averages"]), courses=courses, about=content["about"])
    except KeyError as error:
        raise _files.DataError(f"{expected}; it has no {error.args[0]}.") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise _files.DataError(f"{expected}; {' '.join(str(error).split()).removesuffix('.')}.") from None


def _numbers(values: object, name: str) -> Floats:
    found = np.asarray(values)
    if found.dtype.kind not in "iuf":
        raise ValueError(f"Expected {name} of a response to be numbers.")
    return found.astype(np.float64)
