"""A million devices: bounded memory, and an aggregate that does not depend on the order of summation."""

import tracemalloc

import numpy as np
import pytest

import problems
from airfed import plan
from airfed.aircomp import CLIP_MARGIN, AirCompRound
from airfed.learning.quadratic import QuadraticEngine, QuadraticTask

DEVICES, DIMENSION, CLIP = 1_000_000, 10, 4.0


@pytest.mark.slow
def test_a_million_devices_aggregate_like_float64_in_little_memory():
    rng = np.random.default_rng(0)
    problem = problems.make(
        np.maximum(rng.rayleigh(0.7, DEVICES), 0.1),
        **{"noise": 1.0, "dimension": DIMENSION, "steps": 4, "clip": CLIP, "rate": 0.5, "smoothness": 2.0},
        **{"convexity": 0.5, "gap": 10.0, "epsilon": 2.0, "delta": 1e-7, "total_power": 1e7},
    )
    decision = plan(problem, policy="full", rounds=2)
    task = QuadraticTask(dimension=DIMENSION, num_devices=DEVICES, smoothness=2.0, strong_convexity=0.5)
    engine = QuadraticEngine(task, learning_rate=0.5)
    superposition = AirCompRound.from_plan(decision).open_round(DIMENSION)
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
    aggregate = superposition.receive(np.zeros(DIMENSION))
    expected = reference / DEVICES
    assert np.max(np.abs(aggregate.estimate - expected)) <= 1e-6 * np.linalg.norm(expected)
    assert aggregate.clipped > 0
    assert peak < 64 * 2**20  # a few arrays of the fleet's length; never devices × dimension
