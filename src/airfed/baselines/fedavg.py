"""FedAvg and DP-FedAvg (McMahan et al.): the server receives the updates without a radio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from airfed.planning import limits
from airfed.planning.limits import Binding, Devices, Floats
from airfed.planning.method import NOT_PRIVATE_MU, UNCLIPPED, Method, Signal, received
from airfed.problem import Problem


@final
@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """The exact mean of updates that are not clipped: no radio, no privacy, the ceiling.

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


@final
@dataclass(frozen=True, kw_only=True)
class DPFedAvg(Method):
    """A trusted server adds N(0, (2ϖ/(Nμ))²) to the mean: the noise σ of the link at the θ that privacy allows.

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
