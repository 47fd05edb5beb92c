"""One contract for all policies, and the properties of each."""

import functools
import json
from collections import Counter

import numpy as np
import pytest

import problems
from airfed import Budget, Fleet, InfeasibleError, Learning, Link, Problem, plan, scenario, seeds
from airfed.policies import POLICIES
from airfed.privacy import classic_mu, gaussian_mu
from airfed.scenario import template

EQUAL, DIFFERENT = 0.0, 2.0  # decades of peak power


def test_plans_keep_every_limit_and_use_up_one():
    instances, binding = 1_500, Counter()
    rng = np.random.default_rng(instances)
    for index in range(instances):
        scope, formula = problems.FORMULAS[index % 3]
        decades = (EQUAL, DIFFERENT)[index % 2]
        adjacency = ("replace_one", "add_remove")[index // 2 % 2]
        steps = int(rng.integers(1, 13))
        problem = problems.random(
            rng, decades=decades, scope=scope, formula=formula, adjacency=adjacency, total_steps=steps
        )
        result = plan(problem)
        allowed = limits_by_hand(result)
        tightest = min(allowed, key=allowed.get)
        assert result.alignment <= allowed[tightest] * (1 + 1e-12)
        assert result.alignment >= allowed[tightest] * (1 - 1e-9)
        assert result.binding == tightest
        binding[tightest] += 1
    assert min(binding.values()) > 0.1 * instances  # the instances try all three


@functools.cache
def mu_by_hand(formula, epsilon, delta):
    return (classic_mu if formula == "classic" else gaussian_mu)(epsilon, delta)


def limits_by_hand(result):
    problem, budget = result.problem, result.problem.budget
    mu = mu_by_hand(budget.formula, budget.epsilon, budget.delta)
    gain = problem.fleet.gain[result.scheduled]
    shrink = np.sqrt(result.rounds) if budget.scope == "total" else 1.0
    return {
        "privacy": problem.link.noise_std * mu / shrink / (2.0 if budget.adjacency == "replace_one" else 1.0),
        "peak_power": (gain * np.sqrt(problem.fleet.peak_power[result.scheduled])).min(),
        "total_power": np.sqrt(budget.total_power / (result.rounds * np.sum(gain**-2.0))),
    }


def test_the_order_of_the_devices_does_not_matter():
    rng = np.random.default_rng(3)
    for decades in (EQUAL, DIFFERENT):
        problem = problems.random(rng, devices=12, decades=decades)
        order = rng.permutation(12)
        fleet = Fleet(gain=problem.fleet.gain[order], peak_power=problem.fleet.peak_power[order])
        shuffled = Problem(fleet=fleet, link=problem.link, learning=problem.learning, budget=problem.budget)
        for policy in ("optimal", "full", "top_k", "threshold", "paper"):
            one, other = problems.planned(problem, policy), problems.planned(shuffled, policy)
            assert sorted(order[other.scheduled]) == one.scheduled.tolist()
            assert other.alignment == pytest.approx(one.alignment, rel=1e-12)
            assert other.rounds == one.rounds


# Extremes: any positive magnitude is answered by a plan or by an InfeasibleError, never by a warning (an error here).


def extreme_problem(rng):
    num_devices = int(rng.choice([1, 2, 5]))
    kind = rng.integers(4)
    gain = 10 ** rng.uniform(-8, 8, num_devices)
    if kind == 1:
        gain[:] = gain[0]
    elif kind == 2:
        gain = rng.choice(gain, num_devices)
    elif kind == 3:
        gain[rng.random(num_devices) < 0.3] = 0.0
    scope, formula = problems.FORMULAS[rng.integers(3)]
    smoothness = 10 ** rng.uniform(-12, 12)
    return Problem(
        fleet=Fleet(gain=gain, peak_power=10 ** rng.uniform(-12, 12, num_devices)),
        link=Link(noise_std=10 ** rng.uniform(-12, 12)),
        learning=Learning(
            dimension=int(10 ** rng.uniform(0, 9)),
            total_steps=int(rng.choice([1, 2, 7])),
            clip_norm=10 ** rng.uniform(-3, 3),
            learning_rate=0.1,
            smoothness=smoothness,
            strong_convexity=smoothness * rng.choice([1.0, 0.5, 1e-6, 1e-16]),
            initial_gap=10 ** rng.uniform(-6, 6),
        ),
        budget=Budget(
            epsilon=10 ** rng.uniform(-12, 12),
            delta=10 ** rng.uniform(-12, -0.01),
            total_power=10 ** rng.uniform(-12, 12),
            scope=scope,
            formula=formula,
        ),
    )


def test_extreme_magnitudes_give_a_plan_or_a_reason():
    rng = np.random.default_rng(4)
    outcomes = Counter()
    for _ in range(150):
        problem = extreme_problem(rng)
        for policy in POLICIES:
            try:
                result = problems.planned(problem, policy)
            except InfeasibleError:
                outcomes["infeasible"] += 1
                outcomes["without a cause"] += bool(np.all(problem.fleet.gain > 0))
                continue
            json.dumps(result.to_dict(), allow_nan=False)
            assert policy == "paper" or not result.violations
            outcomes["plan"] += 1
    assert outcomes["plan"] > 600
    assert outcomes["infeasible"] > 30
    assert outcomes["without a cause"] == 0


def example(**changes):
    parts = {
        "fleet": {"gain": [0.2, 0.5, 1.1], "peak_power": 1.0},
        "link": {"noise_std": 0.1},
        "learning": {
            "dimension": 21840,
            "total_steps": 200,
            "clip_norm": 1.0,
            "learning_rate": 0.1,
            "smoothness": 10.0,
            "strong_convexity": 0.1,
            "initial_gap": 2.3,
        },
        "budget": {"epsilon": 2.0, "delta": 1e-3, "total_power": 1000.0, "scope": "round", "formula": "classic"},
    }
    for key, value in changes.items():
        part, name = key.split("__")
        parts[part][name] = value
    return Problem(
        fleet=Fleet(**parts["fleet"]),
        link=Link(**parts["link"]),
        learning=Learning(**parts["learning"]),
        budget=Budget(**parts["budget"]),
    )


def test_the_first_example():
    p = plan(example())
    assert p.scheduled.tolist() == [0, 1, 2]
    assert sum(p.local_steps) == 200
    assert p.binding == "privacy"
    assert p.epsilon_paper == pytest.approx(2.0, rel=1e-12)
    assert p.epsilon_paper <= 2.0
    assert p.epsilon_round < p.epsilon_paper  # Lemma 1 is safe, and loose, at this ε
    assert p.epsilon_total > p.epsilon_round


def test_one_device_and_one_step():
    p = plan(example(fleet__gain=[0.7], learning__total_steps=1))
    assert (p.scheduled.tolist(), p.rounds, p.local_steps) == ([0], 1, (1,))
    assert p.bound.participation == p.bound.local_drift == 0.0


@pytest.mark.parametrize("rounds", [0, -1, 201, 2.0, True, "3", 10**400])
def test_bad_rounds_are_named(rounds):
    for policy in ("optimal", "paper", "full"):
        with pytest.raises(ValueError, match="rounds"):
            plan(example(), policy=policy, rounds=rounds)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"policy": "best"}, "policy must be one of weighted, optimal, paper, full, uniform, top_k, threshold"),
        ({"policy": 3}, "policy must be a name, a function or a Policy, got 3"),
        ({"objective": "accuracy"}, r"objective must be an accuracy surrogate or None \(the bound\), got 'accuracy'"),
        ({"size": 2}, "policy='optimal' has no setting size"),
        ({"policy": "full", "size": 2}, "no setting size"),
        ({"policy": "top_k", "size": 4}, "size must be at most num_devices, 3; got 4"),
        ({"policy": "uniform", "size": 0}, "size must be at least 1, got 0"),
        ({"policy": "uniform", "size": 1.0}, "size must be a whole number"),
        ({"policy": "uniform", "seed": -1}, "seed must be at least 0, got -1"),
        ({"policy": "uniform", "seed": 1.5}, "seed must be a whole number"),
        ({"policy": "threshold"}, "threshold"),
        ({"policy": "threshold", "threshold": -1.0}, "threshold must be non-negative and finite, got -1.0"),
        ({"policy": "threshold", "threshold": float("nan")}, "threshold"),
        ({"threshold": 0.5}, "threshold"),
    ],
)
def test_bad_arguments_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        plan(example(), **options)


# The rules


def test_full_takes_all_devices_and_top_k_the_strongest_with_ties_to_the_first():
    problem = example(fleet__gain=[0.3, 1.0, 0.3, 0.9, 0.3])
    assert plan(problem, policy="full").scheduled.tolist() == [0, 1, 2, 3, 4]
    assert plan(problem, policy="top_k", size=3).scheduled.tolist() == [0, 1, 3]
    assert plan(problem, policy="top_k").num_scheduled == 3  # half, rounded up
    assert plan(problem, policy="top_k", size=5).scheduled.tolist() == [0, 1, 2, 3, 4]


def test_threshold_takes_all_gains_from_it_on():
    problem = example(fleet__gain=[0.3, 1.0, 0.5])
    assert plan(problem, policy="threshold", threshold=0.5).scheduled.tolist() == [1, 2]
    with pytest.raises(InfeasibleError, match="largest gain is 1"):
        plan(problem, policy="threshold", threshold=1.5)


def fleet_of(num_devices):
    return example(fleet__gain=np.linspace(0.1, 2.0, num_devices))


def test_uniform_is_deterministic_per_seed_and_differs_across_seeds():
    problem = fleet_of(30)
    draws = [plan(problem, policy="uniform", size=10, seed=seed, rounds=5).scheduled.tolist() for seed in range(50)]
    again = [plan(problem, policy="uniform", size=10, seed=seed, rounds=5).scheduled.tolist() for seed in range(50)]
    assert draws == again
    assert all(len(draw) == 10 for draw in draws)
    assert len({tuple(draw) for draw in draws}) == 50
    assert plan(problem, policy="uniform", seed=1).num_scheduled == 15  # half the fleet by default


def test_uniform_has_its_own_stream():
    problem = fleet_of(30)
    expected = np.sort(seeds.stream(7, "policy").choice(30, 10, replace=False))
    assert plan(problem, policy="uniform", size=10, seed=7).scheduled.tolist() == expected.tolist()
    loaded = scenario.parse(tables())
    uniform = loaded.override({"policy.name": "uniform", "policy.size": 5})
    np.testing.assert_array_equal(loaded.problem().fleet.gain, uniform.problem().fleet.gain)


def test_uniform_gives_every_device_the_same_chance():
    # 2,000 draws of 3 out of 10: each device is in 600 ± 20.5 (one standard deviation) of them.
    problem, counts = fleet_of(10), np.zeros(10)
    for seed in range(2_000):
        counts[plan(problem, policy="uniform", size=3, seed=seed, rounds=1).scheduled] += 1
    assert counts.sum() == 6_000
    assert np.all(np.abs(counts - 600) < 5 * 20.5)


# What an ε refers to


def test_neighbours_that_add_or_remove_a_device_allow_twice_the_signal():
    replace = plan(example(link__noise_std=0.01), rounds=5)
    add_remove = plan(example(link__noise_std=0.01, budget__adjacency="add_remove"), rounds=5)
    assert replace.binding == add_remove.binding == "privacy"
    assert add_remove.alignment == pytest.approx(2 * replace.alignment, rel=1e-12)
    assert add_remove.epsilon_paper == pytest.approx(replace.epsilon_paper, rel=1e-12)
    assert add_remove.to_dict()["adjacency"] == "add_remove"


def test_a_total_budget_holds_for_all_rounds_and_a_round_budget_does_not():
    by_round = plan(example(link__noise_std=0.01, budget__formula="exact"), rounds=50)
    total = plan(example(link__noise_std=0.01, budget__formula="exact", budget__scope="total"), rounds=50)
    assert by_round.binding == total.binding == "privacy"
    assert by_round.epsilon_round == pytest.approx(2.0, rel=1e-12)
    assert by_round.epsilon_total > 10
    assert total.epsilon_total == pytest.approx(2.0, rel=1e-12)
    assert total.alignment == pytest.approx(by_round.alignment / np.sqrt(50), rel=1e-12)


def test_more_budget_is_never_worse():
    rng = np.random.default_rng(5)
    for index in range(60):
        scope, formula = problems.FORMULAS[index % 3]
        problem = problems.random(rng, decades=(EQUAL, DIFFERENT)[index % 2], scope=scope, formula=formula)
        base = plan(problem).bound.total
        for name in ("epsilon", "total_power"):
            more = {**vars(problem.budget), name: 1.5 * getattr(problem.budget, name)}
            richer = Problem(fleet=problem.fleet, link=problem.link, learning=problem.learning, budget=Budget(**more))
            assert plan(richer).bound.total <= base * (1 + 1e-12)


# A plan must not leak data: nothing of the data enters it.


def tables():
    import tomllib

    return tomllib.loads(template.SCENARIO)


def test_the_plan_does_not_depend_on_the_data():
    loaded = scenario.parse(tables())
    expected = json.dumps(plan(loaded.problem()).to_dict())
    for changes in (
        {"learning.dataset": "fashion-mnist"},
        {"learning.dataset": "mnist", "learning.partition": "dirichlet", "learning.alpha": 0.1},
        {"learning.partition": "shards", "learning.shards_per_device": 3, "learning.batch_size": 7},
        {"learning.dataset": "/nowhere/at/all", "learning.dimension": 21840},
    ):
        assert json.dumps(plan(loaded.override(changes).problem()).to_dict()) == expected
