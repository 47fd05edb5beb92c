"""Training with baselines: aggregated, metered, recorded, resumed and audited."""

import itertools
import json
import math

import numpy as np
import pytest

import airfed
from airfed.aircomp import AirComp
from airfed.audit.audit import audit
from airfed.audit.subject import Subject
from airfed.experiments import benchmark as benchmark
from airfed.planning.method import NOT_PRIVATE_MU
from airfed.policies import BASELINES
from airfed.scenario import load
from airfed.training.directory import RunError
from airfed.training.execution import execute
from airfed.training.run import Run

pytestmark = pytest.mark.usefixtures("no_flush")
PRIVATE = [name for name in BASELINES if name not in ("fedavg", "cotaf")]
FILES = ("model.safetensors", "metrics.jsonl", "ledger.jsonl", "plan.json", "devices.csv")


@pytest.fixture
def tiny(repository):
    def make(policy, **changes):
        scenario = load(repository / "tests" / "tiny.toml").vary({"policy.name": policy})
        scale = {"budget.scope": "total", "link.noise_std": 0.5, "budget.total_power": 20.0}
        return scenario.override({**scale, **changes})

    return make


@pytest.fixture
def updates(tiny):
    """Return the plan of a method, the signals of its devices in the first round, and the received aggregate."""

    def make(policy, noise=None, **changes):
        plan = tiny(policy, **changes).plan()
        rows = np.random.default_rng(1).normal(size=(6, 50)) * np.array([1, 3, 10, 30, 100, 300])[:, None]
        superposition = AirComp(plan=plan).open_round(50, 0)
        for device in (3, 1, 0, 5, 4, 2):
            superposition.add(np.array([device]), rows[[device]])
        return plan, rows, superposition.receive(np.zeros(50) if noise is None else noise)

    return make


@pytest.mark.parametrize("channel", ["stays", "changes"])
@pytest.mark.parametrize("policy", BASELINES)
def test_runs_are_recorded_resumed_to_the_bit_and_within_their_plan(policy, channel, tiny, tmp_path):
    scenario = tiny(policy, **({"channel.coherence_rounds": 1} if channel == "changes" else {}))
    whole = execute(scenario, tmp_path / "whole")
    assert whole.status == "finished"
    for stopped in range(8):  # once after each chunk
        asked = itertools.count()
        execute(scenario, tmp_path / "parts", resume=stopped > 0, stop=lambda: next(asked) > 2)  # noqa: B023
    execute(scenario, tmp_path / "parts", resume=True)
    for name in FILES:
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    run = Run.open(tmp_path / "whole")
    assert not run.errors
    assert run.plan.method == scenario.plan(run.plan.problem).method
    assert run.ledger.power_metered <= run.ledger.power_planned * (1 + 1e-12)
    assert run.ledger.power_planned <= 20.0 * (1 + 1e-12)
    for charge in run.ledger.charges:
        assert charge.mu == run.plan.sequence[charge.round_index].mu
    if policy in PRIVATE:
        assert run.ledger.epsilon_total <= 4.0 * (1 + 1e-12)
    else:
        assert run.ledger.mu_total >= NOT_PRIVATE_MU
        assert run.ledger.header["private"] is False
    assert "airfed" in str(run) or run.plan.policy == policy


def test_fedavg_is_the_mean_of_unclipped_updates(updates):
    plan, rows, aggregate = updates("fedavg", noise=np.random.default_rng(0).normal(size=50))
    exact = updates("fedavg")[2]
    np.testing.assert_allclose(exact.estimate, rows.mean(axis=0), rtol=1e-9, atol=1e-9)
    assert np.linalg.norm(rows, axis=1).max() > 10 * plan.clip_norm
    assert aggregate.power == 0.0
    assert plan.sequence[0].signal.noise_std * plan.clip_norm / plan.alignment < 1e-6


def test_precoding_scales_by_the_largest_update(updates):
    noise = np.random.default_rng(0).normal(size=50)
    plan, rows, aggregate = updates("cotaf", noise=noise)
    norms = np.linalg.norm(rows, axis=1)
    sent = plan.alignment / norms.max() * rows  # after the channel
    arrived = sent.sum(axis=0) + noise
    np.testing.assert_allclose(aggregate.estimate, arrived * norms.max() / (6 * plan.alignment), rtol=1e-9)
    gain = plan.problem.fleet.gain
    power = np.square(np.linalg.norm(sent / gain[:, None], axis=1))
    np.testing.assert_allclose(aggregate.energy, power, rtol=1e-6)
    assert aggregate.power == pytest.approx(power.sum(), rel=1e-6)
    assert np.all(power <= plan.power * (1 + 1e-9))


def test_weak_devices_arrive_weaker_and_the_mean_is_weighted(updates):
    plan, rows, aggregate = updates("threshold_power", **{"budget.epsilon": 1e5, "link.noise_std": 0.05})
    level = plan.sequence[0].amplitude
    assert np.ptp(level) > 0.1
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    clipped = rows * np.minimum(1, plan.clip_norm / norms)
    weighted = (level[:, None] * clipped).sum(axis=0) / level.sum()
    np.testing.assert_allclose(aggregate.estimate, weighted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("policy", ["dp_fedavg", "digital", "secure_aggregation"])
def test_digital_uploads_pass_no_channel(policy, updates):
    plan, rows, aggregate = updates(policy)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    clipped = rows * np.minimum(1, plan.clip_norm / norms)
    np.testing.assert_allclose(aggregate.estimate, clipped.mean(axis=0), rtol=1e-5, atol=1e-6)
    assert aggregate.power == pytest.approx(plan.power.sum(), rel=1e-9)
    assert (aggregate.power > 0) == (policy != "dp_fedavg")


@pytest.mark.parametrize("channel", ["stays", "changes"])
@pytest.mark.parametrize("policy", PRIVATE)
def test_the_audit_attacks_the_signals_of_a_method(policy, channel, tiny):
    changes = {"channel.coherence_rounds": 1} if channel == "changes" else {}
    subject = Subject.of(tiny(policy, **changes))
    found = audit(subject, trials=400, pairs=200, samples=20_000)
    assert found.verdict == "pass", found.failures
    assert found.to_dict()["mu_lower"] > 0.6 * subject.plan.mu_round


def test_an_audit_of_nothing_is_refused(tiny):
    for policy in ("fedavg", "cotaf"):
        with pytest.raises(ValueError, match="not private"):
            Subject.of(tiny(policy))


@pytest.mark.parametrize(
    ("policy", "reason"), [("artificial_noise", "a removed device also removes its noise"), ("digital", "is visible")]
)
def test_add_remove_adjacency_is_refused_if_it_does_not_hold(policy, reason, tiny, tmp_path, monkeypatch, capsys):
    from airfed.cli.app import main

    scenario = tiny(policy, **{"budget.adjacency": "add_remove"})
    (tmp_path / "my.toml").write_text(scenario.to_toml())
    for command in (["plan"], ["audit"], ["run", "--out", str(tmp_path / "run")]):
        assert main([command[0], str(tmp_path / "my.toml"), *command[1:]]) == 3
        assert reason in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main(["compare", str(tmp_path / "my.toml"), "--baselines", "--json"]) == 0
    assert reason in capsys.readouterr().out
    played = benchmark.run(scenario, tmp_path / "benchmark", seeds=1, policies=[policy, "full"])
    assert reason in {row["policy"]: row["note"] for row in played.rows()}[policy]
    with monkeypatch.context() as before:  # a run of a version that did not refuse it
        before.setattr(type(tiny(policy).plan().method), "require_claim", lambda self, problem: None)
        execute(scenario, tmp_path / "old")
    with pytest.raises(RunError, match=reason):
        Run.open(tmp_path / "old").checked()
    for command, code in (("ledger", 2), ("audit", 3), ("report", 2)):
        assert main([command, str(tmp_path / "old")]) == code
        assert reason in capsys.readouterr().err


def test_a_method_without_privacy_charges_no_shared_ledger(tiny, tmp_path):
    scenario = tiny("cotaf", **{"budget.shared_ledger": str(tmp_path / "shared.jsonl")})
    with pytest.raises(ValueError, match=r"budget\.shared_ledger"):
        execute(scenario, tmp_path / "run")
    assert not (tmp_path / "shared.jsonl").exists()


def test_flower_supports_analog_methods_only(tiny, tmp_path):
    pytest.importorskip("flwr")
    from airfed.flower import OverTheAirFedAvg

    for policy in ("artificial_noise", "digital", "secure_aggregation", "dp_fedavg", "cotaf", "fedavg"):
        with pytest.raises(ValueError, match="only scale"):
            OverTheAirFedAvg(tiny(policy).plan(), tmp_path / "ledger.jsonl")
    made = OverTheAirFedAvg(tiny("threshold_power").plan(), tmp_path / "ledger.jsonl")
    assert made.plan.method.name == "threshold_power"


def test_a_method_without_privacy_is_labelled_everywhere(tiny, tmp_path, capsys):
    from airfed.cli.app import main

    execute(tiny("cotaf"), tmp_path / "run")
    scenario = tmp_path / "run" / "scenario.toml"
    assert main(["plan", str(scenario)]) == 0
    assert "none: the method is not private" in capsys.readouterr().out
    assert main(["ledger", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert "not private" in printed
    assert "ε = " not in printed  # only of single rounds, as charged
    assert main(["run", str(scenario), "--out", str(tmp_path / "again")]) == 0
    printed = capsys.readouterr()
    assert "privacy: none" in printed.out
    assert "e+1" not in printed.out + printed.err
    assert main(["plan", str(scenario), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["private"] is False
    assert main(["audit", str(tmp_path / "run")]) == 2
    page = tmp_path / "report.html"
    Run.open(tmp_path / "run").report(page)
    assert "∞" in page.read_text()
    assert "symbols" in page.read_text()
    benchmark = airfed.benchmark(
        tiny("full"), tmp_path / "benchmark", seeds=1, policies=["full", "cotaf"], progress=False
    )
    rows = {row["policy"]: row for row in benchmark.rows()}
    assert rows["cotaf"]["epsilon_total"] == math.inf
    assert not rows["cotaf"]["within_budgets"]
    assert rows["full"]["within_budgets"]
