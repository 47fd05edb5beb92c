"""Reads an array that somebody else has written, believing nothing that its header claims.

NumPy's own reader evaluates the header as Python, allocates what it claims before it has seen the data, opens archives
and pickles, and raises a dozen kinds of exceptions. What `numpy.save` writes for numbers has one form; this is it.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

_LONGEST_HEADER: Final = 1024
_PREFIX: Final = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}  # bytes of the header's length, by format version
_HEADER: Final = re.compile(
    rb"\{'descr': '([<>]f[248]|[<>][iu][248]|\|[iu]1|\|b1|[<>]c8|[<>]c16)', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,18}, ?){0,31}[0-9]{0,18})\), \} *\n"
)


def decode(array: object) -> NDArray[Any]:
    """Return the numbers of a Flower Array as one read-only vector, in the order of the array's C layout.

    No memory is allocated but for an array in Fortran order, whose size has been found right by then.

    Raises:
        ValueError: it is not what `numpy.save` writes for an array of numbers, or not of the size that it claims.
    """
    if not isinstance(array, Array) or array.stype != "numpy.ndarray" or not isinstance(array.data, bytes):
        raise ValueError("expected an array that NumPy has written")
    data = array.data
    width = _PREFIX.get(data[6:8])
    if data[:6] != b"\x93NUMPY" or width is None:
        raise ValueError("expected an array in the NPY format")
    start = 8 + width
    end = start + int.from_bytes(data[8:start], "little")
    header = _HEADER.fullmatch(data[start:end]) if end <= _LONGEST_HEADER else None
    if header is None:
        raise ValueError("expected an array of numbers in the NPY format")
    dtype = np.dtype(header[1].decode("ascii"))
    shape = [int(length) for length in header[3].decode("ascii").replace(",", " ").split()]
    count = math.prod(shape)
    if len(data) - end != count * dtype.itemsize:
        raise ValueError("expected an array of the size that its header claims")
    values: NDArray[Any] = np.frombuffer(data, dtype=dtype, count=count, offset=end)
    if header[2] == b"True" and count:
        return values.reshape(shape, order="F").ravel(order="C")
    return values
