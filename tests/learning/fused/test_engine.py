"""Promises of the fused engine in addition to those of all engines (`test_engines.py`): memory, supported models."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from airfed.learning.fused import FusedEngine, available
from airfed.network import Network

if not available():
    pytest.skip("the fused engine needs numba", allow_module_level=True)

NETWORK = Network(input_shape=(2, 12, 9), convolutions=((6, 3),), hidden=(7,), classes=4)


def data(count=90, devices=10, network=NETWORK):
    rng = np.random.default_rng(5)
    images = rng.normal(size=(count, *network.input_shape)).astype(np.float32)
    labels = rng.integers(0, network.classes, count)
    return images, labels, rng.permutation(count).reshape(devices, -1), network.initial_parameters(rng)


def test_no_more_than_one_chunk_of_updates_exists():
    images, labels, shards, parameters = data()
    with FusedEngine(NETWORK, images, labels, shards, learning_rate=0.1, chunk=4) as engine:
        sizes = [len(d) for d, _ in engine.updates(parameters, np.arange(10), steps=1, round_index=0)]
    assert sizes == [2] * 5


def test_images_are_not_copied():
    images, labels, shards, _ = data()
    with FusedEngine(NETWORK, images, labels, shards, learning_rate=0.1) as engine:
        assert np.shares_memory(engine._images, images)


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
