"""What the workers compute for the page: a design in, texts and drawings out. No NiceGUI here.

Everything that takes time or memory is done here, away from the server; what comes back is small and ready to show.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from airfed.explorer import design as designs
from airfed.explorer import pictures, tradeoffs
from airfed.explorer import pictures_compare as draw
from airfed.explorer.admission import Own
from airfed.explorer.design import Design
from airfed.explorer.tradeoffs import Front
from airfed.explorer.view import View, decision, look, waiting
from airfed.planning import Plan
from airfed.problem import InfeasibleError
from airfed.scenario import ScenarioError
from airfed.showing.drawings import drawing
from airfed.showing.words import LIMITS, number, power_expected

_FIGURE: Final = re.compile(r"\d[\d.]*(?:e[-+]?\d+)?(?:-\d+)?(?: of \d+(?! steps?\b))?")
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
class Shown:
    """A design's plan, in words and pictures."""

    sentence: Markup
    facts: Markup
    remarks: Markup
    waiting: str
    strip: Markup
    space_text: str
    space: Markup
    rounds_text: str
    rounds_key: Markup
    rounds: Markup


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The policies side by side, and what a little more of a budget buys."""

    table: Markup
    prices: Markup


def warm_up() -> None:
    """Plan once, so that no visitor waits for imports."""
    show(Design(), 800.0, 400.0)


def show(design: Design, wide: float, half: float) -> Shown | Refusal:
    """Return the plan of a design; `wide` and `half` are the widths of the charts [px]."""
    start = time.perf_counter()
    try:
        view = look(design.world())
        _ = view.plan.epsilon_round, view.plan.epsilon_total  # they belong to the time that is told
    except InfeasibleError as error:
        return Refusal(reason=str(error), infeasible=True)
    except ValueError as error:  # of the scenario, or of the user's own policy
        return Refusal(reason=str(error))
    milliseconds = 1e3 * (time.perf_counter() - start)
    plan = view.plan
    return Shown(
        sentence=sentence(view),
        facts=facts(plan),
        remarks=remarks(plan, milliseconds),
        waiting=waiting(view),
        strip=drawing(pictures.strip(view, wide)),
        space_text=f"The candidate space at I = {plan.rounds}: θ may not exceed any of its limits.",
        space=drawing(pictures.candidates(view, half)),
        rounds_text=rounds_text(view),
        rounds_key=drawing(pictures.rounds_legend(view)),
        rounds=drawing(pictures.rounds(view, half)),
    )


def compare(design: Design) -> Compared | Refusal:
    """Return the comparison of a design's policies, and the prices."""
    try:
        world = design.world()
        plans, reasons = world.compare()
        if "optimal" not in plans:
            return Refusal(reason=reasons["optimal"], infeasible=True)
        price = tradeoffs.price(world)
    except ValueError as error:
        return Refusal(reason=str(error))
    lines = [Markup("<p><b>{}</b> {}</p>").format(headline, remark) for headline, remark in draw.price_sentences(price)]
    return Compared(table=drawing(draw.policy_table(plans, reasons)), prices=Markup("").join(lines))


def front(design: Design) -> Front:
    """Return the best bound over both budgets, around those of a design that has a plan."""
    return tradeoffs.front(design.world())


def load(text: str, own: Own) -> Design | Refusal:
    """Return the design in a scenario's TOML."""
    try:
        return designs.from_text(text, own)
    except ScenarioError as error:
        return Refusal(reason=str(error))


def sentence(view: View) -> Markup:
    """Return the decision, its figures in bold."""
    marked = _FIGURE.sub(r"<b>\g<0></b>", str(escape(decision(view.plan))))
    return drawing(_EPSILON.sub(r'<span class="keep">\g<0></span>', marked))


def rounds_text(view: View) -> str:
    """Return what the picture over the rounds shows."""
    plan = view.plan
    if view.accuracy is not None and plan.predicted_accuracy is not None:
        return (
            f"The accuracy to expect, {plan.predicted_accuracy:.1%} at I = {plan.rounds} and ϖ = "
            f"{number(plan.clip_norm)}, as pilots have measured it."
        )
    return (
        f"The bound {number(plan.bound.total, 4)} at I = {plan.rounds}; few rounds drift, many rounds cost power and "
        "noise."
    )


def facts(plan: Plan) -> Markup:
    """Return the figures behind the decision; a meter shows the share of its budget that is used."""
    budget = plan.problem.budget
    counted_power = power_expected(plan) if budget.power == "expected" else plan.power_total
    spent = counted_power / budget.total_power
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
            "Total power used" if budget.power == "worst" else "Total power used, expected",
            f"{spent:.1%}",
            f"{number(counted_power)} of {number(budget.total_power, 4)} W",
            spent,
            "total_power",
        ),
        ("Peak power used", f"{peak:.1%}", "of a device’s own", peak, "peak_power"),
    ]
    return Markup("").join(_fact(*block) for block in blocks)


def _quality(plan: Plan) -> tuple[str, str, str, float | None, str]:
    """What the plan was chosen by: the bound, or the accuracy to expect."""
    found = plan.prediction
    if found is not None and plan.objective == "measured":
        remark = f"{found.low:.0%} to {found.high:.0%}, ϖ = {number(plan.clip_norm)}"
        return "Expected accuracy", f"{found.accuracy:.1%}", remark, None, ""
    remark = f"θ = {number(plan.alignment)}" if found is None else f"expect {found.accuracy:.1%} accuracy"
    return "Bound on the gap", number(plan.bound.total, 4), remark, None, ""


def remarks(plan: Plan, milliseconds: float) -> Markup:
    """Return what a reader must know beside the figures."""
    learning, budget = plan.problem.learning, plan.problem.budget
    warnings = list(plan.notes)
    warnings += [f"The plan breaks a limit: {LIMITS[limit]}." for limit in plan.violations]
    if budget.formula == "classic" and plan.epsilon_paper_validity == "unsafe":
        warnings.append("Lemma 1 under-states ε here: the exact figure is the one above.")
    told = []
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
    relation = "replacing one device’s data" if budget.relation == "replace" else "adding or removing one device"
    lines = [Markup('<p class="warn">{}</p>').format(warning) for warning in warnings]
    lines += [Markup("<p>{}</p>").format(line) for line in told]
    lines.append(
        Markup('<p>ε is meant at δ = {}, for {}. <span id="timing">Planned in {:.0f} ms.</span></p>').format(
            number(budget.delta), relation, milliseconds
        )
    )
    return Markup("").join(lines)


def _fact(label: str, value: str, remark: str, share: float | None, limit: str) -> Markup:
    meter = Markup("")
    if share is not None:
        meter = Markup('<div class="meter lim-{}"><i style="width:{:.1f}%"></i></div>').format(
            limit, 100 * min(max(share, 0.0), 1.0)
        )
    block = Markup('<div class="fact"><small>{}</small><strong>{}</strong><em>{}</em>{}</div>')
    return block.format(label, value, remark, meter)
