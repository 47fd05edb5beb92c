"""The noise of a receiver, from its bandwidth."""

from __future__ import annotations

import math
from typing import Final

BOLTZMANN: Final = 1.380649e-23
"""k [J/K], exact in the SI."""
NOISE_TEMPERATURE: Final = 290.0
"""T₀ [K], to which noise figures refer: kT₀ is −173.975 dBm/Hz."""


def thermal_std(*, bandwidth: float, density: float, noise_figure: float = 0.0) -> float:
    """Return σ [√W], the standard deviation per real dimension of thermal noise.

    A receiver of bandwidth B hears complex noise of power s² = N₀·B·F, F = 10^(noise_figure/10), one half of it in each
    real dimension: σ = √(N₀·B·F/2).

    Args:
        bandwidth: B [Hz].
        density: N₀ [W/Hz], which is kT.
        noise_figure: of the receiver, in dB.

    >>> power = 2 * thermal_std(bandwidth=20e6, density=BOLTZMANN * NOISE_TEMPERATURE, noise_figure=9.0) ** 2
    >>> round(10 * math.log10(power / 1e-3), 3)  # dBm: −173.975 + 73.010 + 9
    -91.965
    """
    return math.sqrt(0.5 * density) * math.sqrt(bandwidth) * math.pow(10.0, noise_figure / 20.0)
