"""The comparison section: policies, front, prices."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass

from nicegui import ui

from airfed import planning
from airfed.explorer import pictures, tradeoffs
from airfed.explorer import pictures_compare as draw
from airfed.explorer.tradeoffs import Front, Price
from airfed.planning import Plan
from airfed.problem import InfeasibleError
from airfed.scenario import Scenario
from airfed.showing import svg
from airfed.showing.words import LIMITS


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """What the section shows at once; the front follows."""

    plans: Mapping[str, Plan]
    reasons: Mapping[str, str]
    price: Price


def compare(world: Scenario) -> Comparison:
    """Return the comparison of a scenario.

    Raises:
        InfeasibleError: not even the optimal policy has a plan.
    """
    plans, reasons = planning.compare(world.problem(), world.policy, seed=world.seed)
    if "optimal" not in plans:
        raise InfeasibleError(reasons["optimal"])
    return Comparison(plans=plans, reasons=reasons, price=tradeoffs.price(world))


class CompareSection:
    """The policies side by side, and what the budgets buy."""

    def __init__(self) -> None:
        with ui.element("section").classes("section hide") as self.box:
            self.box.props["aria-label"] = "Compare"
            with ui.element("div").classes("section") as self._charts:
                with ui.element("div").classes("card"):
                    ui.html("Policies on one channel draw", sanitize=False, tag="h2")
                    ui.html("The bound of each, split into its terms.", sanitize=False, tag="p").classes("sub")
                    ui.html(pictures.term_legend(), sanitize=False)
                    self._table = ui.html("", sanitize=False).classes("scroll").props("id=policies")
                with ui.element("div").classes("card"):
                    ui.html("What the budgets buy", sanitize=False, tag="h2")
                    ui.html("To the exact optimum at the larger budget.", sanitize=False, tag="p").classes("sub")
                    self._prices = ui.html("", sanitize=False).classes("prices").props("id=prices")
                    with ui.element("div").classes("pair"):
                        self._over_power = ui.html("", sanitize=False)
                        self._over_epsilon = ui.html("", sanitize=False)
                with ui.element("div").classes("card"):
                    ui.html("Privacy against power against the bound", sanitize=False, tag="h2")
                    ui.html(
                        "Along a line the bound stays the same: a Pareto front, on which ε is paid for in watts. "
                        "The green line is the present bound; the colour tells which limit holds.",
                        sanitize=False,
                        tag="p",
                    ).classes("sub")
                    ui.html(_limit_keys(), sanitize=False)
                    self._front = ui.html("", sanitize=False).props("id=front")
            self._reason = ui.html("", sanitize=False).classes("card wrong hide")

    def busy(self, working: bool) -> None:
        """Dim the section while it is out of date."""
        self._charts.classes(add="busy" if working else None, remove=None if working else "busy")

    def show(self, comparison: Comparison) -> None:
        """Tell the policies and the prices."""
        self._charts.classes(remove="hide")
        self._reason.classes(add="hide")
        self._table.content = draw.policy_table(comparison.plans, comparison.reasons)
        self._prices.content = "".join(
            f"<p><b>{headline}</b> {html.escape(remark)}</p>"
            for headline, remark in draw.price_sentences(comparison.price)
        )

    def show_front(self, front: Front, *, wide: float, half: float) -> None:
        """Draw the front and its two cuts; `wide` and `half` are the widths of the charts [px]."""
        inner = (wide - 18) / 2 if half < wide else wide
        self._over_power.content = draw.slice_chart(front, inner, over="total_power")
        self._over_epsilon.content = draw.slice_chart(front, inner, over="epsilon")
        self._front.content = draw.front_map(front, wide)

    def refuse(self, reason: str) -> None:
        """Show why there is nothing to compare."""
        self._charts.classes(add="hide")
        self._reason.classes(remove="hide")
        self._reason.content = f"<h2>Nothing to compare</h2><p>{html.escape(reason)}</p>"


def _limit_keys() -> str:
    return svg.keyed(*(svg.box_key(label, f"lim-{name}") for name, label in LIMITS.items()))
