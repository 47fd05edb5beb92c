"""The object of an audit: a plan and its claims, the channel and the noise that must keep them, and a record if any.

Everything that an adversary sees of a round comes out of the code that trains: the plan's own air, its own noise, the
round loop and `Superposition.receive`. The audit has no formula for what a method transmits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed.aircomp import Air, Airs, Reception, Superposition
from airfed.learning.engine import Engine
from airfed.planning import Plan
from airfed.problem import Trust
from airfed.scenario import Scenario
from airfed.training.loop import Medium, Round, federated_averaging
from airfed.training.noise import NoiseSource
from airfed.training.run import Run
from airfed.training.setup import airs_of, noise_source, signal_digests

Floats = NDArray[np.float64]

_AT_ONCE: Final = 64  # devices whose received amplitudes are measured in one superposition

Script = Callable[[NDArray[np.intp], int], Iterator[tuple[NDArray[np.intp], NDArray[Any]]]]
"""(scheduled devices, round) -> the updates, chunk by chunk, with the devices that send them."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that the audit looked at: whether it passed, the finding in one sentence, the figures behind it."""

    name: str
    passed: bool
    finding: str
    figures: dict[str, Any]

    @classmethod
    def of(cls, name: str, passed: bool, finding: str, otherwise: str = "", **figures: Any) -> Check:
        """Return a check whose finding is `otherwise`, if given, where it failed."""
        return cls(name=name, passed=passed, finding=finding if passed or not otherwise else otherwise, figures=figures)


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """The object of an audit.

    Args:
        scenario, plan, airs: the plan's μ and ε are the claims.
        signal: digests of what shapes the signal, by name; the key of the noise.
        run: the run's record, if it has run.
        against: the adversary, where the receiver has several antennas; None: that of the claim.

    Raises:
        ValueError: the method claims no privacy, so that there is nothing to audit.
    """

    scenario: Scenario
    plan: Plan
    airs: Airs
    signal: Mapping[str, str]
    run: Run | None = None
    against: Trust | None = None

    def __post_init__(self) -> None:
        if not self.plan.private:
            raise ValueError(f"Expected a policy with an ε to audit; {self.plan.policy!r} is not private.")

    @classmethod
    def of(cls, scenario: Scenario) -> Subject:
        """Return the subject that a scenario makes, planned and with its channel drawn, without loading any data."""
        problem = scenario.problem()
        plan = scenario.plan(problem)
        signal = signal_digests(scenario, problem.fleet)
        return cls(scenario=scenario, plan=plan, airs=airs_of(scenario, plan), signal=signal)

    @classmethod
    def of_run(cls, run: Run) -> Subject:
        """Return the subject that a run makes: its noise and plan, or the scenario's where that was tampered with."""
        scenario, manifest = run.scenario, run.manifest
        try:
            plan = run.plan
        except ValueError:
            plan = scenario.plan(scenario.problem(dimension=run.figures["dimension"]))
        return cls(scenario=scenario, plan=plan, airs=airs_of(scenario, plan), signal=manifest["signal"], run=run)

    @property
    def adversary(self) -> Trust:
        """The adversary."""
        return self.against or self.plan.problem.link.trust

    @property
    def sensitivity(self) -> float:
        """2 where neighbours replace a device's data, 1 where they add or remove a device."""
        return 2.0 if self.plan.problem.budget.relation == "replace" else 1.0

    def noise_std_in(self, index: int) -> float:
        """Return the standard deviation, per entry, of the noise in which the adversary sees a device in round i."""
        signal = self.plan.sequence.signal(index)
        return signal.noise_std / math.sqrt(signal.amplitude.size if signal.separate else 1)  # equal shares

    def seen(self, reception: Reception) -> Floats:
        """Return what the adversary sees of a round: the released signal, (1, d), or every antenna's, (Ac, d)."""
        if self.adversary == "combiner":
            return reception.received[None, :]
        return reception.parts.reshape(-1, reception.received.size)

    def responses(self, air: Air) -> Floats:
        """Return how the adversary sees an update of norm ϖ of each scheduled device, without noise, (|K|, 1 or Ac).

        The 2-norm of a row is the device's received amplitude, the row itself its matched filter.
        """
        found = []
        for first in range(0, air.scheduled.size, _AT_ONCE):
            devices = air.scheduled[first : first + _AT_ONCE]
            superposition = air.open_round(devices.size)
            superposition.add(devices, air.clip_norm * np.eye(devices.size))
            found.append(self.seen(superposition.receive(np.zeros(superposition.noise_size))).T)
        return np.concatenate(found)

    @cached_property
    def exposure(self) -> tuple[Floats, Floats]:
        """The measured μ of each round's most exposed device, (I,), and of each device over all rounds, (N,)."""
        plan = self.plan
        most, total = np.empty(plan.rounds), np.zeros(plan.problem.fleet.num_devices)
        for index in range(1 if plan.constant else plan.rounds):
            air = self.airs.at(index)
            mus = self.sensitivity * np.linalg.norm(self.responses(air), axis=1) / self.noise_std_in(index)
            most[index] = mus.max()
            total[air.scheduled] += np.square(mus)
        if plan.constant:
            most[:], total = most[0], plan.rounds * total
        return most, np.sqrt(total)

    @cached_property
    def victim(self) -> int:
        """The device of which the adversary sees most over the training."""
        return int(np.argmax(self.exposure[1]))

    @cached_property
    def sends(self) -> NDArray[np.intp]:
        """The rounds in which the victim transmits."""
        return self.plan.amplitudes.sends(self.victim)

    def noise(self, repetition: int = 0, changed: Mapping[str, str] | None = None) -> NoiseSource:
        """Return the noise of the run itself (0), or of a repetition under another seed, or with parts `changed`."""
        signal = {**self.signal, **(changed or {})}
        if repetition:
            signal["scenario"] = self.scenario.model_copy(update={"seed": self.scenario.seed + repetition}).digest()
        return noise_source(self.scenario, signal)

    def train(
        self, engine: Engine, noise: NoiseSource, rounds: Iterable[int], medium: Medium | None = None
    ) -> Iterator[Round]:
        """Yield the given rounds, trained by the real round loop from a model of zeros; `medium` replaces the air."""
        parameters, air = np.zeros(engine.dimension, np.float32), medium or self.airs
        for index in rounds:
            done = next(federated_averaging(self.plan, air, engine, noise, parameters=parameters, first_round=index))
            parameters = done.parameters
            yield done


@dataclass(frozen=True, kw_only=True, eq=False)
class Crowd:
    """The air of a plan with `count` copies of one device in the place of all others: as many trials in one round."""

    subject: Subject
    device: int
    count: int

    def at(self, index: int) -> Air:
        """Return the air of round i, in which the device must be scheduled."""
        air = self.subject.airs.at(index)
        copies = np.repeat(air.slots(np.array([self.device])), self.count)
        names = ("transmit_amplitude", "coefficient", "arrival", "transmit_phase", "constant_power")
        return replace(air, scheduled=np.arange(self.count), **{name: getattr(air, name)[copies] for name in names})

    def open_round(self, dimension: int, index: int) -> Superposition:
        """Return an empty superposition of round i."""
        share = self.subject.noise_std_in(index) / self.subject.plan.sequence.signal(index).noise_std
        return _Seen(self.at(index), dimension, share)


class _Seen(Superposition):
    """A superposition in which a device is seen in a share of the noise: that of its own upload."""

    def __init__(self, air: Air, dimension: int, share: float) -> None:
        super().__init__(air, dimension)
        self.share = share

    def receive(self, noise: Floats) -> Reception:
        return super().receive(self.share * noise)


class ScriptedEngine:
    """Sends what an adversary wants, whatever the model is; devices without an update stay inactive."""

    name = "scripted"

    def __init__(self, dimension: int, script: Script) -> None:
        self.dimension, self._script = dimension, script

    @classmethod
    def of(cls, devices: NDArray[np.intp], updates: NDArray[Any]) -> ScriptedEngine:
        """Return the engine of fixed updates, (m, d), of some devices in every round."""
        return cls(updates.shape[1], lambda scheduled, index: iter([(devices, updates)]))

    def updates(
        self, parameters: NDArray[np.float32], devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[Any]]]:
        """Yield what the script says."""
        return self._script(devices, round_index)

    def evaluate(
        self, parameters: NDArray[np.float32], images: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> tuple[float, float]:
        """Return zeros: there is no loss."""
        return 0.0, 0.0

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
