"""Everything that a training needs, from its scenario: plan, air, learning task and noise."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

import airfed
from airfed import channel, seeds
from airfed.aircomp import Airs
from airfed.planning import Plan
from airfed.problem import Fleet
from airfed.scenario import Scenario
from airfed.training.directory import sha256
from airfed.training.noise import NoiseSource, SecureNoise, SeededNoise, noise_key
from airfed.training.task import Task, build_task

PROBE_ROUND: Final = 2**31 - 1  # no plan has it: what the probe trains is never transmitted
_PACKAGES: Final = ("numpy", "scipy", "torch", "numba", "safetensors")


@dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """Everything that a training needs, and that its scenario determines.

    Args:
        scenario, plan, airs, task, noise: what was asked for, decided, and will train.
        signal: digests, by name, of all that shapes what the devices send: `signal_digests`.
    """

    scenario: Scenario
    plan: Plan
    airs: Airs
    task: Task
    noise: NoiseSource
    signal: Mapping[str, str]


def prepare(scenario: Scenario, *, spent: float | None = None) -> Setup:
    """Return the plan, the air, the learning task and the noise of a scenario.

    Two policies on one seed get the same channels, data and initial model.

    Args:
        scenario: what to train.
        spent: μ that the scenario's account had spent when this training was planned; None reads the account.

    Raises:
        ScenarioError, DataError: the scenario or its data is wrong.
        InfeasibleError: there is no plan.
    """
    task = build_task(scenario)
    problem = scenario.problem(dimension=task.dimension, spent=spent)
    plan = scenario.plan(problem)
    signal = signal_digests(scenario, problem.fleet, task)
    return Setup(
        scenario=scenario,
        plan=plan,
        airs=airs_of(scenario, plan),
        task=task,
        noise=noise_source(scenario, signal),
        signal=signal,
    )


def airs_of(scenario: Scenario, plan: Plan) -> Airs:
    """Return the air of all rounds of a scenario's plan: phases and the true channel drawn from the seed.

    Channels of several antennas have phases of their own, and are known exactly.
    """
    fleet, nmse = plan.problem.fleet, scenario.channel.estimation_error
    if fleet.antennas > 1:
        return Airs(plan=plan)
    phase = seeds.stream(scenario.seed, "phase").uniform(-np.pi, np.pi, fleet.num_devices)
    rng = seeds.stream(scenario.seed, "channel", 1)
    gains = np.atleast_2d(fleet.gain)[: plan.rounds]  # where they change, errors are drawn anew in each round
    true = np.array([channel.true_channel(gain, phase, nmse=nmse, rng=rng) for gain in gains])
    return Airs(plan=plan, channel=true, phase=phase)


def signal_digests(scenario: Scenario, fleet: Fleet, task: Task | None = None) -> dict[str, str]:
    """Return what shapes the signal, each part as a digest under the name that a message gives it.

    The scenario (less its policy, its name and how to compute), the channels, and of the task: the data and how they
    are partitioned, the model's code, its initial parameters, the engine and the versions it rests on, and the update
    of one device in one step as it really comes out, to the bit. Whatever else may change how a device trains shows
    there.

    Args:
        scenario: what to train.
        fleet: the channels of all devices. Its combiner is left out: like K and θ it is the policy's choice, within
            what the scenario says of antennas, combining and trust.
        task: what is trained; without it (an audit of a scenario) there is nothing to take a digest of.
    """
    shape = f"{fleet.drawn.dtype} {fleet.drawn.shape}\n".encode()
    found = {"scenario": scenario.digest(), "channels": sha256(shape + fleet.drawn.tobytes())}
    if task is None:
        return found
    return found | {
        "data": task.data_digest,
        "model's code": task.code_digest,
        "initial model": sha256(task.initial_parameters.tobytes()),
        "engine": task.engine.name,
        "versions": json.dumps({name: version for name, version in versions().items() if name != "safetensors"}),
        "probe update": _probe(task),
    }


def noise_source(scenario: Scenario, signal: Mapping[str, str]) -> NoiseSource:
    """Return the receiver's noise: keyed by all that shapes the signal, or fresh from the operating system."""
    return SecureNoise() if scenario.link.noise_source == "secure" else SeededNoise(noise_key(signal))


@cache
def versions() -> dict[str, str | None]:
    """Return the versions of airfed, Python and the packages that a training rests on."""
    found: dict[str, str | None] = {"airfed": airfed.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _probe(task: Task) -> str:
    """The digest of what the first device would send after one step from the initial model."""
    ((_, update),) = task.engine.updates(task.initial_parameters, np.array([0]), steps=1, round_index=PROBE_ROUND)
    return sha256(np.ascontiguousarray(update).tobytes())
