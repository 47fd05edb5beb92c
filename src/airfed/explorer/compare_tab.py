"""The Compare tab: policies side by side, the best plan over ε and total power, what one more unit of a budget buys."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np
from nicegui import ui
from numpy.typing import NDArray

from airfed.explorer.charts import Floats, Options, axis, chart, line, star
from airfed.explorer.design import Design
from airfed.explorer.elements import Chart, keys, show_if, text
from airfed.explorer.view import Refusal
from airfed.explorer.worker import TooMuchError, compute
from airfed.planning import Plan
from airfed.planning.limits import amplified
from airfed.planning.policy import Sensitivities, sensitivities, with_budgets
from airfed.plotting import colours, series
from airfed.policies import POLICIES
from airfed.problem import InfeasibleError, Problem
from airfed.scenario import Scenario
from airfed.text.phrases import FLEET_LIMITS, LIMITS, TERMS, above, devices_text, number

_SPAN: Final = 1.5  # decades to each side of the present budgets
_FINER: Final = 8  # points of a line between two plans of the map


@dataclass(frozen=True, kw_only=True, eq=False)
class Front:
    """The best plan for each pair of budgets, by what the scenario's plan is chosen by.

    Args:
        of: what the loss is: Theorem 1's "bound", or 1 − the expected "accuracy".
        epsilon: (n,) the privacy budgets, ascending, the present one in the middle.
        total_power: (n,) the power budgets [W], likewise.
        loss: (n, n) by total power and ε, inf where no plan fits.
        binding: (n, n) the limit that holds θ there, "" where no plan fits.
    """

    of: Literal["bound", "accuracy"]
    epsilon: Floats
    total_power: Floats
    loss: Floats
    binding: NDArray[np.str_]

    @property
    def middle(self) -> int:
        """The index of the present budgets."""
        return self.epsilon.size // 2

    @property
    def now(self) -> float:
        """The present loss."""
        return float(self.loss[self.middle, self.middle])

    def text(self, loss: float) -> str:
        """Return a loss as the bound, or as the accuracy."""
        return number(loss) if self.of == "bound" else f"{1 - loss:.1%}"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The rows of the table of policies, notes below it, and sentences on the budgets (none where rounds differ)."""

    rows: list[dict[str, Any]]
    notes: list[str]
    bought: dict[str, str]


def compare(design: Design) -> Compared | Refusal:
    """Return the comparison of a design's policies, and what a little more of a budget buys."""
    try:
        world = design.world()
        plans, reasons = world.compare()
        if "optimal" not in plans:
            return Refusal(reasons["optimal"], infeasible=True)
        best = plans["optimal"].bound.total
        longest = min(max(plan.bound.total for plan in plans.values()), 4 * best)
        rows = [_row(name, plan, best, longest) for name, plan in plans.items()]
        rows += [{"policy": name, "colour": colours.policy(name), "reason": why} for name, why in reasons.items()]
        notes = [f"* {name}: {' '.join(plan.notes)}" for name, plan in plans.items() if plan.violations]
        alike = not series.round_by_round(plans["optimal"])
        return Compared(rows=rows, notes=notes, bought=bought(sensitivity(world)) if alike else {})
    except ValueError as error:
        return Refusal(str(error))


def _row(name: str, plan: Plan, best: float, longest: float) -> dict[str, Any]:
    score = above(plan.bound.total / best - 1)
    if plan.objective == "measured":
        score = "?" if plan.predicted_accuracy is None else f"{plan.predicted_accuracy:.1%}"
    return {
        "policy": f"{name}*" if plan.violations else name,
        "colour": colours.policy(name),
        "bound": number(plan.bound.total, 4),
        "parts": [[f"term-{term}", f"{100 * value / longest:.2f}%"] for term, value in plan.bound.terms.items()],
        "score": score,
        "devices": devices_text(plan, "–"),
        "rounds": plan.rounds,
        "power": number(plan.power_total, 4),
        "epsilon_round": number(plan.epsilon_round),
        "epsilon_total": number(plan.epsilon_total),
        "limit": [f"lim-{plan.binding}", LIMITS[plan.binding]],
        "reason": "",
    }


def front(design: Design) -> Front:
    """Return the best plan over a grid of ε and total power around the budgets of a design that has a plan."""
    now, planner = _optimum(design.world())
    problem = now.problem
    points = 15 if problem.fleet.equal_peak_power and not amplified(problem) else 13  # odd: the present one is a point
    factors = np.logspace(-_SPAN, _SPAN, points)
    factors[points // 2] = 1.0
    epsilon, power = problem.budget.epsilon * factors, problem.budget.total_power * factors
    loss = np.full((points, points), np.inf)
    binding = np.full((points, points), "", dtype="<U16")
    for row, column in np.ndindex(loss.shape):
        try:
            plan = planner(with_budgets(problem, epsilon=float(epsilon[column]), total_power=float(power[row])))
        except InfeasibleError:
            continue
        accuracy = plan.predicted_accuracy if plan.objective == "measured" else None
        loss[row, column] = plan.bound.total if accuracy is None else 1.0 - accuracy
        binding[row, column] = plan.binding
    of: Literal["bound", "accuracy"] = "accuracy" if now.objective == "measured" else "bound"
    return Front(of=of, epsilon=epsilon, total_power=power, loss=loss, binding=binding)


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


def bought(found: Sensitivities) -> dict[str, str]:
    """Return what the next unit of each budget buys, by headline."""

    def buys(then: float, budget: str) -> str:
        now, gain = found.now, 1 - then / found.now
        if math.isnan(then):
            return "leads outside the surrogate's range."
        if found.of == "accuracy" and f"{then:.1%}" != f"{now:.1%}":
            return f"raises the expected accuracy from {now:.1%} to {then:.1%}."
        if found.of == "bound" and gain > 1e-12:
            share = f"{gain:.1%}" if gain >= 0.001 else f"{number(100 * gain, 1)}%"
            return f"lowers the bound by {share}, from {number(now, 5)} to {number(then, 5)}."
        reason = f"{LIMITS[found.binding]} is the limit" if found.binding != budget else "other terms hold it"
        return f"changes nothing: {reason}."

    return {
        "One more watt": buys(found.watt, "total_power"),
        "One more unit of ε": buys(found.epsilon, "privacy"),
        "Twice the power": buys(found.double_power, "total_power"),
        "Twice the ε": buys(found.double_epsilon, "privacy"),
    }


def slice_chart(front: Front, over: str) -> Options:
    """Return the bound or accuracy over one budget, the other fixed. `over` is "epsilon" or "total_power"."""
    epsilon = over == "epsilon"
    values, loss = (
        (front.epsilon, front.loss[front.middle]) if epsilon else (front.total_power, front.loss[:, front.middle])
    )
    label = "privacy budget ε" if epsilon else "total power budget [W]"
    if front.of == "bound":
        finite = loss[np.isfinite(loss)]
        up = axis("bound", finite.min() / 1.15, finite.max() * 1.15, kind="log", upright=True)
    else:
        loss, up = 1.0 - loss, axis("expected accuracy", 0.0, 1.0, text="airfed.percent", upright=True)
    return chart(
        axis(label, values[0], values[-1], kind="log"),
        up,
        line(front.of, values, loss, "ink", listed=False),
        star(float(values[front.middle]), float(loss[front.middle]), "present design"),
        spoken=f"The {front.of} over the {label}",
    )


def contours(front: Front) -> dict[float, Floats]:
    """Return lines of equal loss by their level, the present one first; (m, 2) points of (ε, W), ε ascending.

    More of a budget never raises the loss, so that a line is, for each ε, the least power that reaches its level: it
    comes down from the top, straight where privacy is the limit, and ends at the right or at the bottom. The present
    design is on its own line, unless both budgets could shrink without a loss.
    """
    size = front.epsilon.size
    fine = np.linspace(0, size - 1, _FINER * (size - 1) + 1)
    nodes = np.arange(size)
    finite = front.loss[np.isfinite(front.loss)]
    height = np.log(np.where(np.isfinite(front.loss), front.loss, 1e3 * finite.max()))
    height = np.array([np.interp(fine, nodes, row) for row in height])
    height = np.array([np.interp(fine, nodes, column) for column in height.T]).T
    x, y = (np.exp(np.interp(fine, nodes, np.log(values))) for values in (front.epsilon, front.total_power))
    step = max((finite.max() / finite.min()) ** (1 / 8), 1.02)
    levels = [front.now * step**power for power in (0, *range(-8, 0), *range(1, 9))]
    found = {}
    for level in levels if finite.max() / finite.min() > 1 + 1e-6 else ():
        if level != front.now and not finite.min() < level < finite.max():
            continue
        below = height <= math.log(level) + 1e-9
        columns = np.flatnonzero(below.any(axis=0))
        first = below.argmax(axis=0)[columns]  # the least power that reaches the level
        up = np.maximum(first, 1)
        above_it, here = height[up - 1, columns], height[up, columns]
        share = np.clip((above_it - math.log(level)) / np.maximum(above_it - here, 1e-12), 0.0, 1.0)
        watts = np.where(first == 0, y[0], y[up - 1] * (y[up] / y[up - 1]) ** share)
        kept = slice(0, int(np.argmax(first == 0)) + 1 if (first == 0).any() else None)
        path = np.stack([x[columns], watts], axis=1)[kept]
        top = [] if columns[0] == 0 else [[x[columns[0]], y[-1]]]
        if len(top) + len(path) > 1:
            found[level] = np.array([*top, *path])
    return found


def front_map(front: Front) -> Options:
    """Return the loss over both budgets: the colour is the limit, lines join equals, the star is the present design."""
    x, y, now = front.epsilon, front.total_power, front.now
    edges = [np.concatenate([v[:1], np.sqrt(v[1:] * v[:-1]), v[-1:]]) for v in (x, y)]
    areas, hover = [], []
    for row, column in np.ndindex(front.loss.shape):
        limit = str(front.binding[row, column])
        colour = {"color": f"var(--{f'lim-{limit}' if limit else 'out'})", "opacity": 0.45 if limit else 1.0}
        corners = [{"coord": [edges[0][column + k], edges[1][row + k]]} for k in (0, 1)]
        areas.append([{**corners[0], "itemStyle": colour}, corners[1]])
        said = (
            f"{front.of} {front.text(float(front.loss[row, column]))}, {LIMITS[limit]} is the limit"
            if limit
            else "no plan fits"
        )
        place = f"ε = {number(float(x[column]))}, {number(float(y[row]))} W"
        hover.append({"value": [x[column], y[row]], "name": f"{place}: {said}"})
    lines, taken = [], [(0.5, 0.5)]  # of the map's width and height: the star
    for level, path in contours(front).items():
        shares = np.stack([np.log(path[:, k] / v[0]) / np.log(v[-1] / v[0]) for k, v in enumerate((x, y))], axis=1)
        # The label stands at the right end of its line, or else further up, where it hides no other.
        data: list[Any] = path.tolist()
        for at, (right, high) in reversed(list(enumerate(shares.tolist()))):
            if high < 0.93 and all(abs(right - a) > 0.13 or abs(high - b) > 0.065 for a, b in taken):
                taken.append((right, high))
                shown = {"show": True, "position": "insideBottomRight" if right > 0.9 else "top"}
                data[at] = {"value": data[at], "symbol": "circle", "symbolSize": 0.1, "label": shown}
                break
        paint = {"color": "var(--lit)"} if level == now else {"color": "var(--ink)", "opacity": 0.55}
        look = {"fontSize": 11, "color": "var(--ink)", "textBorderColor": "var(--surface)", "textBorderWidth": 3}
        label = {"show": False, "formatter": front.text(level), **look, "fontWeight": 700 if level == now else 400}
        lines.append(
            {"type": "line", "name": "now" if level == now else "", "listed": False, "data": data, "silent": True}
            | {"lineStyle": {**paint, "width": 2.4 if level == now else 1.0}, "label": label, "showSymbol": True}
            | {
                "symbol": "none",
                "labelLayout": {"hideOverlap": True},
                "z": 4 if level == now else 3,
                "tooltip": {"show": False},
            }
        )
    pointed = {"type": "scatter", "data": hover, "symbolSize": 30, "itemStyle": {"color": "transparent"}, "z": 6}
    pointed |= {
        "emphasis": {"disabled": True},
        "markArea": {"silent": True, "data": areas, "emphasis": {"disabled": True}},
    }
    made = chart(
        axis("privacy budget ε", x[0], x[-1], kind="log"),
        axis("total power budget [W]", y[0], y[-1], kind="log", upright=True),
        *lines,
        star(float(x[front.middle]), float(y[front.middle]), "present design"),
        pointed,
        spoken=f"The {front.of} over privacy budget and total power; at present {front.text(now)}",
    )
    made["tooltip"] |= {"trigger": "item", "formatter": "{b}"}
    return made


_COLUMNS: Final = {
    "policy": "policy",
    "bound": "bound",
    "score": "above the optimum",
    "devices": "devices",
    "rounds": "rounds",
    "power": "W in total",
    "epsilon_round": "ε per round",
    "epsilon_total": "ε in total",
    "limit": "limit",
}
_ROW: Final = """
<q-tr :props="props" :class="{best: props.row.policy === 'optimal', none: props.row.reason}">
  <q-td key="policy" :props="props"><i class="dot" :class="props.row.colour"></i>{{ props.row.policy }}</q-td>
  <q-td v-if="props.row.reason" colspan="8">{{ props.row.reason }}</q-td>
  <template v-else>
    <q-td key="bound" :props="props"><span class="bound">{{ props.row.bound }}</span><span class="bars"><i
      v-for="part in props.row.parts" :class="part[0]" :style="{width: part[1]}"></i></span></q-td>
    <q-td v-for="name in ['score', 'devices', 'rounds', 'power', 'epsilon_round', 'epsilon_total']" :key="name"
      class="text-right">{{ props.row[name] }}</q-td>
    <q-td key="limit" :props="props"
      ><span class="chip" :class="props.row.limit[0]">{{ props.row.limit[1] }}</span></q-td>
  </template>
</q-tr>"""
_NO_FRONT: Final = (
    "The map over both budgets is drawn for plans whose rounds are alike: where they differ it would take hundreds of "
    "plans of a second or more each. Change a budget and read the result above."
)
_FRONT: Final = (
    "Along a line the bound, or the expected accuracy, stays the same: a Pareto front, on which ε is traded for watts. "
    "The green line is the present design’s; the colour is the binding limit."
)


class CompareTab:
    """The policies side by side, and what the budgets buy."""

    def __init__(self) -> None:
        self._compared: Design | None = None
        with ui.element("section").classes("section hide").props("aria-label=Compare") as self.box:
            with ui.element("div").classes("section hide") as self._charts:
                with ui.element("div").classes("card"):
                    text("Policies on one channel draw", "h2")
                    text("The bound of each, split into its terms.", "p", "sub")
                    keys({f"term-{name}": label for name, label in TERMS.items()})
                    columns = [
                        {"name": n, "label": n, "field": n, "align": "left" if n in ("policy", "bound") else "right"}
                        for n in _COLUMNS
                    ]
                    self._table = ui.table(columns=columns, rows=[]).props("flat dense id=policies tabindex=0")
                    self._table.add_slot("body", _ROW)
                    self._notes = ui.element("div")
                with ui.element("div").classes("card"):
                    text("What the budgets buy", "h2")
                    self._no_front = text("", "p", "sub").props("id=no-front")
                    self._bought = ui.element("div").classes("sensitivities").props("id=sensitivities")
                    with ui.element("div").classes("pair") as slices:
                        self._slices = {over: Chart(190) for over in ("total_power", "epsilon")}
                with ui.element("div").classes("card") as map_card:
                    text("Privacy against power", "h2")
                    text(_FRONT, "p", "sub")
                    keys({f"lim-{name}": label for name, label in FLEET_LIMITS.items()})
                    self._map = Chart(420).props("id=front")
            self._reason = text("", "p", "card wrong hide")
        self._with_front = (self._bought, slices, map_card)

    async def show(self, design: Design, has_plan: bool) -> None:
        """Compare the policies of a design, unless they are shown already."""
        if self._compared == design:
            return
        self._compared = None
        if not has_plan:
            self._refuse("Nothing to compare: the present design has no plan; see above.")
            return
        self._charts.classes(add="busy")
        try:
            found = await compute(compare, design)
            if isinstance(found, Refusal):
                self._refuse(found.reason)
                return
            self._show(found)
            if found.bought:
                drawn = await compute(front, design)
                for over, each in self._slices.items():
                    each.show(slice_chart(drawn, over))
                self._map.show(front_map(drawn))
            self._compared = design
        except TooMuchError as error:
            self._refuse(str(error))
        finally:
            self._charts.classes(remove="busy")

    def _show(self, found: Compared) -> None:
        show_if(self._charts, True)
        show_if(self._reason, False)
        by_accuracy = found.rows[0]["score"].endswith("%") and found.rows[0]["score"] != "0%"
        labels = _COLUMNS | ({"score": "expected accuracy"} if by_accuracy else {})
        self._table.columns = [{**column, "label": labels[column["name"]]} for column in self._table.columns]
        self._table.rows = found.rows
        self._notes.clear()
        with self._notes:
            for note in found.notes:
                text(note, "p", "note")
        self._no_front.text = "To the exact optimum at the larger budget." if found.bought else _NO_FRONT
        for box in self._with_front:
            show_if(box, bool(found.bought))
        self._bought.clear()
        with self._bought:
            for headline, sentence in found.bought.items():
                with ui.element("p"):
                    text(headline, "b")
                    text(f" {sentence}", "span")

    def _refuse(self, reason: str) -> None:
        show_if(self._charts, False)
        show_if(self._reason, True)
        self._reason.text = reason
