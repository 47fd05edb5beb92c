import importlib.util
import itertools
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

from airfed.learning import torch_engine
from airfed.learning.data import dataset, load
from airfed.learning.engine import make_engine
from airfed.learning.models import initial_parameters
from airfed.learning.partition import partition
from airfed.learning.quadratic import QuadraticEngine, QuadraticTask
from airfed.learning.reference import ReferenceEngine
from airfed.learning.torch_engine import TorchEngine
from airfed.network import builtin


@pytest.fixture(autouse=True)
def _one_thread():
    """The reference leaves torch's threads to the caller; on a busy machine two are slower than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits():
    return load("mnist-5k")


@pytest.fixture(scope="module")
def shards(digits):
    return partition(digits.train_labels, 100, rng=np.random.default_rng(0))


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


def federated_averaging(engine, parameters, devices, *, rounds, steps, learning_rate):
    for i in range(rounds):
        total = np.zeros(engine.dimension)
        for _, updates in engine.updates(parameters, devices, steps=steps, round_index=i):
            for update in updates:
                total += update
        parameters = (parameters - learning_rate * total / len(devices)).astype(np.float32)
    engine.close()
    return parameters


@pytest.mark.parametrize(
    ("name", "batch_size"), [("cnn", None), ("mlp", None), ("logistic", None), ("cnn", 16), ("logistic", 7)]
)
def test_five_rounds_agree_with_the_reference(digits, shards, name, batch_size):
    network = builtin(name, input_shape=(1, 28, 28), classes=10)
    start = initial_parameters(network, 0)
    arguments = (network, digits.train_images, digits.train_labels, shards)
    ends = []
    for make, options in [
        (TorchEngine, {"threads": 2, "chunk": 3}),
        (ReferenceEngine, {}),
        (ReferenceEngine, {"dtype": torch.float64}),
    ]:
        engine = make(*arguments, learning_rate=0.1, batch_size=batch_size, seed=3, **options)
        devices = np.arange(0, 100, 30)
        ends.append(federated_averaging(engine, start, devices, rounds=5, steps=2, learning_rate=0.1))
    fast, slow, exact = ends
    assert np.abs(slow - start).max() > 1e-3
    assert np.abs(fast - slow).max() < 1e-6
    assert np.abs(fast - exact).max() < 1e-6


@pytest.mark.parametrize("batch_size", [None, 3])
def test_bits_do_not_depend_on_chunks_workers_order_or_torchs_own_threads(batch_size):
    data, shards = small()
    network = tiny("cnn")
    start = initial_parameters(network, 0)
    results = []
    before = torch.get_num_threads()
    for (threads, chunk), outer in itertools.product([(1, 1), (2, 4), (3, 32), (4, 7)], (1, 2)):
        torch.set_num_threads(outer)
        engine = TorchEngine(
            network, data.train_images, data.train_labels, shards,
            learning_rate=0.1, batch_size=batch_size, threads=threads, chunk=chunk,
        )  # fmt: skip
        devices = np.random.default_rng(chunk).permutation(10)
        rows = gather(engine, start, devices, steps=3)
        results.append((rows[np.argsort(devices)], engine.evaluate(start, data.train_images, data.train_labels)))
        engine.close()
    torch.set_num_threads(before)
    for rows, measured in results[1:]:
        assert np.array_equal(rows, results[0][0])
        assert measured == results[0][1]


def test_evaluation_agrees_with_the_reference(digits, shards):
    for name in ("cnn", "logistic"):
        network = builtin(name, input_shape=(1, 28, 28), classes=10)
        w = np.random.default_rng(0).normal(scale=0.1, size=network.dimension).astype(np.float32)
        arguments = (network, digits.train_images, digits.train_labels, shards)
        fast = TorchEngine(*arguments, learning_rate=0.1, threads=2)
        exact = ReferenceEngine(*arguments, learning_rate=0.1, dtype=torch.float64)
        test = (digits.test_images[:777], digits.test_labels[:777])
        loss, accuracy = fast.evaluate(w, *test)
        assert loss == pytest.approx(exact.evaluate(w, *test)[0], rel=1e-6)
        assert accuracy == pytest.approx(exact.evaluate(w, *test)[1], abs=2 / 777)
        fast.close()


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


def test_no_global_generator_is_touched():
    data, shards = small()
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    engine = TorchEngine(tiny("cnn"), data.train_images, data.train_labels, shards, learning_rate=0.1, batch_size=2)
    gather(engine, initial_parameters(tiny("cnn"), 0), np.arange(10))
    engine.close()
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002


def test_the_callers_arrays_stay_as_they_were_and_the_results_are_the_callers():
    data, shards = small()
    engine = TorchEngine(tiny(), data.train_images, data.train_labels, shards, learning_rate=0.1, chunk=2, threads=2)
    start = initial_parameters(tiny(), 0)
    kept = start.copy()
    expected = gather(engine, start, np.arange(10))
    stream = engine.updates(start, np.arange(10), steps=2, round_index=0)
    rows = []
    for _, updates in stream:
        rows.append(updates.copy())
        updates[:] = np.nan
        start[:] = 0  # a round in flight is not disturbed
    assert np.array_equal(np.concatenate(rows), expected)
    assert np.array_equal(gather(engine, kept, np.arange(10)), expected)
    engine.close()


def test_memory_is_bounded_by_chunks(monkeypatch):
    data, shards = small()
    engine = TorchEngine(tiny(), data.train_images, data.train_labels, shards, learning_rate=0.1, chunk=2, threads=1)
    done = []
    update = TorchEngine._update
    monkeypatch.setattr(TorchEngine, "_update", lambda self, *a: (update(self, *a), done.append(a[1])))
    stream = engine.updates(initial_parameters(tiny(), 0), np.arange(10), steps=1, round_index=0)
    next(stream)
    engine._pool.submit(int).result()
    assert len(done) == 4  # the chunk that came and the one ahead, no more
    stream.close()
    engine.close()


def test_a_stream_left_early_leaves_no_worker_busy():
    data, shards = small()
    engine = TorchEngine(
        tiny("cnn"), data.train_images, data.train_labels, shards, learning_rate=0.1, chunk=3, threads=2
    )
    start = initial_parameters(tiny("cnn"), 0)
    for _ in range(5):
        stream = engine.updates(start, np.arange(10), steps=2, round_index=0)
        next(stream)
        stream.close()
        assert engine._workers.qsize() == 2
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


def test_empty_rounds_and_repeated_devices():
    data, shards = small()
    engine = TorchEngine(tiny(), data.train_images, data.train_labels, shards, learning_rate=0.1, threads=2)
    start = initial_parameters(tiny(), 0)
    assert list(engine.updates(start, np.zeros(0, np.intp), steps=1, round_index=0)) == []
    rows = gather(engine, start, np.array([3, 3]))
    assert np.array_equal(rows[0], rows[1])
    engine.close()


def test_a_diverging_model_gives_non_finite_updates_and_no_error():
    data, shards = small()
    engine = TorchEngine(tiny(), data.train_images, data.train_labels, shards, learning_rate=1e30, threads=2)
    rows = gather(engine, initial_parameters(tiny(), 0), np.arange(4), steps=5)
    assert not np.isfinite(rows).all()
    engine.close()


class Shared(nn.Module):
    """Tied and unused parameters, a group norm: what users write."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(1, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.tied = nn.Linear(4, 4)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, images):
        pooled = self.norm(self.enter(images)).relu().mean(dim=(2, 3))
        return self.tied(self.tied(pooled).tanh())


def test_any_torch_module_runs_and_agrees_with_the_reference():
    data, shards = small()
    torch.manual_seed(0)
    module = Shared()
    start = initial_parameters(module, 0)
    arguments = (module, data.train_images, data.train_labels, shards)
    fast = TorchEngine(*arguments, learning_rate=0.1, threads=2)
    slow = ReferenceEngine(*arguments, learning_rate=0.1)
    rows = gather(fast, start, np.arange(10), steps=3)
    assert np.allclose(rows, gather(slow, start, np.arange(10), steps=3), atol=1e-6)
    assert np.array_equal(initial_parameters(module, 0), start)  # the engine trains copies
    assert (rows[:, :3] == 0).all()  # torch lists a module's own parameters first: here the unused ones
    fast.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"batch_size": 7}, "batch_size=7 to be at most the images per device, 6"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"threads": 0}, "threads=0"),
        ({"chunk": 0}, "chunk=0"),
        ({"device": "gpu"}, "device='gpu' to be one that is here"),
        ({"device": "meta"}, "device='meta' to be one that is here and that torch can use; there is cpu"),
        ({"shards": np.array([[60]])}, "index 60 images, got 60 to 60"),
        ({"images": np.zeros((60, 16, 16), np.float32)}, "images float32"),
        ({"labels": np.zeros(59, np.int64)}, r"labels int64 \(60,\)"),
        ({"model": tiny(classes=3)}, "at least 4 outputs"),
        ({"model": builtin("mlp", input_shape=(1, 9, 9), classes=4)}, "to take images"),
    ],
)
def test_bad_arguments_are_named(change, message):
    data, shards = small()
    arguments = {
        "model": tiny(), "images": data.train_images, "labels": data.train_labels, "shards": shards,
        "learning_rate": 0.1,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        TorchEngine(**arguments | change)


def test_make_engine_says_which_engine_runs(monkeypatch):
    data, shards = small()

    def name(engine, model, **options):
        made = make_engine(engine, model, data, shards, learning_rate=0.1, **options)
        made.close()
        return made.name

    assert name("torch", tiny()) == "torch"
    assert name("reference", tiny()) == "reference"
    assert name("auto", Shared()) == "torch"
    with pytest.raises(ValueError, match="not one of the built-in family"):
        name("fused", Shared())
    with pytest.raises(ValueError, match="runs on CPUs, not on 'cuda'"):
        name("fused", tiny(), device="cuda")
    with pytest.raises(ValueError, match="engine to be one of"):
        name("jax", tiny())
    task = QuadraticTask(dimension=3, num_devices=4, smoothness=2.0, strong_convexity=1.0)
    assert isinstance(make_engine("auto", task, None, None, learning_rate=0.1), QuadraticEngine)
    with pytest.raises(ValueError, match="brings its own engine"):
        make_engine("torch", task, None, None, learning_rate=0.1)
    with pytest.raises(ValueError, match="Expected data and shards"):
        make_engine("auto", tiny(), None, None, learning_rate=0.1)


@pytest.mark.parametrize("missing", ["airfed.learning.fused", "numba"])
def test_auto_falls_to_torch_where_the_fused_engine_is_not_installed(monkeypatch, missing):
    data, shards = small()
    find = importlib.util.find_spec

    def without(name, *rest):
        return None if name == missing else find("airfed" if name == "airfed.learning.fused" else name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    engine = make_engine("auto", tiny(), data, shards, learning_rate=0.1)
    assert engine.name == "torch"
    engine.close()
    with pytest.raises(ValueError, match=r"does not apply: (this installation|numba)"):
        make_engine("fused", tiny(), data, shards, learning_rate=0.1)


def test_auto_takes_the_fused_engine_where_it_applies(monkeypatch):
    class FusedEngine:
        name = "fused"

        def __init__(self, model, images, labels, shards, **options):
            self.given = (model, images, labels, shards, options)

    data, shards = small()
    fake = type(sys)("airfed.learning.fused")
    fake.FusedEngine = FusedEngine
    monkeypatch.setitem(sys.modules, "airfed.learning.fused", fake)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: fake)
    engine = make_engine("auto", tiny(), data, shards, learning_rate=0.1, batch_size=2, seed=5, threads=2, chunk=9)
    assert engine.name == "fused"
    assert engine.given[1] is data.train_images
    assert engine.given[4] == {"learning_rate": 0.1, "batch_size": 2, "seed": 5, "threads": 2, "chunk": 9}


def test_an_engine_can_be_made_many_times_without_leaking_threads():
    data, shards = small()
    before = threading.active_count()
    for _ in range(5):
        TorchEngine(tiny(), data.train_images, data.train_labels, shards, learning_rate=0.1, threads=4).close()
    assert threading.active_count() == before
    assert torch_engine._find_device("cpu") == torch.device("cpu")
