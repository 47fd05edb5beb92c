"""What the page shows of a plan: sentences, figures with meters, SVG. Pure functions without NiceGUI.

`View` is a plan whose rounds are alike, with all schedule sizes and numbers of rounds; `Rounds` is a plan round by
round, kept so that any round can be shown without planning again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from airfed import planning
from airfed.planning import Plan
from airfed.planning.exact import CandidateSpace
from airfed.planning.policy import NextDevice, next_device
from airfed.plotting import fading, plans
from airfed.plotting.chart import Axis, Chart
from airfed.plotting.figure import svg
from airfed.plotting.series import Floats
from airfed.plotting.svg import Area, Scale
from airfed.privacy import gaussian_epsilon
from airfed.scenario import Scenario
from airfed.text.phrases import FLEET_LIMITS, LIMITS, TERMS, against, count, decision_sentence, gap_sentence, number


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """Everything that the design section draws of a plan whose rounds are alike."""

    plan: Plan
    space: CandidateSpace
    rounds: Chart
    next_device: NextDevice | None


def look(world: Scenario, plan: Plan | None = None) -> View:
    """Return the view of a scenario whose rounds are alike.

    Args:
        world: the scenario.
        plan: its plan, if it was made already.

    Raises:
        InfeasibleError: no plan meets every limit.
        ScenarioError: a length does not fit.
    """
    plan = world.plan() if plan is None else plan
    return View(
        plan=plan,
        space=planning.candidates(plan),
        rounds=plans.over_rounds(plan, world.response),
        next_device=next_device(plan),
    )


def decision(plan: Plan) -> str:
    """Return the schedule in one sentence, with its privacy and, with several antennas, the adversary."""
    budgets = f"ε = {plan.epsilon_round:.3g} per round, {plan.epsilon_total:.3g} in total{against(plan)}."
    return f"{decision_sentence(plan).removesuffix('.')}; {budgets}"


def waiting(view: View) -> str:
    """Return the next device and what keeps it out, in one sentence."""
    plan, out = view.plan, view.next_device
    if out is None:
        unreachable = int(np.count_nonzero(plan.problem.fleet.gain == 0))
        if plan.num_scheduled + unreachable == plan.problem.fleet.num_devices:
            return "Every reachable device transmits."
        return "No further device is reachable."
    change = out.bound / plan.bound.total - 1
    size = f"{abs(change):.1%}" if abs(change) >= 0.0005 else "less than 0.1%"
    effect = f"the bound would {'rise' if change > 0 else 'fall'} by {size}"
    if out.alignment >= plan.alignment * (1 - 1e-9):
        return f"Device {out.device} (|h| = {out.gain:.3g}) would fit without lowering θ; {effect}."
    return (
        f"{LIMITS[out.limit].capitalize()} stops the next one: with device {out.device} (|h| = {out.gain:.3g}) "
        f"θ falls from {plan.alignment:.3g} to {out.alignment:.3g} and {effect}."
    )


_MOST_BARS: Final = 400


@dataclass(frozen=True, kw_only=True, eq=False)
class Strip:
    """The devices in one round, the strongest first; in a large fleet neighbours share a bar.

    Args:
        lit: [W] of scheduled devices, NaN where there are none.
        dark: [W] that the others would need for the same θ, NaN where there are none.
        ceiling: their peak powers.
        strongest, weakest: |h| at both ends.
    """

    lit: Floats
    dark: Floats
    ceiling: Floats
    strongest: float
    weakest: float

    @classmethod
    def of(cls, plan: Plan, index: int) -> Strip:
        """Return the strip of round i of a plan."""
        entry, fleet = plan.sequence[index], plan.problem.fleet
        gain = fleet.gain_in(index)
        order = np.argsort(-gain, kind="stable")
        scheduled = plan.amplitudes.shares(index) > 0
        with np.errstate(divide="ignore", over="ignore"):
            needed = np.square(entry.alignment / gain)
        needed[entry.scheduled] = entry.power
        lit, dark, ceiling = _bars(needed[order], scheduled[order], fleet.peak_power[order])
        return cls(lit=lit, dark=dark, ceiling=ceiling, strongest=float(gain[order[0]]), weakest=float(gain[order[-1]]))

    @property
    def top(self) -> float:
        """How high its axis should reach [W]."""
        return 1.12 * max(float(np.nanmax(self.lit)), float(np.quantile(self.ceiling, 0.95)))


def strip(view: View, width: float) -> str:
    """Return the devices sorted by gain: scheduled ones lit, transmit power as height, peak power as a line."""
    plan, fleet = view.plan, view.plan.problem.fleet
    scheduled = plan.amplitudes.shares(0) > 0
    found = Strip.of(plan, 0)
    title = f"{plan.num_scheduled} of {fleet.num_devices} devices transmit; the strongest is on the left"
    prefix = bool(scheduled[np.argsort(-fleet.gain, kind="stable")][: plan.num_scheduled].all())
    limit = view.next_device.limit if view.next_device is not None and prefix else ""
    return drawn_strip(
        found, width, title=title, top=found.top, edge=plan.num_scheduled / fleet.num_devices, limit=limit
    )


def drawn_strip(
    strip: Strip, width: float, *, title: str, top: float, edge: float | None = None, limit: str = ""
) -> str:
    """Return a strip as SVG.

    Args:
        strip: the bars.
        width: of the picture [px].
        title: for those who do not see it.
        top: where the axis ends [W].
        edge, limit: after which share of the devices which limit stops the next one; None or "": nothing is said of it.
    """
    area = Area(left=46, top=30, right=width - 4, bottom=170)
    height = area.bottom + (24 if edge is None else 44)
    lit, dark, ceiling = strip.lit, strip.dark, strip.ceiling
    ys = Scale(Axis(label="W per round, worst case", low=0.0, high=top, kind="root"), area.bottom, area.top)
    step = area.width / lit.size
    xs = area.left + step * (np.arange(lit.size, dtype=np.float64) + 0.5)
    stroke = max(step * 0.72, 0.8)
    parts = [
        svg.left_axis(ys, area, ys.axis.ticks(), label=ys.axis.label),
        svg.clipped(
            area,
            svg.columns(xs, ys(dark), area.bottom, "bar-out", stroke),
            svg.columns(xs, ys(lit), area.bottom, "bar-lit", stroke),
            svg.polyline(*_steps(xs, ys(ceiling), step), "lim-peak_power", "dash", 0.9),
        ),
        svg.segment(area.left, area.bottom, area.right, area.bottom, "axis"),
        *_strip_labels(strip, area, area.left + area.width * (edge or 0.0), limit),
    ]
    return svg.document(width, height, title, *parts)


def candidates(view: View, width: float) -> str:
    """Return the candidate space (the paper's Fig. 2): θ with its three limits, and the objective, over |K|."""
    upper, lower = plans.alignment_chart(view.plan, view.space), plans.objective_chart(view.plan, view.space)
    upper = replace(upper, x=replace(upper.x, label=""))  # it stands under the lower one
    return svg.render(upper, width, 204, left=48) + svg.render(lower, width, 160, left=48)


def over_rounds(chart: Chart, width: float) -> str:
    """Return a chart over the rounds with a line at the one that the page shows."""
    return svg.render(chart, width, 300, cursor=True)


def limit_legend() -> str:
    """Return the key to the limits, as HTML."""
    limits = [svg.line_key(label, f"lim-{name}", "dash", 0.9) for name, label in FLEET_LIMITS.items()]
    return svg.keyed(svg.line_key("largest θ", "ink"), *limits)


def term_legend() -> str:
    """Return the key to the terms, as HTML."""
    return svg.keyed(*(svg.box_key(label, f"term-{name}") for name, label in TERMS.items()))


def _bars(needed: Floats, scheduled: NDArray[np.bool_], peak: Floats) -> tuple[Floats, Floats, Floats]:
    """Heights of lit and dark bars (NaN for none) and the peak power; neighbours share a bar in a large fleet."""
    count = min(needed.size, _MOST_BARS)
    starts = np.linspace(0, needed.size, count, endpoint=False).round().astype(np.intp)
    lit = np.maximum.reduceat(np.where(scheduled, needed, -np.inf), starts)
    dark = np.maximum.reduceat(np.where(scheduled, -np.inf, needed), starts)
    ceiling = np.maximum.reduceat(peak, starts)
    return np.where(lit < 0, np.nan, lit), np.where(dark < 0, np.nan, dark), ceiling


def _steps(xs: Floats, ys: Floats, step: float) -> tuple[Floats, Floats]:
    if np.all(ys == ys[0]):
        return np.array([xs[0] - step / 2, xs[-1] + step / 2]), ys[[0, -1]]
    return np.stack([xs - step / 2, xs + step / 2], axis=1).ravel(), np.repeat(ys, 2)


def _strip_labels(strip: Strip, area: Area, edge: float, limit: str) -> list[str]:
    base = area.bottom + 16
    parts = [
        svg.text(area.left, base, f"strongest |h| = {number(strip.strongest)}", "tick"),
        svg.text(area.right, base, f"weakest |h| = {number(strip.weakest)}", "tick", anchor="end"),
        svg.text(area.right, area.top - 9, "dashed: peak power", "tick", anchor="end"),
    ]
    if limit:
        label = f"{LIMITS[limit]} stops the next one"
        half = 3.6 * len(label)  # about half its width [px]
        middle = min(max(edge, area.left + half), area.right - half)
        parts += [
            svg.segment(edge, area.top - 2, edge, area.bottom + 21, f"stop lim-{limit}"),
            svg.text(middle, area.bottom + 35, label, f"label strong lim-{limit}", anchor="middle"),
        ]
    return parts


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


_LEFT: Final = {  # of the budgets that cover the training, as `plotting.fading.budgets_left` names them
    "total_power": ("Total power left", "after this round"),
    "privacy": ("Privacy left", "Σμ², most exposed"),
    "device_power": ("Battery left", "the emptiest"),
}


def plan_facts(plan: Plan) -> Markup:
    """Return the figures behind the decision; a meter shows the share of its budget that is used."""
    budget = plan.problem.budget
    spent = plan.power_total / budget.total_power
    peak = float((plan.power / plan.problem.fleet.peak_power[plan.scheduled]).max())
    covered = plan.epsilon_total if budget.scope == "total" else plan.epsilon_round
    counted = plan.epsilon_paper if budget.formula == "classic" else covered
    formula = " by Lemma 1" if budget.formula == "classic" else ""
    loss = counted / budget.epsilon
    blocks = [
        _quality(plan),
        ("ε per round, exact", number(plan.epsilon_round), f"μ = {number(plan.mu_round)}", None, ""),
        ("ε in total, exact", number(plan.epsilon_total), f"δ = {number(budget.delta)}", None, ""),
        (
            "Privacy budget used",
            f"{loss:.1%}",
            f"ε {number(counted)} of {number(budget.epsilon)}{formula}",
            loss,
            "privacy",
        ),
        (
            "Total power used",
            f"{spent:.1%}",
            f"{number(plan.power_total)} of {number(budget.total_power, 4)} W",
            spent,
            "total_power",
        ),
        ("Peak power used", f"{peak:.1%}", "of a device’s own", peak, "peak_power"),
    ]
    if "device_power" in plan.limits:
        used = (plan.alignment / plan.limits["device_power"]) ** 2
        blocks.append(("Battery used", f"{used:.1%}", "of the emptiest", used, "device_power"))
    return Markup("").join(fact(*block) for block in blocks)


def _quality(plan: Plan) -> tuple[str, str, str, float | None, str]:
    """What the plan was chosen by: the bound, or the accuracy to expect."""
    found = plan.prediction
    if found is not None and plan.objective == "measured":
        remark = f"{found.low:.0%} to {found.high:.0%}, ϖ = {number(plan.clip_norm)}"
        return "Expected accuracy", f"{found.accuracy:.1%}", remark, None, ""
    remark = f"any plan: ≥ {number(plan.lower_bound, 4)}" if gap_sentence(plan) else f"θ = {number(plan.alignment)}"
    remark = remark if found is None else f"expect {found.accuracy:.1%} accuracy"
    return "Bound on the gap", number(plan.bound.total, 4), remark, None, ""


def round_facts(rounds: Rounds, index: int) -> Markup:
    """Return the figures of a round; a meter shows θ as a share of what the limits on a round allow, or what is left.

    Args:
        rounds: of a plan.
        index: which one, from 0.
    """
    limit = min(rounds.ceilings, key=lambda name: float(rounds.ceilings[name][index]))
    theta, ceiling = float(rounds.alignments[index]), float(rounds.ceilings[limit][index])
    blocks: list[tuple[str, str, str, float | None, str]] = [
        (
            "Devices",
            f"{rounds.sizes[index]} of {rounds.num_devices}",
            count(rounds.local_steps[index], "local step"),
            None,
            "",
        ),
        ("θ", number(theta), f"≤ {number(ceiling)}, {LIMITS[limit]}", theta / ceiling, limit),
        (
            "Power",
            f"{number(float(rounds.powers[index]))} W",
            f"at most {number(float(rounds.largest[index]))} W each",
            None,
            "",
        ),
        ("ε of the round", number(gaussian_epsilon(float(rounds.mus[index]), rounds.delta)), "exact", None, ""),
    ]
    for name, (label, remark) in _LEFT.items():
        if name in rounds.left:
            share = float(rounds.left[name][index])
            blocks.append((label, f"{share:.1%}", remark, share, name))
    return Markup("").join(fact(*block) for block in blocks)


def fact(label: str, value: str, remark: str, share: float | None, limit: str) -> Markup:
    """Return a figure with its label; a meter shows a share, in the colour of a limit."""
    meter = Markup("")
    if share is not None:
        meter = Markup('<div class="meter lim-{}"><i style="width:{:.1f}%"></i></div>').format(
            limit, 100 * min(max(share, 0.0), 1.0)
        )
    block = Markup('<div class="fact"><small>{}</small><strong>{}</strong><em>{}</em>{}</div>')
    return block.format(label, value, remark, meter)
