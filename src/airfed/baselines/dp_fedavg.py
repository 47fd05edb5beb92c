"""DP-FedAvg (McMahan et al.): a trusted server receives the clipped updates without a radio, and adds the noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from airfed.planning import limits
from airfed.planning.amplitudes import Devices, Floats
from airfed.planning.limits import Binding
from airfed.planning.method import Method, Signal, total
from airfed.problem import Problem


@final
@dataclass(frozen=True, kw_only=True)
class DPFedAvg(Method):
    """The mean plus N(0, (2ϖ/(Nμ))²): the noise σ of the link at the θ that privacy allows, whatever the channels.

    Its gap to FedAvg is the cost of privacy; the gap of other methods to it is the cost of the radio.
    """

    name: ClassVar[str] = "dp_fedavg"
    title: ClassVar[str] = "A trusted server receives the clipped updates and adds the noise: no radio."
    radio: ClassVar[bool] = False

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that privacy allows; no other limit applies."""
        return {"privacy": float(limits.privacy_limits(problem, np.array([rounds]))[0])}

    def symbols(self, problem: Problem, devices: Devices, rounds: int) -> float:
        """Return 0: nothing is on the air."""
        return 0.0

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        sigma = problem.link.noise_std
        return Signal(
            amplitude=amplitude,
            transmit_amplitude=None,
            constant_power=None,
            noise_std=sigma,
            hidden_by=sigma,
            divisor=total(amplitude),
        )
