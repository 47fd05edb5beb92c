"""Runs whose devices have different amplitudes: each is charged, resumed and audited by its own."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from airfed import scenario
from airfed.audit import Subject, audit
from airfed.cli.app import main
from airfed.privacy.ledger import Ledger, LedgerError
from airfed.training import charging
from airfed.training.charging import LedgerRecorder
from airfed.training.execution import execute
from airfed.training.run import Run

TINY = tomllib.loads(Path(__file__).parents[1].joinpath("tiny.toml").read_text(encoding="utf-8"))
CHANNELS = {"constant": {}, "varying": {"channel.coherence_rounds": 1}}
FAST = {"trials": 500, "pairs": 24, "samples": 100_000}

pytestmark = pytest.mark.usefixtures("no_flush")


def make_scenario(**changes):
    unequal = {"policy.name": "threshold_power", "fleet.peak_power": 0.3, "link.noise_std": 0.5}
    budget = {"budget.scope": "total", "budget.epsilon": 40.0, "budget.total_power": 20.0}
    return scenario.parse(TINY).override({"policy.size": None, **unequal, **budget, **changes})


def device_mus(plan, charges):
    """Return √Σμ_ik² of each device over the rounds of charges, from gains and amplitudes alone."""
    problem, square = plan.problem, np.zeros(plan.problem.fleet.num_devices)
    for charge in charges:
        square += np.square(2 * plan.amplitude[charge.round_index] / problem.link.noise_std)
    return np.sqrt(square)


@pytest.mark.parametrize("channel", CHANNELS)
def test_every_device_is_charged_by_its_own_amplitude(tmp_path, channel):
    outcome = execute(make_scenario(**CHANNELS[channel]), tmp_path / "run")
    run = Run.open(tmp_path / "run").checked()
    plan, found = run.plan, run.ledger.device_mus()
    assert not plan.equal_mu
    assert np.unique(found.round(6)).size == 6  # all differ
    expected = device_mus(plan, run.ledger.charges)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.all(found >= expected * (1 - 2e-16))
    np.testing.assert_allclose(found, plan.device_mu, rtol=2e-15)
    assert int(found.argmax()) == plan.most_exposed
    assert run.ledger.mu_total == found.max()
    assert run.ledger.epsilon_total == pytest.approx(outcome.setup.plan.epsilon_total, rel=1e-13)
    np.testing.assert_allclose(run.ledger.device_epsilons(), plan.device_epsilon, rtol=1e-13)


@pytest.mark.parametrize("channel", CHANNELS)
def test_a_run_that_is_killed_after_its_charge_resumes_to_the_same_bits(tmp_path, channel, killed_in, contents):
    built = make_scenario(**{"run.checkpoint_every": 2}, **CHANNELS[channel])
    execute(built, tmp_path / "whole")
    for deadly in range(4):
        out = tmp_path / f"run-{deadly}"
        killed_in(built, out, deadly)
        left = Ledger.load(out / "ledger.jsonl")
        assert left.rounds == deadly + 1  # charged before it is transmitted
        np.testing.assert_allclose(
            left.device_mus(), device_mus(Run.open(tmp_path / "whole").plan, left.charges), rtol=1e-12
        )
        assert execute(built, out, resume=True).status == "finished"
        assert contents(out) == contents(tmp_path / "whole")


def test_a_repeated_transmission_with_other_noise_is_charged_by_amplitude_again(tmp_path, stop_after):
    built = make_scenario(**{"link.noise_source": "secure", "run.checkpoint_every": 6, "budget.epsilon": 90.0})
    execute(built, tmp_path / "run", stop=stop_after(5))
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        checkpoint.unlink()
    assert execute(built, tmp_path / "run", resume=True).status == "finished"
    run = Run.open(tmp_path / "run").checked()
    assert run.ledger.rounds > run.plan.rounds
    np.testing.assert_allclose(run.ledger.device_mus(), device_mus(run.plan, run.ledger.charges), rtol=1e-12)


def test_half_a_line_is_charged_to_all_devices_in_full(tmp_path):
    plan, path = make_scenario(**CHANNELS["varying"]).plan(), tmp_path / "l"
    recorder = LedgerRecorder(path, plan)
    recorder.charge(0)
    recorder.send(0, "")
    path.write_bytes(path.read_bytes() + b'{"kind": "charge"')
    again = LedgerRecorder(path, plan)
    worst = plan.mu_round**2 + device_mus(plan, recorder.ledger.charges) ** 2
    np.testing.assert_allclose(again.ledger.device_mus(), np.sqrt(worst), rtol=1e-12)


def test_an_aligned_and_an_unequal_run_share_a_ledger(tmp_path):
    shared = {"budget.shared_ledger": str(tmp_path / "shared.jsonl"), "budget.epsilon": 60.0}
    aligned = {"policy.name": "full", "fleet.peak_power": 0.02}
    for number, changes in enumerate((aligned, {}, aligned)):
        # the unequal run is limited by its peak power, not by what is left of ε
        assert execute(make_scenario(**shared, **changes), tmp_path / f"{number}").status == "finished"
    runs = [Run.open(tmp_path / f"{number}").checked() for number in range(3)]
    squares = [np.full(6, run.ledger.mu_total**2) for run in runs]
    squares[1] = runs[1].ledger.device_mus() ** 2
    assert np.unique(squares[1]).size == 6
    together = Ledger.load(tmp_path / "shared.jsonl")
    np.testing.assert_allclose(together.device_mus() ** 2, np.sum(squares, axis=0), rtol=1e-12)
    assert runs[2].ledger.header["spent"] == pytest.approx(np.sqrt((squares[0] + squares[1]).max()), rel=1e-12)


@pytest.mark.parametrize("channel", CHANNELS)
def test_a_ledger_with_lowered_shares_is_refused_though_its_chain_holds(tmp_path, channel, monkeypatch):
    real = charging.participation_mask

    def lower(plan, index):
        mask = real(plan, index)
        return charging.ParticipationMask.of(mask.devices, mask.num_devices, mask.share**2)

    monkeypatch.setattr(charging, "participation_mask", lower)
    execute(make_scenario(**CHANNELS[channel]), tmp_path / "run")
    monkeypatch.undo()
    run = Run.open(tmp_path / "run")
    with pytest.raises(LedgerError, match="round 1 is charged to other devices than the plan schedules, or with other"):
        run.checked()
    assert "ledger" in {check.name for check in audit(Subject.of_run(run), **FAST).failures}


def test_charges_of_the_whole_mu_to_every_device_are_read(tmp_path, monkeypatch):
    """Earlier ledgers have no shares of devices."""
    monkeypatch.setattr(charging, "participation_mask", lambda plan, index: None)
    execute(make_scenario(), tmp_path / "run")
    monkeypatch.undo()
    run = Run.open(tmp_path / "run").checked()
    assert run.ledger.mu_total >= run.plan.mu_total
    assert audit(Subject.of_run(run), **FAST).verdict == "pass"


@pytest.mark.parametrize("channel", CHANNELS)
def test_the_audit_stands(tmp_path, channel):
    execute(make_scenario(**CHANNELS[channel]), tmp_path / "run")
    found = audit(Subject.of_run(Run.open(tmp_path / "run")), trials=2000, pairs=120, samples=100_000)
    assert found.verdict == "pass", [check.finding for check in found.failures]


@pytest.mark.parametrize("command", ["plan", "run", "ledger"])
def test_the_range_over_devices_is_printed(tmp_path, capsys, command):
    (tmp_path / "s.toml").write_text(make_scenario().to_toml())
    file, out = str(tmp_path / "s.toml"), str(tmp_path / "run")
    if command == "ledger":
        execute(make_scenario(), tmp_path / "run")
    arguments = {"plan": ["plan", file], "run": ["run", file, "--out", out], "ledger": ["ledger", out]}[command]
    assert main(arguments) == 0
    printed = " ".join(capsys.readouterr().out.split())
    if command == "ledger":
        assert "ε in total 4.417 16.77 23.01 23.01 5" in printed
        assert "most exposed device (5): ε = 23.01 in total" in printed
    else:
        assert "ε in total = 23.01 for the most exposed device, median 16.77 (range 4.417 to 23.01)" in printed


@pytest.mark.parametrize("policy", ["threshold_power", "full"])
def test_json_has_the_range_where_devices_differ(tmp_path, capsys, policy):
    (tmp_path / "s.toml").write_text(make_scenario(**{"policy.name": policy}).to_toml())
    assert main(["plan", str(tmp_path / "s.toml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    if policy == "full":
        assert "epsilon_devices" not in found
        return
    each = np.sort(make_scenario().plan().device_epsilon)
    assert found["epsilon_devices"] == {"minimum": each[0], "median": each[2], "maximum": each[-1]}
    assert found["epsilon_total"] == each[-1]
