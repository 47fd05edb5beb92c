import numpy as np
import pytest
import torch

from airfed.learning.engine import batches
from airfed.learning.reference import ReferenceEngine
from airfed.network import Network, builtin
from airfed.seeds import stream


def problem(seed=0, n=48, shape=(1, 6, 6), classes=3, devices=6):
    rng = np.random.default_rng(seed)
    images = rng.random((n, *shape), np.float32)
    labels = rng.integers(0, classes, n)
    return images, labels, rng.permutation(n).reshape(devices, -1)


LOGISTIC = builtin("logistic", input_shape=(1, 6, 6), classes=3)
CNN = Network(input_shape=(1, 6, 6), convolutions=((4, 3),), hidden=(5,), classes=3, l2=0.1)


def softmax_gradient(w, x, y, l2):
    """∇ of mean cross-entropy + (λ/2)‖w‖² of softmax regression, by hand, in float64."""
    weight, bias = w[:108].reshape(3, 36), w[108:]
    logits = x @ weight.T + bias
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return np.concatenate([(p.T @ x).ravel(), p.sum(axis=0)]) / len(y) + l2 * w


@pytest.mark.parametrize("batch_size", [None, 1, 5, 8])
def test_logistic_updates_agree_with_the_gradient_by_hand(batch_size):
    images, labels, shards = problem()
    w0 = np.random.default_rng(1).normal(size=111).astype(np.float32)
    options = {"learning_rate": 0.2, "batch_size": batch_size, "seed": 7, "dtype": torch.float64}
    engine = ReferenceEngine(LOGISTIC, images, labels, shards, **options)
    for chunk, updates in engine.updates(w0, np.array([4, 0]), steps=3, round_index=2):
        for k, update in zip(chunk, updates, strict=True):
            rng = stream(7, "batch", 2, int(k))
            w, total = w0.astype(float), np.zeros(111)
            for _ in range(3):
                pick = shards[k] if batch_size is None else shards[k][rng.choice(8, batch_size, replace=False)]
                gradient = softmax_gradient(w, images[pick].reshape(len(pick), 36).astype(float), labels[pick], 0.01)
                total += gradient
                w -= 0.2 * gradient
            assert np.allclose(update, total, rtol=1e-6, atol=1e-7)


def test_one_step_is_the_derivative_of_the_reported_loss():
    images, labels, _ = problem()
    everything = np.arange(48)[None]
    engine = ReferenceEngine(CNN, images, labels, everything, learning_rate=0.1, dtype=torch.float64)
    w = CNN.initial_parameters(np.random.default_rng(0))
    ((_, (gradient,)),) = engine.updates(w, np.array([0]), steps=1, round_index=0)
    for index in np.random.default_rng(2).choice(len(w), 25, replace=False):
        up, down = w.copy(), w.copy()
        up[index] += 1e-5
        down[index] -= 1e-5
        span = float(up[index]) - float(down[index])
        slope = (engine.evaluate(up, images, labels)[0] - engine.evaluate(down, images, labels)[0]) / span
        assert gradient[index] == pytest.approx(slope, abs=2e-5)


def test_updates_are_the_way_travelled_over_the_learning_rate():
    images, labels, shards = problem()
    engine = ReferenceEngine(CNN, images, labels, shards, learning_rate=0.05, dtype=torch.float64)
    w = CNN.initial_parameters(np.random.default_rng(0))
    ((_, whole),) = engine.updates(w, np.array([2]), steps=4, round_index=0)
    here, total = w, np.zeros(CNN.dimension)
    for _ in range(4):
        ((_, one),) = engine.updates(here, np.array([2]), steps=1, round_index=0)
        total += one[0]
        here = (here - 0.05 * one[0]).astype(np.float32)
    assert np.allclose(whole[0], total, atol=1e-5)


def test_accuracy_and_loss_of_a_known_classifier():
    images = np.zeros((4, 1, 6, 6), np.float32)
    labels = np.array([0, 0, 2, 0])
    w = np.zeros(111, np.float32)
    engine = ReferenceEngine(LOGISTIC, images, labels, np.arange(4)[None], learning_rate=0.1)
    loss, accuracy = engine.evaluate(w, images, labels)
    assert loss == pytest.approx(np.log(3), rel=1e-6)
    assert accuracy == 0.75
    w[-3] = 2.0
    assert engine.evaluate(w, images, labels)[0] == pytest.approx(
        np.log(np.exp(2) + 2) - 2 * 0.75 + 0.01 / 2 * 4, rel=1e-6
    )


def test_mini_batches_are_keyed_by_round_and_device_and_have_no_repeats():
    drawn = batches(3, 5, 9, steps=4, size=20, batch_size=20)
    assert drawn.shape == (4, 20)
    assert np.array_equal(np.sort(drawn, axis=1), np.tile(np.arange(20), (4, 1)))
    assert np.array_equal(drawn[:2], batches(3, 5, 9, steps=2, size=20, batch_size=20))
    for other in ((4, 5, 9), (3, 6, 9), (3, 5, 10)):
        assert not np.array_equal(drawn, batches(*other, steps=4, size=20, batch_size=20))


def test_float32_is_close_to_float64():
    images, labels, shards = problem()
    w = CNN.initial_parameters(np.random.default_rng(0))
    results = []
    for dtype in (torch.float32, torch.float64):
        engine = ReferenceEngine(CNN, images, labels, shards, learning_rate=0.1, dtype=dtype)
        results.append(np.concatenate([u for _, u in engine.updates(w, np.arange(6), steps=5, round_index=0)]))
    assert np.allclose(*results, atol=5e-6)
    assert not np.array_equal(*results)
