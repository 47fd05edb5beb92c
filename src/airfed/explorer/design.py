"""The scenario that the page edits: its tables, right or wrong, and how they travel by URL, file and shell.

The tables are checked by `airfed.scenario`, as files are, and by `admit`, which limits what the page computes for
anyone who opens a link: built-in models, data sets and policies, and those of the scenario that the page was started
with; no files, and a size that can be planned while somebody waits.
"""

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

import numpy as np

from airfed import scenario
from airfed.channel import MODELS, ChannelModel
from airfed.policies import POLICIES
from airfed.scenario import DATASET_SHAPES, Scenario, ScenarioError, flatten, template
from airfed.scenario.learning_section import MODELS as LEARNING_MODELS
from airfed.scenario.learning_section import NETWORK, RIDGE
from airfed.scenario.sections import PHYSICS

Tables = dict[str, Any]
Own = Mapping[str, Any]  # values by dotted key that only the user's own command line may bring in

MOST_DEVICES: Final = 100_000
MOST_STEPS: Final = 20_000
MOST_GAINS: Final = 2_000_000  # devices times rounds, where rounds differ
MOST_HEARD: Final = 20_000  # devices times antennas, where a beamformer is searched for
MOST_BATTERIES: Final = 40_000  # devices times rounds times antennas with batteries or several antennas
MOST_URL: Final = 6000  # characters; browsers and proxies cut longer ones
MOST_TEXT: Final = 4_000_000  # characters of a scenario that is pasted or uploaded
CHANNELS: Final[dict[str, Tables]] = {name: model.starts() for name, model in MODELS.items() if not model.file_keys()}

_SPREAD: Final = "peak_spread"
_SHARED_CHANNEL: Final = tuple(key for key in ChannelModel.model_fields if key != "model")
_BUILT_IN: Final = {  # the other values of these keys name code to import or files to read
    "learning.model": tuple(name for name in LEARNING_MODELS if name != NETWORK),
    "learning.network": (),
    "learning.dataset": tuple(DATASET_SHAPES),
    "policy.name": POLICIES,
    "policy.response": (),
    "budget.account": (),
}


def admit(world: Scenario, own: Own) -> Scenario:
    """Return the scenario if the explorer may compute it for anyone who opens a link to it.

    Raises:
        ScenarioError: it would import code, read a file, or is too large to plan and draw.
    """
    for key, known in _BUILT_IN.items():
        value = _value(world, key)
        if value is not None and value not in known and value != own.get(key):
            expected = f"Expected {key} to be one of {', '.join(known)}" if known else f"Expected no {key}"
            raise ScenarioError(
                f"{expected} in the explorer; got {value!r} (for one of your own start it with that scenario: "
                "airfed explore SCENARIO.toml)."
            )
    if world.channel.file_keys():
        raise ScenarioError(
            f'Expected no channel.model="{world.channel.model}" here: the explorer reads no files on request.'
        )
    devices, steps, antennas = world.num_devices, world.learning.total_steps, world.link.antennas
    if devices > MOST_DEVICES:
        raise ScenarioError(f"Expected fleet.num_devices={devices} <= {MOST_DEVICES} in the explorer.")
    if steps > MOST_STEPS:
        raise ScenarioError(f"Expected learning.total_steps={steps} <= {MOST_STEPS} in the explorer.")
    if antennas > 1 and devices * antennas > MOST_HEARD:
        raise ScenarioError(
            f"Expected at most {MOST_HEARD:,} devices times link.antennas in the explorer, got {devices:,} "
            f"times {antennas:,}."
        )
    if world.channel.num_gains not in (None, devices):
        raise ScenarioError(f"Expected {devices} channel.gains (fleet.num_devices), got {world.channel.num_gains}.")
    batteries, several = world.budget.device_power is not None, antennas > 1
    most, rounds = MOST_BATTERIES if batteries or several else MOST_GAINS, world.policy.rounds or steps
    if (world.channel.changes or batteries) and devices * rounds * antennas > most:
        raise ScenarioError(
            f"Expected at most {most:,} devices times rounds{' times antennas' if several else ''} in the explorer "
            f"where {'devices have batteries' if batteries else 'gains change'}, got {devices:,} times "
            f"{rounds:,}{f' times {antennas:,}' if several else ''}; set policy.rounds, or fewer devices"
            f"{', antennas' if several else ''} or learning.total_steps."
        )
    return world


@cache
def _start() -> Tables:
    return _resolved(scenario.parse(tomllib.loads(template.SCENARIO)))


@dataclass(frozen=True, kw_only=True)
class Design:
    """The present design.

    Args:
        tables: the scenario's tables as TOML would give them; perhaps wrong, `world` says so.
        spread: largest over smallest peak power. Above 1 the devices' peak powers are spread evenly in decibels
            around the one in the tables.
        own: values that it may have beyond those that are built in.
    """

    tables: Tables = field(default_factory=lambda: copy.deepcopy(_start()))
    spread: Any = 1.0
    own: Own = field(default_factory=dict)

    def world(self) -> Scenario:
        """Return the scenario, checked like a file.

        Raises:
            ScenarioError: a key or value is wrong, or the explorer does not admit it.
        """
        checked = admit(scenario.parse(copy.deepcopy(self.tables)), self.own)
        if self.spread == 1.0:
            return checked
        power = checked.fleet.peak_power
        if isinstance(power, list):
            raise ScenarioError("Expected one fleet.peak_power to spread; a list already gives one per device.")
        if not isinstance(self.spread, int | float) or not 1.0 <= self.spread <= 1e6:
            raise ScenarioError(f"Expected 1 <= {_SPREAD}={str(self.spread)[:20]} <= 1e6.")
        half = float(np.sqrt(self.spread))
        powers = np.geomspace(power / half, power * half, checked.num_devices)
        return checked.override({"fleet.peak_power": [float(f"{p:.6g}") for p in powers]})

    def get(self, key: str) -> Any:
        """Return the value of a dotted key; None where it is not set."""
        if key == _SPREAD:
            return self.spread
        value: Any = self.tables
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def change(self, key: str, value: Any) -> Design:
        """Return the design with one dotted key changed (None removes it); nothing is checked yet.

        Keys that the new value makes meaningless are removed: another channel, policy or model does not keep the
        settings of the one before.
        """
        if key == _SPREAD:
            return replace(self, spread=value)
        tables = copy.deepcopy(self.tables)
        if key == "channel.model" and value in CHANNELS:
            old, refused = tables.get("channel", {}), MODELS[value].refuses
            kept = {name: old[name] for name in _SHARED_CHANNEL if name in old and name not in refused}
            tables["channel"] = {"model": value, **CHANNELS[value], **kept}
            if value == "fixed":
                tables.get("fleet", {}).pop("num_devices", None)
            else:
                tables.setdefault("fleet", {}).setdefault("num_devices", _start()["fleet"]["num_devices"])
            return replace(self, tables=tables)
        _put(tables, key, value)
        dropped: dict[str, Any] = {}
        if key == "link.noise_std" and value is not None:
            dropped = {f"link.{name}": None for name in set(PHYSICS) - {"bandwidth"}}  # it would follow from them
        elif key == "policy.name" and value in POLICIES:
            dropped = {f"policy.{name}": None for name in {"size", "threshold", "options"} - POLICIES[value].settings}
        elif key == "link.antennas" and value != 1:
            dropped = {"channel.estimation_error": _start()["channel"]["estimation_error"]}
        elif key == "channel.coherence" and value is None:
            dropped = {"channel.correlation": _start()["channel"]["correlation"]}
        elif key == "learning.model" and value != RIDGE and self.get("learning.ridge") is not None:
            dropped = {"learning.ridge": None, "learning.dimension": None}
        for name, instead in dropped.items():
            _put(tables, name, instead)
        if key == "learning.model" and "learning.dimension" in self.own:
            mine = self.own if value == self.own.get(key) else {}
            network = mine.get("learning.network")
            _put(tables, "learning.dimension", mine.get("learning.dimension"))
            _put(tables, "learning.network", None if network is None else network.model_dump(mode="json"))
        return replace(self, tables=tables)

    def query(self) -> str:
        """Return the URL's query: every key that differs from the start, "" where nothing does.

        Raises:
            ScenarioError: it is too long for a URL (long lists of gains or peak powers).
        """
        start, here = (  # [run] changes no result and stays on its machine
            flatten({key: value for key, value in tables.items() if key != "run"}) for tables in (_start(), self.tables)
        )
        if here.get("channel.model") != start["channel.model"]:
            start = {key: value for key, value in start.items() if not key.startswith("channel.")}
        pairs = [(key, _encode(value)) for key, value in here.items() if start.get(key) != value]
        pairs += [(key, "") for key in start if key not in here]
        if self.spread != 1.0:
            pairs.append((_SPREAD, _encode(self.spread)))
        text = urlencode(pairs, safe=":,[]\"'")
        if len(text) > MOST_URL:
            raise ScenarioError(f"This design is too long for a link ({len(text)} characters): save it as a file.")
        return text

    def command(self, name: str, *options: str) -> str:
        """Return the shell lines that write the scenario and call a command of airfed with it.

        Raises:
            ScenarioError: the design is wrong.
        """
        command = shlex.join(["airfed", name, "explored.toml", *options])
        return f"cat > explored.toml <<'EOF'\n{self.world().to_toml()}EOF\n{command}\n"


def resume_command(folder: Path) -> str:
    """Return the shell line that resumes an interrupted run."""
    return shlex.join(["airfed", "run", str(folder / "scenario.toml"), "--out", str(folder), "--resume"]) + "\n"


def from_query(query: Mapping[str, str] | Iterable[tuple[str, str]], own: Own | None = None) -> Design:
    """Return the design that `Design.query` wrote; nothing is checked yet.

    >>> from_query({"budget.epsilon": "3.5"}).get("budget.epsilon")
    3.5
    """
    pairs = {key: text for key, text in dict(query).items() if key not in ("tab", "token")}
    tables, spread = copy.deepcopy(_start()), 1.0
    for key in sorted(pairs, key="channel.model".__ne__):  # first the model, which decides what else is in its table
        value = _decode(pairs[key])
        if key == _SPREAD:
            spread = value
        elif key == "channel.model" and value != tables["channel"]["model"]:
            tables["channel"] = {"model": value}
        else:
            _put(tables, key, None if pairs[key] == "" else value)
    return Design(tables=tables, spread=spread, own=own or {})


def from_text(text: str, own: Own | None = None) -> Design:
    """Return the design in a scenario's TOML.

    Raises:
        ScenarioError: it is not TOML, or not a scenario that the explorer admits.
    """
    if len(text) > MOST_TEXT:
        raise ScenarioError(f"Expected a scenario of at most {MOST_TEXT:,} characters, got {len(text):,}.")
    try:
        tables = tomllib.loads(text)
    except ValueError as error:  # numbers of too many digits too
        raise ScenarioError(f"Not valid TOML: {error}.") from None
    except RecursionError:
        raise ScenarioError("Not valid TOML: lists are nested too deeply.") from None
    return Design(tables=_resolved(admit(scenario.parse(tables), own or {})), own=own or {})


def from_scenario(world: Scenario) -> Design:
    """Return the design of a scenario from the user's own file; gains are read from their file.

    Raises:
        ScenarioError: the explorer does not admit it, or its file of gains, model or data is bad.
    """
    world = world.anchored()
    tables = world.model_dump(mode="json", exclude_unset=True)
    values = {key: _value(world, key) for key in _BUILT_IN}
    own = {key: value for key, value in values.items() if value is not None and value not in _BUILT_IN[key]}
    if own.keys() & {"learning.model", "learning.dataset"}:
        own["learning.dimension"] = tables["learning"]["dimension"] = world.dimension
    if world.channel.file_keys():
        try:
            channel = world.received
            changes, gains = channel.changes, channel.magnitudes(world.num_devices, np.random.default_rng(0))
        except ValueError as error:
            raise ScenarioError(str(error)) from None
        if changes:
            raise ScenarioError(
                "Expected gains that stay in the file of channel.path; got a trace, which the explorer does not show "
                "(airfed plan --plot does)."
            )
        if world.link.antennas > 1:
            raise ScenarioError(
                f"Expected link.antennas=1 with a file of gains in the explorer, got {world.link.antennas} "
                "(airfed plan --plot shows it)."
            )
        shared = {key: value for key, value in tables["channel"].items() if key in _SHARED_CHANNEL}
        tables["channel"] = {"model": "fixed", "gains": gains.tolist(), **shared}
    return Design(tables=_resolved(admit(scenario.parse(tables), own)), own=own)


def _resolved(world: Scenario) -> Tables:
    """The tables with defaults set, so that every knob has something to show."""
    return world.model_dump(mode="json", exclude_none=True)


def _value(world: Scenario, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(world, section), name)


def _put(tables: Tables, key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        inner = tables.setdefault(part, {})
        if not isinstance(inner, dict):
            inner = tables[part] = {}
        tables = inner
    if value is None:
        tables.pop(last, None)
    else:
        tables[last] = value


def _encode(value: Any) -> str:
    if isinstance(value, str) and value and _decode(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a text, or brackets nested too deeply
        return text
