"""A scenario: devices, channel, budgets and learning task, read from TOML and turned into a `Problem` and a plan."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from airfed import _files, policies
from airfed.antennas import whitened
from airfed.channel import ChannelModel
from airfed.keys import Control, Key, Name, ScenarioError, Section, Seed, sentence
from airfed.planning import Plan, Policy, Settings, Surrogate, predicted
from airfed.planning.surrogate import CHOSEN_ON_DATA
from airfed.privacy import ledger
from airfed.problem import Adversary, Fleet, InfeasibleError, Link, Problem
from airfed.scenario import candidates, learning_section
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

_MAX_DEVICES = 2**48  # beyond any memory; above it NumPy raises another error
_ADDED_KEYS: Final = {
    "channel": (
        *("coherence_rounds", "correlation", "common_shadowing_db", "shadowing_coherence_rounds"),
        *("angle_spread", "sector", "antenna_spacing"),
    ),
    "fleet": ("peak_power_per_symbol",),
    "budget": ("device_power", "device_energy", "air_time"),
    "learning": ("images", "validation_images", "network", "ridge", "adaptive_clipping", "candidates", "train"),
    "link": (*PHYSICS, *ANTENNAS, "iq", "noise_std_lower", "noise_failure", "noise_covariance"),
}  # keys added after the first release; left out of the digest at their defaults, which keeps the noise of a seed


class Scenario(Section):
    """A validated scenario; paths in it are relative to `folder`.

    >>> from airfed.scenario import load, presets
    >>> load(presets.FOLDER / "yan.toml").override({"fleet.num_devices": 7}).problem().fleet.num_devices
    7
    """

    name: Annotated[Name, Key("name in tables and reports")] = "scenario"
    seed: Annotated[
        Seed,
        Key("seed of channels, data, initial model, policy and noise"),
        Control("Seed", 1, 1000, "count"),
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
        if self.link.antennas > 1 and self.channel.csi_error:
            raise ValueError(
                f"channel.csi_error must be 0 with link.antennas={self.link.antennas}, got {self.channel.csi_error:g}: "
                "the privacy accounting does not cover CSI error after beamforming."
            )
        return self

    @model_validator(mode="after")
    def _check_clipping(self) -> Self:
        policy = self.policy
        for key in ("surrogate", "clip_norm"):
            if self.learning.adaptive_clipping is not None and getattr(policy, key) is not None:
                raise ValueError(
                    f"policy.{key} must not be set with [learning.adaptive_clipping]: a surrogate has fixed ϖ."
                )
        if self.learning.adaptive_clipping is not None and policy.objective == "accuracy":
            raise ValueError(
                'policy.objective must be "bound" with [learning.adaptive_clipping], got "accuracy": a surrogate is '
                "measured with fixed clipping norms. Set policy.rounds to choose I yourself."
            )
        return self

    @model_validator(mode="after")
    def _check_units(self) -> Self:
        if self.channel.model == "path_loss" and self.link.noise_std is None and self.fleet.peak_power is not None:
            raise ValueError(
                "Is fleet.peak_power that of a symbol or of a whole upload? With path loss and thermal noise set "
                "fleet.peak_power_per_symbol = P, the power of the radio; an upload of S symbols has peak_power = S·P, "
                "with S = d/2 (link.iq = true) or d."
            )
        if self.budget.device_energy is not None and self.link.bandwidth is None:
            raise ValueError("budget.device_energy needs link.bandwidth: a symbol lasts 1/B seconds.")
        return self

    @property
    def num_devices(self) -> int:
        """N: fleet.num_devices, or the length of the list or file of gains, or of the list of peak powers."""
        if self.fleet.num_devices is not None:
            return self.fleet.num_devices
        if (gains := self.channel_model.num_gains) is not None:
            return gains
        if isinstance(self.fleet.power, list):
            return len(self.fleet.power)
        raise ScenarioError("Missing key fleet.num_devices: expected a whole number >= 1.")

    @property
    def dimension(self) -> int:
        """d: learning.dimension, or the number of parameters of the model; a user's model is built for it."""
        return learning_section.dimension_of(self)

    @property
    def shared_ledger_path(self) -> Path | None:
        """Path of the shared ledger, if the scenario names one."""
        return None if self.budget.shared_ledger is None else self.folder / self.budget.shared_ledger

    def shared_ledger_spent(self) -> float:
        """Return the μ that earlier runs have charged to the shared ledger; 0 without one."""
        adversary: Adversary = self.link.adversary if self.link.antennas > 1 else "all_antennas"
        path = self.shared_ledger_path
        return 0.0 if path is None else ledger.shared_ledger_spent(path, self.budget.build(), adversary)

    def problem(self, *, dimension: int | None = None, spent: float | None = None) -> Problem:
        """Return one realisation, with gains drawn from the channel stream of the seed.

        Time-varying gains have policy.rounds rounds, or else one per local step (enough for any plan); a trace has its
        own number. To plan a scenario, call its `plan`: a problem has neither [policy] nor the surrogate, and
        `airfed.plan(problem)` is clairvoyant where channels vary, because it knows the gains of all rounds.

        Args:
            dimension: d, if it is already known.
            spent: μ that the shared ledger has spent; None reads the ledger.
        """
        dimension = self.dimension if dimension is None else dimension
        try:
            if (num_devices := self.num_devices) > _MAX_DEVICES:
                raise MemoryError
            channel = self.channel_model
            rounds = self.policy.rounds or self.learning.total_steps
            with np.errstate(over="ignore", invalid="ignore"):  # `Fleet` reports an infinite gain
                gains = channel.trace(rounds=rounds, num_devices=num_devices, seed=self.seed)
            if channel.time_varying and len(gains) < (self.policy.rounds or 1):
                raise ScenarioError(
                    f"policy.rounds must be at most {len(gains)}, the rounds of the trace, got {self.policy.rounds}."
                )
            same = ("noise_std_lower", "noise_failure", "bandwidth", "iq", "beamforming", "adversary")
            link = Link(
                noise_std=self.link.received_std,
                noise_covariance=self.link.shared_noise,
                **{name: getattr(self.link, name) for name in same},
                **{name: getattr(self.channel, name) for name in ("csi_error", "csi_failure", "assume_perfect_csi")},
            )
            spent, learning = self.shared_ledger_spent() if spent is None else spent, self.learning.build(dimension)
            return Problem(
                fleet=Fleet(
                    **{"channel" if np.iscomplexobj(gains) else "gain": gains},
                    peak_power=self.fleet.upload_power(link.symbols(learning.entries)),
                ),
                link=link,
                learning=learning,
                budget=self.budget.build(spent=spent, bandwidth=self.link.bandwidth),
            )
        except ScenarioError:
            raise
        except ValueError as error:
            raise ScenarioError(self._as_written(str(error))) from None
        except MemoryError:
            raise ScenarioError(f"The fleet does not fit into memory: it has {self.num_devices} devices.") from None

    def samples(self, problem: Problem) -> Any:
        """Return Monte Carlo samples of the gains, or a conditional sampler; None if the gains are constant.

        See `ChannelModel.samples`. Raise ScenarioError for a problem that this scenario has not drawn.
        """
        fleet = problem.fleet
        if not fleet.time_varying:
            return None
        channel, same = self.channel_model, {"num_devices": fleet.num_devices, "seed": self.seed}
        try:
            first = whitened(channel.trace(rounds=1, **same)[0], fleet.noise_covariance)
            samples = channel.samples(rounds=len(fleet.drawn), **same)
        except ValueError as error:
            raise ScenarioError(str(error)) from None
        if not np.array_equal(first, fleet.drawn[0]):
            raise ScenarioError("This problem was not drawn from this scenario: its gains in the first round differ.")
        return samples

    @property
    def channel_model(self) -> ChannelModel:
        """The channel model for this number of antennas, with the full path of its file."""
        return self.channel.with_antennas(self.link.antennas, self.folder)

    @property
    def candidates(self) -> list[Scenario]:
        """The scenario with each of its candidate networks; only itself without candidates."""
        return [self.override(changes) for changes in self.learning.choices] or [self]

    def chosen(self, *, spent: float | None = None) -> Scenario:
        """Return the scenario with the network that its plan takes (`candidates.choose`), if it has candidates."""
        return self if self.learning.candidates is None else candidates.choose(self, spent=spent)[0]

    @property
    def resolved_policy(self) -> Policy:
        """The policy that [policy] names."""
        return policies.find(self.policy.name, self.folder)

    @property
    def surrogate(self) -> Surrogate | None:
        """The accuracy surrogate that [policy] names, or one in the package that fits; none if ϖ is adaptive."""
        if self.learning.adaptive_clipping is not None:
            return None
        return learning_section.fitting_surrogate(self.chosen())

    @property
    def settings(self) -> Settings:
        """The settings in [policy]."""
        policy = self.policy
        surrogate = None if policy.objective == "bound" else self.surrogate
        if policy.objective == "accuracy" and surrogate is None:
            raise ScenarioError(
                "policy.surrogate must be set with objective = 'accuracy': the package has none for this training. "
                f"{self.pilot_hint()}"
            )
        same = {key: getattr(policy, key) for key in ("rounds", "size", "threshold", "clip_norm", "average")}
        return Settings(**same, seed=self.seed, objective=surrogate, options=policy.options or {})

    def plan(
        self,
        problem: Problem | None = None,
        *,
        policy: str | Callable[..., Any] | Policy | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> Plan:
        """Return the plan of the scenario's policy, with the expected accuracy if a surrogate fits.

        `airfed plan` prints and `airfed run` executes this plan, to the bit. Where channels vary, it is causal: it uses
        the gains of a round only in that round (except with the policy "clairvoyant").
        With candidate networks it is the plan of the network with the highest expected accuracy.

        Args:
            problem: the realisation, if it is already drawn; of candidate networks, only those of its d are planned.
            policy: another policy, by name or as a function; settings that it does not accept are dropped.
            seed: another seed, with another realisation of the channel.
            settings: other values for keys of [policy], such as `rounds=20`.

        Raises:
            InfeasibleError: no plan meets every limit.

        >>> from airfed.scenario import load, presets
        >>> load(presets.FOLDER / "yan.toml").plan(policy="full", rounds=20).rounds
        20
        """
        if self.learning.candidates is not None:
            return candidates.choose(self, problem, policy=policy, seed=seed, **settings)[1]
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
            chosen = asked.resolved_policy
        else:
            chosen = policy if isinstance(policy, Policy) else Policy.from_function(policy)
            asked = asked._without(chosen)
        problem = asked.problem() if problem is None else problem
        informed = dataclasses.replace(asked._informed(problem), **own)
        try:
            return asked._expected(chosen.plan(problem, informed))
        except InfeasibleError as error:
            if not asked._may_use_bound(informed):
                raise InfeasibleError(asked._as_written(str(error))) from None
            plan = chosen.plan(problem, dataclasses.replace(informed, objective=None))
            note = f"Planned by the bound: {str(error).removeprefix('No plan fits: ')}"
            return asked._expected(dataclasses.replace(plan, notes=(*plan.notes, note)))

    def compare(
        self, problem: Problem | None = None, *, baselines: bool = False
    ) -> tuple[dict[str, Plan], dict[str, str]]:
        """Return the plan of every built-in policy and of the scenario's own, and why the others have no plan.

        Plans with an expected accuracy are sorted by it; plans that break a limit are last. `baselines` includes the
        methods of other papers. All have the network that the scenario's own policy takes.
        """
        if self.learning.candidates is not None:
            return self.chosen().compare(problem, baselines=baselines)
        asked = {
            **(policies.EVERY if baselines else policies.POLICIES),
            self.resolved_policy.name: self.resolved_policy,
        }
        problem = self.problem() if problem is None else problem
        informed = self._informed(problem)
        plans, reasons = policies.compare(problem, informed, policies=asked.values())
        if "optimal" not in plans and self._may_use_bound(informed):
            informed = dataclasses.replace(informed, objective=None)
            plans, reasons = policies.compare(problem, informed, policies=asked.values())
        plans = {name: self._expected(plan) for name, plan in plans.items()}
        if any(plan.prediction for plan in plans.values()):
            plans = dict(
                sorted(plans.items(), key=lambda item: (bool(item[1].violations), -(item[1].predicted_accuracy or 0.0)))
            )
        return plans, {name: self._as_written(reason) for name, reason in reasons.items()}

    def audit(
        self, *, trials: int | None = None, seed: int = 0, against: Adversary | None = None, end_to_end: bool = False
    ) -> Audit:
        """Attack the privacy claim of the scenario's plan; the `verdict` of the result is "pass" or "fail".

        Args:
            trials: trials per hypothesis; by default 100,000, or 2,500 end to end.
            seed: seed of the attack.
            against: the adversary with several antennas, "all_antennas" or "combined"; that of the claim by default.
            end_to_end: attack the models of many small trainings instead of the transmitted signals.
        """
        from airfed import audit  # lazy, upwards (pyproject.toml lists this import)

        return audit.audit(audit.Subject.of(self), trials=trials, seed=seed, against=against, end_to_end=end_to_end)

    def _informed(self, problem: Problem) -> Settings:
        """Return the settings with Monte Carlo samples of time-varying gains, which make the plan causal.

        Rounds that may differ are planned by the bound by default.
        """
        settings = self.settings
        if problem.time_varying and self.policy.objective is None:
            settings = dataclasses.replace(settings, objective=None)
        return dataclasses.replace(settings, samples=self.samples(problem))

    def _as_written(self, message: str) -> str:
        """Return a message about a derived peak power or battery with the key that the user wrote."""
        derived = {
            "peak_power": ("fleet.peak_power_per_symbol", self.fleet.peak_power_per_symbol, "the symbols of an upload"),
            "device_power": ("budget.device_energy", self.budget.device_energy, "link.bandwidth"),
        }
        for name, (key, value, factor) in derived.items():
            if value is not None:
                listed = r"\1" if isinstance(value, list) else ""
                message = re.sub(rf"\b{name}\b(\[\d+\])?(?= must be)", rf"{key}{listed} times {factor}", message)
                message = re.sub(rf"\b{name}\b", key, message)
        return message

    def _may_use_bound(self, settings: Settings) -> bool:
        """Return whether the surrogate is a default, so that a plan outside its range is made by the bound."""
        return self.policy.objective is None and settings.objective is not None and settings.clip_norm is None

    def _expected(self, plan: Plan) -> Plan:
        """Return the plan with its expected accuracy, and a warning if it was chosen on the devices' data."""
        surrogate = self.surrogate
        if (adaptive := self.learning.adaptive_clipping) is not None:
            note = (
                f"ϖ is adaptive: it starts at {plan.clip_norm:g} and follows the {adaptive.quantile:g} quantile of the "
                f"norms; the indicator takes {adaptive.share:.3g} of μ² and power. The bound is that of this ϖ. No "
                "accuracy is expected: surrogates are measured with fixed clipping norms."
            )
            return dataclasses.replace(plan, notes=(*plan.notes, note))
        if surrogate is None or not plan.private:
            return plan
        plan = predicted(plan, surrogate)
        if plan.objective == "accuracy" and surrogate.same_data:
            plan = dataclasses.replace(plan, notes=(*plan.notes, CHOSEN_ON_DATA))
        return plan

    def pilot_hint(self, file: str | Path = "SCENARIO") -> str:
        """Return the command that fits a surrogate, in a sentence; "" for a task without accuracy."""
        if self.learning.synthetic:
            return ""
        return f"To fit a surrogate, run airfed pilot {file} --data PROXY --out FILE."

    def vary(self, changes: Mapping[str, Any]) -> Scenario:
        """Return the scenario with dotted keys changed; settings that the policy does not accept are dropped."""
        own_policy(name := changes.get("policy.name", self.policy.name))  # raises for an unknown policy
        return self._without(policies.find(name, self.folder), changes)

    def _without(self, policy: Policy, changes: Mapping[str, Any] | None = None) -> Scenario:
        """Return the scenario with changes, without the settings that a policy does not accept."""
        kept = {key: value for key, value in (self.policy.options or {}).items() if key in policy.settings}
        dropped = {f"policy.{key}": None for key in ("size", "threshold") if key not in policy.settings}
        return self.override({**dropped, "policy.options": kept or None, **(changes or {})})

    def override(self, changes: Mapping[str, Any]) -> Scenario:
        """Return the scenario with dotted keys changed, validated like a file: {"policy.rounds": 20}."""
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
        """Return the scenario with its network and full paths of its files, so that it is independent of its folder."""
        if self.learning.candidates is not None:
            return self.chosen().anchored()
        files = {key: self.folder / path for key, path in self._named_files().items()}
        changes = {
            key: os.path.realpath(path)  # not resolve(), which raises on circular links
            for key, path in files.items()
            if key != "learning.dataset" or os.path.exists(path)
        }
        if (code := user_code(self.learning.model)) is not None:
            changes["learning.model"] = code.anchored(self.folder)
        if (code := own_policy(self.policy.name)) is not None:
            changes["policy.name"] = code.anchored(self.folder)
        return self.override(changes) if changes else self

    def _named_files(self) -> dict[str, str]:
        """Return the files that the scenario names, by dotted key."""
        tables = {name: table for name, table in self if isinstance(table, Section)}
        named = {f"{name}.{key}": getattr(table, key) for name, table in tables.items() for key in table.file_keys()}
        if self.learning.dataset not in DATASET_SHAPES:
            named["learning.dataset"] = self.learning.dataset
        if self.policy.surrogate is not None and self.policy.surrogate in learning_section.shipped():
            del named["policy.surrogate"]
        return {key: path for key, path in named.items() if path is not None}

    def content(self, *, less: Set[str] = frozenset()) -> dict[str, Any]:
        """Return all keys that affect a result, as plain values: the scenario without its name, [run] and `less`.

        File names are replaced: file contents have their own digests, and a recorded scenario stays the same.
        """
        tables = self.model_dump(mode="json", exclude={"name", "run", *less})
        for section in _ADDED_KEYS.keys() & tables.keys():
            fields = type(getattr(self, section)).model_fields
            for key in _ADDED_KEYS[section]:
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
        """Return the SHA-256 of the content without the policy, whose plan shows in the transmitted sums."""
        return hashlib.sha256(json.dumps(self.content(less={"policy"}), sort_keys=True).encode()).hexdigest()

    def to_toml(self) -> str:
        """Return the resolved scenario, including defaults, as TOML."""
        tables = self.model_dump(mode="json", exclude_none=True)
        lines = [f"{key} = {_files.toml_value(value)}" for key, value in tables.items() if not isinstance(value, dict)]
        for name, table in tables.items():
            if isinstance(table, dict):
                lines += ["", f"[{name}]", *(f"{key} = {_files.toml_value(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"


def load(path: str | Path) -> Scenario:
    """Return the scenario in a TOML file; raise ScenarioError if it is missing, or a key or value is invalid.

    >>> from airfed.scenario import presets
    >>> load(presets.FOLDER / "yan.toml").policy.name
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
    """Return the scenario in a dictionary of tables, as in TOML; raise ScenarioError if a key is invalid."""
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
