"""Imperfect CSI: how much stronger a device arrives, and plans that account for it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import problems
from airfed import InfeasibleError, Link, bounds, channel, plan
from airfed.aircomp import AirComp
from airfed.audit import Subject, audit
from airfed.cli.app import main
from airfed.planning import limits, optimal
from airfed.privacy.gaussian import amplification
from airfed.privacy.ledger import Ledger
from airfed.scenario import ScenarioError
from brute_force import brute_force_schedule

SMALL = {"pairs": 240, "trials": 40_000, "samples": 100_000}


def test_the_factor_bounds_the_rician_quantile_and_is_not_far_above_it():
    gain = np.array([0.1, 0.2, 0.5, 1.0, 2.0])
    for nmse in (1e-3, 1e-2, 1e-1):
        for failure in (1e-2, 1e-6, 1e-9):
            factor = amplification(gain, nmse=nmse, failure=failure)
            spread = np.sqrt(nmse * np.mean(gain**2)) / gain  # of e/ĥ
            quantile = np.sqrt(spread**2 / 2 * stats.ncx2.isf(failure / gain.size, 2, 2 / spread**2))
            assert np.all(factor >= quantile * (1 - 1e-9))
            assert np.all(factor - 1 <= (quantile - 1) * (1.35 if failure == 1e-2 else 1.15))


def test_channels_as_they_are_drawn_stay_within_the_factor():
    rng = np.random.default_rng(0)
    gain = channel.Rayleigh().draw(100, rng)
    factor = amplification(gain, nmse=0.01, failure=0.02)
    phase = rng.uniform(-np.pi, np.pi, 100)
    exceeded = 0
    for _ in range(2000):
        true = channel.true_channel(gain, phase, nmse=0.01, rng=rng)
        exceeded += bool(np.any(np.abs(true) / gain > factor))
    assert exceeded <= stats.binom.isf(1e-6, 2000, 0.02)
    assert exceeded > 0  # and the factor is no more than what 2% asks for


def test_limit_cases_and_bad_values():
    assert np.all(amplification([0.1, 1.0], nmse=0.0, failure=0.5) == 1.0)
    assert amplification([0.0, 1.0], nmse=0.1, failure=0.5)[0] == np.inf
    for bad in ({"nmse": -1.0, "failure": 0.1}, {"nmse": 0.1, "failure": 0.0}, {"nmse": 0.1, "failure": np.nan}):
        with pytest.raises(ValueError):
            amplification([1.0], **bad)
        with pytest.raises(ValueError):
            Link(noise_std=1.0, csi_error=bad["nmse"], csi_failure=bad["failure"])


def problem(gain, *, nmse, scope="round", peak_power=1.0, total_power=50.0, epsilon=3.0, adversary=False):
    imperfect = {"csi_error": nmse, "csi_failure": 1e-3, "assume_perfect_csi": adversary}
    budget = {"epsilon": epsilon, "delta": 1e-5, "total_power": total_power, "scope": scope}
    given = {"power": peak_power, "noise": 1.0, "dimension": 100, "steps": 30, "clip": 1.0, "convexity": 0.1}
    return problems.make(gain, **given, **imperfect, **budget)


gains = st.lists(st.floats(0.05, 2.0), min_size=1, max_size=7)


@settings(max_examples=25, deadline=None)
@given(gains, st.sampled_from([1e-3, 1e-2, 1e-1]), st.sampled_from(["round", "total"]), st.floats(0.5, 200.0))
def test_the_optimum_is_that_of_brute_force(gain, nmse, scope, total_power):
    asked = problem(gain, nmse=nmse, scope=scope, total_power=total_power)
    found = plan(asked)
    best = np.inf
    for rounds in range(1, 31):
        each = np.array([rounds])
        solution = brute_force_schedule(
            asked.fleet.gain,
            optimal.effective_peak_power(asked, rounds),
            cap=limits.privacy_limits(asked, each),
            round_budget=asked.budget.total_power / each,
            offset=bounds.round_offsets(asked.learning, each),
            scale=bounds.round_scales(asked.learning, each),
            noise_weight=50.0,
        )
        best = min(best, solution.objective)
    assert found.bound.total == pytest.approx(best, rel=1e-9)
    assert not found.violations


@settings(max_examples=40, deadline=None)
@given(gains, st.sampled_from(["optimal", "paper", "full", "top_k"]), st.sampled_from(["round", "total"]))
def test_every_policy_keeps_the_budget_with_the_factor_in(gain, policy, scope):
    asked = problem(gain, nmse=0.02, scope=scope)
    made = plan(asked, policy=policy)
    factor = amplification(asked.fleet.gain, nmse=0.02, failure=1e-3)[made.scheduled].max()
    assert made.amplification == factor
    assert made.mu_round == pytest.approx(2 * made.alignment * factor)
    assert (made.epsilon_total if scope == "total" else made.epsilon_round) <= 3.0
    assert "privacy" not in made.violations


@settings(max_examples=25, deadline=None)
@given(gains, st.floats(0.3, 1.0), st.sampled_from(["round", "total"]), st.floats(0.5, 200.0))
def test_a_measured_noise_limits_privacy_by_its_lower_limit_and_learning_by_its_value(gain, lower, scope, total_power):
    """The optimum is that of brute force with θ ≤ σ_low·μ/2 (over √I), and with dσ²/2 in the bound."""
    asked = problem(gain, nmse=0.0, scope=scope, total_power=total_power)
    asked = replace(asked, link=replace(asked.link, noise_std_lower=lower))
    found, best = plan(asked), np.inf
    for rounds in range(1, 31):
        each = np.array([rounds])
        solution = brute_force_schedule(
            asked.fleet.gain,
            asked.fleet.peak_power,
            cap=lower * limits.allowed_mu(asked.budget) / 2 / np.sqrt(each if scope == "total" else np.ones(1)),
            round_budget=asked.budget.total_power / each,
            offset=bounds.round_offsets(asked.learning, each),
            scale=bounds.round_scales(asked.learning, each),
            noise_weight=50.0,
        )
        best = min(best, solution.objective)
    assert found.bound.total == pytest.approx(best, rel=1e-9)
    assert found.mu_round == pytest.approx(2 * found.alignment / lower, rel=1e-12)
    assert not found.violations


def test_a_lower_limit_above_the_noise_is_refused(make_scenario):
    for wrong in ({"noise_std_lower": 1.1}, {"noise_std_lower": 0.0}, {"noise_failure": 0.0}, {"noise_failure": 1.0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            Link(noise_std=1.0, **wrong)
        with pytest.raises(ScenarioError, match=next(iter(wrong))):
            make_scenario(**{f"link.{name}": value for name, value in wrong.items()}, link__noise_std=1.0)


def test_plan_and_ledger_print_the_limit_of_a_measured_noise(make_scenario, tmp_path, capsys):
    (tmp_path / "s.toml").write_text(make_scenario(link__noise_std_lower=0.9, link__noise_failure=1e-4).to_toml())
    expected = "measured noise: ε counts with σ ≥ 0.9 and holds except with probability 0.0001, which adds to δ"
    for command in (["plan"], ["run", "--out", str(tmp_path / "run")]):
        assert main([command[0], str(tmp_path / "s.toml"), *command[1:]]) == 0
        assert command[0] == "run" or expected in " ".join(capsys.readouterr().out.split())
    capsys.readouterr()
    assert main(["ledger", str(tmp_path / "run")]) == 0
    assert expected in " ".join(capsys.readouterr().out.split())
    header, recorded = (
        Ledger.load(tmp_path / "run/ledger.jsonl").header,
        json.loads((tmp_path / "run/plan.json").read_text()),
    )
    for record in (header, recorded):
        assert (record["noise_std_lower"], record["noise_failure"]) == (0.9, 1e-4)


def test_the_audit_attacks_with_the_least_noise_that_is_claimed(make_scenario):
    """A plan for σ is refuted where σ may be as small as its lower limit; a plan for the limit is not."""
    careful = Subject.of(make_scenario(link__noise_std_lower=1.4))
    found = audit(careful, **SMALL)
    assert found.verdict == "pass", found.failures
    assert found.round_evidence.lower_strict < found.round_evidence.claimed < found.round_evidence.upper_strict
    plain = Subject.of(make_scenario())
    assert plain.plan.alignment == pytest.approx(careful.plan.alignment / 0.7)
    carelessly = replace(careful, plan=replace(careful.plan, amplitudes=plain.plan.amplitudes))
    over = audit(replace(carelessly, aircomp=plain.aircomp), **SMALL)
    assert over.verdict == "fail"


@pytest.mark.parametrize("adversary", ["all_antennas", "combined"])
def test_the_least_eigenvalue_of_a_noise_covariance_is_a_valid_limit(adversary):
    """Two Gaussians of covariance R whose means differ by Δ are √(Δᴴ R⁻¹ Δ) apart; σ alone claims less than that."""
    covariance = 0.09 * np.where(np.eye(2), 1.0, 0.6)  # σ = 0.3 at each antenna
    weakest = np.linalg.eigvalsh(covariance)
    largest = {}
    for lower in (None, np.sqrt(weakest[0])):
        asked = problems.make(channel=problems.channels(3, 4, 2), adversary=adversary, noise_std_lower=lower)
        for beamformer in ([1.0, -1.0], [1.0, 0.3j]):
            made = plan(asked.with_beamformer(beamformer), policy="full")
            fleet, f = made.problem.fleet, made.beamformer
            if adversary == "combined":
                spread = np.sqrt((f.conj() @ covariance @ f).real)
                true = np.full(4, 2 * made.alignment / spread)
            else:
                matched = np.einsum("ka,ab,kb->k", fleet.channel.conj(), np.linalg.inv(covariance), fleet.channel).real
                true = 2 * made.alignment * np.sqrt(matched) / fleet.gain
            ratio = true.max() / made.mu_round
            largest[lower] = max(largest.get(lower, 0.0), ratio)
    assert largest.pop(None) > 1.3
    assert max(largest.values()) <= 1 + 1e-12
    assert 1 / np.sqrt(weakest[0] / 0.09) == pytest.approx(1.58, abs=0.01)


def test_perfect_csi_changes_nothing():
    gain = [0.2, 0.4, 0.9, 1.4]
    plain, adversary = plan(problem(gain, nmse=0.0)), plan(problem(gain, nmse=0.3, adversary=True))
    assert (plain.alignment, plain.rounds, plain.mu_round) == (
        adversary.alignment,
        adversary.rounds,
        adversary.mu_round,
    )
    assert plain.amplification == 1.0
    careful = plan(problem(gain, nmse=0.3))
    assert careful.alignment < plain.alignment


def test_an_unreachable_device_is_not_scheduled():
    made = plan(problem([0.0, 0.5, 1.0], nmse=0.01))
    assert 0 not in made.scheduled
    with pytest.raises(InfeasibleError):
        plan(problem([0.0, 0.0], nmse=0.01))


@pytest.mark.slow
@pytest.mark.parametrize("nmse", [0.1, 0.01, 0.001])
def test_the_plain_claim_is_refuted_and_the_corrected_one_is_not(make_scenario, nmse):
    # A thousand devices, so that some channel is far off even where the error is small.
    changes = {
        "fleet__num_devices": 1000,
        "channel__csi_error": nmse,
        "budget__epsilon": 6.0,
        "budget__total_power": 1e6,
    }
    enough = SMALL | {"trials": 100_000 if nmse < 0.01 else SMALL["trials"]}  # a few percent need many canaries
    plain = audit(Subject.of(make_scenario(**changes, channel__assume_perfect_csi=True)), **enough)
    assert plain.verdict == "fail"
    assert {check.name for check in plain.failures} >= {"sensitivity", "contribution", "canaries", "trajectory"}
    corrected = audit(Subject.of(make_scenario(**changes)), **SMALL)
    assert corrected.verdict == "pass", corrected.failures
    assert corrected.round_evidence.lower_strict < corrected.round_evidence.claimed


def test_a_plan_for_perfect_csi_is_refuted_under_imperfect_csi(make_scenario):
    """Perfect CSI is claimed, but the channel has errors."""
    subject = Subject.of(make_scenario(fleet__num_devices=50))
    gain = subject.plan.problem.fleet.gain
    rng = np.random.default_rng(5)
    true = channel.true_channel(gain, np.zeros(50), nmse=0.05, rng=rng)
    imperfect = replace(subject, aircomp=AirComp(plan=subject.plan, channel=true))
    found = audit(imperfect, pairs=240, trials=10_000, samples=100_000)
    assert "sensitivity" in {check.name for check in found.failures}
