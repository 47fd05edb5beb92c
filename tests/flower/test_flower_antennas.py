"""Several antennas in Flower: a device gets only its own amplitude and phase."""

import math

import numpy as np
import pytest

from airfed import antennas
from airfed.flower import messages
from airfed.flower.messages import RoundConfig
from airfed.privacy.ledger import Ledger
from airfed.scenario import load


@pytest.fixture(params=[{}, {"channel.coherence_rounds": 1}], ids=["static", "changing"])
def scenario(scenario_file, request):
    channel = {"channel": {"model": "rayleigh"}, "fleet.num_devices": 5, "link.antennas": 3}
    policy = {"policy.name": "full", "policy.size": None, "link.beamforming": "dominant_eigenvector"}
    return load(scenario_file).override({**channel, **policy, **request.param})


def test_it_trains_as_airfed_run_does(setup, own_training, start, own_app, make_grid, tmp_path, caplog):
    trained = start(make_grid(own_app, range(5)), tmp_path / "ledger.jsonl")
    np.testing.assert_allclose(trained, own_training(), rtol=1e-5, atol=1e-6)
    ledger = Ledger.load(tmp_path / "ledger.jsonl")
    assert (ledger.header["antennas"], ledger.header["adversary"]) == (3, "all_antennas")
    assert [charge.mu for charge in ledger.charges] == [decided.mu for decided in setup.plan.sequence]


def test_a_device_gets_only_its_own_amplitude_and_phase(setup, start, own_app, make_grid, tmp_path):
    grid = make_grid(own_app, range(5))
    start(grid, tmp_path / "ledger.jsonl")
    _, *rounds = [batch for batch in grid.sent if batch]
    own = {"round-index", "local-steps", "learning-rate", "clip-norm", "amplitude", "phase"}
    fleet = setup.plan.problem.fleet
    for index, batch in enumerate(rounds):
        assert all(set(message.content.config_records[messages.RECORD]) == own for message in batch)
        received = sorted((config.phase, config.amplitude) for config in map(RoundConfig.of, batch))
        channel = fleet.channel_in(index, setup.plan.sequence[index].scheduled)
        arrived = antennas.effective(channel, fleet.beamformer_in(index))
        needed = setup.plan.sequence[index].alignment / np.abs(arrived)
        np.testing.assert_allclose(received, sorted(zip(-np.angle(arrived), needed, strict=True)), rtol=1e-12)


@pytest.mark.parametrize("phase", [4.0, math.nan, "0.5", True, 10**40])
def test_a_phase_that_is_none_is_refused(phase):
    with pytest.raises(ValueError, match="phase"):
        RoundConfig(round_index=0, local_steps=1, learning_rate=0.1, clip_norm=1.0, amplitude=1.0, phase=phase)
