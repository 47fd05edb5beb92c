"""Adaptive clipping: the rule, its cost in privacy, power and noise, runs, resume and refusals."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import problems

import airfed
from airfed import Plan, Problem
from airfed.aircomp import AirComp
from airfed.audit import Subject, audit
from airfed.clipping import FARTHEST, AdaptiveClipping
from airfed.keys import ScenarioError
from airfed.planning.amplitudes import Amplitudes
from airfed.policies import EVERY
from airfed.privacy.ledger import LedgerError
from airfed.problem import InfeasibleError
from airfed.training.directory import RunError
from airfed.training.execution import execute
from airfed.training.run import Run

pytestmark = pytest.mark.usefixtures("no_flush")
SHARE = 0.2
KEYS = {"learning__adaptive_clipping": {"share": SHARE}}


def adaptive(problem: Problem, **settings) -> Problem:
    rule = AdaptiveClipping(**{"share": SHARE, **settings})
    return replace(problem, learning=replace(problem.learning, adaptive_clipping=rule))


# -- the rule


def test_the_clipping_norm_moves_geometrically_towards_the_quantile():
    rule = AdaptiveClipping(quantile=0.7, rate=0.3)
    assert rule.after(2.0, 0.7, first=2.0) == 2.0
    assert rule.after(2.0, 1.2, first=2.0) == pytest.approx(2.0 * math.exp(-0.15), rel=1e-15)
    assert rule.after(2.0, -1e300, first=2.0) == 2.0 * FARTHEST
    assert rule.after(2.0, 1e300, first=2.0) == 2.0 / FARTHEST


@pytest.mark.parametrize(
    "settings", [{"quantile": 0.0}, {"quantile": 1.0}, {"rate": 0.0}, {"rate": 11.0}, {"share": 0.0}, {"share": 0.6}]
)
def test_settings_out_of_range_are_refused(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=name):
        AdaptiveClipping(**settings)


def test_the_norm_follows_the_quantile_of_lognormal_norms():
    rng, problem = np.random.default_rng(1), adaptive(problems.make(np.ones(400), noise=0.5), quantile=0.3, rate=0.5)
    plan = airfed.plan(problem, policy="full", rounds=8)
    air, norm, found = AirComp(plan=plan), plan.clip_norm, []
    assert plan.problem.learning.adaptive_clipping is not None
    for _ in range(200):
        superposition = air.open_round(3, 0, norm)
        lengths = np.exp(1.0 + 0.5 * rng.normal(size=400))
        superposition.add(plan.scheduled, lengths[:, None] * np.array([[0.6, 0.0, -0.8]]))
        aggregate = superposition.receive(rng.normal(0.0, 0.5, superposition.noise_size))
        assert aggregate.unclipped is not None
        norm = plan.problem.learning.adaptive_clipping.after(norm, aggregate.unclipped, first=plan.clip_norm)
        found.append(math.log(norm))
    assert np.mean(found[50:]) == pytest.approx(1.0 - 0.5244 * 0.5, abs=0.05)  # the 30% quantile of N(1, 0.25)


# -- planning: the same amplitudes, powers and μ; only the noise on the update grows


@pytest.mark.parametrize("policy", ["optimal", "full", "uniform", "top_k", "paper"])
@given(seed=st.integers(0, 10**6), adjacency=st.sampled_from(["replace_one", "add_remove"]))
def test_a_plan_is_that_of_a_receiver_whose_noise_is_larger_for_learning_only(policy, seed, adjacency):
    """`noise_std_lower` gives the same problem independently: privacy counts with σ, learning with σ/√(1 − share)."""
    problem = problems.random(np.random.default_rng(seed), adjacency=adjacency)
    sigma = problem.link.noise_std
    other = replace(problem, link=replace(problem.link, noise_std=sigma / math.sqrt(1 - SHARE), noise_std_lower=sigma))
    settings = {"size": 1} if policy in ("uniform", "top_k") else {}
    try:
        expected = airfed.plan(other, policy=policy, **settings)
    except InfeasibleError:
        return
    plan = airfed.plan(adaptive(problem), policy=policy, **settings)
    assert np.array_equal(plan.amplitude, expected.amplitude)
    assert plan.bound.total == pytest.approx(expected.bound.total, rel=1e-12)
    assert (plan.mu_round, plan.epsilon_total) == (expected.mu_round, expected.epsilon_total)
    assert plan.power_total == expected.power_total
    assert plan.noise_share == pytest.approx(expected.noise_share, rel=1e-12)


def test_an_upload_has_one_more_entry():
    for dimension, symbols in ((50, 26), (51, 26)):
        plan = airfed.plan(adaptive(problems.make(dimension=dimension)), rounds=4)
        assert plan.channel_uses == 4 * symbols
    limited = adaptive(problems.make(dimension=50, bandwidth=1.0, air_time=25.0))
    with pytest.raises(InfeasibleError, match="air_time"):
        airfed.plan(limited)


def test_a_recorded_plan_contains_the_settings_and_can_be_read_again():
    plan = airfed.plan(adaptive(problems.make()))
    recorded = json.loads(json.dumps(plan.to_dict()))
    assert recorded["adaptive_clipping"] == {"quantile": 0.5, "rate": 0.2, "share": SHARE}
    assert Plan.from_dict(plan.problem, recorded).to_dict() == plan.to_dict()
    with pytest.raises(ValueError, match="adaptive_clipping"):
        Plan.from_dict(adaptive(problems.make(), share=0.1), recorded)
    with pytest.raises(ValueError, match="adaptive_clipping"):
        Plan.from_dict(problems.make(), recorded)


# -- one round: sensitivity, power, indicator


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove"])
@pytest.mark.parametrize("several", [False, True], ids=["one antenna", "three antennas"])
@pytest.mark.parametrize("norm", [0.01, 2.0, 300.0])
def test_the_sensitivity_is_that_of_the_claim_and_is_attained(adjacency, several, norm):
    channel = {"channel": problems.channels(3, 8, 3)} if several else {}
    plan = airfed.plan(adaptive(problems.make(adjacency=adjacency, **channel)), policy="full", rounds=4)
    rng, air = np.random.default_rng(0), AirComp(plan=plan).at(0, norm)
    device = int(plan.scheduled[np.argmax(plan.sequence.factors(plan.scheduled, 0))])

    def view(update):
        superposition = air.open_round(2)
        if update is not None:
            superposition.add(np.array([device]), np.array([update]))
        return superposition.receive(np.zeros(superposition.noise_size)).parts

    direction = np.array([0.6, 0.8])
    lengths = [0.0, 0.3, 0.999, 1.0, 1.0 + 1e-9, 2.0, 1e6]
    updates = [sign * length * norm * direction for sign, length in itertools.product((-1, 1), lengths)]
    updates += [scale * norm * rng.normal(size=2) for scale in (0.5, 1.0, 5.0)] + [np.full(2, np.nan)]
    others = [None] if adjacency == "add_remove" else updates
    largest = max(float(np.linalg.norm(view(one) - view(other))) for one in updates for other in others)
    assert largest / plan.problem.link.noise_std == pytest.approx(plan.mu_round, rel=2e-6)
    assert largest / plan.problem.link.noise_std <= plan.mu_round


@pytest.mark.parametrize("norm", [0.01, 2.0, 300.0])
def test_the_metered_power_includes_the_indicator_and_does_not_depend_on_the_norm(norm):
    plan = airfed.plan(adaptive(problems.make()), policy="full", rounds=4)
    superposition = AirComp(plan=plan).open_round(2, 0, norm)
    superposition.add(plan.scheduled[:1], np.array([[3 * norm, 0.0]]))
    superposition.add(plan.scheduled[1:2], np.zeros((1, 2)))
    superposition.add(plan.scheduled[2:3], np.full((1, 2), np.inf))
    energy = superposition.receive(np.zeros(3)).energy / plan.power
    assert energy[0] == pytest.approx(1.0, rel=1e-5)
    assert energy[0] <= 1.0
    assert energy[1] == pytest.approx(SHARE, rel=1e-12)
    assert energy[2] == 0.0


def test_the_receiver_estimates_the_weighted_fraction_of_unclipped_updates():
    problem = adaptive(problems.make())
    table = Amplitudes.of_table(np.linspace(0.02, 0.1, 8), rounds=4)
    plan = Plan(problem=problem, policy="own", amplitudes=table)
    superposition = AirComp(plan=plan).open_round(1, 0, 1.0)
    updates = np.array([0.5, 2.0, 0.9, -3.0, 0.0, 1.1, np.nan, -1.0])
    superposition.add(plan.scheduled[:6], updates[:6, None])
    superposition.add(plan.scheduled[6:], updates[6:, None])
    aggregate = superposition.receive(np.zeros(2))
    weight = table.received(0) / table.received(0).sum()
    counted = np.array([1, 0, 1, 0, 1, 0, 0.5, 1])  # a NaN sends nothing, which counts as a half
    assert aggregate.unclipped == pytest.approx(float(weight @ counted), rel=1e-9)
    mean = weight @ np.clip(np.nan_to_num(updates), -1.0, 1.0)
    assert aggregate.estimate == pytest.approx([mean], abs=2e-6)
    assert aggregate.fading_error == pytest.approx(0.0, abs=1.0)


def test_a_signal_with_another_indicator_has_another_noise():
    plan = airfed.plan(adaptive(problems.make()), policy="full", rounds=4)
    digests = set()
    for length in (1.0, 1.0 + 1e-12):  # the clipped updates are nearly equal, the indicators differ
        superposition = AirComp(plan=plan).open_round(1, 0, 1.0)
        superposition.add(plan.scheduled[:1], np.array([[length]]))
        digests.add(superposition.digest())
        sent = superposition.signal[0, 0, -1]
        digests.add(str(np.sign(sent)))
    assert len(digests) == 4


# -- runs


def test_the_record_has_the_norm_and_the_received_fraction_of_every_round(make_scenario, tmp_path):
    outcome = execute(make_scenario(**KEYS), tmp_path / "run")
    run = Run.open(tmp_path / "run")
    norms, fractions = run.rounds["clip_norm"], run.rounds["unclipped"]
    assert norms[0] == 0.5
    assert norms[1:] == pytest.approx(norms[:-1] * np.exp(-0.2 * (fractions[:-1] - 0.5)), rel=1e-14)
    assert np.unique(norms).size == norms.size == 8
    assert run.ledger.header["adaptive_clipping"]["share"] == SHARE
    assert run.ledger.epsilon_total == outcome.setup.plan.epsilon_total <= 3.0
    assert "adaptive clipping norm ϖ" in [axes.get_title(loc="left") for axes in run.plot().axes]


@pytest.mark.parametrize("column", ["clip_norm", "unclipped"])
def test_an_edited_norm_is_found(make_scenario, tmp_path, column):
    execute(make_scenario(**KEYS), tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    records[1][column] *= 1.001
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(LedgerError, match=r"the clip_norm of round [23] does not follow"):
        Run.open(tmp_path / "run").checked()


def test_a_private_record_keeps_them(make_scenario, tmp_path):
    execute(make_scenario(**KEYS, run__record="private"), tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert np.isfinite(run.rounds["clip_norm"]).all()
    assert np.isnan(run.rounds["clipped_share"]).all()


def test_a_run_without_adaptive_clipping_has_no_such_columns(make_scenario, tmp_path):
    execute(make_scenario(), tmp_path / "run")
    assert np.isnan(Run.open(tmp_path / "run").rounds["clip_norm"]).all()
    assert "clip_norm" not in (tmp_path / "run" / "metrics.csv").read_text()


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("questions", [3, 9, 13])
def test_a_stopped_run_ends_with_the_bits_of_an_uninterrupted_one(
    make_scenario, tmp_path, stop_after, contents, every, questions
):
    scenario = make_scenario(**KEYS, run__checkpoint_every=every)
    assert execute(scenario, tmp_path / "whole").status == "finished"
    assert execute(scenario, tmp_path / "run", stop=stop_after(questions)).status == "stopped"
    assert execute(scenario, tmp_path / "run", resume=True).status == "finished"
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@pytest.mark.parametrize("deadly", [0, 4])
def test_a_killed_run_ends_with_the_bits_of_an_uninterrupted_one(make_scenario, tmp_path, killed_in, contents, deadly):
    scenario = make_scenario(**KEYS, run__checkpoint_every=3)
    assert execute(scenario, tmp_path / "whole").status == "finished"
    killed_in(scenario, tmp_path / "run", deadly)
    assert execute(scenario, tmp_path / "run", resume=True).status == "finished"
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_run_of_weighted_amplitudes_is_resumed_charged_by_device_and_audited(
    make_scenario, tmp_path, stop_after, contents
):
    limits = {"link__noise_std": 0.5, "budget__total_power": 20.0, "budget__epsilon": 40.0, "run__checkpoint_every": 3}
    scenario = make_scenario(**KEYS, **limits, policy__name="weighted")
    outcome = execute(scenario, tmp_path / "whole")
    assert execute(scenario, tmp_path / "run", stop=stop_after(9)).status == "stopped"
    assert execute(scenario, tmp_path / "run", resume=True).status == "finished"
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    run, plan = Run.open(tmp_path / "run").checked(), outcome.setup.plan
    assert not plan.equal_mu
    assert np.unique(run.rounds["clip_norm"]).size == 8
    np.testing.assert_allclose(run.ledger.device_mus(), 2 * plan.amplitude[0] / 0.5 * math.sqrt(8), rtol=1e-12)
    assert audit(Subject.of_run(run), trials=500, pairs=24, samples=100_000).verdict == "pass"


def test_a_run_is_not_resumed_with_another_rule(make_scenario, tmp_path, stop_after):
    execute(make_scenario(**KEYS), tmp_path / "run", stop=stop_after(9))
    with pytest.raises(RunError, match="adaptive_clipping"):
        execute(make_scenario(learning__adaptive_clipping={"share": 0.1}), tmp_path / "run", resume=True)


# -- refusals


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"policy__objective": "accuracy"}, 'policy.objective must be "bound" with'),
        ({"policy__clip_norm": 2.0}, "policy.clip_norm must not be set with"),
        ({"policy__surrogate": "mnist-5k-cnn-40"}, "policy.surrogate must not be set with"),
        ({"learning__adaptive_clipping": {"share": 0.7}}, "share must be at most 0.5"),
        ({"learning__adaptive_clipping": {"quantil": 0.7}}, "Unknown key 'learning.adaptive_clipping.quantil'"),
    ],
)
def test_a_mistake_is_one_sentence(make_scenario, changes, sentence):
    with pytest.raises(ScenarioError, match=sentence.replace("[", r"\[")):
        make_scenario(**KEYS | changes)


def test_methods_that_send_no_indicator_have_no_plan(make_scenario):
    scenario = make_scenario(**KEYS)
    plans, reasons = scenario.compare(baselines=True)
    baselines = {name for name, policy in EVERY.items() if policy.baseline} - {"liu_simeone"}  # it only varies θ
    assert plans.keys() & baselines == set()
    assert baselines <= reasons.keys()
    assert all("adaptive_clipping" in reasons[name] for name in baselines)
    assert {"optimal", "full"} <= plans.keys()


def test_no_accuracy_is_expected(make_scenario, repository):
    scenario = airfed.load(repository / "examples" / "private.toml").override(
        {"learning.adaptive_clipping": {}, "policy.objective": None}
    )
    plan = scenario.plan()
    assert plan.prediction is None
    assert plan.objective == "bound"
    assert "No accuracy is expected" in plan.notes[-1]
    with pytest.raises(ValueError, match="end_to_end must not be set with adaptive_clipping"):
        make_scenario(**KEYS).audit(end_to_end=True)


def test_flower_refuses_in_one_sentence(make_scenario, tmp_path):
    strategy = pytest.importorskip("airfed.flower").OverTheAirFedAvg
    with pytest.raises(ValueError, match="cannot send a clipping indicator through Flower"):
        strategy(make_scenario(**KEYS).plan(), tmp_path / "ledger.jsonl")
