"""Models that remember data are refused; accepted models carry nothing from one device to another."""

import copy
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from airfed.learning import models, torch_engine
from airfed.learning.recognition import NotRecognised, recognise
from airfed.learning.reference import ReferenceEngine

SEEN = {}  # of a model that keeps its state in a global variable
SHAPE, CLASSES, DEVICES = (1, 4, 4), 3, 5


class Keeping(nn.Module):
    """A linear layer after a normalisation by running statistics; a subclass defines where they are kept."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, CLASSES)
        self.begin()

    def begin(self):
        """Prepare the place."""

    def forward(self, images):
        return self.layer(images.flatten(1) - self.seen(images.detach().mean()))


class InAttribute(Keeping):
    def begin(self):
        self.mean = torch.zeros(1)

    def seen(self, mean):
        self.mean = 0.9 * self.mean + 0.1 * mean
        return self.mean


class InPlace(Keeping):
    def begin(self):
        self.mean = torch.zeros(1)

    def seen(self, mean):
        return self.mean.mul_(0.9).add_(mean, alpha=0.1)


class InFrozenParameter(Keeping):
    def begin(self):
        self.mean = nn.Parameter(torch.zeros(1), requires_grad=False)

    def seen(self, mean):
        self.mean.mul_(0.9).add_(mean, alpha=0.1)
        return self.mean


class InParameterData(InFrozenParameter):
    def seen(self, mean):
        self.mean.data = 0.9 * self.mean.data + 0.1 * mean
        return self.mean


class InFloat(Keeping):
    def begin(self):
        self.mean = 0.0

    def seen(self, mean):
        self.mean = 0.9 * self.mean + 0.1 * float(mean)
        return self.mean


class InArray(Keeping):
    def begin(self):
        self.mean = {"of all": [np.zeros(1)]}

    def seen(self, mean):
        self.mean["of all"][0] += 0.1 * float(mean)
        return float(self.mean["of all"][0][0])


class InNumber(Keeping):
    def begin(self):
        self.mean = np.float32(0)

    def seen(self, mean):
        self.mean = np.float32(0.9) * self.mean + np.float32(mean)
        return float(self.mean)


class SinceTheFirstCall(Keeping):
    def begin(self):
        self.mean = None

    def seen(self, mean):
        self.mean = mean if self.mean is None else 0.9 * self.mean + 0.1 * mean
        return self.mean


class InAnObject(Keeping):
    def begin(self):
        self.tracker = type("Tracker", (), {})()
        self.tracker.mean = torch.zeros(1)

    def seen(self, mean):
        self.tracker.mean = self.tracker.mean + mean
        return self.tracker.mean


class InHiddenLayer(Keeping):
    """A list hides the layer, and its buffers, from torch."""

    def begin(self):
        self.norms = [nn.BatchNorm1d(1)]

    def seen(self, mean):
        self.norms[0](mean.expand(2, 1))
        return self.norms[0].running_mean


class InGlobal(Keeping):
    def seen(self, mean):
        SEEN["mean"] = 0.9 * SEEN.get("mean", 0.0) + 0.1 * float(mean)
        return SEEN["mean"]


class InClass(Keeping):
    mean = torch.zeros(1)

    def seen(self, mean):
        InClass.mean = 0.9 * InClass.mean + 0.1 * mean
        return InClass.mean


class InClosure(Keeping):
    def begin(self):
        before = [0.0]

        def add(mean):
            before[0] += float(mean)
            return before[0]

        self.add = add

    def seen(self, mean):
        return self.add(mean)


class RandomByNumpy(Keeping):
    def seen(self, mean):
        return float(np.random.random())  # noqa: NPY002


class InList(Keeping):
    def begin(self):
        self.means = []

    def seen(self, mean):
        self.means.append(float(mean))
        return sum(self.means)


class InDeque(InList):
    def begin(self):
        self.means = deque([0.5])


class InCount(Keeping):
    def begin(self):
        self.calls = 0

    def seen(self, mean):
        self.calls += 1 + int(1000 * mean)
        return self.calls / 1000


class OnParameter(Keeping):
    """Hangs its state on a trainable parameter."""

    def seen(self, mean):
        self.layer.weight.means = [*getattr(self.layer.weight, "means", ()), float(mean)]
        return sum(self.layer.weight.means)


INSIDE = [InAttribute, InPlace, InFrozenParameter, InParameterData, InFloat, InArray, InNumber, SinceTheFirstCall]
INSIDE += [InAnObject, InHiddenLayer]
OUTSIDE = [InGlobal, InClass, InClosure, RandomByNumpy]
HARMLESS = [InList, InDeque, InCount, OnParameter]
ENGINES = [torch_engine.TorchEngine, ReferenceEngine]


@pytest.fixture(autouse=True)
def forget():
    """Begin without the state that models leave in this module."""
    SEEN.clear()
    InClass.mean = torch.zeros(1)


def data(moved=0.0):
    """Images on five devices; those of the first are larger by so much."""
    rng = np.random.default_rng(0)
    images, labels = rng.random((20, *SHAPE), np.float32), np.arange(20) % CLASSES
    images[:4] += np.float32(moved)
    return images, labels, np.arange(20).reshape(DEVICES, 4)


def updates(engine, module, moved):
    made = engine(module, *data(moved), learning_rate=0.1)
    start = models.flatten(module)
    rounds = [
        np.concatenate([rows for _, rows in made.updates(start, np.arange(DEVICES), steps=2, round_index=index)])
        for index in range(2)
    ]
    losses = [made.evaluate(start, *data()[:2]) for _ in range(2)]
    made.close()
    assert losses[0] == losses[1]
    return np.stack(rounds)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", INSIDE)
def test_a_model_whose_state_moves_is_refused(engine, model):
    place = r"(mean|tracker\.mean|mean\.of all\.0|norms\.0\.running_mean|norms\.0\.num_batches_tracked)"
    with pytest.raises(
        ValueError, match=rf"'{model.__name__}' must have no state, but {place} changes in training, .* variables\.$"
    ):
        engine(model(), *data(), learning_rate=0.1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", OUTSIDE)
def test_a_model_with_state_outside_of_it_is_refused(engine, model):
    with pytest.raises(ValueError, match=f"update of the model '{model.__name__}' must not depend on earlier training"):
        engine(model(), *data(), learning_rate=0.1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", HARMLESS)
def test_an_accepted_model_carries_nothing_between_devices(engine, model):
    check_alone(engine, model)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", INSIDE)
def test_nor_would_state_that_the_check_overlooks(engine, model, monkeypatch):
    monkeypatch.setattr(models, "check_forward", lambda *given, **named: None)
    check_alone(engine, model)


def check_alone(engine, model):
    """The data of the first device change its own update only: no other update in any round, and no loss."""
    torch.manual_seed(0)
    module = model()
    one, other = (updates(engine, module, moved) for moved in (0.0, 10.0))
    assert np.array_equal(one[:, 1:], other[:, 1:])
    assert np.array_equal(one[0], one[1])
    assert not np.array_equal(one[:, 0], other[:, 0])


def test_one_module_for_all_devices_would_be_seen(monkeypatch):
    monkeypatch.setattr(torch_engine, "fresh", lambda module, trained: module)
    with pytest.raises(AssertionError):
        check_alone(torch_engine.TorchEngine, InList)


class Caching(Keeping):
    """Keeps what does not depend on data: torch's way of positions and masks."""

    def begin(self):
        self.mask, self.scale = None, torch.full((1,), 0.5)
        self.frozen = nn.Parameter(torch.ones(16), requires_grad=False)

    def seen(self, mean):
        if self.mask is None:
            self.mask = torch.linspace(0, 1, 16)
        return self.mask * self.scale + self.frozen


def test_constants_and_caches_are_no_state():
    check_alone(torch_engine.TorchEngine, Caching)


class Chain(nn.Sequential):
    """A network that the fused engine supports, except that it counts its calls."""

    def __init__(self, kept):
        super().__init__(nn.Flatten(), nn.Linear(16, CLASSES))
        self.kept = kept

    def forward(self, images):
        if isinstance(self.kept, list):
            self.kept.append(0)
        elif self.kept is not None:
            self.kept = self.kept + 1
        return super().forward(images)


@pytest.mark.parametrize("kept", [0, 0.0, [], torch.zeros(1)], ids=["int", "float", "list", "tensor"])
def test_a_model_that_counts_its_calls_stays_with_torch(kept):
    recognise(Chain(None), SHAPE)
    with pytest.raises(NotRecognised, match="a call changes the state of the model"):
        recognise(Chain(copy.deepcopy(kept)), SHAPE)


def test_kept_state_has_names_and_bits():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    module.table = {"a": [torch.tensor(float("nan")), 3], "self": module}
    module.half = torch.zeros(0, dtype=torch.bfloat16)
    module.sparse = torch.eye(2).to_sparse()
    held = models.kept(module)
    assert {"1.running_mean", "table.a.0", "half", "sparse"} <= held.keys()
    assert "0.weight" not in held  # it is trained
    assert held["table.a.1"] == "3"
    assert models.kept(copy.deepcopy(module)) == held
    module.sparse = torch.eye(2).to_sparse() * 2
    assert {name for name, value in models.kept(module).items() if value != held[name]} == {"sparse"}
