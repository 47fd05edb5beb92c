"""The exact planner with equal peak powers, its limits and its errors."""

import numpy as np
import pytest

from airfed.planning.exact import best_schedule, candidate_space
from airfed.problem import InfeasibleError
from brute_force import brute_force_schedule

ONE = np.ones(1)
SINGLE = {"cap": ONE, "round_budget": ONE, "offset": 0 * ONE, "scale": ONE, "noise_weight": 1.0}


def instance(rng, most_devices, most_rounds):
    """Gains over two decades, at times tied or zero, and limits scaled so that each binds often."""
    n, r = rng.integers(1, most_devices + 1), rng.integers(1, most_rounds + 1)
    gain = 10 ** rng.uniform(-1, 1, n)
    if rng.random() < 0.3:
        gain = np.round(2 * gain) / 2
    if rng.random() < 0.2:
        gain[rng.random(n) < 0.5] = 0
    if not gain.any():
        gain[rng.integers(n)] = 1.0
    power = 10 ** rng.uniform(-1, 1)
    order = rng.permutation(r) + 1  # candidates in no particular order
    arguments = {
        "cap": 10 ** rng.uniform(-1, 1) / order ** rng.choice([0.0, 0.5]),
        "round_budget": 10 ** rng.uniform(-2, 2) * n / order,
        "offset": rng.uniform(0, 1, r),
        "scale": rng.uniform(0.1, 1, r),
        "noise_weight": 10 ** rng.uniform(-2, 1) * n**2,
    }
    return gain, power, arguments


def check_feasible(choice, gain, power, arguments):
    """Every limit holds to 1e-12, and the binding one is used to 1e-9."""
    k, r = choice.scheduled, choice.round_index
    assert k.size == choice.size > 0
    assert np.all(np.diff(k) > 0)
    peak_power = np.broadcast_to(power, gain.shape)[k]
    use = {
        "privacy": choice.alignment / arguments["cap"][r],
        "peak_power": np.max(choice.alignment / (gain[k] * np.sqrt(peak_power))),
        "total_power": np.sqrt(choice.alignment**2 * np.sum(gain[k] ** -2.0) / arguments["round_budget"][r]),
    }
    assert max(use.values()) <= 1 + 1e-12
    assert use[choice.binding] >= 1 - 1e-9
    n = gain.size
    psi = 4 * (1 - k.size / n) ** 2 + arguments["noise_weight"] / (k.size * choice.alignment) ** 2
    assert choice.objective == pytest.approx(arguments["offset"][r] + arguments["scale"][r] * psi, rel=1e-12)


def test_equals_brute_force_over_all_subsets_and_rounds():
    rng = np.random.default_rng(1)
    binding = []
    for _ in range(2000):
        gain, power, arguments = instance(rng, 8, 8)
        choice = best_schedule(gain, power, **arguments)
        oracle = brute_force_schedule(gain, power, **arguments)
        assert choice.objective == pytest.approx(oracle.objective, rel=1e-9)
        check_feasible(choice, gain, power, arguments)
        binding.append(choice.binding)
    assert min(binding.count(name) for name in ("privacy", "peak_power", "total_power")) > 200


def test_feasible_and_binding_on_many_larger_instances():
    rng = np.random.default_rng(2)
    for _ in range(3000):
        gain, power, arguments = instance(rng, 200, 6)
        check_feasible(best_schedule(gain, power, **arguments), gain, power, arguments)


@pytest.mark.parametrize("num_devices", [513, 3000, 20_000])
def test_block_search_equals_every_size_of_the_closed_form(num_devices):
    rng = np.random.default_rng(3)
    for scale_ in (0.03, 1.0, 30.0):
        gain, rounds = rng.rayleigh(size=num_devices), np.arange(1, 21)
        arguments = {
            "cap": np.full(20, 0.4),
            "round_budget": scale_ * num_devices / rounds,
            "offset": 2.3 * 0.9**rounds,
            "scale": 1 - 0.9**rounds,
            "noise_weight": 0.02 * num_devices**2,
        }
        noise, psi = arguments["noise_weight"], []
        for budget in arguments["round_budget"]:
            space = candidate_space(gain, 1.0, cap=0.4, round_budget=budget, noise_weight=noise)
            psi.append(space.objective.min())
        best = np.min(arguments["offset"] + arguments["scale"] * psi)
        assert best_schedule(gain, 1.0, **arguments).objective == pytest.approx(best, rel=1e-12)


def test_search_in_small_batches_finds_the_same(monkeypatch):
    rng = np.random.default_rng(4)
    problems = [instance(rng, 3000, 40) for _ in range(30)]
    whole = [best_schedule(gain, power, **arguments).objective for gain, power, arguments in problems]
    monkeypatch.setattr("airfed.planning.exact._FIRST_BLOCKS", 3)
    parts = [best_schedule(gain, power, **arguments).objective for gain, power, arguments in problems]
    np.testing.assert_allclose(parts, whole, rtol=1e-13)


def test_scalar_broadcast_and_array_powers_agree():
    rng = np.random.default_rng(5)
    for _ in range(50):
        gain, power, arguments = instance(rng, 50, 5)
        forms = (power, np.broadcast_to(power, gain.shape), np.full(gain.shape, power))
        found = [best_schedule(gain, form, **arguments) for form in forms]
        assert len({(x.objective, x.alignment, x.scheduled.tobytes()) for x in found}) == 1


def test_ties_take_the_lowest_round_index_and_the_lowest_devices():
    half = np.full(3, 0.5)
    choice = best_schedule(
        np.ones(4), 1.0, cap=half, round_budget=half, offset=np.zeros(3), scale=np.ones(3), noise_weight=100.0
    )
    assert choice.round_index == 0
    # two of four equal devices: the first two
    gain = np.array([0.01, 1.0, 1.0, 1.0])
    space = candidate_space(gain, 1.0, cap=1.0, round_budget=1e-3, noise_weight=1e-4)
    choice = best_schedule(gain, 1.0, cap=ONE, round_budget=1e-3 * ONE, offset=0 * ONE, scale=ONE, noise_weight=1e-4)
    assert choice.size == space.objective.argmin() + 1
    np.testing.assert_array_equal(choice.scheduled, [1, 2, 3][: choice.size])


def test_devices_without_gain_count_in_the_fleet_but_are_never_scheduled():
    choice = best_schedule(np.array([0.0, 2.0, 0.0, 2.0]), 1.0, **SINGLE)
    np.testing.assert_array_equal(choice.scheduled, [1, 3])
    assert choice.objective == pytest.approx(4 * 0.5**2 + 1 / (2 * choice.alignment) ** 2)


@pytest.mark.parametrize("power", [1.0, [1.0, 2.0]])
def test_infeasible_problems_name_the_limit(power):
    power = np.array(power)
    gain = np.ones(2)
    with pytest.raises(InfeasibleError, match="every device has gain 0"):
        best_schedule(np.zeros(2), power, **SINGLE)
    with pytest.raises(InfeasibleError, match="every device has gain 0"):
        candidate_space(np.zeros(2), power, cap=1.0, round_budget=1.0, noise_weight=1.0)
    with pytest.raises(InfeasibleError, match="privacy budget allows no"):
        best_schedule(gain, power, **(SINGLE | {"cap": 0 * ONE}))
    with pytest.raises(InfeasibleError, match="total power budget leaves no"):
        best_schedule(gain, power, **(SINGLE | {"round_budget": 0 * ONE}))
    with pytest.raises(InfeasibleError, match="privacy budget limits"):
        best_schedule(gain, power, **(SINGLE | {"cap": 1e-200 * ONE}))
    with pytest.raises(InfeasibleError, match="total power budget limits"):
        best_schedule(gain, power, **(SINGLE | {"round_budget": 1e-320 * ONE}))
    with pytest.raises(InfeasibleError, match="peak power limits"):
        best_schedule(gain * 1e-100, power * 1e-220, **(SINGLE | {"cap": ONE}))


def test_candidate_rounds_that_allow_nothing_are_skipped():
    arguments = {"cap": [0.0, 1.0], "round_budget": [1.0, 1.0], "offset": [0.0, 9.0], "scale": [1.0, 1.0]}
    choice = best_schedule(np.ones(2), 1.0, **arguments, noise_weight=1.0)
    assert choice.round_index == 1


def test_lemma_3_bounds_every_subset_of_a_size():
    rng = np.random.default_rng(6)
    gain, power, budget = 10 ** rng.uniform(-1, 1, 6), 0.7, 0.3
    space = candidate_space(gain, power, cap=np.inf, round_budget=budget, noise_weight=1.0)
    member = (np.arange(1, 64)[:, None] >> np.arange(6)) & 1 == 1
    peak = np.where(member, gain * np.sqrt(power), np.inf).min(axis=1)
    total = np.sqrt(budget / np.where(member, gain**-2.0, 0).sum(axis=1))
    for m in range(1, 7):
        of_size = member.sum(axis=1) == m
        assert space.peak_limit[m - 1] == pytest.approx(peak[of_size].max(), rel=1e-14)
        assert space.total_limit[m - 1] == pytest.approx(total[of_size].max(), rel=1e-14)


def test_lemma_6_the_optimum_is_where_privacy_stops_binding_or_beyond():
    rng = np.random.default_rng(7)
    for _ in range(200):
        gain, power, arguments = instance(rng, 30, 1)
        cap, budget, noise = (arguments[name] for name in ("cap", "round_budget", "noise_weight"))
        space = candidate_space(gain, power, cap=cap[0], round_budget=budget[0], noise_weight=noise)
        assert np.all(np.diff(space.alignment) <= 0)
        held_by_privacy = np.count_nonzero(space.alignment == space.privacy_limit)
        best = best_schedule(gain, power, **arguments).size
        assert best >= max(held_by_privacy, 1)


@pytest.mark.parametrize("budget", [1e-323, 1e-320, 1e-310, 1e-300])
def test_a_power_budget_of_which_no_square_is_exact_is_settled_in_few_steps(budget):
    gain = np.array([0.65, 0.95, 2.0])
    choice = best_schedule(
        gain, np.ones(3), cap=[1.0], round_budget=[budget], offset=[0.0], scale=[1.0], noise_weight=1e-147
    )
    load = float(np.sum(1 / np.square(gain[choice.scheduled])))
    assert choice.alignment > 0
    assert choice.alignment * choice.alignment * load <= budget
