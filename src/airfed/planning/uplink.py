"""How the updates reach the receiver: one class for each scheme, and what follows from it for one round.

A plan says who sends (K), how strongly (θ) and in how many rounds (I). What that means on the way (amplitudes, watts,
noise, the receiver's divisor, symbols) is the uplink's. `Aligned` is over-the-air averaging as airfed has it: everybody
arrives with θ. The others are schemes that it is compared with; `docs/rivals.md` has their sources.

In all of them the receiver forms y = Σ a_k g_k/ϖ + r and takes y·ϖ/D for the mean. Privacy: somebody who sees what the
scheme shows to the receiver sees device k with amplitude a_k in noise of standard deviation s: μ = 2·max a_k/s. This
takes s for granted whatever device k does: `require_claim` refuses where it is not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from airfed.planning import limits
from airfed.planning.limits import Binding
from airfed.problem import InfeasibleError, Problem

Floats = NDArray[np.float64]
Devices = NDArray[np.intp]

# A ledger holds numbers: a scheme without privacy is charged this μ a round, an ε of some 5·10¹⁷.
NOT_PRIVATE_MU: Final = 1e9
UNCLIPPED: Final = 2.0**10  # times ϖ, from where on even a scheme that does not clip does


@dataclass(frozen=True, kw_only=True, eq=False)
class Uploads:
    """The uploads of one round.

    Args:
        level: a_k, the amplitude with which a device's update of norm ϖ arrives, (m,).
        amplitude: [√W] with which such an update is transmitted, (m,); 0 where no update modulates the carrier.
        steady_power: [W] that a device transmits whatever its update is, (m,).
        noise_std: of r, per entry.
        hidden_by: s, per entry.
        divisor: D.
        missing: ½Σ|1/N − a_k/D| over all N devices: 1 − |K|/N where those who send arrive alike.
        channel_uses: symbols that all uploads take together.
    """

    level: Floats
    amplitude: Floats
    steady_power: Floats
    noise_std: float
    hidden_by: float
    divisor: float
    missing: float
    channel_uses: float

    @property
    def power(self) -> Floats:
        """[W] that each device transmits, at most (‖g_k‖ = ϖ), (m,)."""
        with np.errstate(over="ignore"):
            return np.asarray(self.steady_power + np.square(self.amplitude))

    @property
    def noise_share(self) -> float:
        """The noise per coordinate of the recovered mean, as a share of ϖ."""
        return self.noise_std / self.divisor


@dataclass(frozen=True, kw_only=True)
class Uplink:
    """Aligned over-the-air averaging: everybody arrives with θ, a_k = θ, by the power θ²/|h_k|².

    y = Σ_{k∈K} θ g_k/ϖ + r, D = |K|θ, d symbols. [Yan23, (6)-(14)].
    """

    name: ClassVar[str] = "aligned"
    title: ClassVar[str] = "Everybody arrives over the air equally strong."
    private: ClassVar[bool] = True  # whether it has any ε at all
    on_air: ClassVar[bool] = True  # whether uploads add up in the air
    separate: ClassVar[bool] = False  # whether each upload is received, and seen, alone, in a share of the noise
    needs_everybody: ClassVar[bool] = True  # whether each of those who are scheduled must be heard
    clips: ClassVar[bool] = True  # whether updates are clipped to ϖ
    only_scales: ClassVar[bool] = True  # whether a radio that does nothing but scale its update can send it
    by_largest: ClassVar[bool] = False  # whether the largest update of a round sets everybody's scale

    @property
    def predictable(self) -> bool:
        """Whether noise and share of the mean say what training will give, by a response."""
        return self.private

    def uploads(self, problem: Problem, gain: Floats, peak_power: Floats, alignment: float, rounds: int) -> Uploads:
        """Return what the devices of a round send, and how it arrives.

        Args:
            problem: σ, d, N and the budgets; its fleet is not looked at.
            gain, peak_power: |h_k| and P_k of those who send, (m,).
            alignment: θ.
            rounds: I.
        """
        with np.errstate(divide="ignore", over="ignore"):  # as printed, a plan may ask for more power than there is
            amplitude = alignment / gain
        return uploads_of(problem, gain.size, level=np.full(gain.shape, alignment), amplitude=amplitude)

    def require_claim(self, problem: Problem) -> None:
        """Raise where μ = 2·max a_k/s does not hold; every plan asks, also one that is read from a record.

        Raises:
            InfeasibleError: the method makes no privacy claim under this adjacency, or against this adversary.
        """

    def limits(self, problem: Problem, scheduled: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that each limit allows."""
        return limits.alignment_limits(problem, scheduled, rounds)

    def amplification(self, problem: Problem, scheduled: Devices) -> float:
        """Return how much stronger than θ a device may arrive; 1 where the channels are known."""
        return float(np.max(limits.amplifications(problem)[scheduled]))

    def largest(self, problem: Problem, scheduled: Devices, rounds: int) -> float:
        """Return the θ that the scheme takes: the largest within every limit, stepped down by what rounding loses.

        Raises:
            InfeasibleError: there is none.
        """
        self.require_claim(problem)
        if self.needs_everybody:
            _require_heard(problem, scheduled)
        found = min(self.limits(problem, scheduled, rounds).values()) * (1 - 1e-13)
        if not found > 0:
            raise InfeasibleError(f"No plan fits: {self.name} access is left with no signal at all.")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return its name and its settings as plain values."""
        return {"name": self.name, **asdict(self)}


Aligned = Uplink
ALIGNED: Final = Aligned()


def uploads_of(
    problem: Problem,
    size: int,
    *,
    level: Floats,
    amplitude: Floats | None = None,
    steady_power: Floats | None = None,
    noise_std: float | None = None,
    hidden: float | None = None,
    divisor: float | None = None,
    channel_uses: float | None = None,
) -> Uploads:
    """Return the uploads of a round, where what is not said is as over the air."""
    sigma, num_devices, none = problem.link.noise_std, problem.fleet.num_devices, np.zeros(level.shape)
    total = size * float(level[0]) if divisor is None else divisor
    missing = 1.0 - size / num_devices
    if divisor is not None:
        missing = 0.5 * (float(np.sum(np.abs(1.0 / num_devices - level / divisor))) + missing)
    return Uploads(
        level=level,
        amplitude=none if amplitude is None else amplitude,
        steady_power=none if steady_power is None else steady_power,
        noise_std=sigma if noise_std is None else noise_std,
        hidden_by=sigma if hidden is None else hidden,
        divisor=total,
        missing=missing,
        channel_uses=float(problem.learning.dimension) if channel_uses is None else channel_uses,
    )


def _require_heard(problem: Problem, scheduled: Devices) -> None:
    dead = scheduled[problem.fleet.gain[scheduled] == 0]
    if dead.size:
        raise InfeasibleError(
            f"No plan fits: device {dead[0]} has gain 0 and would need infinite power to be heard (peak_power)."
        )
