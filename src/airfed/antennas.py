"""Linear algebra of receive beamforming: effective channels, channel norms and eigenvectors.

A device's channel is a vector h_k ∈ C^A, the receive beamformer a unit vector f. Sums over devices and antennas have a
fixed order (`np.einsum`, no BLAS), so that their bits do not depend on the number of threads.

Noise of covariance σ²R per real dimension is white after R^(−1/2), which loses nothing: the receiver with channels
R^(−1/2)h_k, white noise and beamformer R^(1/2)f is the same receiver.
"""

from __future__ import annotations

from functools import cache
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Covariance = float | tuple[tuple[complex, ...], ...]
"""R, as a matrix or as the correlation of any two antennas of equal noise."""
Complexes = NDArray[np.complex128]
Floats = NDArray[np.float64]

_FEW: Final = 64  # antennas; BLAS uses one thread for so few
_LEAST_EIGENVALUE: Final = 1e-6  # of R, relative to the largest: rounding of R^(−1/2)h stays below 1e-12
_ROUNDING: Final = 16 * float(np.finfo(np.float64).eps)


def effective(channel: Complexes, beamformer: Complexes) -> Complexes:
    """Return fᴴh_k, (..., N), of channels (..., N, A) and beamformers (..., A).

    >>> effective(np.array([[1.0, 1j], [1j, 0.0]]), np.array([0.6, 0.8j]))
    array([1.4+0.j , 0. +0.6j])
    """
    return np.asarray(np.einsum("...ka,...a->...k", channel, np.conj(beamformer)))


def norms(channel: Complexes) -> Floats:
    """Return ‖h_k‖, (..., N), the gain of device k after its own matched filter."""
    with np.errstate(over="ignore"):  # the caller reports values that are too large
        return np.asarray(np.sqrt(np.sum(np.square(channel.real) + np.square(channel.imag), axis=-1)))


def gram(channel: Complexes) -> Complexes:
    """Return Σ_k h_k h_kᴴ, (..., A, A)."""
    return np.asarray(np.einsum("...ka,...kb->...ab", channel, np.conj(channel)))


def eigenvectors(channel: Complexes) -> Complexes:
    """Return the eigenvectors of Σ h_k h_kᴴ as rows, (..., A, A), dominant first; the largest entry is real and > 0."""
    matrix = gram(channel)
    scale = np.max(np.abs(matrix), axis=(-2, -1), keepdims=True)  # against overflow in LAPACK
    _, vectors = eigen(matrix / np.where(scale > 0, scale, 1.0))
    rows = np.swapaxes(vectors, -2, -1)[..., ::-1, :]
    largest = np.argmax(np.abs(rows), axis=-1, keepdims=True)
    return unit(rows * np.exp(-1j * np.angle(np.take_along_axis(rows, largest, axis=-1))))


def eigen(matrix: Complexes) -> tuple[Floats, Complexes]:
    """Return eigenvalues, ascending, and eigenvectors of Hermitian matrices, for any number of threads the same."""
    if matrix.shape[-1] <= _FEW:
        return np.linalg.eigh(matrix)
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"):
        return np.linalg.eigh(matrix)


def checked_covariance(given: Any) -> Covariance:
    """Return R as a number or as nested tuples, or raise ValueError."""
    if np.asarray(given, dtype=object).ndim == 0:
        if isinstance(given, bool) or not isinstance(given, Real) or not -1 < float(given) < 1:
            raise ValueError(
                f"noise_covariance must be a matrix, or a number strictly between -1 and 1; got {given!r}."
            )
        return float(given)
    matrix = checked("noise_covariance", given, (2,))
    adjoint = matrix.conj().T
    if matrix.shape != adjoint.shape or not np.allclose(matrix, adjoint, rtol=0.0, atol=1e-12 * np.abs(matrix).max()):
        raise ValueError("noise_covariance must be a Hermitian matrix, the same as its conjugate transpose.")
    rows = tuple(tuple(row) for row in ((matrix + adjoint) / 2).tolist())
    _roots(rows, len(rows))
    return rows


@cache
def _roots(covariance: Covariance, number: int) -> tuple[Complexes, Complexes]:
    """Return R^(1/2) and R^(−1/2), (A, A), which are Hermitian."""
    matrix = np.array(covariance, dtype=np.complex128)
    if not matrix.ndim:
        matrix = np.where(np.eye(number, dtype=np.bool_), 1.0, matrix)
    if len(matrix) != number:
        raise ValueError(f"noise_covariance must have a row for each of the {number} antennas, got {len(matrix)}.")
    values, vectors = eigen(matrix)
    if not values[0] > _LEAST_EIGENVALUE * values[-1]:
        raise ValueError(
            f"noise_covariance must be positive definite, its smallest eigenvalue above {_LEAST_EIGENVALUE:g} of the "
            f"largest; got eigenvalues from {values[0]:.3g} to {values[-1]:.3g}."
        )
    root, inverse = (np.einsum("ac,bc->ab", vectors * each, vectors.conj()) for each in (values**0.5, values**-0.5))
    return root, inverse


def whitened(channel: Complexes, covariance: Covariance | None) -> Complexes:
    """Return R^(−1/2)h_k, (..., A): the channels after whitening; without R, the channels."""
    if covariance is None:
        return channel
    return np.asarray(np.einsum("ab,...b->...a", _roots(covariance, channel.shape[-1])[1], channel))


def whitened_beamformer(beamformer: Complexes, covariance: Covariance | None) -> Complexes:
    """Return R^(1/2)f, (..., A), scaled to norm 1: what f is after whitening; without R, f."""
    if covariance is None:
        return beamformer
    return unit(np.einsum("ab,...b->...a", _roots(covariance, beamformer.shape[-1])[0], beamformer))


def unit(vector: Complexes) -> Complexes:
    """Return vectors (..., A) scaled to norm 1; a vector whose norm is 1 up to rounding is returned unchanged."""
    largest = np.max(np.abs(vector), axis=-1, keepdims=True)
    scaled = vector / largest
    norm = norms(scaled)[..., None]
    return np.where(np.abs(norm * largest - 1.0) <= _ROUNDING, vector, scaled / norm)


def checked_beamformer(beamformer: ArrayLike, vectors: Complexes) -> Complexes:
    """Return a beamformer of these channels, scaled to norm 1."""
    vector = checked("beamformer", beamformer, (1, 2))
    expected = (vectors.shape[-1],) if vector.ndim == 1 or vectors.ndim == 2 else (len(vectors), vectors.shape[-1])
    if vector.shape != expected:
        raise ValueError(f"beamformer must be an array of shape {expected}, got shape {vector.shape}.")
    if not np.abs(vector).max(axis=-1).all():
        raise ValueError("beamformer must be a non-zero vector, got 0.")
    if np.abs(norms(vector) - 1.0).max() > 1e-15:  # a recorded beamformer is restored bit by bit
        vector = unit(vector)
    vector.flags.writeable = False
    return vector


def checked(name: str, value: ArrayLike, dimensions: tuple[int, ...]) -> Complexes:
    """Return a value as a read-only array of finite complex numbers, or raise ValueError."""
    try:
        given: NDArray[Any] = np.asarray(value)
        if given.size and given.dtype.kind not in "iufcO":
            raise TypeError(f"got {given.dtype} entries")
        array = np.array(given, dtype=np.complex128, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be an array of complex numbers; {error}.") from None
    if array.ndim not in dimensions or not array.size:
        wanted = " or ".join(map(str, dimensions))
        raise ValueError(f"{name} must be a non-empty array of {wanted} dimensions, got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite in every entry, got NaN or infinity.")
    array.flags.writeable = False
    return array
