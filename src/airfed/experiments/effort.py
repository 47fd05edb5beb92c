"""How long the runs of a sweep will take: what each has to compute, and how fast this machine was just now."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed.experiments.points import Point
from airfed.experiments.sweep import is_open
from airfed.running.task import ImageTask, Task, build_task
from airfed.scenario import Scenario
from airfed.showing.words import count, duration

_PROBED_DEVICES: Final = 20
_START_SECONDS: Final = 1.0  # of each run: data, engine, files
_PLANNING_SECONDS: Final = 5.0  # for all points together; the rest are taken to be like those before


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What there is to do.

    Args:
        runs: points that differ, in all.
        done: of them.
        seconds: that the others are expected to take, `jobs` at a time; None where it could not be measured.
        costs: the seconds of each run by key, for the progress.
        jobs: runs at a time.
    """

    runs: int
    done: int
    seconds: float | None
    costs: Mapping[str, float] = field(default_factory=dict)
    jobs: int = 1

    def sentence(self) -> str:
        """Return all that in one sentence."""
        left = self.runs - self.done
        if not left:
            return f"{count(self.runs, 'run')}, all done already."
        text = f"{count(self.runs, 'run')}: {self.done} done already, {left} to do"
        if self.seconds is None:
            return f"{text}; how long they take will be seen."
        return (
            f"{text}, about {duration(self.seconds)} (an estimate: {self.jobs} at a time, at the speed of this machine "
            "just now)."
        )


def expect(points: Sequence[Point], out: Path, *, jobs: int) -> Effort:
    """Return how much of a sweep is left and how long it will take.

    A training's work is (scheduled devices) × (local steps) × (images in a step), and its evaluations. What an image
    and an evaluation take is measured on one step of a few devices, once per model and data set.

    Args:
        points: of the sweep.
        out: its folder; what is done there already is not counted.
        jobs: points at a time.
    """
    worlds = {point.key: point.scenario for point in points if point.scenario is not None}
    left = {point.key for point in points if point.scenario is not None and is_open(out, point)}
    if not left:
        return Effort(runs=len(worlds), done=len(worlds), seconds=0.0, jobs=jobs)
    rates = {}
    for key in left:
        kind = _kind(worlds[key])
        if kind not in rates:
            rates[kind] = _probe(worlds[key], threads=1 if jobs > 1 else None)
    costs = _costs({key: world for key, world in worlds.items() if rates.get(_kind(world))}, rates)
    known = [costs[key] for key in left if key in costs]
    seconds = None
    if known:
        mean = sum(known) / len(known)
        seconds = max(mean * len(left) / jobs, *known)
        costs = {key: costs.get(key, mean) for key in worlds}
    return Effort(runs=len(worlds), done=len(worlds) - len(left), seconds=seconds, costs=costs, jobs=jobs)


@dataclass(frozen=True, kw_only=True)
class _Rate:
    """Seconds per image and step of training, per evaluation, and the images of all devices together."""

    image: float
    evaluation: float
    images: int


_Kind = tuple[str, str, int | None, str, Path]


def _kind(world: Scenario) -> _Kind:
    learning = world.learning
    return f"{learning.model} {learning.network}", learning.dataset, learning.images, world.run.engine, world.folder


def _probe(world: Scenario, *, threads: int | None) -> _Rate | None:
    """Measure a step of a few devices; None where the scenario does not get that far.

    A user's own model is not measured: what it may do (exhaust the memory, end the process) is for a worker to risk.
    """
    if ":" in world.learning.model:
        return None
    try:
        task = build_task(world.override({"run.threads": threads}) if threads else world)
        try:
            return _measure(world, task)
        finally:
            task.engine.close()
    except (ValueError, OSError, RuntimeError, ArithmeticError, MemoryError, ImportError):  # its run will say why
        return None


def _measure(world: Scenario, task: Task) -> _Rate:
    devices = np.arange(min(world.num_devices, _PROBED_DEVICES))
    _train(task, devices[:1])  # the first step compiles and allocates
    started = time.perf_counter()
    _train(task, devices)
    trained = time.perf_counter()
    task.evaluate(task.initial_parameters)
    evaluated = time.perf_counter()
    own = task.shards.shape[1] if isinstance(task, ImageTask) else 1
    return _Rate(
        image=(trained - started) / (devices.size * (world.learning.batch_size or own)),
        evaluation=evaluated - trained,
        images=own * world.num_devices,
    )


def _train(task: Task, devices: NDArray[np.intp]) -> None:
    for _ in task.engine.updates(task.initial_parameters, devices, steps=1, round_index=0):
        pass


def _costs(worlds: Mapping[str, Scenario], rates: Mapping[_Kind, _Rate | None]) -> dict[str, float]:
    costs: dict[str, float] = {}
    started = time.monotonic()
    for key, world in worlds.items():
        rate = rates[_kind(world)]
        assert rate is not None  # the others were left out
        if time.monotonic() - started > _PLANNING_SECONDS:
            break
        devices, rounds = _plan(world)
        images = 1 if world.learning.synthetic else rate.images / world.num_devices
        steps = devices * world.learning.total_steps * (world.learning.batch_size or images)
        costs[key] = _START_SECONDS + steps * rate.image + rounds / world.run.evaluate_every * rate.evaluation
    return costs


def _plan(world: Scenario) -> tuple[int, int]:
    """How many devices transmit in how many rounds; everybody and in every step, where the plan is not known yet."""
    try:
        plan = world.plan()
    except ValueError:
        return world.num_devices, world.learning.total_steps
    return plan.num_scheduled, plan.rounds
