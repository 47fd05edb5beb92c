"""Causal plans: within every budget, independent of later gains, and close to the clairvoyant plan."""

from dataclasses import replace

import numpy as np
import pytest

from airfed.planning import exact
from airfed.planning.time_varying.causal import Causal, causal
from airfed.planning.time_varying.clairvoyant import clairvoyant
from airfed.planning.time_varying.device_budgets import myopic
from airfed.planning.time_varying.instance import spending


def draws(rng, number, rounds, devices, *, shadowing_db=0.0):
    """Rayleigh gains anew in each round, under shadowing common to all devices."""
    common = 10 ** (rng.normal(0.0, shadowing_db, (number, rounds, 1)) / 20)
    return rng.rayleigh(np.sqrt(0.5), (number, rounds, devices)) * common + 1e-3


LEARNING = {
    "dimension": 20_000,
    "total_steps": 40,
    "clip_norm": 1.0,
    "smoothness": 10.0,
    "strong_convexity": 0.2,
    "initial_gap": 2.3,
}


@pytest.mark.parametrize(
    "budgets", [{}, {"decades": 2.0}, {"battery": 0.5}, {"exposure": 0.3}, {"battery": 1.0, "exposure": 0.5}]
)
def test_no_budget_is_exceeded_whatever_the_samples_promised(random_instance, check_limits, budgets):
    rng = np.random.default_rng(0)
    for _ in range(3):
        devices, rounds = int(rng.integers(1, 12)), int(rng.integers(1, 8))
        instance = random_instance(rng, devices=devices, rounds=rounds, **budgets)
        samples = instance.gain * 10 ** rng.uniform(-1, 1, (3, rounds, 1))  # of another distribution
        found = causal(instance, samples) if instance.one_budget else myopic(instance, draw=samples[0], rolling=True)
        check_limits(instance, found)
        assert found.objective >= clairvoyant(instance).lower_bound


def test_single_rounds_stay_within_the_remaining_budget_and_leave_some(random_instance):
    rng = np.random.default_rng(9)
    for _ in range(3):
        instance = random_instance(rng, devices=6, rounds=4)
        samples = (
            instance.gain[None] * np.array([1.0, 1e3, 1e3, 1e3])[:, None]
        )  # later rounds would need next to nothing
        planner = Causal(instance, samples, rounds=4)
        left, mask, theta = planner.start, np.zeros((4, 6), dtype=bool), np.zeros(4)
        for i in range(4):
            before = left
            mask[i], theta[i], left = planner.plan_round(instance.gain[: i + 1], before)
            assert left >= (0.0 if i == 3 else 0.1 * before * (1 - 1e-9))
        power, _, _ = spending(instance.gain, mask, theta)
        assert power.sum() <= instance.total_power
        assert np.all(theta <= instance.cap)


def test_later_gains_do_not_change_earlier_rounds(random_instance):
    rng = np.random.default_rng(1)
    instance = random_instance(rng, devices=10, rounds=8)
    samples = draws(rng, 4, 8, 10)
    found = causal(instance, samples, rounds=8)
    for now in (1, 4, 7):
        gain = instance.gain.copy()
        gain[now:] = draws(rng, 1, 8, 10)[0][now:]
        other = causal(replace(instance, gain=gain), samples, rounds=8)
        np.testing.assert_array_equal((found.amplitudes.dense > 0)[:now], (other.amplitudes.dense > 0)[:now])
        np.testing.assert_array_equal(found.amplitudes.level[:now], other.amplitudes.level[:now])
        assert not np.array_equal(found.amplitudes.level[now:], other.amplitudes.level[now:])


def test_the_last_round_spends_the_rest_of_the_budget(random_instance):
    rng = np.random.default_rng(2)
    for _ in range(5):
        instance = random_instance(rng, devices=30, rounds=6)
        found = causal(instance, draws(rng, 3, 6, 30), rounds=6)
        power, _, _ = spending(instance.gain, (found.amplitudes.dense > 0), found.amplitudes.level)
        limit = np.min(instance.gain[-1][(found.amplitudes.dense > 0)[-1]]) * np.sqrt(instance.peak_power[0])
        assert power.sum() >= instance.total_power * (1 - 1e-9) or found.amplitudes.level[-1] >= min(
            limit, instance.cap
        ) * (1 - 1e-9)


def test_the_future_known_exactly_leaves_little_regret(random_instance):
    rng = np.random.default_rng(3)
    for _ in range(6):
        instance = random_instance(rng, devices=40, rounds=10)
        best = clairvoyant(instance)
        assert causal(instance, instance.gain[None], rounds=best.rounds).objective <= best.objective * 1.005


def test_a_sampler_is_equivalent_to_its_samples(random_instance):
    rng = np.random.default_rng(4)
    instance = random_instance(rng, devices=30, rounds=6)
    samples = draws(rng, 3, 6, 30)
    calls = []

    def rest(seen):
        calls.append(len(seen))
        return samples[:, len(seen) :]

    one, other = causal(instance, samples, rounds=6), causal(instance, rest, rounds=6)
    assert calls == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(one.amplitudes.level, other.amplitudes.level, rtol=0.05)
    assert one.objective == pytest.approx(other.objective, rel=1e-3)


def test_rayleigh_costs_little_and_less_than_equal_shares(random_instance):
    rng = np.random.default_rng(5)
    samples = draws(rng, 6, 40, 50)
    planned, known, shared = [], [], []
    for _ in range(4):
        instance = random_instance(rng, devices=50, rounds=40, gain=draws(rng, 1, 40, 50)[0], **LEARNING)
        planned.append(causal(instance, samples).objective)
        known.append(clairvoyant(instance).objective)
        shared.append(myopic(instance, draw=samples[0]).objective)
    regret, cost = np.divide(planned, known) - 1, np.divide(shared, known) - 1
    assert np.all(regret <= 0.02)
    assert np.mean(regret) < np.mean(cost)


@pytest.mark.slow
@pytest.mark.parametrize(("shadowing_db", "most"), [(0.0, 0.02), (8.0, 0.25)])
def test_regret_against_the_plan_of_as_many_rounds(random_instance, shadowing_db, most):
    rng = np.random.default_rng(6)
    samples = draws(rng, 24, 40, 60, shadowing_db=shadowing_db)
    regret, cost = [], []
    for _ in range(16):
        gain = draws(rng, 1, 40, 60, shadowing_db=shadowing_db)[0]
        instance = random_instance(rng, devices=60, rounds=40, gain=gain, **LEARNING)
        found = causal(instance, samples)
        known = clairvoyant(instance, rounds=found.rounds).objective
        regret.append(found.objective / known - 1)
        cost.append(myopic(instance, rounds=found.rounds).objective / known - 1)
    assert np.mean(regret) <= most
    assert np.mean(regret) < np.mean(cost)


@pytest.mark.slow
@pytest.mark.parametrize("shadowing_db", [0.0, 8.0])
@pytest.mark.parametrize("budgets", [{"battery": 1.0}, {"exposure": 0.5}])
def test_with_batteries_shares_of_the_remaining_budget_beat_equal_shares(random_instance, shadowing_db, budgets):
    rng = np.random.default_rng(11)
    regret, cost = [], []
    for _ in range(8):
        gain = draws(rng, 1, 12, 30, shadowing_db=shadowing_db)[0]
        instance = random_instance(rng, devices=30, rounds=12, gain=gain, **budgets, **LEARNING)
        known = clairvoyant(instance, rounds=12).objective
        regret.append(myopic(instance, rounds=12, rolling=True).objective / known - 1)
        cost.append(myopic(instance, rounds=12).objective / known - 1)
    assert np.all(np.less_equal(regret, cost))
    assert np.mean(regret) < 0.8 * np.mean(cost)


def test_equal_shares_of_one_round_are_the_exact_schedule(random_instance, check_limits):
    rng = np.random.default_rng(7)
    for _ in range(10):
        instance = random_instance(rng, devices=6, rounds=3, decades=1.0)
        found = myopic(instance)
        check_limits(instance, found)
        single = myopic(instance, rounds=1)
        choice = exact.best_schedule(
            instance.gain[0], instance.peak_power,
            cap=np.array([instance.cap]), round_budget=np.array([instance.total_power]),
            offset=instance.offsets()[:1], scale=instance.weights(1), noise_weight=instance.noise_weight)  # fmt: skip
        assert single.objective == pytest.approx(choice.objective, rel=1e-9)
        assert found.objective <= single.objective
        power, _, _ = spending(instance.gain[: found.rounds], (found.amplitudes.dense > 0), found.amplitudes.level)
        assert np.all(power <= instance.total_power / found.rounds)


def test_samples_of_another_fleet_are_refused(random_instance):
    instance = random_instance(np.random.default_rng(8), devices=4, rounds=3)
    with pytest.raises(ValueError, match="shape"):
        Causal(instance, np.ones((2, 3, 5)))
    with pytest.raises(ValueError, match="rounds must be at most 3"):
        Causal(instance, np.ones((2, 3, 4)), rounds=4)
