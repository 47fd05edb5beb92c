"""What is audited: a plan and its claims, the air and the noise that are to keep them, and a record if there is one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airfed import antennas
from airfed.air import Air, Airs, Reception
from airfed.learning.task import problem_of
from airfed.planning import FadingPlan, Plan
from airfed.planning.schemes import Masked, Saturated, Truncated
from airfed.planning.uplink import ALIGNED
from airfed.problem import Fleet, Trust
from airfed.running.directory import RunError
from airfed.running.noise import NoiseSource
from airfed.running.run import Run
from airfed.running.setup import airs_of, noise_source, signal_digests
from airfed.scenario import Scenario


def as_seen(plan: Plan) -> Plan:
    """Return the plan of aligned uploads that shows as much of a device as a plan of another scheme does.

    Artificial noise is noise of the receiver's. A trusted server has channels of gain 1 that cost nothing; and digital
    uploads, each seen alone in its device's own noise, show as much as a sum of which all others are known.

    Raises:
        ValueError: the scheme claims no privacy, so that there is nothing to audit.
    """
    if plan.uplink == ALIGNED or isinstance(plan.uplink, Truncated | Saturated):
        return plan
    if not plan.private:
        raise ValueError(f"Expected a policy with an ε to audit; {plan.policy!r} is not private.")
    if isinstance(plan, FadingPlan):
        raise ValueError(f"Expected channels that stay to audit {plan.policy!r}; here each round has noise of its own.")
    problem = plan.problem
    if isinstance(plan.uplink, Masked):
        link = replace(problem.link, noise_std=plan.uploads.noise_std)
        return replace(plan, problem=replace(problem, link=link), uplink=ALIGNED)
    power = 2 * plan.alignment**2
    fleet = Fleet(gain=np.ones(problem.fleet.num_devices), peak_power=power)
    link = replace(problem.link, estimation_error=0.0)
    budget = replace(problem.budget, total_power=power * plan.num_scheduled * plan.rounds)
    return replace(plan, problem=replace(problem, fleet=fleet, link=link, budget=budget), uplink=ALIGNED)


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """What is audited.

    Args:
        scenario: the world.
        plan: the decision, whose μ and ε are the claims.
        airs: what the channel does to the uploads, round by round.
        signal: digests of what shapes the signal, by name; the key of the noise.
        run: the run's record, if it has run.
        decided: the plan as it was decided, of which `plan` is what is seen of it.
        against: who attacks, where the receiver has several antennas: somebody who keeps every antenna's signal, or who
            is handed the combined one; None: whom the claim is made against.
    """

    scenario: Scenario
    plan: Plan
    airs: Airs
    signal: Mapping[str, str]
    run: Run | None = None
    decided: Plan | None = None
    against: Trust | None = None

    @classmethod
    def of(cls, scenario: Scenario) -> Subject:
        """Return the subject that a scenario makes, planned and with its channel drawn, without loading any data."""
        problem = problem_of(scenario)
        decided = scenario.plan(problem)
        plan = as_seen(decided)
        signal = signal_digests(scenario, problem.fleet)
        return cls(scenario=scenario, plan=plan, airs=airs_of(scenario, plan), signal=signal, decided=decided)

    @classmethod
    def of_run(cls, run: Run) -> Subject:
        """Return the subject that a run makes: what was decided, and the noise that it drew.

        A plan that was tampered with is audited as the scenario plans; `record_checks` tells the difference.

        Raises:
            ValueError: the run's scenario or manifest cannot be read, or an older version recorded it.
        """
        scenario, manifest = run.scenario, run.manifest
        if manifest["format"] == 1:  # it does not say what keyed its noise
            raise RunError(
                f"Expected a run of this version in {run.path}; an older one recorded it. Its scenario can be audited: "
                f"airfed audit {run.path / 'scenario.toml'}."
            )
        try:
            plan = run.plan
        except ValueError:
            problem = scenario.problem(dimension=run.figures["dimension"])
            plan = scenario.plan(problem)
        seen = as_seen(plan)
        airs = airs_of(scenario, seen)
        return cls(scenario=scenario, plan=seen, airs=airs, signal=manifest["signal"], run=run, decided=plan)

    @cached_property
    def air(self) -> Air:
        """The air of the most exposed round; of several the last."""
        return self.airs.at(int(np.flatnonzero(self.plan.sequence.mus == self.plan.sequence.mus.max())[-1]))

    @property
    def adversary(self) -> Trust:
        """Who attacks."""
        return self.against or self.plan.problem.link.trust

    def seen(self, reception: Reception, air: Air) -> NDArray[np.float64]:
        """Return what the adversary sees of a round, (1, d), or real and imaginary parts of signals, (2A, d) or (2, d).

        A device that moves it by Δ in the 2-norm moves what its best detector makes of it by as much, and any other by
        less: in white noise nothing else of it counts.
        """
        if reception.antennas is None or air.combiner is None:
            return reception.received[None, :]
        signal = reception.antennas
        if self.adversary == "combiner":
            signal = (np.conj(air.combiner) @ signal)[None, :]
        return np.concatenate((signal.real, signal.imag))

    def filters(self, air: Air) -> NDArray[np.complex128]:
        """Return each scheduled device's matched filter over the antennas, (|K|, A), each of norm 1.

        Its channel, where every antenna's signal is seen; else the combiner, turned to how the device arrives there.
        """
        assert air.arrival is not None
        assert air.combiner is not None
        arrival = air.arrival if self.adversary == "radio" else air.coefficient[:, None] * air.combiner
        return antennas.unit(arrival)

    def scores(self, reception: Reception, air: Air, sent: NDArray[np.intp], directions: Any) -> NDArray[np.float64]:
        """Return what the best linear detector of each device's own direction makes of a round, (m,).

        Args:
            reception, air: the round.
            sent: positions in K of those who had a direction to send, (m,).
            directions: theirs, orthogonal columns, (d, m).
        """
        if reception.antennas is None:
            return np.asarray(reception.received @ directions)
        filters, every = self.filters(air)[sent], reception.antennas
        real, imaginary = (np.einsum("ad,dj->ja", part, directions) for part in (every.real, every.imag))  # no BLAS
        return np.asarray(np.sum(filters.real * real + filters.imag * imaginary, axis=1))

    def amplitudes(self, air: Air) -> NDArray[np.float64]:
        """Return how strongly the adversary sees each scheduled device's update, (|K|,), in units of the update."""
        if air.arrival is None:
            return np.abs(air.coefficient)
        return antennas.strengths(air.arrival) if self.adversary == "radio" else np.abs(air.coefficient)

    @cached_property
    def victim(self) -> int:
        """The device of which the adversary sees most over the training, where rounds differ."""
        plan = self.plan
        assert isinstance(plan, FadingPlan)
        if plan.problem.fleet.antennas == 1 or self.adversary == "combiner":
            return plan.most_exposed
        exposure = plan.problem.fleet.exposure
        exposure = np.broadcast_to(exposure if exposure.ndim == 1 else exposure[: plan.rounds], plan.member.shape)
        seen = np.where(plan.member, plan.alignments[:, None] * exposure, 0.0)
        return int(np.argmax(np.sum(np.square(seen), axis=0)))

    @property
    def noise_std(self) -> float:
        """σ."""
        return self.plan.problem.link.noise_std

    @property
    def replaces(self) -> bool:
        """Whether neighbours replace a device's data (else they add or remove a device)."""
        return self.plan.problem.budget.relation == "replace"

    def noise(self, repetition: int = 0, changed: Mapping[str, str] | None = None) -> NoiseSource:
        """Return the noise of the run itself (0), or of an independent repetition of it under another seed.

        Args:
            repetition: how far the seed is moved.
            changed: parts of the signal that are other than they are, to see whether the noise follows.
        """
        signal = {**self.signal, **(changed or {})}
        if repetition:
            signal["scenario"] = self.scenario.model_copy(update={"seed": self.scenario.seed + repetition}).digest()
        return noise_source(self.scenario, signal)

    def few_rounds(self, rounds: int) -> Subject:
        """Return the subject with few rounds; where they differ, some in which the most exposed device sends."""
        if isinstance(self.plan, FadingPlan):
            sends = np.flatnonzero(self.plan.member[:, self.victim])
            return self._of_rounds(np.resize(sends, rounds))
        learning = self.plan.problem.learning
        learning = replace(learning, total_steps=max(rounds, learning.total_steps))
        plan = replace(self.plan, problem=replace(self.plan.problem, learning=learning), rounds=rounds)
        return replace(self, plan=plan, airs=replace(self.airs, plan=plan))

    def _of_rounds(self, places: NDArray[np.intp], devices: NDArray[np.intp] | None = None) -> Subject:
        """The subject with some rounds of a plan whose rounds differ, and some devices, only."""
        assert isinstance(self.plan, FadingPlan)
        plan, airs = self.plan.of_rounds(places, devices), self.airs
        who = slice(None) if devices is None else devices
        channel, phase = airs.channel, airs.phase
        if channel is not None:
            channel = channel[..., who] if channel.ndim == 1 else channel[places][:, who]
        phase = None if phase is None else phase[who]
        return replace(self, plan=plan, airs=replace(airs, plan=plan, channel=channel, phase=phase))

    def resized(self, *, dimension: int, total_steps: int | None = None) -> Subject:
        """Return the subject with another dimension and other local steps: θ, σ and μ do not depend on them."""
        steps = self.plan.problem.learning.total_steps if total_steps is None else total_steps
        learning = replace(self.plan.problem.learning, dimension=dimension, total_steps=steps)
        plan = replace(self.plan, problem=replace(self.plan.problem, learning=learning))
        return replace(self, plan=plan, airs=replace(self.airs, plan=plan))

    def strongest(self, most: int) -> NDArray[np.intp]:
        """Return positions in K of up to `most` devices that arrive within 0.1% of the strongest, ascending."""
        air = self.air
        amplitude = np.abs(air.coefficient.real) if air.arrival is None else self.amplitudes(air)
        near = np.flatnonzero(amplitude >= 0.999 * amplitude.max())
        order = np.argsort(-amplitude[near], kind="stable")
        return np.sort(near[order[:most]])

    def crowd(self, count: int) -> tuple[Subject, NDArray[np.float64]]:
        """Return the subject with `count` copies of the strongest devices, for a model of dimension `count`.

        What a device adds to the sum does not depend on how many there are: a crowd gives as many trials a round. Where
        rounds differ, all are copies of the one of which the adversary sees most, in the rounds in which it sends. With
        it come the μ_i that are claimed of these rounds.
        """
        if isinstance(self.plan, FadingPlan):
            device = self.victim
            sends = np.flatnonzero(self.plan.member[:, device])
            claimed = np.asarray(self.plan.sequence.mus[sends])
            return self._of_rounds(sends, np.full(count, device)).resized(dimension=count), claimed
        places = self.strongest(count)
        places = np.tile(places, math.ceil(count / places.size))[:count]
        fleet, airs = self.plan.problem.fleet, self.airs
        devices = self.air.scheduled[places]
        crowd = replace(self.plan.problem, fleet=fleet.part(devices))
        plan = replace(self.plan, problem=crowd, scheduled=np.arange(count))
        channel = None if airs.channel is None else airs.channel[devices]
        phase = None if airs.phase is None else airs.phase[devices]
        many = replace(self, plan=plan, airs=replace(airs, plan=plan, channel=channel, phase=phase))
        return many.resized(dimension=count), np.array(self.plan.sequence.mus)
