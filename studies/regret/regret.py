"""How good measured plans are: what each loses to the best of an exhaustive grid, and what was expected of it.

A world is an experiment with three variants: "grid" (every I and ϖ of a grid, with the devices and the alignment that
are best there), "measured" (the plan by the response) and "bound" (the plan by Theorem 1, at the ϖ of [learning]). One
row is one training; all that is said of them is computed from rows.

The regret is accuracy at the best place of the grid less that of the measured plan, seed by seed. The best of many
noisy places looks better than it is, so this over-states the regret. Against the place that is best on the other seeds
it is under-stated, if at all: that place is judged fairly, but may not be the best. The truth lies between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from airfed.experiments.claims import Verdict, best_by_others, best_place
from airfed.experiments.results import Estimate, estimate
from airfed.text import phrases as words
from studies.regret.rows import OPTION

Rows = Sequence[Mapping[str, Any]]
MOST_REGRET: Final = 1.0  # points
MOST_ERROR: Final = 1.5  # points
LEARNED: Final = 0.6  # accuracy below which nobody would use a plan


@dataclass(frozen=True, kw_only=True)
class SizeVerdict(Verdict):
    """A comparison whose mean effect is to be at most so large, whatever its interval."""

    at_most: float

    @property
    def passed(self) -> bool:
        """Whether the mean is within the limit."""
        return self.effect.mean <= self.at_most

    @property
    def reason(self) -> str:
        """Why it failed; empty where it passed."""
        return "" if self.passed else f"above {self.at_most:g}"


class Place(NamedTuple):
    """A place of the grid."""

    rounds: int
    clip_norm: float
    average: str = "none"

    def __str__(self) -> str:
        option = "" if self.average == "none" else f", {self.average} average"
        return f"I = {self.rounds}, ϖ = {self.clip_norm:g}{option}"


@dataclass(frozen=True, kw_only=True)
class World:
    """What happened in one world; accuracies in percent, by seed.

    Args:
        name: of the experiment, less "regret-".
        about: the world in a few words.
        grid: every place of the grid.
        measured: the plan by the response.
        bound: the plan by Theorem 1.
    """

    name: str
    about: str
    grid: Mapping[Place, Mapping[int, float]]
    measured: Mapping[int, float]
    bound: Mapping[int, float]

    @property
    def best(self) -> Place:
        """The place of the highest mean accuracy."""
        return best_place(self.grid, sorted(self.measured))

    @property
    def regret(self) -> Estimate:
        """What the measured plan loses to the best place, in points, paired by seed."""
        return self.loss(self.measured)

    @property
    def regret_of_others(self) -> Estimate:
        """What it loses to the place that is best on the other seeds, in points, paired by seed."""
        chosen = best_by_others(self.grid)
        return estimate([self.grid[chosen[seed]][seed] - self.measured[seed] for seed in sorted(self.measured)])

    def loss(self, plan: Mapping[int, float]) -> Estimate:
        """Return what a plan loses to the best place, in points, paired by seed."""
        return estimate([self.grid[self.best][seed] - plan[seed] for seed in sorted(plan)])


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A place or a plan of which an accuracy was expected: means over the seeds, in percent."""

    world: str
    iid: bool
    predicted: float
    realised: float

    @property
    def error(self) -> float:
        """|expected − realised| in points."""
        return abs(self.predicted - self.realised)


def worlds(told: Rows) -> list[World]:
    """Return the worlds that rows tell of."""
    found = []
    for name in dict.fromkeys(row["world"] for row in told):
        own = [row for row in told if row["world"] == name]
        grid: dict[Place, dict[int, float]] = {}
        for row in own:
            for option, accuracy in _options(row).items() if row["label"] == "grid" else ():
                place = Place(row["rounds"], row["clip_norm"], option)
                grid.setdefault(place, {})[row["seed"]] = 100 * accuracy
        plans = {
            label: {row["seed"]: 100 * row["accuracy"] for row in own if row["label"] == label}
            for label in ("measured", "bound")
        }
        found.append(World(name=name, about=own[0]["about"], grid=grid, **plans))
    return found


def expected(told: Rows) -> list[Expected]:
    """Return every place and plan of which an accuracy was expected, in the order of the rows."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in told:
        place = (row["rounds"], row["clip_norm"]) if row["label"] == "grid" else ()
        groups.setdefault((row["world"], row["label"], *place), []).append(row)
    return [
        Expected(
            world=own[0]["world"],
            iid=own[0]["partition"] == "iid",
            predicted=100 * float(np.mean([row["predicted"] for row in own])),
            realised=100 * float(np.mean([row["accuracy"] for row in own])),
        )
        for own in groups.values()
        if all(row["predicted"] is not None for row in own)
    ]


def check_regret(told: Rows) -> list[Verdict]:
    """Return a verdict on every world: the regret, its mean over the seeds, is at most 1 point."""
    return [
        SizeVerdict(
            claim=f"The measured plan is within {MOST_REGRET:g} point of the best place of the grid",
            figure="regret",
            comparison=f"{world.name}: best place − measured plan, at most {MOST_REGRET:g}",
            effect=world.regret,
            unit="points",
            at_most=MOST_REGRET,
            remark=f"best {world.best}; to the best on the other seeds {world.regret_of_others}; the bound's "
            f"plan loses {world.loss(world.bound)}",
        )
        for world in worlds(told)
    ]


def check_prediction(told: Rows) -> list[Verdict]:
    """Return the verdict on what was expected where data are IID; none where there is no such world."""
    points = [point for point in expected(told) if point.iid]
    if not points:
        return []
    good = [point.error for point in points if point.predicted > 100 * LEARNED]
    remark = f"over all {len(points)} points {np.mean([point.error for point in points]):.2f}"
    if good:
        remark += f", over the {len(good)} of which more than {LEARNED:.0%} was expected {np.mean(good):.2f}"
    return [
        SizeVerdict(
            claim=f"Where data are IID, accuracy is what was expected within {MOST_ERROR:g} points on average",
            figure="prediction",
            comparison=f"mean absolute error, each world counting once, at most {MOST_ERROR:g}",
            effect=estimate([error for error, _ in errors(points).values()]),
            unit="points",
            at_most=MOST_ERROR,
            remark=f"{remark}; interval over the worlds",
        )
    ]


def errors(points: Sequence[Expected]) -> dict[str, tuple[float, float]]:
    """Return the mean absolute error and the mean error (realised − expected) of each world, in points."""
    found = {}
    for name in dict.fromkeys(point.world for point in points):
        own = [point for point in points if point.world == name]
        bias = np.mean([point.realised - point.predicted for point in own])
        found[name] = float(np.mean([point.error for point in own])), float(bias)
    return found


def note(told: Rows) -> str:
    """Return what is printed beside the pictures: every world, and what the intervals are."""
    lines = [f"{world.name}: {world.about}; {len(world.measured)} seeds." for world in worlds(told)]
    return "\n".join(
        [*lines, "Not IID where a dirichlet partition is named. Intervals: 95% (Student t), paired by seed."]
    )


def places(told: Rows, world: str) -> list[list[str]]:
    """Return the grid of a world as a table: I down, ϖ across; accuracy and what was expected, in percent."""
    own = [row for row in told if row["world"] == world and row["label"] == "grid"]
    norms = sorted({row["clip_norm"] for row in own})
    table = [["I", *(f"ϖ = {norm:g}" for norm in norms)]]
    for rounds in sorted({row["rounds"] for row in own}):
        cells = [[row for row in own if (row["rounds"], row["clip_norm"]) == (rounds, norm)] for norm in norms]
        table.append([f"{rounds}", *map(_cell, cells)])
    return table


def _cell(own: Rows) -> str:
    if not own:
        return ""
    text = f"{100 * np.mean([row['accuracy'] for row in own]):.1f}"
    if all(row["predicted"] is not None for row in own):
        text += f" ({100 * np.mean([row['predicted'] for row in own]):.1f})"
    return text


def span(told: Rows, world: str, label: str) -> str:
    """Return what a plan of a world was, over the seeds: "I = 40 to 43, ϖ = 2"."""
    own = [row for row in told if row["world"] == world and row["label"] == label]
    norms = sorted({row["clip_norm"] for row in own})
    options = sorted({row["average"] for row in own} - {"none"})
    text = f"I = {words.span([row['rounds'] for row in own])}, ϖ = {' or '.join(f'{norm:g}' for norm in norms)}"
    return text + (f", {' or '.join(options)} average" if options else "")


def _options(row: Mapping[str, Any]) -> dict[str, float]:
    """The accuracy of one training with each average of the receiver's; its own, where no other was recorded."""
    found = {
        key.removeprefix(OPTION): value for key, value in row.items() if key.startswith(OPTION) and value is not None
    }
    return found or {row["average"]: row["accuracy"]}
