"""Receivers with several antennas, as arrays: what a combiner hears of each device, and what all antennas hear.

A device's channel is a vector h_k ∈ C^A, the receiver's combiner a unit vector f. Sums over devices and antennas are
made in one order (`np.einsum`, no BLAS), so that their bits do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Complexes = NDArray[np.complex128]
Floats = NDArray[np.float64]

_FEW: Final = 64  # antennas, of which BLAS makes one thread's work anyway
_ROUNDING: Final = 16 * float(np.finfo(np.float64).eps)


def heard(channel: Complexes, combiner: Complexes) -> Complexes:
    """Return fᴴh_k, (..., N), of channels (..., N, A) and combiners (..., A).

    >>> heard(np.array([[1.0, 1j], [1j, 0.0]]), np.array([0.6, 0.8j]))
    array([1.4+0.j , 0. +0.6j])
    """
    return np.asarray(np.einsum("...ka,...a->...k", channel, np.conj(combiner)))


def strengths(channel: Complexes) -> Floats:
    """Return ‖h_k‖, (..., N): what a combiner of the device's own, its matched filter, would hear."""
    with np.errstate(over="ignore"):  # what is too large is named by who checks it
        return np.asarray(np.sqrt(np.sum(np.square(channel.real) + np.square(channel.imag), axis=-1)))


def gram(channel: Complexes, weight: ArrayLike = 1.0) -> Complexes:
    """Return Σ_k w_k h_k h_kᴴ, (..., A, A), for weights that are one or (..., N)."""
    weighted = channel * np.asarray(weight, dtype=np.float64)[..., None]
    return np.asarray(np.einsum("...ka,...kb->...ab", weighted, np.conj(channel)))


def eigenvectors(channel: Complexes) -> Complexes:
    """Return the eigenvectors of Σ h_k h_kᴴ, (..., A, A), their largest entry real and positive; row 0 is strongest."""
    matrix = gram(channel)
    scale = np.max(np.abs(matrix), axis=(-2, -1), keepdims=True)  # LAPACK wants moderate numbers
    _, vectors = eigen(matrix / np.where(scale > 0, scale, 1.0))
    rows = np.swapaxes(vectors, -2, -1)[..., ::-1, :]
    place = np.argmax(np.abs(rows), axis=-1, keepdims=True)
    return unit(rows * np.exp(-1j * np.angle(np.take_along_axis(rows, place, axis=-1))))


def eigen(matrix: Complexes) -> tuple[Floats, Complexes]:
    """Return the eigenvalues, ascending, and the eigenvectors, as columns, of Hermitian matrices, (..., A, A).

    With one thread: of large matrices the last bits would depend on how many there are, and a plan with them.
    """
    if matrix.shape[-1] <= _FEW:
        return np.linalg.eigh(matrix)
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"):
        return np.linalg.eigh(matrix)


def unit(vector: Complexes) -> Complexes:
    """Return the vector, or each of several, (..., A), at norm 1; what is of norm 1 but for rounding stays as it is."""
    largest = np.max(np.abs(vector), axis=-1, keepdims=True)
    scaled = vector / largest
    norm = strengths(scaled)[..., None]
    return np.where(np.abs(norm * largest - 1.0) <= _ROUNDING, vector, scaled / norm)


def checked(name: str, value: ArrayLike, dimensions: tuple[int, ...]) -> Complexes:
    """Return a value as a read-only array of finite complex numbers with so many dimensions; ValueError if none."""
    try:
        given: NDArray[Any] = np.asarray(value)
        if given.size and given.dtype.kind not in "iufcO":
            raise TypeError(f"got {given.dtype} entries")
        array = np.array(given, dtype=np.complex128, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"Expected {name} to be an array of complex numbers; {error}.") from None
    if array.ndim not in dimensions or not array.size:
        raise ValueError(
            f"Expected {name} of {' or '.join(map(str, dimensions))} dimensions with one entry or more; got shape "
            f"{array.shape}."
        )
    if not np.isfinite(array).all():
        raise ValueError(f"Expected every entry of {name} to be finite.")
    array.flags.writeable = False
    return array
