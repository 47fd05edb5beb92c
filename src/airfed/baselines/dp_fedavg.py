"""DP-FedAvg: a trusted server adds the noise. `docs/baselines.md` has the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from airfed.planning import limits
from airfed.planning.limits import Binding, Devices, Floats
from airfed.planning.method import Method, Signal, received
from airfed.problem import Problem


@final
@dataclass(frozen=True, kw_only=True)
class DPFedAvg(Method):
    """DP-FedAvg: a trusted server adds N(0, (2ϖ/(Nμ))²) to the mean of all devices.

    Its gap to FedAvg is the cost of privacy; the gap of the other methods to it is the cost of the channel.
    """

    name: ClassVar[str] = "dp_fedavg"
    title: ClassVar[str] = "A trusted server averages the clipped updates and adds noise; no radio."
    analog: ClassVar[bool] = False

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ under privacy, the only limit."""
        return {"privacy": float(limits.privacy_limits(problem, np.array([rounds]), analog=False)[0])}

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        return received(problem, amplitude, privacy_noise_std=problem.link.noise_std)
