"""The Compare tab: policies side by side, what more of a budget buys, and the best plan over ε and total power."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from nicegui import ui

from airfed.explorer.charts import Options, axis, categories, chart, heatmap, star
from airfed.explorer.design import Design
from airfed.explorer.elements import Chart, Table, card, show_if, show_table, text
from airfed.explorer.worker import RefusedError, compute
from airfed.planning import Plan
from airfed.planning.policy import sensitivities, with_budgets
from airfed.plotting import series
from airfed.policies import POLICIES
from airfed.problem import InfeasibleError, Problem
from airfed.scenario import Scenario
from airfed.text.phrases import LIMITS, TERMS, above, change_text, devices_text, number

FACTORS: Final = 10.0 ** (np.arange(-6, 7) / 4)  # of the present budgets, in the map; the middle is 1
_ALIKE: Final = "What the budgets buy is shown for plans whose rounds are alike."


class Compared(NamedTuple):
    """The policies as rows and as bars, notes on them, and what the budgets buy (nothing where rounds differ)."""

    rows: Table
    bars: Options
    notes: list[str]
    bought: Table


def compare(design: Design) -> Compared:
    """Return the comparison of a design's policies, and what a little more of a budget buys; ValueError without one."""
    world = design.world()
    plans, reasons = world.compare()
    best = plans.get("optimal")
    if best is None:
        raise InfeasibleError(reasons["optimal"])
    rows = []
    for name, plan in plans.items():
        score = {"above the optimum": above(plan.bound.total / best.bound.total - 1)}
        if best.objective == "measured":
            score = {"expected accuracy": "?" if plan.predicted_accuracy is None else f"{plan.predicted_accuracy:.1%}"}
        rows.append(
            {"policy": f"{name}*" if plan.violations else name, "bound": number(plan.bound.total, 4), **score}
            | {"devices": devices_text(plan, "–"), "rounds": str(plan.rounds)}
            | {"W in total": number(plan.power_total, 4), "ε per round": number(plan.epsilon_round)}
            | {"ε in total": number(plan.epsilon_total), "limit": LIMITS[plan.binding]}
        )
    notes = [f"* {name}: {' '.join(plan.notes)}" for name, plan in plans.items() if plan.violations]
    notes += [f"{name}: {reason}" for name, reason in reasons.items()]
    return Compared(rows, _bars(plans), notes, [] if series.round_by_round(best) else bought(world))


def _bars(plans: dict[str, Plan]) -> Options:
    longest = max(plan.bound.total for plan in plans.values())
    across = axis("bound", 0.0, min(longest, 4 * plans["optimal"].bound.total), minInterval=0)
    look = {"type": "bar", "stack": "bound", "barMaxWidth": 14, "emphasis": {"disabled": True}}
    stacked = [
        {**look, "name": label, "data": [plan.bound.terms[term] for plan in plans.values()]}
        | {"itemStyle": {"color": f"var(--term-{term})"}}
        for term, label in TERMS.items()
    ]
    up = categories("", list(plans), upright=True, inverse=True)
    grid = {"left": 112, "right": 14, "top": 28, "bottom": 38}
    return chart(across, up, *stacked, grid=grid, spoken="The bound of each policy, split into its terms")


def _optimum(world: Scenario) -> tuple[Plan, Callable[[Problem], Plan]]:
    """The optimum at the present budgets, and what plans at others; several antennas keep the present beamformer."""
    settings = replace(world.settings, size=None, threshold=None, options={})
    planner = partial(POLICIES["optimal"].plan, settings=settings)
    return planner(world.problem()), planner


def bought(world: Scenario) -> Table:
    """Return what more of each budget buys: the exact optimum there; InfeasibleError without a plan."""
    now, planner = _optimum(world)
    found = sensitivities(now.problem, planner)
    change = partial(change_text, found.of, found.now)
    more = {"watt": (found.watt, found.double_power), "unit of ε": (found.epsilon, found.double_epsilon)}
    names = ("one more", "buys", "twice the budget buys")
    return [dict(zip(names, (unit, change(one), change(two)), strict=True)) for unit, (one, two) in more.items()]


def front_map(design: Design) -> Options:
    """Return the best plan over ε and total power: a cell's shade is the accuracy, or −log(bound)."""
    now, planner = _optimum(design.world())
    by_accuracy, budget = now.objective == "measured", now.problem.budget

    def told(plan: Plan) -> str:
        reached = f"accuracy {plan.predicted_accuracy:.1%}" if by_accuracy else f"bound {number(plan.bound.total)}"
        return f"{reached}, {LIMITS[plan.binding]} is the limit"

    cells = []
    for row, column in np.ndindex(FACTORS.size, FACTORS.size):
        epsilon, power = float(budget.epsilon * FACTORS[column]), float(budget.total_power * FACTORS[row])
        with contextlib.suppress(InfeasibleError):
            plan = planner(with_budgets(now.problem, epsilon=epsilon, total_power=power))
            shade = plan.predicted_accuracy if by_accuracy else -math.log(plan.bound.total)
            if shade is not None:  # None: outside the surrogate's range
                name = f"ε = {number(epsilon)}, {number(power)} W: {told(plan)}"
                cells.append({"value": [column, row, shade], "name": name})
    across = categories("privacy budget ε", [number(budget.epsilon * factor) for factor in FACTORS])
    up = categories("total power [W]", [number(budget.total_power * factor) for factor in FACTORS], upright=True)
    mark = star(FACTORS.size // 2, FACTORS.size // 2, f"present design: {told(now)}", "ink") | {"silent": True}
    made = heatmap(across, up, cells, mark, colour="lit")
    made["tooltip"]["formatter"] = "{b}"
    return made


class CompareTab:
    """The policies side by side, and what the budgets buy."""

    def __init__(self) -> None:
        with ui.element("section").classes("section hide").props("aria-label=Compare") as self.box:
            with ui.element("div").classes("section hide") as self._charts:
                with card("Policies on one channel draw", "The bound of each, split into its terms."):
                    self._bars = Chart(0)
                    self._table = ui.table(rows=[]).props("flat dense id=policies tabindex=0")
                    self._notes = text("", "p", "note")
                with ui.element("div").classes("section") as self._more:  # where rounds are alike
                    with card("What the budgets buy", "The change of the optimum at the larger budget."):
                        self._bought = ui.table(rows=[]).props("flat dense id=sensitivities")
                    with card("Privacy against power", "The greener, the better; the star is the present design."):
                        self._map = Chart(420).props("id=front")
            self._reason = text("", "p", "card wrong hide")

    async def show(self, design: Design, has_plan: bool) -> None:
        """Compare the policies of a design."""
        self._charts.classes(add="busy")
        try:
            if not has_plan:
                raise RefusedError("Nothing to compare: there is no plan.")
            found = await compute(compare, design)
            self._bars.style(f"height: {70 + 24 * len(found.rows)}px")
            self._bars.show(found.bars)
            show_table(self._table, found.rows)
            self._notes.text = " ".join(found.notes if found.bought else [*found.notes, _ALIKE])
            show_table(self._bought, found.bought)
            show_if(self._more, bool(found.bought))
            self._refuse("")
            if found.bought:
                self._map.show(await compute(front_map, design))
        except RefusedError as error:
            self._refuse(str(error))
        finally:
            self._charts.classes(remove="busy")

    def _refuse(self, reason: str) -> None:
        self._reason.text = reason
        show_if(self._reason, bool(reason))
        show_if(self._charts, not reason)
