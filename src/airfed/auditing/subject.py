"""What is audited: a plan and its claims, the air and the noise that are to keep them, and a record if there is one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from airfed.air import Air, Airs
from airfed.learning.task import dimension_of
from airfed.planning import Plan
from airfed.problem import Fleet
from airfed.running.directory import RunError
from airfed.running.noise import NoiseSource
from airfed.running.run import Run
from airfed.running.setup import airs_of, noise_source, signal_digests
from airfed.scenario import Scenario


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """What is audited.

    Args:
        scenario: the world.
        plan: the decision, whose μ and ε are the claims.
        airs: what the channel does to the uploads, round by round.
        signal: digests of what shapes the signal, by name; the key of the noise.
        run: the run's record, if it has run.
    """

    scenario: Scenario
    plan: Plan
    airs: Airs
    signal: Mapping[str, str]
    run: Run | None = None

    @classmethod
    def of(cls, scenario: Scenario, *, dimension: int | None = None) -> Subject:
        """Return the subject that a scenario makes, planned and with its channel drawn, without loading any data."""
        problem = scenario.problem(dimension=dimension_of(scenario) if dimension is None else dimension)
        plan = scenario.plan(problem)
        signal = signal_digests(scenario, problem.fleet.gain)
        return cls(scenario=scenario, plan=plan, airs=airs_of(scenario, plan), signal=signal)

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
        return cls(scenario=scenario, plan=plan, airs=airs_of(scenario, plan), signal=manifest["signal"], run=run)

    @cached_property
    def air(self) -> Air:
        """The air of the most exposed round, the last."""
        return self.airs.at(-1)

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

    def resized(self, *, dimension: int, rounds: int | None = None) -> Plan:
        """Return the plan for a model of another dimension: θ, σ and μ do not depend on it."""
        learning = replace(self.plan.problem.learning, dimension=dimension)
        problem = replace(self.plan.problem, learning=learning)
        return replace(self.plan, problem=problem, rounds=self.plan.rounds if rounds is None else rounds)

    def strongest(self, most: int) -> NDArray[np.intp]:
        """Return positions in K of up to `most` devices that arrive within 0.1% of the strongest, ascending."""
        amplitude = np.abs(self.air.coefficient.real)
        near = np.flatnonzero(amplitude >= 0.999 * amplitude.max())
        order = np.argsort(-amplitude[near], kind="stable")
        return np.sort(near[order[:most]])

    def crowd(self, count: int) -> tuple[Plan, Airs]:
        """Return plan and airs of `count` copies of the strongest devices, for a model of dimension `count`.

        What a device adds to the sum does not depend on how many there are: a crowd gives as many trials a round.
        """
        places = self.strongest(count)
        places = np.tile(places, math.ceil(count / places.size))[:count]
        fleet, airs = self.plan.problem.fleet, self.airs
        devices = self.air.scheduled[places]
        crowd = Fleet(gain=fleet.gain[devices], peak_power=fleet.peak_power[devices])
        plan = self.resized(dimension=count)
        plan = replace(plan, problem=replace(plan.problem, fleet=crowd), scheduled=np.arange(count))
        channel = None if airs.channel is None else airs.channel[devices]
        phase = None if airs.phase is None else airs.phase[devices]
        return plan, replace(airs, plan=plan, channel=channel, phase=phase)
