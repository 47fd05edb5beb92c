"""The optimum over all amplitudes when channels vary, against a convex solver, other policies and its certificate."""

import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

import airfed
import problems
from airfed import InfeasibleError, Plan
from airfed.planning import limits
from airfed.planning.time_varying.instance import Instance
from airfed.planning.time_varying.planner import factors, gains_of
from airfed.planning.time_varying.weighted_clairvoyant import WeightedSolver, combined
from airfed.planning.time_varying.weighted_round import WeightedRounds
from problems import ANTENNAS, BATTERIES, BUDGETS, make, planned

PROBLEMS = {name: given for name, given in (BUDGETS | BATTERIES).items() if name != "air time"}


def varying(seed=0, rounds=8, devices=8, **rest):
    return make(problems.gains(seed, rounds, devices), dimension=500, **rest)


def samples(devices=8, rounds=8):
    return problems.gains(77, 3, rounds, devices)


def error(amplitude, noise_weight):
    divisor = amplitude.sum()
    shortfall = np.maximum(1.0 / amplitude.size - amplitude / divisor, 0.0).sum()
    return 4.0 * shortfall**2 + noise_weight / divisor**2


def convex_optimum(problem, rounds):
    """The smallest bound of I rounds by a general solver, in (w, t, slack) of each round."""
    gain, count = problem.fleet.gain[:rounds], problem.fleet.num_devices
    cap = limits.privacy_cap(problem)
    limit = np.minimum(gain * np.sqrt(problem.fleet.peak_power), cap / factors(problem, gains_of(problem))[:rounds])
    learning, budget = problem.learning, problem.budget
    weights = learning.clip_norm**2 / learning.smoothness * learning.contraction ** np.arange(rounds - 1.0, -1.0, -1.0)
    unit = 1.0 / np.square(limit.sum(axis=1))  # of t: its smallest value

    def split(x):
        parts = x.reshape(rounds, 2 * count + 1)
        return parts[:, :count], parts[:, count : 2 * count], parts[:, -1] * unit

    def objective(x):
        _, missing, t = split(x)
        return float(np.sum(weights * (4.0 * np.square(missing.sum(axis=1)) + problem.noise_weight * t)))

    def power(x):
        w, _, t = split(x)
        return np.square(w / gain) / t[:, None]

    first = objective(np.column_stack((limit * 0, limit * 0, np.ones(rounds))).ravel())
    constraints = [
        {"type": "eq", "fun": lambda x: split(x)[0].sum(axis=1) - 1.0},
        {"type": "ineq", "fun": lambda x: (limit * np.sqrt(split(x)[2])[:, None] - split(x)[0]).ravel()},
        {"type": "ineq", "fun": lambda x: (split(x)[1] - (1.0 / count - split(x)[0])).ravel()},
        {"type": "ineq", "fun": lambda x: 1.0 - power(x).sum() / budget.total_power},
    ]
    if budget.device_power is not None:
        constraints.append({"type": "ineq", "fun": lambda x: 1.0 - power(x).sum(axis=0) / budget.device_power})
    if budget.scope == "total":
        seen = factors(problem, gains_of(problem))[:rounds]
        constraints.append(
            {"type": "ineq", "fun": lambda x: 1.0 - np.sum(power(x) * np.square(gain * seen), axis=0) / cap**2}
        )
    best = np.inf
    for factor in (1.5, 6.0):
        w = limit / limit.sum(axis=1, keepdims=True)
        start = np.column_stack((w, np.maximum(1.0 / count - w, 0.0), np.full(rounds, factor**2))).ravel()
        bounds = ([(0.0, 1.0)] * (2 * count) + [(1.0, None)]) * rounds
        found = minimize(
            lambda x: objective(x) / first,
            start,
            method="SLSQP",
            bounds=bounds,
            constraints=constraints,
            options={"maxiter": 500, "ftol": 1e-14},
        )
        if found.success:
            best = min(best, found.fun * first)
    return best + float(airfed.bounds.round_offsets(learning, np.array([rounds]))[0])


@pytest.mark.parametrize("name", ["round", "little power", "unequal peaks", "imperfect CSI", "add-remove", "battery"])
def test_it_agrees_with_a_convex_solver_for_every_number_of_rounds(name):
    compared = 0
    for seed in range(3):
        given = dict(PROBLEMS[name], steps=4, noise=0.1)
        if name == "unequal peaks":
            given["power"] = np.geomspace(0.2, 2.0, 4)
        problem = varying((seed, 5), 3, 4, **given | {"total_power": (9.0, 2.0, 0.4)[seed]})
        values = []
        for rounds in (1, 2, 3):
            plan = planned(problem, "weighted", rounds=rounds)
            values.append(plan.bound.total)
            best = convex_optimum(problem, rounds)
            tolerance = 1e-7 if problem.budget.scope == "round" and not problem.budget.device_power else 1e-4
            assert plan.lower_bound <= best * (1 + 1e-7)
            assert plan.bound.total <= best * (1 + tolerance)
            compared += plan.bound.total >= best * (1 - 1e-7)  # the solver is exact here, too
        assert planned(problem, "weighted").bound.total == pytest.approx(min(values), rel=1e-4)
    assert compared >= 5


def random_rounds(rng, rounds, devices):
    """Costs, limits and noise in which every zone occurs."""
    cost = 10 ** rng.uniform(-2, 2, (rounds, devices)) * 10 ** rng.uniform(-6, 2)
    limit = np.minimum(10 ** rng.uniform(-1, 1, (rounds, devices)), 10 ** rng.uniform(-1, 1))
    limit[:, 1:][rng.random((rounds, devices - 1)) < 0.1] = 0.0
    return cost, limit, float(10 ** rng.uniform(-3, 3))


def test_no_change_of_the_amplitudes_improves_a_round():
    rng = np.random.default_rng(3)
    seen = np.zeros(3, dtype=int)
    for devices in (1, 2, 3, 7, 40):
        for _ in range(20):
            cost, limit, noise = random_rounds(rng, 4, devices)
            value, amplitude, _ = WeightedRounds(cost, limit, noise, np.full((3, 4), np.nan)).solve()
            assert np.all((amplitude >= 0) & (amplitude <= limit))
            for q, u, a, known in zip(cost, limit, amplitude, value, strict=True):
                assert error(a, noise) + np.sum(q * a**2) == pytest.approx(known, rel=1e-12)
                for size in (1e-1, 1e-3, 1e-5):
                    for _ in range(5):
                        other = np.clip(a * np.exp(size * rng.normal(size=devices)), 0.0, u)
                        assert error(other, noise) + np.sum(q * other**2) >= known * (1 - 1e-12)
                    both = np.clip(a * np.exp(size * rng.normal()), 0.0, u)
                    assert error(both, noise) + np.sum(q * both**2) >= known * (1 - 1e-12)
                share = a * devices / a.sum()
                seen += [(share < 1 - 1e-9).any(), (np.abs(share - 1) < 1e-9).any(), (share > 1 + 1e-9).any()]
    assert np.all(seen > 50)


def test_a_start_from_other_costs_does_not_change_the_solution():
    rng = np.random.default_rng(4)
    for _ in range(20):
        cost, limit, noise = random_rounds(rng, 6, 12)
        cold = WeightedRounds(cost, limit, noise, np.full((3, 6), np.nan)).solve()[0]
        for factor in (1e-6, 0.7, 1e4):
            start = WeightedRounds(cost * factor, limit, noise, np.full((3, 6), np.nan)).solve()[2]
            np.testing.assert_allclose(WeightedRounds(cost, limit, noise, start).solve()[0], cold, rtol=1e-12)


def test_costs_of_very_different_sizes_are_solved():
    cost = np.array([[1e-80, 1e-18, 1e-17, 1e-16, 1.0]])
    limit = np.array([[0.2, 0.3, 0.1, 0.2, 0.5]])
    value, amplitude, _ = WeightedRounds(cost, limit, 1e-3, np.full((3, 1), np.nan)).solve()
    assert np.isfinite(value[0])
    assert error(amplitude[0], 1e-3) + np.sum(cost * amplitude**2) == pytest.approx(value[0], rel=1e-12)


def test_a_combination_spends_at_most_the_combined_power():
    rng = np.random.default_rng(5)
    one, other = 10 ** rng.uniform(-2, 1, (2, 5, 7))
    for share in (0.0, 0.3, 1.0):
        both = combined(one, other, share)
        power = [np.square(each).sum(axis=1) for each in (both, one, other)]
        errors = [np.array([error(row, 1.0) for row in each]) for each in (both, one, other)]
        for value, first, last in (power, errors):
            assert np.all(value <= (share * first + (1 - share) * last) * (1 + 1e-12))


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_is_never_worse_than_aligned_devices_and_knows_how_good_it_is(name):
    for seed in range(3):
        problem = varying((seed, 3), **PROBLEMS[name])
        plan = planned(problem, "weighted")
        assert plan.violations == ()
        assert plan.gap <= (1e-9 if problem.budget.scope == "round" and not problem.budget.device_power else 1e-8)
        for policy in ("clairvoyant", "myopic", "full", "top_k"):
            other = planned(problem, policy)
            assert plan.bound.total <= other.bound.total * (1 + 1e-9)
            assert plan.lower_bound <= other.bound.total
        causal = planned(problem, "weighted", samples=samples())
        assert causal.violations == ()
        assert causal.lower_bound == -np.inf
        assert causal.bound.total >= plan.lower_bound


def test_random_problems_are_never_worse_than_the_clairvoyant_optimum():
    rng = np.random.default_rng(6)
    better = 0
    for number in range(40):
        shape = int(rng.integers(1, 9)), int(rng.integers(1, 13))
        gain = rng.rayleigh(np.sqrt(0.5), shape) * (rng.random(shape) < 0.95) + (0.02 if number % 2 else 1e-9)
        scope = {"scope": "total"} if number % 4 == 3 else {}
        problem = problems.random(rng, gain=gain[0], total_steps=int(rng.integers(len(gain), 25)), **scope)
        fleet = airfed.Fleet(gain=gain, peak_power=10 ** rng.uniform(-1, 1, gain.shape[1]))
        problem = replace(problem, fleet=fleet)
        ours, aligned = planned(problem, "weighted"), planned(problem, "clairvoyant")
        assert ours.bound.total <= aligned.bound.total * (1 + 1e-8)
        assert ours.lower_bound <= ours.bound.total * (1 + 1e-12)
        assert ours.violations == ()
        better += ours.bound.total < aligned.bound.total * (1 - 1e-6)
    assert better >= 15


@pytest.mark.parametrize("name", ["little power", "total", "battery", "imperfect CSI"])
def test_later_gains_do_not_change_earlier_rounds(name):
    problem = varying(**PROBLEMS[name])
    plan = planned(problem, "weighted", rounds=8, samples=samples())
    for now in (1, 4, 7):
        gain = problem.fleet.gain.copy()
        gain[now:] = 100.0 * problems.gains(9, 8, 8)[now:]
        changed = replace(problem, fleet=airfed.Fleet(gain=gain, peak_power=1.0))
        other = planned(changed, "weighted", rounds=8, samples=samples())
        np.testing.assert_array_equal(plan.amplitude[:now], other.amplitude[:now])
        # privacy alone gives the same amplitudes for all gains
        assert name == "total" or not np.array_equal(plan.amplitude[now:], other.amplitude[now:])


def test_a_conditional_sampler_is_asked_only_about_the_rounds_so_far():
    problem = varying(**PROBLEMS["little power"])
    asked = []

    def sampler(seen):
        np.testing.assert_array_equal(seen, problem.fleet.gain[: len(seen)])
        asked.append(len(seen))
        return samples()[:, len(seen) :]

    plan = planned(problem, "weighted", samples=sampler, rounds=8)
    same = planned(problem, "weighted", samples=samples(), rounds=8)
    assert asked == sorted(asked)
    assert set(asked) == set(range(8))
    assert plan.bound.total == pytest.approx(same.bound.total, rel=2e-3)


def test_constant_gains_give_the_static_optimum():
    gain = problems.gains(4, 8)
    for given in (PROBLEMS["little power"], PROBLEMS["total"]):
        one = planned(make(gain, dimension=500, **given), "weighted", rounds=4)
        many = planned(make(np.tile(gain, (8, 1)), dimension=500, **given), "weighted", rounds=4)
        assert many.bound.total <= one.bound.total * (1 + 1e-6)
        assert many.bound.total >= one.bound.total * 0.9  # rounds of larger weight may get more power
        battery = make(gain, dimension=500, device_power=1e6, **given)  # rounds may differ, but no battery binds
        assert planned(battery, "weighted", rounds=4).bound.total == pytest.approx(many.bound.total, rel=1e-4)


@pytest.mark.parametrize("name", ANTENNAS)
def test_several_antennas(name):
    problem = make(channel=problems.channels(3, 4, 6, 2), dimension=500, steps=4, **ANTENNAS[name])
    for given in (None, problems.channels(5, 2, 4, 6, 2)):
        plan = planned(problem, "weighted", samples=given)
        assert plan.violations == ()
        assert plan.bound.total <= planned(problem, "optimal", samples=given).bound.total * (1 + 1e-4)
        assert given is not None or plan.lower_bound <= plan.bound.total


def test_a_round_without_any_gain_gives_the_same_message_as_optimal():
    gain = problems.gains(1, 4, 5)
    gain[2] = 0.0
    problem = make(gain, steps=4)
    draws = samples(5, 4)
    for given in (None, draws):
        for policy in ("weighted", "optimal"):
            with pytest.raises(InfeasibleError, match=r"^No plan fits: every gain of round 3 is 0 \(peak_power\)\.$"):
                planned(problem, policy, rounds=4, samples=given)
    assert planned(problem, "weighted").rounds <= 2


def test_the_record_of_a_plan_can_be_read():
    problem = varying(**PROBLEMS["battery total"])
    plan = planned(problem, "weighted")
    assert Plan.from_dict(problem, plan.to_dict()).to_dict() == plan.to_dict()


def test_a_scenario_is_planned_causally_with_the_bounds_of_the_docs():
    scenario = airfed.load("examples/fading.toml")
    plan = scenario.plan(policy="weighted")
    assert plan.violations == ()
    assert (plan.rounds, plan.bound.total) == (37, pytest.approx(2129.8, rel=1e-3))
    assert scenario.plan().bound.total == pytest.approx(2413.8, rel=1e-3)
    known = airfed.plan(scenario.problem(), policy="weighted")
    assert known.bound.total == pytest.approx(1794.0, rel=1e-4)
    assert airfed.plan(scenario.problem()).bound.total == pytest.approx(2053.2, rel=1e-4)
    assert known.gap <= 1e-9


def lower_by(problem):
    return 1.0 - airfed.plan(problem, policy="weighted").bound.total / airfed.plan(problem).bound.total


@pytest.mark.slow
def test_the_improvement_over_aligned_devices_in_the_docs():
    scenario = airfed.load("examples/fading.toml")
    found = [lower_by(scenario.override({"seed": seed}).problem()) for seed in range(50)]
    np.testing.assert_allclose(np.quantile(found, [0.25, 0.5, 0.75]), [0.133, 0.156, 0.180], atol=1e-3)
    rng, found = np.random.default_rng(11), []
    for _ in range(60):
        rounds, devices = int(rng.integers(5, 31)), int(rng.integers(5, 51))
        gain = np.maximum(rng.rayleigh(np.sqrt(0.5), (rounds, devices)), 0.02)
        problem = problems.random(rng, gain=gain[0], total_steps=rounds * int(rng.integers(1, 4)))
        rng.rayleigh(np.sqrt(0.5), (8, rounds, devices))  # the samples of the causal plans
        fleet = airfed.Fleet(gain=gain, peak_power=problem.fleet.peak_power)
        found.append(lower_by(replace(problem, fleet=fleet)))
    np.testing.assert_allclose(np.quantile(found, [0.25, 0.5, 0.75]), [0.0, 0.007, 0.126], atol=1e-3)
    assert min(found) >= -1e-8


def test_many_devices_and_rounds_take_seconds():
    rng = np.random.default_rng(8)
    gain = np.maximum(rng.rayleigh(np.sqrt(0.5), (100, 100)), 0.05)
    problem = make(gain, dimension=20_000, steps=100, total_power=100.0, convexity=0.1)
    for given in ({}, {"device_power": 2.0}):
        start = time.process_time()
        plan = planned(replace(problem, budget=replace(problem.budget, **given)), "weighted")
        assert time.process_time() - start < 10.0
        assert plan.gap <= 1e-3


def test_the_multiplier_zero_gives_a_valid_bound():
    problem = varying()
    gain = problem.fleet.gain
    instance = Instance(
        gain=gain,
        peak_power=problem.fleet.peak_power,
        noise_weight=problem.noise_weight,
        learning=problem.learning,
        cap=0.5,
        total_power=1.0,
    )
    solver = WeightedSolver(instance, np.ones(gain.shape))
    free, cheap = solver.at(np.zeros(8)), solver.at(np.full(8, 1e-9))
    assert np.all(free.value <= cheap.value)
    np.testing.assert_allclose(free.value, cheap.value, rtol=1e-6)
