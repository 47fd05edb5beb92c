"""An experiment: a base scenario and its variations, read from a TOML file and expanded to points.

The file has the keys name, title, base, [set], [axes], [[variants]] and [quick]; docs/figures.md describes them.
A dotted key may be written in quotes or as nested tables. A key of the base's [policy] that a point's other policy does
not understand (`size`, `threshold`) is dropped.
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
    """A named set of changes that belong together, and axes that only this variant has."""

    label: str
    changes: Mapping[str, Any]
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A base scenario and what is varied."""

    name: str  # of the experiment; part of the names of its scenarios
    title: str  # the question that it answers
    base: Scenario  # the scenario of every point, with `set` applied
    axes: Mapping[str, tuple[Any, ...]]  # dotted key → values
    variants: tuple[Variant, ...]  # at least one; by default one without a label that changes nothing


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of an experiment."""

    label: str  # of its variant
    values: Mapping[str, Any]  # of the axes, by dotted key
    scenario: Scenario | None  # None where the values make no valid scenario
    key: str  # content hash of everything that shapes the record; names the run directory
    problem: str = ""  # why there is no scenario


def load(path: str | Path, *, quick: bool = False) -> Experiment:
    """Return the experiment in a TOML file, with its [quick] table applied if asked."""
    file = Path(path)
    try:
        return parse(_files.read_toml(file, "an experiment"), folder=file.parent, name=file.stem, quick=quick)
    except _files.DataError as error:
        raise ScenarioError(str(error)) from None
    except ScenarioError as error:
        text = str(error)
        raise ScenarioError(text if text.startswith(str(file.parent)) else f"{file}: {text}") from None


def parse(tables: Mapping[str, Any], *, folder: Path, name: str = "experiment", quick: bool = False) -> Experiment:
    """Return the experiment in a dictionary of tables, as TOML gives them."""
    if "base" not in tables and tables.keys() & Scenario.model_fields.keys() - set(_KEYS):
        raise ScenarioError(
            "This is a scenario, not an experiment (it has no key base): use airfed plan or airfed run, or write an "
            'experiment that starts from it (base = "scenario.toml").'
        )
    _check_keys(tables, _KEYS, "")
    if not isinstance(tables.get("base"), str):
        raise ScenarioError('Missing key base: expected the scenario to start from, as in base = "scenario.toml".')
    changes = flatten(_table(tables, "set"))
    axes = _axes(_table(tables, "axes"))
    variants = _variants(tables.get("variants", []))
    if quick:
        less = _table(tables, "quick")
        _check_keys(less, _QUICK_KEYS, "quick.")
        changes |= flatten(_table(less, "set"))
        axes |= _axes(_table(less, "axes"))
        labels = less.get("variants", list(variants))
        if not isinstance(labels, list) or not labels:
            raise ScenarioError("Expected quick.variants to be a list of at least one label.")
        for label in labels:
            if label not in variants:
                raise ScenarioError(f"Expected quick.variants to name variants ({', '.join(variants)}); got {label!r}.")
        variants = {label: variants[label] for label in labels}
    for variant in variants.values():
        own = [*variant.changes, *variant.axes]
        if shared := sorted(key for key in own if key in axes or own.count(key) > 1):
            raise ScenarioError(f"Expected {shared[0]} either as an axis or in variant {variant.label!r}, not in both.")
    base = scenario.load(folder / tables["base"])
    return Experiment(
        name=str(tables.get("name", name)),
        title=str(tables.get("title", "")),
        base=base.override(changes) if changes else base,
        axes=axes,
        variants=tuple(variants.values()),
    )


def expand(experiment: Experiment, *, keyed: bool = True) -> list[Point]:
    """Return the points: each variant at each combination of the axes' values, its own axes last.

    A point that makes no valid scenario carries the sentence that says why; the others are not affected.
    """
    points = []
    for variant in experiment.variants:
        axes = {**experiment.axes, **variant.axes}
        for combination in itertools.product(*axes.values()):
            values = dict(zip(axes, combination, strict=True))
            parts = (experiment.name, variant.label, *(f"{key}={value}" for key, value in values.items()))
            try:
                world = experiment.base.vary({**values, **variant.changes})
                world = world.override({"name": " · ".join(part for part in parts if part)})
                key = content_key(world) if keyed else ""
                points.append(Point(label=variant.label, values=values, scenario=world, key=key))
            except ValueError as error:
                points.append(Point(label=variant.label, values=values, scenario=None, key="", problem=str(error)))
    if all(point.problem for point in points):
        raise ScenarioError(points[0].problem)
    return points


def content_key(world: Scenario) -> str:
    """Return the content hash of everything that shapes a run's record.

    That is the scenario as resolved (without its name and how it is computed), which rounds and averages are evaluated,
    the gains drawn (they may come from a file), the data, a user's own model, and the format of run directories.
    """
    problem = world.problem(dimension=1)  # the gains do not depend on d, which only the loaded model may know
    content = {
        "format": FORMAT,
        "scenario": world.content(),
        "evaluate_every": world.run.evaluate_every,
        "gain": hashlib.sha256(problem.fleet.drawn.tobytes()).hexdigest(),
        "data": "" if world.learning.synthetic else dataset_digest(str(data_source(world))),
        "model": "",
    }
    if user_code(world.learning.model) is not None:
        from airfed.learning import models

        content["model"] = models.source_digest(world.learning.model, world.folder)
    if world.run.averages != "chosen":
        content["averages"] = world.run.averages
    if digest_of_policy := world.decider.digest():
        content["policy"] = digest_of_policy
    if (response := world.settings.objective) is not None:
        content["response"] = hashlib.sha256(response.to_json().encode()).hexdigest()
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


@cache
def dataset_digest(name: str) -> str:
    """Return the SHA-256 of a data set's content."""
    from airfed.learning import data  # lazy: a sweep of plans needs no data

    return data.load(name).sha256


def _axes(table: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    axes = flatten(table)
    for key, values in axes.items():
        if not isinstance(values, list):
            raise ScenarioError(f"Expected axis {key} to be a list of values, got {values!r}.")
        if not values:
            raise ScenarioError(f"Expected axis {key} to have at least one value; it is empty.")
        if len({json.dumps(value, default=str) for value in values}) < len(values):
            raise ScenarioError(f"Expected the values of axis {key} to differ; one of {values!r} is repeated.")
    return {key: tuple(values) for key, values in axes.items()}


def _variants(tables: Any) -> dict[str, Variant]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ScenarioError("Expected variants to be written as [[variants]] tables.")
    variants: dict[str, Variant] = {}
    for number, table in enumerate(tables, start=1):
        label = table.get("label")
        if not isinstance(label, str) or not label:
            raise ScenarioError(f"Missing key label in [[variants]] number {number}: expected a text in quotes.")
        if label in variants:
            raise ScenarioError(f"Expected the labels of the variants to differ; {label!r} is repeated.")
        changes = flatten({key: value for key, value in table.items() if key not in ("label", "axes")})
        variants[label] = Variant(label=label, changes=changes, axes=_axes(_table(table, "axes")))
    return variants or {"": Variant(label="", changes={})}


def _table(tables: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = tables.get(key, {})
    if not isinstance(table, dict):
        raise ScenarioError(f"Expected {key} to be a table, got {table!r}.")
    return table


def _check_keys(tables: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    for key in tables:
        if key not in known:
            raise ScenarioError(f"Unknown key {prefix}{key}; expected one of {', '.join(known)}.")
