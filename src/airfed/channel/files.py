"""Files of gains."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed import _files, _validate
from airfed import antennas as _antennas
from airfed._files import DataError, shown
from airfed.antennas import Complexes

_MOST_COLUMNS: Final = 16384  # of a spreadsheet


def read_gains(path: Path, column: str, *, antennas: int = 1) -> NDArray[np.float64] | Complexes:
    """Return the gains of a file: one per device, (N,), or those of a trace, (rounds, N).

    For several antennas these are vectors, complex, (N, A) or (rounds, N, A), of a .npy alone; or real, one modulus per
    device, (N,).

    A .npy has real or complex numbers, of which the moduli count. A .csv has one number a line or a column named in its
    header; with several cells a line and no header it is a trace with a line per round, cells real or complex (1+2j).

    Raises:
        DataError: the file is missing, of another kind, or has a bad cell (named by its line).
    """
    if path.suffix.lower() == ".npy":
        return _read_npy(path, antennas)
    if path.suffix.lower() == ".csv":
        gains = _read_csv(path, column)
        if antennas > 1 and gains.ndim == 2:
            raise DataError(
                f"Expected a .npy of shape (rounds, devices, {antennas}) with link.antennas={antennas}; a trace in a "
                f".csv, as {path}, is of one antenna."
            )
        return gains
    raise DataError(f"Expected gains in a .csv or .npy file, got {path.name}.")


def _read_npy(path: Path, antennas: int) -> NDArray[np.float64] | Complexes:
    array = _files.load_npy(path)
    if antennas > 1 and array.ndim != 1:
        return _vectors(array, path, antennas)
    if array.ndim == 3 and array.shape[-1] == 1:  # vectors of one antenna
        array = array[..., 0]
    if array.ndim not in (1, 2):
        hint = f" (link.antennas = {array.shape[-1]} would read it)" if array.ndim == 3 else ""
        raise DataError(f"Expected gains (devices) or (rounds, devices) in {path}, got shape {array.shape}{hint}.")
    if array.dtype.kind == "c":
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is named below
            array = np.abs(array.astype(np.complex128))
    try:
        return _validate.vector(gain=array, minimum=0.0, strict=False, table=True)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _vectors(array: NDArray[Any], path: Path, antennas: int) -> Complexes:
    if array.ndim not in (2, 3) or array.shape[-1] != antennas:
        raise DataError(
            f"Expected gains (devices, {antennas}) or (rounds, devices, {antennas}) in {path} with "
            f"link.antennas={antennas}, got shape {array.shape}."
        )
    try:
        return _antennas.checked("gain", array, (2, 3))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _read_csv(path: Path, column: str) -> NDArray[np.float64]:
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
