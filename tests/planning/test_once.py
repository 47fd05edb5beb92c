"""Policies that plan all rounds at once: amplitudes of all rounds, or a plan."""

from dataclasses import replace

import numpy as np
import pytest

from airfed import Fleet, plan
from airfed.planning import once


@pytest.fixture(params=[False, True], ids=["constant", "time-varying"])
def problem(request, random_problem):
    found = random_problem(np.random.default_rng(3), devices=4, total_steps=20)
    if not request.param:
        return found
    gain = found.fleet.gain * np.linspace(0.9, 1.1, found.learning.total_steps)[:, None]
    return replace(found, fleet=Fleet(gain=gain, peak_power=found.fleet.peak_power))


def amplitudes(rounds=5):
    """A table in which devices and rounds differ."""
    found = np.full((rounds, 4), 1e-3)
    found[0, 1] = 0.0
    found[1:, 2] = 5e-4
    return found


def test_a_table_of_amplitudes_is_the_plan(problem):
    found = plan(problem, policy=once(lambda problem: amplitudes()))
    np.testing.assert_allclose(found.amplitude, amplitudes(), rtol=1e-15)
    assert found.sequence[0].scheduled.tolist() == [0, 2, 3]
    assert found.violations == ()


def test_a_plan_is_taken_as_it_is(problem):
    found = plan(problem, policy=once(lambda problem: plan(problem, policy="full", rounds=3)))
    np.testing.assert_array_equal(found.amplitude, plan(problem, policy="full", rounds=3).amplitude)


def test_amplitudes_that_break_a_limit_are_flagged(problem):
    found = plan(problem, policy=once(lambda problem: 1e9 * amplitudes()))
    assert "peak_power" in found.violations
    assert any("peak_power" in note for note in found.notes)


@pytest.mark.parametrize("answer", [amplitudes(), amplitudes() > 0, [[1e-3] * 4] * 5, [[1e-3], [1e-3] * 4]])
def test_a_plan_that_contradicts_the_settings_or_has_no_amplitudes_is_refused(problem, answer):
    with pytest.raises(ValueError, match=r"number of rounds, 4; got 5|to 3, or 4 amplitudes|to 3; got list"):
        plan(problem, policy=once(lambda problem: answer), rounds=4)
