"""Scenarios: TOML schema, units, template and presets; Scenario -> Problem."""

from airfed.channel import Rayleigh as RayleighChannel
from airfed.keys import ScenarioError
from airfed.scenario.learning_section import DATASET_SHAPES
from airfed.scenario.scenario import Scenario, flatten, load, parse

__all__ = [
    "DATASET_SHAPES",
    "RayleighChannel",
    "Scenario",
    "ScenarioError",
    "flatten",
    "load",
    "parse",
]
