"""Runs whose θ differs between rounds: each round is transmitted, charged and recorded with its own values."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from airfed import scenario
from airfed.aircomp import CLIP_MARGIN, AirComp, AirCompRound
from airfed.privacy.ledger import Ledger, LedgerError
from airfed.training.execution import execute
from airfed.training.loop import federated_averaging
from airfed.training.run import Run
from airfed.training.setup import prepare

TINY = tomllib.loads(Path(__file__).parents[1].joinpath("tiny.toml").read_text(encoding="utf-8"))


def make_scenario(**changes):
    policy = {"policy.name": "liu_simeone", "policy.size": None, "policy.rounds": 6}
    total = {"budget.scope": "total", "link.noise_std": 0.2}
    return scenario.parse(TINY).override({"learning.dimension": 60, **policy, **total, **changes})


pytestmark = pytest.mark.usefixtures("no_flush")


def test_each_round_arrives_and_costs_as_its_entry_says(shout, same_noise):
    plan = prepare(make_scenario()).plan
    dimension = plan.problem.learning.dimension
    noise, start = same_noise, np.zeros(dimension, np.float32)
    rounds = list(federated_averaging(plan, AirComp(plan=plan), shout, noise, parameters=start))
    for done, entry in zip(rounds, plan.sequence, strict=True):
        got, size = done.aggregate, entry.scheduled.size
        sent = got.received - noise.draw(done.index, dimension, plan.problem.link.noise_std)
        assert np.linalg.norm(sent) == pytest.approx(size * entry.alignment * (1 - CLIP_MARGIN), rel=1e-9)
        mean = sent / (size * entry.alignment_coefficient)
        assert np.linalg.norm(mean) == pytest.approx(entry.clip_norm * (1 - CLIP_MARGIN), rel=1e-9)
        np.testing.assert_allclose(got.estimate, got.received / (size * entry.alignment_coefficient), rtol=1e-12)
        assert got.power == pytest.approx(entry.power_planned * (1 - CLIP_MARGIN) ** 2, rel=1e-9)
        np.testing.assert_allclose(got.energy, entry.power * (1 - CLIP_MARGIN) ** 2, rtol=1e-9)
        assert got.clipped == size
    ratio = plan.sequence[-1].alignment / plan.sequence[0].alignment
    assert ratio == pytest.approx(0.9 ** (-5 / 4))  # θ_i² ∝ η^(−i/2)


def test_the_air_of_a_constant_plan_is_made_once_and_that_of_others_in_each_round():
    constant = AirComp(plan=prepare(make_scenario(**{"policy.name": "full"})).plan)
    assert constant.at(0) is constant.at(3) is constant.at(-1)
    moving = AirComp(plan=prepare(make_scenario()).plan)
    for index in range(6):
        one, other = moving.at(index), AirCompRound.from_plan(moving.plan, index)
        np.testing.assert_array_equal(one.coefficient, other.coefficient)
        assert np.abs(one.coefficient).max() * one.clip_norm == pytest.approx(moving.plan.sequence[index].alignment)
    with pytest.raises(IndexError):
        moving.at(6)


def test_ledger_metrics_and_devices_follow_the_sequence(tmp_path):
    execute(make_scenario(), tmp_path / "run")
    run = Run.open(tmp_path / "run").checked()
    plan, charges = run.plan, run.ledger.charges
    assert len({entry.mu for entry in plan.sequence}) == 6
    for charge, entry, record in zip(charges, plan.sequence, run.rounds, strict=True):
        assert (charge.mu, charge.alignment) == (entry.mu, entry.alignment)
        assert charge.power_planned == entry.power_planned == record["power_planned"]
        assert charge.epsilon_round == entry.epsilon == record["epsilon_round"]
    assert plan.mu_total <= run.ledger.mu_total <= plan.mu_total * (1 + 1e-15)
    assert plan.epsilon_total <= run.ledger.epsilon_total <= plan.problem.budget.epsilon
    assert run.ledger.power_planned == pytest.approx(plan.power_total, rel=1e-14)
    assert run.rounds[-1]["power_planned_total"] == plan.power_total
    planned = [row["power_planned"] for row in run.devices]
    np.testing.assert_allclose(planned, plan.sequence.device_power(6), rtol=1e-12)
    clipped = [record["clipped_share"] for record in run.rounds]
    assert max(clipped) > 0


@pytest.mark.parametrize("every", [1, 4])
def test_a_run_that_is_stopped_in_any_round_resumes_to_the_same_bits(tmp_path, every, stop_after, contents):
    built = make_scenario(**{"run.checkpoint_every": every})
    execute(built, tmp_path / "whole")
    for questions in range(0, 11):
        out = tmp_path / f"run-{questions}"
        assert execute(built, out, stop=stop_after(questions)).status == "stopped"
        assert execute(built, out, resume=True).status == "finished"
        assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("every", [1, 4])
def test_a_run_that_is_killed_in_any_round_resumes_to_the_same_bits(tmp_path, killed_in, every, contents):
    built = make_scenario(**{"run.checkpoint_every": every})
    execute(built, tmp_path / "whole")
    for deadly in range(6):
        out = tmp_path / f"run-{deadly}"
        killed_in(built, out, deadly)
        ledger = Ledger.load(out / "ledger.jsonl")
        assert ledger.rounds == deadly + 1  # charged before it is transmitted
        assert execute(built, out, resume=True).status == "finished"
        assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("cut", [2, 40])
def test_half_a_line_is_charged_at_least_as_much_as_the_round_that_it_may_be_about(tmp_path, every, cut, stop_after):
    secure = {"link.noise_source": "secure", "run.checkpoint_every": every, "budget.scope": "round"}
    weak = {"policy.name": "full", "channel.coherence_rounds": 1, "channel.minimum": 0.01, "fleet.peak_power": 1e-3}
    built = make_scenario(**secure, **weak)
    plan = prepare(built).plan
    assert len({entry.mu for entry in plan.sequence}) > 3
    for questions in (1, 3, 5, 7, 9):
        out = tmp_path / f"run-{questions}"
        execute(built, out, stop=stop_after(questions))
        file = out / "ledger.jsonl"
        ledger = Ledger.load(file)
        index = ledger.rounds  # the next one is charged, and the process killed within the line
        entry = plan.sequence[index]
        ledger.charge(index, devices=6, alignment=entry.alignment, mu=entry.mu, power=entry.power_planned)
        file.write_bytes(file.read_bytes()[:-cut])
        for checkpoint in (out / "checkpoints").iterdir():
            checkpoint.unlink()  # the run goes on from far before it
        assert execute(built, out, resume=True).status == "finished"
        charged = [charge.mu for charge in Run.open(out).checked().ledger.charges]
        assert sum(mu >= entry.mu for mu in charged) >= 6 - index + 1


def test_charging_every_round_as_the_first_is_detected(tmp_path, monkeypatch):
    real, first = Ledger.charge, make_scenario().plan().sequence[0].mu
    monkeypatch.setattr(Ledger, "charge", lambda self, index, **rest: real(self, index, **rest | {"mu": first}))
    execute(make_scenario(), tmp_path / "run")
    run = Run.open(tmp_path / "run")
    with pytest.raises(LedgerError, match="another μ"):
        run.checked()


def test_a_charge_of_a_round_that_no_plan_has_is_noticed(tmp_path):
    execute(make_scenario(**{"budget.scope": "round"}), tmp_path / "run")
    ledger, last = Ledger.load(tmp_path / "run/ledger.jsonl"), Run.open(tmp_path / "run").plan.sequence[-1]
    ledger.charge(6, devices=6, alignment=last.alignment, mu=last.mu, power=last.power_planned)
    with pytest.raises(LedgerError, match="another μ"):
        Run.open(tmp_path / "run").checked()
