"""The converse: proved optimal for constant gains, and below every plan of every policy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import optimize

import airfed
import problems
from airfed import InfeasibleError
from airfed.experiments.benchmark import one_total
from airfed.planning import converse, limits
from airfed.policies import EVERY
from problems import CATALOGUE, gains, make, planned

ROOT = Path(__file__).parents[2]
OUTSIDE = ("fedavg", "dp_fedavg", "digital", "secure_aggregation", "cotaf")
COVERED = [name for name in EVERY if name not in OUTSIDE]
LINEAR = (
    *("weighted", "optimal", "paper", "full", "uniform", "top_k", "truncated_inversion", "threshold_power"),
    *("liu_simeone", "artificial_noise"),
)


def least(problem, rounds):
    """The smallest root mean square of σ/D_i over all amplitudes, by a general convex solver."""
    fleet, budget = problem.fleet, problem.budget
    gain = np.broadcast_to(fleet.gain if fleet.time_varying else fleet.gain[None], (rounds, fleet.num_devices))
    factor = np.broadcast_to(limits.amplifications(problem), gain.shape)
    cap = problem.link.noise_std * limits.allowed_mu(budget) / budget.sensitivity
    most = np.minimum(gain * np.sqrt(fleet.peak_power), cap / factor)
    # Amplitudes in units of their limits.
    left = [lambda x: 1 - np.sum(np.square(x * (most / gain).ravel())) / budget.total_power]
    if budget.scope == "total":
        left.append(lambda x: 1 - np.sum(np.square((x.reshape(gain.shape) * most * factor) / cap), axis=0))
    if budget.device_power is not None:
        batteries = np.broadcast_to(budget.device_power, fleet.num_devices)
        left.append(lambda x: 1 - np.sum(np.square(x.reshape(gain.shape) * most / gain), axis=0) / batteries)
    unit = most.sum() / rounds

    def noise(x):
        return np.mean(np.square(unit / (x.reshape(gain.shape) * most).sum(axis=1)))

    start = np.full(gain.size, 0.5 / np.sqrt(rounds))
    while min(np.min(f(start)) for f in left) < 0:
        start /= 2
    found = optimize.minimize(
        noise,
        start,
        method="SLSQP",
        bounds=[(1e-9, 1.0)] * gain.size,
        constraints=[{"type": "ineq", "fun": f} for f in left],
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    assert found.success, found.message
    return problem.link.noise_std / unit * np.sqrt(found.fun)


SMALL = {
    "round": {},
    "peak": {"power": 0.05, "total_power": 100.0},
    "little power": {"total_power": 0.4},
    "total": {"scope": "total"},
    "total, add-remove": {"scope": "total", "adjacency": "add_remove", "total_power": 2.0},
    "unequal peaks": {"power": [0.05, 1.0, 3.0, 0.3], "total_power": 1.5},
    "imperfect CSI": {"csi_error": 0.02, "total_power": 2.0},
    "imperfect CSI, total": {"csi_error": 0.02, "scope": "total", "epsilon": 20.0},
    "batteries": {"device_power": [0.05, 1.0, 0.3, 0.02]},
    "batteries, total": {"device_power": 0.2, "scope": "total", "total_power": 0.5},
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("rounds", [1, 3])
def test_it_is_the_optimum_of_a_convex_solver_where_gains_are_constant(name, rounds):
    problem = make(gains(3, 4), **SMALL[name])
    assert converse.least_noise(problem, rounds) == pytest.approx(least(problem, rounds), rel=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_it_is_below_the_optimum_of_a_convex_solver_where_gains_vary(name):
    problem = make(gains(4, 3, 4), **SMALL[name])
    floor, best = converse.least_noise(problem, 3), least(problem, 3)
    assert best / 1.6 < floor <= best * (1 + 1e-6)


@pytest.mark.parametrize("policy", COVERED)
@pytest.mark.parametrize("family", ["static", "varying", "antennas", "varying antennas", "random"])
def test_every_plan_of_every_analog_policy_lies_above_it(policy, family):
    number = 0
    for name in (each for each in CATALOGUE if each.startswith(f"{family}/")):
        for seed in range(8 if family == "random" else 1):
            problem = CATALOGUE[name](seed)
            if EVERY[policy].time_varying and not problem.time_varying:
                continue
            try:
                plan = planned(problem, policy)
            except InfeasibleError:
                continue
            if not plan.violations:
                assert plan.noise_share >= plan.noise_floor * (1 - 1e-9), (name, seed)
                number += 1
    assert (
        number > 0
        or (policy in ("clairvoyant", "myopic") and family in ("antennas", "random"))
        or (EVERY[policy].baseline and "antennas" in family)
    )


def test_it_holds_for_random_feasible_amplitudes_and_every_beamformer():
    """Random tables, scaled up to the first limit that binds."""
    rng = np.random.default_rng(7)
    for trial in range(200):
        scope = ("round", "total")[trial % 2]
        if trial % 3:
            problem = problems.random(rng, scope=scope)
        else:
            antennas = problems.channels((trial, 5), 5, 3)
            problem = make(channel=antennas, scope=scope, adversary=("combined", "all_antennas")[trial // 3 % 2])
            problem = problem.with_beamformer(problems.channels((trial, 6), 3))
        rounds = int(rng.integers(1, 1 + problem.most_rounds))
        table = rng.exponential(1.0, (rounds, problem.fleet.num_devices)) + 1e-3
        small = airfed.Plan(problem=problem, policy="x", amplitudes=airfed.planning.Amplitudes.of_table(table))
        scale = min(small.growth_limits().values()) * (1 - 1e-12)
        plan = replace(small, amplitudes=airfed.planning.Amplitudes.of_table(scale * table))
        assert not plan.violations
        assert plan.noise_share >= plan.noise_floor * (1 - 1e-12)


@pytest.mark.parametrize("adversary", ["combined", "all_antennas"])
@pytest.mark.parametrize("name", ["round", "peak", "little power", "total"])
def test_it_is_that_of_one_antenna_where_channels_are_parallel(name, adversary):
    """One beamformer then matches every channel, and |fᴴh_k| = ‖h_k‖."""
    direction = np.array([0.6, 0.8j])
    several = make(channel=gains(3, 4)[:, None] * direction, adversary=adversary, **SMALL[name])
    alone = converse.least_noise(make(gains(3, 4), **SMALL[name]), 3)
    assert converse.least_noise(several, 3) == pytest.approx(alone, rel=1e-12)


def test_methods_outside_have_none():
    problem = make()
    for name in OUTSIDE:
        assert planned(problem, name).noise_floor is None
    assert planned(problem, "dp_fedavg").noise_share < planned(problem, "full").noise_floor  # a trusted server can


def test_a_measured_noise_grants_sigma_to_methods_with_noise_of_their_own():
    measured, known = make(noise_std_lower=0.2), make()
    assert converse.least_noise(measured, 4) == converse.least_noise(known, 4)


def test_the_examples_are_as_far_above_it_as_the_docs_say():
    private, paper = (airfed.load(ROOT / f"examples/{name}.toml").plan() for name in ("private", "paper"))
    assert private.noise_share / private.noise_floor == pytest.approx(1, abs=1e-9)
    assert paper.noise_share / paper.noise_floor - 1 == pytest.approx(0.147, abs=5e-4)
    fleet, budget = paper.problem.fleet, paper.problem.budget
    closed = min(
        np.minimum(limits.privacy_cap(paper.problem), fleet.reach).sum(),
        np.sqrt(budget.total_power / paper.rounds * np.square(fleet.gain).sum()),
    )
    assert paper.noise_share * closed / paper.problem.link.noise_std - 1 == pytest.approx(0.278, abs=5e-4)
    assert f"{paper}".count("Noise: 14.7% above the least of any linear method in 53 rounds.") == 1
    assert paper.to_dict()["noise_floor"] == paper.noise_floor


@pytest.mark.parametrize("name", ["private", "paper", pytest.param("fading", marks=pytest.mark.slow)])
def test_the_plan_of_every_method_in_a_benchmark_lies_above_it(name):
    scenario = one_total(airfed.load(ROOT / f"examples/{name}.toml"))
    varying = ("clairvoyant", "myopic") if name == "fading" else ()
    number = 0
    for policy in (*LINEAR, *varying):
        for seed in range(3 if name != "fading" else 1):
            plan = scenario.plan(policy=policy, seed=seed)
            if not plan.violations:
                assert plan.noise_share >= plan.noise_floor * (1 - 1e-9), (policy, seed)
                number += 1
    assert number >= 8


def test_recorded_accuracies_lie_within_the_interval_of_the_highest_expected_accuracy():
    """A surrogate has an error: recorded means are above its expectation, not above its interval."""
    recorded = pd.read_csv(ROOT / "docs/studies/networks.csv").set_index(["network", "epsilon"])["accuracy"]
    scenario = airfed.load(ROOT / "examples/private.toml")
    for surrogate in ("mnist-5k-cnn-4", "fashion-mnist-cnn-4"):
        plan = scenario.override({"policy.surrogate": surrogate}).plan()
        highest = converse.highest_accuracy(plan.problem, scenario.override({"policy.surrogate": surrogate}).surrogate)
        assert plan.predicted_accuracy <= highest
        assert highest < recorded["cnn", 2.0].mean() < plan.prediction.high


def test_no_plan_expects_more_than_the_highest_accuracy():
    scenario = airfed.load(ROOT / "examples/private.toml")
    surrogate, found = scenario.surrogate, []
    for epsilon, watts in ((0.5, 1000.0), (2.0, 1000.0), (16.0, 1000.0), (16.0, 30.0), (2.0, 5.0)):
        changed = scenario.override({"budget.epsilon": epsilon, "budget.total_power": watts})
        found.append(converse.highest_accuracy(changed.problem(), surrogate))
        for plan in changed.compare(baselines=True)[0].values():
            if plan.prediction and plan.noise_floor is not None and not plan.violations:
                assert plan.prediction.accuracy <= found[-1] + 1e-12, plan.policy
    assert found[0] < found[1] < found[2]
    assert found[3] < found[2]
    assert found[4] < found[1]


def test_the_highest_accuracy_of_a_large_fleet_is_found_from_some_numbers_of_rounds(monkeypatch):
    scenario = airfed.load(ROOT / "examples/private.toml")
    problem, surrogate = scenario.problem(), scenario.surrogate
    exact = converse.highest_accuracy(problem, surrogate)
    monkeypatch.setattr(converse, "thinned", lambda rounds, _: rounds[::7])
    assert exact <= converse.highest_accuracy(problem, surrogate) < exact + 0.02


@pytest.mark.parametrize("weakest", [1e-6, 1e-8, 1e-12])
def test_rounding_at_the_limit_of_a_device_does_not_lose_its_amplitude(weakest):
    problem = make(np.array([1.0, weakest]), noise=1.0, steps=1, total_power=1.0, epsilon=20.0)
    cap = limits.privacy_cap(problem, analog=False)
    assert cap > 1.0
    assert converse.least_noise(problem, 1) == pytest.approx(1.0, rel=1e-6)


def test_gains_two_hundred_orders_of_magnitude_apart_give_no_warning():
    problem = make(np.array([1e-100, 1e100]), power=1e100, noise=1e3, steps=1, total_power=1e30)
    assert converse.least_noise(problem, 1) == pytest.approx(1e3 / limits.privacy_cap(problem), rel=1e-9)


def test_a_power_budget_far_below_the_gains_leaves_the_least_noise_finite():
    problem = make(np.array([0.0, 1e100]), noise=1.0, steps=1, total_power=1e-124, epsilon=1e100)
    assert converse.least_noise(problem, 1) == pytest.approx(1e-38, rel=1e-12)
