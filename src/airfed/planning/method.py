"""A method: how the scheduled devices' updates reach the receiver, and what follows from it for one round.

The receiver forms y = Σ_k a_k g_k/ϖ + r and takes y·ϖ/D for the mean update, with the received amplitudes a_k of the
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

# A ledger holds numbers: a method without privacy is charged this μ a round, an ε of some 5·10¹⁷.
NOT_PRIVATE_MU: Final = 1e9
_MOST_PAIRS: Final = 20_000_000  # devices times numbers of rounds that are looked at: some seconds
_FEWEST_ROUNDS: Final = 16
UNCLIPPED: Final = 2.0**10  # times ϖ: the guard that bounds even updates that are not clipped


@dataclass(frozen=True, kw_only=True, eq=False)
class Signal:
    """One round as it is transmitted and received."""

    amplitude: Floats  # a_k of the scheduled devices, (m,): how strongly an update of norm ϖ arrives
    transmit_amplitude: Floats | None  # [√W] with which it is transmitted, (m,); None: no update modulates a carrier
    constant_power: Floats | None  # [W] that a device transmits whatever its update is, (m,)
    noise_std: float  # of r, per entry
    hidden_by: float  # s, the standard deviation per entry of the noise that hides one device
    divisor: float  # D
    guard: float = 1.0  # how many times ϖ an update is clipped to
    by_largest: bool = False  # whether the largest update of the round sets the scale of all (COTAF)
    separate: bool = False  # whether each upload is received, and seen, alone, in its share of the noise

    @property
    def power(self) -> Floats:
        """[W] that each scheduled device transmits, at most (‖g_k‖ = ϖ), (m,)."""
        power = np.zeros(self.amplitude.shape)
        with np.errstate(over="ignore"):
            if self.transmit_amplitude is not None:
                power += np.square(self.transmit_amplitude)  # [Yan23, (16)]
            if self.constant_power is not None:
                power += self.constant_power
        return power

    @property
    def noise_share(self) -> float:
        """The noise per entry of the recovered mean, as a share of ϖ."""
        return self.noise_std / self.divisor

    def shortfall(self, num_devices: int) -> float:
        """Return Σ_k (1/N − a_k/D)₊ over all N devices: 1 − |K|/N where the scheduled ones arrive equally strong."""
        missing = 1.0 - self.amplitude.size / num_devices
        if np.all(self.amplitude == self.amplitude[0]):
            return missing
        below = 1.0 / num_devices - self.amplitude / self.divisor
        return missing + float(np.sum(below, where=below > 0))


class Errors(NamedTuple):
    """What each number of rounds would give; arrays of one shape."""

    rounds: NDArray[np.int64]  # I
    level: Floats  # θ, the largest amplitude
    noise_share: Floats  # s/D
    shortfall: Floats  # Σ_k (1/N − a_k/D)₊


class Method(ABC):
    """How updates reach the receiver. A subclass is final: one method, one class, one file."""

    name: ClassVar[str]  # as in a record
    title: ClassVar[str]  # one sentence
    private: ClassVar[bool] = True  # whether it has an ε at all
    radio: ClassVar[bool] = True  # whether the channel shapes what is received

    @abstractmethod
    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ that each limit allows to the given devices in each of I equal rounds."""

    def signal(self, problem: Problem, *, gain: Floats, peak_power: Floats, amplitude: Floats, rounds: int) -> Signal:
        """Return one of I rounds as it is transmitted and received; by default devices invert their channels.

        `gain`, `peak_power` and `amplitude` are those of the scheduled devices, (m,); the problem's fleet is not seen.
        """
        return over_the_air(problem, gain=gain, amplitude=amplitude)

    def require_claim(self, problem: Problem) -> None:  # noqa: B027  # most methods have nothing to add
        """Raise InfeasibleError where the method makes no privacy claim: μ = 2·max a_k/s does not hold there."""

    def schedule(self, problem: Problem) -> Devices:
        """Return the devices that transmit; all of them unless the method says otherwise."""
        return np.arange(problem.fleet.num_devices)

    def amplitudes(self, problem: Problem, devices: Devices, rounds: int) -> Floats:
        """Return a_k of the given devices, (m,), in each of I equal rounds: the largest θ within every limit."""
        if self.radio:
            limits.require_reachable(problem, devices)
        theta = min(self.limits(problem, devices, rounds).values()) * (1 - 1e-13)
        if not theta > 0:
            raise InfeasibleError(f"No plan fits: the limits leave no signal at all ({self.name}).")
        return np.full(devices.shape, theta)

    def symbols(self, problem: Problem, devices: Devices, rounds: int) -> float:
        """Return how many symbols the uploads of one round take."""
        return float(problem.learning.dimension) if self.radio else 0.0

    def errors(self, problem: Problem, devices: Devices, rounds: NDArray[np.int64]) -> Errors:
        """Return what each number of rounds would give; of large fleets some, evenly over their logarithm."""
        rounds = thinned(rounds, devices.size)
        gain, peak = problem.fleet.gain[devices], problem.fleet.peak_power[devices]
        found = []
        for number in rounds.tolist():
            amplitude = self.amplitudes(problem, devices, number)
            on = amplitude > 0
            one = self.signal(problem, gain=gain[on], peak_power=peak[on], amplitude=amplitude[on], rounds=number)
            found.append((amplitude.max(), one.noise_share, one.shortfall(problem.fleet.num_devices)))
        return Errors(rounds, *np.array(found).T)

    def headroom(self, plan: Plan) -> dict[Binding, float]:
        """Return, for each limit, by which factor it would allow all amplitudes of a plan to grow."""
        room: dict[Binding, float] = {}
        for index in (0,) if plan.constant else range(plan.rounds):
            found = self.limits(plan.problem.at(index), plan.amplitudes.devices(index), plan.rounds)
            for name, largest in found.items():
                room[name] = min(room.get(name, np.inf), largest / float(plan.amplitudes.level[index]))
        return room

    def to_dict(self) -> dict[str, Any]:
        """Return its name and its settings as plain values."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]  # subclasses are dataclasses


@final
@dataclass(frozen=True, kw_only=True)
class OverTheAir(Method):
    """Over-the-air aggregation (AirComp): transmit powers a_k²/|h_k|², d symbols a round. [Yan23, (6)-(14)]."""

    name: ClassVar[str] = "over_the_air"
    title: ClassVar[str] = "Updates add up over the air."

    def limits(self, problem: Problem, devices: Devices, rounds: int) -> dict[Binding, float]:
        """Return the largest θ within privacy, peak power and total power."""
        return limits.alignment_limits(problem, devices, rounds)

    def amplitudes(self, problem: Problem, devices: Devices, rounds: int) -> Floats:
        """Return the largest θ within every limit, for each of the devices."""
        return np.full(devices.shape, limits.largest_alignment(problem, devices, np.array([rounds]))[0])

    def errors(self, problem: Problem, devices: Devices, rounds: NDArray[np.int64]) -> Errors:
        """Return what each number of rounds would give, all at once."""
        theta = limits.largest_alignment(problem, devices, rounds)
        with np.errstate(divide="ignore", over="ignore"):
            share = problem.link.noise_std / (devices.size * theta)
        return Errors(rounds, theta, share, np.full(rounds.shape, 1.0 - devices.size / problem.fleet.num_devices))

    def headroom(self, plan: Plan) -> dict[Binding, float]:
        """Return by which factor each limit would allow all amplitudes to grow."""
        return plan.growth_limits()


OVER_THE_AIR: Final = OverTheAir()


def over_the_air(problem: Problem, *, gain: Floats, amplitude: Floats, **others: Any) -> Signal:
    """Return the signal of a round in which devices invert their channels; `others` as in `received`."""
    with np.errstate(divide="ignore", over="ignore"):  # as printed, a plan may ask for more power than there is
        transmit = amplitude / gain
    return received(problem, amplitude, transmit_amplitude=transmit, **others)


def received(problem: Problem, amplitude: Floats, **others: Any) -> Signal:
    """Return the signal of given amplitudes in the receiver's noise, unless `others`, fields of `Signal`, differ."""
    sigma = problem.link.noise_std
    fields = {"transmit_amplitude": None, "constant_power": None, "noise_std": sigma, "hidden_by": sigma} | others
    return Signal(amplitude=amplitude, divisor=total(amplitude), **fields)


def total(amplitude: Floats) -> float:
    """Return D = Σ a_k; |K|θ, rounded once, where all amplitudes are equal."""
    if amplitude.size and np.all(amplitude == amplitude[0]):
        return amplitude.size * float(amplitude[0])
    return float(np.sum(amplitude))


def thinned(rounds: NDArray[np.int64], num_devices: int) -> NDArray[np.int64]:
    """Return those numbers of rounds that are looked at: of very large fleets some, evenly over their logarithm."""
    most = max(_FEWEST_ROUNDS, _MOST_PAIRS // num_devices)
    if rounds.size <= most:
        return rounds
    places = np.geomspace(1, rounds.size, most).round().astype(np.int64) - 1
    return rounds[np.unique(places)]
