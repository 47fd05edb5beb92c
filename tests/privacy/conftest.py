"""A small world for privacy tests: six devices, a quadratic task of 50 parameters, eight rounds."""

from typing import Any

import pytest

from airfed.scenario import Scenario, parse

WORLD: dict[str, Any] = {
    "name": "small",
    "seed": 3,
    "fleet": {"num_devices": 6, "peak_power": 1.0},
    "channel": {"model": "uniform", "low": 0.3, "high": 1.2},
    "link": {"noise_std": 2.0},
    "budget": {"epsilon": 3.0, "delta": 1e-5, "scope": "total", "total_power": 100.0},
    "learning": {
        "model": "quadratic",
        "dimension": 50,
        "total_steps": 20,
        "learning_rate": 0.1,
        "clip_norm": 0.5,
        "smoothness": 10.0,
        "strong_convexity": 0.1,
        "initial_gap": 2.3,
    },
    "policy": {"rounds": 8},
}


@pytest.fixture
def world():
    """Return a function that makes the small scenario, with dotted keys changed."""

    def make(**changes: Any) -> Scenario:
        return parse(WORLD).override({key.replace("__", "."): value for key, value in changes.items()})

    return make
