"""Runs with time-varying gains: each round is transmitted by, charged to and metered for its own devices."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from airfed import scenario
from airfed.aircomp import CLIP_MARGIN, AirCompRound
from airfed.audit import Subject, audit
from airfed.privacy.ledger import Ledger
from airfed.training import charging
from airfed.training.execution import execute
from airfed.training.loop import federated_averaging
from airfed.training.run import Run
from airfed.training.setup import prepare

TINY = tomllib.loads(Path(__file__).parents[1].joinpath("tiny.toml").read_text(encoding="utf-8"))
SCENARIOS = {
    "rayleigh": {},
    "correlated": {"channel.correlation": 0.9},
    "shadowed": {"channel.common_shadowing_db": 8.0, "channel.shadowing_coherence_rounds": 2},
    "total": {"budget.scope": "total"},
    "batteries": {"budget.device_power": 0.4},
    "imperfect_csi": {"channel.csi_error": 0.01},
}


def make_scenario(**changes):
    policy = {"policy.name": "optimal", "policy.size": None, "policy.rounds": 6}
    fading = {"channel.coherence_rounds": 1, "channel.minimum": 0.05, "link.noise_std": 1.0, "budget.total_power": 6.0}
    return scenario.parse(TINY).override(
        {"learning.dimension": 60, "fleet.num_devices": 8, **policy, **fading, **changes}
    )


pytestmark = pytest.mark.usefixtures("no_flush")


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "imperfect_csi"])
def test_each_round_arrives_and_costs_as_its_entry_says(name, shout, same_noise):
    setup = prepare(make_scenario(**SCENARIOS[name]))
    plan, noise = setup.plan, same_noise
    assert len({entry.scheduled.tobytes() for entry in plan.sequence}) > 1  # rounds differ
    start = np.zeros(60, np.float32)
    rounds = list(federated_averaging(plan, setup.aircomp, shout, noise, parameters=start))
    for done, entry in zip(rounds, plan.sequence, strict=True):
        got, size = done.aggregate, entry.scheduled.size
        sent = got.received - noise.draw(done.index, 60, plan.problem.link.noise_std)
        assert np.linalg.norm(sent) == pytest.approx(size * entry.alignment * (1 - CLIP_MARGIN), rel=1e-9)
        assert got.power == pytest.approx(entry.power_planned * (1 - CLIP_MARGIN) ** 2, rel=1e-9)
        np.testing.assert_allclose(got.energy, entry.power * (1 - CLIP_MARGIN) ** 2, rtol=1e-9)
        assert got.missing.size == 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_ledger_metrics_and_devices_follow_the_sequence(tmp_path, name):
    execute(make_scenario(**SCENARIOS[name]), tmp_path / "run")
    run = Run.open(tmp_path / "run").checked()
    plan, ledger = run.plan, run.ledger
    for charge, entry, record in zip(ledger.charges, plan.sequence, run.rounds, strict=True):
        assert (charge.mu, charge.alignment, charge.devices) == (entry.mu, entry.alignment, entry.scheduled.size)
        assert np.array_equal(charge.mask.devices, entry.scheduled)
        assert charge.power_planned == entry.power_planned == record["power_planned"]
        assert record["missing"] == 0
    exposures = np.zeros(8)
    exposures[plan.scheduled] = plan.sequence.exposures()
    np.testing.assert_allclose(ledger.device_mus(), np.sqrt(exposures), rtol=1e-12)
    assert int(np.argmax(ledger.device_mus())) == plan.most_exposed
    assert ledger.mu_total == pytest.approx(plan.mu_total, rel=1e-14)
    assert run.rounds[-1]["epsilon_total"] == ledger.epsilon_total
    np.testing.assert_allclose([row["power_planned"] for row in run.devices], plan.sequence.device_power(6), rtol=1e-12)
    assert [row["device"] for row in run.devices] == plan.scheduled.tolist()
    sent = sum(row["power_transmitted"] for row in run.devices)
    assert sent == pytest.approx(run.rounds[-1]["power_transmitted_total"], rel=1e-6)
    if plan.problem.budget.device_power is not None:
        assert all(row["power_planned"] <= 0.4 for row in run.devices)


@pytest.mark.parametrize(("name", "every"), [("correlated", 1), ("correlated", 4), ("batteries", 4)])
def test_a_run_that_is_stopped_in_any_round_resumes_to_the_same_bits(tmp_path, every, name, stop_after, contents):
    built = make_scenario(**{"run.checkpoint_every": every}, **SCENARIOS[name])
    execute(built, tmp_path / "whole")
    for questions in range(1, 11, 3):
        out = tmp_path / f"run-{questions}"
        assert execute(built, out, stop=stop_after(questions)).status == "stopped"
        assert execute(built, out, resume=True).status == "finished"
        assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("every", [1, 4])
def test_a_run_that_is_killed_in_any_round_resumes_to_the_same_bits(tmp_path, killed_in, every, contents):
    built = make_scenario(**{"run.checkpoint_every": every, "budget.scope": "total"})
    execute(built, tmp_path / "whole")
    for deadly in range(6):
        out = tmp_path / f"run-{deadly}"
        killed_in(built, out, deadly)
        assert Ledger.load(out / "ledger.jsonl").rounds == deadly + 1  # charged before it is transmitted
        assert execute(built, out, resume=True).status == "finished"
        assert contents(out) == contents(tmp_path / "whole")


def test_a_transmission_that_is_repeated_with_other_noise_is_charged_to_its_devices_again(tmp_path, stop_after):
    built = make_scenario(**{"link.noise_source": "secure", "run.checkpoint_every": 6})
    execute(built, tmp_path / "run", stop=stop_after(5))
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        checkpoint.unlink()
    before = Ledger.load(tmp_path / "run" / "ledger.jsonl")
    assert execute(built, tmp_path / "run", resume=True).status in ("finished", "exhausted")
    after = Run.open(tmp_path / "run").checked().ledger
    assert any(charge.attempt for charge in after.charges)
    assert np.all(after.device_mus() >= before.device_mus())
    plan, counts = Run.open(tmp_path / "run").plan, np.zeros(8)
    for charge in after.charges:
        counts[plan.sequence[charge.round_index].scheduled] += charge.mu**2
    np.testing.assert_allclose(after.device_mus(), np.sqrt(counts), rtol=1e-12)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_audit_stands(name):
    found = audit(Subject.of(make_scenario(**SCENARIOS[name])), trials=2000, pairs=120, samples=100_000)
    assert found.verdict == "pass", [check.finding for check in found.failures]


def test_a_stale_gain_is_noticed(monkeypatch):
    """Devices invert the channel of the round before: some arrive stronger than θ."""
    real = AirCompRound.from_plan.__func__

    def stale(cls, plan, index=-1, **options):
        fresh = real(cls, plan, index, **options)
        if not index:
            return fresh
        scheduled = fresh.scheduled
        ratio = plan.problem.fleet.gain_in(index)[scheduled] / plan.problem.fleet.gain_in(index - 1)[scheduled]
        return replace(fresh, coefficient=fresh.coefficient * ratio, arrival=fresh.arrival * ratio[:, None])

    monkeypatch.setattr(AirCompRound, "from_plan", classmethod(stale))
    found = audit(Subject.of(make_scenario()), trials=2000, pairs=120, samples=100_000)
    assert {"sensitivity", "contribution"} <= {check.name for check in found.failures}


def test_a_charge_of_other_devices_is_noticed(tmp_path, monkeypatch):
    real = charging.participation_mask

    def mask(plan, index):
        devices = real(plan, index).devices
        inactive = np.setdiff1d(np.arange(8), devices)
        if inactive.size:
            devices = np.sort(np.append(devices[1:], inactive[0]))
        return charging.ParticipationMask.of(devices, 8)

    monkeypatch.setattr(charging, "participation_mask", mask)
    execute(make_scenario(), tmp_path / "run")
    monkeypatch.undo()
    run = Run.open(tmp_path / "run")
    assert any("other devices" in str(error) for error in run.errors)
    found = audit(Subject.of_run(run), trials=500, pairs=24, samples=100_000)
    assert "ledger" in {check.name for check in found.failures}


@pytest.fixture
def overspent(monkeypatch):
    """Have policies plan as if there were no batteries."""
    real = scenario.Scenario.plan

    def plan(self, problem=None):
        problem = self.problem() if problem is None else problem
        without = replace(problem, budget=replace(problem.budget, device_power=None))
        return replace(real(self, without), problem=problem)

    monkeypatch.setattr(scenario.Scenario, "plan", plan)


def test_an_overspent_battery_is_noticed(overspent):
    subject = Subject.of(make_scenario(**SCENARIOS["batteries"]))
    assert "device_power" in subject.plan.violations
    found = audit(subject, trials=500, pairs=24, samples=100_000)
    assert "accounting" in {check.name for check in found.failures}


def test_a_run_does_not_begin_a_round_that_a_battery_does_not_last_for(tmp_path, overspent):
    outcome = execute(make_scenario(**SCENARIOS["batteries"]), tmp_path / "run")
    assert outcome.status == "exhausted"
    assert "battery of device" in outcome.message
