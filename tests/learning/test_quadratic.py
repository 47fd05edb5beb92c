import itertools
import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from airfed.learning.quadratic import QuadraticEngine, QuadraticTask

CURVATURES = ("shared", "own")


def task(**change):
    arguments = {"dimension": 7, "num_devices": 600, "smoothness": 4.0, "strong_convexity": 0.5} | change
    return QuadraticTask(**arguments)


def all_devices(t):
    return np.arange(t.num_devices)


def mean_loss(t, w):
    b, a = t.devices(all_devices(t))
    return float(np.mean(np.sum(a * (w - b) ** 2, axis=1)) / 2)


@pytest.mark.parametrize("curvature", CURVATURES)
def test_loss_optimum_and_minimum_agree_with_brute_force(curvature):
    t = task(curvature=curvature, spread=2.0, center=-3.0)
    b, a = t.devices(all_devices(t))
    assert np.allclose(t.optimum, (a * b).sum(axis=0) / a.sum(axis=0), rtol=1e-12)
    rng = np.random.default_rng(0)
    for w in (t.optimum, np.zeros(7), rng.normal(size=7)):
        assert t.loss(w) == pytest.approx(mean_loss(t, w), rel=1e-12)
    assert t.minimum == pytest.approx(mean_loss(t, t.optimum), rel=1e-12)
    assert t.initial_gap == pytest.approx(mean_loss(t, np.zeros(7)) - t.minimum, rel=1e-12)
    assert all(t.loss(t.optimum + rng.normal(size=7) / 100) > t.minimum for _ in range(20))


@pytest.mark.parametrize("curvature", CURVATURES)
def test_smoothness_and_strong_convexity_hold_and_are_tight(curvature):
    t = task(curvature=curvature)
    _, a = t.devices(all_devices(t))
    assert a.min() == t.strong_convexity
    assert a.max() == t.smoothness
    mean = a.mean(axis=0)
    assert mean.min() == pytest.approx(t.strong_convexity)
    assert mean.max() == pytest.approx(t.smoothness)


@pytest.mark.parametrize("curvature", CURVATURES)
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_updates_are_the_sum_of_the_local_gradients(curvature, steps):
    t = task(curvature=curvature)
    start = np.random.default_rng(0).normal(size=7).astype(np.float32)
    devices = np.array([599, 3, 256, 255, 4])
    b, a = t.devices(devices)
    w, total = np.tile(start.astype(float), (5, 1)), np.zeros((5, 7))
    for _ in range(steps):
        gradient = a * (w - b)
        total += gradient
        w -= 0.3 * gradient
    ((order, updates),) = QuadraticEngine(t, learning_rate=0.3).updates(start, devices, steps=steps, round_index=0)
    assert order.tolist() == devices.tolist()
    assert updates.dtype == np.float32
    assert np.allclose(updates, total, rtol=1e-6)
    assert np.allclose(start - 0.3 * updates, w, atol=1e-6)


@pytest.mark.parametrize("curvature", CURVATURES)
def test_bits_do_not_depend_on_chunks_order_or_other_devices(curvature):
    t = task(curvature=curvature)
    start = np.zeros(t.dimension, np.float32)

    def run(chunk, devices):
        engine = QuadraticEngine(t, learning_rate=0.1, chunk=chunk)
        rows = {}
        for order, updates in engine.updates(start, devices, steps=3, round_index=0):
            assert len(order) <= chunk
            rows |= dict(zip(order.tolist(), updates, strict=True))
        return np.stack([rows[k] for k in sorted(rows)])

    whole = run(600, all_devices(t))
    for chunk in (1, 7, 256, 1000):
        assert np.array_equal(run(chunk, all_devices(t)), whole)
    assert np.array_equal(run(32, np.random.default_rng(0).permutation(600)), whole)
    assert np.array_equal(run(32, np.array([5, 300])), whole[[5, 300]])


@pytest.mark.parametrize("curvature", CURVATURES)
def test_federated_averaging_contracts_to_the_optimum(curvature):
    t = task(curvature=curvature)
    w = np.zeros(t.dimension, np.float32)
    engine = QuadraticEngine(t, learning_rate=1 / t.smoothness)
    gaps = []
    for i in range(60):
        gaps.append(engine.evaluate(w)[0] - t.minimum)
        rows = np.concatenate([u for _, u in engine.updates(w, all_devices(t), steps=1, round_index=i)])
        w = (w - rows.mean(axis=0, dtype=np.float64) / t.smoothness).astype(np.float32)
    rate = 1 - t.strong_convexity / t.smoothness
    assert gaps[0] == pytest.approx(t.initial_gap)
    assert all(b <= rate * a + 1e-9 for a, b in itertools.pairwise(gaps))
    assert np.allclose(w, t.optimum, atol=1e-3)
    assert math.isnan(engine.evaluate(w)[1])


def test_local_steps_drift_only_with_own_curvature():
    def limit(curvature):
        t = task(curvature=curvature)
        w, engine = np.zeros(t.dimension, np.float32), QuadraticEngine(t, learning_rate=0.2)
        for i in range(300):
            rows = np.concatenate([u for _, u in engine.updates(w, all_devices(t), steps=10, round_index=i)])
            w = (w - 0.2 * rows.mean(axis=0, dtype=np.float64)).astype(np.float32)
        return engine.evaluate(w)[0] - t.minimum

    assert limit("shared") < 1e-9
    assert limit("own") > 1e-5


@pytest.mark.slow
def test_a_million_devices_need_no_memory():
    t = task(num_devices=1_000_000, dimension=10)
    engine = QuadraticEngine(t, learning_rate=0.1)
    tracemalloc.start()
    devices = np.arange(0, 1_000_000)
    count = sum(len(u) for _, u in engine.updates(np.zeros(t.dimension, np.float32), devices, steps=4, round_index=0))
    gap = t.initial_gap
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 1_000_000
    assert gap > 0
    assert peak < 20_000_000  # of which 8 MB are the list of devices


def test_the_seed_makes_the_devices():
    one = task().devices(np.arange(3))[0]
    assert not np.array_equal(one, replace(task(), seed=1).devices(np.arange(3))[0])
    assert np.array_equal(one, replace(task(), num_devices=3).devices(np.arange(3))[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dimension": 1}, "dimension must be at least 2, got 1"),
        ({"num_devices": 0}, "num_devices must be at least 1, got 0"),
        ({"strong_convexity": 5.0}, "strong_convexity must be at most smoothness=4.0, got 5.0"),
        ({"smoothness": math.nan}, "smoothness"),
        ({"spread": -1.0}, "spread must be non-negative and finite, got -1.0"),
        ({"center": math.inf}, "center must be finite, got inf"),
        ({"curvature": "mine"}, "curvature must be one of shared, own"),
    ],
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        task(**change)
