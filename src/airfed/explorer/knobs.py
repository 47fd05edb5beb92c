"""The controls of the page: one for each key that is declared with a `Control`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, Final

from nicegui import ui
from nicegui.elements.mixins.value_element import ValueElement

from airfed.channel import MODELS, ChannelModel
from airfed.explorer.design import CHANNELS, Design, Own, decode
from airfed.explorer.elements import text
from airfed.keys import control_of, key_of
from airfed.policies import POLICIES
from airfed.scenario.template import find, sections

_KEYS: Final = dict.fromkeys(
    f"{table}.{name}".lstrip(".")
    for table, kind in sections()
    for name, info in kind.model_fields.items()
    if control_of(info) and name != "model"
)
_FLEET: Final = ("fleet", "channel", "link", "seed")
_TABLES: Final = {"Budgets": ["budget"], "Fleet and channel": _FLEET, "Learning": ["learning"], "Policy": ["policy"]}
GROUPS: Final = {
    title: [key for table in tables for key in ("channel.model", *_KEYS) if key.split(".")[0] == table]
    for title, tables in _TABLES.items()
}


class Knob:
    """The control of a key: a choice, or a number field, usually with a slider."""

    def __init__(self, key: str) -> None:
        info = find(key)
        declared, control = key_of(info), control_of(info)
        assert declared is not None
        assert control is not None
        offered = {"channel.model": tuple(CHANNELS), "policy.name": tuple(POLICIES)}.get(key, ())
        self.key, self.declared, self.control = key, declared, control
        self.options: dict[Any, str] = {name: name for name in offered} or dict(declared.choices)
        self.ends = tuple(self._scaled(end) for end in (control.low, control.high) if end is not None)

    def _scaled(self, value: Any) -> float:
        return float(value) if self.control.kind == "linear" else math.log(value) if value > 0 else -math.inf

    def position(self, value: Any) -> float | None:
        """Return the position of the slider for a value, or None if it is not a number."""
        if value is None and self.control.open:
            return self.ends[1]
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1.7e308:
            return None
        return min(max(self._scaled(value), self.ends[0]), self.ends[1])

    def value(self, position: float) -> float | int | None:
        """Return the value at a position of the slider, rounded to three digits."""
        if self.control.open and position >= self.ends[1]:
            return None
        rounded = float(f"{position if self.control.kind == 'linear' else math.exp(position):.3g}")
        return max(round(rounded), 1) if self.control.kind == "count" else rounded

    def parse(self, typed: str) -> Any:
        """Return the typed value: a number, a list of numbers, a text with a unit, or None if empty."""
        with contextlib.suppress(ValueError):
            number = float(typed)
            return int(number) if self.control.kind == "count" and number.is_integer() else number
        listed = f"[{typed}]" if "," in typed and "[" not in typed else typed
        value = decode(listed)
        return typed.strip() or None if value == listed else value


def shown(value: Any) -> str:
    """Return the text of a value in its field: "2" for 2.0, "" for None."""
    return "" if value is None else str(value).removesuffix(".0").replace("e-0", "e-")


def applies(key: str, design: Design) -> bool:
    """Return whether a key has an effect in a design."""
    section, _, name = key.partition(".")
    model = MODELS.get(str(design.get("channel.model")), ChannelModel)
    policy, several = POLICIES.get(str(design.get("policy.name"))), design.get("link.antennas") not in (None, 1)
    objective, per_symbol = design.get("policy.objective"), design.get("fleet.peak_power_per_symbol") is not None
    rules = dict.fromkeys(("beamforming", "adversary", "angle_spread", "sector", "antenna_spacing"), several) | {
        "csi_error": not several,
        "peak_power": not per_symbol,
        "peak_power_per_symbol": per_symbol,
        "clip_norm": objective != ("bound" if section == "policy" else "accuracy"),
        "correlation": design.get("channel.coherence_rounds") is not None,
        "num_devices": "num_gains" not in vars(model),
        **{setting: policy is not None and setting in policy.settings for setting in ("size", "threshold")},
    }
    known = section != "channel" or (name in model.model_fields and name not in model.unsupported)
    return known and rules.get(name, True)


class Controls:
    """The controls of a design. A user's input calls `changed` with key and value; `show` does not."""

    def __init__(self, changed: Callable[[str, Any], None], own: Own) -> None:
        self._changed, self._own, self._quiet = changed, own, False
        self._rows: list[tuple[Knob, ui.element, ValueElement[Any], ui.slider | None]] = []
        for title, keys in GROUPS.items():  # one at a time is open and uses the whole height
            group = ui.expansion(title, value=title == "Budgets", group="knobs").classes("group")
            with group.props("dense dense-toggle"):
                for key in keys:
                    self._add(Knob(key))

    def show(self, design: Design, *, but: str = "") -> None:
        """Set every control to the design, except the slider of the key `but`, which the user is moving."""
        self._quiet = True
        for knob, row, field, slider in self._rows:
            row.set_visibility(applies(knob.key, design))
            value = design.get(knob.key)
            if knob.options:
                field.value = value if value is not None else field.value
            elif knob.parse(str(field.value or "")) != value:
                field.value = shown(value)
            if slider is not None:
                slider.props["aria-valuetext"] = f"{shown(value) or 'off'} {knob.declared.unit}".strip()
                if (position := knob.position(value)) is not None and knob.key != but:
                    slider.value = position
        self._quiet = False

    def _add(self, knob: Knob) -> None:
        label, unit, slider = knob.control.label, knob.declared.unit, None
        beside = unit if len(unit) <= 5 else ""  # a longer one leaves no room for the number
        name, _, index = knob.declared.symbol.partition("_")
        with ui.element("div").classes("knob") as row:
            row.props["data-key"] = knob.key
            with ui.element("div").classes("knob-head") as head:
                with text(f"{label}{'' if beside == unit else f', {unit}'} ", "span", "knob-label"), text(name, "i"):
                    text(index, "sub")
                field = self._choice(knob, head) if knob.options else ui.input().classes("knob-field")
            field.props["aria-label"] = f"{label} in {unit}" if unit else label
            field.on_value_change(lambda event: self._notify(knob, event.value if knob.options else event.value or ""))
            if not knob.options:
                field.props("dense borderless debounce=350 spellcheck=false autocomplete=off")
                field.props["suffix"], field.props["placeholder"] = beside, "off" if knob.control.open else ""
                field.classes("" if knob.ends else "knob-wide")
            if knob.ends:
                low, high = knob.ends
                slider = ui.slider(min=low, max=high, step=(high - low) / 1000, value=low).classes("knob-slider")
                slider.LOOPBACK = slider.props["loopback"] = False  # it moves before the server answers
                slider.props("dense").props["aria-label"] = field.props["aria-label"]
                slider.on_value_change(lambda event: self._notify(knob, event.value))
            if note := knob.declared.note:
                text(f"{note[0].upper()}{note[1:]}.", css="knob-help")
        self._rows.append((knob, row, field, slider))

    def _choice(self, knob: Knob, head: ui.element) -> ValueElement[Any]:
        own = self._own.get(knob.key)
        options = knob.options | ({own: own.rpartition("/")[2]} if own else {})
        if len(options) <= 3 and sum(map(len, options.values())) <= 30:  # these fit side by side
            return ui.toggle(options).props("dense unelevated no-caps").classes("knob-toggle")
        head.classes("stacked" if max(map(len, options.values())) > 17 else "")  # below the label
        return ui.select(options).props("dense borderless options-dense").classes("knob-select")

    def _notify(self, knob: Knob, given: Any) -> None:
        if not self._quiet:
            value = given if knob.options else knob.parse(given) if isinstance(given, str) else knob.value(given)
            self._changed(knob.key, value)
