"""DP-FedAvg: a trusted server adds the noise. `docs/rivals.md` has the source."""

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
    """DP-FedAvg: a trusted server adds N(0, (2ϖ/(Nμ))²) to the mean, the link's σ at the θ that privacy allows.

    Its gap to FedAvg is the cost of privacy; the gap of other methods to it is the cost of the radio.
    """

    name: ClassVar[str] = "dp_fedavg"
    title: ClassVar[str] = "A trusted server receives the clipped updates and adds the noise: no radio."
    radio: ClassVar[bool] = False

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that privacy allows; no other limit applies."""
        return {"privacy": float(limits.privacy_limits(problem, np.array([rounds]))[0])}

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        return received(problem, amplitude)
