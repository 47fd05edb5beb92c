"""What worker processes compute for the Design tab: a design in, sentences, figures and charts out."""

from __future__ import annotations

from typing import NamedTuple

from airfed import planning
from airfed.explorer import charts
from airfed.explorer.charts import Options
from airfed.explorer.design import Design
from airfed.planning import Plan
from airfed.planning.policy import next_device
from airfed.plotting import series
from airfed.scenario import Scenario
from airfed.text import phrases
from airfed.text.phrases import LIMITS, number


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


class View(NamedTuple):
    """A design's plan in words and charts."""

    sentence: str
    facts: list[Fact]
    warnings: list[str]
    remarks: list[str]
    cards: list[Card]


def show(present: Design) -> View:
    """Return the plan of a design; ValueError where the design is wrong or no plan fits."""
    world = present.world()
    plan = world.plan()
    if series.round_by_round(plan):
        cards = [Card(title, said, [chart]) for title, (said, chart) in charts.round_by_round(plan).items()]
    else:
        cards = _cards(world, plan)
    return View(decision(plan), plan_facts(plan), *remarks(plan), cards)


def _cards(world: Scenario, plan: Plan) -> list[Card]:
    if plan.objective == "measured" and world.response is not None:
        over = charts.accuracy_over_rounds(plan, series.accuracy_curve(plan.problem, world.response, plan.rounds))
        text = f"The expected accuracy, by the accuracy surrogate; ϖ = {number(plan.clip_norm)} at I = {plan.rounds}."
    else:
        over = charts.bound_over_rounds(plan, series.bound_curve(plan.problem, plan.rounds))
        bound = f"The bound {number(plan.bound.total, 4)} at I = {plan.rounds}"
        text = f"{bound}; few rounds drift, many cost power and noise."
    waiting, limit = next_sentence(plan)
    space_text = f"The candidate space at I = {plan.rounds}: θ may not exceed any of its limits."
    return [
        Card("Devices, by gain", waiting, [charts.strip(plan, limit)]),
        Card("How many devices", space_text, charts.candidates(plan, planning.candidates(plan))),
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
        return "No further device is reachable.", ""
    change = out.bound / plan.bound.total - 1
    size = f"{abs(change):.1%}" if abs(change) >= 0.0005 else "less than 0.1%"
    effect = f"the bound would {'rise' if change > 0 else 'fall'} by {size}"
    if out.alignment >= plan.alignment * (1 - 1e-9):
        return f"Device {out.device} (|h| = {out.gain:.3g}) would fit without lowering θ; {effect}.", out.limit
    return (
        f"{LIMITS[out.limit].capitalize()} stops the next one: with device {out.device} (|h| = {out.gain:.3g}) "
        f"θ falls from {plan.alignment:.3g} to {out.alignment:.3g} and {effect}."
    ), out.limit


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
        remark = f"θ = {number(plan.alignment)}" if expected is None else f"expect {expected.accuracy:.1%} accuracy"
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
