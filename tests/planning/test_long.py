"""Plans of many rounds: the time they take does not grow with the square of the rounds."""

import time

import numpy as np
import pytest

import airfed
import problems
from airfed import baselines
from airfed.baselines.digital import levelled
from airfed.bounds import round_weights
from airfed.planning import beamforming
from airfed.planning.time_varying.clairvoyant import clairvoyant
from airfed.planning.time_varying.device_budgets import myopic
from airfed.planning.time_varying.instance import thinned
from airfed.planning.time_varying.planner import instance_of, per_round, strided
from airfed.policies import BASELINES, EVERY

BUDGETS = {
    "round": {},
    "total": {"scope": "total"},
    "battery": {"device_power": 300.0},
}
SEARCHING = ("weighted", "optimal", "clairvoyant", "myopic")


def problem(devices=6, rounds=1660, antennas=1, **budget):
    """Power for so many rounds that most of them are planned."""
    rng = np.random.default_rng(0)
    parts = rng.normal(0.0, np.sqrt(0.5), (2, rounds, devices, antennas))
    given = {"noise": 1e-3, "adversary": "combined", "dimension": 21840, "clip": 1.0, "convexity": 0.1}
    budget = {"epsilon": 50.0, "total_power": 0.3 * devices * rounds} | budget
    return problems.make(channel=parts[0] + 1j * parts[1], steps=rounds, **given, **budget)


def sampler(long, draws=4):
    shape = long.fleet.drawn.shape

    def rest(seen):
        rng = np.random.default_rng(len(seen))
        left = (draws, shape[0] - len(seen), *shape[1:])
        drawn = rng.normal(0.0, np.sqrt(0.5), (2, *left))
        channel = drawn[0] + 1j * drawn[1]
        return np.abs(channel) if long.fleet.antennas == 1 else channel

    return rest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "budget", "antennas", "known"),
    [  # of all combinations, two for each policy that searches and one for the others; baselines have no batteries
        (policy, list(BUDGETS)[(place + turn) % 3], 1 + (place // 3 + turn) % 2, (place + turn) % 2 == 0)
        for place, policy in enumerate(EVERY)
        for turn in ((0, 1) if policy in SEARCHING else (place % 3 == 2 and policy in BASELINES,))
    ],
)
def test_ten_thousand_device_rounds_are_planned_in_seconds(policy, budget, antennas, known):
    long = problem(antennas=antennas, **BUDGETS[budget])
    options = {"threshold": 0.1} if policy == "threshold" else {}
    before = time.process_time()
    plan = airfed.plan(long, policy=policy, samples=None if known else sampler(long), **options)
    assert time.process_time() - before < 30.0
    assert not plan.violations


def test_long_plans_are_judged_by_some_of_their_rounds():
    learning = problem().learning
    places, weights = thinned(learning, 256)
    np.testing.assert_array_equal(places, np.arange(256))
    np.testing.assert_array_equal(weights, round_weights(learning, 256))
    places, weights = thinned(learning, 1600)
    assert places.size == 256
    assert np.all(np.diff(places) > 0)
    assert 0 <= places[0] <= places[-1] < 1600
    assert weights.sum() == pytest.approx(round_weights(learning, 1600).sum(), rel=1e-12)


@pytest.mark.parametrize("rolling", [False, True])
def test_the_rounds_that_are_chosen_so_are_about_the_best(rolling):
    instance = instance_of(problem(devices=2, rounds=600, total_power=20.0))
    chosen = myopic(instance, rolling=rolling)
    others = [myopic(instance, rounds=number, rolling=rolling).objective for number in (20, 60, 150, 300, 600)]
    assert chosen.objective <= min(others) * 1.02


def test_a_rule_is_called_once_for_each_round():
    long, calls = problem(devices=2, rounds=400), []

    def schedule(seen, index):
        calls.append(index)
        return np.arange(2)

    found = per_round(long, schedule, method=baselines.Digital())
    assert sorted(calls) == sorted(set(calls))
    assert found.rounds <= 400


def test_a_sampler_is_called_in_each_of_few_rounds_and_at_a_stride_in_many():
    for rounds, most in ((540, 1), (5000, 84)):
        long, drawn = problem(devices=1, rounds=rounds), []
        gain = long.fleet.gain

        def draws(seen, drawn=drawn, gain=gain):
            drawn.append(len(gain) - len(seen))
            return gain[None, len(seen) :]

        rare = strided(draws, long)
        for index in range(rounds):
            np.testing.assert_array_equal(rare(gain[:index])[0], gain[index:])
        assert sum(drawn) <= 160_000
        assert len(drawn) == -(-rounds // most)


def test_beamformers_of_late_rounds_are_not_searched_for_and_the_plan_says_so(monkeypatch):
    monkeypatch.setattr(beamforming, "MOST_SEARCHED", 4)
    long = problem(devices=3, rounds=12, antennas=2, total_power=1e-5, epsilon=1e5)
    plan = airfed.plan(long, rounds=8)
    vectors = airfed.antennas.eigenvectors(plan.problem.fleet.channel)[:, 0]
    alike = np.abs(np.sum(np.conj(vectors) * plan.problem.fleet.beamformer, axis=1))
    np.testing.assert_allclose(alike[4:], 1.0)
    assert np.any(alike[:4] < 1 - 1e-6)
    assert any("dominant eigenvector" in note for note in plan.notes)
    assert not airfed.plan(long, rounds=4).notes


def test_long_plans_with_batteries_are_certified_and_no_worse_than_equal_shares():
    long = problem(devices=2, rounds=700, device_power=60.0)
    instance = instance_of(long)
    found = clairvoyant(instance)
    assert found.lower_bound <= found.objective <= myopic(instance, rolling=True).objective * (1 + 1e-9)


def test_the_level_spends_the_budget():
    rng = np.random.default_rng(0)
    for _ in range(200):
        peak = 10 ** rng.uniform(-2, 2, rng.integers(1, 9))
        needed = peak * rng.uniform(0, 1.5, peak.size) * rng.integers(0, 2)
        least = np.minimum(peak, needed)
        budget = rng.uniform(0.0, 1.1) * peak.sum()
        found = levelled(peak, budget, needed)
        assert np.all((found >= least) & (found <= peak))
        if least.sum() >= budget:
            np.testing.assert_array_equal(found, least)
        else:
            assert min(budget, peak.sum()) * (1 - 1e-12) <= found.sum() <= budget * (1 + 1e-15)
            free = (found > least * (1 + 1e-9)) & (found < peak * (1 - 1e-9))
            assert np.ptp(found[free]) <= 1e-9 * peak.max() if free.any() else True


def test_of_many_rounds_few_that_batteries_allow_are_planned_as_well_as_ever(monkeypatch):
    instance = instance_of(problem(devices=4, rounds=40, total_power=2e-4, device_power=5e-5, epsilon=1e5))
    before, shares = clairvoyant(instance), myopic(instance, rolling=True)
    longest = max(before.rounds, shares.rounds)
    assert longest < 40
    monkeypatch.setitem(clairvoyant.__globals__, "LONG", longest)
    found = clairvoyant(instance)
    assert found.lower_bound <= found.objective <= before.objective * 1.01
    assert found.objective < shares.objective * 0.99
