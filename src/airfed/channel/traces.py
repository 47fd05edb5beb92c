"""Measured gains from a file: one per device, or a trace over rounds."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
from pydantic import BeforeValidator

from airfed import _files, _validate, seeds
from airfed import antennas as _antennas
from airfed._files import DataError, shown
from airfed.antennas import Complexes, Floats
from airfed.channel import arrays
from airfed.channel.fading_process import num_samples
from airfed.channel.model import ChannelModel, check_count
from airfed.keys import Key

_MAX_COLUMNS: Final = 16384  # of a spreadsheet


class FromFile(ChannelModel):
    """Measured gains, real, or complex (then the modulus is used).

    A .npy of shape (devices,), or a .csv with one number per line or a named column, has one gain per device. A .npy of
    shape (rounds, devices), or a .csv without header with one line per round and one cell per device, is a trace of
    time-varying gains. With link.antennas = A > 1, a .npy of shape (devices, A) or (rounds, devices, A) has channel
    vectors; one gain per device is then the modulus at every antenna.
    """

    unsupported: ClassVar = dict.fromkeys(
        ("coherence_rounds", "correlation", "common_shadowing_db", "shadowing_coherence_rounds"),
        "the file determines how gains vary",
    )
    model: Literal["file"] = "file"
    path: Annotated[
        str,
        BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value),
        Key(".csv or .npy file, relative to the folder of the scenario", file=True),
    ]
    column: Annotated[str, Key("header of the column to read from a .csv with several columns")] = "gain"

    @property
    def num_gains(self) -> int:
        """Number of gains in each round."""
        gains = self.read()
        return int(gains.shape[-2 if np.iscomplexobj(gains) else -1])

    @property
    def time_varying(self) -> bool:
        """Whether the file is a trace."""
        gains = self.read()
        return gains.ndim == (3 if np.iscomplexobj(gains) else 2)

    def trace(self, *, rounds: int, num_devices: int, seed: int) -> Floats | Complexes:
        """Return all rounds of a trace, whatever `rounds` is; otherwise one gain or vector per device."""
        gains = check_count(self.read(), num_devices, self.path)
        if np.iscomplexobj(gains):
            return self.apply_minimum_to_vectors(gains)
        if self._antennas > 1:  # vectors with these moduli
            return super().trace(rounds=rounds, num_devices=num_devices, seed=seed)
        return self.apply_minimum(gains)

    def samples(self, *, rounds: int, num_devices: int, seed: int) -> Callable[[Any], Floats | Complexes] | None:
        """Return a conditional sampler that draws rounds of the trace up to the current one, all equally likely."""
        if not self.time_varying:
            return None
        gains = self.trace(rounds=rounds, num_devices=num_devices, seed=seed)

        def resampled(seen: Floats | Complexes) -> Floats | Complexes:
            done, total = len(seen), len(gains)
            rng = seeds.stream(seed, "samples", done)
            return gains[rng.integers(0, max(done, 1), (num_samples(total, gains[0].size), total - done))]

        return resampled

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> Floats:
        """Return the gains in the order of the file, ‖h_k‖/√A of vectors, in the first round of a trace."""
        gains = check_count(self.read(), num_devices, self.path)
        gains = arrays.rms(gains) if np.iscomplexobj(gains) else gains
        return gains[0] if gains.ndim == 2 else gains

    def read(self) -> Floats | Complexes:
        """Return all gains of the file, (N,) or (rounds, N), or vectors, (N, A) or (rounds, N, A).

        Raises:
            DataError: the file has an invalid cell; the message names its line.
        """
        path, antennas = Path(self.path), self._antennas
        if path.suffix.lower() not in (".npy", ".csv"):
            raise DataError(f"channel.path must name a .csv or .npy file, got {path.name}.")
        gains = _read_npy(path, antennas) if path.suffix.lower() == ".npy" else _read_csv(path, self.column)
        if path.suffix.lower() == ".csv" and antennas > 1 and gains.ndim == 2:
            raise DataError(
                f"{path} is a trace of one antenna. With link.antennas={antennas} a trace must be a .npy of shape "
                f"(rounds, devices, {antennas})."
            )
        if np.iscomplexobj(gains) and self.angle_spread is not None:
            raise DataError(
                f"channel.angle_spread must not be set with {self.path}: the file has the gain at every antenna."
            )
        return gains


def _read_npy(path: Path, antennas: int) -> Floats | Complexes:
    array = _files.load_npy(path)
    if antennas > 1 and array.ndim != 1:
        if array.ndim not in (2, 3) or array.shape[-1] != antennas:
            raise DataError(
                f"{path} must have shape (devices, {antennas}) or (rounds, devices, {antennas}) with "
                f"link.antennas={antennas}, got {array.shape}."
            )
        check: Callable[[], Floats | Complexes] = partial(_antennas.checked, "gain", array, (2, 3))
    else:
        if array.ndim == 3 and array.shape[-1] == 1:  # vectors of one antenna
            array = array[..., 0]
        if array.ndim not in (1, 2):
            hint = f" (set link.antennas = {array.shape[-1]} to read it)" if array.ndim == 3 else ""
            raise DataError(f"{path} must have shape (devices,) or (rounds, devices), got {array.shape}{hint}.")
        if array.dtype.kind == "c":
            with np.errstate(over="ignore", invalid="ignore"):  # checked below
                array = np.abs(array.astype(np.complex128))
        check = partial(_validate.vector, gain=array, minimum=0.0, strict=False, table=True)
    try:
        return check()
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _read_csv(path: Path, column: str) -> Floats:
    lines = _files.read_text(path, "a table of gains").rstrip().split("\n")
    if lines == [""]:
        raise DataError(f"{path} must have at least one gain, got an empty file.")
    if lines[0].count(",") >= _MAX_COLUMNS:
        raise DataError(f"{path} must have at most {_MAX_COLUMNS} columns, got {lines[0].count(',') + 1}.")
    names = [cell.strip() for cell in _cells(lines[0])]
    header = math.isnan(_number(names[0], trace=True))
    trace = len(names) > 1 and not header
    if header and names.count(column) != 1:
        raise DataError(
            f"{path} must have one column {column!r}, got the header row {shown(', '.join(names), 80)!r}. Set "
            "channel.column to the column with the gains; in a trace (a line per round, a cell per device), delete the "
            "header row."
        )
    if len(lines) == header:
        raise DataError(f"{path} must have at least one gain, got only a header.")
    wanted = range(len(names)) if trace else [names.index(column) if header else 0]
    gains = np.empty((len(lines) - header, len(wanted)))
    for row, line in enumerate(lines[header:]):
        cells = _cells(line)
        complete = len(cells) == len(names)
        values = [_number(cells[index], trace=trace) for index in wanted] if complete else [math.nan]
        if all(0 <= value < math.inf for value in values):
            gains[row] = values
            continue
        where = f"{path}, line {row + header + 1}"
        if not trace:
            raise DataError(f"{where}: the gain must be non-negative, got {shown(line)!r}.")
        if not complete:
            raise DataError(f"{where} must have {len(names)} cells, as line 1, got {len(cells)}.")
        bad = next(index for index, value in enumerate(values) if not 0 <= value < math.inf)
        raise DataError(
            f"{where}, cell {bad + 1}: the gain must be non-negative or complex, got {shown(cells[bad])!r}."
        )
    return gains if trace else gains[:, 0].copy()


def _cells(line: str) -> list[str]:
    """Return the cells of one line; an empty line has one empty cell."""
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line]), []) or [""]
    except csv.Error:  # a cell of more than 131,072 characters
        return [line]


def _number(text: str, *, trace: bool) -> float:
    """Return the number in a cell, NaN if there is none; in a trace also the modulus of 1+2j or (1+2j)."""
    try:
        if "_" in text:  # Python reads 1_000 as a thousand, other software does not
            return math.nan
        if trace and "j" in text.lower() and any(map(str.isdigit, text)):  # "j" alone may be a name
            return abs(complex(text))
        return float(text)
    except (ValueError, OverflowError):
        return math.nan
