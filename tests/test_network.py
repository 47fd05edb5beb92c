"""Shapes and sizes of the built-in networks, without torch."""

import numpy as np
import pytest

from airfed.network import Network, builtin

DIGIT = {"input_shape": (1, 28, 28), "classes": 10}


@pytest.mark.parametrize(
    ("name", "dimension"),
    [
        ("cnn", 21840),  # [Yan23, Sec. V]
        ("mlp", 784 * 64 + 64 + 64 * 10 + 10),
        ("logistic", 784 * 10 + 10),
    ],
)
def test_dimensions(name, dimension):
    assert builtin(name, **DIGIT).dimension == dimension


def test_tensors_fill_the_flat_vector_without_gaps():
    for name in ("cnn", "mlp", "logistic"):
        network, offset = builtin(name, **DIGIT), 0
        for tensor in network.tensors:
            assert tensor.offset == offset
            assert tensor.size == np.prod(tensor.shape)
            offset += tensor.size
        assert offset == network.dimension
        assert len({tensor.name for tensor in network.tensors}) == len(network.tensors)


def test_shapes_of_the_cnn():
    cnn = builtin("cnn", **DIGIT)
    assert cnn.image_shapes == [(10, 12, 12), (20, 4, 4)]
    assert cnn.dense_sizes == [(320, 50), (50, 10)]


def test_pooling_drops_an_odd_last_row():
    assert Network(input_shape=(1, 8, 9), convolutions=((3, 2),), classes=2).image_shapes == [(3, 3, 4)]


def test_initial_parameters():
    cnn = builtin("cnn", **DIGIT)
    start = cnn.initial_parameters(np.random.default_rng(0))
    assert start.dtype == np.float32
    assert start.shape == (21840,)
    for tensor in cnn.tensors:
        part = start[tensor.offset : tensor.offset + tensor.size]
        limit = 1 / np.sqrt(tensor.fan_in)
        assert np.abs(part).max() <= limit * (1 + 1e-6)
        if tensor.size > 1000:  # uniform: standard deviation limit/√3
            assert part.std() == pytest.approx(limit / np.sqrt(3), rel=0.05)
    np.testing.assert_array_equal(start, cnn.initial_parameters(np.random.default_rng(0)))
    assert not builtin("logistic", **DIGIT).initial_parameters(np.random.default_rng(0)).any()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"input_shape": (1, 3, 3), "convolutions": ((4, 3),)}, "Images of 3×3 are too small"),
        ({"input_shape": (1, 28, 28), "convolutions": ((10, 5), (20, 5), (30, 5))}, "convolution 2"),
        ({"input_shape": (0, 28, 28)}, "channels must be at least 1, got 0"),
        ({"input_shape": (1, 28, 28), "classes": 0}, "classes must be at least 1, got 0"),
        ({"input_shape": (1, 28, 28), "hidden": (0,)}, r"hidden\[0\] must be at least 1, got 0"),
        ({"input_shape": (1, 28, 28), "convolutions": ((0, 5),)}, r"convolutions\[0\] must be at least 1, got 0"),
        ({"input_shape": (1, 28, 28), "l2": -1.0}, "l2 must be non-negative and finite, got -1.0"),
    ],
)
def test_bad_networks(changes, named):
    with pytest.raises(ValueError, match=named):
        Network(**changes)


def test_unknown_networks():
    with pytest.raises(ValueError, match="model must be one of cnn, mlp, logistic"):
        builtin("resnet", **DIGIT)
