"""Power per symbol and per upload, SNR, energy and IQ symbols, against a radio engineer's link budget."""

import json
import math
import tomllib

import numpy as np
import pytest

import airfed
from airfed import scenario
from airfed.cli import main
from airfed.policies import EVERY
from airfed.scenario import ScenarioError, presets
from problems import make

CELL = {
    "name": "cell",
    "fleet": {"num_devices": 3, "peak_power_per_symbol": "23 dBm"},
    "channel": {"model": "path_loss", "path_loss_model": "uma_nlos", "frequency": "3.5 GHz", "radius": 300.0},
    "link": {"bandwidth": "1 MHz", "noise_figure": "5 dB"},
    "budget": {"epsilon": 1e9, "delta": 1e-3, "total_power": 1e9},
    "learning": {
        **{"model": "quadratic", "dimension": 501, "total_steps": 4, "learning_rate": 0.1, "clip_norm": 2.0},
        **{"smoothness": 10.0, "strong_convexity": 1.0, "initial_gap": 9.0},
    },
    "policy": {"name": "full"},
}
SPENDING = ("digital", "secure_aggregation", "fedavg", "dp_fedavg")  # no AirComp


def cell(**changes):
    return scenario.parse(tomllib.loads(scenario.parse(CELL).override(changes).to_toml()))


@pytest.mark.parametrize(("iq", "used"), [(True, 1.0), (False, 0.5)])
def test_the_snr_is_that_of_the_link_budget(iq, used):
    plan = cell(**{"link.iq": iq}).plan()
    assert plan.binding == "peak_power"  # the weakest device sends with all of its 23 dBm
    noise = -173.975 + 60 + 5 + 10 * math.log10(used)  # dBm, in the dimensions that carry data
    received = 23 + 20 * math.log10(plan.problem.fleet.gain.min())
    filled = 10 * math.log10(plan.problem.link.symbols(501) * 2 * used / 501)  # the last symbol is half empty
    assert plan.snr_per_symbol_db == pytest.approx(received - noise + filled, abs=1e-3)
    assert plan.snr_per_upload_db == pytest.approx(plan.snr_per_symbol_db + 10 * math.log10(501))


@pytest.mark.parametrize("iq", [True, False])
def test_energy_is_power_times_time(iq):
    plan = cell(**{"link.iq": iq}).plan()
    seconds = plan.air_time / plan.rounds
    assert seconds == (251 if iq else 501) / 1e6
    assert plan.energy.max() == pytest.approx(10**2.3 * 1e-3 * seconds)
    assert plan.energy_total == pytest.approx(plan.energy.sum() * plan.rounds)


def test_a_list_of_powers_per_symbol():
    listed = cell(**{"fleet.peak_power_per_symbol": ["23 dBm", 0.1, 0.2], "fleet.num_devices": None})
    np.testing.assert_allclose(listed.problem().fleet.peak_power, 251 * np.array([10**-0.7, 0.1, 0.2]))
    assert listed.digest() != cell().digest() == scenario.parse(CELL).digest()


@pytest.mark.parametrize("given", ["23 dBm", 100.0, [1.0, 2.0, 3.0]])
def test_a_power_that_can_be_read_both_ways_is_asked_about(given):
    both = {"fleet.peak_power": given, "fleet.peak_power_per_symbol": None}
    with pytest.raises(ScenarioError, match=r"^Is fleet\.peak_power that of a symbol or of a whole upload\? [^\n]+S·P"):
        cell(**both)
    assert cell(**both, link={"noise_std": 1.0, "bandwidth": 1e6}).fleet.peak_power  # no physics: an upload's
    assert cell(**both, channel={"model": "rayleigh"}).fleet.peak_power


def test_exactly_one_key_sets_the_power():
    with pytest.raises(ScenarioError, match=r"peak_power_per_symbol \(of the radio\); got neither\."):
        cell(**{"fleet.peak_power_per_symbol": None})
    with pytest.raises(ScenarioError, match=r"peak_power_per_symbol \(of the radio\); got both\."):
        cell(**{"fleet.peak_power": 1.0})


@pytest.mark.parametrize("battery", ["2 uJ", [2e-6, 3e-6, "4 uJ"]])
def test_a_battery_in_joules(battery):
    plan = cell(**{"budget.device_energy": battery, "policy.rounds": 4}).plan()
    joules = plan.sequence.device_power(4) / 1e6
    allowed = np.array([2e-6, 3e-6, 4e-6] if isinstance(battery, list) else [2e-6] * 3)
    assert plan.binding == "device_power"
    assert np.max(joules / allowed) == pytest.approx(1.0)


def test_mistakes_with_batteries_are_sentences():
    with pytest.raises(ScenarioError, match=r"budget\.device_energy needs link\.bandwidth"):
        cell(**{"budget.device_energy": 1.0, "link": {"noise_std": 1.0}})
    with pytest.raises(ScenarioError, match=r"budget\.device_power or budget\.device_energy, not both"):
        cell(**{"budget.device_energy": 1.0, "budget.device_power": 1.0})
    with pytest.raises(ScenarioError, match="must have one of the units"):
        cell(**{"budget.device_energy": "1 W"})


@pytest.mark.parametrize("policy", [name for name in EVERY if name not in ("threshold", "clairvoyant")])
def test_iq_halves_the_symbols_and_changes_nothing_else(policy):
    both, one = (airfed.plan(make(dimension=50, iq=iq), policy=policy, rounds=4) for iq in (True, False))
    old, new = one.to_dict(), both.to_dict()
    assert old.pop("channel_uses") == new.pop("channel_uses") * (1 if policy in SPENDING else 2)
    assert new == old
    assert (both.snr_per_symbol_db is None) == (policy in SPENDING)


def test_iq_doubles_the_rounds_that_fit():
    both, one = (make(bandwidth=50.0, air_time=3.5, iq=iq) for iq in (True, False))
    assert (both.most_rounds, one.most_rounds) == (7, 3)
    assert airfed.plan(make(dimension=51), rounds=2).channel_uses == 52  # the last symbol carries one entry
    with pytest.raises(ValueError, match=r"^iq must be True or False, got 'yes'\.$"):
        make(iq="yes")


def test_the_snr_is_that_of_the_median_device_and_round():
    plan = airfed.plan(make(noise=3.0, total_power=1e9), policy="threshold_power", rounds=4)
    row = np.sort(plan.amplitude[0][plan.amplitude[0] > 0])
    assert row[0] < row[-1]
    assert plan.snr_per_upload_db == pytest.approx(20 * math.log10(np.median(row) / 3.0))
    adaptive = airfed.plan(make(scope="total", power=100.0, total_power=1e9), policy="liu_simeone", rounds=3)
    level = sorted(adaptive.amplitude.max(axis=1))
    assert level[0] < level[2]
    assert adaptive.snr_per_upload_db == pytest.approx(20 * math.log10(level[1] / 0.3))


def test_a_plan_prints_snr_and_energy(tmp_path, capsys):
    file = tmp_path / "cell.toml"
    file.write_text(cell().to_toml())
    assert main(["plan", str(file)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert main(["plan", str(file), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    snr = f"{values['snr_per_symbol_db']:.1f} dB per symbol, {values['snr_per_upload_db']:.1f} dB per upload."
    assert f"Received SNR of one device: {snr}" in text
    assert "Energy: at most 5.01e-5 J per device and round" in text
    assert max(values["energy"]) == pytest.approx(5.008e-5, rel=1e-3)
    assert "J" not in str(airfed.plan(make())).split("Power")[1]  # seconds are unknown


def test_presets_with_physics_state_the_power_of_a_symbol():
    physical = [name for name in presets.NAMES if 'model = "path_loss"' in presets.preset(name)]
    assert len(physical) == 3
    assert all(scenario.load(presets.FOLDER / f"{name}.toml").fleet.peak_power is None for name in physical)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"fleet.peak_power_per_symbol": 1e99},
            r"^fleet\.peak_power_per_symbol times the symbols of an upload must be between .*, got 2\.51e\+101\.$",
        ),
        (
            {"fleet.peak_power_per_symbol": [1.0, 1e99, 1.0]},
            r"^fleet\.peak_power_per_symbol\[1\] times the symbols of an upload must be between .*\.$",
        ),
        (
            {"fleet.peak_power_per_symbol": [1.0, 2.0]},
            r"^fleet\.peak_power_per_symbol must have one entry per device, 3; got 2\.$",
        ),
        ({"budget.device_energy": 1e99}, r"^budget\.device_energy times link\.bandwidth must be between .*\.$"),
        ({"budget.device_energy": [1.0]}, r"^budget\.device_energy must have one entry per device, 3; got 1\.$"),
    ],
)
def test_messages_name_the_key_that_the_user_wrote(changes, message):
    with pytest.raises(ScenarioError, match=message):
        cell(**changes).problem()


def test_reasons_name_the_key_that_the_user_wrote():
    battery = cell(**{"budget.device_energy": 1.0, "policy.name": "digital"})
    with pytest.raises(airfed.InfeasibleError, match=r"does not support batteries \(budget\.device_energy\)\.$"):
        battery.plan()
    assert "(budget.device_energy)" in battery.compare(baselines=True)[1]["digital"]
