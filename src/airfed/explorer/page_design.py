"""The decision on top of the page, and the design section."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from markupsafe import Markup
from nicegui import ui

from airfed.explorer.controls import Slider
from airfed.explorer.facts import round_facts
from airfed.explorer.rounds import Rounds
from airfed.explorer.safe import Text
from airfed.explorer.shown import Card, Refusal, Shown
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


class _Place:
    """Where a card is shown."""

    def __init__(self) -> None:
        with ui.element("div").classes("card") as self.box:
            self._title = Text(tag="h2")
            self.text = Text(tag="p").classes("sub")
            self._key = Text()
            self.picture = Text()

    def show(self, card: Card | None) -> None:
        """Fill the place, or leave it empty."""
        self.box.classes(add="hide" if card is None else None, remove=None if card is None else "hide")
        if card is not None:
            self._title.content, self.text.content = card.title, card.text
            self._key.content, self.picture.content = card.key, card.picture


class Scrubber:
    """A slider over the rounds of a plan, and the figures of the one it stands at.

    Args:
        show: draws a round, from 0.
    """

    def __init__(self, show: Callable[[Rounds, int], None]) -> None:
        self._show = show
        self._rounds: Rounds | None = None
        self._index = 0
        with ui.element("div").classes("hide") as self._box:
            with ui.element("div").classes("scrub"):
                self._label = Text(tag="span").props("id=round")
                self._slider = Slider(min=1, max=1, step=1, value=1).props("dense")
                self._slider.props["aria-label"] = "Round"
                self._slider.classes("knob-slider").mark("rounds")
                self._slider.on_value_change(lambda event: self._moved(event.value))
            self._facts = Text().classes("facts").props("id=round-facts")

    def take(self, rounds: Rounds | None) -> None:
        """Show another plan's rounds: the same one as before, or the last; None where there are none to show."""
        self._rounds = rounds
        self._box.classes(add="hide" if rounds is None else None, remove=None if rounds is None else "hide")
        if rounds is not None:
            self._slider.props["max"] = len(rounds)
            self._go(self._index)
            self._slider.value = self._index + 1

    def _moved(self, value: Any) -> None:
        """Go where the slider is; what does not come from a slider of so many rounds is put within them."""
        if isinstance(value, int | float) and math.isfinite(value) and round(value) != self._index + 1:
            self._go(round(value) - 1)

    def _go(self, index: int) -> None:
        if self._rounds is None:
            return
        self._index = min(max(index, 0), len(self._rounds) - 1)
        self._label.content = f"Round {self._index + 1} of {len(self._rounds)}"
        self._facts.content = round_facts(self._rounds, self._index)
        self._show(self._rounds, self._index)


class DesignSection:
    """The pictures of a plan: one wide one, and up to four in pairs."""

    def __init__(self) -> None:
        self._width = 0.0
        with ui.element("section").classes("section") as self.box:
            self.box.props["aria-label"] = "Design"
            with ui.element("div").classes("section hide") as self._charts:
                self._wide = _Place()
                self._wide.text.props("id=waiting")
                with self._wide.box:
                    self._scrubber = Scrubber(self._show_round)
                    self._wide.picture.move(self._wide.box)  # below it
                self._half = []
                for _ in range(2):
                    with ui.element("div").classes("pair"):
                        self._half += [_Place(), _Place()]
            self._reason = Text().classes("card wrong hide").props("id=reason")

    def show(self, shown: Shown, width: float) -> None:
        """Draw the plan; `width` is that of the wide picture [px]."""
        self._charts.classes(remove="hide")
        self._reason.classes(add="hide")
        self._width = width
        for place, card in zip_longest((self._wide, *self._half), shown.cards):
            place.show(card)
        self._scrubber.take(shown.rounds)

    def _show_round(self, rounds: Rounds, index: int) -> None:
        self._wide.picture.content = drawing(rounds.strip(index, self._width))
        self._charts.style(f"--x: {index + 1}")

    def refuse(self, refusal: Refusal) -> None:
        """Show why there is nothing to draw."""
        self._scrubber.take(None)
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
