"""COTAF: over-the-air aggregation without clipping, scaled by the largest update. `docs/rivals.md` has the source."""

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
    """COTAF (Sery, Shlezinger, Cohen, Eldar): x_k = (θ/|h_k|)·g_k/max_j‖g_j‖, which the receiver undoes.

    The scale depends on the data, and is itself released: there is no ε. Clipped to ϖ instead, it is full participation
    over the air.
    """

    name: ClassVar[str] = "cotaf"
    title: ClassVar[str] = "Nothing is clipped; the largest update of a round sets the scale of all."
    private: ClassVar[bool] = False

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that each limit on power allows."""
        found = alignment_limits(problem, devices, rounds)
        return {name: value for name, value in found.items() if name != "privacy"}

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        hidden = problem.budget.sensitivity * float(np.max(amplitude)) / NOT_PRIVATE_MU
        return over_the_air(problem, gain=gain, amplitude=amplitude, hidden_by=hidden, guard=UNCLIPPED, by_largest=True)
