"""What training gives, measured once: accuracy over the rounds, the clipping norm and the noise.

Everything that the radio does to learning goes through one number, the noise per coordinate of the recovered mean,
s = ϖσ/(|K|θ). A response holds the test accuracy of pilots over (I, ϖ, s/ϖ), and over |K|/N where the data are not
alike on all devices. It knows nothing of power or privacy: a plan does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _files
from airfed.problem import InfeasibleError

Floats = NDArray[np.float64]
FORMAT: Final = 1
AXES: Final = ("share", "rounds", "clip_norm", "noise")
_WIDE: Final = 1.6448536269514722  # standard deviations to each side that hold 90%
_ROUNDING: Final = 1e-9  # by which a value may lie outside an axis


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The test accuracy that a response expects of a plan.

    Args:
        accuracy: in 0..1.
        low, high: 90% of single trainings lie between them, as far as the pilots tell.
        basis: which pilots, in a few words; the level is theirs, and more data give more.
    """

    accuracy: float
    low: float
    high: float
    basis: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Response:
    """Accuracies of pilots on a grid.

    Args:
        share: |K|/N, ascending; one value where it makes no difference.
        rounds: I, ascending.
        clip_norm: ϖ, ascending.
        noise: s/ϖ = σ/(|K|θ), ascending.
        accuracy: (share, rounds, clip_norm, noise), mean over the seeds, in 0..1.
        spread: standard deviation of a single training, same shape.
        about: what the pilots were: model, data and their digest, T, τ, partition, devices, seeds, versions.

    Raises:
        ValueError: an axis is not ascending and positive, or a shape or a value does not fit.
    """

    share: Floats
    rounds: Floats
    clip_norm: Floats
    noise: Floats
    accuracy: Floats
    spread: Floats
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in AXES:
            axis = np.asarray(getattr(self, name), dtype=np.float64)
            if axis.ndim != 1 or not axis.size or not np.all(np.isfinite(axis)) or axis[0] <= 0:
                raise ValueError(f"Expected {name} of a response to be a list of numbers > 0.")
            if np.any(np.diff(axis) <= 0):
                raise ValueError(f"Expected {name} of a response to be ascending.")
            object.__setattr__(self, name, axis)
        shape = tuple(getattr(self, name).size for name in AXES)
        for name in ("accuracy", "spread"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.shape != shape or not np.all((values >= 0) & (values <= 1)):
                raise ValueError(f"Expected {name} of a response to be numbers from 0 to 1 of shape {shape}.")
            object.__setattr__(self, name, values)

    @cached_property
    def _surface(self) -> Any:
        """(mean, variance) over the logarithms of the axes: more noise is never better, neighbours share a variance."""
        from scipy.interpolate import RegularGridInterpolator  # here: planning by the bound starts sooner without them
        from scipy.ndimage import uniform_filter
        from scipy.optimize import isotonic_regression

        mean = np.apply_along_axis(lambda row: isotonic_regression(row, increasing=False).x, 3, self.accuracy)
        variance = uniform_filter(np.square(self.spread), size=(1, 3, 3, 3), mode="nearest")
        return RegularGridInterpolator(
            [np.log(_padded(getattr(self, name))) for name in AXES],
            _repeated(np.stack([mean, variance], axis=-1)),
            bounds_error=False,
            fill_value=np.nan,
        )

    def predict(
        self, *, rounds: ArrayLike, clip_norm: ArrayLike, noise: ArrayLike, share: ArrayLike = 1.0
    ) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the accuracy, interpolated; NaN outside of what was measured.

        Less noise than the least measured counts as the least. Where only one share was measured, every share counts
        as that one.

        Args:
            rounds, clip_norm, noise, share: I, ϖ, σ/(|K|θ) and |K|/N, broadcast against each other.
        """
        given = {"share": share, "rounds": rounds, "clip_norm": clip_norm, "noise": noise}
        arrays = {name: np.asarray(value, dtype=np.float64) for name, value in given.items()}
        arrays["noise"] = np.maximum(arrays["noise"], self.noise[0])
        if self.share.size == 1:
            arrays["share"] = np.full_like(arrays["share"], self.share[0])
        with np.errstate(divide="ignore"):
            places = [np.log(_snapped(arrays[name], getattr(self, name))) for name in AXES]
        grid = np.stack(np.broadcast_arrays(*places), axis=-1)
        found = self._surface(grid.reshape(-1, len(AXES))).reshape(*grid.shape[:-1], 2)
        return found[..., 0], np.sqrt(np.maximum(found[..., 1], 0.0))

    def best(self, *, rounds: ArrayLike, noise: ArrayLike, share: ArrayLike) -> tuple[Floats, Floats]:
        """Return the accuracy with the best ϖ (−inf outside of what was measured), and that ϖ.

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
        mean = np.where(np.isnan(mean), -np.inf, mean)
        return mean.max(axis=-1), self.clip_norm[mean.argmax(axis=-1)]

    def at(self, clip_norm: float) -> Response:
        """Return the response at one ϖ.

        Raises:
            InfeasibleError: it was not measured there.
        """
        axes = np.meshgrid(self.share, self.rounds, [clip_norm], self.noise, indexing="ij")
        mean, deviation = self.predict(share=axes[0], rounds=axes[1], clip_norm=axes[2], noise=axes[3])
        if np.any(np.isnan(mean)):
            raise InfeasibleError(
                f"No plan fits: the response was measured for clipping norms of {self.clip_norm[0]:g} to "
                f"{self.clip_norm[-1]:g} (clip_norm is {clip_norm:g})."
            )
        return replace(self, clip_norm=np.array([clip_norm]), accuracy=np.clip(mean, 0.0, 1.0), spread=deviation)

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

    def too_noisy(self, noise: float) -> str:
        """Return the sentence for a noise beyond what was measured."""
        return (
            f"the limits leave a noise of {noise:.3g} of the clipping norm in each coordinate, and the response was "
            f"measured up to {self.noise[-1]:.3g}."
        )

    def prediction(self, *, rounds: int, clip_norm: float, noise: float, share: float) -> Prediction | None:
        """Return what is expected of one plan; None outside of what was measured."""
        mean, deviation = self.predict(rounds=rounds, clip_norm=clip_norm, noise=noise, share=share)
        if not math.isfinite(float(mean)):
            return None
        middle, half = float(mean), _WIDE * float(deviation)
        low, high = max(0.0, middle - half), min(1.0, middle + half)
        return Prediction(accuracy=middle, low=low, high=high, basis=self.basis)

    @property
    def basis(self) -> str:
        """Which pilots the response rests on, in a few words; "" where it does not say."""
        devices, images = (self.about.get(name) for name in ("devices", "images_per_device"))
        if not isinstance(devices, int) or not isinstance(images, int):
            return ""
        return f"pilots of {devices} devices with {images} images each"

    def to_json(self) -> str:
        """Return the text of a response file."""
        values = {name: getattr(self, name).tolist() for name in (*AXES, "accuracy", "spread")}
        return json.dumps({"format": FORMAT, "about": dict(self.about), **values}, allow_nan=False, indent=1) + "\n"


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
        arrays = {name: np.asarray(content[name], dtype=np.float64) for name in (*AXES, "accuracy", "spread")}
        return Response(**arrays, about=content["about"])
    except KeyError as error:
        raise _files.DataError(f"{expected}; it has no {error.args[0]}.") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise _files.DataError(f"{expected}; {' '.join(str(error).split()).removesuffix('.')}.") from None


def _padded(axis: Floats) -> Floats:
    """An axis of at least two places, as the interpolation needs them; the second of one is a hair away."""
    return axis if axis.size > 1 else np.array([axis[0], axis[0] * (1 + _ROUNDING)])


def _repeated(values: Floats) -> Floats:
    for axis in range(values.ndim - 1):
        if values.shape[axis] == 1:
            values = np.repeat(values, 2, axis=axis)
    return values


def _snapped(values: Floats, axis: Floats) -> Floats:
    """Values that lie outside an axis by rounding only, put onto its end."""
    values = np.where(np.abs(values - axis[0]) <= _ROUNDING * axis[0], axis[0], values)
    return np.where(np.abs(values - axis[-1]) <= _ROUNDING * axis[-1], axis[-1], values)
