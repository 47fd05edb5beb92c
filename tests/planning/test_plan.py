"""A plan by itself: what is derived from the decision, and what it refuses to be."""

import dataclasses
import json

import numpy as np
import pytest

from airfed import Plan, plan
from airfed.privacy import classic_epsilon, compose, gaussian_epsilon

# Names that outside programs read.
PUBLIC = {
    "policy",
    "scheduled",
    "alignment",
    "rounds",
    "local_steps",
    "bound",
    "binding",
    "power",
    "power_total",
    "epsilon_round",
    "epsilon_total",
    "epsilon_paper",
}


@pytest.fixture
def problem(random_problem):
    return random_problem(np.random.default_rng(1), devices=5, total_steps=10)


def by_hand(problem, **changes):
    given = {"scheduled": np.array([0, 2]), "alignment": 0.01, "rounds": 4, "policy": "mine", **changes}
    return Plan(problem=problem, **given)


def test_everything_follows_from_the_decision(problem):
    decision, budget = by_hand(problem), problem.budget
    mu = 2 * 0.01 / problem.link.noise_std
    assert decision.mu_round == mu
    assert decision.mu_total == compose(mu, 4)
    assert decision.epsilon_round == gaussian_epsilon(mu, budget.delta)
    assert decision.epsilon_total == gaussian_epsilon(compose(mu, 4), budget.delta)
    assert decision.epsilon_paper == classic_epsilon(mu, budget.delta)
    assert decision.local_steps == (3, 3, 2, 2)
    assert decision.gradient_bound.total > 0
    np.testing.assert_allclose(decision.power, (0.01 / problem.fleet.gain[[0, 2]]) ** 2, rtol=1e-14)


@pytest.mark.parametrize(("alignment", "validity"), [(0.001, "proved"), (0.5, "unproven"), (50.0, "unsafe")])
def test_what_lemma_1_is_worth_is_said(random_problem, alignment, validity):
    problem = random_problem(np.random.default_rng(1), devices=5, total_steps=10)
    scaled = alignment * problem.link.noise_std
    assert by_hand(problem, alignment=scaled).epsilon_paper_validity == validity


def test_the_record_has_the_public_names(problem):
    record = plan(problem).to_dict()
    assert set(record) >= PUBLIC
    assert set(record["bound"]) == {"total", "terms"}
    assert record["unit"] == "device"
    assert record["relation"] == "replace"
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_a_plan_cannot_be_changed(problem):
    decision = by_hand(problem)
    with pytest.raises(dataclasses.FrozenInstanceError):
        decision.rounds = 5
    with pytest.raises(ValueError, match="read-only"):
        decision.scheduled[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        decision.power[0] = 1.0
    assert dataclasses.replace(decision, rounds=5).local_steps == (2, 2, 2, 2, 2)


def test_the_callers_array_stays_his(problem):
    devices = np.array([0, 2])
    decision = by_hand(problem, scheduled=devices)
    devices[0] = 1
    assert decision.scheduled.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"scheduled": []}, "scheduled"),
        ({"scheduled": [2, 0]}, "scheduled to be ascending"),
        ({"scheduled": [0, 0]}, "scheduled to be ascending"),
        ({"scheduled": [-1, 2]}, "from 0 to 4"),
        ({"scheduled": [0, 5]}, "from 0 to 4"),
        ({"scheduled": [[0, 1]]}, "scheduled"),
        ({"scheduled": [0.0, 1.0]}, "scheduled"),
        ({"scheduled": [True, False]}, "scheduled"),
        ({"alignment": 0.0}, "alignment=0.0 > 0"),
        ({"alignment": float("nan")}, "alignment"),
        ({"rounds": 11}, "rounds=11 <= total_steps=10"),
        ({"rounds": 0}, "rounds=0"),
    ],
)
def test_a_decision_that_makes_no_sense_is_refused(problem, changes, named):
    with pytest.raises(ValueError, match=named):
        by_hand(problem, **changes)


def test_values_from_numpy_become_plain_ones(problem):
    decision = by_hand(
        problem, rounds=np.int32(4), alignment=np.float32(0.5), scheduled=np.array([1, 3], dtype=np.uint8)
    )
    assert (type(decision.rounds), type(decision.alignment), decision.scheduled.dtype) == (int, float, np.intp)
    json.dumps(decision.to_dict())


def test_a_broken_limit_is_named(problem):
    peak = by_hand(problem).limits["peak_power"]
    assert "peak_power" in by_hand(problem, alignment=peak * 1.001).violations
    assert "peak_power" not in by_hand(problem, alignment=peak).violations
