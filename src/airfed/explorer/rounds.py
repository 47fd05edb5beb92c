"""The rounds of a plan as a page keeps them, to show any of them without planning again. No NiceGUI here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airfed.explorer.pictures import Strip, drawn_strip
from airfed.planning import Plan
from airfed.showing import fading
from airfed.showing.chart import Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounds:
    """What is shown of each round; all but the first and the last three have a row per round.

    Args:
        num_devices: N.
        lit, dark, ceiling: the bars of `Strip`.
        gains: |h| of the strongest and of the weakest device.
        sizes, alignments, local_steps, mus: |K_i|, θ_i, E_i, μ_i.
        powers, largest: [W] of all devices, and of the one that transmits most.
        ceilings: the largest θ_i that each limit on one round allows.
        left: which share of each budget that covers the training is left after the round.
        delta: δ of the budget.
    """

    num_devices: int
    lit: Floats
    dark: Floats
    ceiling: Floats
    gains: Floats
    sizes: NDArray[np.int_]
    alignments: Floats
    local_steps: tuple[int, ...]
    mus: Floats
    powers: Floats
    largest: Floats
    ceilings: dict[Any, Floats]
    left: dict[str, Floats]
    delta: float

    def __len__(self) -> int:
        return self.alignments.size

    @property
    def top(self) -> float:
        """Where the axis of every strip ends [W]: the same one for all, so that rounds can be compared."""
        return 1.12 * max(float(np.nanmax(self.lit)), float(np.quantile(self.ceiling[0], 0.95)))

    def strip(self, index: int, width: float) -> str:
        """Return the devices by their gain in a round, as SVG `width` pixels wide."""
        strongest, weakest = self.gains[index].tolist()
        return drawn_strip(
            Strip(
                lit=self.lit[index],
                dark=self.dark[index],
                ceiling=self.ceiling[index],
                strongest=strongest,
                weakest=weakest,
            ),
            width,
            title=f"{self.sizes[index]} of {self.num_devices} devices transmit in round {index + 1}; "
            "the strongest is on the left",
            top=self.top,
        )


def rounds_of(plan: Plan) -> Rounds:
    """Return the rounds of a plan, devices in bars."""
    fleet = plan.problem.fleet
    strips = [Strip.of(plan, index) for index in range(plan.rounds)]
    lit, dark, ceiling = (np.array([getattr(strip, name) for strip in strips]) for name in ("lit", "dark", "ceiling"))
    places, left = fading.budgets_left(plan, most=plan.rounds + 1)
    assert places.size == plan.rounds + 1
    return Rounds(
        num_devices=fleet.num_devices,
        lit=lit,
        dark=dark,
        ceiling=ceiling,
        gains=np.array([(strip.strongest, strip.weakest) for strip in strips]),
        sizes=plan.sizes,
        alignments=plan.amplitudes.level,
        local_steps=plan.local_steps,
        mus=plan.sequence.mus,
        powers=plan.sequence.powers,
        largest=np.array([np.nanmax(strip.lit) for strip in strips]),
        ceilings=plan.ceilings,
        left={name: values[1:] for name, values in left.items()},
        delta=plan.problem.budget.delta,
    )
