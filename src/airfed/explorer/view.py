"""Computations for the Plan tab: sentences, figures and charts of the plan of a design."""

from __future__ import annotations

from collections.abc import Sequence
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
    """A figure with its label; a meter shows a fraction in the colour of a limit."""

    label: str
    value: str
    remark: str
    share: float | None = None
    limit: str = ""


class Card(NamedTuple):
    """Charts that share a height [px], with a title and a sentence, and optionally a table and a note."""

    title: str
    text: str
    charts: list[Options]
    height: int = 360
    rows: Sequence[dict[str, str]] = ()
    note: str = ""
    key: str = ""  # its id in the document


class View(NamedTuple):
    """The plan of a design as text and charts."""

    sentence: str
    facts: list[Fact]
    warnings: list[str]
    remarks: list[str]
    cards: list[Card]


def show(design: Design) -> View:
    """Return the plan of a design; ValueError if the design is invalid or no plan fits."""
    scenario = design.scenario()
    plan = scenario.plan()
    if series.round_by_round(plan):
        cards = [Card(title, text, [chart]) for title, (text, chart) in charts.round_by_round(plan).items()]
    else:
        cards = _cards(scenario, plan)
    cards[::3] = [card._replace(height=226) for card in cards[::3]]  # they are wide
    return View(headline(plan), plan_facts(plan), *remarks(plan), cards)


def _cards(scenario: Scenario, plan: Plan) -> list[Card]:
    curve = series.over_rounds(plan, scenario.surrogate)
    text = f"Expected accuracy by the surrogate; ϖ = {number(plan.clip_norm)} at I = {plan.rounds}."
    if isinstance(curve, series.Curve):
        text = f"Bound {number(plan.bound.total, 4)} at I = {plan.rounds}; fewer rounds drift more, more add noise."
    next_text, limit = next_sentence(plan)
    space_text = f"Aligned plans at I = {plan.rounds}, and this plan (star): θ must stay below every limit."
    return [
        Card("Devices by gain", next_text, [charts.device_powers(plan, limit)]),
        Card("Number of devices", space_text, charts.candidates(plan, planning.candidates(plan))),
        Card("Number of rounds", text, [charts.over_rounds(plan, curve)]),
    ]


def headline(plan: Plan) -> str:
    """Return the schedule in one sentence, with its privacy and, with several antennas, the adversary."""
    budgets = f"ε = {plan.epsilon_round:.3g} per round, {plan.epsilon_total:.3g} in total{phrases.against(plan)}."
    return f"{phrases.schedule_sentence(plan).removesuffix('.')}; {budgets}"


def next_sentence(plan: Plan) -> tuple[str, str]:
    """Return a sentence on the next device and the limit that excludes it, and that limit ("" for none)."""
    out = next_device(plan)
    if out is None:
        return "No further device is reachable.", ""
    device = f"device {out.device} (|h| = {out.gain:.3g})"
    change = phrases.change_text("bound", plan.bound.total, out.bound)
    if out.alignment >= plan.alignment * (1 - 1e-9):
        return f"The next one, {device}, would fit at the same θ: {change}.", out.limit
    falls = f"θ falls from {plan.alignment:.3g} to {out.alignment:.3g}"
    return f"{LIMITS[out.limit].capitalize()} excludes the next device: with {device} {falls}, {change}.", out.limit


def plan_facts(plan: Plan) -> list[Fact]:
    """Return the figures of a plan; a meter shows the used fraction of a budget."""
    budget, expected = plan.problem.budget, plan.prediction
    spent = plan.power_total / budget.total_power
    peak = float((plan.power / plan.problem.fleet.peak_power[plan.scheduled]).max())
    classic = budget.formula == "classic"
    counted = plan.epsilon_paper if classic else plan.epsilon_total if budget.scope == "total" else plan.epsilon_round
    loss = counted / budget.epsilon
    if expected is not None and plan.objective == "accuracy":
        remark = f"{expected.low:.0%} to {expected.high:.0%}, ϖ = {number(plan.clip_norm)}"
        quality = Fact("Expected accuracy", f"{expected.accuracy:.1%}", remark)
    else:
        remark = f"θ = {number(plan.alignment)}" if expected is None else f"expected accuracy {expected.accuracy:.1%}"
        quality = Fact("Bound on the gap", number(plan.bound.total, 4), remark)
    used = f"ε {number(counted)} of {number(budget.epsilon)}{' by Lemma 1' if classic else ''}"
    watts = f"{number(plan.power_total)} of {number(budget.total_power, 4)} W"
    found = [
        quality,
        Fact("ε per round, exact", number(plan.epsilon_round), f"μ = {number(plan.mu_round)}"),
        Fact("ε in total, exact", number(plan.epsilon_total), f"δ = {number(budget.delta)}"),
        Fact("Privacy budget used", f"{loss:.1%}", used, loss, "privacy"),
        Fact("Total power used", f"{spent:.1%}", watts, spent, "total_power"),
        Fact("Peak power used", f"{peak:.1%}", "by one device", peak, "peak_power"),
    ]
    if "device_power" in plan.limits:
        battery = (plan.alignment / plan.limits["device_power"]) ** 2
        found.append(Fact("Battery used", f"{battery:.1%}", "by one device", battery, "device_power"))
    return found


def remarks(plan: Plan) -> tuple[list[str], list[str]]:
    """Return warnings and remarks on the figures."""
    budget = plan.problem.budget
    warnings = [*filter(None, (*plan.notes, phrases.noise_warning(plan)))]
    warnings += [f"The plan breaks a limit: {LIMITS[limit]}." for limit in plan.violations]
    lines = (phrases.gap_sentence(plan), phrases.exposure_sentence(plan), phrases.converse_sentence(plan))
    notes = [" ".join(filter(None, lines))]
    if budget.formula == "classic":
        if plan.epsilon_paper_validity == "unsafe":
            warnings.append("Lemma 1 understates ε here. The exact value is shown above.")
        exactly = f"ε = {number(plan.epsilon_paper)} by Lemma 1 is {number(plan.epsilon_round)} exactly"
        notes.append(f"The scenario counts the budget by Lemma 1: {exactly}.")
    notes += [phrases.step_size_sentence(plan), phrases.snr_sentence(plan), phrases.energy_sentence(plan)]
    return warnings, [*filter(None, notes), f"ε at {phrases.privacy_terms(budget.delta, budget.adjacency)}."]
