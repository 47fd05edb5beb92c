"""FedAvg: the exact mean, the upper reference of the benchmark. `docs/baselines.md` has the source."""

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
    """FedAvg (McMahan et al.): the exact mean of the unclipped updates, without channel or privacy.

    Noise of 2·10⁻⁹ϖ remains, so that ε is finite; it is far below the resolution of the model.
    """

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "The exact mean of the unclipped updates; no radio, no noise."
    private: ClassVar[bool] = False
    analog: ClassVar[bool] = False

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return σ under the name "privacy"; θ is arbitrary."""
        return {"privacy": problem.link.noise_std}

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one round; see `Method.signal`."""
        rest = problem.budget.sensitivity * float(np.max(amplitude)) / NOT_PRIVATE_MU
        return received(problem, amplitude, noise_std=rest, privacy_noise_std=rest, clip_factor=UNCLIPPED)
