"""A response, measured by pilots: every place of the grid once, the better ones again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from airfed.experiments.pilots import Cell, Pilots
from airfed.experiments.points import Point
from airfed.experiments.records import Record
from airfed.planning import Response

Run = Callable[[Sequence[Point]], Sequence[Record]]


class Unmeasured(Exception):
    """Not all pilots have ended; their records say why."""

    def __init__(self, records: Sequence[Record]) -> None:
        super().__init__("Not all pilots have ended.")
        self.records = records


def measure(pilots: Pilots, run: Run) -> Response:
    """Run the pilots and return the response.

    Every place is tried with the first seed. At each noise only the better half of the (I, ϖ) gets the other seeds,
    too: what is never chosen needs no precision. A pilot that diverges is worth a guess.

    Args:
        pilots: what to run.
        run: runs points and returns their records (`sweep.run`).

    Raises:
        Unmeasured: a pilot was stopped or failed.
    """
    found: dict[Cell, list[float]] = {cell: [] for cell in pilots.cells}

    def train(cells: Iterable[Cell], seeds: Sequence[int]) -> None:
        records = run(pilots.points(cells, seeds))
        if not all(record.ended for record in records):
            raise Unmeasured(records)
        for record in records:
            cell = Cell(*(record.point.values[name] for name in Cell._fields))
            found[cell].append(float(record.final["accuracy"]) if record.status == "finished" else pilots.guess)

    train(pilots.cells, pilots.seeds[:1])
    train(better_half({cell: values[0] for cell, values in found.items()}), pilots.seeds[1:])
    spread = spreads(found)
    shape = tuple(len(axis) for axis in (pilots.share, pilots.rounds, pilots.clip_norm, pilots.noise))
    return Response(
        share=np.array(pilots.share),
        rounds=np.array(pilots.rounds, dtype=np.float64),
        clip_norm=np.array(pilots.clip_norm),
        noise=np.array(pilots.noise),
        accuracy=np.array([np.mean(found[cell]) for cell in pilots.cells]).reshape(shape),
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
