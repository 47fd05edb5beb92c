"""The search over numbers of rounds one by one: the same optimum, and little work where everything ties."""

import numpy as np
import pytest

from airfed import Budget, Fleet, Learning, Link, Problem, bounds, plan
from airfed.planning import exact, unequal
from airfed.planning.exact import best_schedule, candidate_space, usable_rounds
from airfed.planning.optimal import candidates
from brute_force import brute_force_schedule

DEVICES = 10_000


def large(gain, power, *, steps=200, noise_std=10.0, error=0.0, scope="round", total_power=1e5, **learning):
    constants = {
        "dimension": 21840,
        "clip_norm": 1.0,
        "learning_rate": 0.1,
        "smoothness": 10.0,
        "strong_convexity": 0.1,
        "initial_gap": 2.3,
    }
    return Problem(
        fleet=Fleet(gain=gain, peak_power=power),
        link=Link(noise_std=noise_std, csi_error=error),
        learning=Learning(total_steps=steps, **(constants | learning)),
        budget=Budget(epsilon=2.0, delta=1e-3, total_power=total_power, scope=scope),
    )


def fleets(count=DEVICES):
    rng = np.random.default_rng(0)
    rank = np.arange(1, count + 1)
    rayleigh = np.maximum(rng.rayleigh(size=count), 0.1)
    return {
        "independent": (rayleigh, 10 ** rng.uniform(-1, 1, count)),
        "equal powers": (rayleigh, 1.0),
        "equal powers, listed": (rayleigh, np.ones(count)),
        "equal gains": (np.ones(count), 10 ** rng.uniform(-1, 1, count)),
        "all equal": (np.ones(count), 1.0),
        "nearly equal": (1 + 1e-13 * rng.random(count), 1 + 1e-12 * rng.random(count)),
        "two kinds": (rng.choice([0.5, 1.0], count), rng.choice([1.0, 2.0], count)),
        "equal peaks": (rayleigh, rayleigh**-2.0),
        "200 decades": (10 ** rng.uniform(-99.9, 99.9, count), 10 ** rng.uniform(-50, 50, count)),
        "one over rank": (np.ones(count), rng.permutation(1.0 / rank**2)),  # mθ is the same for every size
    }


@pytest.fixture
def work(monkeypatch):
    """Devices that searches have visited, in units of one pass over the fleet, and the limit on their number."""
    seen = {"solved": 0, "passes": 0.0}
    split, finish, rounds = unequal._narrowed, unequal._finish, exact.RoundCandidates.total

    def count_split(rounds_, node, index, ceiling):
        seen["passes"] += (node.load.size + 512 * index.size) / DEVICES
        return split(rounds_, node, index, ceiling)

    def count_finish(rounds_, node, index):
        seen["passes"] += node.load.size * index.size / DEVICES
        return finish(rounds_, node, index)

    def count_rounds(rounds_, index, value):
        seen["solved"] += isinstance(index, int)
        return rounds(rounds_, index, value)

    monkeypatch.setattr(unequal, "_narrowed", count_split)
    monkeypatch.setattr(unequal, "_finish", count_finish)
    monkeypatch.setattr(exact.RoundCandidates, "total", count_rounds)
    return seen


@pytest.mark.parametrize("shape", list(fleets(2)))
@pytest.mark.parametrize("smoothness", [10.0, 1e12, 1e40, 1e100])
def test_ties_cost_no_more_than_a_few_hundred_passes(work, shape, smoothness):
    gain, power = fleets()[shape]
    result = plan(large(gain, power, smoothness=smoothness))
    assert 1 <= result.num_scheduled <= DEVICES
    assert work["passes"] < 400
    assert work["solved"] < 40


@pytest.mark.parametrize("steps", [513, 10_000, 1_000_000])
@pytest.mark.parametrize(("scope", "error"), [("round", 0.0), ("total", 0.0), ("round", 0.1), ("total", 0.1)])
def test_many_numbers_of_rounds_take_a_handful_of_searches(work, steps, scope, error):
    gain, power = fleets()["independent"]
    result = plan(large(gain, power, steps=steps, scope=scope, error=error, smoothness=1e3))
    assert 1 <= result.rounds <= steps
    assert not result.violations
    assert 0 < work["solved"] < 40


@pytest.mark.parametrize("shape", ["independent", "equal powers", "equal peaks", "two kinds"])
@pytest.mark.parametrize(("smoothness", "scope"), [(10.0, "round"), (1e3, "total"), (1e12, "round")])
def test_no_number_of_rounds_is_better(monkeypatch, shape, smoothness, scope):
    monkeypatch.setattr(exact, "_TOGETHER", 0)
    gain, power = fleets(300)[shape]
    problem = large(gain, power, steps=120, scope=scope, smoothness=smoothness, noise_std=0.5, total_power=300.0)
    result = plan(problem)
    rounds = np.arange(1, 121)
    values = candidates(problem, rounds)
    best = np.inf
    for each in range(120):
        space = candidate_space(
            problem.fleet.gain,
            problem.fleet.peak_power,
            cap=values["cap"][each],
            round_budget=values["round_budget"][each],
            noise_weight=values["noise_weight"],
        )
        best = min(best, values["offset"][each] + values["scale"][each] * space.objective.min())
    assert result.bound.total == pytest.approx(best, rel=1e-13)


def small(rng):
    devices, candidates = int(rng.integers(1, 8)), int(rng.integers(1, 30))
    gain = 10 ** rng.uniform(-1, 1, devices)
    power = 10 ** rng.uniform(-2, 2, devices) if rng.random() < 0.7 else np.ones(devices)
    order = np.arange(1, candidates + 1)
    if rng.random() < 0.5:  # in no particular order
        rng.shuffle(order)
    shrunk = rng.choice([0.5, 0.9, 0.999]) ** order
    constant = rng.choice([0.0, 1.0, 1e12])
    return (
        gain,
        power,
        {
            "cap": 10 ** rng.uniform(-1, 1.2) / order ** rng.choice([0.0, 0.5]),
            "round_budget": 10 ** rng.uniform(-2, 3) * devices / order,
            "offset": constant + 2 * shrunk + rng.choice([0.0, 0.1]) * (candidates / order - 1) ** 2,
            "scale": 1 - shrunk,
            "noise_weight": 10 ** rng.uniform(-2, 1) * devices**2,
        },
    )


@pytest.mark.parametrize(("easy", "effort"), [(0, 4), (8, 4), (2, 0)])
def test_one_by_one_equals_brute_force(monkeypatch, easy, effort):
    monkeypatch.setattr(exact, "_TOGETHER", 0)
    monkeypatch.setattr(exact, "_EASY", easy)
    monkeypatch.setattr(unequal, "_EFFORT", effort)  # 0: every candidate by the sweep of all devices
    rng = np.random.default_rng(easy)
    for _ in range(200):
        gain, power, arguments = small(rng)
        choice = best_schedule(gain, power, **arguments)
        oracle = brute_force_schedule(gain, power, **arguments)
        assert choice.objective == pytest.approx(oracle.objective, rel=1e-13)


def test_bounds_and_chords_are_lower_bounds():
    rng = np.random.default_rng(1)
    for _ in range(100):
        gain, power, arguments = small(rng)
        _, rounds = usable_rounds(gain.size, **arguments)

        def solve(index, share, gain=gain, power=power, rounds=rounds):
            one = rounds.single(index, share)
            names = {"cap": one.cap, "round_budget": one.budget, "offset": one.offset, "scale": one.scale}
            return brute_force_schedule(gain, power, **names, noise_weight=one.noise_weight).objective

        every = np.arange(rounds.cap.size)
        truth = np.array([solve(index, 1.0) for index in every])
        for index in rng.choice(every, 3):
            points = {share: solve(index, share) for share in (1.0, 0.7, 0.2)} | {0.0: 0.0}
            bound = rounds.bound(index, every, points)
            assert np.all(bound <= truth * (1 + 1e-12))


def test_a_search_that_finds_no_end_says_so(monkeypatch):
    monkeypatch.setattr(exact, "_MOST", 2)
    gain, power = fleets(300)["independent"]
    with pytest.raises(ValueError, match=r"^The search over 700 numbers of rounds stopped after 2 .* Set rounds\.$"):
        plan(large(gain, power, steps=700, smoothness=1e3, noise_std=0.5, total_power=300.0))


def test_equal_plans_on_every_call():
    gain, power = fleets(2000)["one over rank"]
    problem = large(gain, power, smoothness=1e40)
    assert plan(problem).to_dict() == plan(problem).to_dict()
    assert plan(problem).bound.total == bounds.noise_free_gap(problem.learning)  # nothing else is left of it
