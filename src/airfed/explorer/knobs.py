"""The left column of the page: which keys can be changed, in which order. Their declarations say the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_origin

from nicegui import ui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement
from nicegui.elements.mixins.value_element import ValueElement

from airfed.channel import MODELS, ChannelModel
from airfed.explorer.design import CHANNELS, Design, Own
from airfed.keys import control_of, key_of
from airfed.policies import POLICIES
from airfed.scenario.template import find

STEPS: Final = 1000  # positions of a slider


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A number with a slider (or, of kind "list" or "text", a field alone).

    Args:
        key: dotted key of the scenario.
        label, symbol, unit, help: as the page shows them.
        low, high: ends of the slider; the field beside it takes any value.
        kind: "log" and "count" (whole numbers) run logarithmically.
        open: at the high end of the slider the key is removed.
    """

    key: str
    label: str
    symbol: str = ""
    unit: str = ""
    low: float = 0.0
    high: float = 1.0
    kind: Literal["log", "count", "linear", "list", "text"] = "log"
    help: str = ""
    open: bool = False

    def position(self, value: Any) -> int | None:
        """Return where the slider stands for a value, or None where it is no number."""
        if value is None and self.open:
            return STEPS
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1.7e308:
            return None
        inside = min(max(float(value), self.low), self.high)
        if self.kind == "linear":
            share = (inside - self.low) / (self.high - self.low)
        else:
            share = math.log(inside / self.low) / math.log(self.high / self.low)
        return min(round(share * STEPS), STEPS - 1 if self.open else STEPS)

    def value(self, position: float) -> float | int | None:
        """Return the value at a position of the slider, rounded to three digits."""
        if self.open and position >= STEPS:
            return None
        share = position / STEPS
        linear = self.kind == "linear"
        raw = self.low + share * (self.high - self.low) if linear else self.low * (self.high / self.low) ** share
        rounded = float(f"{raw:.3g}")
        return max(round(rounded), 1) if self.kind == "count" else rounded

    def parse(self, text: str) -> Any:
        """Return what was typed: a number, a list of numbers, a text with a unit, or None for nothing.

        >>> Knob(key="x", label="x").parse("30 dBm"), Knob(key="n", label="n", kind="count").parse("1e2")
        ('30 dBm', 100)
        """
        text = text.strip()
        if not text:
            return None
        if "," in text or self.kind == "list":
            return [self._single(part.strip()) for part in text.strip("[]").split(",") if part.strip()]
        return text if self.kind == "text" else self._single(text)

    def _single(self, text: str) -> Any:
        try:
            number = float(text)
        except ValueError:
            return text
        return int(number) if self.kind == "count" and number.is_integer() else number


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of a few values."""

    key: str
    label: str
    options: dict[Any, str]
    help: str = ""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Knobs that belong together."""

    title: str
    items: tuple[Knob | Choice, ...]


def shown(value: Any) -> str:
    """Return a value as its field shows it.

    >>> shown(2.0), shown(0.001), shown([0.5, 1.0]), shown(None)
    ('2', '0.001', '0.5, 1', '')
    """
    if isinstance(value, list):
        return ", ".join(shown(item) for item in value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return "" if value is None else str(value)


_ARRAY: Final = ("channel.angle_spread", "channel.sector", "channel.antenna_spacing")
_COMBINED: Final = ("link.combining", "link.trust")


def applies(key: str, design: Design) -> bool:
    """Return whether a knob means anything in the present design."""
    section, _, name = key.partition(".")
    model = str(design.get("channel.model"))
    if section == "channel" and name not in ChannelModel.model_fields:
        return name in CHANNELS.get(model, {})
    refused = MODELS[model].refuses if model in MODELS else {}
    if name in ("coherence", "correlation"):
        return name not in refused and (name == "coherence" or design.get("channel.coherence") is not None)
    if name in ("common_shadowing_db", "shadowing_coherence"):
        written = [design.get(f"channel.{other}") for other in ("coherence", "shadowing_coherence")]
        shadowed = design.get("channel.common_shadowing_db") not in (None, 0.0)
        return "coherence" in refused or shadowed or any(value is not None for value in written)
    if key == "channel.estimation_error" or key in (*_ARRAY, *_COMBINED):
        return (design.get("link.antennas") in (None, 1)) == (name == "estimation_error")
    if key == "fleet.num_devices":
        return model != "fixed"
    if key == "peak_spread":
        return not isinstance(design.get("fleet.peak_power"), list)
    if name == "clip_norm":  # a surrogate chooses it, or is told which
        return bool((section == "policy") == (design.get("policy.objective") == "measured"))
    if key in ("policy.size", "policy.threshold"):
        policy = POLICIES.get(str(design.get("policy.name")))
        return policy is not None and name in policy.settings
    return True


_SPREAD: Final = Knob(
    key="peak_spread",
    label="Spread of peak powers",
    unit="×",
    low=1.0,
    high=1000.0,
    help="Largest over smallest; 1 means equal ones.",
)


def _item(key: str) -> Knob | Choice:
    """The widget of a key, as its declaration has it."""
    if key == _SPREAD.key:
        return _SPREAD
    info = find(key)
    said, control = key_of(info), control_of(info)
    if said is None or control is None:
        raise AssertionError(f"{key} is on the page, but its declaration does not say how")
    note = f"{said.note[:1].upper()}{said.note[1:]}." if said.note else ""
    offered = {"channel.model": tuple(CHANNELS), "policy.name": tuple(POLICIES)}.get(key, ())
    if options := {name: name for name in offered} or dict(said.choices):
        return Choice(key=key, label=control.label, options=options, help=note)
    knob = Knob(key=key, label=control.label, symbol=said.symbol, unit=said.unit, help=note)
    if control.low is None or control.high is None:
        return replace(knob, kind="list" if get_origin(info.annotation) is list else "text")
    return replace(knob, low=control.low, high=control.high, kind=control.kind, open=control.open)


_CHANNEL: Final = [
    f"channel.{key}"
    for key in dict.fromkeys((*(key for law in CHANNELS.values() for key in law), *ChannelModel.model_fields))
    if control_of(find(f"channel.{key}")) and key != "model" and f"channel.{key}" not in _ARRAY
]
_BUDGET: Final = "epsilon delta scope formula relation total_power device_power"
_LEARNING: Final = "model total_steps clip_norm learning_rate smoothness strong_convexity initial_gap"
_LINK: Final = ("link.noise_std", "link.antennas", *_COMBINED, *_ARRAY)
_KEYS: Final = {
    "Budgets": [f"budget.{k}" for k in _BUDGET.split()],
    "Fleet and channel": [
        *("fleet.num_devices", "fleet.peak_power", _SPREAD.key, "channel.model"),
        *(*_CHANNEL, *_LINK, "seed"),
    ],
    "Learning": [f"learning.{key}" for key in _LEARNING.split()],
    "Policy": [f"policy.{key}" for key in ("name", "rounds", "size", "threshold")],
}
GROUPS: Final = tuple(Group(title=title, items=tuple(map(_item, keys))) for title, keys in _KEYS.items())


class Slider(ui.slider):
    """A slider that moves under the hand at once and tells the server afterwards."""

    LOOPBACK = False


class Controls:
    """The widgets of a design. `show` sets them without an event; a user's move calls `changed` with key and value."""

    def __init__(self, changed: Callable[[str, Any], None], own: Own) -> None:
        self._changed, self._own, self._quiet = changed, own, False
        self._rows: dict[str, tuple[Knob | Choice, Element, ValueElement[Any], ui.slider | None]] = {}
        for number, group in enumerate(GROUPS):  # one is open at a time: it has the whole height
            with (
                ui.expansion(group.title, value=number == 0, group="knobs").classes("group").props("dense dense-toggle")
            ):
                for item in group.items:
                    self._row(item)

    def show(self, design: Design, *, but: str = "") -> None:
        """Set every widget to the design; `but` names the one that the user's hand is on."""
        self._quiet = True
        try:
            for key, (item, row, field, slider) in self._rows.items():
                row.set_visibility(applies(key, design))
                value = design.get(key)
                if isinstance(item, Choice):
                    if value is not None:
                        field.value = value
                    continue
                if item.parse(str(field.value or "")) != value:
                    field.value = shown(value)
                if slider is not None:
                    slider.props["aria-valuetext"] = f"{shown(value) or 'off'} {item.unit}".strip()
                    position = item.position(value)
                    if position is not None and key != but:
                        slider.value = position
        finally:
            self._quiet = False

    def _row(self, item: Knob | Choice) -> None:
        with ui.element("div").classes("knob") as row:
            row.props["data-key"] = item.key
            with ui.element("div").classes("knob-head") as head:
                label = TextElement(tag="span", text=item.label).classes("knob-label")
                field = self._field(item, label) if isinstance(item, Knob) else self._choice(item, head)
            slider = None
            if isinstance(item, Knob) and item.kind not in ("list", "text"):
                slider = Slider(min=0, max=STEPS, step=1, value=0).props("dense").classes("knob-slider")
                slider.props["aria-label"] = field.props["aria-label"]
                slider.on_value_change(lambda event: self._tell(item.key, item.value(event.value or 0)))
            if item.help:
                ui.label(item.help).classes("knob-help")
        self._rows[item.key] = item, row, field, slider

    def _field(self, knob: Knob, label: TextElement) -> ValueElement[Any]:
        beside = knob.unit if len(knob.unit) <= 5 else ""  # a longer one leaves no room for a figure
        label.text += " " if beside == knob.unit else f", {knob.unit} "
        name, _, index = knob.symbol.partition("_")
        with label, TextElement(tag="i", text=name):
            TextElement(tag="sub", text=index)
        field = ui.input().props("dense borderless debounce=350 spellcheck=false autocomplete=off")
        field.props["aria-label"] = f"{knob.label} in {knob.unit}" if knob.unit else knob.label
        field.props["suffix"], field.props["placeholder"] = beside, "off" if knob.open else ""
        field.classes("knob-field" if knob.kind not in ("list", "text") else "knob-field knob-wide")
        field.on_value_change(lambda event: self._tell(knob.key, knob.parse(event.value or "")))
        return field

    def _choice(self, choice: Choice, head: Element) -> ValueElement[Any]:
        own = self._own.get(choice.key)
        options = choice.options | ({own: own.rpartition("/")[2]} if own else {})
        widget: ValueElement[Any]
        if len(options) <= 3 and sum(map(len, options.values())) <= 30:  # they fit side by side
            widget = ui.toggle(options).props("dense unelevated no-caps").classes("knob-toggle")
        else:
            widget = ui.select(options).props("dense borderless options-dense").classes("knob-select")
            head.classes("stacked" if max(map(len, options.values())) > 17 else "")  # below the label
        widget.props["aria-label"] = choice.label
        widget.on_value_change(lambda event: self._tell(choice.key, event.value))
        return widget

    def _tell(self, key: str, value: Any) -> None:
        if not self._quiet:
            self._changed(key, value)
