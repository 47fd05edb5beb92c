"""The fused engine against float64 automatic differentiation, over the whole family of networks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from airfed.learning.fused import FusedEngine, available
from airfed.network import Network, builtin
from airfed.seeds import stream

torch = pytest.importorskip("torch")
if not available():
    pytest.skip("the fused engine needs numba", allow_module_level=True)

F = torch.nn.functional


class Oracle:
    """Loss and gradient in float64, and the smallest margin by which a ReLU or a maximum was decided."""

    def __init__(self, network, parameters, images, labels):
        flat = torch.tensor(np.asarray(parameters, np.float64), requires_grad=True)
        tensors = iter([flat[t.offset : t.offset + t.size].reshape(t.shape) for t in network.tensors])
        x, self.margin = torch.tensor(np.asarray(images, np.float64)), np.inf
        for _ in network.convolutions:
            z = F.conv2d(x, next(tensors), next(tensors))
            windows = F.unfold(z.flatten(0, 1)[:, None], 2, stride=2).detach()
            first, second = windows.topk(2, dim=1).values.unbind(1)
            self._note(first, (first - second)[first > 0])
            x = F.relu(F.max_pool2d(z, 2))
        x = x.flatten(1)
        for index in range(len(network.dense_sizes)):
            x = F.linear(x, next(tensors), next(tensors))
            if index + 1 < len(network.dense_sizes):
                self._note(x.detach())
                x = F.relu(x)
        loss = F.cross_entropy(x, torch.tensor(labels)) + network.l2 / 2 * flat.square().sum()
        loss.backward()
        self.loss, self.gradient = loss.item(), flat.grad.numpy()
        self.accuracy = float((x.argmax(1).numpy() == labels).mean())

    def _note(self, *values):
        for value in values:
            if value.numel():
                self.margin = min(self.margin, value.abs().min().item())


def relative_error(found, expected):
    return np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-12)


def one_update(network, parameters, images, labels, **options):
    steps = options.pop("steps", 1)
    shards = np.arange(len(images))[None]
    with FusedEngine(network, images, labels, shards, **{"learning_rate": 0.1, "threads": 1} | options) as engine:
        ((devices, updates),) = engine.updates(parameters, np.array([0]), steps=steps, round_index=0)
    assert devices.tolist() == [0]
    return updates[0]


@st.composite
def networks(draw):
    channels = draw(st.integers(1, 20))
    height, width = draw(st.integers(1, 22)), draw(st.integers(1, 22))
    shape, convolutions = (channels, height, width), []
    for _ in range(draw(st.integers(0, 3))):
        largest = min(height, width) - 1
        if largest < 1:
            break
        kernel = draw(st.integers(1, largest))
        convolutions.append((draw(st.integers(1, 20)), kernel))
        height, width = (height - kernel + 1) // 2, (width - kernel + 1) // 2
    return Network(
        input_shape=shape,
        convolutions=tuple(convolutions),
        hidden=tuple(draw(st.lists(st.integers(1, 70), max_size=2))),
        classes=draw(st.integers(1, 20)),
        l2=draw(st.sampled_from([0.0, 0.1])),
    )


@given(networks(), st.integers(1, 20), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
def test_gradient_and_loss_match_float64_autograd(network, batch, seed):
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(batch, *network.input_shape)).astype(np.float32)
    labels = rng.integers(0, network.classes, batch)
    parameters = Network.initial_parameters(network, rng) + rng.normal(0, 0.05, network.dimension).astype("f")
    oracle = Oracle(network, parameters, images, labels)
    assume(oracle.margin > 1e-5)  # closer decisions may fall the other way in float32
    found = one_update(network, parameters, images, labels)
    assert relative_error(found, oracle.gradient) < 2e-6  # 1.1e-6 is the largest seen
    with FusedEngine(network, images, labels, np.array([[0]]), learning_rate=0.1, threads=1) as engine:
        loss, accuracy = engine.evaluate(parameters, images, labels)
    assert loss == pytest.approx(oracle.loss, rel=2e-6, abs=2e-6)
    assert accuracy == pytest.approx(oracle.accuracy)


@pytest.mark.parametrize("name", ["cnn", "mlp", "logistic"])
@pytest.mark.parametrize("batch_size", [None, 13])
def test_local_steps_follow_the_same_path_as_float64(name, batch_size):
    network, rng = builtin(name, input_shape=(1, 28, 28), classes=10), np.random.default_rng(3)
    images = rng.random((40, 1, 28, 28), np.float32)
    labels = rng.integers(0, 10, 40)
    parameters = network.initial_parameters(rng)
    found = one_update(network, parameters, images, labels, steps=3, learning_rate=0.05, batch_size=batch_size, seed=7)
    w, total, draws = parameters.astype(np.float64), 0.0, stream(7, "batch", 0, 0)
    for _ in range(3):
        batch = np.arange(40) if batch_size is None else draws.choice(40, batch_size, replace=False)
        gradient = Oracle(network, w, images[batch], labels[batch]).gradient
        total, w = total + gradient, w - 0.05 * gradient
    assert relative_error(found, total) < 1e-5  # float32 parameters after the first step


def test_ties_in_max_pooling_go_to_the_first_maximum_as_in_pytorch():
    network = Network(input_shape=(2, 11, 14), convolutions=((5, 2), (3, 2)), classes=4)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 2, (9, 2, 11, 14)).astype(np.float32)
    parameters = rng.integers(-1, 2, network.dimension).astype(np.float32)  # every sum is exact, most are tied
    parameters[-network.tensors[-2].size - 4 :] /= 64  # ... but the softmax is not saturated
    labels = rng.integers(0, 4, 9)
    oracle = Oracle(network, parameters, images, labels)
    assert oracle.margin == 0
    assert relative_error(one_update(network, parameters, images, labels), oracle.gradient) < 1e-6


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["cnn", "mlp", "logistic"])
@pytest.mark.parametrize("where", ["images", "parameters"])
def test_values_that_are_not_finite_never_become_finite(bad, name, where):
    network, rng = builtin(name, input_shape=(1, 28, 28), classes=10), np.random.default_rng(1)
    images, parameters = rng.random((11, 1, 28, 28), np.float32), network.initial_parameters(rng)
    labels = rng.integers(0, 10, 11)
    target = {"images": images, "parameters": parameters}[where].reshape(-1)
    for place in rng.integers(0, target.size, 5):
        before, target[place] = target[place], bad
        assert not np.isfinite(one_update(network, parameters, images, labels)).all()
        with FusedEngine(network, images, labels, np.array([[0]]), learning_rate=0.1, threads=1) as engine:
            assert not np.isfinite(engine.evaluate(parameters, images, labels)[0])
        target[place] = before
    assert np.isfinite(one_update(network, parameters, images, labels)).all()


@pytest.mark.parametrize("where", ["images", "parameters"])
def test_a_relu_does_not_hide_an_infinity(where):
    network = Network(input_shape=(1, 6, 6), convolutions=((1, 3),), classes=3)
    images, parameters = np.ones((2, 1, 6, 6), np.float32), np.full(network.dimension, -0.1, np.float32)
    parameters[9] = 2.0  # the bias: outputs are alive, and -inf at one would lose against its neighbours
    if where == "images":
        images[1, 0, 0, 0] = np.inf
    else:
        parameters[0] = -np.inf  # no output is alive
    assert np.isnan(one_update(network, parameters, images, np.array([0, 1]))).all()


def test_overflow_inside_the_network_reaches_the_update():
    network, rng = builtin("cnn", input_shape=(1, 28, 28), classes=10), np.random.default_rng(1)
    images, labels = rng.random((3, 1, 28, 28), np.float32), np.array([0, 1, 2])
    parameters = network.initial_parameters(rng) * np.float32(1e15)
    assert not np.isfinite(one_update(network, parameters, images, labels)).all()
