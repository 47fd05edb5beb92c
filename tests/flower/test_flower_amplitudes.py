"""Devices of different amplitudes in Flower: each transmits with its own power and is charged its own μ."""

import numpy as np
import pytest

from airfed.flower import OverTheAirFedAvg, strategy
from airfed.privacy.ledger import Ledger
from airfed.scenario import load


@pytest.fixture(params=["threshold_power", "weighted"])
def scenario(scenario_file, request):
    return load(scenario_file).override({"policy.name": request.param, "policy.size": None})


def test_it_trains_as_airfed_run_does_and_charges_each_device_by_its_amplitude(
    setup, own_training, start, own_app, make_grid, tmp_path
):
    trained = start(make_grid(own_app, range(5)), tmp_path / "ledger.jsonl")
    np.testing.assert_allclose(trained, own_training(), rtol=1e-5, atol=1e-6)
    plan, ledger = setup.plan, Ledger.load(tmp_path / "ledger.jsonl")
    assert not plan.equal_mu
    expected = 2 * plan.amplitude[0] / plan.problem.link.noise_std * np.sqrt(plan.rounds)
    np.testing.assert_allclose(ledger.device_mus(), expected, rtol=1e-12)
    np.testing.assert_allclose(ledger.device_mus(), plan.device_mu, rtol=2e-15)


def test_the_summary_says_how_devices_differ(setup, tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(strategy._LOG, "info", lambda text, *values: lines.append(text % values))
    OverTheAirFedAvg(setup.plan, tmp_path / "ledger.jsonl", aircomp=setup.aircomp, noise=setup.noise).summary()
    assert "for the most exposed device, median" in lines[-1]
