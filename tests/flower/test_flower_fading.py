"""Rounds that differ in Flower: every round contacts its own devices, each with its own power."""

import numpy as np
import pytest

from airfed.flower import messages
from airfed.privacy.ledger import Ledger
from airfed.scenario import load

OPTIMAL = {"policy.name": "optimal", "policy.size": None, "budget.total_power": 1.0, "link.noise_std": 0.5}
BATTERIES = {**OPTIMAL, "budget.scope": "total", "budget.device_power": 0.3, "channel.correlation": 0.9}
FADING = {"channel": {"model": "rayleigh", "coherence_rounds": 1}, "fleet.num_devices": 5}
CHANGES = {
    "uniform": {**FADING, "policy.name": "uniform"},
    "optimal": {**FADING, **OPTIMAL},
    "batteries": {**FADING, **BATTERIES},
    "static": {"policy.name": "liu_simeone", "policy.size": None, "budget.scope": "total", "budget.epsilon": 1.0},
}


@pytest.fixture(params=CHANGES.values(), ids=CHANGES)
def scenario(scenario_file, request):
    return load(scenario_file).override(request.param)


def test_it_trains_as_airfed_run_does(setup, own_training, start, own_app, make_grid, tmp_path):
    trained = start(make_grid(own_app, range(5)), tmp_path / "ledger.jsonl")
    np.testing.assert_allclose(trained, own_training(), rtol=1e-5, atol=1e-6)
    ledger = Ledger.load(tmp_path / "ledger.jsonl")
    assert [charge.mu for charge in ledger.charges] == [planned.mu for planned in setup.plan.sequence]
    assert [c.mask.devices.tolist() for c in ledger.charges] == [d.scheduled.tolist() for d in setup.plan.sequence]
    assert ledger.mu_total == pytest.approx(setup.plan.mu_total, rel=1e-12)
    if not setup.plan.problem.time_varying:
        assert setup.plan.mu_total <= ledger.mu_total <= setup.plan.mu_total * (1 + 1e-15)
        assert len({charge.mu for charge in ledger.charges}) == setup.plan.rounds


def test_every_round_config_is_that_of_its_round(setup, start, own_app, make_grid, tmp_path):
    grid = make_grid(own_app, range(5))
    start(grid, tmp_path / "ledger.jsonl")
    _, *rounds = [batch for batch in grid.sent if batch]
    for batch, planned in zip(rounds, setup.plan.sequence, strict=True):
        configs = [messages.RoundConfig.of(message) for message in batch]
        assert {config.clip_norm for config in configs} == {planned.clip_norm}
        np.testing.assert_allclose(
            sorted(config.amplitude**2 for config in configs), np.sort(planned.power), rtol=1e-12
        )
    assert len({(*planned.scheduled.tolist(), planned.alignment) for planned in setup.plan.sequence}) > 1
