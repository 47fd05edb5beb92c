"""Pilot runs on proxy data over a grid of rounds, clipping norms and noise, and the accuracy surrogate made of them.

A pilot run is an ordinary run of a scenario with the simplest link: gains and peak powers are 1 and no budget binds, so
that the largest θ is 1, and σ sets σ/(|K|θ). It is scored on a validation split of the training images.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airfed import __version__
from airfed._files import DataError
from airfed.experiments.points import Point, content_key, dataset_digest
from airfed.experiments.results import Record
from airfed.keys import ScenarioError
from airfed.learning import data
from airfed.planning import Surrogate
from airfed.problem import InfeasibleError
from airfed.scenario import Scenario
from airfed.scenario.learning_section import data_source, traits
from airfed.training.setup import build_task
from airfed.training.state import AVERAGES

Floats = NDArray[np.float64]
RunPoints = Callable[[str, Sequence[Point]], Sequence[Record]]
_DEVICES: Final = 20  # that train, at least
_IMAGES: Final = 800  # of all these devices, at least: fewer are too few to learn from
_VALIDATION: Final = (5, 5000)  # every fifth training image, at most so many
_DIGESTS: Final = 1000  # of training images, by which data sets that overlap are recognised
_PARTICIPATION: Final = (0.25, 0.5, 1.0)  # participation ratios where the devices' data differ
_LEAST_NOISE: Final = 1e-3  # relative to the clipping norm, per coordinate: negligible
_NOISE: Final = (0.3, 3.0)  # range of the largest noise level: with the last one nothing is learned
_ABOVE: Final = 4.0  # largest noise level, relative to that of the scenario's plans
_UNBOUND: Final = {"epsilon": 1e12, "delta": 1e-3, "total_power": 1e15}  # budgets that do not bind
_HOPELESS: Final = 0.05  # accuracy above chance level, below which more noise is not tried


class GridPoint(NamedTuple):
    """A grid point of the surrogate."""

    participation: float
    rounds: int
    clip_norm: float
    noise: float


@dataclass(frozen=True, kw_only=True)
class Pilots:
    """The pilot runs of a surrogate."""

    base: Scenario  # of the pilot runs; grid point and seed change it
    devices: int  # that transmit with full participation
    images: int  # of each device
    participation: tuple[float, ...]  # the axes of the surrogate
    rounds: tuple[int, ...]
    clip_norm: tuple[float, ...]
    noise: tuple[float, ...]
    seeds: tuple[int, ...]  # of the runs

    @property
    def grid(self) -> list[GridPoint]:
        """All grid points."""
        axes = (self.participation, self.rounds, self.clip_norm, self.noise)
        return [GridPoint(*values) for values in itertools.product(*axes)]

    def points(self, grid: Iterable[GridPoint], seeds: Sequence[int]) -> list[Point]:
        """Return the runs of some grid points with some seeds."""
        points = []
        for at, seed in itertools.product(grid, seeds):
            size, rounds = round(at.participation * self.devices), at.rounds
            changes = {
                "name": f"pilot: I={rounds}, clip_norm={at.clip_norm:g}, noise={at.noise:g}, seed={seed}",
                "seed": seed,
                "link": {"noise_std": at.noise * size},
                "learning.clip_norm": at.clip_norm,
                "policy.size": size,
                "policy.rounds": rounds,
                "run.evaluate_every": rounds,  # the last round is always evaluated
                "run.checkpoint_every": rounds,
            }
            scenario, values = self.base.override(changes), {**at._asdict(), "seed": seed}
            points.append(Point(label="", values=values, scenario=scenario, key=content_key(scenario)))
        return points

    def about(self) -> dict[str, Any]:
        """Return the description of the pilot runs as plain values."""
        source = data_source(self.base)
        return {
            "dataset": source if isinstance(source, str) else source.name,
            "data_digest": dataset_digest(str(source)),
            "image_digests": sorted(data.image_digests(data.load(source)))[:_DIGESTS],
            **traits(self.base.learning),
            "dimension": self.base.learning.dimension,
            "training_images": self.images * self.base.num_devices,
            "devices": self.devices,
            "images_per_device": self.images,
            "scored_on": "validation",  # a split of the training images; never the test images
            "validation_images": self.base.learning.validation_images,
            "seeds": list(self.seeds),
            "airfed": __version__,
        }


def design(
    scenario: Scenario,
    *,
    dataset: str | None = None,
    images: int | None = None,
    devices: int | None = None,
    rounds: Sequence[int] = (),
    clip_norms: Sequence[float] = (),
    noise: Sequence[float] = (),
    seeds: Sequence[int] = (101, 102),
    quick: bool = False,
) -> Pilots:
    """Return the pilot runs of a scenario.

    The data (`dataset`: proxy data) are partitioned so that each device has as many images as in the scenario, and a
    few of these devices train. `seeds` are two or more, of data and initial model too. Defaults:

    - devices: 20, more if 20 have fewer than 800 images, or all of a smaller fleet.
    - rounds I: five values from T/20 to T; clip_norms ϖ: five over the norms of the first updates.
    - noise σ/(|K|θ): two per decade, up to more than that of the scenario's plans.
    """
    if scenario.learning.synthetic:
        raise ScenarioError(
            f"learning.model must be a classifier, got {scenario.learning.model!r}, which has no accuracy."
        )
    if len(set(seeds)) < max(2, len(seeds)):
        raise ScenarioError(f"--seeds must be two or more different seeds, got {_text(seeds)}.")
    steps = scenario.learning.total_steps
    spaced = {round(value) for value in np.geomspace(max(1.0, steps / 20), steps, 3 if quick else 5)}
    numbers = [int(number) for number in _checked("rounds", rounds or sorted(spaced), most=steps)]
    given_norms, given_noise = _checked("clip-norms", clip_norms), _checked("noise", noise)
    base, count = _proxy(scenario, dataset, images=images, devices=devices, few=quick)
    local_steps = steps // numbers[-1], -(-steps // numbers[0])
    ratios = (1.0,) if scenario.learning.partition == "iid" else _PARTICIPATION
    return Pilots(
        base=base,
        devices=count,
        images=_available(base) // base.num_devices,
        participation=tuple(sorted({max(1, round(ratio * count)) / count for ratio in ratios})),
        rounds=tuple(numbers),
        clip_norm=given_norms or _norms(base, local_steps, 3 if quick else 5),
        noise=given_noise or _noise(scenario, rounds=numbers, in_a_decade=1 if quick else 2),
        seeds=tuple(seeds),
    )


def _checked(name: str, values: Sequence[float], *, most: float = math.inf) -> tuple[float, ...]:
    """Return a list that the user gave, sorted."""
    fine = all(0 < value <= most and math.isfinite(value) for value in values)
    if not fine or len(set(values)) < len(values):
        limit = f" and at most {most:g}" if math.isfinite(most) else ""
        raise ScenarioError(f"--{name} must be different numbers > 0{limit}, got {_text(values)}.")
    return tuple(sorted(values))


def _proxy(
    scenario: Scenario, dataset: str | None, *, images: int | None, devices: int | None, few: bool
) -> tuple[Scenario, int]:
    """Return the scenario of the pilot runs, and the number of devices that train."""
    if images is None:
        try:
            images = max(1, _available(scenario) // scenario.num_devices)
        except (DataError, ScenarioError) as error:
            if dataset is None:
                raise
            raise ScenarioError(f"{error} Or give the images per device (--images).") from None
    enough = max(_DEVICES, -(-_IMAGES // images))
    count = devices or min(scenario.num_devices, enough // 2 if few else enough)
    if dataset is not None:
        name = dataset if dataset in data.NAMES else str(Path(dataset).resolve())
        scenario = scenario.override({"learning.dataset": name})
    scenario = scenario.override({"learning.images": None, "learning.validation_images": None})
    every = _available(scenario)
    held_out = max(1, min(every // _VALIDATION[0], _VALIDATION[1]))
    available = every - held_out
    if count > available:
        raise ScenarioError(
            f"{count} devices need at least one training image each, got {available} besides {held_out} for validation."
        )
    fleet = max(count, available // images)
    base = scenario.override(
        {
            "fleet": {"num_devices": fleet, "peak_power": 1.0},
            "channel": {"model": "fixed", "gains": [1.0] * fleet},
            "link": {"noise_std": 1.0},
            "budget": _UNBOUND,
            "learning.validation_images": held_out,
            "policy": {"name": "top_k", "size": count, "objective": "bound"},
            "learning.adaptive_clipping": None,
            "run.record": "full",
            "run.averages": "all",
        }
    )
    return base.override({"learning.dimension": base.dimension}), count


def _available(scenario: Scenario) -> int:
    """Return the number of training images that devices hold."""
    learning = scenario.learning
    held_out = learning.validation_images or 0
    return learning.images or len(data.load(data_source(scenario)).train_labels) - held_out


def _norms(base: Scenario, local_steps: Sequence[float], number: int) -> tuple[float, ...]:
    """Return clipping norms from half the norm of an update of the fewest local steps to 1.5 times that of the most."""
    task = build_task(base)
    means = []
    try:
        devices = np.arange(min(_DEVICES, base.num_devices))
        for steps in local_steps:
            updates = task.engine.updates(task.initial_parameters, devices, steps=int(steps), round_index=0)
            means.append(float(np.mean([np.linalg.norm(update) for _, some in updates for update in some])))
    finally:
        task.engine.close()
    if not all(0 < mean < math.inf for mean in means):
        raise ScenarioError("The norms of the first updates are zero or infinite. Give --clip-norms.")
    norms = np.geomspace(means[0] / 2, 1.5 * max(means), number)
    return tuple(dict.fromkeys(float(f"{norm:.2g}") for norm in norms))


def _noise(scenario: Scenario, *, rounds: Sequence[int], in_a_decade: int) -> tuple[float, ...]:
    """Return noise levels up to more than that of the scenario's plans by the bound, for the grid's rounds."""
    by_bound = scenario.override({"policy": {"name": "optimal", "objective": "bound"}})
    problem, levels = scenario.problem(), [0.0]
    for number in rounds:
        try:
            levels.append(by_bound.plan(problem, rounds=number).noise_share)
        except InfeasibleError:
            continue
    most = float(np.clip(_ABOVE * max(levels), *_NOISE))
    number = round(in_a_decade * math.log10(most / _LEAST_NOISE)) + 1
    return tuple(float(f"{level:.2g}") for level in np.geomspace(_LEAST_NOISE, most, number))


def _text(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


@dataclass(eq=False)
class MissingPilots(Exception):
    """Not all pilot runs have ended; their records have the reasons."""

    records: Sequence[Record]


def run_pilots(pilots: Pilots, run: RunPoints) -> Surrogate:
    """Run the pilots and return the surrogate, whose axes are checked before anything is trained.

    At each noise level every grid point is run with the first seed, and the better half of the (I, ϖ) with the other
    seeds too. A point near chance level is not run with more noise. A run that diverges counts as chance level.
    """
    axes = (pilots.participation, pilots.rounds, pilots.clip_norm, pilots.noise)
    shape = (len(AVERAGES), *map(len, axes))
    untrained = np.zeros(shape)
    empty = Surrogate(
        participation=np.array(pilots.participation),
        rounds=np.array(pilots.rounds, dtype=np.float64),
        clip_norm=np.array(pilots.clip_norm),
        noise=np.array(pilots.noise),
        averages=AVERAGES,
        accuracy=untrained,
        spread=untrained,
        loss=untrained,
        loss_spread=untrained,
        about=pilots.about(),
    )
    chance = 1.0 / data.load(data_source(pilots.base)).classes
    at_chance = np.array([[chance] * len(AVERAGES), [-math.log(chance)] * len(AVERAGES)])
    found: dict[GridPoint, list[Floats]] = {at: [] for at in pilots.grid}  # per seed: accuracy, loss of each average
    hopeless: set[tuple[float, ...]] = set()  # not run with more noise

    def train(name: str, grid: Sequence[GridPoint], seeds: Sequence[int]) -> None:
        records = run(name, pilots.points(grid, seeds)) if grid else ()
        if not all(record.ended for record in records):
            raise MissingPilots(records)
        for record in records:
            at = GridPoint(*(record.point.values[name] for name in GridPoint._fields))
            averages = [record.final["averages"][name] for name in AVERAGES] if record.status == "finished" else []
            scores = np.array([[each[name] for each in averages] for name in ("accuracy", "test_loss")], dtype=float)
            found[at].append(scores if averages and np.isfinite(scores).all() else at_chance)

    for noise in pilots.noise:
        level = [at for at in pilots.grid if at.noise == noise]
        worth = [at for at in level if at[:3] not in hopeless]
        train(f"noise {noise:g}", worth, pilots.seeds[:1])
        better = better_half({at: float(found[at][0][0].max()) for at in worth})
        train(f"noise {noise:g}, better half", better, pilots.seeds[1:])
        best = {at: np.mean([scores[0].max() for scores in found[at]]) for at in worth}
        hopeless |= {at[:3] for at in worth if best[at] < chance + _HOPELESS}
        found |= {at: [at_chance, at_chance] for at in level if at not in worth}

    known = estimates({at: np.array(scores) for at, scores in found.items()})
    table = np.array([known[at] for at in pilots.grid])  # of each point: mean and spread of accuracy and loss
    (accuracy, loss), (spread, loss_spread) = np.moveaxis(table, 0, -1).reshape(2, 2, *shape)
    return replace(
        empty,
        accuracy=np.clip(accuracy, 0.0, 1.0),
        spread=spread,
        loss=np.maximum(loss, 0.0),
        loss_spread=loss_spread,
    )


def better_half(found: Mapping[GridPoint, float]) -> list[GridPoint]:
    """Return, for each participation and noise, the better half of the grid points (rounded up)."""
    better = []
    for level in _levels(found):
        ranked = sorted(level, key=lambda at: -found[at])
        better += ranked[: (len(ranked) + 1) // 2]
    return better


def estimates(found: Mapping[GridPoint, Floats]) -> dict[GridPoint, tuple[Floats, Floats]]:
    """Return mean and standard deviation of each grid point over the seeds (`found` has a row per seed, in order).

    A point that was run with the first seed only gets the mean change of the other points of its participation and
    noise with their other seeds, and their pooled deviation. At each participation and noise one point has two runs.
    """
    known: dict[GridPoint, tuple[Floats, Floats]] = {}
    for level in _levels(found):
        several = [found[at] for at in level if len(found[at]) > 1]
        effect = np.mean([runs.mean(axis=0) - runs[0] for runs in several], axis=0)
        pooled = np.sqrt(np.mean(np.square([runs.std(axis=0, ddof=1) for runs in several]), axis=0))
        for at in level:
            runs = found[at]
            once = len(runs) == 1
            known[at] = (runs[0] + effect, pooled) if once else (runs.mean(axis=0), runs.std(axis=0, ddof=1))
    return known


def _levels(grid: Iterable[GridPoint]) -> list[list[GridPoint]]:
    """Return the grid points of each participation and noise."""
    levels: dict[tuple[float, float], list[GridPoint]] = {}
    for at in grid:
        levels.setdefault((at.participation, at.noise), []).append(at)
    return list(levels.values())
