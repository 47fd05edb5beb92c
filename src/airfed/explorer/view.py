"""What worker processes compute for the Design tab: a design in, sentences, figures and charts out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from airfed import planning
from airfed.explorer import charts, design
from airfed.explorer.charts import Floats, Options
from airfed.explorer.design import Design, Own
from airfed.planning import Plan
from airfed.planning.policy import next_device
from airfed.plotting import series
from airfed.privacy import gaussian_epsilon
from airfed.problem import InfeasibleError
from airfed.scenario import Scenario, ScenarioError
from airfed.text import phrases
from airfed.text.phrases import LIMITS, number

_MOST_BARS: Final = 400


class Refusal(NamedTuple):
    """Why there is nothing to show; `infeasible` where no plan fits, otherwise a value is wrong."""

    reason: str
    infeasible: bool = False


class Fact(NamedTuple):
    """A figure with its label; a meter shows a share in the colour of a limit."""

    label: str
    value: str
    remark: str
    share: float | None = None
    limit: str = ""


class Card(NamedTuple):
    """Charts with a title and a sentence about them."""

    title: str
    text: str
    charts: list[Options]


@dataclass(frozen=True, kw_only=True)
class View:
    """A design's plan in words and charts; `rounds` where rounds differ, to be shown one by one in the first card."""

    sentence: str
    facts: list[Fact]
    warnings: list[str]
    remarks: list[str]
    milliseconds: float
    cards: list[Card]
    rounds: Rounds | None = None


def show(present: Design) -> View | Refusal:
    """Return the plan of a design."""
    start = time.perf_counter()
    try:
        world = present.world()
        plan = world.plan()
        rounds = Rounds.of(plan) if series.round_by_round(plan) else None
        cards = _cards(world, plan) if rounds is None else [_ONE_ROUND]
        sentence = decision(plan)
    except InfeasibleError as error:
        return Refusal(str(error), infeasible=True)
    except ValueError as error:  # of the scenario, or of the user's own policy
        return Refusal(str(error))
    milliseconds = 1e3 * (time.perf_counter() - start)
    if rounds is not None:
        cards += [Card(title, said, [chart]) for title, (said, chart) in charts.round_by_round(plan).items()]
    warnings, said = remarks(plan)
    return View(
        sentence=sentence,
        facts=plan_facts(plan),
        warnings=warnings,
        remarks=said,
        milliseconds=milliseconds,
        cards=cards,
        rounds=rounds,
    )


def load(text: str, own: Own) -> Design | Refusal:
    """Return the design in a scenario's TOML."""
    try:
        return design.from_text(text, own)
    except ScenarioError as error:
        return Refusal(str(error))


_ONE_ROUND: Final = Card("Devices, by gain", "The scheduled devices of one round, and their power.", [])


def _cards(world: Scenario, plan: Plan) -> list[Card]:
    """The charts of a plan whose rounds are alike."""
    space = planning.candidates(plan)
    text = f"The bound {number(plan.bound.total, 4)} at I = {plan.rounds}; few rounds drift, many cost power and noise."
    if plan.objective == "measured" and world.response is not None:
        over = charts.accuracy_over_rounds(plan, series.accuracy_curve(plan.problem, world.response, plan.rounds))
        if plan.predicted_accuracy is not None:
            text = (
                f"The expected accuracy, {plan.predicted_accuracy:.1%} at I = {plan.rounds} and ϖ = "
                f"{number(plan.clip_norm)}, by the accuracy surrogate."
            )
    else:
        over = charts.bound_over_rounds(plan, series.bound_curve(plan.problem, plan.rounds))
    lit, dark, ceiling, ends = bars(plan, 0)
    size, num_devices = plan.num_scheduled, plan.problem.fleet.num_devices
    waiting, limit = next_sentence(plan)
    strongest = np.argsort(-plan.problem.fleet.gain, kind="stable")[:size]
    first = bool((plan.amplitudes.shares(0)[strongest] > 0).all())
    strip = charts.strip(
        (lit, dark, ceiling),
        ends,
        top=1.12 * max(float(np.nanmax(lit)), float(np.quantile(ceiling, 0.95))),
        spoken=f"{size} of {num_devices} devices transmit; the strongest is on the left",
        edge=size / num_devices * lit.size,
        limit=limit if first else "",
    )
    space_text = f"The candidate space at I = {plan.rounds}: θ may not exceed any of its limits."
    return [
        Card("Devices, by gain", waiting, [strip]),
        Card("How many devices", space_text, charts.candidates(plan, space)),
        Card("How many rounds", text, [over]),
    ]


def decision(plan: Plan) -> str:
    """Return the schedule in one sentence, with its privacy and, with several antennas, the adversary."""
    budgets = f"ε = {plan.epsilon_round:.3g} per round, {plan.epsilon_total:.3g} in total{phrases.against(plan)}."
    return f"{phrases.decision_sentence(plan).removesuffix('.')}; {budgets}"


def next_sentence(plan: Plan) -> tuple[str, str]:
    """Return the next device and the limit that keeps it out, in one sentence, and that limit ("" for none)."""
    out = next_device(plan)
    if out is None:
        unreachable = int(np.count_nonzero(plan.problem.fleet.gain == 0))
        everyone = plan.num_scheduled + unreachable == plan.problem.fleet.num_devices
        return "Every reachable device transmits." if everyone else "No further device is reachable.", ""
    change = out.bound / plan.bound.total - 1
    size = f"{abs(change):.1%}" if abs(change) >= 0.0005 else "less than 0.1%"
    effect = f"the bound would {'rise' if change > 0 else 'fall'} by {size}"
    if out.alignment >= plan.alignment * (1 - 1e-9):
        return f"Device {out.device} (|h| = {out.gain:.3g}) would fit without lowering θ; {effect}.", out.limit
    return (
        f"{LIMITS[out.limit].capitalize()} stops the next one: with device {out.device} (|h| = {out.gain:.3g}) "
        f"θ falls from {plan.alignment:.3g} to {out.alignment:.3g} and {effect}."
    ), out.limit


def bars(plan: Plan, index: int) -> tuple[Floats, Floats, Floats, list[float]]:
    """Return the devices in round `index`, the strongest first; in a large fleet neighbours share a bar.

    Returns:
        [W] of scheduled devices, [W] that the others would need for the same θ (both NaN where there are none), their
        peak powers, and |h| of the strongest and of the weakest.
    """
    entry, fleet = plan.sequence[index], plan.problem.fleet
    gain = fleet.gain_in(index)
    order = np.argsort(-gain, kind="stable")
    scheduled = plan.amplitudes.shares(index)[order] > 0
    with np.errstate(divide="ignore", over="ignore"):
        needed = np.square(entry.alignment / gain)
    needed[entry.scheduled] = entry.power
    starts = np.linspace(0, gain.size, min(gain.size, _MOST_BARS), endpoint=False).round().astype(np.intp)
    lit, dark = (np.maximum.reduceat(np.where(on, needed[order], -np.inf), starts) for on in (scheduled, ~scheduled))
    ceiling = np.maximum.reduceat(fleet.peak_power[order], starts)
    ends = gain[order[[0, -1]]].tolist()
    return np.where(lit < 0, np.nan, lit), np.where(dark < 0, np.nan, dark), ceiling, ends


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounds:
    """The rounds of a plan, each of which can be shown without planning again; a row, or an entry, per round."""

    num_devices: int
    strips: list[tuple[Floats, Floats, Floats, list[float]]]
    top: float
    figures: list[tuple[int, int, float, float, float]]  # |K_i|, E_i, θ_i, μ_i, [W]
    ceilings: dict[Any, Floats]
    left: dict[str, Floats]
    delta: float

    @classmethod
    def of(cls, plan: Plan) -> Rounds:
        """Return the rounds of a plan."""
        strips = [bars(plan, index) for index in range(plan.rounds)]
        columns = plan.sizes, plan.local_steps, plan.amplitudes.level, plan.sequence.mus, plan.sequence.powers
        left = series.budgets_left(plan, most=plan.rounds + 1)[1]
        largest = max(float(np.nanmax(strip[0])) for strip in strips)
        return cls(
            num_devices=plan.problem.fleet.num_devices,
            strips=strips,
            top=1.12 * max(largest, float(np.quantile(strips[0][2], 0.95))),
            figures=[(int(k), int(e), float(t), float(m), float(w)) for k, e, t, m, w in zip(*columns, strict=True)],
            ceilings=plan.ceilings,
            left={name: values[1:] for name, values in left.items()},
            delta=plan.problem.budget.delta,
        )

    def strip(self, index: int) -> Options:
        """Return the devices by their gain in a round."""
        *heights, ends = self.strips[index]
        said = f"{self.figures[index][0]} of {self.num_devices} devices transmit in round {index + 1}"
        return charts.strip(heights, ends, top=self.top, spoken=f"{said}; the strongest is on the left")

    def facts(self, index: int) -> list[Fact]:
        """Return the figures of a round; a meter shows θ as a share of its limit, or what is left of a budget."""
        size, steps, theta, mu, watts = self.figures[index]
        limit = min(self.ceilings, key=lambda name: float(self.ceilings[name][index]))
        ceiling, largest = float(self.ceilings[limit][index]), float(np.nanmax(self.strips[index][0]))
        found = [
            Fact("Devices", f"{size} of {self.num_devices}", phrases.count(steps, "local step")),
            Fact("θ", number(theta), f"≤ {number(ceiling)}, {LIMITS[limit]}", theta / ceiling, limit),
            Fact("Power", f"{number(watts)} W", f"at most {number(largest)} W each"),
            Fact("ε of the round", number(gaussian_epsilon(mu, self.delta)), "exact"),
        ]
        for name, label, remark in (
            ("total_power", "Total power left", "after this round"),
            ("privacy", "Privacy left", "Σμ², most exposed"),
            ("device_power", "Battery left", "the emptiest"),
        ):
            if name in self.left:
                share = float(self.left[name][index])
                found.append(Fact(label, f"{share:.1%}", remark, share, name))
        return found


def plan_facts(plan: Plan) -> list[Fact]:
    """Return the figures behind the decision; a meter shows the share of its budget that is used."""
    budget, expected = plan.problem.budget, plan.prediction
    spent = plan.power_total / budget.total_power
    peak = float((plan.power / plan.problem.fleet.peak_power[plan.scheduled]).max())
    classic = budget.formula == "classic"
    counted = plan.epsilon_paper if classic else plan.epsilon_total if budget.scope == "total" else plan.epsilon_round
    loss = counted / budget.epsilon
    if expected is not None and plan.objective == "measured":
        remark = f"{expected.low:.0%} to {expected.high:.0%}, ϖ = {number(plan.clip_norm)}"
        quality = Fact("Expected accuracy", f"{expected.accuracy:.1%}", remark)
    else:
        known = bool(phrases.gap_sentence(plan))
        remark = f"any plan: ≥ {number(plan.lower_bound, 4)}" if known else f"θ = {number(plan.alignment)}"
        remark = remark if expected is None else f"expect {expected.accuracy:.1%} accuracy"
        quality = Fact("Bound on the gap", number(plan.bound.total, 4), remark)
    used = f"ε {number(counted)} of {number(budget.epsilon)}{' by Lemma 1' if classic else ''}"
    watts = f"{number(plan.power_total)} of {number(budget.total_power, 4)} W"
    found = [
        quality,
        Fact("ε per round, exact", number(plan.epsilon_round), f"μ = {number(plan.mu_round)}"),
        Fact("ε in total, exact", number(plan.epsilon_total), f"δ = {number(budget.delta)}"),
        Fact("Privacy budget used", f"{loss:.1%}", used, loss, "privacy"),
        Fact("Total power used", f"{spent:.1%}", watts, spent, "total_power"),
        Fact("Peak power used", f"{peak:.1%}", "of a device’s own", peak, "peak_power"),
    ]
    if "device_power" in plan.limits:
        battery = (plan.alignment / plan.limits["device_power"]) ** 2
        found.append(Fact("Battery used", f"{battery:.1%}", "of the emptiest", battery, "device_power"))
    return found


def remarks(plan: Plan) -> tuple[list[str], list[str]]:
    """Return warnings, and what else a reader must know beside the figures."""
    learning, budget = plan.problem.learning, plan.problem.budget
    warnings = [*filter(None, (*plan.notes, phrases.drowned_sentence(plan)))]
    warnings += [f"The plan breaks a limit: {LIMITS[limit]}." for limit in plan.violations]
    said = [line] if (line := f"{phrases.gap_sentence(plan)} {phrases.exposure_sentence(plan)}".strip()) else []
    if budget.formula == "classic":
        if plan.epsilon_paper_validity == "unsafe":
            warnings.append("Lemma 1 under-states ε here: the exact figure is the one above.")
        exactly = f"its ε = {number(plan.epsilon_paper)} is {number(plan.epsilon_round)} exactly"
        said.append(f"The budget is counted by Lemma 1, as asked: {exactly}.")
    if abs(learning.learning_rate * learning.smoothness - 1) > 1e-9:
        rates = f"τ = {learning.learning_rate:g} and 1/ζ = {1 / learning.smoothness:.3g}"
        said.append(f"The bound is proved for τ = 1/ζ; here {rates}.")
    return warnings, [*said, f"ε at {phrases.privacy_terms(budget.delta, budget.relation)}."]
