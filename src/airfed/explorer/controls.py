"""The left column of the page: every knob as a field with a slider, every choice as buttons or a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from markupsafe import Markup
from nicegui import ui
from nicegui.element import Element
from nicegui.elements.mixins.value_element import ValueElement

from airfed.explorer import knobs
from airfed.explorer.design import Design, Own
from airfed.explorer.elements import Text
from airfed.explorer.knobs import Choice, Knob

Changed = Callable[[str, Any], None]

_TOGGLE: Final = 30  # letters of all options that fit side by side
_SELECT: Final = 17  # letters that a narrow menu shows
_UNIT: Final = 5  # letters of a unit that leave room for a figure


class Slider(ui.slider):
    """A slider that moves under the hand at once and tells the server afterwards."""

    LOOPBACK = False


class Controls:
    """The widgets of a design. `show` sets them from outside without a word; a user's move calls `changed`."""

    def __init__(self, changed: Changed, own: Own) -> None:
        self._changed, self._own = changed, own
        self._quiet = False
        self._rows: dict[str, Element] = {}
        self._fields: dict[str, ValueElement[Any]] = {}
        self._sliders: dict[str, ui.slider] = {}
        self._knobs: dict[str, Knob] = {}
        for group in knobs.GROUPS:
            with ui.expansion(group.title, value=group.open).classes("group").props("dense dense-toggle") as box:
                box.on("after-show", js_handler=f"() => airfed.reveal(document.getElementById('{box.html_id}'))")
                for item in group.items:
                    if isinstance(item, Knob):
                        self._knob(item)
                    else:
                        self._choice(item)

    def show(self, design: Design, *, but: str = "") -> None:
        """Set every widget to the design; `but` names the one that the user's hand is on."""
        self._quiet = True
        try:
            for key, row in self._rows.items():
                row.set_visibility(knobs.applies(key, design))
                self._set(key, design.spread if key == "peak_spread" else design.get(key), sparing=key == but)
        finally:
            self._quiet = False

    def _set(self, key: str, value: Any, *, sparing: bool) -> None:
        field = self._fields[key]
        if key not in self._knobs:
            if field.value != value and value is not None:
                field.value = value
            return
        knob = self._knobs[key]
        if knob.parse(str(field.value or "")) != value:
            field.value = knobs.shown(value)
        slider = self._sliders.get(key)
        if slider is None:
            return
        slider.props["aria-valuetext"] = f"{knobs.shown(value) or 'off'} {knob.unit}".strip()  # not its position
        position = knob.position(value)
        if position is not None and not sparing and slider.value != position:
            slider.value = position

    def _knob(self, knob: Knob) -> None:
        self._knobs[knob.key] = knob
        with ui.element("div").classes("knob") as row:
            with ui.element("div").classes("knob-head"):
                label = knob.label if len(knob.unit) <= _UNIT else f"{knob.label}, {knob.unit}"
                Text(_label(label, knob.symbol), tag="span").classes("knob-label")
                field = ui.input().props("dense borderless debounce=350 spellcheck=false autocomplete=off")
                field.props["aria-label"] = _spoken(knob)
                field.props["suffix"] = knob.unit if label == knob.label else ""
                field.props["placeholder"] = "off" if knob.open else ""
                field.classes("knob-field").mark(f"field-{knob.key}")
                field.on_value_change(lambda event, knob=knob: self._typed(knob, event.value))
            if knob.kind not in ("list", "text"):
                slider = Slider(min=0, max=knobs.STEPS, step=1, value=0).props("dense")
                slider.props["aria-label"] = _spoken(knob)
                slider.classes("knob-slider").mark(f"slider-{knob.key}")
                slider.on_value_change(lambda event, knob=knob: self._slid(knob, event.value))
                self._sliders[knob.key] = slider
            else:
                field.classes("knob-wide")
            if knob.help:
                ui.label(knob.help).classes("knob-help")
        row.props["data-key"] = knob.key
        self._rows[knob.key], self._fields[knob.key] = row, field

    def _choice(self, choice: Choice) -> None:
        with ui.element("div").classes("knob choice") as row:
            with ui.element("div").classes("knob-head") as head:
                ui.label(choice.label).classes("knob-label")
                widget: ValueElement[Any]
                own = {"learning.model": self._own.model, "policy.name": self._own.policy}.get(choice.key)
                options = choice.options | ({own: own.rpartition("/")[2]} if own else {})
                longest = max(map(len, options.values()))
                if len(options) <= 3 and sum(map(len, options.values())) <= _TOGGLE:
                    widget = ui.toggle(options).props("dense unelevated no-caps")
                    widget.classes("knob-toggle")
                else:
                    widget = ui.select(options).props("dense borderless options-dense")
                    widget.classes("knob-select")
                    if longest > _SELECT:  # below the label, as wide as the side bar
                        head.classes("stacked")
                widget.props["aria-label"] = choice.label
                widget.on_value_change(lambda event, key=choice.key: self._chosen(key, event.value))
            if choice.help:
                ui.label(choice.help).classes("knob-help")
        row.props["data-key"] = choice.key
        self._rows[choice.key], self._fields[choice.key] = row, widget

    def _typed(self, knob: Knob, text: str | None) -> None:
        if not self._quiet:
            self._changed(knob.key, knob.parse(text or ""))

    def _slid(self, knob: Knob, position: float | None) -> None:
        if not self._quiet and position is not None:
            self._changed(knob.key, knob.value(position))

    def _chosen(self, key: str, value: Any) -> None:
        if not self._quiet:
            self._changed(key, value)


def _label(label: str, symbol: str) -> Markup:
    name, _, index = symbol.partition("_")
    below = Markup("<sub>{}</sub>").format(index) if index else ""
    return Markup("{} <i>{}{}</i>").format(label, name, below)


def _spoken(knob: Knob) -> str:
    unit = f" in {knob.unit}" if knob.unit else ""
    return f"{knob.label}{unit}"
