"""TOML -> Problem: scenarios, their tables, units, errors and the commented template."""

from airfed.scenario.errors import ScenarioError
from airfed.scenario.scenario import DATASET_SHAPES, Scenario, load, parse
from airfed.scenario.sections import FileChannel, FixedChannel, RayleighChannel

__all__ = [
    "DATASET_SHAPES",
    "FileChannel",
    "FixedChannel",
    "RayleighChannel",
    "Scenario",
    "ScenarioError",
    "load",
    "parse",
]
