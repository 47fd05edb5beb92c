"""COTAF: over-the-air aggregation, normalised by the largest update. `docs/baselines.md` has the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from airfed.planning.limits import Binding, Devices, Floats, alignment_limits
from airfed.planning.method import NOT_PRIVATE_MU, UNCLIPPED, Method, Signal, over_the_air
from airfed.problem import Problem


@final
@dataclass(frozen=True, kw_only=True)
class Cotaf(Method):
    """COTAF (Sery, Shlezinger, Cohen, Eldar): x_k = (θ/|h_k|)·g_k/max_j‖g_j‖; the receiver rescales.

    The normalisation depends on the data and is released, so that the method is not private. With clipping to ϖ instead
    it is the policy "full".
    """

    name: ClassVar[str] = "cotaf"
    title: ClassVar[str] = "Updates are not clipped; the largest update of a round normalises all."
    private: ClassVar[bool] = False

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ under each power limit."""
        found = alignment_limits(problem, devices, rounds)
        return {name: value for name, value in found.items() if name != "privacy"}

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        noise = problem.budget.sensitivity * float(np.max(amplitude)) / NOT_PRIVATE_MU
        fields = {"privacy_noise_std": noise, "clip_factor": UNCLIPPED, "scale_by_largest": True}
        return over_the_air(problem, gain=gain, amplitude=amplitude, **fields)
