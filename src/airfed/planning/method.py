"""A method: how the updates of the scheduled devices reach the receiver in one round.

The receiver forms y = Σ_k a_k g_k/ϖ + r and uses y·ϖ/D as the mean update, with the received amplitudes a_k of the
plan and D = Σ_k a_k. airfed's own method is `OverTheAir`; those of other papers are in `airfed.baselines`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from airfed.planning import limits
from airfed.planning.limits import Binding, Devices, Floats
from airfed.problem import InfeasibleError, Problem

if TYPE_CHECKING:
    from airfed.planning.plan import Plan

# A ledger needs finite numbers: a method that is not private is charged this μ per round, ε ≈ 5·10¹⁷.
NOT_PRIVATE_MU: Final = 1e9
_MOST_PAIRS: Final = 20_000_000  # devices times numbers of rounds that are evaluated, in a few seconds
_FEWEST_ROUNDS: Final = 16
UNCLIPPED: Final = 2.0**10  # times ϖ: numerical bound on updates that are not clipped


@dataclass(frozen=True, kw_only=True, eq=False)
class Signal:
    """One round as it is transmitted and received."""

    amplitude: Floats  # a_k of the scheduled devices, (m,): received amplitude of an update of norm ϖ
    transmit_amplitude: Floats | None  # [√W], (m,); None: no analog transmission
    constant_power: Floats | None  # power that does not depend on the update [W], (m,)
    noise_std: float  # of r, per entry
    privacy_noise_std: float  # s, per entry: the noise that counts for the privacy of one device
    divisor: float  # D: Σ a_k, times the share of the amplitude that the update keeps
    clip_factor: float = 1.0  # updates are clipped to this factor times ϖ
    scale_by_largest: bool = False  # whether the largest update of the round normalises all (COTAF)
    orthogonal: bool = False  # whether each upload is received, and observed, on its own with its share of the noise

    @property
    def power(self) -> Floats:
        """The transmit power of each scheduled device [W], for ‖g_k‖ = ϖ, (m,)."""
        power = np.zeros(self.amplitude.shape)
        with np.errstate(over="ignore"):
            if self.transmit_amplitude is not None:
                power += np.square(self.transmit_amplitude)  # [Yan23, (16)]
            if self.constant_power is not None:
                power += self.constant_power
        return power

    @property
    def noise_share(self) -> float:
        """The noise per entry of the recovered mean, relative to ϖ."""
        return self.noise_std / self.divisor

    def shortfall(self, num_devices: int) -> float:
        """Return Σ_k (1/N − a_k/D)₊ over all N devices: 1 − |K|/N for aligned devices."""
        missing = 1.0 - self.amplitude.size / num_devices
        if np.all(self.amplitude == self.amplitude[0]):
            return missing
        below = 1.0 / num_devices - self.amplitude / total(self.amplitude)
        return missing + float(np.sum(below, where=below > 0))


class Errors(NamedTuple):
    """Noise and participation for each number of rounds; arrays of one shape."""

    rounds: NDArray[np.int64]  # I
    level: Floats  # θ, the largest amplitude
    noise_share: Floats  # s/D
    shortfall: Floats  # Σ_k (1/N − a_k/D)₊
    participation: Floats  # 1/(NΣw²); |K|/N for aligned devices


class Method(ABC):
    """How updates reach the receiver. A subclass is final: one method, one class, one file."""

    name: ClassVar[str]  # in records
    title: ClassVar[str]  # one sentence
    private: ClassVar[bool] = True  # whether it is differentially private
    analog: ClassVar[bool] = True  # whether transmission is analog, so that the channel scales the updates
    adaptive_clipping: ClassVar[bool] = False  # whether devices can send a clipping indicator

    @abstractmethod
    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ of the given devices under each limit, in each of I equal rounds."""

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one of I rounds as it is transmitted and received; by default with channel inversion.

        `gain`, `peak_power` and `amplitude` are those of the scheduled devices, (m,); the problem's fleet is not used.
        """
        return over_the_air(problem, gain=gain, amplitude=amplitude)

    def require_claim(self, problem: Problem) -> None:  # noqa: B027  # optional
        """Raise InfeasibleError if the method makes no privacy claim here: μ = 2·max a_k/s does not hold."""

    def schedule(self, problem: Problem) -> Devices:
        """Return the scheduled devices; by default all."""
        return np.arange(problem.fleet.num_devices)

    def amplitudes(self, problem: Problem, devices: Devices, rounds: int) -> Floats:
        """Return a_k of the given devices, (m,), in each of I equal rounds; by default the largest feasible θ."""
        if self.analog:
            limits.require_reachable(problem, devices)
        theta = min(self.limits(problem, devices, rounds).values()) * (1 - 1e-13)
        if not theta > 0:
            raise InfeasibleError(f"No plan fits: the limits allow no signal ({self.name}).")
        return np.full(devices.shape, theta)

    def symbols(self, problem: Problem, devices: Devices, rounds: int) -> float:
        """Return the number of symbols of one round."""
        return float(problem.link.symbols(problem.learning.entries)) if self.analog else 0.0

    def errors(self, problem: Problem, devices: Devices, rounds: NDArray[np.int64]) -> Errors:
        """Return noise and participation for each number of rounds (see `thinned` for large fleets)."""
        rounds = thinned(rounds, devices.size)
        gain, peak = problem.fleet.gain[devices], problem.fleet.peak_power[devices]
        found = []
        for number in rounds.tolist():
            amplitude = self.amplitudes(problem, devices, number)
            on = amplitude > 0
            one = self.signal(problem, gain=gain[on], peak_power=peak[on], amplitude=amplitude[on], rounds=number)
            number_of_devices = problem.fleet.num_devices
            shortfall = one.shortfall(number_of_devices)
            equal = np.all(amplitude[on] == amplitude.max())
            share = effective_participation(amplitude) * amplitude.size / number_of_devices
            found.append((amplitude.max(), one.noise_share, shortfall, 1.0 - shortfall if equal else share))
        return Errors(rounds, *np.array(found).T)

    def headroom(self, plan: Plan) -> dict[Binding, float]:
        """Return the largest factor on all amplitudes of a plan under each limit."""
        room: dict[Binding, float] = {}
        for index in (0,) if plan.constant else range(plan.rounds):
            found = self.limits(plan.problem.at(index), plan.amplitudes.devices(index), plan.rounds)
            for name, largest in found.items():
                room[name] = min(room.get(name, np.inf), largest / float(plan.amplitudes.level[index]))
        return room

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the settings as plain values."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]  # subclasses are dataclasses


@final
@dataclass(frozen=True, kw_only=True)
class OverTheAir(Method):
    """Over-the-air aggregation (AirComp): transmit powers a_k²/|h_k|², S symbols per round. [Yan23, (6)-(14)]."""

    name: ClassVar[str] = "over_the_air"
    title: ClassVar[str] = "Over-the-air aggregation: the updates superpose on the channel."
    adaptive_clipping: ClassVar[bool] = True

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ within privacy, peak power and total power."""
        return limits.alignment_limits(problem, devices, rounds)

    def amplitudes(self, problem: Problem, devices: Devices, rounds: int) -> Floats:
        """Return the largest feasible θ for each of the devices."""
        return np.full(devices.shape, limits.largest_alignment(problem, devices, np.array([rounds]))[0])

    def errors(self, problem: Problem, devices: Devices, rounds: NDArray[np.int64]) -> Errors:
        """Return noise and participation for each number of rounds."""
        theta = limits.largest_alignment(problem, devices, rounds)
        with np.errstate(divide="ignore", over="ignore"):
            share = problem.update_noise_std / (devices.size * theta)
        shortfall = np.full(rounds.shape, 1.0 - devices.size / problem.fleet.num_devices)
        return Errors(rounds, theta, share, shortfall, 1.0 - shortfall)

    def headroom(self, plan: Plan) -> dict[Binding, float]:
        """Return the largest factor on all amplitudes under each limit."""
        return plan.growth_limits()


OVER_THE_AIR: Final = OverTheAir()


def over_the_air(problem: Problem, *, gain: Floats, amplitude: Floats, **others: Any) -> Signal:
    """Return the signal of a round with channel inversion; `others` as in `received`."""
    with np.errstate(divide="ignore", over="ignore"):  # the printed algorithms may exceed the power limits
        transmit = amplitude / gain
    return received(problem, amplitude, transmit_amplitude=transmit, **others)


def received(problem: Problem, amplitude: Floats, **others: Any) -> Signal:
    """Return the signal of given amplitudes in receiver noise; `others` overrides fields of `Signal`."""
    noise = {"noise_std": problem.link.noise_std, "privacy_noise_std": problem.link.privacy_noise_std}
    fields = {"transmit_amplitude": None, "constant_power": None, **noise}
    kept = problem.link.noise_std / problem.update_noise_std  # 1 without adaptive clipping
    return Signal(amplitude=amplitude, divisor=total(amplitude) * kept, **fields | others)


def total(amplitude: Floats) -> float:
    """Return D = Σ a_k, as |K|θ if all amplitudes are equal."""
    if amplitude.size and np.all(amplitude == amplitude[0]):
        return amplitude.size * float(amplitude[0])
    return float(np.sum(amplitude))


def effective_participation(amplitude: NDArray[Any]) -> Any:
    """Return 1/(NΣw²), the effective participation ratio of the weights w = a/Σa, along the last axis.

    >>> tuple(round(float(effective_participation(np.array(a))), 6) for a in ([1.0, 1.0, 0.0, 0.0], [3.0, 1.0]))
    (0.5, 0.8)
    """
    largest = np.max(amplitude, axis=-1, keepdims=True)
    weight = amplitude / largest
    return np.square(weight.sum(axis=-1)) / (weight.shape[-1] * np.square(weight).sum(axis=-1))


def thinned(rounds: NDArray[np.int64], num_devices: int) -> NDArray[np.int64]:
    """Return the numbers of rounds to evaluate: for very large fleets a subset, evenly spaced in the logarithm."""
    most = max(_FEWEST_ROUNDS, _MOST_PAIRS // num_devices)
    if rounds.size <= most:
        return rounds
    kept = np.geomspace(1, rounds.size, most).round().astype(np.int64) - 1
    return rounds[np.unique(kept)]
