"""The plan that knows all gains, and its certificate."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from airfed import InfeasibleError
from airfed.planning import exact
from airfed.planning.time_varying.clairvoyant import DualSearch, clairvoyant, solver_of
from airfed.planning.time_varying.device_budgets import myopic


def subsets(num):
    return [np.flatnonzero((bits >> np.arange(num)) & 1) for bits in range(1, 1 << num)]


def prefixes(gain):
    order = np.argsort(-gain, kind="stable")
    return [order[:size] for size in range(1, gain.size + 1)]


def brute_force(instance, rounds, *, ordered=False):
    """The optimum of I rounds by trying every schedule in every round, θ by bisection of the multiplier.

    Args:
        ordered: try only the strongest devices, which is enough where peak powers are equal.
    """
    noise, weights = instance.noise_weight, instance.weights(rounds)
    tables = []
    for i in range(rounds):
        sets = prefixes(instance.gain[i]) if ordered else subsets(instance.num_devices)
        size = np.array([k.size for k in sets])
        load = np.array([np.sum(instance.gain[i, k] ** -2.0) for k in sets])
        limit = [min(instance.cap**2, np.min(instance.gain[i, k] ** 2 * instance.peak_power[k])) for k in sets]
        tables.append((size, load, np.array(limit)))
    combos = np.array(list(itertools.product(*(range(len(table[0])) for table in tables))))
    size, load, limit = (np.stack([tables[i][j][combos[:, i]] for i in range(rounds)], axis=1) for j in range(3))
    low, high = np.full(len(combos), -200.0), np.full(len(combos), 200.0)
    for _ in range(80):
        middle = (low + high) / 2
        square = np.minimum(limit, np.sqrt(weights * noise / load * np.exp(-middle)[:, None]) / size)
        over = np.sum(square * load, axis=1) > instance.total_power
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    square = np.minimum(limit, np.sqrt(weights * noise / load * np.exp(-high)[:, None]) / size)
    error = weights * (4 * (1 - size / instance.num_devices) ** 2 + noise / (size**2 * square))
    return instance.offsets()[rounds - 1] + np.min(error.sum(axis=1))


@pytest.mark.parametrize("decades", [0.0, 2.0])
def test_brute_force_lies_between_the_lower_bound_and_the_plan(random_instance, check_limits, decades):
    rng = np.random.default_rng(0)
    for _ in range(25):
        devices, rounds = [(2, 3), (3, 3), (4, 2), (4, 1)][rng.integers(4)]
        instance = random_instance(rng, devices=devices, rounds=rounds, decades=decades)
        best = [brute_force(instance, number) for number in range(1, rounds + 1)]
        found = clairvoyant(instance)
        check_limits(instance, found)
        assert found.lower_bound <= min(best)
        assert min(best) <= found.objective * (1 + 1e-9)
        assert found.gap <= 1e-3 * (1 + 1e-9)
        number = int(rng.integers(1, rounds + 1))
        fixed = clairvoyant(instance, rounds=number)
        assert fixed.rounds == number
        assert fixed.lower_bound <= best[number - 1] <= fixed.objective * (1 + 1e-9)
        assert fixed.gap <= 1e-3 * (1 + 1e-9)


@pytest.mark.parametrize(("decades", "devices", "rounds"), [(0.0, 9, 3), (2.0, 3, 2)])
def test_branching_closes_the_duality_gap(random_instance, monkeypatch, decades, devices, rounds):
    rng = np.random.default_rng(10)
    closed = 0
    for _ in range(130):  # enough that a lost branch is noticed
        instance = random_instance(
            rng, devices=devices, rounds=rounds, decades=decades, total_steps=rounds, initial_gap=1e-2
        )
        instance = instance.scaled()[0]
        search = DualSearch(instance, solver_of(instance).at, rounds=rounds)
        search.solve(only=rounds)
        best = brute_force(instance, rounds, ordered=not decades)
        if search.best[-1] >= best * (1 - 1e-6):
            continue
        closed += 1
        found = clairvoyant(instance, rounds=rounds, rtol=1e-9)
        assert search.best[-1] < found.lower_bound <= best * (1 + 1e-12)
        assert best <= found.objective * (1 + 1e-9)
        assert found.gap <= 1e-8
    assert closed >= 3


def brute_force_devices(instance, rounds):
    """The same with batteries: θ by a general solver."""
    weights, noise, best = instance.weights(rounds), instance.noise_weight, np.inf
    for chosen in itertools.product(subsets(instance.num_devices), repeat=rounds):
        size = np.array([k.size for k in chosen])
        base = np.sum(weights * 4 * (1 - size / instance.num_devices) ** 2)
        limit = np.array(
            [
                min(instance.cap**2, np.min(instance.gain[i, k] ** 2 * instance.peak_power[k]))
                for i, k in enumerate(chosen)
            ]
        )
        rows, budget = np.zeros((1 + 2 * instance.num_devices, rounds)), [instance.total_power]
        for i, k in enumerate(chosen):
            rows[0, i] = np.sum(instance.gain[i, k] ** -2.0)
            rows[1 + k, i] = instance.gain[i, k] ** -2.0
            rows[1 + instance.num_devices + k, i] = 1.0
        budget = np.concatenate(([instance.total_power], instance.device_power, instance.device_exposure))
        rows = rows / budget[:, None]
        cost = weights * noise / size**2
        if base + np.sum(cost / limit) >= best:
            continue
        start = np.log(limit / max(1.0, float(np.max(rows @ limit))))
        found = minimize(
            lambda y, cost=cost: np.sum(cost * np.exp(-y)) / np.sum(cost),
            start,
            jac=lambda y, cost=cost: -cost * np.exp(-y) / np.sum(cost),
            bounds=[(None, x) for x in np.log(limit)],
            constraints={
                "type": "ineq",
                "fun": lambda y, rows=rows: 1 - rows @ np.exp(y),
                "jac": lambda y, rows=rows: -rows * np.exp(y),
            },
            method="SLSQP",
            options={"ftol": 1e-13, "maxiter": 200},
        )
        square = np.minimum(np.exp(found.x), limit)
        square /= max(1.0, float(np.max(rows @ square)))
        best = min(best, base + np.sum(cost / square))
    return instance.offsets()[rounds - 1] + best


def test_with_batteries_brute_force_lies_between_the_bounds(random_instance, check_limits):
    rng = np.random.default_rng(1)
    for _ in range(4):
        instance = random_instance(rng, devices=2, rounds=2, battery=rng.uniform(0.2, 1), exposure=rng.uniform(0.1, 1))
        found = clairvoyant(instance, rounds=2)
        check_limits(instance, found)
        best = brute_force_devices(instance, 2)
        assert found.lower_bound <= best * (1 + 1e-9)
        assert best <= found.objective * (1 + 1e-6)


@pytest.mark.parametrize("budgets", [{}, {"battery": 0.5}, {"exposure": 0.3}, {"battery": 1.0, "exposure": 0.5}])
def test_limits_hold_and_no_other_plan_is_below_the_lower_bound(random_instance, check_limits, budgets):
    rng = np.random.default_rng(2)
    for trial in range(4):
        instance = random_instance(rng, devices=int(rng.integers(1, 15)), rounds=int(rng.integers(1, 9)),
                             decades=2.0 * (trial % 2), **budgets)  # fmt: skip
        found = clairvoyant(instance)
        check_limits(instance, found)
        assert found.lower_bound <= found.objective
        for number in range(1, instance.most_rounds + 1):
            other = myopic(instance, rounds=number)
            check_limits(instance, other)
            assert other.objective >= found.lower_bound


@pytest.mark.parametrize("decades", [0.0, 2.0])
def test_with_constant_gains_no_constant_plan_is_better(random_instance, decades):
    rng = np.random.default_rng(3)
    for _ in range(10):
        instance = random_instance(
            rng, devices=8, rounds=6, decades=decades, gain=np.tile(rng.rayleigh(size=8), (6, 1))
        )
        number = np.arange(1, 7)
        constant = exact.best_schedule(
            instance.gain[0],
            instance.peak_power,
            cap=np.full(6, instance.cap),
            round_budget=instance.total_power / number,
            offset=instance.offsets(),
            scale=np.array([instance.weights(int(i)).sum() for i in number]),
            noise_weight=instance.noise_weight,
        )
        found = clairvoyant(instance)
        assert found.lower_bound <= constant.objective * (1 + 1e-12)
        assert found.objective <= constant.objective * (1 + 1e-3)


@pytest.mark.parametrize(("devices", "rounds"), [(5, 5), (5, 40), (50, 40), (300, 20)])
def test_the_gap_is_small(random_instance, devices, rounds):
    rng = np.random.default_rng(4)
    gaps = [clairvoyant(random_instance(rng, devices=devices, rounds=rounds)).gap for _ in range(8)]
    assert min(gaps) >= 0
    assert max(gaps) <= 0.01
    assert np.median(gaps) <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("decades", [0.0, 2.0])
def test_the_gap_is_small_from_five_to_a_thousand_devices(random_instance, check_limits, decades):
    rng = np.random.default_rng(5)
    gaps = {}
    for _ in range(60):
        devices = round(10 ** rng.uniform(0.7, 2 if decades else 3))
        instance = random_instance(rng, devices=devices, rounds=int(rng.integers(1, 41)), decades=decades)
        found = clairvoyant(instance)
        check_limits(instance, found)
        gaps.setdefault(devices >= 50, []).append(found.gap)
    assert max(gaps[False] + gaps[True]) <= 0.01
    assert np.median(gaps[True]) <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("budgets", [{"battery": 1.0}, {"exposure": 0.4}, {"battery": 1.0, "exposure": 0.6}])
def test_the_gap_with_devices_own_budgets(random_instance, check_limits, budgets):
    rng = np.random.default_rng(6)
    gaps = []
    for _ in range(5):
        instance = random_instance(rng, devices=int(rng.integers(20, 80)), rounds=int(rng.integers(20, 40)), **budgets)
        found = clairvoyant(instance)
        check_limits(instance, found)
        gaps.append(found.gap)
    assert np.median(gaps) <= 0.02
    assert max(gaps) <= 0.1  # a device that sends in a few rounds only cannot spend its battery exactly


def test_units_change_nothing(random_instance):
    rng = np.random.default_rng(7)
    instance = random_instance(rng, devices=9, rounds=5)
    other = replace(
        instance,
        gain=instance.gain * 8.0,
        peak_power=instance.peak_power * 2.0**-20,
        noise_weight=instance.noise_weight * 2.0**-14,
        cap=instance.cap * 2.0**-7,
        total_power=instance.total_power * 2.0**-20,
    )
    found, again = clairvoyant(instance), clairvoyant(other)
    np.testing.assert_array_equal((found.amplitudes.dense > 0), (again.amplitudes.dense > 0))
    np.testing.assert_array_equal(found.amplitudes.level * 2.0**-7, again.amplitudes.level)
    assert found.objective == again.objective
    assert found.lower_bound == again.lower_bound


@pytest.mark.parametrize("budgets", [{}, {"battery": 0.5, "exposure": 0.5}])
def test_extreme_instances_have_plans(random_instance, check_limits, budgets):
    rng = np.random.default_rng(8)
    for extreme in ({"smoothness": 5.0, "strong_convexity": 5.0}, {"total_steps": 1}, {"total_steps": 1000}):
        instance = random_instance(rng, devices=3, rounds=30, **extreme, **budgets)
        check_limits(instance, clairvoyant(instance))
    instance = random_instance(rng, devices=1, rounds=1, **budgets)
    check_limits(instance, clairvoyant(instance))


def test_gains_of_zero_are_never_scheduled_and_end_the_rounds(random_instance, check_limits):
    rng = np.random.default_rng(9)
    gain = rng.rayleigh(size=(6, 5))
    gain[:, 2], gain[4] = 0.0, 0.0
    for budgets in ({}, {"battery": 0.5}, {"decades": 1.0}):
        instance = random_instance(rng, devices=5, rounds=6, gain=gain, **budgets)
        found = clairvoyant(instance)
        check_limits(instance, found)
        assert found.rounds <= 4
        assert not (found.amplitudes.dense > 0)[:, 2].any()
        with pytest.raises(InfeasibleError, match="round 5"):
            clairvoyant(instance, rounds=5)
        with pytest.raises(ValueError, match=r"rounds must be at most 6.*got 7"):
            clairvoyant(instance, rounds=7)


def test_with_many_unreachable_devices_the_gap_is_as_small(random_instance, check_limits):
    rng = np.random.default_rng(12)
    for _ in range(30):
        gain = rng.rayleigh(np.sqrt(0.5), (20, 30)) + 0.02
        gain[gain < np.quantile(gain, 0.6)] = 0.0
        gain[:, 0] = np.maximum(gain[:, 0], 0.5)  # a device is always reachable
        instance = random_instance(rng, devices=30, rounds=20, gain=gain)
        found = clairvoyant(instance)
        check_limits(instance, found)
        assert not (found.amplitudes.dense > 0)[gain[: found.rounds] == 0].any()
        assert found.gap <= 1e-3
