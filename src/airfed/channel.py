"""Channel gains |h_k|: six models, one verb.

`scale` is the root mean square of the gain, so E|h|² = scale² for every fading model.
"""

from __future__ import annotations

import csv
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from airfed import _arrays, _files, _validate
from airfed._files import DataError, shown

_MOST_COLUMNS: Final = 16384  # of a spreadsheet


class ChannelModel(Protocol):
    """Draws the gains of a fleet."""

    def draw(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return one gain per device."""
        ...


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Gains written down: `gains[k]` is device k's."""

    gains: tuple[float, ...]

    def draw(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the gains as given."""
        return _checked_count(_validate.vector(gains=self.gains, minimum=0.0, strict=False), num_devices, "gains")


@dataclass(frozen=True, kw_only=True)
class Rayleigh:
    """|h| of h ~ CN(0, scale²): no line of sight."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        _validate.positive(scale=self.scale)

    def draw(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return independent Rayleigh gains."""
        return self.scale * rng.rayleigh(np.sqrt(0.5), num_devices)


@dataclass(frozen=True, kw_only=True)
class Rician:
    """|h| with a line of sight: `k_factor` is the power of the direct path over that of the scattered ones."""

    scale: float = 1.0
    k_factor: float = 1.0

    def __post_init__(self) -> None:
        _validate.positive(scale=self.scale)
        _validate.non_negative(k_factor=self.k_factor)

    def draw(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return independent Rician gains."""
        direct = np.sqrt(self.k_factor / (self.k_factor + 1))
        spread = np.sqrt(0.5 / (self.k_factor + 1))
        real, imaginary = rng.normal(0.0, spread, (2, num_devices))
        return np.asarray(self.scale * np.hypot(direct + real, imaginary))


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Gains spread evenly between `low` and `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _validate.non_negative(low=self.low)
        _validate.positive(high=self.high)
        if self.low > self.high:
            raise ValueError(f"Expected low={self.low!r} <= high={self.high!r}.")

    def draw(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return independent uniform gains."""
        return rng.uniform(self.low, self.high, num_devices)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Devices uniform in a disc around the receiver: path loss, log-normal shadowing and Rayleigh fading.

    |h| = scale · (r / reference_distance)^(−α/2) · 10^(X/20) · Rayleigh(rms 1), X ~ N(0, shadowing_db²).

    Args:
        radius: of the cell [m].
        path_loss_exponent: α.
        shadowing_db: standard deviation of the shadowing [dB].
        reference_distance: where the mean gain is `scale`; nobody is closer [m].
        scale: root mean square gain at the reference distance.
    """

    radius: float
    path_loss_exponent: float = 3.0
    shadowing_db: float = 0.0
    reference_distance: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        _validate.positive(
            radius=self.radius,
            path_loss_exponent=self.path_loss_exponent,
            reference_distance=self.reference_distance,
            scale=self.scale,
        )
        _validate.non_negative(shadowing_db=self.shadowing_db)
        if self.reference_distance > self.radius:
            raise ValueError(f"Expected reference_distance={self.reference_distance!r} <= radius={self.radius!r}.")

    def draw(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return gains of devices dropped uniformly over the disc's area, outside the reference distance."""
        nearest = (self.reference_distance / self.radius) ** 2
        distance = self.radius * np.sqrt(rng.uniform(nearest, 1.0, num_devices))
        path = (distance / self.reference_distance) ** (-0.5 * self.path_loss_exponent)
        shadow = 10.0 ** (rng.normal(0.0, self.shadowing_db, num_devices) / 20.0)
        return self.scale * path * shadow * rng.rayleigh(np.sqrt(0.5), num_devices)


@dataclass(frozen=True, kw_only=True)
class FromFile:
    """Gains measured elsewhere: a .npy vector, or a .csv with one number a line or a column named in its header.

    Args:
        path: the file.
        column: header of the column to read from a .csv with several columns ("gain" unless told).
    """

    path: Path
    column: str = "gain"

    def draw(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the gains in the file's order."""
        gains = self.read()
        return _checked_count(gains, num_devices, str(self.path))

    def read(self) -> NDArray[np.float64]:
        """Return all gains of the file.

        Raises:
            DataError: the file is missing, of another kind, or has a bad cell (named by its line).
        """
        if self.path.suffix.lower() == ".npy":
            return self._read_npy()
        if self.path.suffix.lower() == ".csv":
            return self._read_csv()
        raise DataError(f"Expected gains in a .csv or .npy file, got {self.path.name}.")

    def _read_npy(self) -> NDArray[np.float64]:
        array = _arrays.load_npy(self.path)
        if array.dtype.kind == "c":
            raise DataError(f"Expected real numbers in {self.path}, got dtype {array.dtype}.")
        try:
            return _validate.vector(gain=array, minimum=0.0, strict=False)
        except ValueError as error:
            raise DataError(f"{self.path}: {error}") from None

    def _read_csv(self) -> NDArray[np.float64]:
        lines = _files.read_text(self.path, "a table of gains").rstrip().split("\n")
        if lines == [""]:
            raise DataError(f"Expected at least one gain in {self.path}, got an empty file.")
        index, width, first = self._header(lines[0])
        if len(lines) == first:
            raise DataError(f"Expected at least one gain in {self.path}, got only a header.")
        gains = np.full(len(lines) - first, np.nan)
        with suppress(ValueError):  # the first cell that is no number stays NaN
            for row in range(len(gains)):
                gains[row] = _number(_cell(lines[row + first], index, width))
        good = np.isfinite(gains) & (gains >= 0)
        if not good.all():
            bad = int(np.argmin(good)) + first
            raise DataError(f"Expected a gain >= 0 in line {bad + 1} of {self.path}, got {shown(lines[bad])!r}.")
        return gains

    def _header(self, line: str) -> tuple[int, int, int]:
        """Return the column to read, the number of columns, and the line where the numbers start."""
        if line.count(",") >= _MOST_COLUMNS:
            raise DataError(f"Expected at most {_MOST_COLUMNS} columns in {self.path}, got {line.count(',') + 1}.")
        names = [cell.strip() for cell in _cells(line)]
        if _is_number(names[0]):
            if len(names) > 1:
                raise DataError(f"Expected a header line in {self.path}: it has {len(names)} columns and no names.")
            return 0, 1, 0
        if names.count(self.column) != 1:
            raise DataError(
                f"Expected one column {self.column!r} in {self.path}; its header has {shown(', '.join(names), 120)!r}."
            )
        return names.index(self.column), len(names), 1


def raise_to_minimum(gains: NDArray[np.float64], minimum: float, *, pin: bool = False) -> NDArray[np.float64]:
    """Return the gains with weaker ones raised to `minimum` (h_min); `pin` also sets the weakest exactly to it.

    >>> raise_to_minimum(np.array([0.05, 0.3, 2.0]), 0.1)
    array([0.1, 0.3, 2. ])
    >>> raise_to_minimum(np.array([0.5, 0.3, 2.0]), 0.1, pin=True)
    array([0.5, 0.1, 2. ])
    """
    _validate.non_negative(minimum=minimum)
    raised = np.maximum(gains, minimum)
    if pin:
        raised[np.argmin(gains)] = minimum
    return raised


def true_channel(
    gain: NDArray[np.float64], phase: NDArray[np.float64], *, nmse: float, rng: np.random.Generator
) -> NDArray[np.complex128]:
    """Return h_k = ĥ_k + e_k, the channel as it is where ĥ_k = gain·e^{j·phase} is what the devices know of it.

    Args:
        gain, phase: of the estimate.
        nmse: E|e|² over the mean of |ĥ|²; 0 for perfect knowledge. e is circularly symmetric Gaussian.
        rng: draws e.
    """
    known = gain * np.exp(1j * phase)
    spread = np.sqrt(0.5 * nmse * np.mean(np.square(gain)))
    real, imaginary = rng.normal(0.0, 1.0, (2, gain.size))
    return np.asarray(known + spread * (real + 1j * imaginary))


def _checked_count(gains: NDArray[np.float64], num_devices: int, source: str) -> NDArray[np.float64]:
    if gains.size != num_devices:
        raise ValueError(f"Expected {num_devices} gains (fleet.num_devices), got {gains.size} from {source}.")
    return gains


def _cell(line: str, index: int, width: int) -> str:
    if width == 1 and '"' not in line:
        return line
    cells = _cells(line)
    return cells[index] if len(cells) == width else ""


def _cells(line: str) -> list[str]:
    """The cells of one line; an empty line has one empty cell."""
    try:
        return next(csv.reader([line]), []) or [""]
    except csv.Error:  # a cell of more than 131,072 characters
        return [line]


def _number(text: str) -> float:
    """The number in a cell; Python reads 1_000 as a thousand, other programs do not."""
    if "_" in text:
        raise ValueError(text)
    return float(text)


def _is_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return False
    return True
