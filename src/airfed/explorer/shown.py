"""What the worker processes compute for the page: a design in, texts and drawings out. No NiceGUI here.

Everything that takes time or memory is done here, away from the server; what comes back is small and ready to show.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from airfed.explorer import comparison, pictures
from airfed.explorer import design as designs
from airfed.explorer.comparison import Front
from airfed.explorer.design import Design, Own
from airfed.explorer.pictures import Rounds, View, decision, look, plan_facts, rounds_of, waiting
from airfed.planning import Plan
from airfed.plotting import fading
from airfed.plotting.drawings import drawing
from airfed.plotting.figure import svg
from airfed.problem import InfeasibleError
from airfed.scenario import ScenarioError
from airfed.text.phrases import LIMITS, drowned_sentence, exposure_sentence, gap_sentence, number, privacy_terms

_FIGURE: Final = re.compile(r"\d[\d.]*(?:e[-+]?\d+)?(?:-\d+)?(?: to \d+)?(?: of \d+(?! steps?\b))?")
NO_FRONT: Final = (
    "The map over both budgets is drawn for plans whose rounds are alike: where they differ it would take hundreds of "
    "plans of a second or more each. Change a budget and read the result above."
)
_EPSILON: Final = re.compile(r"ε = <b>.*?</b>")


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why there is nothing to show.

    Args:
        reason: in one sentence.
        infeasible: whether it is that no plan fits; otherwise a value is wrong.
    """

    reason: str
    infeasible: bool = False


@dataclass(frozen=True, kw_only=True)
class Card:
    """A picture with what is said about it."""

    title: str
    text: str = ""
    key: str = ""
    picture: str = ""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A design's plan, in words and pictures.

    Args:
        sentence: the decision.
        facts: the figures behind it.
        remarks: what a reader must know beside them.
        cards: the pictures, the first one the widest.
        rounds: where rounds differ: each of them, to be shown in the first card.
    """

    sentence: Markup
    facts: Markup
    remarks: Markup
    cards: tuple[Card, ...]
    rounds: Rounds | None = None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The policies side by side, and what a little more of a budget buys, or why that is not shown."""

    table: Markup
    sensitivities: Markup
    no_front: str = ""


def warm_up() -> None:
    """Plan once, so that no visitor waits for imports."""
    show(Design(), 800.0, 400.0)


def show(design: Design, wide: float, half: float) -> Shown | Refusal:
    """Return the plan of a design; `wide` and `half` are the widths of the charts [px]."""
    start = time.perf_counter()
    try:
        world = design.world()
        plan = world.plan()
        view = None if fading.round_by_round(plan) else look(world, plan)
        _ = plan.epsilon_round, plan.epsilon_total  # they belong to the time that is told
    except InfeasibleError as error:
        return Refusal(reason=str(error), infeasible=True)
    except ValueError as error:  # of the scenario, or of the user's own policy
        return Refusal(reason=str(error))
    milliseconds = 1e3 * (time.perf_counter() - start)
    return Shown(
        sentence=sentence(plan),
        facts=plan_facts(plan),
        remarks=remarks(plan, milliseconds),
        cards=_round_cards(plan, half) if view is None else _cards(view, wide, half),
        rounds=rounds_of(plan) if view is None else None,
    )


def _cards(view: View, wide: float, half: float) -> tuple[Card, ...]:
    """The pictures of a plan whose rounds are alike."""
    return (
        Card(title="Devices, by gain", text=waiting(view), picture=drawing(pictures.strip(view, wide))),
        Card(
            title="How many devices",
            text=f"The candidate space at I = {view.plan.rounds}: θ may not exceed any of its limits.",
            key=drawing(pictures.limit_legend()),
            picture=drawing(pictures.candidates(view, half)),
        ),
        Card(
            title="How many rounds",
            text=rounds_text(view),
            key=drawing(svg.legend(view.rounds)),
            picture=drawing(svg.render(view.rounds, half, 364)),
        ),
    )


def _round_cards(plan: Plan, half: float) -> tuple[Card, ...]:
    """The pictures of a plan round by round; the first card is for the round that the page shows."""
    charts = (
        Card(
            title=title if title.startswith("θ") else title[:1].upper() + title[1:],
            key=drawing(svg.legend(chart)),
            picture=drawing(pictures.over_rounds(chart, half)),
        )
        for title, chart in fading.pictures(plan).items()
    )
    return Card(title="Devices, by gain", text="The scheduled devices of one round, and their power."), *charts


def compare(design: Design) -> Compared | Refusal:
    """Return the comparison of a design's policies, and the sensitivities to the budgets."""
    try:
        world = design.world()
        plans, reasons = world.compare()
        if "optimal" not in plans:
            return Refusal(reason=reasons["optimal"], infeasible=True)
        table = drawing(comparison.policy_table(plans, reasons))
        if fading.round_by_round(plans["optimal"]):
            return Compared(table=table, sensitivities=Markup(""), no_front=NO_FRONT)
        found = comparison.sensitivity(world)
    except ValueError as error:
        return Refusal(reason=str(error))
    lines = [Markup("<p><b>{}</b> {}</p>").format(*sentence) for sentence in comparison.sensitivity_sentences(found)]
    return Compared(table=table, sensitivities=Markup("").join(lines))


def front(design: Design) -> Front:
    """Return the best plan over both budgets, around those of a design that has a plan."""
    return comparison.front(design.world())


def load(text: str, own: Own) -> Design | Refusal:
    """Return the design in a scenario's TOML."""
    try:
        return designs.from_text(text, own)
    except ScenarioError as error:
        return Refusal(reason=str(error))


def sentence(plan: Plan) -> Markup:
    """Return the decision, its figures in bold."""
    text = _FIGURE.sub("\x02\\g<0>\x03", decision(plan))  # before escaping, which writes an apostrophe as a number
    marked = str(escape(text)).replace("\x02", "<b>").replace("\x03", "</b>")
    return drawing(_EPSILON.sub(r'<span class="keep">\g<0></span>', marked))


def rounds_text(view: View) -> str:
    """Return what the picture over the rounds shows."""
    plan = view.plan
    if plan.objective == "measured" and plan.predicted_accuracy is not None:
        return (
            f"The expected accuracy, {plan.predicted_accuracy:.1%} at I = {plan.rounds} and ϖ = "
            f"{number(plan.clip_norm)}, by the accuracy surrogate."
        )
    return (
        f"The bound {number(plan.bound.total, 4)} at I = {plan.rounds}; few rounds drift, many rounds cost power and "
        "noise."
    )


def remarks(plan: Plan, milliseconds: float) -> Markup:
    """Return what a reader must know beside the figures."""
    learning, budget = plan.problem.learning, plan.problem.budget
    warnings = [*filter(None, (*plan.notes, drowned_sentence(plan)))]
    warnings += [f"The plan breaks a limit: {LIMITS[limit]}." for limit in plan.violations]
    if budget.formula == "classic" and plan.epsilon_paper_validity == "unsafe":
        warnings.append("Lemma 1 under-states ε here: the exact figure is the one above.")
    told = [line] if (line := f"{gap_sentence(plan)} {exposure_sentence(plan)}".strip()) else []
    if budget.formula == "classic":
        told.append(
            f"The budget is counted by Lemma 1, as asked: its ε = {number(plan.epsilon_paper)} is "
            f"{number(plan.epsilon_round)} exactly."
        )
    if abs(learning.learning_rate * learning.smoothness - 1) > 1e-9:
        told.append(
            f"The bound is proved for τ = 1/ζ; here τ = {learning.learning_rate:g} and 1/ζ = "
            f"{1 / learning.smoothness:.3g}."
        )
    lines = [Markup('<p class="warn">{}</p>').format(warning) for warning in warnings]
    lines += [Markup("<p>{}</p>").format(line) for line in told]
    lines.append(
        Markup('<p>ε at {}. <span id="timing">Planned in {:.0f} ms.</span></p>').format(
            privacy_terms(budget.delta, budget.relation), milliseconds
        )
    )
    return Markup("").join(lines)
