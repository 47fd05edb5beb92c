"""Pilot runs: few devices train on proxy data, over a grid of rounds, clipping norms and noise; the accuracy surrogate.

A pilot is an ordinary run of a scenario with the simplest radio: gains and peak powers are 1 and no budget binds, so
that the largest θ is 1, and σ sets σ/(|K|θ). So pilots are run, resumed and recorded like any sweep. Each evaluates
every average of the models that the receiver may take.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from airfed.planning import Response
from airfed.problem import InfeasibleError
from airfed.scenario import Scenario
from airfed.scenario.learning_section import data_source, traits
from airfed.training.setup import build_task
from airfed.training.state import AVERAGES

Floats = NDArray[np.float64]
Run = Callable[[str, Sequence[Point]], Sequence[Record]]
_DEVICES: Final = 20  # that train, at least ...
_IMAGES: Final = 800  # ... and what they hold together, at least: fewer images teach too little
_SHARES: Final = (0.25, 0.5, 1.0)  # participation ratios where the devices' data differ
_LEAST_NOISE: Final = 1e-3  # of the clipping norm, per coordinate: hardly seen
_NOISE: Final = (0.3, 3.0)  # the range of the largest noise: relevant anywhere, and where nothing is learned
_ABOVE: Final = 4.0  # how much more noise than that of the scenario's own plans is measured
_UNBOUND: Final = {"epsilon": 1e12, "delta": 1e-3, "total_power": 1e15}  # budgets that do not bind
_HOPELESS: Final = 0.05  # at most so much above chance level: more noise makes nothing better of it


class Cell(NamedTuple):
    """A grid point."""

    share: float
    rounds: int
    clip_norm: float
    noise: float


@dataclass(frozen=True, kw_only=True)
class Pilots:
    """The runs that a surrogate is measured by."""

    base: Scenario  # the scenario of the pilots, without what the grid and the seeds set
    devices: int  # that transmit in a pilot with full participation
    images: int  # that each device holds
    share: tuple[float, ...]  # the axes of the surrogate
    rounds: tuple[int, ...]
    clip_norm: tuple[float, ...]
    noise: tuple[float, ...]
    seeds: tuple[int, ...]  # of the runs

    @property
    def cells(self) -> list[Cell]:
        """Every grid point."""
        return [Cell(*place) for place in itertools.product(self.share, self.rounds, self.clip_norm, self.noise)]

    def points(self, cells: Iterable[Cell], seeds: Sequence[int]) -> list[Point]:
        """Return the runs of some grid points with some seeds."""
        points = []
        for cell, seed in itertools.product(cells, seeds):
            size, rounds = round(cell.share * self.devices), cell.rounds
            changes = {
                "name": f"pilot: I={rounds}, clip_norm={cell.clip_norm:g}, noise={cell.noise:g}, seed={seed}",
                "seed": seed,
                "link": {"noise_std": cell.noise * size},
                "learning.clip_norm": cell.clip_norm,
                "policy.size": size,
                "policy.rounds": rounds,
                "run.evaluate_every": rounds,  # the last round is always evaluated
                "run.checkpoint_every": rounds,
            }
            world, values = self.base.override(changes), {**cell._asdict(), "seed": seed}
            points.append(Point(label="", values=values, scenario=world, key=content_key(world)))
        return points

    def about(self) -> dict[str, Any]:
        """Return the description of the pilots, as plain values."""
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

    The data are partitioned so that each device holds as many images as one of the scenario does; a few of those
    devices train. Where there are too few images for that, each holds fewer.

    Args:
        world: the scenario.
        dataset: proxy data, as in a scenario; by default the scenario's own.
        images: of each device; by default as in the scenario.
        devices: that train; by default 20, more where 20 hold fewer than 800 images, or all of a smaller fleet.
        rounds: I; by default five from T/20 to T.
        clip_norms: ϖ; by default five over the norms that updates have at the start.
        noise: σ/(|K|θ); by default two per decade, up to more than the scenario's own plans have.
        seeds: two or more; the data and the initial model have the same seed, so best not the scenario's.
        quick: a coarser grid by default.
    """
    if world.learning.synthetic:
        raise ScenarioError(f"Expected a model that classifies: {world.learning.model!r} has no accuracy to measure.")
    if len(set(seeds)) < max(2, len(seeds)):
        raise ScenarioError(f"Expected --seeds to be two or more different ones, got {_text(seeds)}.")
    steps = world.learning.total_steps
    spaced = {round(place) for place in np.geomspace(max(1.0, steps / 20), steps, 3 if quick else 5)}
    numbers = [int(number) for number in _checked("rounds", rounds or sorted(spaced), most=steps)]
    given_norms, given_noise = _checked("clip-norms", clip_norms), _checked("noise", noise)
    base, count = _proxy(world, dataset, images=images, devices=devices, few=quick)
    local_steps = steps // numbers[-1], -(-steps // numbers[0])
    shares = (1.0,) if world.learning.partition == "iid" else _SHARES
    return Pilots(
        base=base,
        devices=count,
        images=_available(base) // base.num_devices,
        share=tuple(sorted({max(1, round(share * count)) / count for share in shares})),
        rounds=tuple(numbers),
        clip_norm=given_norms or _norms(base, local_steps, 3 if quick else 5),
        noise=given_noise or _noise(world, rounds=numbers, in_a_decade=1 if quick else 2),
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
    world: Scenario, dataset: str | None, *, images: int | None, devices: int | None, few: bool
) -> tuple[Scenario, int]:
    """The scenario of the pilots, and how many of its devices train."""
    if images is None:
        try:
            images = max(1, _available(world) // world.num_devices)
        except (DataError, ScenarioError) as error:
            if dataset is None:
                raise
            raise ScenarioError(f"{error} Or say with --images how many a device holds.") from None
    enough = max(_DEVICES, -(-_IMAGES // images))
    count = devices or min(world.num_devices, enough // 2 if few else enough)
    if dataset is not None:
        name = dataset if dataset in data.NAMES else str(Path(dataset).resolve())
        world = world.override({"learning.dataset": name, "learning.images": None})
    available = _available(world)
    if count > available:
        raise ScenarioError(f"Expected at least {count} training images, one for each device; there are {available}.")
    fleet = max(count, available // images)
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


def _available(world: Scenario) -> int:
    """How many training images there are."""
    return world.learning.images or len(data.load(data_source(world)).train_labels)


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
    """Noise up to more than that of the scenario's plans by the bound, in the grid's numbers of rounds."""
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


@dataclass(eq=False)
class Unmeasured(Exception):
    """Not all pilots have ended; their records say why."""

    records: Sequence[Record]


def measure(pilots: Pilots, run: Run) -> Response:
    """Run the pilots and return the surrogate.

    At each noise every grid point is run with the first seed, and the better half of the (I, ϖ) with the other seeds,
    too: a point that is never chosen needs no precision. A point that is hardly better than chance is not run with more
    noise. A pilot that diverges counts as chance level.
    """
    chance = 1.0 / data.load(data_source(pilots.base)).classes
    guess = np.array([[chance] * len(AVERAGES), [-math.log(chance)] * len(AVERAGES)])
    found: dict[Cell, list[Floats]] = {cell: [] for cell in pilots.cells}  # per seed: accuracy and loss of each average
    hopeless: set[tuple[float, ...]] = set()  # whatever the noise

    def train(name: str, cells: Sequence[Cell], seeds: Sequence[int]) -> None:
        records = run(name, pilots.points(cells, seeds)) if cells else ()
        if not all(record.ended for record in records):
            raise Unmeasured(records)
        for record in records:
            cell = Cell(*(record.point.values[name] for name in Cell._fields))
            reached = [record.final["averages"][name] for name in AVERAGES] if record.status == "finished" else []
            scores = [[each[name] for each in reached] for name in ("accuracy", "test_loss")]
            found[cell].append(np.array(scores) if reached else guess)

    for noise in pilots.noise:
        level = [cell for cell in pilots.cells if cell.noise == noise]
        worth = [cell for cell in level if cell[:3] not in hopeless]
        train(f"noise {noise:g}", worth, pilots.seeds[:1])
        better = better_half({cell: float(found[cell][0][0].max()) for cell in worth})
        train(f"noise {noise:g}, better half", better, pilots.seeds[1:])
        best = {cell: np.mean([scores[0].max() for scores in found[cell]]) for cell in worth}
        hopeless |= {cell[:3] for cell in worth if best[cell] < chance + _HOPELESS}
        found |= {cell: [guess, guess] for cell in level if cell not in worth}

    shape = tuple(len(axis) for axis in (pilots.share, pilots.rounds, pilots.clip_norm, pilots.noise))
    stacked = {cell: np.array(scores) for cell, scores in found.items()}

    def grids(values: Mapping[Cell, Floats]) -> tuple[Floats, Floats]:
        """Accuracy and loss, (average, share, rounds, clip_norm, noise)."""
        accuracy, loss = np.moveaxis(np.array([values[cell] for cell in pilots.cells]), 0, -1).reshape(2, -1, *shape)
        return accuracy, loss

    (accuracy, loss), (spread, loss_spread) = grids(means(stacked)), grids(spreads(stacked))
    return Response(
        share=np.array(pilots.share),
        rounds=np.array(pilots.rounds, dtype=np.float64),
        clip_norm=np.array(pilots.clip_norm),
        noise=np.array(pilots.noise),
        averages=AVERAGES,
        accuracy=np.clip(accuracy, 0.0, 1.0),
        spread=spread,
        loss=np.maximum(loss, 0.0),
        loss_spread=loss_spread,
        about=pilots.about(),
    )


def better_half(found: Mapping[Cell, float]) -> list[Cell]:
    """Return, for each share and noise, the better half of the grid points (the larger half of an odd number)."""
    chosen = []
    for cells in _levels(found):
        ranked = sorted(cells, key=lambda cell: -found[cell])
        chosen += ranked[: (len(ranked) + 1) // 2]
    return chosen


def means(found: Mapping[Cell, Floats]) -> dict[Cell, Floats]:
    """Return the mean of each grid point over all seeds (`found` has a row per seed, the first seed's first).

    A point that was run with the first seed only is corrected by the effect of that seed, which all points share: by
    the mean change of the others of its share and noise with their other seeds.
    """
    known: dict[Cell, Floats] = {}
    for cells in _levels(found):
        effect = np.mean([found[cell].mean(axis=0) - found[cell][0] for cell in cells if len(found[cell]) > 1], axis=0)
        for cell in cells:
            known[cell] = found[cell][0] + effect if len(found[cell]) == 1 else found[cell].mean(axis=0)
    return known


def spreads(found: Mapping[Cell, Floats]) -> dict[Cell, Floats]:
    """Return the standard deviation over the seeds of each grid point; of a single run that of the others at its noise.

    At each share and noise one point at least has two runs.
    """
    known: dict[Cell, Floats] = {}
    for cells in _levels(found):
        own: dict[Cell, Floats] = {cell: found[cell].std(axis=0, ddof=1) for cell in cells if len(found[cell]) > 1}
        pooled: Floats = np.sqrt(np.mean(np.square(list(own.values())), axis=0))
        known |= {**dict.fromkeys(cells, pooled), **own}
    return known


def _levels(cells: Iterable[Cell]) -> list[list[Cell]]:
    """The grid points of each share and noise."""
    levels: dict[tuple[float, float], list[Cell]] = {}
    for cell in cells:
        levels.setdefault((cell.share, cell.noise), []).append(cell)
    return list(levels.values())
