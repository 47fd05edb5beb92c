"""Computations for the Compare tab: policies, sensitivities to the budgets, maps over ε and total power."""

from __future__ import annotations

import contextlib
import math
from functools import partial
from typing import Final

import numpy as np

from airfed.explorer.charts import Options, axis, chart, heatmap, line, star, vertical_line
from airfed.explorer.design import Design
from airfed.explorer.view import Card
from airfed.planning import Plan
from airfed.planning.policy import sensitivities, with_budgets
from airfed.plotting import series
from airfed.plotting.series import EPSILON, POWER, Frontier, frontier
from airfed.problem import InfeasibleError
from airfed.text.phrases import TERMS, binding_text, number
from airfed.text.tables import policy_rows, sensitivity_sentences

FACTORS: Final = 10.0 ** (np.arange(-6, 7) / 4)  # multiples of the current budgets in the map; the middle one is 1


def compare(design: Design) -> list[Card]:
    """Return the comparison of the policies and, if all rounds are equal, the sensitivities to the budgets."""
    scenario = design.scenario()
    plans, reasons = scenario.compare()
    best = plans.get("optimal")
    if best is None:
        raise InfeasibleError(reasons["optimal"])
    rows = policy_rows(plans)
    notes = [f"* {name}: {' '.join(plan.notes)}" for name, plan in plans.items() if plan.violations]
    notes += [f"{name}: {reason}" for name, reason in reasons.items()]
    text, varied = "The bound by its terms. Bars end at four times the bound of optimal.", series.round_by_round(best)
    notes += ["Sensitivities and the maps over the budgets are shown for plans with equal rounds only."] * varied
    bars, height = _bars(plans), 70 + 24 * len(rows)
    policies = Card("Policies on the same channel realisation", text, [bars], height, rows, " ".join(notes), "policies")
    if varied:
        return [policies]
    change = " ".join(sensitivity_sentences(sensitivities(scenario.plan().problem, scenario.plan)))
    return [policies, Card("Sensitivity to the budgets", change, [], key="sensitivities")]


def _bars(plans: dict[str, Plan]) -> Options:
    longest = min(max(plan.bound.total for plan in plans.values()), 4 * plans["optimal"].bound.total)
    look = {"type": "bar", "stack": "bound", "barMaxWidth": 14}
    stacked = [
        {**look, "name": label, "data": [plan.bound.terms[term] for plan in plans.values()]}
        | {"itemStyle": {"color": f"var(--term-{term})"}}
        for term, label in TERMS.items()
    ]
    up = axis("", kind="category", vertical=True, inverse=True, data=list(plans))
    across = axis("bound", 0.0, longest, minInterval=0)
    return chart(across, up, *stacked, grid={"left": 112, "top": 28}, description="Bound of each policy by its terms")


def front_map(design: Design) -> Card:
    """Return the plan over ε and total power; the shade is the expected accuracy, or −log(bound)."""
    scenario = design.scenario()
    now = scenario.plan()
    by_accuracy, budget = now.objective == "accuracy", now.problem.budget

    def summary(plan: Plan) -> str:
        reached = f"accuracy {plan.predicted_accuracy:.1%}" if by_accuracy else f"bound {number(plan.bound.total)}"
        return f"{reached}, {binding_text(plan)}"

    cells = []
    for row, column in np.ndindex(FACTORS.size, FACTORS.size):
        epsilon, power = float(budget.epsilon * FACTORS[column]), float(budget.total_power * FACTORS[row])
        with contextlib.suppress(InfeasibleError):
            plan = scenario.plan(with_budgets(now.problem, epsilon=epsilon, total_power=power))
            shade = plan.predicted_accuracy if by_accuracy else -math.log(plan.bound.total)
            if shade is not None:  # None: outside the surrogate's range
                name = f"ε = {number(epsilon)}, {number(power)} W: {summary(plan)}"
                cells.append({"value": [column, row, shade], "name": name})
    losses, watts = ([number(current * f) for f in FACTORS] for current in (budget.epsilon, budget.total_power))
    across = axis("privacy budget ε", kind="category", data=losses)
    up = axis("total power [W]", kind="category", vertical=True, data=watts)
    mark = star(FACTORS.size // 2, FACTORS.size // 2, f"current budgets: {summary(now)}", "ink") | {"silent": True}
    text = f"Policy {now.policy}. A stronger colour is better; the star marks the current budgets."
    drawn = heatmap(across, up, cells, mark, colour="lit", formatter="{b}")
    return Card("Privacy-power trade-off", text, [drawn], key="front")


def frontier_card(design: Design) -> Card:
    """Return what the plan reaches over ε and over the total power, and what no linear method can."""
    found = frontier(design.scenario())
    drawn = [_frontier_chart(found, budget) for budget in (EPSILON, POWER)]
    text = f"Policy {found.scenario.policy.name}. No linear method has its expectation in the shaded region."
    return Card("What no linear method can beat", text, drawn, 600, key="frontier")


def _frontier_chart(found: Frontier, budget: str) -> Options:
    column, (label, unit) = partial(found.column, budget), found.axis(budget)
    x = unit * column("value")
    if found.by_accuracy:
        up = axis("expected accuracy", 0.0, 1.0, text="airfed.percent", vertical=True)
        lines = [line("90% interval", x, column(end), "lit", dash="dashed") for end in ("low", "high")]
        limit, drawn, edge = column("highest"), column("accuracy"), "end"
    else:
        lines, limit, drawn, edge = [], column("noise_floor"), column("noise_share"), "start"
        up = axis("noise / ϖ", *series.positive_range([limit, drawn], 1.5, 1.5), kind="log", vertical=True)
    shade = {"color": "var(--out)", "opacity": 0.45, "origin": edge}
    lines.append(line("any linear method", x, limit, "warn", areaStyle=shade))
    lines.append(line("plan", x, drawn, "ink", markLine=vertical_line(unit * found.own(budget))))
    return chart(axis(label, x[0], x[-1], kind="log"), up, *lines)
