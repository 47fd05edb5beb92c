"""A response, measured by pilots, from little noise to much: every place of the grid once, the better ones again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from airfed.experiments.pilots import Cell, Pilots
from airfed.experiments.points import Point
from airfed.experiments.records import Record
from airfed.planning import Response

Run = Callable[[str, Sequence[Point]], Sequence[Record]]
_HOPELESS: Final = 0.05  # above a guess, at most: more noise makes nothing better of it


class Unmeasured(Exception):
    """Not all pilots have ended; their records say why."""

    def __init__(self, records: Sequence[Record]) -> None:
        super().__init__("Not all pilots have ended.")
        self.records = records


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
    found: dict[Cell, list[float]] = {cell: [] for cell in pilots.cells}
    hopeless: set[Cell] = set()  # with any noise
    guess = pilots.guess

    def train(name: str, cells: Sequence[Cell], seeds: Sequence[int]) -> None:
        records = run(name, pilots.points(cells, seeds)) if cells else ()
        if not all(record.ended for record in records):
            raise Unmeasured(records)
        for record in records:
            cell = Cell(*(record.point.values[name] for name in Cell._fields))
            found[cell].append(float(record.final["accuracy"]) if record.status == "finished" else guess)

    for noise in pilots.noise:
        level = [cell for cell in pilots.cells if cell.noise == noise]
        worth = [cell for cell in level if cell._replace(noise=0.0) not in hopeless]
        train(f"noise {noise:g}", worth, pilots.seeds[:1])
        train(f"noise {noise:g}, better half", better_half({cell: found[cell][0] for cell in worth}), pilots.seeds[1:])
        hopeless |= {cell._replace(noise=0.0) for cell in worth if np.mean(found[cell]) < guess + _HOPELESS}
        found |= {cell: [guess, guess] for cell in level if cell not in worth}
    mean = means(found)
    spread = spreads(found)
    shape = tuple(len(axis) for axis in (pilots.share, pilots.rounds, pilots.clip_norm, pilots.noise))
    return Response(
        share=np.array(pilots.share),
        rounds=np.array(pilots.rounds, dtype=np.float64),
        clip_norm=np.array(pilots.clip_norm),
        noise=np.array(pilots.noise),
        accuracy=np.array([mean[cell] for cell in pilots.cells]).reshape(shape),
        spread=np.array([spread[cell] for cell in pilots.cells]).reshape(shape),
        about=pilots.about(),
    )


def better_half(found: Mapping[Cell, float]) -> list[Cell]:
    """Return, for each share and noise, the better half of the places (the larger half of an odd number)."""
    chosen = []
    for cells in _levels(found):
        ranked = sorted(cells, key=lambda cell: -found[cell])
        chosen += ranked[: (len(ranked) + 1) // 2]
    return chosen


def means(found: Mapping[Cell, Sequence[float]]) -> dict[Cell, float]:
    """Return the accuracy of each place over all seeds.

    A place that was tried with the first seed only is put where that seed's luck, which all places share, would have
    left it: by as much lower as the others of its share and noise became with their other seeds.

    Args:
        found: accuracies by place, the first seed's first.
    """
    known: dict[Cell, float] = {}
    for cells in _levels(found):
        luck = [float(np.mean(found[cell])) - found[cell][0] for cell in cells if len(found[cell]) > 1]
        for cell in cells:
            single = len(found[cell]) == 1
            known[cell] = float(np.clip(found[cell][0] + np.mean(luck), 0, 1) if single else np.mean(found[cell]))
    return known


def spreads(found: Mapping[Cell, Sequence[float]]) -> dict[Cell, float]:
    """Return the standard deviation of a training at each place; where one was made, that of the others at its noise.

    Args:
        found: accuracies by place; at each share and noise one place at least has two.
    """
    known: dict[Cell, float] = {}
    for cells in _levels(found):
        own = {cell: float(np.std(found[cell], ddof=1)) for cell in cells if len(found[cell]) > 1}
        pooled = math.sqrt(np.mean(np.square(list(own.values()))))
        known |= {cell: own.get(cell, pooled) for cell in cells}
    return known


def _levels(cells: Iterable[Cell]) -> list[list[Cell]]:
    """The places of each share and noise."""
    levels: dict[tuple[float, float], list[Cell]] = {}
    for cell in cells:
        levels.setdefault((cell.share, cell.noise), []).append(cell)
    return list(levels.values())
