"""TOML -> Problem: scenarios, their tables, errors, the commented template and the reference of keys."""

from airfed.channel import Fixed as FixedChannel
from airfed.channel import FromFile as FileChannel
from airfed.channel import Rayleigh as RayleighChannel
from airfed.keys import ScenarioError
from airfed.scenario.learning_section import DATASET_SHAPES
from airfed.scenario.scenario import Scenario, flatten, load, parse

__all__ = [
    "DATASET_SHAPES",
    "FileChannel",
    "FixedChannel",
    "RayleighChannel",
    "Scenario",
    "ScenarioError",
    "flatten",
    "load",
    "parse",
]
