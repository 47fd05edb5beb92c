"""Channels that are known only roughly: how much stronger a device arrives, and plans that provide for it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from airfed import Budget, Fleet, InfeasibleError, Learning, Link, Problem, bounds, channel, plan
from airfed.aircomp import Airs
from airfed.audit import Subject, audit
from airfed.planning import limits, optimal
from airfed.privacy.imperfect import amplification
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
            Link(noise_std=1.0, estimation_error=bad["nmse"], estimation_failure=bad["failure"])


def problem(gain, *, nmse, scope="round", peak_power=1.0, total_power=50.0, epsilon=3.0, trust=False):
    return Problem(
        fleet=Fleet(gain=gain, peak_power=peak_power),
        link=Link(noise_std=1.0, estimation_error=nmse, estimation_failure=1e-3, trust_estimates=trust),
        learning=Learning(
            dimension=100,
            total_steps=30,
            clip_norm=1.0,
            learning_rate=0.1,
            smoothness=10.0,
            strong_convexity=0.1,
            initial_gap=2.3,
        ),
        budget=Budget(epsilon=epsilon, delta=1e-5, total_power=total_power, scope=scope),
    )


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


def test_known_channels_change_nothing():
    gain = [0.2, 0.4, 0.9, 1.4]
    plain, trusted = plan(problem(gain, nmse=0.0)), plan(problem(gain, nmse=0.3, trust=True))
    assert (plain.alignment, plain.rounds, plain.mu_round) == (trusted.alignment, trusted.rounds, trusted.mu_round)
    assert plain.amplification == 1.0
    careful = plan(problem(gain, nmse=0.3))
    assert careful.alignment < plain.alignment


def test_a_device_that_cannot_be_heard_is_left_out():
    made = plan(problem([0.0, 0.5, 1.0], nmse=0.01))
    assert 0 not in made.scheduled
    with pytest.raises(InfeasibleError):
        plan(problem([0.0, 0.0], nmse=0.01))


@pytest.mark.slow
@pytest.mark.parametrize("nmse", [0.1, 0.01, 0.001])
def test_the_plain_claim_is_refuted_and_the_corrected_one_is_not(world, nmse):
    # A thousand devices, so that some channel is far off even where the error is small.
    changes = {
        "fleet__num_devices": 1000,
        "channel__estimation_error": nmse,
        "budget__epsilon": 6.0,
        "budget__total_power": 1e6,
    }
    enough = SMALL | {"trials": 100_000 if nmse < 0.01 else SMALL["trials"]}  # a few percent need many canaries
    plain = audit(Subject.of(world(**changes, channel__trust_estimates=True)), **enough)
    assert plain.verdict == "fail"
    assert {check.name for check in plain.failures} >= {"sensitivity", "contribution", "canaries", "trajectory"}
    corrected = audit(Subject.of(world(**changes)), **SMALL)
    assert corrected.verdict == "pass", corrected.failures
    assert corrected.round_evidence.lower_strict < corrected.round_evidence.claimed


def test_a_plan_for_known_channels_on_rough_ones_is_refuted(world):
    """The claim of a plan that knows nothing of errors, on the air that has them."""
    subject = Subject.of(world(fleet__num_devices=50))
    gain = subject.plan.problem.fleet.gain
    rng = np.random.default_rng(5)
    true = channel.true_channel(gain, np.zeros(50), nmse=0.05, rng=rng)
    rough = replace(subject, airs=Airs(plan=subject.plan, channel=true))
    found = audit(rough, pairs=240, trials=10_000, samples=100_000)
    assert "sensitivity" in {check.name for check in found.failures}
