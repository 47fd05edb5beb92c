"""The scenario that the page edits, valid or not, and its form as a URL, a file and a shell command."""

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
from airfed.scenario import DATASET_SHAPES, Scenario, ScenarioError, flatten, learning_section, template
from airfed.scenario.sections import PHYSICS

ScenarioTables = dict[str, Any]
Own = Mapping[str, Any]  # values by dotted key that only the user's command line can introduce

MOST_DEVICES: Final = 100_000
MOST_STEPS: Final = 20_000
MOST_GAINS: Final = 2_000_000  # devices times rounds, if channels are time-varying
MOST_ANTENNAS: Final = 20_000  # devices times antennas, if a beamformer is optimised
MOST_BATTERIES: Final = 40_000  # devices times rounds times antennas with batteries or several antennas
MOST_URL: Final = 6000  # characters; browsers and proxies truncate longer ones
MOST_TEXT: Final = 4_000_000  # characters of a pasted scenario
CHANNELS: Final = {name: model.initial_values() for name, model in MODELS.items() if not model.file_keys()}

_BUILT_IN: Final = {  # any other value of these keys names code to import or a file to read
    "learning.model": tuple(name for name in learning_section.MODELS if name != learning_section.NETWORK),
    "learning.dataset": tuple(DATASET_SHAPES),
    "policy.name": tuple(POLICIES),
    "channel.model": tuple(CHANNELS),
    **dict.fromkeys(["learning.network", "learning.candidates", "policy.surrogate", "budget.shared_ledger"], ()),
    **dict.fromkeys(["channel.path", "channel.column"], ()),
}


def admit(loaded: Scenario, own: Own) -> Scenario:
    """Return the scenario if the explorer may plan it for anyone with a link to it; ScenarioError otherwise."""
    for key, value in _external(loaded).items():
        if value != own.get(key):
            allowed = f"be one of {', '.join(_BUILT_IN[key])}" if _BUILT_IN[key] else "not be set"
            start = "To use your own, start the explorer with that scenario: airfed explore SCENARIO.toml."
            raise ScenarioError(f"{key} must {allowed} in the explorer; got {value!r}. {start}")
    devices, steps, antennas = loaded.num_devices, loaded.learning.total_steps, loaded.link.antennas
    batteries, rounds = bool(loaded.budget.device_power or loaded.budget.device_energy), loaded.policy.rounds or steps
    each = devices * rounds * antennas * (loaded.channel_model.time_varying or batteries)
    most_each = MOST_BATTERIES if batteries or antennas > 1 else MOST_GAINS
    for name, size, most in (
        ("fleet.num_devices", devices, MOST_DEVICES),
        ("learning.total_steps", steps, MOST_STEPS),
        ("fleet.num_devices times link.antennas", devices * antennas * (antennas > 1), MOST_ANTENNAS),
        ("devices times rounds times antennas (set policy.rounds)", each, most_each),
    ):
        if size > most:
            raise ScenarioError(f"{name} must be at most {most:,} in the explorer, got {size:,}.")
    return loaded


@cache
def _template() -> ScenarioTables:
    return _resolved(scenario.parse(tomllib.loads(template.SCENARIO)))


@dataclass(frozen=True, kw_only=True)
class Design:
    """The tables of a scenario as TOML gives them, valid or not, and the values allowed beyond the built-in ones."""

    tables: ScenarioTables = field(default_factory=lambda: copy.deepcopy(_template()))
    own: Own = field(default_factory=dict)

    def scenario(self) -> Scenario:
        """Return the scenario, validated like a file; ScenarioError if it is invalid or not admitted."""
        return admit(scenario.parse(copy.deepcopy(self.tables)), self.own)

    def get(self, key: str) -> Any:
        """Return the value of a dotted key; None if it is not set."""
        return flatten(self.tables).get(key)

    def change(self, key: str, value: Any) -> Design:
        """Return the design with a key set (None removes it), without keys that contradict it; not validated."""
        tables = copy.deepcopy(self.tables)
        if key == "channel.model" and value in MODELS:
            mine = {name.removeprefix("channel."): v for name, v in self.own.items() if name.startswith("channel.")}
            kept = ChannelModel.model_fields.keys() - MODELS[value].unsupported - {"model"}
            old = {name: v for name, v in tables.get("channel", {}).items() if name in kept}
            tables["channel"] = {"model": value, **CHANNELS.get(value, mine), **old}
            counted = "num_gains" in vars(MODELS[value])
            _set(tables, "fleet.num_devices", None if counted else self.get("fleet.num_devices") or 100)
            return replace(self, tables=tables)
        _set(tables, key, value)
        dropped: Iterable[str] = ()
        if key == "link.noise_std" and value is not None:
            dropped = [f"link.{name}" for name in set(PHYSICS) - {"bandwidth"}]  # noise_std is derived from them
        elif key == "policy.name" and value in POLICIES:
            dropped = [f"policy.{name}" for name in {"size", "threshold", "options"} - POLICIES[value].settings]
        elif key == "link.antennas" and value != 1:
            dropped = ["channel.csi_error"]
        elif key == "channel.coherence_rounds" and value is None:
            dropped = ["channel.correlation"]
        for name in dropped:
            _set(tables, name, None)
        return replace(self, tables=tables)

    def query(self) -> str:
        """Return the query of the URL: the keys that differ from the template; ScenarioError if it is too long."""
        start, here = (flatten(tables | {"run": {}}) for tables in (_template(), self.tables))  # results ignore [run]
        if here.get("channel.model") != start["channel.model"]:
            start = {key: value for key, value in start.items() if not key.startswith("channel.")}
        pairs = [(key, json.dumps(value, ensure_ascii=False)) for key, value in here.items() if start.get(key) != value]
        text = urlencode([*pairs, *((key, "") for key in start if key not in here)], safe=":,[]\"'")
        if len(text) > MOST_URL:
            raise ScenarioError(f"This scenario is too long for a link ({len(text)} characters). Save it as a file.")
        return text

    def command(self, name: str, *options: str) -> str:
        """Return the shell lines that write the scenario and run an airfed command on it."""
        command = shlex.join(["airfed", name, "explored.toml", *options])
        return f"cat > explored.toml <<'EOF'\n{self.scenario().to_toml()}EOF\n{command}\n"


def resume_command(folder: Path) -> str:
    """Return the shell line that resumes an interrupted run."""
    return shlex.join(["airfed", "run", str(folder / "scenario.toml"), "--out", str(folder), "--resume"]) + "\n"


def from_query(query: Mapping[str, str] | Iterable[tuple[str, str]], own: Own | None = None) -> Design:
    """Return the design of a `Design.query`; not validated."""
    pairs = {key: text for key, text in dict(query).items() if key not in ("tab", "token")}
    tables = copy.deepcopy(_template())
    if decode(pairs.get("channel.model", "")) not in ("", tables["channel"]["model"]):
        tables["channel"] = {}  # another model has other keys
    for key, text in pairs.items():
        _set(tables, key, None if text == "" else decode(text))
    return Design(tables=tables, own=own or {})


def from_text(text: str, own: Own | None = None) -> Design:
    """Return the design in a scenario's TOML; ScenarioError where it is none, or not admitted."""
    if len(text) > MOST_TEXT:
        raise ScenarioError(f"A scenario must have at most {MOST_TEXT:,} characters, got {len(text):,}.")
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of too many digits, lists nested too deeply
        raise ScenarioError(f"Not valid TOML: {error}.") from None
    return Design(tables=_resolved(admit(scenario.parse(tables), own or {})), own=own or {})


def from_scenario(loaded: Scenario) -> Design:
    """Return the design of a scenario file of the user, which may name code and files."""
    loaded = loaded.chosen().anchored()
    tables, own = loaded.model_dump(mode="json", exclude_unset=True), _external(loaded)
    try:
        if own.keys() & {"learning.model", "learning.dataset"}:
            tables["learning"]["dimension"] = loaded.dimension
        return Design(tables=_resolved(admit(scenario.parse(tables), own)), own=own)
    except ValueError as error:
        raise ScenarioError(str(error)) from None


def _external(loaded: Scenario) -> Own:
    values = {key: getattr(getattr(loaded, key.split(".")[0]), key.split(".")[1], None) for key in _BUILT_IN}
    return {key: value for key, value in values.items() if value is not None and value not in _BUILT_IN[key]}


def _resolved(loaded: Scenario) -> ScenarioTables:  # with defaults, so that every control has a value
    return loaded.model_dump(mode="json", exclude_none=True)


def _set(tables: ScenarioTables, key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        if not isinstance(tables.setdefault(part, {}), dict):
            tables[part] = {}
        tables = tables[part]
    if value is None:
        tables.pop(last, None)
    else:
        tables[last] = value


def decode(text: str) -> Any:
    """Return a JSON value, or the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a text, or brackets nested too deeply
        return text
