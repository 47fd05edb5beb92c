"""An experiment: a base scenario and its variations, read from a TOML file (docs/figures.md) and expanded to points.

A dotted key may be written in quotes or as nested tables. A key of the base's [policy] that the policy of a point does
not have (`size`, `threshold`) is dropped.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from airfed import _files, scenario
from airfed.keys import ScenarioError
from airfed.scenario import Scenario, flatten
from airfed.scenario.learning_section import data_source, user_code
from airfed.training.formats import FORMAT

_KEYS: Final = ("name", "title", "base", "set", "axes", "variants", "quick")
_QUICK_KEYS: Final = ("set", "axes", "variants")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A named set of changes, and axes of this variant only."""

    label: str
    changes: Mapping[str, Any]
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A base scenario and its variations."""

    name: str  # of the experiment; part of the names of its scenarios
    title: str  # the question that it answers
    base: Scenario  # the scenario of every point, with `set` applied
    axes: Mapping[str, tuple[Any, ...]]  # dotted key → values
    variants: tuple[Variant, ...]  # at least one; by default one without label and changes


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of an experiment."""

    label: str  # of its variant
    values: Mapping[str, Any]  # of the axes, by dotted key
    scenario: Scenario | None  # None if the values are no valid scenario
    key: str  # content hash of everything that the record depends on; the name of the run directory
    problem: str = ""  # the reason why there is no scenario


def load(path: str | Path, *, quick: bool = False) -> Experiment:
    """Return the experiment in a TOML file; with `quick` its [quick] table is applied."""
    file = Path(path)
    try:
        return parse(_files.read_toml(file, "an experiment"), folder=file.parent, name=file.stem, quick=quick)
    except _files.DataError as error:
        raise ScenarioError(str(error)) from None
    except ScenarioError as error:
        text = str(error)
        raise ScenarioError(text if text.startswith(str(file.parent)) else f"{file}: {text}") from None


def parse(tables: Mapping[str, Any], *, folder: Path, name: str = "experiment", quick: bool = False) -> Experiment:
    """Return the experiment in a dictionary of TOML tables."""
    if "base" not in tables and tables.keys() & Scenario.model_fields.keys() - set(_KEYS):
        raise ScenarioError(
            "This is a scenario, not an experiment (it has no key base): use airfed plan or airfed run, or write an "
            'experiment that starts from it (base = "scenario.toml").'
        )
    _check_keys(tables, _KEYS, "")
    if not isinstance(tables.get("base"), str):
        raise ScenarioError('Missing key base: give the scenario to start from, as in base = "scenario.toml".')
    changes = flatten(_table(tables, "set"))
    axes = _axes(_table(tables, "axes"))
    variants = _variants(tables.get("variants", []))
    if quick:
        reduced = _table(tables, "quick")
        _check_keys(reduced, _QUICK_KEYS, "quick.")
        changes |= flatten(_table(reduced, "set"))
        axes |= _axes(_table(reduced, "axes"))
        labels = reduced.get("variants", list(variants))
        if not isinstance(labels, list) or not labels:
            raise ScenarioError(f"quick.variants must be a list of at least one label, got {labels!r}.")
        for label in labels:
            if label not in variants:
                raise ScenarioError(f"quick.variants must name variants ({', '.join(variants)}), got {label!r}.")
        variants = {label: variants[label] for label in labels}
    for variant in variants.values():
        own = [*variant.changes, *variant.axes]
        if shared := sorted(key for key in own if key in axes or own.count(key) > 1):
            raise ScenarioError(f"{shared[0]} must be an axis or a key of variant {variant.label!r}, not both.")
    base = scenario.load(folder / tables["base"])
    return Experiment(
        name=str(tables.get("name", name)),
        title=str(tables.get("title", "")),
        base=base.override(changes) if changes else base,
        axes=axes,
        variants=tuple(variants.values()),
    )


def expand(experiment: Experiment, *, keyed: bool = True) -> list[Point]:
    """Return the points: each variant at each combination of the axes; one without a valid scenario has a `problem`."""
    points = []
    for variant in experiment.variants:
        axes = {**experiment.axes, **variant.axes}
        for combination in itertools.product(*axes.values()):
            values = dict(zip(axes, combination, strict=True))
            parts = (experiment.name, variant.label, *(f"{key}={value}" for key, value in values.items()))
            try:
                scenario = experiment.base.vary({**values, **variant.changes})
                scenario = scenario.override({"name": " · ".join(part for part in parts if part)})
                key = content_key(scenario) if keyed else ""
                points.append(Point(label=variant.label, values=values, scenario=scenario, key=key))
            except ValueError as error:
                points.append(Point(label=variant.label, values=values, scenario=None, key="", problem=str(error)))
    if all(point.problem for point in points):
        raise ScenarioError(points[0].problem)
    return points


def content_key(scenario: Scenario) -> str:
    """Return the content hash of everything that a run's record depends on: scenario, gains, data, code and format."""
    scenario = scenario.chosen()
    problem = scenario.problem(dimension=1)  # d may need the model to be loaded; the gains do not depend on it
    content = {
        "format": FORMAT,
        "scenario": scenario.content(),
        "evaluate_every": scenario.run.evaluate_every,
        "gain": hashlib.sha256(problem.fleet.drawn.tobytes()).hexdigest(),
        "data": "" if scenario.learning.synthetic else dataset_digest(str(data_source(scenario))),
        "model": "",
    }
    if user_code(scenario.learning.model) is not None:
        from airfed.learning import models

        content["model"] = models.source_digest(scenario.learning.model, scenario.folder)
    if scenario.run.averages != "chosen":
        content["averages"] = scenario.run.averages
    if digest_of_policy := scenario.resolved_policy.digest():
        content["policy"] = digest_of_policy
    if (surrogate := scenario.settings.objective) is not None:
        content["surrogate"] = hashlib.sha256(surrogate.to_json().encode()).hexdigest()
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


@cache
def dataset_digest(name: str) -> str:
    """Return the SHA-256 of a data set's content."""
    from airfed.learning import data  # lazy: plans need no data

    return data.load(name).sha256


def _axes(table: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    axes = flatten(table)
    for key, values in axes.items():
        if not isinstance(values, list):
            raise ScenarioError(f"Axis {key} must be a list of values, got {values!r}.")
        if not values:
            raise ScenarioError(f"Axis {key} must have at least one value, got [].")
        if len({json.dumps(value, default=str) for value in values}) < len(values):
            raise ScenarioError(f"Axis {key} must have different values, got {values!r}.")
    return {key: tuple(values) for key, values in axes.items()}


def _variants(tables: Any) -> dict[str, Variant]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ScenarioError(f"variants must be [[variants]] tables, got {tables!r}.")
    variants: dict[str, Variant] = {}
    for number, table in enumerate(tables, start=1):
        label = table.get("label")
        if not isinstance(label, str) or not label:
            raise ScenarioError(f"Missing key label in [[variants]] number {number}: give a text in quotes.")
        if label in variants:
            raise ScenarioError(f"Variants must have different labels, got {label!r} twice.")
        changes = flatten({key: value for key, value in table.items() if key not in ("label", "axes")})
        variants[label] = Variant(label=label, changes=changes, axes=_axes(_table(table, "axes")))
    return variants or {"": Variant(label="", changes={})}


def _table(tables: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = tables.get(key, {})
    if not isinstance(table, dict):
        raise ScenarioError(f"{key} must be a table, got {table!r}.")
    return table


def _check_keys(tables: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    for key in tables:
        if key not in known:
            raise ScenarioError(f"Unknown key {prefix}{key}. The keys are {', '.join(known)}.")
