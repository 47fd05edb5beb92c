"""The subject of an audit: a plan and its privacy claims, the channel and the noise, and the record of a run if any.

The adversary's view of a round comes from the code that trains: the plan's AirComp, its noise, the round loop and
`Superposition.receive`. The audit has no formula of its own for the transmitted signals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed.aircomp import AirComp, AirCompRound, ReceivedAggregate, Superposition
from airfed.planning import Plan
from airfed.problem import Adversary
from airfed.scenario import Scenario
from airfed.training.loop import MultipleAccessChannel, Round, federated_averaging
from airfed.training.noise import NoiseSource
from airfed.training.run import Run
from airfed.training.setup import aircomp_of, noise_source, signal_digests

Floats = NDArray[np.float64]

_RTOL: Final = 1e-9
_AT_ONCE: Final = 64  # devices whose received amplitudes are measured in one superposition

Script = Callable[[NDArray[np.float32], int, int], Iterator[tuple[NDArray[np.intp], NDArray[Any]]]]
"""(model, local steps, round) -> the updates, chunk by chunk, with the devices that send them."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of an audit: whether it passed, the finding with its threshold, and the values behind it."""

    name: str
    passed: bool
    finding: str
    figures: dict[str, Any]

    @classmethod
    def of(cls, name: str, passed: bool, finding: str, otherwise: str = "", **figures: Any) -> Check:
        """Return a check; if it failed, its finding is `otherwise`, if given."""
        return cls(name=name, passed=passed, finding=finding if passed or not otherwise else otherwise, figures=figures)


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """The subject of an audit; raises ValueError if the method claims no privacy."""

    scenario: Scenario
    plan: Plan  # its μ and ε are the claims
    aircomp: AirComp
    signal: Mapping[str, str]  # digests of all inputs of the signal, by name; the key of the noise
    run: Run | None = None  # the record, if the plan was run
    against: Adversary | None = None  # the adversary of a receiver with several antennas; None: that of the claim

    def __post_init__(self) -> None:
        if not self.plan.private:
            raise ValueError(f"Policy {self.plan.policy!r} is not private, so there is no privacy claim to audit.")

    @classmethod
    def of(cls, scenario: Scenario) -> Subject:
        """Return the subject of a scenario: its plan and channel, without loading any data."""
        scenario = scenario.chosen()
        problem = scenario.problem()
        plan = scenario.plan(problem)
        signal = signal_digests(scenario, problem.fleet)
        return cls(scenario=scenario, plan=plan, aircomp=aircomp_of(scenario, plan), signal=signal)

    @classmethod
    def of_run(cls, run: Run) -> Subject:
        """Return the subject of a run: its noise and plan; if plan.json was changed, the plan of the scenario."""
        scenario, manifest = run.scenario, run.manifest
        try:
            plan = run.plan
        except ValueError:
            plan = scenario.plan(scenario.problem(dimension=run.figures["dimension"]))
        return cls(scenario=scenario, plan=plan, aircomp=aircomp_of(scenario, plan), signal=manifest["signal"], run=run)

    @property
    def adversary(self) -> Adversary:
        """The adversary that attacks."""
        return self.against or self.plan.problem.link.adversary

    @property
    def sensitivity(self) -> float:
        """The sensitivity in units of ϖ: 2 with replace-one adjacency, 1 with add/remove adjacency."""
        return 2.0 if self.plan.problem.budget.adjacency == "replace_one" else 1.0

    def noise_std_in(self, index: int) -> float:
        """Return the standard deviation, per entry, of the noise on a device's signal in round i."""
        signal = self.plan.sequence.signal(index)
        if self.plan.method.analog and self.plan.problem.link.noise_std_lower is not None:
            return signal.privacy_noise_std  # as weak as the claim allows
        return signal.noise_std / math.sqrt(signal.amplitude.size if signal.orthogonal else 1)  # equal parts

    def seen(self, aggregate: ReceivedAggregate) -> Floats:
        """Return the adversary's view of a round: the combined signal, (1, d), or every antenna's, (Ac, d)."""
        if self.adversary == "combined":
            return aggregate.received[None, :]
        return aggregate.parts.reshape(-1, aggregate.received.size)

    def matched_filters(self, aircomp: AirCompRound) -> Floats:
        """Return the matched filter of each scheduled device, (|K|, 1 or Ac): the noiseless view of norm-ϖ updates.

        The 2-norm of a row is the device's received amplitude.
        """
        found = []
        for first in range(0, aircomp.scheduled.size, _AT_ONCE):
            devices = aircomp.scheduled[first : first + _AT_ONCE]
            view = self.quiet(aircomp, devices, aircomp.clip_norm * np.eye(devices.size))
            found.append(view[:, : devices.size].T)
        return np.concatenate(found)

    def quiet(self, aircomp: AirCompRound, devices: NDArray[np.intp], updates: NDArray[Any]) -> Floats:
        """Return the adversary's view of given updates without noise."""
        superposition = aircomp.open_round(updates.shape[1])
        superposition.add(devices, updates)
        return self.seen(superposition.receive(np.zeros(superposition.noise_size)))

    def sensitivities(self, aircomp: AirCompRound) -> Floats:
        """Return the largest measured change of the adversary's view by each scheduled device, (|K|,)."""
        if not aircomp.indicator:
            return np.asarray(self.sensitivity * np.linalg.norm(self.matched_filters(aircomp), axis=1))
        found = []
        for device in aircomp.scheduled:  # one by one, because they share the entry of the indicator
            views = [self.quiet(aircomp, np.array([device]), update) for update in flipping(aircomp)]
            if self.sensitivity == 2:
                views = [views[0] - views[1]]
            found.append(max(float(np.linalg.norm(view)) for view in views))
        return np.array(found)

    def measured(self, index: int) -> Floats:
        """Return the measured μ of each device scheduled in round i over the plan's claim for it, (|K_i|,)."""
        mus = self.sensitivities(self.aircomp.at(index)) / self.noise_std_in(index)
        return np.asarray(mus / self.plan.sequence.device_mus(index))

    @cached_property
    def exposure(self) -> tuple[Floats, Floats]:
        """The largest ratio of measured to claimed μ in each round, (I,), and the measured μ in total, (N,)."""
        plan, sequence = self.plan, self.plan.sequence
        largest, total = np.empty(plan.rounds), np.zeros(plan.problem.fleet.num_devices)
        for index in range(1 if plan.constant else plan.rounds):
            ratio = self.measured(index)
            largest[index] = ratio.max()
            total[self.aircomp.at(index).scheduled] += np.square(ratio * sequence.device_mus(index))
        if plan.constant:
            largest[:], total = largest[0], plan.rounds * total
        return largest, np.sqrt(total)

    @cached_property
    def target_device(self) -> int:
        """The device that is attacked: the most exposed one, or that furthest above its own claim, if one is."""
        total, claimed = self.exposure[1], self.plan.device_mu
        ratio = np.divide(total, claimed, out=np.zeros(total.shape), where=claimed > 0)
        return int(np.argmax(ratio if ratio.max() > 1 + _RTOL else total))

    def claimed(self, index: int, device: int) -> float:
        """Return the μ that the plan claims for a device scheduled in round i."""
        entry = self.plan.sequence[index]
        return float(entry.device_mu[np.searchsorted(entry.scheduled, device)])

    @cached_property
    def target_rounds(self) -> NDArray[np.intp]:
        """The rounds in which the target device transmits."""
        return self.plan.amplitudes.rounds_of(self.target_device)

    def noise(self, repetition: int = 0, changed: Mapping[str, str] | None = None) -> NoiseSource:
        """Return the noise source of the run (0), of a repetition with another seed, or with digests `changed`."""
        signal = {**self.signal, **(changed or {})}
        if repetition:
            signal["scenario"] = self.scenario.model_copy(update={"seed": self.scenario.seed + repetition}).digest()
        return noise_source(self.scenario, signal)

    def train(
        self,
        engine: ScriptedEngine,
        noise: NoiseSource,
        rounds: Iterable[int],
        channel: MultipleAccessChannel | None = None,
        *,
        adapt: bool = False,
    ) -> Iterator[Round]:
        """Yield the given rounds of the real round loop, from a model of zeros; `channel` replaces the AirComp.

        With `adapt` ϖ follows the indicators from round to round; otherwise every round has the first ϖ.
        """
        parameters, aircomp, norm = np.zeros(engine.dimension, np.float32), channel or self.aircomp, None
        for index in rounds:
            training = federated_averaging(
                self.plan, aircomp, engine, noise, parameters=parameters, clip_norm=norm, first_round=index
            )
            done = next(training)
            parameters, norm = done.parameters, done.next_clip_norm if adapt else None
            yield done


def flipping(aircomp: AirCompRound) -> tuple[Floats, Floats]:
    """Return two updates of one entry that differ most and flip the clipping indicator: ϖ, and −2ϖ, clipped."""
    return np.array([[aircomp.clip_norm]]), np.array([[-2.0 * aircomp.clip_norm]])


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceCopies:
    """The AirComp of a plan in which `count` copies of one device replace all devices: as many trials per round."""

    subject: Subject
    device: int
    count: int

    def at(self, index: int, clip_norm: float | None = None) -> AirCompRound:
        """Return round i, in which the device must be scheduled."""
        aircomp = self.subject.aircomp.at(index, clip_norm)
        copies = np.repeat(aircomp.slots(np.array([self.device])), self.count)
        names = ("transmit_amplitude", "coefficient", "arrival", "transmit_phase", "constant_power")
        return replace(
            aircomp, scheduled=np.arange(self.count), **{name: getattr(aircomp, name)[copies] for name in names}
        )

    def open_round(self, dimension: int, index: int, clip_norm: float | None = None) -> Superposition:
        """Return an empty superposition of round i."""
        scale = self.subject.noise_std_in(index) / self.subject.plan.sequence.signal(index).noise_std
        return _ScaledNoise(self.at(index, clip_norm), dimension, scale)


class _ScaledNoise(Superposition):
    """A superposition that scales the noise to that of one device's own upload."""

    def __init__(self, aircomp: AirCompRound, dimension: int, scale: float) -> None:
        super().__init__(aircomp, dimension)
        self.scale = scale

    def receive(self, noise: Floats) -> ReceivedAggregate:
        return super().receive(self.scale * noise)


@dataclass(frozen=True)
class ScriptedEngine:
    """An engine that sends scripted updates; scheduled devices without an update are missing."""

    dimension: int
    script: Script

    @classmethod
    def of(cls, devices: NDArray[np.intp], updates: NDArray[Any]) -> ScriptedEngine:
        """Return the engine of fixed updates, (m, d), of some devices in every round."""
        return cls(updates.shape[1], lambda parameters, steps, index: iter([(devices, updates)]))

    def updates(
        self, parameters: NDArray[np.float32], devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[Any]]]:
        """Yield the updates of the script."""
        return self.script(parameters, steps, round_index)
