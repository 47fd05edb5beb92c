"""Plans made round by round: within every budget, without a look ahead, and close to the plan that knows all gains."""

import numpy as np
import pytest
from airfed.planning.fading import Causal, causal, clairvoyant, myopic, spending

from airfed.planning import exact


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
def test_no_budget_is_exceeded_whatever_the_law_promised(random_world, check_limits, budgets):
    rng = np.random.default_rng(0)
    for _ in range(3):
        devices, rounds = int(rng.integers(1, 12)), int(rng.integers(1, 8))
        world = random_world(rng, devices=devices, rounds=rounds, **budgets)
        law = world.gain * 10 ** rng.uniform(-1, 1, (3, rounds, 1))  # another law than that of the world
        found = causal(world, law)
        check_limits(world, found)
        assert found.objective >= clairvoyant(world).lower_bound


@pytest.mark.parametrize("budgets", [{}, {"battery": 0.5}, {"exposure": 0.3}])
def test_single_decisions_stay_within_what_is_left_and_leave_something(random_world, budgets):
    rng = np.random.default_rng(9)
    for _ in range(3):
        world = random_world(rng, devices=6, rounds=4, **budgets)
        law = world.gain[None] * np.array([1.0, 1e3, 1e3, 1e3])[:, None]  # later rounds would need next to nothing
        planner = Causal(world, law, rounds=4)
        left, member, theta = planner.start, np.zeros((4, 6), dtype=bool), np.zeros(4)
        for i in range(4):
            before = left
            member[i], theta[i], left = planner.decide(world.gain[: i + 1], before)
            assert np.all(left >= (0.0 if i == 3 else 0.1 * before * (1 - 1e-9)))
        power, device_power, exposure = spending(world.gain, member, theta)
        assert power.sum() <= world.total_power
        assert world.device_power is None or np.all(device_power <= world.device_power)
        assert world.device_exposure is None or np.all(exposure <= world.device_exposure)
        assert np.all(theta <= world.cap)


@pytest.mark.parametrize("budgets", [{}, {"battery": 0.6}])
def test_what_is_to_come_changes_nothing_before_it_comes(random_world, budgets):
    rng = np.random.default_rng(1)
    world = random_world(rng, devices=10, rounds=8, **budgets)
    law = draws(rng, 4, 8, 10)
    found = causal(world, law, rounds=8)
    for now in (1, 4, 7):
        gain = world.gain.copy()
        gain[now:] = draws(rng, 1, 8, 10)[0][now:]
        other = causal(world.with_gain(gain), law, rounds=8)
        np.testing.assert_array_equal(found.member[:now], other.member[:now])
        np.testing.assert_array_equal(found.alignment[:now], other.alignment[:now])
        assert not np.array_equal(found.alignment[now:], other.alignment[now:])


def test_the_last_round_spends_what_is_left(random_world):
    rng = np.random.default_rng(2)
    for _ in range(5):
        world = random_world(rng, devices=30, rounds=6)
        found = causal(world, draws(rng, 3, 6, 30), rounds=6)
        power, _, _ = spending(world.gain, found.member, found.alignment)
        limit = np.min(world.gain[-1][found.member[-1]]) * np.sqrt(world.peak_power[0])
        assert power.sum() >= world.total_power * (1 - 1e-9) or found.alignment[-1] >= min(limit, world.cap) * (
            1 - 1e-9
        )


def test_the_future_known_exactly_leaves_little_regret(random_world):
    rng = np.random.default_rng(3)
    for _ in range(6):
        world = random_world(rng, devices=40, rounds=10)
        best = clairvoyant(world)
        assert causal(world, world.gain[None], rounds=best.rounds).objective <= best.objective * 1.005


def test_a_function_that_draws_is_the_array_it_draws(random_world):
    rng = np.random.default_rng(4)
    world = random_world(rng, devices=30, rounds=6)
    law = draws(rng, 3, 6, 30)
    asked = []

    def rest(seen):
        asked.append(len(seen))
        return law[:, len(seen) :]

    one, other = causal(world, law, rounds=6), causal(world, rest, rounds=6)
    assert asked == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(one.alignment, other.alignment, rtol=0.05)
    assert one.objective == pytest.approx(other.objective, rel=1e-3)


def test_rayleigh_costs_little_and_less_than_equal_shares(random_world):
    rng = np.random.default_rng(5)
    law = draws(rng, 6, 40, 50)
    planned, known, shared = [], [], []
    for _ in range(4):
        world = random_world(rng, devices=50, rounds=40, gain=draws(rng, 1, 40, 50)[0], **LEARNING)
        planned.append(causal(world, law).objective)
        known.append(clairvoyant(world).objective)
        shared.append(myopic(world, draw=law[0]).objective)
    regret, cost = np.divide(planned, known) - 1, np.divide(shared, known) - 1
    assert np.all(regret <= 0.02)
    assert np.mean(regret) < np.mean(cost)


@pytest.mark.slow
@pytest.mark.parametrize(("shadowing_db", "most"), [(0.0, 0.02), (8.0, 0.25)])
def test_regret_against_the_plan_of_as_many_rounds(random_world, shadowing_db, most):
    rng = np.random.default_rng(6)
    law = draws(rng, 24, 40, 60, shadowing_db=shadowing_db)
    regret, cost = [], []
    for _ in range(16):
        gain = draws(rng, 1, 40, 60, shadowing_db=shadowing_db)[0]
        world = random_world(rng, devices=60, rounds=40, gain=gain, **LEARNING)
        found = causal(world, law)
        known = clairvoyant(world, rounds=found.rounds).objective
        regret.append(found.objective / known - 1)
        cost.append(myopic(world, rounds=found.rounds).objective / known - 1)
    assert np.mean(regret) <= most
    assert np.mean(regret) < np.mean(cost)


@pytest.mark.slow
@pytest.mark.parametrize("shadowing_db", [0.0, 8.0])
@pytest.mark.parametrize("budgets", [{"battery": 1.0}, {"exposure": 0.5}])
def test_with_devices_own_budgets_no_draw_ends_in_want(random_world, shadowing_db, budgets):
    rng = np.random.default_rng(11)
    law = draws(rng, 6, 12, 30, shadowing_db=shadowing_db)
    regret, cost = [], []
    for _ in range(4):
        gain = draws(rng, 1, 12, 30, shadowing_db=shadowing_db)[0]
        world = random_world(rng, devices=30, rounds=12, gain=gain, **budgets, **LEARNING)
        known = clairvoyant(world, rounds=12).objective
        regret.append(causal(world, law, rounds=12).objective / known - 1)
        cost.append(myopic(world, rounds=12).objective / known - 1)
    assert max(regret) <= 0.3
    assert np.mean(regret) < np.mean(cost) + 0.02


def test_equal_shares_of_one_round_are_the_exact_schedule(random_world, check_limits):
    rng = np.random.default_rng(7)
    for _ in range(10):
        world = random_world(rng, devices=6, rounds=3, decades=1.0)
        found = myopic(world)
        check_limits(world, found)
        single = myopic(world, rounds=1)
        choice = exact.best_schedule(
            world.gain[0], world.peak_power, cap=np.array([world.cap]), round_budget=np.array([world.total_power]),
            offset=world.offsets()[:1], scale=world.weights(1), noise_weight=world.noise_weight)  # fmt: skip
        assert single.objective == pytest.approx(choice.objective, rel=1e-9)
        assert found.objective <= single.objective
        power, _, _ = spending(world.gain[: found.rounds], found.member, found.alignment)
        assert np.all(power <= world.total_power / found.rounds)


def test_draws_of_another_fleet_are_refused(random_world):
    world = random_world(np.random.default_rng(8), devices=4, rounds=3)
    with pytest.raises(ValueError, match="shape"):
        Causal(world, np.ones((2, 3, 5)))
    with pytest.raises(ValueError, match="rounds=4"):
        Causal(world, np.ones((2, 3, 4)), rounds=4)
