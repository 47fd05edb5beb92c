"""The study of Theorems 1 and 2: bounds and measurements."""

import pytest

import airfed
from studies import bounds


@pytest.mark.parametrize("rounds", [12, 5, 1])
def test_the_bounds_over_rounds_end_at_the_plans_own(rounds, repository):
    plan = airfed.load(repository / "examples/paper.toml").plan(rounds=rounds)
    assert bounds.gap_bounds(plan)[-1] == pytest.approx(plan.bound.total, rel=1e-12)
    assert bounds.gradient_bounds(plan)[-1] == pytest.approx(plan.gradient_bound.total, rel=1e-12)
