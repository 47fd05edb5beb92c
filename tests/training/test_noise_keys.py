"""Noise keys: seeded noise repeats for the same signal only; secure noise is not stored."""

import json
import multiprocessing
import os

import numpy as np
import pytest
from scipy import stats

from airfed import Fleet
from airfed.learning.quadratic import QuadraticEngine, QuadraticTask
from airfed.training import noise, setup
from airfed.training.directory import RunDirectory, RunError
from airfed.training.execution import execute
from airfed.training.noise import SecureNoise, SeededNoise
from airfed.training.setup import QuadraticLearning

TASK = QuadraticTask(dimension=20, num_devices=3, smoothness=2.0, strong_convexity=1.0, seed=0)
QUADRATIC = QuadraticLearning(task=TASK, engine=QuadraticEngine(TASK, learning_rate=0.1))


def source_of(scenario, *, gain=None, changed=()):
    fleet = scenario.problem().fleet if gain is None else Fleet(gain=gain, peak_power=1.0)
    signal = setup.signal_digests(scenario, fleet, QUADRATIC) | dict(changed)
    return setup.noise_source(scenario, signal)


def drawn(scenario, *, round_index=0, **named):
    return source_of(scenario, **named).draw(round_index, 200, 1.0)


def test_a_round_repeats_its_noise_exactly_in_any_order_and_process(make_scenario):
    source = source_of(make_scenario())
    forwards = [source.draw(index, 200, 1.0) for index in range(5)]
    backwards = [drawn(make_scenario(), round_index=index) for index in reversed(range(5))][::-1]
    assert np.array_equal(forwards, backwards)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert np.array_equal(pool.starmap(source.draw, [(index, 200, 1.0) for index in range(5)]), forwards)


CHANGES = [
    {"seed": 4},
    {"link__noise_std": 1.0000000001},
    {"budget__epsilon": 3.0000001},
    {"budget__delta": 1e-6},
    {"budget__adjacency": "add_remove"},
    {"channel__csi_error": 1e-9},
    {"channel__low": 0.30000001},
    {"fleet__peak_power": 1.1},
    {"learning__learning_rate": 0.11},
    {"learning__clip_norm": 0.51},
    {"learning__batch_size": 5},
    {"learning__total_steps": 21},
]


@pytest.mark.parametrize("change", CHANGES, ids=[next(iter(change)) for change in CHANGES])
def test_a_changed_scenario_never_reuses_noise(make_scenario, change):
    same_gain = make_scenario().problem().fleet.gain
    assert not np.any(drawn(make_scenario()) == drawn(make_scenario(**change), gain=same_gain))


def test_changed_data_gains_or_round_never_reuse_noise(make_scenario):
    first = drawn(make_scenario())
    gain = make_scenario().problem().fleet.gain
    assert not np.any(first == drawn(make_scenario(), changed={"data": "other"}))
    assert not np.any(first == drawn(make_scenario(), round_index=1))
    assert not np.any(first == drawn(make_scenario(), gain=np.nextafter(gain, 2)))
    for part in setup.signal_digests(make_scenario(), make_scenario().problem().fleet, QUADRATIC):
        assert not np.any(first == drawn(make_scenario(), changed={part: "other"}))


def test_keys_that_only_affect_the_computation_do_not_change_the_noise(make_scenario):
    assert np.array_equal(drawn(make_scenario()), drawn(make_scenario(run__chunk=1, run__threads=2, name="other")))
    assert np.array_equal(
        drawn(make_scenario()), drawn(make_scenario(policy__name="full"))
    )  # equal plans give equal runs


def test_a_resumed_run_repeats_its_noise(make_scenario, tmp_path):
    asked = iter([False] * 9 + [True] * 10**6)
    stopped = execute(make_scenario(), tmp_path / "run", stop=lambda: next(asked))
    assert stopped.status == "stopped"
    resumed = execute(make_scenario(), tmp_path / "run", resume=True)
    whole = execute(make_scenario(), tmp_path / "whole")
    assert [r["noise_error"] for r in resumed.records] == [r["noise_error"] for r in whole.records]
    for name in ("ledger.jsonl", "metrics.jsonl", "metrics.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    models = [RunDirectory(tmp_path / name).latest().parameters for name in ("run", "whole")]
    assert np.array_equal(*models)


@pytest.mark.parametrize("change", [{"seed": 4}, {"budget__epsilon": 3.1}, {"link__noise_source": "secure"}])
def test_a_changed_scenario_is_not_resumed(make_scenario, tmp_path, change):
    execute(make_scenario(), tmp_path / "run")
    with pytest.raises(RunError, match="changed"):
        execute(make_scenario(**change), tmp_path / "run", resume=True)


def test_changed_data_is_not_resumed(make_scenario, tmp_path, monkeypatch):
    execute(make_scenario(), tmp_path / "run")
    monkeypatch.setattr(QuadraticLearning, "data_digest", property(lambda self: "other data"))
    with pytest.raises(RunError, match="data"):
        execute(make_scenario(), tmp_path / "run", resume=True)


def test_the_record_says_whether_privacy_is_simulated_or_secure(make_scenario, tmp_path):
    for source, word in (("seeded", "simulated"), ("secure", "secure")):
        execute(make_scenario(link__noise_source=source), tmp_path / source)
        manifest = json.loads((tmp_path / source / "run.json").read_text())
        header = json.loads((tmp_path / source / "ledger.jsonl").read_text().splitlines()[0])
        assert manifest["privacy"] == header["privacy"] == word


def test_secure_noise_keeps_nothing_and_never_repeats(make_scenario, tmp_path, monkeypatch):
    source = source_of(make_scenario(link__noise_source="secure"))
    assert isinstance(source, SecureNoise)
    assert vars(source) == {}
    assert not source.repeatable
    assert not np.any(source.draw(0, 1000, 1.0) == source.draw(0, 1000, 1.0))
    asked = []
    real = os.urandom
    monkeypatch.setattr(noise.os, "urandom", lambda size: asked.append(real(size)) or asked[-1])
    execute(make_scenario(link__noise_source="secure"), tmp_path / "run")
    assert len(asked) == 8  # fresh entropy in each round
    kept = b"".join(file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert not any(entropy[:8] in kept for entropy in asked)


def test_forked_workers_do_not_share_secure_noise():
    with multiprocessing.get_context("fork").Pool(4) as pool:
        draws = pool.starmap(SecureNoise().draw, [(0, 500, 1.0)] * 4)
    assert np.unique(draws).size == 2000


@pytest.mark.parametrize("source", [SeededNoise(b"key"), SecureNoise()])
def test_the_distribution_is_normal_and_sigma_is_per_real_dimension(source):
    values = source.draw(0, 400_000, 3.0)
    assert np.std(values) == pytest.approx(3.0, rel=0.005)
    assert stats.kstest(values / 3.0, "norm").pvalue > 1e-6


def test_secure_noise_is_finite_for_the_most_extreme_bits(monkeypatch):
    for byte in (b"\x00", b"\xff"):
        monkeypatch.setattr(noise.os, "urandom", lambda size, byte=byte: byte * size)
        values = SecureNoise().draw(0, 3, 1.0)
        assert np.isfinite(values).all()
        assert np.all(np.abs(values) > 8)


def test_fifty_rounds_of_noise_are_all_distinct_and_uncorrelated():
    source = SeededNoise(b"key")
    rounds = np.stack([source.draw(index, 21840, 1.0) for index in range(50)])
    assert np.unique(rounds).size == rounds.size
    correlation = np.corrcoef(rounds) - np.eye(50)
    assert np.abs(correlation).max() <= 5.5 / np.sqrt(21840)
