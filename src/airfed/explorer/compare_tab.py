"""Computations for the Compare tab: policies, sensitivities to the budgets, maps over ε and total power."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from airfed.explorer.charts import Options, axis, chart, heatmap, line, star, vertical_line
from airfed.explorer.design import Design
from airfed.explorer.view import Card, Table
from airfed.planning import Plan
from airfed.planning.policy import sensitivities, with_budgets
from airfed.plotting import series
from airfed.plotting.frontier import EPSILON, POWER, Frontier, frontier
from airfed.problem import InfeasibleError, Problem
from airfed.scenario import Scenario
from airfed.text.phrases import LIMITS, TERMS, above, change_text, devices_text, number

FACTORS: Final = 10.0 ** (np.arange(-6, 7) / 4)  # multiples of the current budgets in the map; the middle one is 1


def compare(design: Design) -> list[Card]:
    """Return the comparison of the policies and, if all rounds are equal, the sensitivities to the budgets."""
    scenario = design.scenario()
    plans, reasons = scenario.compare()
    best = plans.get("optimal")
    if best is None:
        raise InfeasibleError(reasons["optimal"])
    rows, expected = [], any(plan.prediction for plan in plans.values())  # then the rows are sorted by it
    for name, plan in plans.items():
        score = {"above the optimum": above(plan.bound.total / best.bound.total - 1)}
        if expected:
            score = {"expected accuracy": "?" if plan.predicted_accuracy is None else f"{plan.predicted_accuracy:.1%}"}
        rows.append(
            {"policy": f"{name}*" if plan.violations else name, "bound": number(plan.bound.total, 4), **score}
            | {"devices": devices_text(plan, "–"), "rounds": str(plan.rounds)}
            | {"W in total": number(plan.power_total, 4), "ε per round": number(plan.epsilon_round)}
            | {"ε in total": number(plan.epsilon_total), "limit": LIMITS[plan.binding]}
        )
    notes = [f"* {name}: {' '.join(plan.notes)}" for name, plan in plans.items() if plan.violations]
    notes += [f"{name}: {reason}" for name, reason in reasons.items()]
    varied, each = series.round_by_round(best), "The bound of each policy, split into its terms."
    notes += ["Sensitivities and the map over the budgets are shown for plans with equal rounds only."] * varied
    note, height = " ".join(notes), 70 + 24 * len(rows)
    policies = Card("Policies on the same channel realisation", each, [_bars(plans)], height, rows, note, "policies")
    if varied:
        return [policies]
    change, rows = (
        "Change of the best aligned plan (policy optimal) when one budget grows.",
        list(sensitivity_rows(scenario)),
    )
    return [policies, Card("Sensitivity to the budgets", change, [], rows=rows, key="sensitivities")]


def _bars(plans: dict[str, Plan]) -> Options:
    longest = min(max(plan.bound.total for plan in plans.values()), 4 * plans["optimal"].bound.total)
    look = {"type": "bar", "stack": "bound", "barMaxWidth": 14}
    stacked = [
        {**look, "name": label, "data": [plan.bound.terms[term] for plan in plans.values()]}
        | {"itemStyle": {"color": f"var(--term-{term})"}}
        for term, label in TERMS.items()
    ]
    up = axis("", kind="category", vertical=True, inverse=True, data=list(plans))
    across, spoken = axis("bound", 0.0, longest, minInterval=0), "Bound of each policy, split into its terms"
    return chart(across, up, *stacked, grid={"left": 112, "top": 28}, description=spoken)


def _optimum(scenario: Scenario) -> tuple[Plan, Callable[[Problem], Plan]]:
    """Return the optimum and the planner for other budgets; with several antennas the beamformer is kept."""
    planner = partial(scenario.plan, policy="optimal")
    return planner(scenario.problem()), planner


def sensitivity_rows(scenario: Scenario) -> Table:
    """Return the change of the exact optimum with each budget; InfeasibleError without a plan."""
    now, planner = _optimum(scenario)
    found = sensitivities(now.problem, planner)
    change = partial(change_text, found.of, found.now)
    more = {"total power [W]": (found.watt, found.double_power), "ε": (found.epsilon, found.double_epsilon)}
    names = ("budget", "one unit more", "twice as much")
    return [dict(zip(names, (of, change(one), change(two)), strict=True)) for of, (one, two) in more.items()]


def front_map(design: Design) -> Options:
    """Return the best plan over ε and total power; the shade is the expected accuracy, or −log(bound)."""
    now, planner = _optimum(design.scenario())
    by_accuracy, budget = now.objective == "accuracy", now.problem.budget

    def summary(plan: Plan) -> str:
        reached = f"accuracy {plan.predicted_accuracy:.1%}" if by_accuracy else f"bound {number(plan.bound.total)}"
        return f"{reached}, {LIMITS[plan.binding]} is the limit"

    cells = []
    for row, column in np.ndindex(FACTORS.size, FACTORS.size):
        epsilon, power = float(budget.epsilon * FACTORS[column]), float(budget.total_power * FACTORS[row])
        with contextlib.suppress(InfeasibleError):
            plan = planner(with_budgets(now.problem, epsilon=epsilon, total_power=power))
            shade = plan.predicted_accuracy if by_accuracy else -math.log(plan.bound.total)
            if shade is not None:  # None: outside the surrogate's range
                name = f"ε = {number(epsilon)}, {number(power)} W: {summary(plan)}"
                cells.append({"value": [column, row, shade], "name": name})
    losses, watts = ([number(current * f) for f in FACTORS] for current in (budget.epsilon, budget.total_power))
    across = axis("privacy budget ε", kind="category", data=losses)
    up = axis("total power [W]", kind="category", vertical=True, data=watts)
    mark = star(FACTORS.size // 2, FACTORS.size // 2, f"current budgets: {summary(now)}", "ink") | {"silent": True}
    return heatmap(across, up, cells, mark, colour="lit", formatter="{b}")


def frontier_charts(design: Design) -> list[Options]:
    """Return what the plan reaches over ε and over the total power, and what no linear method can."""
    found = frontier(design.scenario())
    return [_frontier_chart(found, budget) for budget in (EPSILON, POWER)]


def _frontier_chart(found: Frontier, budget: str) -> Options:
    own, (label, unit) = found.along(budget), found.axis(budget)
    x = [unit * point.value for point in own]
    shade: Options = {"areaStyle": {"opacity": 0.25, "origin": "end" if found.by_accuracy else "start"}}

    def column(name: str) -> series.Floats:
        return np.array([getattr(point, name) for point in own], dtype=np.float64)  # None becomes NaN

    if found.by_accuracy:
        up = axis("expected accuracy", 0.0, 1.0, text="airfed.percent", vertical=True)
        low, high = column("low"), column("high")
        lines = [
            line("low end", x, low, "lit", width=0.0, stack="band", listed=False),
            line("interval, nominal 90%", x, high - low, "lit", width=0.0, stack="band", areaStyle={"opacity": 0.18}),
            line("any method, at most", x, column("highest"), "warn", dash="dashed", **shade),
            line("plan", x, column("accuracy"), "ink"),
        ]
    else:
        floor, share = column("noise_floor"), column("noise_share")
        up = axis("noise / ϖ", *series.positive_range([floor, share], 1.5, 1.5), kind="log", vertical=True)
        lines = [
            line("any method, at least", x, floor, "warn", dash="dashed", **shade),
            line("plan", x, share, "ink"),
        ]
    lines[-1]["markLine"] = vertical_line(unit * found.own(budget))
    return chart(axis(label, x[0], x[-1], kind="log"), up, *lines)
