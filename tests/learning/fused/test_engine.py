"""What the fused engine promises beside its numbers: order, determinism, errors, memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from airfed.learning.fused import FusedEngine, available, supports
from airfed.network import Network, builtin

if not available():
    pytest.skip("the fused engine needs numba", allow_module_level=True)

NETWORK = Network(input_shape=(2, 12, 9), convolutions=((6, 3),), hidden=(7,), classes=4)


def data(count=90, devices=10, network=NETWORK):
    rng = np.random.default_rng(5)
    images = rng.normal(size=(count, *network.input_shape)).astype(np.float32)
    labels = rng.integers(0, network.classes, count)
    return images, labels, rng.permutation(count).reshape(devices, -1), network.initial_parameters(rng)


def collect(chunks):
    pairs = list(chunks)
    return np.concatenate([devices for devices, _ in pairs]), np.concatenate([u for _, u in pairs])


@pytest.mark.parametrize("batch_size", [None, 3])
def test_updates_have_the_same_bits_for_any_threads_chunks_and_order(batch_size):
    images, labels, shards, parameters = data()
    expected = None
    for threads, chunk in [(1, 32), (2, 32), (3, 1), (2, 2), (1, 3), (4, 7)]:
        with FusedEngine(
            NETWORK,
            images,
            labels,
            shards,
            learning_rate=0.1,
            batch_size=batch_size,
            threads=threads,
            chunk=chunk,
        ) as engine:
            order = np.random.default_rng(threads).permutation(10)
            devices, updates = collect(engine.updates(parameters, order, steps=2, round_index=4))
        assert devices.tolist() == order.tolist()
        updates = updates[np.argsort(order)]
        expected = updates if expected is None else expected
        np.testing.assert_array_equal(updates, expected)


def test_a_device_sees_its_own_images_only():
    images, labels, shards, parameters = data()
    with FusedEngine(NETWORK, images, labels, shards, learning_rate=0.1) as engine:
        _, together = collect(engine.updates(parameters, np.arange(10), steps=2, round_index=0))
    own = shards[6]
    with FusedEngine(NETWORK, images[own], labels[own], np.arange(9)[None], learning_rate=0.1) as engine:
        _, alone = collect(engine.updates(parameters, [0], steps=2, round_index=0))
    np.testing.assert_array_equal(together[6], alone[0])


def test_mini_batches_differ_between_rounds_and_seeds_but_not_between_calls():
    images, labels, shards, parameters = data()

    def updates(seed, round_index):
        with FusedEngine(NETWORK, images, labels, shards, learning_rate=0.1, batch_size=4, seed=seed) as engine:
            return collect(engine.updates(parameters, [3], steps=1, round_index=round_index))[1]

    np.testing.assert_array_equal(updates(0, 1), updates(0, 1))
    assert (updates(0, 1) != updates(0, 2)).any()
    assert (updates(0, 1) != updates(1, 1)).any()


def test_evaluation_has_the_same_bits_for_any_number_of_threads():
    images, labels, shards, parameters = data(count=1000)
    results = set()
    for threads in (1, 2, 5):
        with FusedEngine(NETWORK, images, labels, shards, learning_rate=0.1, threads=threads) as engine:
            results.add(engine.evaluate(parameters, images, labels))
    assert len(results) == 1


def test_no_more_than_one_chunk_of_updates_exists():
    images, labels, shards, parameters = data()
    with FusedEngine(NETWORK, images, labels, shards, learning_rate=0.1, chunk=4) as engine:
        sizes = [len(d) for d, _ in engine.updates(parameters, np.arange(10), steps=1, round_index=0)]
    assert sizes == [2] * 5


def test_an_abandoned_round_leaves_the_engine_usable():
    images, labels, shards, parameters = data()
    with FusedEngine(NETWORK, images, labels, shards, learning_rate=0.1, chunk=2) as engine:
        chunks = engine.updates(parameters, np.arange(10), steps=1, round_index=0)
        next(chunks)
        chunks.close()
        assert len(list(engine.updates(parameters, [1, 1], steps=1, round_index=0))) == 2
        assert list(engine.updates(parameters, [], steps=1, round_index=0)) == []


def test_images_are_not_copied():
    images, labels, shards, _ = data()
    with FusedEngine(NETWORK, images, labels, shards, learning_rate=0.1) as engine:
        assert np.shares_memory(engine._images, images)


def test_the_engine_speaks_for_itself():
    assert supports(builtin("cnn", input_shape=(1, 28, 28), classes=10)) is None
    assert "Network" in supports("cnn")
    images, labels, shards, _ = data()
    with FusedEngine(NETWORK, images, labels, shards, learning_rate=0.1) as engine:
        assert (engine.name, engine.dimension) == ("fused", NETWORK.dimension)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.zeros((90, 2, 9, 12), np.float32)}, r"Expected images of shape"),
        ({"labels": np.zeros(89, int)}, r"Expected 90 labels"),
        ({"labels": np.full(90, 4)}, r"Expected labels in 0\.\.3; got 4\.\.4"),
        ({"shards": np.full((2, 3), 90)}, r"Expected shards to index 90 images; got 90\.\.90"),
        ({"shards": np.arange(9)}, r"Expected shards of shape"),
        ({"learning_rate": 0.0}, r"Expected learning_rate=0\.0 > 0"),
        ({"batch_size": 10}, r"Expected batch_size=10 <= 9"),
        ({"chunk": 0}, r"Expected chunk=0 >= 1"),
        ({"threads": -1}, r"Expected threads=-1 >= 1"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    images, labels, shards, _ = data()
    arguments = {"images": images, "labels": labels, "shards": shards, "learning_rate": 0.1} | change
    with pytest.raises(ValueError, match=message):
        FusedEngine(NETWORK, **arguments)


def test_wrong_parameters_devices_and_steps_are_refused():
    images, labels, shards, parameters = data()
    with FusedEngine(NETWORK, images, labels, shards, learning_rate=0.1) as engine:
        with pytest.raises(ValueError, match="Expected parameters of shape"):
            engine.updates(parameters[1:], [0], steps=1, round_index=0)
        with pytest.raises(ValueError, match=r"Expected devices in 0\.\.9; got 0\.\.10"):
            engine.updates(parameters, [0, 10], steps=1, round_index=0)
        with pytest.raises(ValueError, match="Expected steps=0 >= 1"):
            engine.updates(parameters, [0], steps=0, round_index=0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_hundred_devices_with_sixty_thousand_images_stay_below_600_megabytes():
    program = """
import numpy as np
from airfed.learning.fused import FusedEngine
from airfed.network import builtin
network, rng = builtin("cnn", input_shape=(1, 28, 28), classes=10), np.random.default_rng(0)
images, labels = rng.random((60000, 1, 28, 28), np.float32), rng.integers(0, 10, 60000)
shards = np.arange(60000).reshape(100, 600)
with FusedEngine(network, images, labels, shards, learning_rate=0.1, threads=2) as engine:
    parameters = network.initial_parameters(rng)
    for _ in engine.updates(parameters, np.arange(100), steps=1, round_index=0): pass
    engine.evaluate(parameters, images[:10000], labels[:10000])
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(run.stdout) / 1024 < 600
