"""FedAvg (McMahan et al.): the exact mean of updates that are not clipped. No radio, no privacy: the ceiling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from airfed.planning.amplitudes import Devices, Floats
from airfed.planning.limits import Binding
from airfed.planning.method import NOT_PRIVATE_MU, UNCLIPPED, Method, Signal, total
from airfed.problem import Problem


@final
@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """The exact mean. So that its ε is a number, noise of 2·10⁻⁹ϖ remains, far below the resolution of the model."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "The exact mean of updates that are not clipped: no radio, no noise."
    private: ClassVar[bool] = False
    radio: ClassVar[bool] = False

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return σ as "privacy": any θ does, and it must have a unit."""
        return {"privacy": problem.link.noise_std}

    def symbols(self, problem: Problem, devices: Devices, rounds: int) -> float:
        """Return 0: nothing is on the air."""
        return 0.0

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        rest = problem.budget.sensitivity * float(np.max(amplitude)) / NOT_PRIVATE_MU
        return Signal(
            amplitude=amplitude,
            transmit_amplitude=None,
            constant_power=None,
            noise_std=rest,
            hidden_by=rest,
            divisor=total(amplitude),
            guard=UNCLIPPED,
        )
