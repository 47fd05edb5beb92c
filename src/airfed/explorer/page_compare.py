"""The comparison section: policies, front, sensitivities."""

from __future__ import annotations

from markupsafe import Markup
from nicegui import ui

from airfed.explorer import pictures
from airfed.explorer import pictures_compare as draw
from airfed.explorer.safe import Text
from airfed.explorer.shown import Compared
from airfed.explorer.tradeoffs import Front
from airfed.showing import svg
from airfed.showing.drawings import drawing
from airfed.showing.words import FLEET_LIMITS


class CompareSection:
    """The policies side by side, and what the budgets buy."""

    def __init__(self) -> None:
        with ui.element("section").classes("section hide") as self.box:
            self.box.props["aria-label"] = "Compare"
            with ui.element("div").classes("section hide") as self._charts:
                with ui.element("div").classes("card"):
                    Text("Policies on one channel draw", tag="h2")
                    Text("The bound of each, split into its terms.", tag="p").classes("sub")
                    Text(drawing(pictures.term_legend()))
                    self._table = Text().classes("scroll").props("id=policies tabindex=0 role=region")
                    self._table.props["aria-label"] = "Policies, a table that scrolls sideways"
                with ui.element("div").classes("card hide") as self._without:
                    Text("What the budgets buy", tag="h2")
                    self._no_front = Text(tag="p").classes("sub").props("id=no-front")
                with ui.element("div").classes("card") as bought:
                    Text("What the budgets buy", tag="h2")
                    Text("To the exact optimum at the larger budget.", tag="p").classes("sub")
                    self._sensitivities = Text().classes("sensitivities").props("id=sensitivities")
                    with ui.element("div").classes("pair"):
                        self._over_power = Text()
                        self._over_epsilon = Text()
                with ui.element("div").classes("card") as front:
                    Text("Privacy against power", tag="h2")
                    Text(
                        "Along a line the bound, or the expected accuracy, stays the same: a Pareto front, on which ε "
                        "is traded for watts. The green line is the present design; the colour is the binding limit.",
                        tag="p",
                    ).classes("sub")
                    Text(_limit_keys())
                    self._front = Text().props("id=front")
            self._reason = Text().classes("card wrong hide")
        self._with_front = (bought, front)

    def busy(self, working: bool) -> None:
        """Dim the section while it is out of date."""
        self._charts.classes(add="busy" if working else None, remove=None if working else "busy")

    def show(self, compared: Compared) -> None:
        """Show the policies and the sensitivities."""
        self._charts.classes(remove="hide")
        self._reason.classes(add="hide")
        self._table.content = compared.table
        self._sensitivities.content = compared.sensitivities
        self._no_front.content = compared.no_front
        without = bool(compared.no_front)
        self._without.classes(add=None if without else "hide", remove="hide" if without else None)
        for box in self._with_front:
            box.classes(add="hide" if without else None, remove=None if without else "hide")

    def show_front(self, front: Front, *, wide: float, half: float) -> None:
        """Draw the front and its two cuts; `wide` and `half` are the widths of the charts [px]."""
        inner = (wide - 18) / 2 if half < wide else wide
        self._over_power.content = drawing(draw.slice_chart(front, inner, over="total_power"))
        self._over_epsilon.content = drawing(draw.slice_chart(front, inner, over="epsilon"))
        self._front.content = drawing(draw.front_map(front, wide))

    def refuse_front(self, reason: str) -> None:
        """Tell why there is no map."""
        self._over_power.content = self._over_epsilon.content = ""
        self._front.content = reason

    def refuse(self, reason: str) -> None:
        """Show why there is nothing to compare."""
        self._charts.classes(add="hide")
        self._reason.classes(remove="hide")
        self._reason.content = Markup("<h2>Nothing to compare</h2><p>{}</p>").format(reason)


def _limit_keys() -> Markup:
    return drawing(svg.keyed(*(svg.box_key(label, f"lim-{name}") for name, label in FLEET_LIMITS.items())))
