import sys

import numpy as np
import pytest
import torch
from torch import nn

from airfed.learning import models
from airfed.network import Network, builtin
from airfed.seeds import stream


@pytest.fixture
def user_code(tmp_path, monkeypatch):
    """Write Python into the current folder under a fresh module name."""
    monkeypatch.chdir(tmp_path)
    names = []

    def write(code):
        name = f"user_model_{len(names)}_{tmp_path.name}"
        names.append(name)
        (tmp_path / f"{name}.py").write_text("import torch\nfrom torch import nn\n" + code)
        return name

    yield write
    for name in names:
        sys.modules.pop(name, None)


GOOD = "def make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"


@pytest.mark.parametrize("name", ["cnn", "mlp", "logistic"])
def test_the_module_has_the_networks_parameters_in_order(name):
    network = builtin(name, input_shape=(1, 28, 28), classes=10)
    module = models.build_module(network)
    assert [(key, tuple(p.shape)) for key, p in module.named_parameters()] == [
        (t.name, t.shape) for t in network.tensors
    ]
    assert module(torch.zeros(3, 1, 28, 28)).shape == (3, 10)
    assert network.dimension == len(models.flatten(module))


def test_the_order_of_layers_is_convolution_pool_relu():
    network = Network(input_shape=(1, 6, 6), convolutions=((2, 3),), hidden=(4,), classes=3)
    module = models.build_module(network)
    parameters = network.initial_parameters(np.random.default_rng(0))
    models.unflatten(module, parameters)
    w, b, w1, b1, w2, b2 = np.split(parameters, [t.offset for t in network.tensors][1:])
    image = np.random.default_rng(1).normal(size=(6, 6))
    kernels = w.reshape(2, 3, 3)
    maps = np.array(
        [
            [[(image[i : i + 3, j : j + 3] * k).sum() + c for j in range(4)] for i in range(4)]
            for k, c in zip(kernels, b, strict=True)
        ]
    )
    pooled = np.maximum(maps.reshape(2, 2, 2, 2, 2).max(axis=(2, 4)), 0).ravel()
    hidden = np.maximum(w1.reshape(4, 8) @ pooled + b1, 0)
    expected = w2.reshape(3, 4) @ hidden + b2
    logits = module(torch.tensor(image[None, None], dtype=torch.float32))[0]
    assert np.allclose(logits.detach().numpy(), expected, atol=1e-6)


def test_flatten_undoes_unflatten():
    network = builtin("mlp", input_shape=(1, 4, 4), classes=3)
    module = models.build_module(network)
    vector = np.random.default_rng(0).normal(size=network.dimension).astype(np.float32)
    models.unflatten(module, vector)
    assert np.array_equal(models.flatten(module), vector)


def test_initial_parameters_depend_on_the_seed_alone():
    network = builtin("cnn", input_shape=(1, 28, 28), classes=10)
    first = network.initial_parameters(stream(3, "init"))
    torch.manual_seed(99)
    assert np.array_equal(first, network.initial_parameters(stream(3, "init")))
    assert not np.array_equal(first, network.initial_parameters(stream(4, "init")))


def initial(spec, seed):
    return models.flatten(models.as_module(spec, seed=seed)[0])


def test_a_user_model_is_seeded_and_leaves_the_global_generator_alone(user_code):
    spec = f"{user_code(GOOD)}:make"
    state = torch.get_rng_state()
    path = list(sys.path)
    first = initial(spec, 3)
    models.build_module(builtin("cnn", input_shape=(1, 28, 28), classes=10))
    assert torch.equal(state, torch.get_rng_state())
    assert sys.path == path
    torch.manual_seed(99)
    assert np.array_equal(first, initial(spec, 3))
    assert not np.array_equal(first, initial(spec, 4))
    assert first.size == 7850


def test_frozen_parameters_are_not_part_of_the_vector(user_code):
    spec = user_code(GOOD + "def frozen():\n    m = make(); m[1].weight.requires_grad_(False); return m\n")
    assert initial(f"{spec}:frozen", 0).size == 10


@pytest.mark.parametrize(
    ("code", "attribute", "message"),
    [
        (GOOD, "absent", "'absent' in '.* must be a callable, got None"),
        ("make = 3\n", "make", "'make' in '.* must be a callable, got 3"),
        ("def make():\n    return 3\n", "make", "return a torch module, got int"),
        ("def make():\n    return nn.ReLU()\n", "make", "trainable parameters, got none"),
        (
            "def make():\n    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))\n",
            "make",
            "running_mean",
        ),
        ("def make():\n    return nn.Linear(2, 2).double()\n", "make", "got torch.float64"),
        ("import no_such_package\n", "make", "No module named 'no_such_package'"),
        ("def make(:\n", "make", "is not valid Python"),
    ],
)
def test_a_bad_user_model_is_refused_with_a_sentence(user_code, code, attribute, message):
    with pytest.raises(ValueError, match=message):
        models.make_user_model(f"{user_code(code)}:{attribute}")


@pytest.mark.parametrize("spec", ["", "cnn", "a:", ":b", "no_such_module_here:make"])
def test_a_bad_specification_is_refused(spec):
    with pytest.raises(ValueError, match=r"module:callable|No module named"):
        models.make_user_model(spec)


class Forward(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3))
        self.function = function

    def forward(self, images):
        return self.function(images.flatten(1) @ self.weight)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: nn.functional.dropout(x, 0.5), "must not draw random numbers"),
        (lambda x: x + torch.rand(3), "must not draw random numbers"),
        (lambda x: x[:, :2], "at least 3 outputs, one per class, got 2"),
        (lambda x: x[0], r"logits \(2, classes\), got \(3,\)"),
        (lambda x: (x, x), "got tuple"),
        (lambda x: x @ torch.zeros(5, 5), "fails on images"),
    ],
)
def test_a_module_that_cannot_be_trained_is_refused(function, message):
    images = np.zeros((2, 1, 2, 2), np.float32)
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        models.check_forward(Forward(function), images, images, 3, name="mine")
    assert torch.equal(state, torch.get_rng_state())
    models.check_forward(Forward(lambda x: x), images, images, 3, name="mine")


class Normalised(nn.Module):
    """Batch normalisation in every place where users put it; one layer twice, another without scale and shift."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12, eps=1e-3))
        self.first = self.second = nn.BatchNorm1d(12)
        self.more = nn.ModuleList([nn.BatchNorm1d(12, affine=False)])
        self.last = nn.Linear(12, 3)

    def forward(self, images):
        x = self.conv(images).mean(dim=(2, 3))
        return self.last(self.more[0](self.second(self.first(x).relu())))


def test_batch_normalisation_is_refused_with_its_replacement_which_is_then_taken():
    module = Normalised()
    nn.init.uniform_(module.first.weight)
    scale, size = module.first.weight.detach().clone(), models.flatten(module).size
    with pytest.raises(ValueError, match=r"running_mean.*airfed\.learning\.models\.with_group_norm\(module\)\.$"):
        models.check_module(module, name="mine")
    changed = models.with_group_norm(module)
    models.check_module(changed, name="mine")
    models.check_forward(changed.train(), *models.probe_images((1, 6, 6)), 3, name="mine")
    assert not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in changed.modules())
    assert changed.first is changed.second
    assert torch.equal(changed.first.weight, scale)
    assert (changed.conv[1].num_groups, changed.conv[1].eps) == (3, 1e-3)
    assert models.flatten(changed).size == size


@pytest.mark.parametrize(
    ("channels", "groups"), [(1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (10, 2), (64, 16), (96, 24), (512, 32)]
)
def test_groups_divide_the_channels_and_have_at_least_four(channels, groups):
    made = models.with_group_norm(nn.BatchNorm2d(channels))
    assert (type(made), made.num_groups, made.num_channels) == (nn.GroupNorm, groups, channels)


def test_other_buffers_are_refused_without_talk_of_a_replacement(user_code):
    code = "def make():\n    m = nn.Linear(2, 2); m.register_buffer('scale', torch.ones(1)); return m\n"
    with pytest.raises(ValueError, match=r"got scale: .*Keep constants in plain attributes\.$"):
        models.make_user_model(f"{user_code(code)}:make")


def test_logits_that_no_parameter_moves_are_refused():
    with pytest.raises(ValueError, match="logits of the model 'mine' must depend on its trainable parameters"):
        models.check_forward(Forward(torch.zeros_like), *models.probe_images((1, 2, 2)), 3, name="mine")
