"""Fixtures of the tests of experiments: a scenario in which training takes a moment."""

from pathlib import Path

import pytest

SCENARIO = (
    (Path(__file__).parents[1] / "eight.toml").read_text()
    + """
[run]
checkpoint_every = 100
"""
)


@pytest.fixture
def folder(tmp_path):
    """A folder with that scenario, which leaves the policy open."""
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    return tmp_path
