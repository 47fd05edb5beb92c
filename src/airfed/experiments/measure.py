"""A response, measured by pilots, from little noise to much: every place of the grid once, the better ones again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airfed.experiments.pilots import Cell, Pilots
from airfed.experiments.points import Point
from airfed.experiments.records import Record
from airfed.planning import Response
from airfed.training.state import AVERAGES

Floats = NDArray[np.float64]
Run = Callable[[str, Sequence[Point]], Sequence[Record]]
_HOPELESS: Final = 0.05  # above a guess, at most: more noise makes nothing better of it


class Unmeasured(Exception):
    """Not all pilots have ended; their records say why."""

    def __init__(self, records: Sequence[Record]) -> None:
        super().__init__("Not all pilots have ended.")
        self.records = records


class Outcome(NamedTuple):
    """What a pilot has reached.

    Args:
        accuracy, loss: on the test data, of each average of the models.
    """

    accuracy: Floats
    loss: Floats

    @property
    def best(self) -> float:
        """The accuracy of the best average."""
        return float(self.accuracy.max())


Found = Mapping[Cell, Sequence[Outcome]]  # by place, the first seed's first


def measure(pilots: Pilots, run: Run) -> Response:
    """Run the pilots and return the response.

    At each noise every place is tried with the first seed, and the better half of the (I, ϖ) with the other seeds, too:
    what is never chosen needs no precision. A place that is hardly better than a guess is not tried with more noise. A
    pilot that diverges is worth a guess.

    Args:
        pilots: what to run.
        run: runs points and returns their records (`sweep.run`); told what they are.

    Raises:
        Unmeasured: a pilot was stopped or failed.
    """
    found: dict[Cell, list[Outcome]] = {cell: [] for cell in pilots.cells}
    hopeless: set[Cell] = set()  # with any noise
    guess = _guess(pilots.guess)

    def train(name: str, cells: Sequence[Cell], seeds: Sequence[int]) -> None:
        records = run(name, pilots.points(cells, seeds)) if cells else ()
        if not all(record.ended for record in records):
            raise Unmeasured(records)
        for record in records:
            cell = Cell(*(record.point.values[name] for name in Cell._fields))
            found[cell].append(_outcome(record) if record.status == "finished" else guess)

    for noise in pilots.noise:
        level = [cell for cell in pilots.cells if cell.noise == noise]
        worth = [cell for cell in level if cell._replace(noise=0.0) not in hopeless]
        train(f"noise {noise:g}", worth, pilots.seeds[:1])
        better = better_half({cell: found[cell][0].best for cell in worth})
        train(f"noise {noise:g}, better half", better, pilots.seeds[1:])
        hopeless |= {cell._replace(noise=0.0) for cell in worth if _mean_best(found[cell]) < guess.best + _HOPELESS}
        found |= {cell: [guess, guess] for cell in level if cell not in worth}
    return _response(pilots, found)


def _response(pilots: Pilots, found: Found) -> Response:
    shape = tuple(len(axis) for axis in (pilots.share, pilots.rounds, pilots.clip_norm, pilots.noise))

    def grid(values: Mapping[Cell, Floats]) -> Floats:
        return np.moveaxis(np.array([values[cell] for cell in pilots.cells]).reshape(*shape, -1), -1, 0)

    accuracy = {cell: np.array([outcome.accuracy for outcome in outcomes]) for cell, outcomes in found.items()}
    loss = {cell: np.array([outcome.loss for outcome in outcomes]) for cell, outcomes in found.items()}
    return Response(
        share=np.array(pilots.share),
        rounds=np.array(pilots.rounds, dtype=np.float64),
        clip_norm=np.array(pilots.clip_norm),
        noise=np.array(pilots.noise),
        averages=AVERAGES,
        accuracy=np.clip(grid(means(accuracy)), 0.0, 1.0),
        spread=grid(spreads(accuracy)),
        loss=np.maximum(grid(means(loss)), 0.0),
        loss_spread=grid(spreads(loss)),
        about=pilots.about(),
    )


def _outcome(record: Record) -> Outcome:
    reached = [record.final["averages"][name] for name in AVERAGES]
    return Outcome(
        accuracy=np.array([each["accuracy"] for each in reached]),
        loss=np.array([each["test_loss"] for each in reached]),
    )


def _guess(accuracy: float) -> Outcome:
    """What one reaches who knows nothing."""
    each = np.ones(len(AVERAGES))
    return Outcome(accuracy=accuracy * each, loss=-math.log(accuracy) * each)


def _mean_best(outcomes: Sequence[Outcome]) -> float:
    return float(np.mean([outcome.best for outcome in outcomes]))


def better_half(found: Mapping[Cell, float]) -> list[Cell]:
    """Return, for each share and noise, the better half of the places (the larger half of an odd number)."""
    chosen = []
    for cells in _levels(found):
        ranked = sorted(cells, key=lambda cell: -found[cell])
        chosen += ranked[: (len(ranked) + 1) // 2]
    return chosen


def means(found: Mapping[Cell, Floats]) -> dict[Cell, Floats]:
    """Return the mean of each place over all seeds.

    A place that was tried with the first seed only is put where that seed's luck, which all places share, would have
    left it: by as much lower as the others of its share and noise became with their other seeds.

    Args:
        found: values by place, a row per seed, the first seed's first.
    """
    known: dict[Cell, Floats] = {}
    for cells in _levels(found):
        luck = np.mean([found[cell].mean(axis=0) - found[cell][0] for cell in cells if len(found[cell]) > 1], axis=0)
        for cell in cells:
            known[cell] = found[cell][0] + luck if len(found[cell]) == 1 else found[cell].mean(axis=0)
    return known


def spreads(found: Mapping[Cell, Floats]) -> dict[Cell, Floats]:
    """Return the standard deviation of a training at each place; where one was made, that of the others at its noise.

    Args:
        found: values by place, a row per seed; at each share and noise one place at least has two.
    """
    known: dict[Cell, Floats] = {}
    for cells in _levels(found):
        own: dict[Cell, Floats] = {cell: found[cell].std(axis=0, ddof=1) for cell in cells if len(found[cell]) > 1}
        pooled: Floats = np.sqrt(np.mean(np.square(list(own.values())), axis=0))
        known |= {**dict.fromkeys(cells, pooled), **own}
    return known


def _levels(cells: Iterable[Cell]) -> list[list[Cell]]:
    """The places of each share and noise."""
    levels: dict[tuple[float, float], list[Cell]] = {}
    for cell in cells:
        levels.setdefault((cell.share, cell.noise), []).append(cell)
    return list(levels.values())
