"""Training of a part of a model: named layers and low-rank adapters."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import airfed
from airfed.learning import models
from airfed.scenario import ScenarioError
from airfed.scenario.learning_section import build_model, traits
from airfed.training.execution import execute
from airfed.training.setup import build_task, prepare

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 3, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(192, 6))
        self.head = nn.Linear(6, 10)

    def forward(self, images):
        return self.head(torch.tanh(self.features(images)))

class Counted(Net):
    def forward(self, images):
        with torch.no_grad():
            self.features[0].bias += images.mean()
        return super().forward(images)
"""
TEXT = (
    (Path(__file__).parents[1] / "eight.toml")
    .read_text()
    .replace('model = "quadratic"\ndimension = 20\n', 'model = "mine:Net"\nimages = 80\nvalidation_images = 200\n')
)
SHAPE = (1, 28, 28)
CONV, LINEAR, HEAD = 3 * 25 + 3, 6 * 192 + 6, 10 * 6 + 10


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "s.toml").write_text(TEXT)
    return airfed.load(tmp_path / "s.toml")


def partly(scenario, *train, **changes):
    return scenario.override({"learning.train": list(train), **changes})


@pytest.mark.parametrize(
    ("train", "dimension"),
    [
        (["head"], HEAD),
        (["head.bias", "features.0.weight"], 10 + 75),
        (["features"], CONV + LINEAR),
        (["lora:2"], 2 * (25 + 3) + 2 * (192 + 6) + 2 * (6 + 10)),
        (["head", "lora:2"], 2 * (25 + 3) + 2 * (192 + 6) + HEAD),
        (["features.3", "lora:1", "head.bias"], LINEAR + (25 + 3) + (6 + 10) + 10),
    ],
)
def test_d_is_the_number_of_trained_parameters_everywhere(scenario, train, dimension):
    some = partly(scenario, *train)
    setup = prepare(some)
    plan = setup.plan
    assert dimension == some.dimension == plan.problem.learning.dimension == setup.task.dimension
    assert plan.channel_uses == plan.rounds * -(-dimension // 2)
    ((_, updates),) = setup.task.engine.updates(setup.task.initial_parameters, np.arange(8), steps=2, round_index=0)
    assert updates.shape == (8, dimension)
    assert setup.task.engine.name == "torch"
    setup.task.engine.close()


def test_without_it_nothing_changes(scenario):
    assert "train" not in json.dumps(scenario.content())
    assert "train" not in traits(scenario.learning)
    assert traits(partly(scenario, "head").learning)["train"] == ["head"]
    assert scenario.dimension == CONV + LINEAR + HEAD
    assert partly(scenario, "head").digest() != scenario.digest()


def test_the_updates_are_those_of_the_whole_model_in_the_trained_coordinates(scenario):
    """With one step, the gradient of a parameter does not depend on which others are trained."""
    whole, head = build_task(scenario), build_task(partly(scenario, "head"))
    ((_, every),) = whole.engine.updates(whole.initial_parameters, np.arange(8), steps=1, round_index=0)
    ((_, some),) = head.engine.updates(head.initial_parameters, np.arange(8), steps=1, round_index=0)
    assert np.array_equal(some, every[:, -HEAD:])
    assert np.array_equal(head.initial_parameters, whole.initial_parameters[-HEAD:])


def test_adapters_start_at_the_model_and_learn_the_gradient_of_its_weight(scenario):
    """∂L/∂B = G·Aᵀ and ∂L/∂A = Bᵀ·G = 0 at the start, where G is the gradient of the weight."""
    layers = {"features.0": (3, 25), "features.3": (6, 192), "head": (10, 6)}
    whole, adapted = build_task(scenario), build_task(partly(scenario, "lora:2"))
    ((_, every),) = whole.engine.updates(whole.initial_parameters, np.arange(3), steps=1, round_index=0)
    ((_, some),) = adapted.engine.updates(adapted.initial_parameters, np.arange(3), steps=1, round_index=0)
    for row, own in zip(every, some, strict=True):
        gradient, at, place = {}, 0, 0
        for name, part in whole.named_tensors(row).items():
            gradient[name], at = part, at + part.size
        for name, (outputs, inputs) in layers.items():
            down = adapted.initial_parameters[place : place + 2 * inputs].reshape(2, inputs)
            assert not own[place : place + 2 * inputs].any()
            place += 2 * inputs
            up = own[place : place + outputs * 2].reshape(outputs, 2)
            place += outputs * 2
            expected = gradient[f"{name}.weight"].reshape(outputs, inputs) @ down.T
            np.testing.assert_allclose(up, expected, rtol=1e-4, atol=1e-6)
        assert place == own.size
    images = np.random.default_rng(0).random((4, *SHAPE), np.float32)
    labels = np.arange(4)
    assert adapted.engine.evaluate(adapted.initial_parameters, images, labels) == pytest.approx(
        whole.engine.evaluate(whole.initial_parameters, images, labels), rel=1e-6
    )


@pytest.mark.parametrize("train", [["head"], ["head", "lora:2"], ["lora:3"]])
def test_the_saved_model_is_complete_and_loads_into_the_callable(scenario, tmp_path, train):
    some = partly(scenario, *train)
    outcome = execute(some, tmp_path / "run")
    saved = load_file(tmp_path / "run" / "model.safetensors")
    fresh = models.make_user_model("mine:Net", folder=scenario.folder, seed=77)[0]
    fresh.load_state_dict({name: torch.tensor(value) for name, value in saved.items()})  # strict: every name, no other
    task = outcome.setup.task
    start = models.make_user_model("mine:Net", folder=scenario.folder, seed=scenario.seed)[0]
    frozen = "features.0.bias"
    assert np.array_equal(saved[frozen], start.state_dict()[frozen].numpy())
    changed = [name for name, value in saved.items() if not np.array_equal(value, start.state_dict()[name].numpy())]
    assert all(name.endswith("weight") or name.startswith("head") for name in changed)
    assert "head.weight" in changed
    with torch.no_grad():
        logits = fresh(torch.tensor(task.dataset.test_images))
    right = float((logits.argmax(dim=1).numpy() == task.dataset.test_labels).mean())
    assert right == pytest.approx(outcome.records[-1]["accuracy"], abs=1e-12)
    checkpoint = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    assert some.dimension in {value.size for value in load_file(checkpoint).values()}  # the trained ones only


def test_a_run_resumes_to_the_same_bits(scenario, tmp_path):
    some = partly(scenario, "head", "lora:2", **{"policy.rounds": 6})
    execute(some, tmp_path / "once")
    calls = iter(range(100))
    assert execute(some, tmp_path / "twice", stop=lambda: next(calls) > 3).status == "stopped"
    assert execute(some, tmp_path / "twice", resume=True).status == "finished"
    for name in ("model.safetensors", "ledger.jsonl"):
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()


def test_a_built_in_network_can_be_trained_in_part(scenario, tmp_path):
    cnn = partly(scenario, "dense1", "lora:2", **{"learning.model": "cnn"})
    assert cnn.dimension == 2 * (25 + 10) + 2 * (250 + 20) + 2 * (320 + 50) + 50 * 10 + 10
    whole = scenario.override({"learning.model": "cnn"})
    saved = build_task(cnn).named_tensors(build_task(cnn).initial_parameters)
    plain = build_task(whole)
    for name, value in plain.named_tensors(plain.initial_parameters).items():
        assert np.array_equal(saved[name], value)  # the same initial model
    assert cnn.learning.model_title == "cnn (dense1, lora:2)"
    with pytest.raises(ScenarioError, match=r"learning\.train needs a network without l2, got logistic"):
        _ = partly(scenario, "dense0", **{"learning.model": "logistic"}).dimension


def test_other_engines_refuse_it_or_say_so(scenario, caplog):
    some = partly(scenario, "dense1", **{"learning.model": "mlp"})
    with caplog.at_level("INFO"):
        assert build_task(some).engine.name == "torch"
    assert "Using the torch engine: the model's parameters are not" in caplog.text
    with pytest.raises(ValueError, match=r"The fused engine cannot be used: the model's parameters"):
        build_task(some.override({"run.engine": "fused"}))


@pytest.mark.parametrize(
    ("train", "says"),
    [
        (["haed"], r"must name layers or parameters of the model, got 'haed'; did you mean 'head'\?"),
        (["head.wieght"], r"did you mean 'head\.weight'\?"),
        (["lroa:2"], r"did you mean 'lora:4'\?"),
        (["zzz"], r"got 'zzz'; it has features, features\.0, features\.0\.weight"),
        (["lora:11"], r"a rank of at most 3 for the layer features\.0, got lora:11"),
        (["features", "head", "lora:1"], "'lora:1' needs a frozen linear or convolutional layer, got none"),
        (["features.1"], r"got 'features\.1'"),  # has no parameters
    ],
)
def test_mistakes_in_names(scenario, train, says):
    for ask in (lambda some: some.plan(), build_task):
        with pytest.raises(ValueError, match=says):
            ask(partly(scenario, *train))


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ([], "must be different names"),
        (["head", "head"], "must be different names"),
        (["lora:1", "lora:2"], "must be different names"),
        (["lora:0"], "a rank from 1 to 999999, as in lora:4, got 'lora:0'"),
        (["lora:x"], "a rank from 1 to 999999"),
        (["lora:1000000"], "a rank from 1 to 999999"),
        ([3], r"learning\.train\[0\] must be a text in quotes"),
    ],
)
def test_mistakes_in_the_list(scenario, train, says):
    with pytest.raises(ScenarioError, match=says):
        partly(scenario, *train)
    with pytest.raises(ScenarioError, match="must not be set with the quadratic model"):
        partly(scenario, "head", **{"learning.model": "quadratic", "learning.dimension": 3})


def test_state_in_a_frozen_parameter_is_still_refused(scenario):
    some = partly(scenario, "head", **{"learning.model": "mine:Counted"})
    with pytest.raises(ValueError, match=r"must have no state, but features\.0\.bias changes in training"):
        some.plan()


def test_tied_weights_are_not_adapted():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
            self.two.weight = self.one.weight

    with pytest.raises(ValueError, match="cannot adapt one: another layer shares its weight"):
        models.restrict(Tied(), [], 1, rng=np.random.default_rng(0))
    tied = Tied()
    models.restrict(tied, ["two"], None, rng=np.random.default_rng(0))
    assert [name for name, p in tied.named_parameters() if p.requires_grad] == ["one.weight", "two.bias"]


def test_the_adapters_depend_on_the_seed_and_not_on_the_global_generator(scenario):
    some = partly(scenario, "lora:2")
    before = torch.get_rng_state()
    first = build_model(some, SHAPE, 10).initial
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    assert np.array_equal(first, build_model(some, SHAPE, 10).initial)
    assert not np.array_equal(first, build_model(some.override({"seed": 1}), SHAPE, 10).initial)
