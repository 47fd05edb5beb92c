"""Policies side by side, the best plan over ε and total power, and what one more unit of a budget buys."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airfed.experiments.points import Point
from airfed.learning.fused.tables import padded
from airfed.planning import Plan
from airfed.planning.limits import amplified
from airfed.planning.policy import Sensitivities, sensitivities, with_budgets
from airfed.plotting import colours
from airfed.plotting.chart import Axis, Chart, Line, Mark
from airfed.plotting.contours import filled, refined, regions
from airfed.plotting.figure import svg
from airfed.plotting.svg import Area, Scale
from airfed.policies import POLICIES
from airfed.problem import InfeasibleError, Problem
from airfed.scenario import Scenario
from airfed.text.phrases import LIMITS, above, devices_text, number

Floats = NDArray[np.float64]

_SPAN: Final = 1.5  # decades to each side of the present budgets
_POINTS: Final = 15  # of each budget; odd, so that the present one is among them
_FEWER_POINTS: Final = 13  # where limits differ by device, and a plan takes longer to find


@dataclass(frozen=True, kw_only=True, eq=False)
class Front:
    """The best plan for each pair of budgets, by what the scenario's plan is chosen by.

    Every point is Pareto-optimal in (ε, total power, loss) up to budgets that are not used up; a line of equal loss
    is the front of ε against total power at that loss.

    Args:
        of: what the loss is: Theorem 1's "bound", or 1 − the expected "accuracy".
        epsilon: (m,) the privacy budgets, ascending.
        total_power: (n,) the power budgets [W], ascending.
        loss: (n, m), inf where no plan fits.
        binding: (n, m) the limit that holds θ there, "" where no plan fits.
        epsilon_index, power_index: where the present budgets are.
    """

    of: Literal["bound", "accuracy"]
    epsilon: Floats
    total_power: Floats
    loss: Floats
    binding: NDArray[np.str_]
    epsilon_index: int
    power_index: int

    def text(self, loss: float) -> str:
        """Return a loss as the bound, or as the accuracy."""
        return number(loss) if self.of == "bound" else f"{1 - loss:.1%}"


def front(world: Scenario) -> Front:
    """Return the best plan over a grid of ε and total power around the present budgets.

    Raises:
        InfeasibleError: no plan meets the present ones.
    """
    now, planner = _optimum(world)
    problem = now.problem
    points = _POINTS if problem.fleet.equal_peak_power and not amplified(problem) else _FEWER_POINTS
    middle = points // 2
    factors = np.logspace(-_SPAN, _SPAN, points)
    factors[middle] = 1.0
    epsilon, power = problem.budget.epsilon * factors, problem.budget.total_power * factors
    loss = np.full((points, points), np.inf)
    binding = np.full((points, points), "", dtype="<U16")
    for row, watts in enumerate(power):
        for column, allowed in enumerate(epsilon):
            try:
                plan = planner(with_budgets(problem, epsilon=float(allowed), total_power=float(watts)))
            except InfeasibleError:
                continue
            loss[row, column], binding[row, column] = _loss(plan), plan.binding
    return Front(
        of="accuracy" if now.objective == "measured" else "bound",
        epsilon=epsilon,
        total_power=power,
        loss=loss,
        binding=binding,
        epsilon_index=middle,
        power_index=middle,
    )


def sensitivity(world: Scenario) -> Sensitivities:
    """Return what one more watt and one more unit of ε buy, to the exact optimum.

    Raises:
        InfeasibleError: no plan meets every limit.
    """
    now, planner = _optimum(world)
    return sensitivities(now.problem, planner)


def _optimum(world: Scenario) -> tuple[Plan, Callable[[Problem], Plan]]:
    """The optimum at the present budgets, and what plans at others; several antennas keep the present beamformer."""
    settings = replace(world.settings, size=None, threshold=None, options={})
    planner = partial(POLICIES["optimal"].plan, settings=settings)
    return planner(world.problem()), planner


def _loss(plan: Plan) -> float:
    if plan.objective == "measured" and plan.predicted_accuracy is not None:
        return 1.0 - plan.predicted_accuracy
    return plan.bound.total


Polylines = list[list[Point]]

_HAIR: Final = 0.01  # of a bound: more than smoothing makes of equal ones


def policy_table(plans: Mapping[str, Plan], reasons: Mapping[str, str]) -> str:
    """Return the policies side by side as an HTML table, each bound as a bar of its terms."""
    best, by_accuracy = plans["optimal"].bound.total, plans["optimal"].objective == "measured"
    longest = min(max(plan.bound.total for plan in plans.values()), 4 * best)
    rows = "".join(_policy_row(name, plan, best, longest) for name, plan in plans.items())
    for name, reason in reasons.items():
        rows += (
            f'<tr class="none"><th scope="row">{html.escape(name)}</th><td colspan="8">{html.escape(reason)}</td></tr>'
        )
    head = "".join(
        f'<th scope="col"{css}>{label}</th>'
        for label, css in (
            ("policy", ""),
            ("bound", ' class="wide"'),
            ("expected accuracy" if by_accuracy else "above the optimum", ""),
            ("devices", ""),
            ("rounds", ""),
            ("W in total", ""),
            ("ε per round", ""),
            ("ε in total", ""),
            ("limit", ""),
        )
    )
    notes = "".join(
        f'<p class="note">* {html.escape(name)}: {html.escape(" ".join(plan.notes))}</p>'
        for name, plan in plans.items()
        if plan.violations
    )
    return f'<table class="policies"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{notes}'


def front_map(front: Front, width: float) -> str:
    """Return the bound or accuracy over ε and total power: hue is the limit, lines join equals, the star is now."""
    height = min(max(0.62 * width, 300.0), 420.0)
    area = Area(left=56, top=24, right=width - 12, bottom=height - 42)
    across = Axis(label="privacy budget ε", low=front.epsilon[0], high=front.epsilon[-1], kind="log")
    up = Axis(label="total power budget [W]", low=front.total_power[0], high=front.total_power[-1], kind="log")
    xs, ys = Scale(across, area.left, area.right), Scale(up, area.bottom, area.top)
    x, y = xs(front.epsilon), ys(front.total_power)
    now = float(front.loss[front.power_index, front.epsilon_index])
    heights = np.log(np.where(np.isfinite(front.loss), front.loss, front.loss[np.isfinite(front.loss)].max()))
    fine = refined(x, y, -heights)
    level_ground = np.count_nonzero(np.isclose(front.loss, now, rtol=1e-9)) > 3  # more of a budget buys nothing
    hair = {now: _HAIR if level_ground else 0.0}  # its edge is the line to draw, not the ripples on it
    better = {level: filled(*fine, -math.log(level) - hair.get(level, 0.0)) for level in levels(front.loss, now)}
    held, void = _regions(front, x, y)
    parts = [
        svg.left_axis(ys, area, up.ticks(6), label=up.label),
        svg.clipped(area, *held, *_contours(better, now), *void),
    ]
    here = float(x[front.epsilon_index]), float(y[front.power_index])
    parts += [
        *_contour_labels(front, better, here, area),
        svg.bottom_axis(xs, area),
        _told(front, x, y, area),
        svg.star(*here, title=f"present design: {front.of} {front.text(now)}"),
    ]
    return svg.document(width, height, f"{front.of.capitalize()} over privacy budget and total power", *parts)


def slice_chart(front: Front, width: float, *, over: str) -> str:
    """Return the bound or accuracy over one budget, the other fixed. `over` is "epsilon" or "total_power"."""
    if over == "epsilon":
        values, loss, here = front.epsilon, front.loss[front.power_index], front.epsilon_index
        binding, label = front.binding[front.power_index], "privacy budget ε"
    else:
        values, loss, here = front.total_power, front.loss[:, front.epsilon_index], front.power_index
        binding, label = front.binding[:, front.epsilon_index], "total power budget [W]"
    seen = np.where(np.isfinite(loss), loss, np.nan)
    if front.of == "bound":
        low, high = padded(loss, below=1.15, above=1.15)
        y = Axis(label="bound", low=low, high=high, kind="log")
    else:
        seen = 1.0 - seen
        y = Axis(label="expected accuracy", low=0.0, high=1.0, percent=True)
    chart = Chart(
        title=f"{y.label.capitalize()} over the {label}",
        x=Axis(label=label, low=values[0], high=values[-1], kind="log"),
        y=y,
        parts=(
            Line(x=values, y=seen, colour="ink", name=y.label, listed=False),
            Mark(x=float(values[here]), y=float(seen[here]), name="present design"),
        ),
        notes={
            float(value): f"{label}: {number(float(value))}, {LIMITS.get(str(limit), 'no plan')}"
            for value, limit in zip(values, binding, strict=True)
        },
    )
    return svg.render(chart, width, 190)


def sensitivity_sentences(found: Sensitivities) -> list[tuple[str, str]]:
    """Return what the next unit of each budget buys, as (headline, remark) pairs."""
    return [
        ("One more watt", _bought(found, found.watt, "total_power")),
        ("One more unit of ε", _bought(found, found.epsilon, "privacy")),
        ("Twice the power", _bought(found, found.double_power, "total_power")),
        ("Twice the ε", _bought(found, found.double_epsilon, "privacy")),
    ]


def levels(loss: Floats, now: float) -> list[float]:
    """Return up to eight losses to draw lines for: `now`, and a geometric sequence to both sides."""
    finite = loss[np.isfinite(loss)]
    if not finite.size or not math.isfinite(now) or finite.max() / finite.min() < 1 + 1e-6:
        return []
    step = max((float(finite.max()) / float(finite.min())) ** (1 / 8), 1.02)
    found = [now * step**power for power in range(-8, 9)]
    return [level for level in found if finite.min() < level < finite.max() or level == now]


def _score(plan: Plan, best: float) -> str:
    """The expected accuracy of a plan that was chosen by it, or how far its bound is above the optimum's."""
    if plan.objective == "measured":
        return "?" if plan.predicted_accuracy is None else f"{plan.predicted_accuracy:.1%}"
    return above(plan.bound.total / best - 1)


def _policy_row(name: str, plan: Plan, best: float, longest: float) -> str:
    mark = "*" if plan.violations else ""
    cells = "".join(
        f"<td>{cell}</td>"
        for cell in (
            _score(plan, best),
            devices_text(plan, "–"),
            plan.rounds,
            number(plan.power_total, 4),
            number(plan.epsilon_round),
            number(plan.epsilon_total),
        )
    )
    css = ' class="best"' if name == "optimal" else ""
    said = html.escape(name)
    return (
        f'<tr{css}><th scope="row"><i class="dot {colours.policy(name)}"></i>{said}{mark}</th><td class="wide">'
        f'<span class="bound">{number(plan.bound.total, 4)}</span>{svg.stack(plan.bound.terms, longest)}</td>'
        f'{cells}<td><span class="chip lim-{plan.binding}">{LIMITS[plan.binding]}</span></td></tr>'
    )


def _regions(front: Front, x: Floats, y: Floats) -> tuple[list[str], list[str]]:
    """The part of the map that each limit holds, and the part where no plan fits."""
    areas = regions(x, y, front.binding)
    void = [f'<path class="void" d="{_joined(areas.pop(""))}"/>'] if "" in areas else []
    return [f'<path class="region lim-{limit}" d="{_joined(found)}"/>' for limit, found in areas.items()], void


def _contours(better: Mapping[float, Polylines], now: float) -> list[str]:
    """Lines of equal bound, paler on the better side of each; the best come last, lest the paler side hide a line."""
    return [
        f'<path class="contour{" now" if level == now else ""}" d="{_joined(found)}"/>'
        for level, found in sorted(better.items(), reverse=True)
    ]


def _joined(polylines: Polylines) -> str:
    return "".join(svg.path(*zip(*line, strict=True)) + ("Z" if line[0] == line[-1] else "") for line in polylines)


def _told(front: Front, x: Floats, y: Floats, area: Area) -> str:
    """What the pointer is told around each pair of budgets."""
    across = [area.left, *((x[1:] + x[:-1]) / 2).tolist(), area.right]
    down = [area.bottom, *((y[1:] + y[:-1]) / 2).tolist(), area.top]
    parts = []
    for i, j in np.ndindex(front.loss.shape):
        limit = str(front.binding[i, j])
        title = f"ε = {number(float(front.epsilon[j]))}, {number(float(front.total_power[i]))} W: " + (
            f"{front.of} {front.text(float(front.loss[i, j]))}, {LIMITS[limit]} is the limit"
            if limit
            else "no plan fits"
        )
        size = across[j + 1] - across[j], down[i] - down[i + 1]
        parts.append(svg.rectangle(across[j], down[i + 1], *size, "hover", title=title))
    return "".join(parts)


def _contour_labels(front: Front, better: Mapping[float, Polylines], star: Point, area: Area) -> list[str]:
    """The values of the lines, each where it hides no other and not the star; one that finds no place is left out."""
    taken = [_Box(*star, 9.0, 9.0)]
    found, now = [], float(front.loss[front.power_index, front.epsilon_index])
    for level in sorted(better, key=lambda level: (level != now, level)):
        label = front.text(level)
        half = 3.5 * len(label) + 2
        inside = [
            (min(max(x, area.left + half), area.right - half), min(max(y, area.top + 10), area.bottom - 4))
            for line in better[level]
            for x, y in line
            if area.left <= x <= area.right and area.top <= y <= area.bottom
        ]
        for x, y in sorted(inside, key=lambda point: 0.4 * point[1] - point[0]):
            box = _Box(x, y - 7, half, 7.0)
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                css = "contour-label now" if level == now else "contour-label"
                found.append(svg.text(x, y - 3, label, css, anchor="middle"))
                break
    return found


class _Box(NamedTuple):
    """A rectangle around a point, by half its width and half its height [px]."""

    x: float
    y: float
    half_width: float
    half_height: float

    def overlaps(self, other: _Box) -> bool:
        return (
            abs(self.x - other.x) < self.half_width + other.half_width
            and abs(self.y - other.y) < self.half_height + other.half_height
        )


def _bought(found: Sensitivities, then: float, budget: str) -> str:
    now = found.now
    if found.of == "accuracy":
        if f"{then:.1%}" != f"{now:.1%}" and not math.isnan(then):
            return f"raises the expected accuracy from {now:.1%} to {then:.1%}."
    elif (gain := 1 - then / now) > 1e-12:
        share = f"{gain:.1%}" if gain >= 0.001 else f"{gain:.1g}".replace("e-0", "e-") + " of it"
        return f"lowers the bound by {share}, from {number(now, 5)} to {number(then, 5)}."
    if math.isnan(then):
        return "leads outside the surrogate's range."
    reason = f"{LIMITS[found.binding]} is the limit" if found.binding != budget else "other terms hold it"
    return f"changes nothing: {reason}."
