"""Files of gains."""

from __future__ import annotations

import csv
import math
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed import _arrays, _files, _validate
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
    array = _arrays.load_npy(path)
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
    if len(names) > 1 and _is_number(names[0]):
        return _read_trace(lines, len(names), path)
    return _read_column(lines, names, path, column)


def _read_trace(lines: list[str], width: int, path: Path) -> NDArray[np.float64]:
    gains = np.empty((len(lines), width))
    for row, line in enumerate(lines):
        cells = _cells(line)
        if len(cells) != width:
            raise DataError(f"Expected {width} cells in line {row + 1} of {path}, as in line 1; got {len(cells)}.")
        for place, cell in enumerate(cells):
            try:
                gains[row, place] = gain = _modulus(cell)
            except ValueError:
                gain = np.nan
            if not 0 <= gain < np.inf:
                raise DataError(
                    f"Expected a gain >= 0, or a complex one, in line {row + 1}, cell {place + 1}, of {path}; "
                    f"got {shown(cell)!r}."
                )
    return gains


def _read_column(lines: list[str], names: list[str], path: Path, column: str) -> NDArray[np.float64]:
    index, width, first = _header(names, path, column)
    if len(lines) == first:
        raise DataError(f"Expected at least one gain in {path}, got only a header.")
    gains = np.full(len(lines) - first, np.nan)
    with suppress(ValueError):  # the first cell that is no number stays NaN
        for row in range(len(gains)):
            gains[row] = _number(_cell(lines[row + first], index, width))
    good = np.isfinite(gains) & (gains >= 0)
    if not good.all():
        bad = int(np.argmin(good)) + first
        raise DataError(f"Expected a gain >= 0 in line {bad + 1} of {path}, got {shown(lines[bad])!r}.")
    return gains


def _header(names: list[str], path: Path, column: str) -> tuple[int, int, int]:
    """Return the column to read, the number of columns, and the line where the numbers start."""
    if len(names) == 1 and _is_number(names[0]):
        return 0, 1, 0
    if names.count(column) != 1:
        header = shown(", ".join(names), 80)
        raise DataError(
            f"Expected one column {column!r} in {path}; its first line is a header row, {header!r}. Set channel.column "
            "to the column with the gains, or, in a trace (a line per round, a cell per device), delete the header row."
        )
    return names.index(column), len(names), 1


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


def _modulus(text: str) -> float:
    """The gain in a cell: a number, or the modulus of a complex one, as 1+2j or (1+2j)."""
    if "j" not in text.lower():
        return _number(text)
    if "_" in text or not any(map(str.isdigit, text)):  # "j" alone may be a name
        raise ValueError(text)
    value = complex(text)
    return math.hypot(value.real, value.imag)


def _is_number(text: str) -> bool:
    try:
        _modulus(text)
    except ValueError:
        return False
    return True
