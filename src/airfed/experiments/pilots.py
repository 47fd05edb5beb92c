"""Pilots: few devices that train on proxy data, over a grid of rounds, clipping norms and noise.

A pilot is an ordinary run of a scenario in which the radio is as simple as can be: gains and peak powers are 1 and no
budget binds, so that the largest θ is 1, and σ makes σ/(|K|θ) what it shall be. So pilots are run, resumed and recorded
like any sweep. Each tries every average of the models that the receiver may take.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from airfed import __version__
from airfed._files import DataError
from airfed.experiments.points import Point, content_key, dataset_digest
from airfed.keys import ScenarioError
from airfed.learning import data
from airfed.problem import InfeasibleError
from airfed.scenario import Scenario
from airfed.scenario.learning_section import data_source, traits
from airfed.training.setup import build_task

_DEVICES: Final = 20  # that train, at least ...
_IMAGES: Final = 800  # ... and what they hold together, at least: fewer images teach too little
_SHARES: Final = (0.25, 0.5, 1.0)  # of devices whose data differ
_LEAST_NOISE: Final = 1e-3  # of the clipping norm, per coordinate: hardly seen
_NOISE: Final = (0.3, 3.0)  # the range of the largest noise: of interest anywhere, and where nothing is learned
_ABOVE: Final = 4.0  # how much more noise than the scenario's own plans leave is measured
_UNBOUND: Final = {"epsilon": 1e12, "delta": 1e-3, "total_power": 1e15}  # budgets that bind nothing


class Cell(NamedTuple):
    """A place of the grid."""

    share: float
    rounds: int
    clip_norm: float
    noise: float


@dataclass(frozen=True, kw_only=True)
class Pilots:
    """Which trainings a response is measured by.

    Args:
        base: the world of the pilots, less what the grid and the seeds say.
        devices: that transmit in a pilot at |K|/N = 1.
        images: that each device holds.
        share, rounds, clip_norm, noise: the axes of the response.
        seeds: of the trainings.
    """

    base: Scenario
    devices: int
    images: int
    share: tuple[float, ...]
    rounds: tuple[int, ...]
    clip_norm: tuple[float, ...]
    noise: tuple[float, ...]
    seeds: tuple[int, ...]

    @property
    def cells(self) -> list[Cell]:
        """Every place of the grid."""
        return [Cell(*place) for place in itertools.product(self.share, self.rounds, self.clip_norm, self.noise)]

    @property
    def guess(self) -> float:
        """The accuracy of one who knows nothing."""
        return 1.0 / data.load(data_source(self.base)).classes

    def points(self, cells: Iterable[Cell], seeds: Sequence[int]) -> list[Point]:
        """Return the trainings of some places with some seeds."""
        return [self._point(cell, seed) for cell in cells for seed in seeds]

    def _point(self, cell: Cell, seed: int) -> Point:
        size = round(cell.share * self.devices)
        world = self.base.override(
            {
                "name": f"pilot: I={cell.rounds}, clip_norm={cell.clip_norm:g}, noise={cell.noise:g}, seed={seed}",
                "seed": seed,
                "link": {"noise_std": cell.noise * size},
                "learning.clip_norm": cell.clip_norm,
                "policy.size": size,
                "policy.rounds": cell.rounds,
                "run.evaluate_every": cell.rounds,  # the last round is always evaluated
                "run.checkpoint_every": cell.rounds,
            }
        )
        return Point(label="", values={**cell._asdict(), "seed": seed}, scenario=world, key=content_key(world))

    def about(self) -> dict[str, Any]:
        """Return what the pilots are, as plain values."""
        source = data_source(self.base)
        return {
            "dataset": source if isinstance(source, str) else source.name,
            "data_digest": dataset_digest(str(source)),
            "proxy": "The pilots trained on this data set, never on the devices' own data.",
            **traits(self.base.learning),
            "training_images": self.images * self.base.num_devices,
            "devices": self.devices,
            "images_per_device": self.images,
            "seeds": list(self.seeds),
            "airfed": __version__,
        }


def design(
    world: Scenario,
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
    """Return the pilots for a scenario.

    The data are dealt out so that each device holds as many images as one of the scenario does; of those devices a few
    train. Where there are too few images for that, each holds fewer.

    Args:
        world: the scenario.
        dataset: proxy data, as in a scenario; the scenario's own unless given.
        images: of each device; as in the scenario unless given.
        devices: that train; unless given 20, more where 20 hold fewer than 800 images, or all of a smaller fleet.
        rounds: I; five from T/20 to T unless given.
        clip_norms: ϖ; five over the norms that updates have at the start unless given.
        noise: σ/(|K|θ); two in a decade, beyond what the scenario's own plans leave, unless given.
        seeds: two or more; the data and the beginning of a training have the same seed, so best not the scenario's.
        quick: a coarser grid where none is given.

    Raises:
        ScenarioError, DataError: the model has no accuracy, a list is wrong, or the data cannot be had.
    """
    if world.learning.synthetic:
        raise ScenarioError(f"Expected a model that classifies: {world.learning.model!r} has no accuracy to measure.")
    if len(set(seeds)) < max(2, len(seeds)):
        raise ScenarioError(f"Expected --seeds to be two or more different ones, got {_text(seeds)}.")
    steps = world.learning.total_steps
    numbers = _checked("rounds", rounds or _rounds(steps, 3 if quick else 5), most=steps)
    given_norms, given_noise = _checked("clip-norms", clip_norms), _checked("noise", noise)
    own = images or _images(world, proxy=dataset is not None)
    base, count = _proxy(world, dataset, images=own, devices=devices, few=quick)
    local_steps = steps // numbers[-1], -(-steps // numbers[0])
    shares = (1.0,) if world.learning.partition == "iid" else _SHARES
    return Pilots(
        base=base,
        devices=count,
        images=_held(base),
        share=tuple(sorted({max(1, round(share * count)) / count for share in shares})),
        rounds=tuple(int(number) for number in numbers),
        clip_norm=given_norms or _norms(base, local_steps, 3 if quick else 5),
        noise=given_noise or _noise(world, rounds=[int(number) for number in numbers], in_a_decade=1 if quick else 2),
        seeds=tuple(seeds),
    )


def _checked(name: str, values: Sequence[float], *, most: float = math.inf) -> tuple[float, ...]:
    """A list of the user's, sorted."""
    fine = all(0 < value <= most and math.isfinite(value) for value in values)
    if not fine or len(set(values)) < len(values):
        limit = f" and at most {most:g}" if math.isfinite(most) else ""
        raise ScenarioError(f"Expected --{name} to be different numbers > 0{limit}, got {_text(values)}.")
    return tuple(sorted(values))


def _proxy(
    world: Scenario, dataset: str | None, *, images: int, devices: int | None, few: bool
) -> tuple[Scenario, int]:
    """The world of the pilots, and how many of its devices train."""
    enough = max(_DEVICES, -(-_IMAGES // images))
    count = devices or min(world.num_devices, enough // 2 if few else enough)
    if dataset is not None:
        name = dataset if dataset in data.NAMES else str(Path(dataset).resolve())
        world = world.override({"learning.dataset": name, "learning.images": None})
    there = _there(world)
    if count > there:
        raise ScenarioError(f"Expected at least {count} training images, one for each device; there are {there}.")
    fleet = max(count, there // images)
    base = world.override(
        {
            "fleet": {"num_devices": fleet, "peak_power": 1.0},
            "channel": {"model": "fixed", "gains": [1.0] * fleet},
            "link": {"noise_std": 1.0},
            "budget": _UNBOUND,
            "policy": {"name": "top_k", "size": count},
            "run.record": "full",
            "run.averages": "all",
        }
    )
    return base.override({"learning.dimension": base.dimension}), count


def _held(world: Scenario) -> int:
    """How many images each device holds."""
    return _there(world) // world.num_devices


def _there(world: Scenario) -> int:
    """How many training images there are."""
    return world.learning.images or len(data.load(data_source(world)).train_labels)


def _images(world: Scenario, *, proxy: bool) -> int:
    """How many images a device of the scenario holds; 1 where there are not enough."""
    try:
        return max(1, _held(world))
    except (DataError, ScenarioError) as error:
        if not proxy:
            raise
        raise ScenarioError(f"{error} Or say with --images how many a device holds.") from None


def _rounds(steps: int, number: int) -> list[int]:
    """Numbers of rounds from T/20 to T, evenly over their logarithm."""
    return sorted({round(place) for place in np.geomspace(max(1.0, steps / 20), steps, number)})


def _norms(base: Scenario, local_steps: Sequence[float], number: int) -> tuple[float, ...]:
    """Clipping norms from half the norm of an update of the fewest local steps to 1.5 times that of the most."""
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
        raise ScenarioError("Expected updates of a finite norm > 0 at the start of a training; give --clip-norms.")
    places = np.geomspace(means[0] / 2, 1.5 * max(means), number)
    return tuple(dict.fromkeys(float(f"{norm:.2g}") for norm in places))


def _noise(world: Scenario, *, rounds: Sequence[int], in_a_decade: int) -> tuple[float, ...]:
    """Noise up to beyond what plans of the scenario leave by the bound, in the grid's numbers of rounds."""
    by_bound = world.override({"policy": {"name": "optimal"}})
    problem, left = world.problem(), [0.0]
    for number in rounds:
        try:
            left.append(by_bound.plan(problem, rounds=number).noise_share)
        except InfeasibleError:
            continue
    most = float(np.clip(_ABOVE * max(left), *_NOISE))
    number = round(in_a_decade * math.log10(most / _LEAST_NOISE)) + 1
    return tuple(float(f"{level:.2g}") for level in np.geomspace(_LEAST_NOISE, most, number))


def _text(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
