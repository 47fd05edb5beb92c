"""The decision on top of the page, and the design section."""

from __future__ import annotations

from markupsafe import Markup
from nicegui import ui

from airfed.explorer import pictures
from airfed.explorer.safe import Text
from airfed.explorer.shown import Refusal, Shown
from airfed.showing.drawings import drawing

_FACTS = 6


class Hero:
    """The decision in one sentence, the figures behind it, and remarks."""

    def __init__(self) -> None:
        with ui.element("header").classes("hero") as self._box:
            self._sentence = Text("Planning …", tag="h1").props("aria-live=polite id=decision")
            self._facts = Text(_placeholders()).classes("facts").props("id=facts")
            self._remarks = Text().classes("remarks")

    def show(self, shown: Shown) -> None:
        """Tell the decision."""
        self._box.classes(remove="wrong")
        self._sentence.content = shown.sentence
        self._facts.content = shown.facts
        self._remarks.content = shown.remarks

    def busy(self, working: bool) -> None:
        """Dim the decision while a new one is being found (the style waits a little, lest it flicker)."""
        self._box.classes(add="busy" if working else None, remove=None if working else "busy")

    def refuse(self, reason: str) -> None:
        """Tell why there is no decision."""
        self._box.classes(add="wrong")
        self._sentence.content = reason
        self._facts.content = self._remarks.content = ""


class DesignSection:
    """The devices, the candidate space and the bound."""

    def __init__(self) -> None:
        with ui.element("section").classes("section") as self.box:
            self.box.props["aria-label"] = "Design"
            with ui.element("div").classes("section hide") as self._charts:
                with ui.element("div").classes("card"):
                    Text("Devices, by gain", tag="h2")
                    self._waiting = Text(tag="p").classes("sub").props("id=waiting")
                    self._strip = Text()
                with ui.element("div").classes("pair"):
                    with ui.element("div").classes("card"):
                        Text("How many devices", tag="h2")
                        self._space_text = Text(tag="p").classes("sub")
                        Text(drawing(pictures.limit_legend()))
                        self._space = Text()
                    with ui.element("div").classes("card"):
                        Text("How many rounds", tag="h2")
                        self._rounds_text = Text(tag="p").classes("sub")
                        self._rounds_key = Text(drawing(pictures.term_legend()))
                        self._rounds = Text()
            self._reason = Text().classes("card wrong hide").props("id=reason")

    def show(self, shown: Shown) -> None:
        """Draw the plan."""
        self._charts.classes(remove="hide")
        self._reason.classes(add="hide")
        self._waiting.content = shown.waiting
        self._strip.content = shown.strip
        self._space_text.content = shown.space_text
        self._space.content = shown.space
        self._rounds_text.content = shown.rounds_text
        self._rounds.content = shown.rounds
        self._rounds_key.content = shown.rounds_key

    def refuse(self, refusal: Refusal) -> None:
        """Show why there is nothing to draw."""
        self._charts.classes(add="hide")
        self._reason.classes(remove="hide")
        title = "No plan fits" if refusal.infeasible else "This cannot be planned"
        advice = (
            "Raise the budget that the sentence names, or the peak power, or lower the noise."
            if refusal.infeasible
            else "Correct the value among the controls; files are checked by the same rules."
        )
        text = refusal.reason.removeprefix("No plan fits: ")
        told = Markup("<h2>{}</h2><p>{}</p><p>{}</p>")
        self._reason.content = told.format(title, text[:1].upper() + text[1:], advice)


def _placeholders() -> Markup:
    """Empty figures that keep their room until the first plan is there."""
    return Markup('<div class="fact"><small>&nbsp;</small><strong>&nbsp;</strong></div>') * _FACTS
