"""Gains that were measured elsewhere, from a file: one per device, or a trace of rounds."""

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
from airfed.channel.changing import num_draws
from airfed.channel.model import ChannelModel, checked_count
from airfed.keys import Key

_MOST_COLUMNS: Final = 16384  # of a spreadsheet


class FromFile(ChannelModel):
    """Gains measured elsewhere, real or complex (then their moduli count).

    A .npy vector, a .csv with one number a line, or a column named in its header, has one gain per device. A .npy table
    (rounds, devices), or a .csv with a line per round, several cells in each and no header, is a trace: gains change.
    With link.antennas = A > 1 a .npy holds vectors, (devices, A) or (rounds, devices, A); one gain per device is then
    the modulus at every antenna.
    """

    refuses: ClassVar = dict.fromkeys(
        ("coherence", "correlation", "common_shadowing_db", "shadowing_coherence"),
        "the file itself says how gains change",
    )
    model: Literal["file"] = "file"
    path: Annotated[
        str,
        BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value),
        Key("a .csv or .npy file, from the scenario's folder", file=True),
    ]
    column: Annotated[str, Key("header of the column to read from a .csv with several")] = "gain"

    @property
    def num_gains(self) -> int:
        """How many gains the file has in each round."""
        found = self.read()
        return int(found.shape[-2 if np.iscomplexobj(found) else -1])

    @property
    def changes(self) -> bool:
        """Whether the file is a trace."""
        found = self.read()
        return found.ndim == (3 if np.iscomplexobj(found) else 2)

    def trace(self, *, rounds: int, num_devices: int, seed: int) -> Floats | Complexes:
        """Return all rounds of a trace, however many are asked for; of another file one gain or vector per device."""
        found = checked_count(self.read(), num_devices, self.path)
        if np.iscomplexobj(found):
            return self.raised_vectors(found)
        if self._antennas > 1:  # one gain per device, and as a model makes vectors of gains
            return super().trace(rounds=rounds, num_devices=num_devices, seed=seed)
        return self.raised(found)

    def law(self, *, rounds: int, num_devices: int, seed: int) -> Callable[[Any], Floats | Complexes] | None:
        """Return a conditional sampler of a trace: whole rounds up to the present one, each as likely as any other."""
        if not self.changes:
            return None
        gains = self.trace(rounds=rounds, num_devices=num_devices, seed=seed)

        def resampled(seen: Floats | Complexes) -> Floats | Complexes:
            done, total = len(seen), len(gains)
            rng = seeds.stream(seed, "law", done)
            return gains[rng.integers(0, max(done, 1), (num_draws(total, gains[0].size), total - done))]

        return resampled

    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> Floats:
        """Return the gains in the file's order, of vectors ‖h_k‖/√A; of a trace those of the first round."""
        gains = checked_count(self.read(), num_devices, self.path)
        gains = arrays.rms(gains) if np.iscomplexobj(gains) else gains
        return gains[0] if gains.ndim == 2 else gains

    def read(self) -> Floats | Complexes:
        """Return all gains of the file, (N,) or (rounds, N), or the vectors of several antennas, one axis more.

        A DataError names the line of a bad cell.
        """
        path, antennas = Path(self.path), self._antennas
        if path.suffix.lower() not in (".npy", ".csv"):
            raise DataError(f"Expected gains in a .csv or .npy file, got {path.name}.")
        found = _read_npy(path, antennas) if path.suffix.lower() == ".npy" else _read_csv(path, self.column)
        if path.suffix.lower() == ".csv" and antennas > 1 and found.ndim == 2:
            raise DataError(
                f"Expected a .npy of shape (rounds, devices, {antennas}) with link.antennas={antennas}; a trace in a "
                f".csv, as {path}, is of one antenna."
            )
        if np.iscomplexobj(found) and self.angle_spread is not None:
            raise DataError(
                f"Expected no channel.angle_spread with {self.path}: the file itself has every antenna's gain."
            )
        return found


def _read_npy(path: Path, antennas: int) -> Floats | Complexes:
    array = _files.load_npy(path)
    if antennas > 1 and array.ndim != 1:
        if array.ndim not in (2, 3) or array.shape[-1] != antennas:
            raise DataError(
                f"Expected gains (devices, {antennas}) or (rounds, devices, {antennas}) in {path} with "
                f"link.antennas={antennas}, got shape {array.shape}."
            )
        check: Callable[[], Floats | Complexes] = partial(_antennas.checked, "gain", array, (2, 3))
    else:
        if array.ndim == 3 and array.shape[-1] == 1:  # vectors of one antenna
            array = array[..., 0]
        if array.ndim not in (1, 2):
            hint = f" (link.antennas = {array.shape[-1]} would read it)" if array.ndim == 3 else ""
            raise DataError(f"Expected gains (devices) or (rounds, devices) in {path}, got shape {array.shape}{hint}.")
        if array.dtype.kind == "c":
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is named below
                array = np.abs(array.astype(np.complex128))
        check = partial(_validate.vector, gain=array, minimum=0.0, strict=False, table=True)
    try:
        return check()
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _read_csv(path: Path, column: str) -> Floats:
    lines = _files.read_text(path, "a table of gains").rstrip().split("\n")
    if lines == [""]:
        raise DataError(f"Expected at least one gain in {path}, got an empty file.")
    if lines[0].count(",") >= _MOST_COLUMNS:
        raise DataError(f"Expected at most {_MOST_COLUMNS} columns in {path}, got {lines[0].count(',') + 1}.")
    names = [cell.strip() for cell in _cells(lines[0])]
    header = math.isnan(_number(names[0], trace=True))
    trace = len(names) > 1 and not header
    if header and names.count(column) != 1:
        raise DataError(
            f"Expected one column {column!r} in {path}; its first line is a header row, "
            f"{shown(', '.join(names), 80)!r}. Set channel.column to the column with the gains, or, in a trace (a line "
            "per round, a cell per device), delete the header row."
        )
    if len(lines) == header:
        raise DataError(f"Expected at least one gain in {path}, got only a header.")
    wanted = range(len(names)) if trace else [names.index(column) if header else 0]
    gains = np.empty((len(lines) - header, len(wanted)))
    for row, line in enumerate(lines[header:]):
        cells = _cells(line)
        whole = len(cells) == len(names)
        values = [_number(cells[index], trace=trace) for index in wanted] if whole else [math.nan]
        if all(0 <= value < math.inf for value in values):
            gains[row] = values
            continue
        place = f"line {row + header + 1}"
        if not trace:
            raise DataError(f"Expected a gain >= 0 in {place} of {path}, got {shown(line)!r}.")
        if not whole:
            raise DataError(f"Expected {len(names)} cells in {place} of {path}, as in line 1; got {len(cells)}.")
        bad = next(index for index, value in enumerate(values) if not 0 <= value < math.inf)
        raise DataError(
            f"Expected a gain >= 0, or a complex one, in {place}, cell {bad + 1}, of {path}; got {shown(cells[bad])!r}."
        )
    return gains if trace else gains[:, 0].copy()


def _cells(line: str) -> list[str]:
    """The cells of one line; an empty line has one empty cell."""
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line]), []) or [""]
    except csv.Error:  # a cell of more than 131,072 characters
        return [line]


def _number(text: str, *, trace: bool) -> float:
    """The number in a cell, in a trace also the modulus of a complex one, as 1+2j or (1+2j); NaN if there is none."""
    try:
        if "_" in text:  # Python reads 1_000 as a thousand, other programs do not
            return math.nan
        if trace and "j" in text.lower() and any(map(str.isdigit, text)):  # "j" alone may be a name
            return abs(complex(text))
        return float(text)
    except (ValueError, OverflowError):
        return math.nan
