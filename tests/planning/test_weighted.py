"""The optimum over all amplitudes: against a convex solver, against other policies, its certificate and its limits."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq, minimize

import airfed
import problems
from airfed import InfeasibleError, bounds
from airfed.planning import Plan, limits, weighted
from airfed.planning.surrogate import Surrogate
from airfed.planning.three_zones import RoundProblem
from airfed.policies import METHODS

OTHERS = ("optimal", "full", "top_k", "threshold_power", "truncated_inversion")
STATIC = [name for name in problems.CATALOGUE if name.startswith(("static", "random")) and "battery" not in name]


def limit_of(problem, rounds):
    """u_k, from the definitions."""
    cap = problem.link.privacy_noise_std * limits.allowed_mu(problem.budget) / problem.budget.sensitivity
    if problem.budget.scope == "total":
        cap /= math.sqrt(rounds)
    return np.minimum(problem.fleet.reach, cap / limits.amplifications(problem))


def error_of(amplitude, problem):
    """4m² + dσ²/(2D²), from the definitions."""
    total = amplitude.sum()
    shortfall = np.maximum(1 / amplitude.size - amplitude / total, 0).sum()
    return 4 * shortfall**2 + problem.learning.dimension * problem.link.noise_std**2 / (2 * total**2)


def by_convex_solver(problem, rounds):
    """The least 4m² + dσ²/(2D²) by SLSQP over w = a/D, y ≥ 1/N − w, and s = 1/D relative to its least value."""
    gain = problem.fleet.gain
    number, on = gain.size, gain > 0
    square, limit = np.square(gain[on]), limit_of(problem, rounds)[on]
    budget = problem.budget.total_power / rounds
    weight = problem.learning.dimension * problem.link.noise_std**2 / 2
    start = np.minimum(limit, square / np.max(square / limit))
    start *= min(1.0, math.sqrt(budget / np.sum(start**2 / square)))
    unit, size = 1 / start.sum(), start.size
    x = np.concatenate((start * unit, np.maximum(1 / number - start * unit, 0), [1.0]))

    def objective(x):
        missing = x[size:-1].sum() + (number - size) / number
        gradient = np.concatenate((np.zeros(size), np.full(size, 8 * missing), [2 * weight * (unit * x[-1]) * unit]))
        return 4 * missing**2 + weight * (unit * x[-1]) ** 2, gradient

    scale = max(objective(x)[0], 1e-300)
    norm = math.sqrt(budget) * unit
    linear = np.zeros((2 * size, x.size))
    linear[:size, :size], linear[:size, -1] = -np.eye(size), limit * unit
    linear[size:, :size], linear[size:, size:-1] = np.eye(size), np.eye(size)
    least = np.concatenate((np.zeros(size), np.full(size, 1 / number)))
    whole = np.concatenate((np.ones(size), np.zeros(size + 1)))
    constraints = [
        {"type": "eq", "fun": lambda x: x[:size].sum() - 1, "jac": lambda x: whole},
        {"type": "ineq", "fun": lambda x: linear @ x - least, "jac": lambda x: linear},
        {
            "type": "ineq",
            "fun": lambda x: x[-1] ** 2 - np.sum(x[:size] ** 2 / square) / norm**2,
            "jac": lambda x: np.concatenate((-2 * x[:size] / square / norm**2, np.zeros(size), [2 * x[-1]])),
        },
    ]
    best = math.inf
    for _ in range(4):
        found = minimize(
            lambda x: tuple(each / scale for each in objective(x)),
            x,
            jac=True,
            method="SLSQP",
            constraints=constraints,
            bounds=[(0, None)] * x.size,
            options={"maxiter": 500, "ftol": 1e-16},
        )
        x = found.x
        amplitude = np.zeros(number)
        amplitude[on] = np.minimum(np.maximum(x[:size], 0) / (x[-1] * unit), limit)
        amplitude *= min(1.0, math.sqrt(budget / np.sum(amplitude[on] ** 2 / square)))
        best = min(best, error_of(amplitude, problem))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_it_agrees_with_a_convex_solver_for_every_number_of_rounds(seed):
    rng = np.random.default_rng(seed)
    gain = rng.rayleigh(size=int(rng.integers(1, 9))) + 0.02
    gain[rng.random(gain.size) < 0.1 * (seed % 3 == 0)] = 0.0
    if not gain.any():
        gain[0] = 1.0
    scope, formula = problems.FORMULAS[seed % 3]
    budget = {"scope": scope, "formula": formula, "adjacency": ("replace_one", "add_remove")[seed % 2]}
    problem = problems.random(rng, gain=gain, total_steps=6, decades=2.0 * (seed % 4 > 1), **budget)
    best = math.inf
    for rounds in range(1, 7):
        every = np.array([rounds])
        offset = float(bounds.round_offsets(problem.learning, every)[0])
        scale = float(bounds.round_scales(problem.learning, every)[0])
        plan = airfed.plan(problem, policy="weighted", rounds=rounds)
        solver = offset + scale * by_convex_solver(problem, rounds)
        assert plan.bound.total == pytest.approx(solver, rel=1e-8)
        assert not plan.violations
        assert plan.lower_bound <= min(solver, plan.bound.total)
        assert plan.gap <= 1e-9
        best = min(best, plan.bound.total)
    plan = airfed.plan(problem, policy="weighted")
    assert plan.bound.total == pytest.approx(best, rel=1e-12)
    assert plan.lower_bound <= best
    assert plan.gap <= 1e-9


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", STATIC)
def test_no_other_policy_has_a_smaller_bound(name, seed):
    problem = problems.CATALOGUE[name](seed)
    best = problems.planned(problem, "weighted")
    assert not best.violations
    assert best.gap <= 1e-9
    for policy in OTHERS:
        try:
            other = problems.planned(problem, policy)
        except InfeasibleError:
            continue
        assert other.violations or best.bound.total <= other.bound.total * (1 + 1e-12), policy
        assert other.violations or best.lower_bound <= other.bound.total, policy


@pytest.mark.parametrize("seed", range(8))
def test_by_accuracy_it_is_never_behind_the_aligned_plan(seed):
    rng = np.random.default_rng(seed)
    problem = problems.random(rng, devices=12, total_steps=24)
    axes = {"rounds": (1.0, 24.0), "clip_norm": (0.5, 2.0), "noise": (1e-6, 1e-3, 0.1, 1e4)}
    for participation in ((1.0,), (0.05, 0.5, 1.0)):
        noise = -np.log(np.array(axes["noise"])) * 0.03 + 0.4
        shape = (1, len(participation), 2, 2, 4)
        accuracy = np.broadcast_to(noise * np.sqrt(np.array(participation))[:, None, None, None], shape)
        zeros = np.zeros(shape)
        surrogate = Surrogate(
            **axes, participation=participation, averages=("none",), accuracy=accuracy, spread=zeros, loss=zeros,
            loss_spread=zeros,
        )  # fmt: skip
        best = airfed.plan(problem, policy="weighted", objective=surrogate)
        aligned = airfed.plan(problem, objective=surrogate)
        assert best.predicted_accuracy >= aligned.predicted_accuracy - 1e-12
        assert best.objective == "accuracy"
        assert best.lower_bound == -math.inf
        assert not best.violations
        if len(participation) == 1:  # the least noise of any amplitudes at this number of rounds
            assert best.noise_share == pytest.approx(problem.link.noise_std / most_sum(problem, best.rounds), rel=1e-9)


def most_sum(problem, rounds):
    """The largest D within the limits, of a matched filter min{u_k, |h_k|²x}."""
    gain, limit = problem.fleet.gain, limit_of(problem, rounds)
    budget = problem.budget.total_power / rounds
    if np.sum(limit**2 / gain**2) <= budget:
        return limit.sum()
    factor = brentq(lambda x: np.sum(np.minimum(limit, gain**2 * x) ** 2 / gain**2) - budget, 0, 1e9)
    return np.minimum(limit, gain**2 * factor).sum()


def test_where_devices_are_aligned_it_is_not_even_a_rounding_error_behind():
    rng, equal = np.random.default_rng(7), 0
    for _ in range(100):
        gain = rng.rayleigh(1.0, int(rng.integers(1, 8))) + 0.1
        given = {"noise": 10 ** rng.uniform(-2, 1), "total_power": 10 ** rng.uniform(-1, 4), "steps": 20}
        problem = problems.make(gain, scope=("round", "total")[rng.integers(2)], **given)
        best, aligned = airfed.plan(problem, policy="weighted"), airfed.plan(problem)
        assert best.bound.total <= aligned.bound.total
        equal += best.bound.total == aligned.bound.total
    assert equal > 20


@pytest.mark.parametrize("given", [{}, {"total_power": 3.0}, {"scope": "total", "epsilon": 8.0}])
def test_the_lower_bound_is_that_of_equal_rounds(given):
    """As docs/weighted.md says: the last rounds have the largest weight."""
    gain = problems.gains(0, 8)
    equal = airfed.plan(problems.make(gain, **given), policy="weighted")
    different = airfed.plan(problems.make(np.tile(gain, (8, 1)), **given), policy="weighted")
    assert 0.998 * equal.lower_bound < different.bound.total < equal.lower_bound


def test_two_baselines_with_a_smaller_bound():
    """As docs/weighted.md says: rounds that differ where the last ones count more, and noise with a known σ."""
    late = problems.make(np.ones(8), scope="total", epsilon=8.0, total_power=1e4, convexity=5.0)
    known = problems.make(np.ones(8), noise_std_lower=0.2, dimension=500, epsilon=0.5)
    for problem, policy, lower in ((late, "liu_simeone", 0.173), (known, "artificial_noise", 0.148)):
        best, other = airfed.plan(problem, policy="weighted"), airfed.plan(problem, policy=policy)
        assert not other.violations
        assert 1 - other.bound.total / best.bound.total == pytest.approx(lower, abs=5e-4)
    moving = problems.make(np.ones((8, 8)), scope="total", epsilon=8.0, total_power=1e4, convexity=5.0)
    best, other = (airfed.plan(moving, policy=policy) for policy in ("weighted", "liu_simeone"))
    assert best.bound.total <= other.bound.total * (1 + 1e-9)


def antenna_problem(seed, **given):
    channel = problems.channels((seed, 5), 6, 3)
    return problems.make(channel=channel, steps=8, **given)


@pytest.mark.parametrize("adversary", ["all_antennas", "combined"])
@pytest.mark.parametrize("seed", range(3))
def test_with_several_antennas_it_is_never_behind_the_aligned_plan(seed, adversary):
    problem = antenna_problem(seed, adversary=adversary)
    best, aligned = airfed.plan(problem, policy="weighted"), airfed.plan(problem)
    assert best.bound.total <= aligned.bound.total * (1 + 1e-12)
    assert best.lower_bound <= best.bound.total
    assert not best.violations
    fixed = problem.with_beamformer(aligned.beamformer)
    same = airfed.plan(fixed, policy="weighted")
    assert same.bound.total <= aligned.bound.total * (1 + 1e-12)
    assert same.gap <= 1e-9
    assert best.lower_bound <= same.bound.total


def test_a_plan_of_many_devices_is_that_of_all_of_them():
    rng = np.random.default_rng(0)
    number = 30_000
    gain = rng.rayleigh(size=number) + 0.01
    limit = np.minimum(0.3, gain * np.sqrt(10 ** rng.uniform(-1, 1, number)))
    for budget, noise in ((0.05, 1e2), (0.01, 1e6), (10.0, 1e5)):
        given = {"budget": budget * number, "noise_weight": noise, "num_devices": number + 10}
        one = RoundProblem.of(gain**2, limit, **given)
        found, direct = one.solve(), one._search(4e-16)
        assert found.objective == pytest.approx(direct.objective, rel=1e-12)
        assert found.dual.bound(noise) == pytest.approx(found.objective, rel=1e-11)
        amplitude = found.below.amplitudes(gain**2, limit)
        assert np.all(amplitude <= limit)
        assert amplitude.sum() == pytest.approx((number + 10) * found.below.t, rel=1e-9)


def test_the_dual_bound_is_the_dual_function_of_its_multipliers():
    """Evaluate G by maximising over each a_k on a fine grid, not by the closed form."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        gain, limit = rng.rayleigh(size=5) + 0.1, rng.uniform(0.1, 1.0, 5)
        budget, noise = 10 ** rng.uniform(-1, 1), 10 ** rng.uniform(-2, 2)
        found = RoundProblem.of(gain**2, limit, budget=budget, noise_weight=noise, num_devices=5).solve()
        point = found.below
        beta, zeta, multiplier = point.ratio, 1 - point.ratio, point.inverse / 2
        own = point.amplitudes(gain**2, limit)
        z = np.where(own < point.t * (1 - 1e-12), zeta, np.where(own > point.t * (1 + 1e-12), 0.0, 0.0))
        aligned = np.abs(own - point.t) <= 1e-12 * point.t
        z[aligned] = np.clip(2 * multiplier * point.t / gain[aligned] ** 2 - beta, 0.0, zeta)
        grid = np.linspace(0, 1, 20001)[:, None] * limit
        support = multiplier * budget + np.max((beta + z) * grid - multiplier * grid**2 / gain**2, axis=0).sum()
        bound = (beta + z.mean()) ** 2 / (zeta**2 / 4 + support**2 / noise)
        assert bound <= found.objective * (1 + 1e-7)


def test_a_record_has_the_amplitudes_and_the_plan_follows_from_it():
    problem = problems.make()
    plan = airfed.plan(problem, policy="weighted")
    assert not plan.amplitudes.equal
    again = Plan.from_dict(problem, plan.to_dict(), METHODS)
    assert np.array_equal(again.amplitude, plan.amplitude)
    assert again.to_dict() == plan.to_dict()


def test_limits_hold_exactly():
    for seed in range(100):
        problem = problems.random(np.random.default_rng(seed), decades=1.0 * (seed % 2))
        plan = airfed.plan(problem, policy="weighted")
        assert plan.power_total <= problem.budget.total_power
        assert np.all(plan.power <= problem.fleet.peak_power[plan.scheduled])
        assert plan.epsilon_round <= problem.budget.epsilon


def test_a_device_of_gain_0_counts_but_does_not_transmit():
    gain = np.array([0.0, 0.5, 1.0])
    plan = airfed.plan(problems.make(gain), policy="weighted")
    assert plan.scheduled.tolist() == [1, 2]
    assert plan.bound.participation > 0
    with pytest.raises(InfeasibleError, match="every device has gain 0"):
        airfed.plan(problems.make(np.zeros(3)), policy="weighted")


IN_TOTAL = {"budget.scope": "total", "budget.formula": "exact", "budget.epsilon": 11.23}
TABLE = {  # changes of examples/paper.toml: bounds of `optimal` and `threshold_power`, and of `weighted` with its I
    "as it is": ({}, 1794.8, 2423.2, 1489.852, 60),
    "a total ε": (IN_TOTAL, 3347.1, 3229.5, 3229.458, 35),
    "300 W": ({"budget.total_power": 300.0}, 3134.5, 4528.0, 2568.533, 42),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_table_of_the_docs(name, repository):
    changes, aligned, threshold, best, rounds = TABLE[name]
    scenario = airfed.load(repository / "examples" / "paper.toml").override(changes)
    plan = scenario.plan(policy="weighted")
    assert scenario.plan().bound.total == pytest.approx(aligned, abs=0.05)
    assert scenario.plan(policy="threshold_power").bound.total == pytest.approx(threshold, abs=0.05)
    assert (plan.bound.total, plan.rounds) == (pytest.approx(best, rel=1e-6), rounds)
    assert plan.num_scheduled == 100
    assert plan.gap <= 1e-9


def test_neighbouring_numbers_of_rounds_have_larger_bounds(repository):
    scenario = airfed.load(repository / "examples" / "paper.toml")
    for watts, near in ((1000.0, {59: 1490.054, 60: 1489.852, 61: 1491.027}), (300.0, {42: 2568.533, 43: 2572.714})):
        changed = scenario.override({"budget.total_power": watts})
        for rounds, bound in near.items():
            assert changed.plan(policy="weighted", rounds=rounds).bound.total == pytest.approx(bound, rel=1e-6)


def test_the_sample_of_a_large_fleet_only_chooses_which_number_of_rounds_is_first(monkeypatch):
    problem = problems.random(np.random.default_rng(2), devices=25_000, total_steps=40, decades=2.0)
    sizes, solve = [], RoundProblem.solve
    monkeypatch.setattr(RoundProblem, "solve", lambda self: sizes.append(self.square.size) or solve(self))
    plan = airfed.plan(problem, policy="weighted")
    assert min(sizes) <= weighted._FEW
    assert max(sizes) > weighted._LARGE
    whole = [size for size in sizes if size > weighted._LARGE]
    monkeypatch.setattr(weighted, "_LARGE", 10**9)
    sizes.clear()
    again = airfed.plan(problem, policy="weighted")
    assert (again.rounds, again.bound.total) == (plan.rounds, plan.bound.total)
    assert plan.gap <= 1e-9
    assert len(whole) <= sum(size > 20_000 for size in sizes)
