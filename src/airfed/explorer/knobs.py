"""What can be turned on the page: keys of the scenario with their names, units and ranges. No NiceGUI here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

from airfed.explorer.design import CHANNELS, Design
from airfed.planning import POLICIES

Kind = Literal["log", "count", "linear", "list", "text"]
STEPS: Final = 1000  # positions of a slider
_LARGEST: Final = 1.7e308  # beyond it a whole number is no float


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A number with a slider (or, of kind "list" or "text", a field alone).

    Args:
        key: dotted key of the scenario.
        label, symbol, unit: as the page shows them.
        low, high: ends of the slider; the field beside it takes any value.
        kind: "log" and "count" (whole numbers) run logarithmically.
        help: one sentence.
    """

    key: str
    label: str
    symbol: str = ""
    unit: str = ""
    low: float = 0.0
    high: float = 1.0
    kind: Kind = "log"
    help: str = ""

    def position(self, value: Any) -> int | None:
        """Return where the slider stands for a value, or None where it is no number."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
            return None
        inside = min(max(float(value), self.low), self.high)
        if self.kind == "linear":
            share = (inside - self.low) / (self.high - self.low)
        else:
            share = math.log(inside / self.low) / math.log(self.high / self.low)
        return round(share * STEPS)

    def value(self, position: float) -> float | int:
        """Return the value at a position of the slider, rounded to three digits."""
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
    """Return a value as its field shows it.

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
    if section == "channel" and name not in ("model", "minimum", "pin_minimum", "estimation_error"):
        return name in CHANNELS.get(str(design.get("channel.model")), {})
    if key == "fleet.num_devices":
        return bool(design.get("channel.model") != "fixed")
    if key == "peak_spread":
        return not isinstance(design.get("fleet.peak_power"), list)
    if key in ("policy.size", "policy.threshold"):
        policy = POLICIES.get(str(design.get("policy.name")))
        return policy is not None and name in policy.settings
    return True


GROUPS: Final = (
    Group(
        title="Budgets",
        items=(
            Knob(key="budget.epsilon", label="Privacy loss", symbol="ε", low=0.05, high=50.0),
            Knob(key="budget.delta", label="Failure probability", symbol="δ", low=1e-9, high=0.1),
            Choice(
                key="budget.scope",
                label="ε covers",
                options={"round": "each round", "total": "the training"},
                help="What (ε, δ) is a budget for.",
            ),
            Choice(
                key="budget.formula",
                label="Formula",
                options={"exact": "exact", "classic": "Lemma 1"},
                help="Lemma 1 speaks of one round only.",
            ),
            Choice(
                key="budget.relation",
                label="Neighbours",
                options={"replace": "replace one", "add_remove": "add/remove"},
            ),
            Knob(
                key="budget.total_power",
                label="Total power",
                symbol="P_tot",
                unit="W",
                low=1.0,
                high=1e5,
                help="Over all devices and rounds.",
            ),
        ),
    ),
    Group(
        title="Fleet and channel",
        items=(
            Knob(key="fleet.num_devices", label="Devices", symbol="N", low=1, high=5000, kind="count"),
            Knob(
                key="fleet.peak_power",
                label="Peak power",
                symbol="P",
                unit="W",
                low=0.01,
                high=100.0,
                help='Also with a unit ("30 dBm"), or a list with one per device.',
            ),
            Knob(
                key="peak_spread",
                label="Spread of peak powers",
                unit="×",
                low=1.0,
                high=1000.0,
                help="Largest over smallest; 1 means equal ones.",
            ),
            Choice(
                key="channel.model",
                label="Channel law",
                options={name: name for name in CHANNELS},
            ),
            Knob(key="channel.gains", label="Gains", symbol="|h|", kind="list", help="One per device, with commas."),
            Knob(key="channel.scale", label="Scale", symbol="rms |h|", low=0.01, high=10.0),
            Knob(
                key="channel.k_factor",
                label="Line of sight over scatter",
                symbol="K",
                low=0.0,
                high=20.0,
                kind="linear",
            ),
            Knob(key="channel.low", label="Smallest gain", low=0.0, high=2.0, kind="linear"),
            Knob(key="channel.high", label="Largest gain", low=0.05, high=5.0),
            Knob(key="channel.radius", label="Cell radius", unit="m", low=60.0, high=3000.0),
            Knob(key="channel.reference_distance", label="Reference distance", unit="m", low=1.0, high=500.0),
            Knob(
                key="channel.path_loss_exponent",
                label="Path loss exponent",
                symbol="α",
                low=1.5,
                high=5.0,
                kind="linear",
            ),
            Knob(key="channel.shadowing_db", label="Shadowing", unit="dB", low=0.0, high=12.0, kind="linear"),
            Knob(
                key="channel.minimum",
                label="Minimum gain",
                symbol="h_min",
                low=0.0,
                high=1.0,
                kind="linear",
                help="Weaker gains are raised to it.",
            ),
            Choice(
                key="channel.pin_minimum",
                label="Weakest device",
                options={True: "exactly at h_min", False: "as drawn"},
            ),
            Knob(
                key="channel.estimation_error",
                label="Error of the known gains",
                low=0.0,
                high=0.2,
                kind="linear",
                help="Mean square, relative; privacy counts on it.",
            ),
            Knob(
                key="link.noise_std",
                label="Receiver noise",
                symbol="σ",
                low=0.01,
                high=10.0,
                help="Per real dimension.",
            ),
            Knob(key="seed", label="Seed of the draw", kind="count", low=1, high=1000),
        ),
    ),
    Group(
        title="Learning",
        open=False,
        items=(
            Choice(
                key="learning.model",
                label="Model",
                options={"cnn": "CNN", "mlp": "MLP", "logistic": "logistic"},
            ),
            Knob(key="learning.total_steps", label="Local steps in all", symbol="T", low=1, high=2000, kind="count"),
            Knob(key="learning.clip_norm", label="Clip norm", symbol="ϖ", low=0.01, high=10.0),
            Knob(key="learning.learning_rate", label="Learning rate", symbol="τ", low=1e-3, high=1.0),
            Knob(key="learning.smoothness", label="Smoothness", symbol="ζ", low=0.1, high=100.0),
            Knob(key="learning.strong_convexity", label="Strong convexity", symbol="ϱ", low=1e-3, high=10.0),
            Knob(key="learning.initial_gap", label="Initial gap", symbol="G", low=0.01, high=100.0),
        ),
    ),
    Group(
        title="Policy",
        open=False,
        items=(
            Choice(key="policy.name", label="Who decides", options={name: name for name in POLICIES}),
            Knob(
                key="policy.rounds",
                label="Rounds, fixed",
                symbol="I",
                low=1,
                high=2000,
                kind="count",
                help="Empty: the best number.",
            ),
            Knob(key="policy.size", label="Devices to schedule", symbol="|K|", low=1, high=5000, kind="count"),
            Knob(key="policy.threshold", label="Smallest gain to schedule", low=0.0, high=2.0, kind="linear"),
        ),
    ),
)
