"""Values far outside of physics are computed or refused in a sentence, never a traceback."""

import re
import tomllib
from pathlib import Path

import pytest

from airfed import scenario
from airfed.channel import MODELS
from airfed.scenario.sections import FleetSection, LinkSection

TINY = tomllib.loads((Path(__file__).parents[1] / "tiny.toml").read_text())
NEEDED = {
    "fixed": {"gains": [0.5] * 6},
    "rayleigh": {},
    "rician": {"k_factor": 3.0},
    "uniform": {"low": 0.3, "high": 1.0},
    "cell": {"radius": 300.0, "reference_distance": 50.0},
    "path_loss": {"radius": 100.0, "frequency": 2.4e9},
}
LISTS = {"gains", "peak_power", "peak_power_per_symbol"}
AROUND = {
    "as it is": {},
    "time-varying": {"channel": {"coherence_rounds": 1, "shadowing_coherence_rounds": 1, "common_shadowing_db": 4.0}},
    "antennas": {"link": {"antennas": 2}},
    "thermal": {"link": {"noise_std": None, "bandwidth": 1e6}},
    "imperfect CSI": {"channel": {"csi_error": 0.01}},
}
MORE = (1e99, 1e300, 1e-300, -1e29, 10**30)
SECTIONS = {"link": LinkSection, "fleet": FleetSection}


def keys(model):
    sections = {"channel": MODELS[model], **SECTIONS}
    return [(section, key) for section, kind in sections.items() for key in kind.model_fields if key != "model"]


def refusal(tables):
    """Return why there is no plan; "" if there is one."""
    try:
        scenario.parse(tables).plan()
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("model", NEEDED)
@pytest.mark.parametrize("values", [(1e29, 1e-99), pytest.param(MORE, marks=pytest.mark.slow)])
def test_no_value_of_a_key_ends_in_a_traceback(model, around, values):
    for section, key in keys(model):
        for value in values:
            tables = {name: dict(table) for name, table in TINY.items() if isinstance(table, dict)}
            tables |= {"channel": {"model": model, **NEEDED[model]}, "policy": {"name": "full", "rounds": 2}}
            for name, changed in AROUND[around].items():
                tables[name] |= changed
            if key == "peak_power_per_symbol" or (model == "path_loss" and around == "thermal" and key != "peak_power"):
                tables["fleet"] |= {"peak_power": None, "peak_power_per_symbol": 1.0}
            for each in ([value], [value] * 6) if key in LISTS else (value,):
                tables[section][key] = each
                given = {name: {k: v for k, v in table.items() if v is not None} for name, table in tables.items()}
                assert re.match(
                    r"‖?[a-z_.]+‖?(\[[0-9, ]+\])?( times [a-z ]+)?( must |=)|Unknown|Set |Is fleet|The path loss|"
                    r"All rounds|Expected|No plan|$",
                    refusal(given),
                ), (section, key, each)


def test_every_channel_model_is_tried():
    assert {*NEEDED, "file"} == MODELS.keys()


@pytest.mark.parametrize("key", ["common_shadowing_db", "shadowing_db"])
def test_shadowing_has_a_range(key):
    loaded = {**TINY, "channel": {"model": "cell", **NEEDED["cell"], key: 1e29}}
    with pytest.raises(scenario.ScenarioError, match=rf"channel\.{key} must be between 0 and 100, got 1e\+29"):
        scenario.parse(loaded)
