"""[link] by physics: σ from bandwidth, noise figure and temperature or density."""

import math
import tomllib

import numpy as np
import pytest

from airfed import scenario
from airfed.channel.path_loss import BOLTZMANN, NOISE_TEMPERATURE, thermal_std
from airfed.explorer.design import from_scenario
from airfed.scenario import ScenarioError, template


def scenario_of(**link):
    return scenario.parse(tomllib.loads(template.SCENARIO) | {"link": link})


def power_dbm(**link):
    """Power of the complex noise: two real dimensions of σ²."""
    return 10 * math.log10(2 * scenario_of(**link).problem().link.noise_std ** 2 / 1e-3)


@pytest.mark.parametrize(
    ("link", "dbm"),
    [
        ({"bandwidth": 1.0}, -173.975),  # kT₀ = 4.00388e-21 W/Hz
        ({"bandwidth": "20 MHz", "noise_figure": "9 dB"}, -173.975 + 73.010 + 9),
        ({"bandwidth": 20e6, "noise_figure": 9}, -173.975 + 73.010 + 9),
        ({"bandwidth": "1 MHz", "temperature": "29 K"}, -173.975 + 60 - 10),
        ({"bandwidth": "20 MHz", "noise_density": "-173 dBm/Hz"}, -173 + 73.010),
        ({"bandwidth": "100 kHz", "noise_density": "-134 dBm/Hz", "noise_figure": 10.0}, -134 + 50 + 10),
        ({"bandwidth": "1 GHz", "noise_density": 1e-20}, -170 + 90),
    ],
)
def test_the_power_of_thermal_noise(link, dbm):
    assert power_dbm(**link) == pytest.approx(dbm, abs=1e-3)


def test_a_density_is_a_temperature():
    by_temperature = scenario_of(bandwidth="1 MHz", temperature=400.0).link.received_std
    assert by_temperature == pytest.approx(
        scenario_of(bandwidth=1e6, noise_density=BOLTZMANN * 400.0).link.received_std
    )
    assert thermal_std(bandwidth=4e6, density=1.0) == pytest.approx(2 * thermal_std(bandwidth=1e6, density=1.0))
    assert scenario_of(bandwidth=1e6, temperature=NOISE_TEMPERATURE).link.received_std == pytest.approx(
        scenario_of(bandwidth=1e6).link.received_std
    )


def test_a_plan_by_physics_is_that_of_its_noise():
    by_physics = scenario_of(bandwidth="1 MHz", noise_figure="5 dB")
    by_hand = scenario_of(noise_std=by_physics.link.received_std)
    first, second = by_physics.plan(), by_hand.plan()
    assert first.alignment == second.alignment
    np.testing.assert_array_equal(first.scheduled, second.scheduled)
    again = scenario.parse(tomllib.loads(by_physics.to_toml()))
    assert again.link == by_physics.link
    assert again.digest() == by_physics.digest()
    assert scenario_of(bandwidth=1e6, noise_figure=5.0).digest() == by_physics.digest()


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ({}, "Set link.noise_std, a number > 0, or link.bandwidth, from which it follows; got neither."),
        ({"noise_figure": 5.0}, "from which it follows; got only link.noise_figure."),
        ({"noise_std": 1.0, "temperature": 290.0}, "Set link.noise_std or link.temperature, not both"),
        (
            {"bandwidth": 1e6, "temperature": 290.0, "noise_density": 1e-20},
            "Set link.temperature or link.noise_density, not both: the noise density is kT.",
        ),
        ({"bandwidth": "20 Mhz"}, "must have one of the units Hz, kHz, MHz, GHz, got '20 Mhz'"),
        ({"bandwidth": "20"}, "must be a bare number for Hz or have one of the units"),
        ({"bandwidth": 0.0}, "link.bandwidth must be positive, got 0.0"),
        ({"bandwidth": 1e6, "noise_density": -174}, 'must be a number > 0 in W/Hz or a text such as "-174 dBm/Hz"'),
        ({"bandwidth": 1e6, "noise_density": "-174 dBm"}, "must have one of the units W/Hz"),
        ({"bandwidth": 1e6, "noise_figure": -1.0}, "link.noise_figure must be between 0 and 300, got -1.0."),
        ({"bandwidth": 1e6, "noise_figure": "9 W"}, "must have one of the units dB"),
        ({"bandwidth": 1e6, "temperature": "17 C"}, "must have one of the units K"),
        ({"bandwidth": 1e-300}, "noise_std must be between 1e-100 and 1e+100, got "),
    ],
)
def test_mistakes_are_one_sentence(link, words):
    with pytest.raises(ScenarioError) as caught:
        scenario_of(**link)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bare_noise_keeps_its_digest():
    assert "bandwidth" not in str(scenario_of(noise_std=1.0).content())


def test_changing_the_noise_on_the_page_drops_the_thermal_noise():
    design = from_scenario(scenario_of(bandwidth="1 MHz", noise_figure=3.0))
    assert design.scenario().link.bandwidth == 1e6
    assert design.change("link.noise_std", 0.5).scenario().link.received_std == 0.5
