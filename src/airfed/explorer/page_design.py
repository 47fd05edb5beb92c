"""The decision on top of the page, and the design section."""

from __future__ import annotations

import html
import re

from nicegui import ui

from airfed.explorer import pictures
from airfed.explorer.view import View, decision, waiting
from airfed.planning import Plan
from airfed.showing.words import LIMITS, number

_FIGURE = re.compile(r"\d[\d.]*(?:e[-+]?\d+)?(?:-\d+)?(?: of \d+(?! steps?\b))?")


class Hero:
    """The decision in one sentence, the figures behind it, and remarks."""

    def __init__(self) -> None:
        with ui.element("header").classes("hero") as self._box:
            self._sentence = ui.html("", sanitize=False, tag="h1").props("aria-live=polite id=decision")
            self._facts = ui.html("", sanitize=False).classes("facts")
            self._remarks = ui.html("", sanitize=False).classes("remarks")

    def show(self, view: View, milliseconds: float) -> None:
        """Tell the decision."""
        self._box.classes(remove="wrong")
        marked = _FIGURE.sub(r"<b>\g<0></b>", html.escape(decision(view.plan)))
        self._sentence.content = re.sub(r"ε = <b>.*?</b>", r'<span class="keep">\g<0></span>', marked)
        self._facts.content = facts(view.plan)
        self._remarks.content = remarks(view.plan, milliseconds)

    def busy(self, working: bool) -> None:
        """Dim the decision while a new one is being found (the style waits a little, lest it flicker)."""
        self._box.classes(add="busy" if working else None, remove=None if working else "busy")

    def refuse(self, reason: str) -> None:
        """Tell why there is no decision."""
        self._box.classes(add="wrong")
        self._sentence.content = html.escape(reason)
        self._facts.content = self._remarks.content = ""


class DesignSection:
    """The devices, the candidate space and the bound."""

    def __init__(self) -> None:
        self._view: View | None = None
        with ui.element("section").classes("section") as self.box:
            self.box.props["aria-label"] = "Design"
            with ui.element("div").classes("section") as self._charts:
                with ui.element("div").classes("card"):
                    ui.html("Devices, by gain", sanitize=False, tag="h2")
                    self._waiting = ui.html("", sanitize=False, tag="p").classes("sub").props("id=waiting")
                    self._strip = ui.html("", sanitize=False)
                with ui.element("div").classes("pair"):
                    with ui.element("div").classes("card"):
                        ui.html("How many devices", sanitize=False, tag="h2")
                        self._space_text = ui.html("", sanitize=False, tag="p").classes("sub")
                        ui.html(pictures.limit_legend(), sanitize=False)
                        self._space = ui.html("", sanitize=False)
                    with ui.element("div").classes("card"):
                        ui.html("How many rounds", sanitize=False, tag="h2")
                        self._bound_text = ui.html("", sanitize=False, tag="p").classes("sub")
                        ui.html(pictures.term_legend(), sanitize=False)
                        self._bound = ui.html("", sanitize=False)
            self._reason = ui.html("", sanitize=False).classes("card wrong hide").props("id=reason")

    def show(self, view: View, *, wide: float, half: float) -> None:
        """Draw a view; `wide` and `half` are the widths of the charts [px]."""
        plan = view.plan
        self._charts.classes(remove="hide")
        self._reason.classes(add="hide")
        self._waiting.content = html.escape(waiting(view))
        self._strip.content = pictures.strip(view, wide)
        self._space_text.content = f"The candidate space at I = {plan.rounds}: θ may not exceed any of its limits."
        self._space.content = pictures.candidates(view, half)
        self._bound_text.content = (
            f"The bound {number(plan.bound.total, 4)} at I = {plan.rounds}; "
            "few rounds drift, many rounds cost power and noise."
        )
        self._bound.content = pictures.bound(view, half)

    def refuse(self, reason: str, *, infeasible: bool) -> None:
        """Show why there is nothing to draw."""
        self._charts.classes(add="hide")
        self._reason.classes(remove="hide")
        title = "No plan fits" if infeasible else "This is not a valid scenario"
        advice = (
            "Raise the budget that the sentence names, or the peak power, or lower the noise."
            if infeasible
            else "Correct the value on the left; files are checked by the same rules."
        )
        text = html.escape(reason.removeprefix("No plan fits: "))
        self._reason.content = f"<h2>{title}</h2><p>{text[:1].upper()}{text[1:]}</p><p>{advice}</p>"


def facts(plan: Plan) -> str:
    """Return the figures behind the decision, as HTML; a meter shows the share of its budget that is used."""
    budget = plan.problem.budget
    spent = plan.power_total / budget.total_power
    covered = plan.epsilon_total if budget.scope == "total" else plan.epsilon_round
    claimed = plan.epsilon_paper if budget.formula == "classic" else covered
    loss = claimed / budget.epsilon
    peak = float((plan.power / plan.problem.fleet.peak_power[plan.scheduled]).max())
    formula = " by Lemma 1" if budget.formula == "classic" else ""
    blocks = [
        ("Bound on the gap", number(plan.bound.total, 4), f"θ = {number(plan.alignment)}", None, ""),
        ("ε per round", number(plan.epsilon_round), f"μ = {number(plan.mu_round)}", None, ""),
        ("ε in total", number(plan.epsilon_total), f"δ = {number(budget.delta)}", None, ""),
        (f"Privacy used{formula}", f"{loss:.1%}", f"of ε = {number(budget.epsilon)}", loss, "privacy"),
        ("Total power used", f"{spent:.1%}", f"of {number(budget.total_power, 4)} W", spent, "total_power"),
        ("Peak power used", f"{peak:.1%}", "of a device’s own", peak, "peak_power"),
    ]
    return "".join(_fact(*block) for block in blocks)


def remarks(plan: Plan, milliseconds: float) -> str:
    """Return what a reader must know beside the figures, as HTML."""
    learning, budget = plan.problem.learning, plan.problem.budget
    lines = [f'<p class="warn">{html.escape(note)}</p>' for note in plan.notes]
    lines += [
        f'<p class="warn">The plan breaks a limit: {html.escape(LIMITS[limit])}.</p>' for limit in plan.violations
    ]
    if budget.formula == "classic" and plan.epsilon_paper_validity == "unsafe":
        lines.append('<p class="warn">Lemma 1 under-states ε here: the exact figure is the one above.</p>')
    if abs(learning.learning_rate * learning.smoothness - 1) > 1e-9:
        lines.append(
            f"<p>The bound is proved for τ = 1/ζ; here τ = {learning.learning_rate:g} and 1/ζ = "
            f"{1 / learning.smoothness:.3g}.</p>"
        )
    relation = "replacing one device’s data" if budget.relation == "replace" else "adding or removing one device"
    lines.append(
        f"<p>Every ε is exact, at δ = {number(budget.delta)}, for {relation}. "
        f'<span id="timing">Planned in {milliseconds:.0f} ms.</span></p>'
    )
    return "".join(lines)


def _fact(label: str, value: str, remark: str, share: float | None, limit: str) -> str:
    meter = ""
    if share is not None:
        meter = f'<div class="meter lim-{limit}"><i style="width:{100 * min(max(share, 0.0), 1.0):.1f}%"></i></div>'
    return f'<div class="fact"><small>{label}</small><strong>{value}</strong><em>{remark}</em>{meter}</div>'
