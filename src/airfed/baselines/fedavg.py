"""FedAvg: the exact mean, the ceiling of every private method. `docs/rivals.md` has the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from airfed.planning.limits import Binding, Devices, Floats
from airfed.planning.method import NOT_PRIVATE_MU, UNCLIPPED, Method, Signal, received
from airfed.problem import Problem


@final
@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """FedAvg (McMahan et al.): the exact mean of updates that are not clipped, no radio, no privacy, the ceiling.

    So that its ε is a number, noise of 2·10⁻⁹ϖ remains, far below the resolution of the model.
    """

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "The exact mean of updates that are not clipped: no radio, no noise."
    private: ClassVar[bool] = False
    radio: ClassVar[bool] = False

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return σ as "privacy": any θ does, and it must have a unit."""
        return {"privacy": problem.link.noise_std}

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        rest = problem.budget.sensitivity * float(np.max(amplitude)) / NOT_PRIVATE_MU
        return received(problem, amplitude, noise_std=rest, hidden_by=rest, guard=UNCLIPPED)
