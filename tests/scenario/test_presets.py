"""Presets: each parses, has a plan, names its source and agrees with its paper."""

import math
import tomllib

import numpy as np
import pytest

from airfed import scenario
from airfed.channel import path_loss
from airfed.scenario import ScenarioError, presets

EXPECTED = {"yan", "liu-simeone", "liu-lmc", "ris-fl", "pomfl", "ncairfl"}


def load_preset(name):
    return scenario.parse(tomllib.loads(presets.preset(name)))


def test_the_page_lists_all_presets(repository):
    assert set(presets.NAMES) == EXPECTED
    page = (repository / "docs" / "presets.md").read_text(encoding="utf-8")
    for name in presets.NAMES:
        assert f"\n| `{name}` |" in page


@pytest.mark.parametrize("name", presets.NAMES)
def test_a_preset_names_its_paper_and_has_a_plan(name):
    text = presets.preset(name)
    head = text[: text.index("\nname = ")]
    assert head.startswith("# Scenario of ")
    for words in ("# SNR: ", "Used instead: ", "urs"):  # "Ours: ", "ε and δ are ours"
        assert words in head
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120
    assert all("# " in line[2:] for line in lines if " = " in line and line[0] not in " #")
    known = load_preset(name)
    assert known.name == name
    short = {"liu-lmc": {"policy.rounds": 20}, "pomfl": {"policy.rounds": 5}}.get(name, {})  # hundreds take seconds
    plan = known.override(short).plan()
    assert plan.num_scheduled > 0
    assert plan.binding != "total_power" or name == "yan"
    if name != "yan":  # no other paper has a total
        most = known.num_devices * plan.problem.fleet.peak_power[0] * known.learning.total_steps
        assert known.budget.total_power == pytest.approx(most, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "devices", "decibels"),
    [
        ("liu-simeone", 10, 30.0),
        ("liu-lmc", 30, 20.0),
        ("ris-fl", 40, 90.0),
        ("pomfl", 10, None),
        ("ncairfl", 20, None),
    ],
)
def test_power_of_an_entry_over_noise_is_that_of_the_paper(name, devices, decibels):
    known = load_preset(name)
    problem = known.problem()
    assert problem.fleet.num_devices == devices
    entry = problem.fleet.peak_power[0] / problem.learning.dimension
    noise = problem.link.noise_std**2
    if name in ("liu-simeone", "liu-lmc"):  # noise of a real entry
        assert 10 * math.log10(entry / noise) == pytest.approx(decibels)
    elif name == "ris-fl":  # of a complex one
        assert 10 * math.log10(entry / (2 * noise)) == pytest.approx(decibels, abs=1e-5)
        assert entry == pytest.approx(0.1)
    else:
        power, density = {"pomfl": (15, -174 + 10 + 40 + 50), "ncairfl": (3, -173 + 10 * math.log10(20e6))}[name]
        assert 10 * math.log10(entry / 1e-3) == pytest.approx(power, abs=1e-3)
        assert 10 * math.log10(2 * noise / 1e-3) == pytest.approx(density, abs=1e-3)


def test_the_path_loss_of_ris_fl_is_a_power_of_the_wavelength():
    channel = load_preset("ris-fl").channel
    distance = np.array([31.6, 40.0, 52.0])
    gain = 10**0.5 * (path_loss.LIGHT / 915e6 / 4 / np.pi / distance) ** 3.76
    np.testing.assert_allclose(channel.decibels(distance), -10 * np.log10(gain), atol=1e-4)


def test_the_path_loss_of_pomfl_is_that_of_its_code_but_for_a_tenth_of_a_decibel():
    distance = np.array([10.0, 50.0, 100.0])
    device = 3.2 * np.log10(11.75) ** 2 - 4.97  # its correction for devices at 1 m is that of a large city
    base = np.log10(30.0)
    code = 46.3 + 33.9 * np.log10(2000) - 13.82 * base - device + (44.9 - 6.55 * base) * np.log10(distance / 1e3)
    np.testing.assert_allclose(load_preset("pomfl").channel.decibels(distance) - code, 0.11, atol=0.005)


def test_an_unknown_scenario_is_one_sentence():
    with pytest.raises(ScenarioError, match=r"^The preset must be one of liu-lmc, .*, yan; got 'yin'\.$"):
        presets.preset("yin")
    with pytest.raises(ScenarioError, match=r"got '\.\./surrogates"):
        presets.preset("../surrogates/x")
