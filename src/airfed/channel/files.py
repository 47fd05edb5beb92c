"""Files of gains."""

from __future__ import annotations

import csv
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed import _arrays, _files, _validate
from airfed._files import DataError, shown

_MOST_COLUMNS: Final = 16384  # of a spreadsheet


def read_gains(path: Path, column: str) -> NDArray[np.float64]:
    """Return the gains in a .npy vector, or in a .csv with one number a line or a column named in its header.

    Raises:
        DataError: the file is missing, of another kind, or has a bad cell (named by its line).
    """
    if path.suffix.lower() == ".npy":
        return _read_npy(path)
    if path.suffix.lower() == ".csv":
        return _read_csv(path, column)
    raise DataError(f"Expected gains in a .csv or .npy file, got {path.name}.")


def _read_npy(path: Path) -> NDArray[np.float64]:
    array = _arrays.load_npy(path)
    if array.dtype.kind == "c":
        raise DataError(f"Expected real numbers in {path}, got dtype {array.dtype}.")
    try:
        return _validate.vector(gain=array, minimum=0.0, strict=False)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _read_csv(path: Path, column: str) -> NDArray[np.float64]:
    lines = _files.read_text(path, "a table of gains").rstrip().split("\n")
    if lines == [""]:
        raise DataError(f"Expected at least one gain in {path}, got an empty file.")
    index, width, first = _header(lines[0], path, column)
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


def _header(line: str, path: Path, column: str) -> tuple[int, int, int]:
    """Return the column to read, the number of columns, and the line where the numbers start."""
    if line.count(",") >= _MOST_COLUMNS:
        raise DataError(f"Expected at most {_MOST_COLUMNS} columns in {path}, got {line.count(',') + 1}.")
    names = [cell.strip() for cell in _cells(line)]
    if _is_number(names[0]):
        if len(names) > 1:
            raise DataError(f"Expected a header line in {path}: it has {len(names)} columns and no names.")
        return 0, 1, 0
    if names.count(column) != 1:
        raise DataError(f"Expected one column {column!r} in {path}; its header has {shown(', '.join(names), 120)!r}.")
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


def _is_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return False
    return True
