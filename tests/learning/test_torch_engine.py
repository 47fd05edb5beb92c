import importlib.util
import threading

import numpy as np
import pytest
import torch
from torch import nn

from airfed.learning import fused, torch_engine
from airfed.learning.data import dataset, partition
from airfed.learning.engine import make_engine
from airfed.learning.torch_engine import TorchEngine
from airfed.network import builtin


def small(images=60, devices=10, classes=4):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (images, 16, 16), np.uint8)
    labels = np.arange(images) % classes
    data = dataset("s", train_images=pixels, train_labels=labels, test_images=pixels[:9], test_labels=labels[:9])
    return data, partition(labels, devices, rng=rng)


def tiny(name="mlp", classes=4):
    return builtin(name, input_shape=(1, 16, 16), classes=classes)


def gather(engine, parameters, devices, *, steps=2, round_index=0):
    orders, rows = zip(*engine.updates(parameters, devices, steps=steps, round_index=round_index), strict=True)
    assert np.array_equal(np.concatenate(orders), devices)
    return np.concatenate(rows)


def test_workers_compute_alone_and_the_caller_keeps_its_threads():
    data, shards = small()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    engine = TorchEngine(tiny(), data.train_images, data.train_labels, shards, learning_rate=0.1, threads=3)
    seen = list(engine._pool.map(lambda _: torch.get_num_threads(), range(12)))
    inherited = []
    thread = threading.Thread(target=lambda: inherited.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [1] * 12
    assert torch.get_num_threads() == 2
    assert inherited == [2]
    engine.close()
    torch.set_num_threads(before)


def test_memory_is_bounded_by_chunks(monkeypatch):
    data, shards = small()
    engine = TorchEngine(tiny(), data.train_images, data.train_labels, shards, learning_rate=0.1, chunk=2, threads=1)
    done = []
    update = TorchEngine._train
    monkeypatch.setattr(TorchEngine, "_train", lambda self, *a: (update(self, *a), done.append(a[1])))
    stream = engine.updates(tiny().initial_parameters(np.random.default_rng(0)), np.arange(10), steps=1, round_index=0)
    next(stream)
    engine._pool.submit(int).result()
    assert len(done) == 4  # the chunk that came and the one ahead, no more
    stream.close()
    engine.close()


def test_a_stream_left_early_leaves_no_worker_busy(monkeypatch):
    data, shards = small()
    busy, train = [], TorchEngine._train

    def counted(self, *given):
        busy.append(1)
        train(self, *given)
        busy.pop()

    monkeypatch.setattr(TorchEngine, "_train", counted)
    engine = TorchEngine(
        tiny("cnn"), data.train_images, data.train_labels, shards, learning_rate=0.1, chunk=3, threads=2
    )
    start = tiny("cnn").initial_parameters(np.random.default_rng(0))
    for _ in range(5):
        stream = engine.updates(start, np.arange(10), steps=2, round_index=0)
        next(stream)
        stream.close()
        assert not busy
    assert gather(engine, start, np.arange(10)).shape == (10, engine.dimension)
    stream = engine.updates(start, np.arange(10), steps=2, round_index=0)
    next(stream)
    engine.close()
    stream.close()


def test_an_error_in_a_worker_reaches_the_caller_and_the_engine_survives():
    class Fragile(nn.Module):
        broken = False

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(256, 4)

        def forward(self, images):
            if Fragile.broken:
                raise ZeroDivisionError("in the user's forward")
            return self.inner(images.flatten(1))

    data, shards = small()
    engine = TorchEngine(Fragile(), data.train_images, data.train_labels, shards, learning_rate=0.1, threads=2)
    start = np.zeros(engine.dimension, np.float32)
    Fragile.broken = True
    with pytest.raises(ZeroDivisionError, match="user's forward"):
        gather(engine, start, np.arange(10))
    Fragile.broken = False
    assert gather(engine, start, np.arange(10)).shape == (10, 1028)
    engine.close()


@pytest.mark.parametrize("name", ["gpu", "meta"])
def test_a_device_that_is_not_here_is_named(name):
    data, shards = small()
    with pytest.raises(
        ValueError, match=rf"run\.device must be available to torch on this machine \(cpu\), got '{name}'"
    ):
        TorchEngine(tiny(), data.train_images, data.train_labels, shards, learning_rate=0.1, device=name)
    assert torch_engine._find_device("cpu") == torch.device("cpu")


def test_make_engine_names_the_engine(monkeypatch):
    data, shards = small()

    def name(engine, model, **options):
        made = make_engine(engine, model, data, shards, learning_rate=0.1, **options)
        made.close()
        return made.name

    assert name("torch", tiny()) == "torch"
    own = nn.Sequential(nn.Flatten(), nn.Linear(256, 4), nn.Tanh())
    assert name("auto", own) == "torch"
    with pytest.raises(ValueError, match="cannot be used: the model "):
        name("fused", own)
    with pytest.raises(ValueError, match="runs on CPUs, not on 'cuda'"):
        name("fused", tiny(), device="cuda")
    with pytest.raises(ValueError, match="engine must be one of"):
        name("jax", tiny())


@pytest.mark.parametrize("missing", ["numba", "llvmlite"])
def test_auto_falls_to_torch_where_the_fused_engine_lacks_a_package(monkeypatch, missing):
    data, shards = small()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == missing else find(name, *rest))
    engine = make_engine("auto", tiny(), data, shards, learning_rate=0.1)
    assert engine.name == "torch"
    engine.close()
    with pytest.raises(ValueError, match="cannot be used: numba is not installed"):
        make_engine("fused", tiny(), data, shards, learning_rate=0.1)


def test_auto_takes_the_fused_engine_where_it_applies(monkeypatch):
    class FusedEngine:
        name = "fused"

        def __init__(self, model, images, labels, shards, **options):
            self.given = (model, images, labels, shards, options)

    data, shards = small()
    monkeypatch.setattr(fused, "FusedEngine", FusedEngine)
    monkeypatch.setattr(fused, "available", lambda: True)
    engine = make_engine("auto", tiny(), data, shards, learning_rate=0.1, batch_size=2, seed=5, threads=2, chunk=9)
    assert engine.name == "fused"
    assert engine.given[1] is data.train_images
    assert engine.given[4] == {"learning_rate": 0.1, "batch_size": 2, "seed": 5, "threads": 2, "chunk": 9}
