"""What experiments are made of: a scenario in which training takes a moment."""

import pytest

SCENARIO = """
seed = 0
[fleet]
num_devices = 8
peak_power = 1.0
[channel]
model = "rayleigh"
minimum = 0.2
[link]
noise_std = 0.1
[budget]
epsilon = 2.0
delta = 1e-3
total_power = 1000.0
[learning]
model = "quadratic"
dimension = 20
total_steps = 12
learning_rate = 0.1
clip_norm = 1.0
smoothness = 10.0
strong_convexity = 0.1
initial_gap = 2.3
[run]
checkpoint_every = 100
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with that scenario, which leaves the policy open."""
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    return tmp_path
