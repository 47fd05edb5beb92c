"""Everything that a training needs, from its scenario: plan, air, learning task and noise."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airfed import channel, planning, seeds
from airfed.air import Air
from airfed.learning.task import Task, build_task
from airfed.planning import Plan
from airfed.running.noise import NoiseSource, SecureNoise, SeededNoise, noise_key
from airfed.scenario import Scenario


@dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """Everything that a training needs, and that its scenario determines."""

    scenario: Scenario
    plan: Plan
    air: Air
    task: Task
    noise: NoiseSource


def prepare(scenario: Scenario) -> Setup:
    """Return the plan, the air, the learning task and the noise of a scenario.

    Two policies on one seed get the same channels, data, initial model and noise.

    Raises:
        ScenarioError, DataError: the scenario or its data is wrong.
        InfeasibleError: there is no plan.
    """
    task = build_task(scenario)
    problem = scenario.problem(dimension=task.dimension)
    plan = planning.from_policy(problem, scenario.policy, seed=scenario.seed)
    return Setup(
        scenario=scenario,
        plan=plan,
        air=air_of(scenario, plan),
        task=task,
        noise=noise_source(scenario, problem.fleet.gain, task.data_digest),
    )


def air_of(scenario: Scenario, plan: Plan) -> Air:
    """Return the air of a scenario's plan: phases and the true channel drawn from the seed."""
    gain = plan.problem.fleet.gain
    phase = seeds.stream(scenario.seed, "phase").uniform(-np.pi, np.pi, gain.size)
    true = channel.true_channel(
        gain, phase, nmse=scenario.channel.estimation_error, rng=seeds.stream(scenario.seed, "channel", 1)
    )
    return Air.from_plan(plan, channel=true, phase=phase)


def noise_source(scenario: Scenario, gain: NDArray[np.float64], data_digest: str) -> NoiseSource:
    """Return the receiver's noise: keyed by seed, scenario, gains and data, or fresh from the operating system."""
    if scenario.link.noise_source == "secure":
        return SecureNoise()
    world = hashlib.sha256(scenario.digest().encode() + gain.tobytes()).hexdigest()
    return SeededNoise(noise_key(scenario.seed, world, data_digest))
