"""What can be turned on the page: which keys, in which order; the rest is in their declarations. No NiceGUI here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_origin

from airfed.channel import MODELS, ChannelModel
from airfed.explorer.design import CHANNELS, Design
from airfed.keys import control_of, key_of
from airfed.policies import POLICIES
from airfed.scenario.template import find

Kind = Literal["log", "count", "linear", "list", "text"]
STEPS: Final = 1000  # positions of a slider
_LARGEST: Final = 1.7e308  # beyond it a whole number is no float
_ARRAY: Final = ("channel.angle_spread", "channel.sector", "channel.antenna_spacing")
_COMBINED: Final = ("link.combining", "link.trust")
_ERROR: Final = "channel.estimation_error"  # what it does to combined channels is not accounted for
_CHANGING: Final = ("coherence", "correlation", "common_shadowing_db", "shadowing_coherence")


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A number with a slider (or, of kind "list" or "text", a field alone).

    Args:
        key: dotted key of the scenario.
        label, symbol, unit: as the page shows them.
        low, high: ends of the slider; the field beside it takes any value.
        kind: "log" and "count" (whole numbers) run logarithmically.
        help: one sentence.
        open: the high end of the slider is None: the key is not written down.
    """

    key: str
    label: str
    symbol: str = ""
    unit: str = ""
    low: float = 0.0
    high: float = 1.0
    kind: Kind = "log"
    help: str = ""
    open: bool = False

    def position(self, value: Any) -> int | None:
        """Return where the slider stands for a value, or None where it is no number."""
        if value is None and self.open:
            return STEPS
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
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
        if self.kind == "linear":
            return float(f"{self.low + share * (self.high - self.low):.3g}")
        raw = self.low * (self.high / self.low) ** share
        return max(round(float(f"{raw:.3g}")), 1) if self.kind == "count" else float(f"{raw:.3g}")

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
        whole = math.isfinite(number) and number == int(number)
        if self.kind == "count":
            return int(number) if whole else number
        return number


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
    open: bool = True


def shown(value: Any) -> str:
    """Return a value as its field shows it, nothing where nothing is written down.

    >>> shown(2.0), shown(0.001), shown([0.5, 1.0]), shown(None)
    ('2', '0.001', '0.5, 1', '')
    """
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(shown(item) for item in value)
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    return str(value)


def applies(key: str, design: Design) -> bool:
    """Return whether a knob means anything in the present design."""
    section, _, name = key.partition(".")
    if section == "channel" and name not in ChannelModel.model_fields:
        return name in CHANNELS.get(str(design.get("channel.model")), {})
    if section == "channel" and name in _CHANGING:
        return _changing(name, design)
    if key in (*_ARRAY, *_COMBINED, _ERROR):
        return (design.get("link.antennas") in (None, 1)) == (key == _ERROR)
    if key == "fleet.num_devices":
        return bool(design.get("channel.model") != "fixed")
    if key == "peak_spread":
        return not isinstance(design.get("fleet.peak_power"), list)
    if key in ("learning.clip_norm", "policy.clip_norm"):  # a response chooses it, or is told which
        return bool((section == "policy") == (design.get("policy.objective") == "measured"))
    if key in ("policy.size", "policy.threshold"):
        policy = POLICIES.get(str(design.get("policy.name")))
        return policy is not None and name in policy.settings
    return True


def _changing(name: str, design: Design) -> bool:
    """Whether a knob of gains that change is shown: the first one always, the others once it is turned."""
    model = MODELS.get(str(design.get("channel.model")))
    refused = {} if model is None else model.refuses
    coherent = design.get("channel.coherence") is not None
    if name in ("coherence", "correlation"):
        return name not in refused and (coherent or name == "coherence")
    written = [design.get(f"channel.{key}") for key in ("common_shadowing_db", "shadowing_coherence")]
    return coherent or "coherence" in refused or any(value not in (None, 0.0) for value in written)


def _item(key: str) -> Knob | Choice:
    """The widget of a key, as its declaration has it."""
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


def _group(title: str, *keys: str, open: bool = True) -> Group:
    return Group(title=title, items=tuple(SPREAD if key == SPREAD.key else _item(key) for key in keys), open=open)


SPREAD: Final = Knob(
    key="peak_spread",
    label="Spread of peak powers",
    unit="×",
    low=1.0,
    high=1000.0,
    help="Largest over smallest; 1 means equal ones.",
)
_CHANNEL: Final = [
    f"channel.{key}"
    for key in dict.fromkeys((*(key for law in CHANNELS.values() for key in law), *ChannelModel.model_fields))
    if control_of(find(f"channel.{key}")) and key != "model" and f"channel.{key}" not in _ARRAY
]
GROUPS: Final = (
    _group(
        "Budgets",
        "budget.epsilon",
        "budget.delta",
        "budget.scope",
        "budget.formula",
        "budget.relation",
        "budget.total_power",
        "budget.device_power",
    ),
    _group(
        "Fleet and channel",
        "fleet.num_devices",
        "fleet.peak_power",
        SPREAD.key,
        "channel.model",
        *_CHANNEL,
        "link.noise_std",
        "link.antennas",
        *_COMBINED,
        *_ARRAY,
        "seed",
    ),
    _group(
        "Learning",
        "learning.model",
        "learning.total_steps",
        "learning.clip_norm",
        "learning.learning_rate",
        "learning.smoothness",
        "learning.strong_convexity",
        "learning.initial_gap",
        open=False,
    ),
    _group("Policy", "policy.name", "policy.rounds", "policy.size", "policy.threshold", open=False),
)
