"""What the page edits: a scenario's tables as they stand, right or wrong, and how they travel by URL, file and shell.

The tables are checked by `airfed.scenario`, the very code that reads files, and by `admit`, which says what the page
computes for anyone who opens a link to it: built-in models, data sets and policies, and those of the scenario that the
page was started with; no file of gains, and a size that can be planned while somebody waits.
"""

from __future__ import annotations

import copy
import json
import math
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
from airfed.scenario.learning_section import NETWORK, RIDGE, NetworkSection
from airfed.scenario.sections import PHYSICS

BUILT_IN: Final = tuple(name for name in LEARNING_MODELS if name != NETWORK)
DATASETS: Final = tuple(DATASET_SHAPES)
MOST_DEVICES: Final = 100_000
MOST_STEPS: Final = 20_000
MOST_GAINS: Final = 2_000_000  # of all rounds, where rounds differ: some seconds
MOST_HEARD: Final = 20_000  # devices times antennas, where a combiner is looked for
MOST_BATTERIES: Final = 40_000  # the same with batteries or several antennas, whose plans take far longer


@dataclass(frozen=True, kw_only=True)
class Own:
    """What the user's own command line may name and a link may not bring in: code to import, files to read.

    Args:
        model, dataset, policy, account, response: of the scenario that the page was started with, None where built in.
        network: its [learning.network], if it has one; its model then reads "network".
        dimension: d of that model on that data set.
    """

    model: str | None = None
    network: NetworkSection | None = None
    dataset: str | None = None
    policy: str | None = None
    account: str | None = None
    response: str | None = None
    dimension: int | None = None


NOTHING_OWN: Final = Own()


def admit(world: Scenario, own: Own = NOTHING_OWN) -> Scenario:
    """Return the scenario if the explorer may compute it for anyone who opens a link to it.

    Raises:
        ScenarioError: it would import code, read a file, or is too large to plan and draw.
    """
    learning = world.learning
    for key, value, known, mine in (
        ("learning.model", learning.model, BUILT_IN, own.model),
        ("learning.network", learning.network, (), own.network),
        ("learning.dataset", learning.dataset, DATASETS, own.dataset),
        ("policy.name", world.policy.name, tuple(POLICIES), own.policy),
        ("policy.response", world.policy.response, (), own.response),
        ("budget.account", world.budget.account, (), own.account),
    ):
        if value is not None and value not in known and value != mine:
            expected = f"Expected {key} to be one of {', '.join(known)}" if known else f"Expected no {key}"
            raise ScenarioError(
                f"{expected} in the explorer; got {value!r} (for one of your own start it with that scenario: "
                "airfed explore SCENARIO.toml)."
            )
    if world.channel.file_keys():
        raise ScenarioError(
            f'Expected no channel.model="{world.channel.model}" here: the explorer reads no files on request.'
        )
    if world.num_devices > MOST_DEVICES:
        raise ScenarioError(f"Expected fleet.num_devices={world.num_devices} <= {MOST_DEVICES} in the explorer.")
    if (antennas := world.link.antennas) > 1 and world.num_devices * antennas > MOST_HEARD:
        raise ScenarioError(
            f"Expected at most {MOST_HEARD:,} devices times link.antennas in the explorer, got {world.num_devices:,} "
            f"times {antennas:,}."
        )
    if learning.total_steps > MOST_STEPS:
        raise ScenarioError(f"Expected learning.total_steps={learning.total_steps} <= {MOST_STEPS} in the explorer.")
    if world.channel.num_gains not in (None, world.num_devices):
        raise ScenarioError(
            f"Expected {world.num_devices} channel.gains (fleet.num_devices), got {world.channel.num_gains}."
        )
    if world.channel.changes or world.budget.device_power is not None:
        _admit_rounds(world)
    return world


def _admit_rounds(world: Scenario) -> None:
    """Refuse what has too many devices times rounds, and times antennas, to be decided round by round.

    Raises:
        ScenarioError: with what to change.
    """
    batteries, antennas = world.budget.device_power is not None, world.link.antennas
    most = MOST_BATTERIES if batteries or antennas > 1 else MOST_GAINS
    rounds = world.policy.rounds or world.learning.total_steps
    if world.num_devices * rounds * antennas > most:
        several = antennas > 1
        raise ScenarioError(
            f"Expected at most {most:,} devices times rounds{' times antennas' if several else ''} in the explorer "
            f"where {'devices have batteries' if batteries else 'gains change'}, got {world.num_devices:,} times "
            f"{rounds:,}{f' times {antennas:,}' if several else ''}; set policy.rounds, or fewer devices"
            f"{', antennas' if several else ''} or learning.total_steps."
        )


def find_own(world: Scenario) -> Own:
    """Return what of the user's own scenario is not built in; its size is found here, once.

    Raises:
        ScenarioError, DataError: the model or the data that would tell is wrong.
    """
    learning = world.learning
    model = None if learning.model in BUILT_IN else learning.model
    dataset = None if learning.dataset in DATASETS else learning.dataset
    policy = None if world.policy.name in POLICIES else world.policy.name
    dimension = None if model is None and dataset is None else world.dimension
    return Own(
        model=model,
        network=learning.network,
        dataset=dataset,
        policy=policy,
        account=world.budget.account,
        response=world.policy.response,
        dimension=dimension,
    )


Tables = dict[str, Any]

MOST_URL: Final = 6000  # characters; browsers and proxies cut longer ones
MOST_TEXT: Final = 4_000_000  # characters of a scenario that is pasted or uploaded

_SPREAD: Final = "peak_spread"
_OTHER_QUERY: Final = ("tab", "token")  # query parameters that are not the scenario's

# What a channel needs beyond its model, where nothing is written yet; files are not read on request.
CHANNELS: Final[dict[str, Tables]] = {name: model.starts() for name, model in MODELS.items() if not model.file_keys()}
_SHARED_CHANNEL: Final = tuple(key for key in ChannelModel.model_fields if key != "model")


@cache
def _start() -> Tables:
    """The tables of the commented template, which the page starts from."""
    return _resolved(scenario.parse(tomllib.loads(template.SCENARIO)))


def _resolved(world: Scenario) -> Tables:
    """The tables with defaults written out, so that every knob has something to show."""
    return world.model_dump(mode="json", exclude_none=True)


@dataclass(frozen=True, kw_only=True)
class Design:
    """The present design.

    Args:
        tables: the scenario's tables as TOML would give them; perhaps wrong, `world` says so.
        spread: largest over smallest peak power. Above 1 the devices' peak powers are spread evenly in decibels
            around the one that is written down.
        own: what it may name beyond what is built in.
    """

    tables: Tables = field(default_factory=lambda: copy.deepcopy(_start()))
    spread: float = 1.0
    own: Own = NOTHING_OWN

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
        if not 1.0 <= self.spread <= 1e6:
            raise ScenarioError(f"Expected 1 <= {_SPREAD}={self.spread:g} <= 1e6.")
        half = float(np.sqrt(self.spread))
        powers = np.geomspace(power / half, power * half, checked.num_devices)
        return checked.override({"fleet.peak_power": [float(f"{p:.6g}") for p in powers]})

    def get(self, key: str) -> Any:
        """Return the value of a dotted key; None where it is not written."""
        value: Any = self.tables
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def change(self, key: str, value: Any) -> Design:
        """Return the design with one dotted key changed (None removes it); nothing is checked yet.

        Another `channel.model` brings the keys it needs and drops those it does not know or refuses; fading that lasts
        the whole run drops its `correlation`, several `link.antennas` the error of the known gains, `link.noise_std`
        the physics that it follows from, another `learning.model` than one's own its layers and the dimension that was
        found for it, another than ridge regression its table and dimension, another `policy.name` the settings it does
        not take.
        """
        if key == _SPREAD:
            return replace(self, spread=value)
        tables = copy.deepcopy(self.tables)
        if key == "channel.model" and value in CHANNELS:
            tables["channel"] = _channel(value, tables.get("channel", {}))
            if value == "fixed":
                tables.get("fleet", {}).pop("num_devices", None)
            else:
                tables.setdefault("fleet", {}).setdefault("num_devices", _start()["fleet"]["num_devices"])
            return replace(self, tables=tables)
        _put(tables, key, value)
        if key == "link.noise_std" and value is not None:
            for physics in set(PHYSICS) - {"bandwidth"}:  # from which it would follow
                _put(tables, f"link.{physics}", None)
        if key == "policy.name" and value in POLICIES:
            for setting in {"size", "threshold", "options"} - POLICIES[value].settings:
                _put(tables, f"policy.{setting}", None)
        if key == "link.antennas" and value != 1:
            _put(tables, "channel.estimation_error", _start()["channel"]["estimation_error"])
        if key == "channel.coherence" and value is None:
            _put(tables, "channel.correlation", _start()["channel"]["correlation"])
        if key == "learning.model" and value != RIDGE and self.get("learning.ridge") is not None:
            for setting in ("ridge", "dimension"):
                _put(tables, f"learning.{setting}", None)
        if key == "learning.model" and self.own.dimension is not None:
            mine = value == self.own.model
            _put(tables, "learning.dimension", self.own.dimension if mine else None)
            network = self.own.network if mine else None
            _put(tables, "learning.network", None if network is None else network.model_dump(mode="json"))
        return replace(self, tables=tables)

    def query(self) -> str:
        """Return the URL's query: every key that differs from the start, "" where nothing does.

        Raises:
            ScenarioError: it is too long for a URL (long lists of gains or peak powers).
        """
        start, here = flatten(_comparable(_start())), flatten(_comparable(self.tables))
        if here.get("channel.model") != start["channel.model"]:
            start = {key: value for key, value in start.items() if not key.startswith("channel.")}
        pairs = [(key, _encode(value)) for key, value in here.items() if start.get(key) != value]
        pairs += [(key, "") for key in start if key not in here]
        if self.spread != 1.0:
            pairs.append((_SPREAD, f"{self.spread:g}"))
        text = urlencode(pairs, safe=":,[]\"'")
        if len(text) > MOST_URL:
            raise ScenarioError(f"This design is too long for a link ({len(text)} characters): save it as a file.")
        return text

    def command(self, *arguments: str) -> str:
        """Return the shell lines that write the scenario and call `airfed` with these arguments on it.

        Raises:
            ScenarioError: the design is wrong.
        """
        name, *options = arguments
        command = shlex.join(["airfed", name, "explored.toml", *options])
        return f"cat > explored.toml <<'EOF'\n{self.world().to_toml()}EOF\n{command}\n"


def resume_command(folder: Path) -> str:
    """Return the shell line that resumes an interrupted run."""
    return shlex.join(["airfed", "run", str(folder / "scenario.toml"), "--out", str(folder), "--resume"]) + "\n"


def from_query(query: Mapping[str, str] | Iterable[tuple[str, str]], own: Own = NOTHING_OWN) -> Design:
    """Return the design that `Design.query` wrote; nothing is checked yet.

    >>> from_query({"budget.epsilon": "3.5"}).get("budget.epsilon")
    3.5
    """
    pairs = [(k, v) for k, v in dict(query).items() if k not in _OTHER_QUERY]
    # First the channel's model, which decides what else is in its table.
    pairs.sort(key=lambda pair: pair[0] != "channel.model")
    tables, spread = copy.deepcopy(_start()), 1.0
    for key, text in pairs:
        value = _decode(text)
        if key == _SPREAD:
            spread = _number(value)
        elif key == "channel.model" and value != tables["channel"]["model"]:
            tables["channel"] = {"model": value}
        else:
            _put(tables, key, None if text == "" else value)
    return Design(tables=tables, spread=spread, own=own)


def from_text(text: str, own: Own = NOTHING_OWN) -> Design:
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
    return Design(tables=_resolved(admit(scenario.parse(tables), own)), own=own)


def from_scenario(world: Scenario) -> Design:
    """Return the design of a scenario from the user's own file; gains from a file are taken in.

    A model or data set of the user's own is admitted from here on; its size is found once.

    Raises:
        ScenarioError: the explorer does not admit it, or its file of gains, model or data is bad.
    """
    world = world.anchored()
    own = find_own(world)
    tables = world.model_dump(mode="json", exclude_unset=True)
    if own.dimension is not None:
        tables["learning"]["dimension"] = own.dimension
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


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.inf


def _channel(model: str, old: Tables) -> Tables:
    kept = {key: old[key] for key in _SHARED_CHANNEL if key in old and key not in MODELS[model].refuses}
    return {"model": model, **CHANNELS[model], **kept}


def _put(tables: Tables, key: str, value: Any) -> None:
    *path, last = key.split(".")
    table = tables
    for part in path:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            inner = table[part] = {}
        table = inner
    if value is None:
        table.pop(last, None)
    else:
        table[last] = value


def _comparable(tables: Tables) -> Tables:
    """The tables less [run], which changes no result and stays on its machine."""
    return {key: value for key, value in tables.items() if key != "run"}


def _encode(value: Any) -> str:
    if isinstance(value, str) and value and _decode(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a text, or brackets nested to annoy
        return text
