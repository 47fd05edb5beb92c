"""The exact planner with different peak powers: its fast search against slow and simple ones."""

import numpy as np
import pytest

from airfed.planning.exact import _strongest, best_schedule, candidate_space
from brute_force import brute_force_schedule

SHAPES = ("independent", "opposed", "same", "constant peak", "classes", "tied", "clustered")


def fleet(rng, n, shape):
    """Gains and peak powers whose orders agree, disagree, or are full of ties."""
    gain = 10 ** rng.uniform(-1, 1, n)
    if shape == "independent":
        return gain, 10 ** rng.uniform(-2, 2, n)
    if shape == "opposed":  # c = |h|√P falls as |h| rises
        return gain, gain**-4.0 * 10 ** rng.uniform(-0.2, 0.2, n)
    if shape == "same":
        return gain, gain**2.0 * 10 ** rng.uniform(-0.1, 0.1, n)
    if shape == "constant peak":
        return gain, 1 / gain**2
    if shape == "classes":
        return np.full(n, 0.7), rng.choice([0.25, 1.0, 4.0], n)
    if shape == "tied":
        return np.round(2 * gain + 0.5) / 2, rng.choice([0.25, 1.0, 4.0], n)
    return 1 + 1e-9 * rng.random(n), 1 + 1e-9 * rng.random(n)


def instance(rng, n, rounds, shape):
    gain, power = fleet(rng, n, shape)
    if rng.random() < 0.2:
        gain[rng.random(n) < 0.3] = 0
    if not gain.any():
        gain[0] = 1.0
    order = rng.permutation(rounds) + 1
    arguments = {
        "cap": 10 ** rng.uniform(-1, 1.2) / order ** rng.choice([0.0, 0.5]),
        "round_budget": 10 ** rng.uniform(-2, 3) * n / order,
        "offset": rng.uniform(0, 1, rounds) * rng.choice([0.01, 1]),
        "scale": rng.uniform(0.9, 1, rounds),
        "noise_weight": 10 ** rng.uniform(-2, 1) * n**2,
    }
    return gain, power, arguments


def every_threshold(gain, power, *, cap, round_budget, offset, scale, noise_weight):
    """The optimum by trying every eligibility threshold with every number of the eligible devices."""
    n, best = gain.size, np.inf
    gain, power = gain[gain > 0], power[gain > 0]
    peak, load = gain * np.sqrt(power), gain**-2.0
    order = np.argsort(load)
    for threshold in np.unique(peak):
        sums = np.cumsum(load[order][peak[order] >= threshold])
        m = np.arange(1, sums.size + 1)
        inverse = np.maximum(
            np.maximum(cap, 0)[:, None] ** -2.0, np.maximum(threshold**-2.0, sums / round_budget[:, None])
        )
        psi = 4 * (1 - m / n) ** 2 + noise_weight / m**2 * inverse
        best = min(best, float(np.min(offset[:, None] + scale[:, None] * psi)))
    return best


def check_feasible(choice, gain, power, arguments):
    """Every limit holds to 1e-12, and the binding one is used to 1e-9."""
    k, r = choice.scheduled, choice.round_index
    use = {
        "privacy": choice.alignment / arguments["cap"][r],
        "peak_power": np.max(choice.alignment / (gain[k] * np.sqrt(power[k]))),
        "total_power": np.sqrt(choice.alignment**2 * np.sum(gain[k] ** -2.0) / arguments["round_budget"][r]),
    }
    assert np.all(np.diff(k) > 0)
    assert max(use.values()) <= 1 + 1e-12
    assert use[choice.binding] >= 1 - 1e-9
    psi = 4 * (1 - k.size / gain.size) ** 2 + arguments["noise_weight"] / (k.size * choice.alignment) ** 2
    assert choice.objective == pytest.approx(arguments["offset"][r] + arguments["scale"][r] * psi, rel=1e-12)


@pytest.fixture(params=["as shipped", "small leaves", "no leaves"])
def scale(request, monkeypatch):
    """A share of the work: the search as shipped, or with constants that take it through every branch."""
    if request.param == "as shipped":
        return 1.0
    monkeypatch.setattr("airfed.planning.unequal._INTERVALS", 8)
    monkeypatch.setattr("airfed.planning.unequal._COLUMNS", 8)
    if request.param == "small leaves":
        monkeypatch.setattr("airfed.planning.unequal._LEAF", 40)
        monkeypatch.setattr("airfed.planning.unequal._FEW_PEAKS", 0)
        return 1.0
    monkeypatch.setattr("airfed.planning.unequal._LEAF", 0)
    return 0.2


def test_equals_brute_force_over_all_subsets_and_rounds():
    rng = np.random.default_rng(1)
    binding = []
    for trial in range(1750):
        gain, power, arguments = instance(rng, rng.integers(1, 9), rng.integers(1, 9), SHAPES[trial % len(SHAPES)])
        choice = best_schedule(gain, power, **arguments)
        assert choice.objective == pytest.approx(brute_force_schedule(gain, power, **arguments).objective, rel=1e-9)
        check_feasible(choice, gain, power, arguments)
        binding.append(choice.binding)
    assert min(binding.count(name) for name in ("privacy", "peak_power", "total_power")) > 190


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_every_threshold_on_mid_sizes(scale, shape):
    rng = np.random.default_rng(2)
    for _ in range(int(25 * scale)):
        gain, power, arguments = instance(rng, rng.integers(1, 150 * scale), rng.integers(1, 12), shape)
        choice = best_schedule(gain, power, **arguments)
        assert choice.objective == pytest.approx(every_threshold(gain, power, **arguments), rel=1e-11)
        check_feasible(choice, gain, power, arguments)


@pytest.mark.parametrize("shape", ["independent", "opposed", "constant peak"])
def test_equals_every_threshold_on_two_thousand_devices(shape):
    rng = np.random.default_rng(3)
    gain, power, arguments = instance(rng, 2000, 50, shape)
    choice = best_schedule(gain, power, **arguments)
    assert choice.objective == pytest.approx(every_threshold(gain, power, **arguments), rel=1e-11)


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_sweep_of_each_number_of_rounds(shape):
    rng = np.random.default_rng(4)
    for n in (1000, 20_000):
        gain, power, arguments = instance(rng, n, 4, shape)
        best = min(
            arguments["offset"][r]
            + arguments["scale"][r]
            * candidate_space(
                gain,
                power,
                cap=arguments["cap"][r],
                round_budget=arguments["round_budget"][r],
                noise_weight=arguments["noise_weight"],
            ).objective.min()
            for r in range(4)
        )
        choice = best_schedule(gain, power, **arguments)
        assert choice.objective == pytest.approx(best, rel=1e-11)
        check_feasible(choice, gain, power, arguments)


def test_feasible_and_binding_on_many_larger_instances():
    rng = np.random.default_rng(5)
    for trial in range(1400):
        gain, power, arguments = instance(rng, rng.integers(1, 201), rng.integers(1, 5), SHAPES[trial % len(SHAPES)])
        check_feasible(best_schedule(gain, power, **arguments), gain, power, arguments)


def test_powers_that_are_nearly_equal_lead_to_the_closed_form(scale):
    rng = np.random.default_rng(6)
    for _ in range(int(20 * scale)):
        gain, _, arguments = instance(rng, int(400 * scale), 10, "independent")
        power = np.full(gain.shape, 0.8)
        power[np.argmax(gain)] *= 2  # the strongest device never holds θ down, but takes the general search
        assert best_schedule(gain, power, **arguments).objective == pytest.approx(
            best_schedule(gain, 0.8, **arguments).objective, rel=1e-12
        )


def test_a_large_fleet_of_equal_gains_equals_the_closed_form():
    rng = np.random.default_rng(7)
    n, rounds = 100_000, np.arange(1, 31)
    arguments = {
        "cap": np.full(30, 0.9),
        "round_budget": 0.3 * n / rounds,
        "offset": 2.3 * 0.9**rounds,
        "scale": 1 - 0.9**rounds,
        "noise_weight": 0.1 * n**2,
    }
    gain = np.ones(n)
    power = rng.choice([1.0, 2.0, 3.0], n)
    choice = best_schedule(gain, power, **arguments)
    assert choice.objective == pytest.approx(best_schedule(gain, 1.0, **arguments).objective, rel=1e-12)
    check_feasible(choice, gain, power, arguments)


@pytest.mark.parametrize("shape", SHAPES)
def test_candidate_space_is_the_best_of_every_size(shape):
    rng = np.random.default_rng(8)
    for _ in range(20):
        n = int(rng.integers(1, 9))
        gain, power, arguments = instance(rng, n, 1, shape)
        space = candidate_space(
            gain,
            power,
            cap=arguments["cap"][0],
            round_budget=arguments["round_budget"][0],
            noise_weight=arguments["noise_weight"],
        )
        member = (np.arange(1, 1 << n)[:, None] >> np.arange(n)) & 1 == 1
        with np.errstate(divide="ignore"):
            peak = np.where(member, gain * np.sqrt(power), np.inf).min(axis=1)
            load = np.where(member, gain**-2.0, 0).sum(axis=1)
        theta = np.minimum(np.minimum(arguments["cap"][0], peak), np.sqrt(arguments["round_budget"][0] / load))
        best = [theta[member.sum(axis=1) == m].max() for m in range(1, n + 1)]
        np.testing.assert_allclose(space.alignment, best, rtol=1e-12)
        slack = 1 + 1e-12
        assert np.all(space.alignment <= space.peak_limit * slack)
        assert np.all(space.alignment <= space.total_limit * slack)
        assert np.all(space.alignment <= space.privacy_limit)


def test_scheduled_devices_are_the_strongest_eligible_ones_lowest_index_first():
    gain = np.array([1.0, 3.0, 1.0, 2.0, 1.0, 1.0])
    eligible = np.array([False, True, True, False, True, True])
    np.testing.assert_array_equal(_strongest(gain, 3, 1.0, eligible), [1, 2, 4])
    np.testing.assert_array_equal(_strongest(gain, 4, 1.0, None), [0, 1, 2, 3])
