"""A scenario: what is there and what is wanted, read from TOML and turned into a `Problem` and a plan."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from airfed import _files, policies
from airfed.channel import ChannelModel
from airfed.keys import Control, Key, Name, ScenarioError, Section, Seed, sentence
from airfed.planning import Plan, Policy, Response, Settings, predicted
from airfed.privacy import shared_ledger
from airfed.problem import Fleet, Link, Problem, Trust
from airfed.scenario import learning_section
from airfed.scenario.learning_section import DATASET_SHAPES, LearningSection, user_code
from airfed.scenario.sections import (
    ANTENNAS,
    PHYSICS,
    BudgetSection,
    Channel,
    FleetSection,
    LinkSection,
    PolicySection,
    RunSection,
    own_policy,
)

if TYPE_CHECKING:
    from airfed.audit import Audit

_MOST_DEVICES = 2**48  # far beyond any memory; NumPy speaks of "dimensions" above
_LATER: Final = {
    "channel": (
        *("coherence", "correlation", "common_shadowing_db", "shadowing_coherence"),
        *("angle_spread", "sector", "antenna_spacing"),
    ),
    "budget": ("device_power", "air_time"),
    "learning": ("images", "network", "ridge"),
    "link": (*PHYSICS, *ANTENNAS),
}  # keys that came after the first release: at their defaults, seeds draw the noise that they drew before


class Scenario(Section):
    """A checked scenario. `folder` is where relative paths in it start.

    >>> from airfed.scenario import load, worlds
    >>> load(worlds.FOLDER / "yan.toml").override({"fleet.num_devices": 7}).problem().fleet.num_devices
    7
    """

    name: Annotated[Name, Key("what tables and reports call it")] = "scenario"
    seed: Annotated[
        Seed,
        Key("one seed for channels, data, initial model, policy and noise"),
        Control("Seed of the draw", 1, 1000, "count"),
    ] = 0
    fleet: FleetSection
    channel: Channel
    link: LinkSection
    budget: BudgetSection
    learning: LearningSection
    policy: PolicySection = PolicySection()
    run: RunSection = RunSection()
    folder: Path = Field(default=Path(), exclude=True)

    @model_validator(mode="after")
    def _check_antennas(self) -> Self:
        if self.link.antennas > 1 and self.channel.estimation_error:
            raise ValueError(
                f"Expected channel.estimation_error=0 with link.antennas={self.link.antennas}, got "
                f"{self.channel.estimation_error:g}: what errors do to combined channels is not accounted for."
            )
        return self

    @property
    def num_devices(self) -> int:
        """N, from [fleet], from the list of gains or peak powers, or from the file of gains."""
        if self.fleet.num_devices is not None:
            return self.fleet.num_devices
        if (gains := self.received.num_gains) is not None:
            return gains
        if isinstance(self.fleet.peak_power, list):
            return len(self.fleet.peak_power)
        raise ScenarioError("Missing key fleet.num_devices: expected a whole number >= 1.")

    @property
    def dimension(self) -> int:
        """d: the key, or the size of the model on its data, for which the user's own model is made."""
        return learning_section.dimension_of(self)

    @property
    def account_path(self) -> Path | None:
        """The account that this scenario's trainings are charged to, if it names one."""
        return None if self.budget.account is None else self.folder / self.budget.account

    def account_spent(self) -> float:
        """Return μ that earlier trainings have charged to the account; 0 without one."""
        trust: Trust = self.link.trust if self.link.antennas > 1 else "radio"
        return 0.0 if self.account_path is None else shared_ledger.spent(self.account_path, self.budget.build(), trust)

    def problem(self, *, dimension: int | None = None, spent: float | None = None) -> Problem:
        """Return one realisation: the gains drawn from the seed's channel stream.

        Where they vary, there are as many rounds as policy.rounds says, or else local steps (any plan has enough of
        them); of a trace, as many as it has. To plan a scenario, call its `plan`. A problem holds neither [policy] nor
        the surrogate, and has the gains of all rounds: where channels vary, `airfed.plan(problem)` is clairvoyant.

        Args:
            dimension: d, where it is known already.
            spent: μ that the scenario's account has spent; None asks the account.
        """
        dimension = self.dimension if dimension is None else dimension
        try:
            if (num_devices := self.num_devices) > _MOST_DEVICES:
                raise MemoryError
            channel = self.received
            rounds = self.policy.rounds or self.learning.total_steps
            with np.errstate(over="ignore", invalid="ignore"):  # an infinite gain is named below
                gains = channel.trace(rounds=rounds, num_devices=num_devices, seed=self.seed)
            if channel.changes and len(gains) < (self.policy.rounds or 1):
                raise ScenarioError(
                    f"Expected policy.rounds={self.policy.rounds} <= {len(gains)}, the rounds of the trace."
                )
            return Problem(
                fleet=Fleet(
                    **{"channel" if np.iscomplexobj(gains) else "gain": gains}, peak_power=self.fleet.peak_power
                ),
                link=Link(
                    noise_std=self.link.received_std,
                    estimation_error=self.channel.estimation_error,
                    estimation_failure=self.channel.estimation_failure,
                    trust_estimates=self.channel.trust_estimates,
                    bandwidth=self.link.bandwidth,
                    combining=self.link.combining,
                    trust=self.link.trust,
                ),
                learning=self.learning.build(dimension),
                budget=self.budget.build(spent=self.account_spent() if spent is None else spent),
            )
        except ScenarioError:
            raise
        except ValueError as error:
            raise ScenarioError(str(error)) from None
        except MemoryError:
            raise ScenarioError(f"Expected a fleet that fits into memory, got {self.num_devices} devices.") from None

    def samples(self, problem: Problem) -> Any:
        """Return Monte Carlo samples of the gains, or a conditional sampler; None where gains do not vary.

        See `ChannelModel.law`. A problem that this scenario has not drawn is refused.
        """
        fleet = problem.fleet
        if not fleet.changes:
            return None
        channel, same = self.received, {"num_devices": fleet.num_devices, "seed": self.seed}
        try:
            first = channel.trace(rounds=1, **same)[0]
            samples = channel.law(rounds=len(fleet.drawn), **same)
        except ValueError as error:
            raise ScenarioError(str(error)) from None
        if not np.array_equal(first, fleet.drawn[0]):
            raise ScenarioError("Expected a problem that this scenario has drawn; its first gains are others.")
        return samples

    @property
    def received(self) -> ChannelModel:
        """The channel as the receiver meets it, with the file that it may name."""
        return self.channel.received_by(self.link.antennas, self.folder)

    @property
    def decider(self) -> Policy:
        """The policy that [policy] names."""
        return policies.find(self.policy.name, self.folder)

    @property
    def response(self) -> Response | None:
        """What training gives, measured once: the file that [policy] names, or one that airfed comes with."""
        if self.policy.response is not None:
            return learning_section.named_response(self.policy.response, self.folder, self.learning)
        return learning_section.shipped_response(self.learning, self.num_devices)

    @property
    def settings(self) -> Settings:
        """The settings of the policy, as [policy] has them."""
        said, response = self.policy, None
        if said.objective == "measured" and (response := self.response) is None:
            raise ScenarioError(
                "Expected policy.response with objective = 'measured': airfed comes with none for this model, data, "
                "total_steps and learning_rate (airfed measure SCENARIO --out FILE makes one)."
            )
        same = {key: getattr(said, key) for key in ("rounds", "size", "threshold", "clip_norm", "average")}
        return Settings(**same, seed=self.seed, objective=response, options=said.options or {})

    def plan(
        self,
        problem: Problem | None = None,
        *,
        policy: str | Callable[..., Any] | Policy | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> Plan:
        """Return the plan of the scenario's policy, with the expected accuracy where a surrogate fits.

        This is the plan that `airfed plan` prints and `airfed run` executes, to the bit. Where channels vary it knows
        the gains of a round only when it comes (except by the policy "clairvoyant").

        Args:
            problem: the realisation, where it was drawn already.
            policy: another policy, by name or as a function; settings that it does not take are dropped.
            seed: another seed: the channel is drawn anew.
            settings: other values for keys of [policy]: `rounds=20`.

        Raises:
            InfeasibleError: no plan meets every limit.

        >>> from airfed.scenario import load, worlds
        >>> load(worlds.FOLDER / "yan.toml").plan(policy="full", rounds=20).rounds
        20
        """
        given = {name: value for name, value in settings.items() if value is not None}
        function = not (policy is None or isinstance(policy, str))
        own = {name: given.pop(name) for name in ("size", "threshold", "options") if function and name in given}
        changes = {f"policy.{name}": value for name, value in given.items()}
        if seed is not None:
            changes["seed"] = seed
        if isinstance(policy, str):
            return self.vary({**changes, "policy.name": policy}).plan(problem)
        asked = self.override(changes) if changes else self
        if policy is None:
            chosen = asked.decider
        else:
            chosen = policy if isinstance(policy, Policy) else Policy.own(policy)
            asked = asked._without(chosen)
        problem = asked.problem() if problem is None else problem
        return asked._expected(chosen.plan(problem, dataclasses.replace(asked._informed(problem), **own)))

    def compare(
        self, problem: Problem | None = None, *, baselines: bool = False
    ) -> tuple[dict[str, Plan], dict[str, str]]:
        """Return the plan of every built-in policy and of the scenario's own, and the reason of each without one.

        With `baselines` the methods of other papers are asked, too.
        """
        asked = {**(policies.EVERY if baselines else policies.POLICIES), self.decider.name: self.decider}
        problem = self.problem() if problem is None else problem
        plans, reasons = policies.compare(problem, self._informed(problem), policies=asked.values())
        return {name: self._expected(plan) for name, plan in plans.items()}, reasons

    def audit(self, *, trials: int | None = None, seed: int = 0, against: Trust | None = None) -> Audit:
        """Try to break the privacy claim of the scenario's plan; the result's `verdict` is "pass" or "fail".

        Args:
            trials: canaries a side; 100,000 by default.
            seed: of the adversary's own choices.
            against: the adversary with several antennas, "radio" or "combiner"; that of the claim by default.
        """
        from airfed import audit  # upwards, when called (pyproject.toml lists this import)

        more = {} if trials is None else {"trials": trials}
        return audit.audit(audit.Subject.of(self), seed=seed, against=against, **more)

    def _informed(self, problem: Problem) -> Settings:
        """The settings with samples of gains that vary: a run knows those of a round only when it comes."""
        return dataclasses.replace(self.settings, samples=self.samples(problem))

    def _expected(self, plan: Plan) -> Plan:
        """The plan with its expected accuracy, where a surrogate fits."""
        response = self.response
        return plan if response is None or not plan.private else predicted(plan, response)

    def vary(self, changes: Mapping[str, Any]) -> Scenario:
        """Return the scenario with dotted keys changed; settings that a new policy does not take are dropped."""
        own_policy(name := changes.get("policy.name", self.policy.name))  # raises where there is no such policy
        return self._without(policies.find(name, self.folder), changes)

    def _without(self, policy: Policy, changes: Mapping[str, Any] | None = None) -> Scenario:
        """The scenario with changes, and without settings that a policy does not take."""
        kept = {key: value for key, value in (self.policy.options or {}).items() if key in policy.settings}
        dropped = {f"policy.{key}": None for key in ("size", "threshold") if key not in policy.settings}
        return self.override({**dropped, "policy.options": kept or None, **(changes or {})})

    def override(self, changes: Mapping[str, Any]) -> Scenario:
        """Return the scenario with dotted keys changed, checked like a file: {"policy.rounds": 20}."""
        tables = self.model_dump(mode="python", exclude_unset=True)
        for key, value in changes.items():
            *path, last = key.split(".")
            table = tables
            for part in path:
                table = table.setdefault(part, {})
                if not isinstance(table, dict):
                    raise ScenarioError(f"Unknown key {key!r}: {part!r} is not a table.")
            if value is None:
                table.pop(last, None)
            else:
                table[last] = dict(value) if isinstance(value, dict) else value  # later keys may add to it
        return parse(tables, folder=self.folder)

    def anchored(self) -> Scenario:
        """Return the scenario with the files it names by their full paths, so that it means the same elsewhere."""
        found = {key: self.folder / path for key, path in self._named_files().items()}
        changes = {
            key: os.path.realpath(path)  # not resolve(): it raises where links go round in circles
            for key, path in found.items()
            if key != "learning.dataset" or os.path.exists(path)
        }
        if (code := user_code(self.learning.model)) is not None:
            changes["learning.model"] = code.anchored(self.folder)
        if (code := own_policy(self.policy.name)) is not None:
            changes["policy.name"] = code.anchored(self.folder)
        return self.override(changes) if changes else self

    def _named_files(self) -> dict[str, str]:
        """The files that the scenario names, by their dotted keys."""
        tables = {name: table for name, table in self if isinstance(table, Section)}
        named = {f"{name}.{key}": getattr(table, key) for name, table in tables.items() for key in table.file_keys()}
        if self.learning.dataset not in DATASET_SHAPES:
            named["learning.dataset"] = self.learning.dataset
        if self.policy.response is not None and self.policy.response in learning_section.shipped():
            del named["policy.response"]
        return {key: path for key, path in named.items() if path is not None}

    def content(self, *, less: Set[str] = frozenset()) -> dict[str, Any]:
        """Return all that shapes a result, as plain values: the scenario without its name, [run] and `less`.

        Names of files are left out: their contents have digests of their own, and a recorded scenario stays the same.
        """
        tables = self.model_dump(mode="json", exclude={"name", "run", *less})
        for section in _LATER.keys() & tables.keys():
            fields = type(getattr(self, section)).model_fields
            for key in _LATER[section]:
                if tables[section][key] == fields[key].default:
                    del tables[section][key]
        for section, key in (name.split(".") for name in self._named_files()):
            if section in tables:
                tables[section][key] = "a file"
        if (code := user_code(self.learning.model)) is not None:
            tables["learning"]["model"] = code.name
        if "policy" in tables and (code := own_policy(self.policy.name)) is not None:
            tables["policy"]["name"] = code.name
        return tables

    def digest(self) -> str:
        """Return the SHA-256 of the content, less the policy: what it decides shows in the sums that are sent."""
        return hashlib.sha256(json.dumps(self.content(less={"policy"}), sort_keys=True).encode()).hexdigest()

    def to_toml(self) -> str:
        """Return the scenario as resolved, defaults included, as TOML."""
        tables = self.model_dump(mode="json", exclude_none=True)
        lines = [f"{key} = {_toml(value)}" for key, value in tables.items() if not isinstance(value, dict)]
        for name, table in tables.items():
            if isinstance(table, dict):
                lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"


def load(path: str | Path) -> Scenario:
    """Return the scenario in a TOML file; ScenarioError where there is none, or a key or value in it is wrong.

    >>> from airfed.scenario import worlds
    >>> load(worlds.FOLDER / "yan.toml").policy.name
    'optimal'
    """
    file = Path(path)
    try:
        tables = _files.read_toml(file, "a scenario", hint=f" (airfed new {file} writes one)")
    except _files.DataError as error:
        raise ScenarioError(str(error)) from None
    try:
        return parse(tables, folder=file.parent)
    except ScenarioError as error:
        raise ScenarioError(f"{file}: {error}") from None


def parse(tables: dict[str, Any], *, folder: Path = Path()) -> Scenario:
    """Return the scenario in a dictionary of tables, as TOML gives them; ScenarioError where a key is wrong."""
    if "folder" in tables:
        raise ScenarioError("Unknown key 'folder'.")
    if "base" in tables:
        raise ScenarioError("This is an experiment, not a scenario (it has a key base): use airfed sweep.")
    try:
        return Scenario.model_validate({**tables, "folder": folder})
    except ValidationError as error:
        raise ScenarioError(sentence(error, Scenario)) from None


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one level of dotted keys: {"policy": {"size": 3}} as {"policy.size": 3}."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
