"""The scenario that the page edits: its tables, right or wrong, and how they travel by URL, file and shell."""

from __future__ import annotations

import copy
import json
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from airfed import scenario
from airfed.channel import MODELS, ChannelModel
from airfed.policies import POLICIES
from airfed.scenario import DATASET_SHAPES, Scenario, ScenarioError, flatten, template
from airfed.scenario.learning_section import MODELS as LEARNING_MODELS
from airfed.scenario.learning_section import NETWORK
from airfed.scenario.sections import PHYSICS

Tables = dict[str, Any]
Own = Mapping[str, Any]  # values by dotted key that only the user's own command line may bring in

MOST_DEVICES: Final = 100_000
MOST_STEPS: Final = 20_000
MOST_GAINS: Final = 2_000_000  # devices times rounds, where rounds differ
MOST_HEARD: Final = 20_000  # devices times antennas, where a beamformer is searched for
MOST_BATTERIES: Final = 40_000  # devices times rounds times antennas with batteries or several antennas
MOST_URL: Final = 6000  # characters; browsers and proxies cut longer ones
MOST_TEXT: Final = 4_000_000  # characters of a scenario that is pasted
CHANNELS: Final[dict[str, Tables]] = {name: model.starts() for name, model in MODELS.items() if not model.file_keys()}

_BUILT_IN: Final = {  # the other values of these keys name code to import or files to read
    "learning.model": tuple(name for name in LEARNING_MODELS if name != NETWORK),
    "learning.network": (),
    "learning.dataset": tuple(DATASET_SHAPES),
    "policy.name": tuple(POLICIES),
    "policy.response": (),
    "budget.account": (),
    "channel.model": tuple(CHANNELS),
    "channel.path": (),
    "channel.column": (),
}


def admit(world: Scenario, own: Own) -> Scenario:
    """Return the scenario if the explorer may compute it for anyone who opens a link to it; ScenarioError otherwise."""
    for key, value in _named(world).items():
        if value != own.get(key):
            known = ", ".join(_BUILT_IN[key])
            raise ScenarioError(
                f"Expected {f'{key} to be one of {known}' if known else f'no {key}'} in the explorer; got {value!r} "
                "(for one of your own start it with that scenario: airfed explore SCENARIO.toml)."
            )
    devices, steps, antennas = world.num_devices, world.learning.total_steps, world.link.antennas
    batteries, rounds = world.budget.device_power is not None, world.policy.rounds or steps
    differ = world.received.changes or batteries
    for what, size, most in (
        ("devices (fleet.num_devices)", devices, MOST_DEVICES),
        ("steps (learning.total_steps)", steps, MOST_STEPS),
        ("devices times link.antennas", devices * antennas * (antennas > 1), MOST_HEARD),
        (
            "devices times rounds times antennas where rounds differ (set policy.rounds)",
            devices * rounds * antennas * differ,
            MOST_BATTERIES if batteries or antennas > 1 else MOST_GAINS,
        ),
    ):
        if size > most:
            raise ScenarioError(f"Expected at most {most:,} {what} in the explorer, got {size:,}.")
    return world


@cache
def _start() -> Tables:
    return _resolved(scenario.parse(tomllib.loads(template.SCENARIO)))


@dataclass(frozen=True, kw_only=True)
class Design:
    """The scenario's tables as TOML would give them, perhaps wrong, and values allowed beyond the built-in ones."""

    tables: Tables = field(default_factory=lambda: copy.deepcopy(_start()))
    own: Own = field(default_factory=dict)

    def world(self) -> Scenario:
        """Return the scenario, checked like a file; ScenarioError where it is wrong or not admitted."""
        return admit(scenario.parse(copy.deepcopy(self.tables)), self.own)

    def get(self, key: str) -> Any:
        """Return the value of a dotted key; None where it is not set."""
        value: Any = self.tables
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def change(self, key: str, value: Any) -> Design:
        """Return the design with a key changed (None removes it) and what contradicts it removed; unchecked."""
        tables = copy.deepcopy(self.tables)
        if key == "channel.model" and value in MODELS:
            mine = {name.removeprefix("channel."): v for name, v in self.own.items() if name.startswith("channel.")}
            kept = ChannelModel.model_fields.keys() - MODELS[value].refuses - {"model"}
            old = {name: v for name, v in tables.get("channel", {}).items() if name in kept}
            tables["channel"] = {"model": value, **CHANNELS.get(value, mine), **old}
            counted = "num_gains" in vars(MODELS[value])
            _put(tables, "fleet.num_devices", None if counted else self.get("fleet.num_devices") or 100)
            return replace(self, tables=tables)
        _put(tables, key, value)
        dropped: Iterable[str] = ()
        if key == "link.noise_std" and value is not None:
            dropped = [f"link.{name}" for name in set(PHYSICS) - {"bandwidth"}]  # it would follow from them
        elif key == "policy.name" and value in POLICIES:
            dropped = [f"policy.{name}" for name in {"size", "threshold", "options"} - POLICIES[value].settings]
        elif key == "link.antennas" and value != 1:
            dropped = ["channel.estimation_error"]
        elif key == "channel.coherence" and value is None:
            dropped = ["channel.correlation"]
        for name in dropped:
            _put(tables, name, None)
        return replace(self, tables=tables)

    def query(self) -> str:
        """Return the URL's query: every key that differs from the start; ScenarioError where that is too long."""
        start, here = (flatten(tables | {"run": {}}) for tables in (_start(), self.tables))  # [run] changes no result
        if here.get("channel.model") != start["channel.model"]:
            start = {key: value for key, value in start.items() if not key.startswith("channel.")}
        pairs = [(key, json.dumps(value, ensure_ascii=False)) for key, value in here.items() if start.get(key) != value]
        text = urlencode([*pairs, *((key, "") for key in start if key not in here)], safe=":,[]\"'")
        if len(text) > MOST_URL:
            raise ScenarioError(f"This design is too long for a link ({len(text)} characters): save it as a file.")
        return text

    def command(self, name: str, *options: str) -> str:
        """Return the shell lines that write the scenario and call a command of airfed with it."""
        command = shlex.join(["airfed", name, "explored.toml", *options])
        return f"cat > explored.toml <<'EOF'\n{self.world().to_toml()}EOF\n{command}\n"


def resume_command(folder: Path) -> str:
    """Return the shell line that resumes an interrupted run."""
    return shlex.join(["airfed", "run", str(folder / "scenario.toml"), "--out", str(folder), "--resume"]) + "\n"


def from_query(query: Mapping[str, str] | Iterable[tuple[str, str]], own: Own | None = None) -> Design:
    """Return the design that `Design.query` wrote; nothing is checked yet."""
    pairs = {key: text for key, text in dict(query).items() if key not in ("tab", "token")}
    tables = copy.deepcopy(_start())
    if _decode(pairs.get("channel.model", "")) not in ("", tables["channel"]["model"]):
        tables["channel"] = {}  # another model has other keys
    for key, text in pairs.items():
        _put(tables, key, None if text == "" else _decode(text))
    return Design(tables=tables, own=own or {})


def from_text(text: str, own: Own | None = None) -> Design:
    """Return the design in a scenario's TOML; ScenarioError where it is none, or not admitted."""
    if len(text) > MOST_TEXT:
        raise ScenarioError(f"Expected a scenario of at most {MOST_TEXT:,} characters, got {len(text):,}.")
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of too many digits, lists nested too deeply
        raise ScenarioError(f"Not valid TOML: {error}.") from None
    return Design(tables=_resolved(admit(scenario.parse(tables), own or {})), own=own or {})


def from_scenario(world: Scenario) -> Design:
    """Return the design of a scenario from the user's own file, whose code and files it may use."""
    world = world.anchored()
    tables, own = world.model_dump(mode="json", exclude_unset=True), _named(world)
    try:
        if own.keys() & {"learning.model", "learning.dataset"}:
            tables["learning"]["dimension"] = world.dimension
        return Design(tables=_resolved(admit(scenario.parse(tables), own)), own=own)
    except ValueError as error:
        raise ScenarioError(str(error)) from None


def _named(world: Scenario) -> Own:
    values = {key: getattr(getattr(world, key.split(".")[0]), key.split(".")[1], None) for key in _BUILT_IN}
    return {key: value for key, value in values.items() if value is not None and value not in _BUILT_IN[key]}


def _resolved(world: Scenario) -> Tables:  # with defaults, so that every knob has something to show
    return world.model_dump(mode="json", exclude_none=True)


def _put(tables: Tables, key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        if not isinstance(tables.setdefault(part, {}), dict):
            tables[part] = {}
        tables = tables[part]
    if value is None:
        tables.pop(last, None)
    else:
        tables[last] = value


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a text, or brackets nested too deeply
        return text
