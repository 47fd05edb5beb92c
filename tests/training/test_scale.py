"""A million devices: bounded memory, and an aggregate that no order of summation can spoil."""

import tracemalloc

import numpy as np
import pytest

from airfed import Budget, Fleet, Learning, Link, Problem, plan
from airfed.aircomp import CLIP_MARGIN, Air
from airfed.learning.quadratic import QuadraticEngine, QuadraticTask

DEVICES, DIMENSION, CLIP = 1_000_000, 10, 4.0


@pytest.mark.slow
def test_a_million_devices_aggregate_like_float64_in_little_memory():
    rng = np.random.default_rng(0)
    problem = Problem(
        fleet=Fleet(gain=np.maximum(rng.rayleigh(0.7, DEVICES), 0.1), peak_power=1.0),
        link=Link(noise_std=1.0),
        learning=Learning(
            dimension=DIMENSION,
            total_steps=4,
            clip_norm=CLIP,
            learning_rate=0.5,
            smoothness=2.0,
            strong_convexity=0.5,
            initial_gap=10.0,
        ),
        budget=Budget(epsilon=2.0, delta=1e-7, total_power=1e7),
    )
    decision = plan(problem, policy="full", rounds=2)
    task = QuadraticTask(dimension=DIMENSION, num_devices=DEVICES, smoothness=2.0, strong_convexity=0.5)
    engine = QuadraticEngine(task, learning_rate=0.5)
    superposition = Air.from_plan(decision).open_round(DIMENSION)
    reference = np.zeros(DIMENSION)
    tracemalloc.start()
    for devices, updates in engine.updates(np.zeros(DIMENSION, np.float32), decision.scheduled, steps=2, round_index=0):
        superposition.add(devices, updates)
        rows = updates.astype(np.float64)
        norms = np.linalg.norm(rows, axis=1)
        limit = CLIP * (1 - CLIP_MARGIN)
        rows *= np.minimum(1.0, limit / norms)[:, None]
        reference += rows.sum(axis=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    reception = superposition.receive(np.zeros(DIMENSION))
    expected = reference / DEVICES
    assert np.max(np.abs(reception.estimate - expected)) <= 1e-6 * np.linalg.norm(expected)
    assert reception.clipped > 0
    assert peak < 64 * 2**20  # a few arrays of the fleet's length; never devices × dimension
