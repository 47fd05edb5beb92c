"""Privacy with imperfect CSI.

Device k inverts its estimate ĥ_k, but the channel is h_k = ĥ_k + e_k. Its received amplitude is θ|h_k/ĥ_k| instead of
θ, and its sensitivity grows by the same factor. The modulus counts, not the real part: an adversary may keep the
quadrature component that the receiver discards.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _validate


def amplification(gain: ArrayLike, *, nmse: float, failure: float) -> NDArray[np.float64]:
    """Return f_k ≥ 1 such that, with probability at least 1 − β, no received amplitude exceeds f_k·θ.

    |h_k/ĥ_k| = |1 + e_k/ĥ_k| ≤ 1 + |e_k|/|ĥ_k| with e_k ~ CN(0, s²), s² = NMSE · mean|ĥ|². Since P(|e_k| > s t) =
    e^{−t²}, the union bound over N devices gives

        f_k = 1 + s √(ln(N/β)) / |ĥ_k|.

    If errors are independent in each of R rounds, s is that of the round and the union runs over N·R. At β/N = 1e-8
    the bound is at most 8% of (f_k − 1) above the exact Rician quantile. One round is (2θ max f_k/σ)-Gaussian-DP with
    probability 1 − β over the errors; with the errors as part of the mechanism it is (ε, δ + β)-DP.

    Args:
        gain: |ĥ_k| ≥ 0 of the whole fleet, (N,), or |ĥ_k^i| of all rounds, (R, N); 0 gives infinity.
        nmse: E|e_k|² over the mean of |ĥ|²; 0 gives ones.
        failure: β, the probability that any f_k is exceeded.

    >>> amplification([0.2, 1.0], nmse=0.0, failure=1e-6)
    array([1., 1.])
    >>> amplification([0.2, 1.0], nmse=0.01, failure=1e-6).round(2)
    array([2.37, 1.27])

    Deviations: the paper assumes perfect CSI.
    """
    gains = _validate.vector(gain=gain, minimum=0.0, strict=False, table=True)
    _validate.non_negative(nmse=nmse)
    _validate.fraction(failure=failure)
    if nmse == 0:
        return np.broadcast_to(np.float64(1.0), gains.shape)
    spread = np.sqrt(nmse * np.mean(np.square(gains), axis=-1, keepdims=True))
    reach = math.sqrt(math.log(gains.size) - math.log(failure))
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.asarray(1.0 + spread * reach / gains)
    factor[gains == 0] = np.inf
    return factor
