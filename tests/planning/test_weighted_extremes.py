"""Weighted plans of time-varying channels whose values are beyond the range of the search."""

import numpy as np
import pytest

import airfed
from airfed.problem import Budget, Fleet, InfeasibleError, Learning, Link, Problem


def test_values_too_far_apart_give_one_sentence():
    learning = {"dimension": 11298, "total_steps": 4, "clip_norm": 7e34, "learning_rate": 0.1, "initial_gap": 2.3}
    problem = Problem(
        fleet=Fleet(gain=[[4.9e83, 0.0], [1.4e-37, 0.0], [2.5e-68, 0.0]], peak_power=[2.6e61, 1.6e-20]),
        link=Link(noise_std=5.5e-49),
        learning=Learning(**learning, smoothness=10.0, strong_convexity=10.0),
        budget=Budget(epsilon=0.0051, delta=1.28e-121, total_power=2.3e79, scope="total", adjacency="add_remove"),
    )
    with np.errstate(all="ignore"), pytest.raises(InfeasibleError, match="too many orders of magnitude apart"):
        airfed.plan(problem, policy="weighted")
