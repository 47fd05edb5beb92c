"""The contract of all engines: one suite for each of them.

If an engine does not support a model, the test is skipped with the engine's message.
"""

import threading
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from airfed.aircomp import clip
from airfed.learning.data import dataset, load, partition
from airfed.learning.engine import ENGINES, make_engine
from airfed.learning.models import flatten
from airfed.learning.quadratic import QuadraticEngine, QuadraticTask, RidgeTask
from airfed.learning.reference import ReferenceEngine
from airfed.network import builtin
from airfed.scenario.learning_section import NetworkSection

DEVICES = 10
IMAGE_ENGINES = [name for name in ENGINES if name != "auto"]
MODELS = ("cnn", "mlp", "logistic", "written", "own")


class Own(nn.Module):
    """A typical user model: tied and unused parameters, a group norm."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(1, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.tied = nn.Linear(4, 4)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, images):
        pooled = self.norm(self.enter(images)).relu().mean(dim=(2, 3))
        return self.tied(self.tied(pooled).tanh())


@cache
def model(name):
    if name == "own":
        torch.manual_seed(0)
        return Own()
    if name == "written":
        layers = NetworkSection(convolutions=[[6, 3], [5, 2]], hidden=[9, 7], l2=0.01)
        return layers.build(input_shape=(1, 16, 16), classes=4)
    return builtin(name, input_shape=(1, 16, 16), classes=4)


@cache
def images():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (60, 16, 16), np.uint8)
    labels = np.arange(60) % 4
    data = dataset("s", train_images=pixels, train_labels=labels, test_images=pixels[:9], test_labels=labels[:9])
    return data, partition(labels, DEVICES, rng=rng)


def known(name):
    """A task without images."""
    if name == "ridge":
        return RidgeTask(dimension=9, num_devices=DEVICES, samples=203, seed=1)
    return QuadraticTask(
        dimension=9, num_devices=DEVICES, smoothness=4.0, strong_convexity=0.5, curvature="own", seed=1
    )


@dataclass(frozen=True)
class Case:
    """An engine with a model that it may serve; "quadratic" is both, and serves ridge regression too."""

    engine: str
    model: str

    def make(self, **options: Any):
        options = {"learning_rate": 0.1, "threads": 2} | options
        if self.engine == "quadratic":
            if options.get("batch_size") is not None:
                pytest.skip("the quadratic task has no images")
            taken = {name: value for name, value in options.items() if name in ("learning_rate", "chunk")}
            return QuadraticEngine(known(self.model), **taken)
        try:
            return make_engine(self.engine, model(self.model), *images(), **options)
        except ValueError as error:
            if "cannot be used" in str(error):
                pytest.skip(str(error))
            raise

    @property
    def start(self):
        if self.engine == "quadratic":
            return np.random.default_rng(0).normal(size=9).astype(np.float32)
        made = model(self.model)
        return flatten(made) if isinstance(made, nn.Module) else made.initial_parameters(np.random.default_rng(0))

    def exact(self, **options: Any):
        """An engine that computes in float64."""
        if self.engine == "quadratic":
            return self.make(**options)
        data, shards = images()
        arguments = (model(self.model), data.train_images, data.train_labels, shards)
        return ReferenceEngine(*arguments, learning_rate=0.1, dtype=torch.float64, **options)


CASES = [Case(engine, name) for engine in IMAGE_ENGINES for name in MODELS]
CASES += [Case("quadratic", name) for name in ("quadratic", "ridge")]


@pytest.fixture(params=CASES, ids=lambda case: f"{case.engine}-{case.model}")
def case(request):
    return request.param


@pytest.fixture(
    params=[case for case in CASES if case.model in ("mlp", "quadratic", "ridge")],
    ids=lambda case: f"{case.engine}-{case.model}",
)
def small(request):
    """One small model for each engine."""
    return request.param


def gather(engine, parameters, devices, *, steps=2, round_index=0):
    devices = np.asarray(devices, np.intp)
    orders, rows = zip(*engine.updates(parameters, devices, steps=steps, round_index=round_index), strict=True)
    assert np.array_equal(np.concatenate(orders), devices)
    return np.concatenate(rows)


def once(case, devices=range(DEVICES), *, steps=2, round_index=0, **options):
    engine = case.make(**options)
    rows = gather(engine, case.start, devices, steps=steps, round_index=round_index)
    engine.close()
    return rows


@pytest.mark.parametrize("chunk", [1, 3, 32])
def test_updates_come_in_the_order_asked_for_in_chunks_of_float32(small, chunk):
    engine = small.make(chunk=chunk)
    assert engine.name == small.engine
    order = np.random.default_rng(1).permutation(DEVICES)
    pieces = list(engine.updates(small.start, order, steps=1, round_index=0))
    assert np.concatenate([devices for devices, _ in pieces]).tolist() == order.tolist()
    for devices, rows in pieces:
        assert 1 <= len(devices) <= chunk
        assert rows.shape == (len(devices), engine.dimension)
        assert rows.dtype == np.float32
    engine.close()


@pytest.mark.parametrize("batch_size", [None, 3])
def test_updates_agree_with_float64(case, batch_size):
    rows = once(case, steps=3, round_index=2, batch_size=batch_size, seed=5)
    exact = case.exact(**({} if case.engine == "quadratic" else {"batch_size": batch_size, "seed": 5}))
    truth = gather(exact, case.start, range(DEVICES), steps=3, round_index=2)
    errors = np.linalg.norm(rows - truth, axis=1) / np.linalg.norm(truth, axis=1)
    assert errors.max() < 1e-5


@pytest.mark.parametrize(
    ("name", "batch_size"), [("cnn", None), ("mlp", None), ("logistic", None), ("cnn", 16), ("logistic", 7)]
)
def test_five_rounds_of_averaging_agree_with_float64(name, batch_size):
    digits = load("mnist-5k")
    network = builtin(name, input_shape=(1, 28, 28), classes=10)
    start, devices = network.initial_parameters(np.random.default_rng(0)), np.arange(0, 100, 30)
    arguments = (network, digits, partition(digits.train_labels, 100, rng=np.random.default_rng(0)))
    options = {"learning_rate": 0.1, "batch_size": batch_size, "seed": 3, "chunk": 3}
    exact = ReferenceEngine(
        network, digits.train_images, digits.train_labels, arguments[2], **options, dtype=torch.float64
    )
    ends = []
    for engine in (exact, *(make_engine(name, *arguments, **options, threads=2) for name in IMAGE_ENGINES)):
        parameters = start
        for index in range(5):
            total = gather(engine, parameters, devices, round_index=index).sum(axis=0, dtype=np.float64)
            parameters = (parameters - 0.1 * total / len(devices)).astype(np.float32)
        engine.close()
        ends.append(parameters)
    assert np.abs(ends[0] - start).max() > 1e-3
    for end in ends[1:]:
        assert np.abs(end - ends[0]).max() < 1e-6


@pytest.mark.parametrize("batch_size", [None, 3])
def test_bits_do_not_depend_on_chunks_threads_order_or_other_devices(case, batch_size):
    options = {"steps": 3, "batch_size": batch_size}
    expected = once(case, threads=1, chunk=32, **options)
    before = torch.get_num_threads()
    for threads, chunk, outer in [(1, 1, 1), (2, 4, 2), (3, 32, 1), (4, 7, 2)]:
        torch.set_num_threads(outer)
        order = np.random.default_rng(chunk).permutation(DEVICES)
        assert np.array_equal(once(case, order, threads=threads, chunk=chunk, **options), expected[order])
        assert torch.get_num_threads() == outer
    torch.set_num_threads(before)
    assert np.array_equal(once(case, [7, 2], **options), expected[[7, 2]])


def test_evaluation_agrees_with_float64_with_the_same_bits_for_any_number_of_threads(case):
    data, _ = images()
    parameters = case.start + np.float32(0.05)
    many = np.tile(data.train_images, (20, 1, 1, 1)), np.tile(data.train_labels, 20)  # work for several threads
    found = set()
    for threads in (1, 2, 5):
        engine = case.make(threads=threads)
        found.add(engine.evaluate(parameters, *many))
        engine.close()
    if case.engine == "quadratic":
        assert len({loss for loss, _ in found}) == 1
        return
    ((loss, accuracy),) = found
    truth = case.exact().evaluate(parameters, data.train_images, data.train_labels)
    assert loss == pytest.approx(truth[0], rel=1e-5)
    assert accuracy == pytest.approx(truth[1], abs=2 / 60)


def test_the_callers_arrays_stay_as_they_were_and_the_results_are_the_callers(small):
    engine, start, devices = small.make(chunk=2), small.start, np.arange(DEVICES)
    expected = gather(engine, start, devices)
    assert np.array_equal(start, small.start)
    rows = []
    for _, updates in engine.updates(start, devices, steps=2, round_index=0):
        rows.append(updates.copy())
        updates[:] = np.nan
        start[:] = 0  # a round in flight is not disturbed
    assert np.array_equal(np.concatenate(rows), expected)
    assert np.array_equal(gather(engine, small.start, devices), expected)
    engine.close()


def test_a_round_left_early_leaves_the_engine_usable(small):
    engine = small.make(chunk=2)
    expected = gather(engine, small.start, range(DEVICES))
    for _ in range(3):
        stream = engine.updates(small.start, np.arange(DEVICES), steps=2, round_index=0)
        next(stream)
        stream.close()
    assert np.array_equal(gather(engine, small.start, range(DEVICES)), expected)
    stream = engine.updates(small.start, np.arange(DEVICES), steps=2, round_index=0)
    next(stream)
    engine.close()
    stream.close()


def test_devices_may_be_empty_or_repeated(small):
    engine = small.make()
    assert list(engine.updates(small.start, np.zeros(0, np.intp), steps=1, round_index=0)) == []
    rows = gather(engine, small.start, [3, 3])
    assert np.array_equal(rows[0], rows[1])
    engine.close()


@pytest.mark.parametrize("engine", IMAGE_ENGINES)
def test_a_device_sees_its_own_images_only(engine):
    data, shards = images()
    network, own = model("cnn"), shards[6]
    pictures, labels = data.train_images[own], data.train_labels[own]
    one = dataset("one", train_images=pictures, train_labels=labels, test_images=pictures, test_labels=labels)
    together = make_engine(engine, network, data, shards, learning_rate=0.1)
    single = make_engine(engine, network, one, np.arange(6)[None], learning_rate=0.1)
    start = network.initial_parameters(np.random.default_rng(0))
    assert np.array_equal(gather(together, start, [6])[0], gather(single, start, [0])[0])
    together.close()
    single.close()


@pytest.mark.parametrize("engine", IMAGE_ENGINES)
def test_mini_batches_differ_between_rounds_and_seeds_but_not_between_calls(engine):
    def update(seed, round_index):
        return once(Case(engine, "mlp"), [3], steps=1, round_index=round_index, batch_size=4, seed=seed)

    assert np.array_equal(update(0, 1), update(0, 1))
    assert (update(0, 1) != update(0, 2)).any()
    assert (update(0, 1) != update(1, 1)).any()


def test_the_torch_engine_trains_copies_of_a_module_and_all_of_its_parameters():
    case = Case("torch", "own")
    start = case.start
    rows = once(case, steps=3)
    assert np.array_equal(case.start, start)
    assert (rows[:, :3] == 0).all()  # torch lists a module's own parameters first: here the unused ones


def test_divergence_gives_updates_that_are_not_finite_and_no_error(small):
    assert not np.isfinite(once(small, steps=9, learning_rate=1e30)).all()


def test_clipping_is_the_airs(small):
    rows = once(small)
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    bound = float(norms.min()) / 2
    clipped, before = clip(rows, bound)
    assert before == pytest.approx(norms)  # the engine hands out the whole sum of gradients
    assert (np.linalg.norm(clipped, axis=1) <= bound).all()


def test_no_global_generator_is_touched(small):
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    once(small, **({} if small.engine == "quadratic" else {"batch_size": 2}))
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002


def test_closing_ends_every_thread(small):
    before = threading.active_count()
    for _ in range(3):
        engine = small.make(threads=4)
        gather(engine, small.start, range(4))
        engine.close()
    assert threading.active_count() == before


ROUNDS = {
    "short parameters": ({"parameters": lambda start: start[1:]}, r"parameters must be float32 \(\d+,\)"),
    "double parameters": ({"parameters": lambda start: start.astype(np.float64)}, "got float64"),
    "a stranger": ({"devices": np.array([0, DEVICES])}, r"devices must be between 0 and 9, got 0 to 10"),
    "a negative device": ({"devices": np.array([-1])}, "got -1 to -1"),
    "half a device": ({"devices": np.array([0.5])}, "vector of indices"),
    "no step": ({"steps": 0}, "steps must be at least 1, got 0"),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_a_round_that_does_not_fit_is_refused_in_a_sentence(small, name):
    change, message = ROUNDS[name]
    given = {"parameters": lambda start: start, "devices": np.arange(3), "steps": 1, **change}
    engine = small.make()
    with pytest.raises(ValueError, match=message) as refused:
        list(engine.updates(given["parameters"](small.start), given["devices"], steps=given["steps"], round_index=0))
    assert is_sentence(refused.value)
    assert gather(engine, small.start, range(3)).shape == (3, engine.dimension)  # and it goes on
    engine.close()


ARGUMENTS = {
    "learning_rate": ({"learning_rate": 0.0}, "learning_rate must be positive and finite, got 0.0"),
    "large batch": ({"batch_size": 7}, "batch_size must be at most 6, the images per device, got 7"),
    "empty batch": ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    "threads": ({"threads": 0}, "threads must be at least 1, got 0"),
    "chunk": ({"chunk": 0}, "chunk must be at least 1, got 0"),
    "images": ({"images": np.zeros((60, 16, 16), np.float32)}, "images must be float32"),
    "labels": ({"labels": np.zeros(59, np.int64)}, r"labels must be int64 \(60,\)"),
    "negative labels": ({"labels": np.full(60, -1)}, r"labels must be int64 \(60,\) from 0"),
    "image indices": ({"shards": np.array([[60]])}, "index 60 images, got 60 to 60"),
    "flat shards": ({"shards": np.arange(9)}, r"shards must be indices \(N, D\)"),
    "too few classes": (
        {"model": builtin("mlp", input_shape=(1, 16, 16), classes=3)},
        "4 outputs|labels must be between 0 and 2",
    ),
    "other images": (
        {"model": builtin("mlp", input_shape=(1, 9, 9), classes=4)},
        "fails on images|images must have shape",
    ),
}


@pytest.mark.parametrize(
    ("engine", "name"),
    [pair for pair in product(IMAGE_ENGINES, ARGUMENTS) if pair != ("reference", "threads")],  # it has one thread
)
def test_arguments_that_do_not_fit_are_refused_in_a_sentence(engine, name):
    change, message = ARGUMENTS[name]
    data, shards = images()
    arguments = {"model": model("mlp"), "images": data.train_images, "labels": data.train_labels, "shards": shards}
    make = type(Case(engine, "mlp").make())
    with pytest.raises(ValueError, match=message) as refused:
        make(**engine_names(engine, arguments | {"learning_rate": 0.1} | change))
    assert is_sentence(refused.value)


def engine_names(engine, arguments):
    """The arguments by position: engines name the model differently."""
    return arguments if engine != "fused" else {"network": arguments.pop("model"), **arguments}


def is_sentence(error):
    text = str(error)
    return (text[0].isupper() or " must " in text) and text.endswith(".") and "\n" not in text


def test_the_quadratic_engine_refuses_unsupported_options():
    task = QuadraticTask(dimension=3, num_devices=4, smoothness=2.0, strong_convexity=1.0)
    for change in ({"learning_rate": -1.0}, {"chunk": 0}):
        with pytest.raises(ValueError, match=next(iter(change))):
            QuadraticEngine(task, **{"learning_rate": 0.1} | change)
