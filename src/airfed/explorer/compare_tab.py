"""The Compare tab: policies side by side, what more of a budget buys, and the best plan over ε and total power."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from nicegui import ui

from airfed.explorer.charts import Options, axis, categories, chart, heatmap, star
from airfed.explorer.design import Design
from airfed.explorer.elements import Chart, show_if, text
from airfed.explorer.runs_tab import Table, show_table
from airfed.explorer.view import Refusal
from airfed.explorer.worker import TooMuchError, compute
from airfed.planning import Plan
from airfed.planning.policy import Sensitivities, sensitivities, with_budgets
from airfed.plotting import series
from airfed.policies import POLICIES
from airfed.problem import InfeasibleError, Problem
from airfed.scenario import Scenario
from airfed.text.phrases import LIMITS, TERMS, above, change_text, devices_text, number

FACTORS: Final = 10.0 ** (np.arange(-6, 7) / 4)  # of the present budgets, in the map; the middle is 1
_BOUGHT: Final = "To the exact optimum at the larger budget."
_NO_MAP: Final = "Only for plans whose rounds are alike: change a budget and read the result above."


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The policies as rows and as bars, notes on them, and what the budgets buy (nothing where rounds differ)."""

    rows: Table
    bars: Options
    notes: list[str]
    bought: Table


def compare(design: Design) -> Compared | Refusal:
    """Return the comparison of a design's policies, and what a little more of a budget buys."""
    try:
        world = design.world()
        plans, reasons = world.compare()
        if "optimal" not in plans:
            return Refusal(reasons["optimal"], infeasible=True)
        best = plans["optimal"]
        notes = [f"* {name}: {' '.join(plan.notes)}" for name, plan in plans.items() if plan.violations]
        return Compared(
            rows=[_row(name, plan, best) for name, plan in plans.items()],
            bars=_bars(plans),
            notes=notes + [f"{name}: {reason}" for name, reason in reasons.items()],
            bought=[] if series.round_by_round(best) else bought(sensitivity(world)),
        )
    except ValueError as error:
        return Refusal(str(error))


def _row(name: str, plan: Plan, best: Plan) -> dict[str, str]:
    score = {"above the optimum": above(plan.bound.total / best.bound.total - 1)}
    if best.objective == "measured":
        score = {"expected accuracy": "?" if plan.predicted_accuracy is None else f"{plan.predicted_accuracy:.1%}"}
    return {
        "policy": f"{name}*" if plan.violations else name,
        "bound": number(plan.bound.total, 4),
        **score,
        "devices": devices_text(plan, "–"),
        "rounds": str(plan.rounds),
        "W in total": number(plan.power_total, 4),
        "ε per round": number(plan.epsilon_round),
        "ε in total": number(plan.epsilon_total),
        "limit": LIMITS[plan.binding],
    }


def _bars(plans: dict[str, Plan]) -> Options:
    """The bound of each policy, split into its terms, up to four times the optimum's."""
    longest = max(plan.bound.total for plan in plans.values())
    across = axis("bound", 0.0, min(longest, 4 * plans["optimal"].bound.total), minInterval=0)
    look = {"type": "bar", "stack": "bound", "barMaxWidth": 14, "emphasis": {"disabled": True}}
    stacked = [
        {**look, "name": label, "data": [plan.bound.terms[term] for plan in plans.values()]}
        | {"itemStyle": {"color": f"var(--term-{term})"}}
        for term, label in TERMS.items()
    ]
    up = categories("", list(plans), upright=True, inverse=True)
    made = chart(across, up, *stacked, spoken="The bound of each policy, split into its terms")
    made["grid"] |= {"left": 112, "top": 28}
    return made


def sensitivity(world: Scenario) -> Sensitivities:
    """Return what one more watt and one more unit of ε buy, to the exact optimum; InfeasibleError without a plan."""
    now, planner = _optimum(world)
    return sensitivities(now.problem, planner)


def _optimum(world: Scenario) -> tuple[Plan, Callable[[Problem], Plan]]:
    """The optimum at the present budgets, and what plans at others; several antennas keep the present beamformer."""
    settings = replace(world.settings, size=None, threshold=None, options={})
    planner = partial(POLICIES["optimal"].plan, settings=settings)
    return planner(world.problem()), planner


def bought(found: Sensitivities) -> Table:
    """Return what more of each budget buys."""
    more = {
        "One more watt": found.watt,
        "One more unit of ε": found.epsilon,
        "Twice the power": found.double_power,
        "Twice the ε": found.double_epsilon,
    }
    return [{"more": label, "buys": change_text(found.of, found.now, then)} for label, then in more.items()]


def front_map(design: Design) -> Options:
    """Return the bound, or the accuracy, of the best plan over ε and total power; the star is the present design.

    A cell's third value is its shade, the darker the better: the accuracy, or −log(bound).
    """
    now, planner = _optimum(design.world())
    by_accuracy, budget = now.objective == "measured", now.problem.budget

    def told(plan: Plan) -> str:
        told = (
            f"expected accuracy {plan.predicted_accuracy:.1%}" if by_accuracy else f"bound {number(plan.bound.total)}"
        )
        return f"{told}, {LIMITS[plan.binding]} is the limit"

    cells = []
    for row, column in np.ndindex(FACTORS.size, FACTORS.size):
        epsilon, power = float(budget.epsilon * FACTORS[column]), float(budget.total_power * FACTORS[row])
        try:
            plan = planner(with_budgets(now.problem, epsilon=epsilon, total_power=power))
        except InfeasibleError:
            continue
        shade = plan.predicted_accuracy if by_accuracy else -math.log(plan.bound.total)
        if shade is not None:  # None: outside the surrogate's range
            name = f"ε = {number(epsilon)}, {number(power)} W: {told(plan)}"
            cells.append({"value": [column, row, shade], "name": name})
    across = categories("privacy budget ε", [number(budget.epsilon * factor) for factor in FACTORS])
    up = categories("total power [W]", [number(budget.total_power * factor) for factor in FACTORS], upright=True)
    mark = star(FACTORS.size // 2, FACTORS.size // 2, "present design")
    spoken = f"The best plan over privacy budget and total power; at present {told(now)}"
    made = heatmap(across, up, cells, mark | {"silent": True}, colour="lit", spoken=spoken)
    made["tooltip"]["formatter"] = "{b}"
    return made


class CompareTab:
    """The policies side by side, and what the budgets buy."""

    def __init__(self) -> None:
        self._compared: Design | None = None
        with ui.element("section").classes("section hide").props("aria-label=Compare") as self.box:
            with ui.element("div").classes("section hide") as self._charts:
                with ui.element("div").classes("card"):
                    text("Policies on one channel draw", "h2")
                    text("The bound of each, split into its terms.", "p", "sub")
                    self._bars = Chart(0)
                    self._table = ui.table(rows=[]).props("flat dense id=policies tabindex=0")
                    self._notes = text("", "p", "note")
                with ui.element("div").classes("card"):
                    text("What the budgets buy", "h2")
                    self._about = text("", "p", "sub").props("id=no-front")
                    self._bought = ui.table(rows=[]).props("flat dense id=sensitivities")
                with ui.element("div").classes("card") as self._map_card:
                    text("Privacy against power", "h2")
                    text("The best plan of each pair; the darker, the better. The star is the present one.", "p", "sub")
                    self._map = Chart(420).props("id=front")
            self._reason = text("", "p", "card wrong hide")

    async def show(self, design: Design, has_plan: bool) -> None:
        """Compare the policies of a design, unless they are shown already."""
        if self._compared == design:
            return
        self._compared = None
        self._charts.classes(add="busy")
        try:
            found = await compute(compare, design) if has_plan else Refusal("Nothing to compare: there is no plan.")
            if isinstance(found, Compared):
                self._show(found)
                if found.bought:
                    self._map.show(await compute(front_map, design))
                self._compared = design
        except TooMuchError as error:
            found = Refusal(str(error))
        finally:
            self._charts.classes(remove="busy")
        show_if(self._charts, isinstance(found, Compared))
        show_if(self._reason, isinstance(found, Refusal))
        self._reason.text = found.reason if isinstance(found, Refusal) else ""

    def _show(self, found: Compared) -> None:
        show_if(self._charts, True)
        show_if(self._reason, False)
        self._bars.style(f"height: {70 + 24 * len(found.rows)}px")
        self._bars.show(found.bars)
        show_table(self._table, found.rows)
        self._notes.text = " ".join(found.notes)
        self._about.text = _BOUGHT if found.bought else _NO_MAP
        show_table(self._bought, found.bought)
        for box in (self._bought, self._map_card):
            show_if(box, bool(found.bought))
