"""A user's own module that is a module is recognised as the equivalent network, and as no other."""

import copy
import logging
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from airfed import load
from airfed.cli.app import main
from airfed.learning import models
from airfed.learning.data import dataset, partition
from airfed.learning.engine import make_engine
from airfed.learning.fused import available
from airfed.learning.recognition import NotRecognised, recognise
from airfed.network import Network
from airfed.training.setup import build_task

if not available():
    pytest.skip("the fused engine needs numba", allow_module_level=True)

SHAPE = (1, 12, 12)
FLATTENS = {
    "flatten": lambda x: torch.flatten(x, 1),
    "method": lambda x: x.flatten(start_dim=1),
    "size": lambda x: x.view(x.size(0), -1),
    "shape": lambda x: x.reshape(x.shape[0], -1),
    "sizes": lambda x: x.view((x.size()[0], -1)),
}
BLOCKS = {
    "pool first": lambda x: F.relu(F.max_pool2d(x, 2)),
    "relu first": lambda x: F.max_pool2d(F.relu(x), kernel_size=2, stride=2),
    "in place": lambda x: torch.max_pool2d(x.relu_(), (2, 2)),
    "methods": lambda x: torch.max_pool2d(x, 2).relu(),
}


class Written(nn.Module):
    """As users write it: layers in lists, the rest by functions."""

    def __init__(self, network, flatten, blocks):
        super().__init__()
        channels = [network.input_shape[0], *(outputs for outputs, _ in network.convolutions)]
        sizes = zip(channels[:-1], network.convolutions, strict=True)
        self.convs = nn.ModuleList(nn.Conv2d(inputs, outputs, kernel) for inputs, (outputs, kernel) in sizes)
        self.dense = nn.ModuleList(nn.Linear(*size) for size in network.dense_sizes)
        self.flat, self.blocks = FLATTENS[flatten], [BLOCKS[block] for block in blocks]

    def forward(self, x):
        for conv, block in zip(self.convs, self.blocks, strict=True):
            x = block(conv(x))
        x = self.flat(x)
        for layer in self.dense[:-1]:
            x = F.relu(layer(x))
        return self.dense[-1](x)


@st.composite
def networks(draw):
    height, width = draw(st.integers(4, 16)), draw(st.integers(4, 16))
    shape, convolutions = (draw(st.integers(1, 3)), height, width), []
    while min(height, width) >= 4 and draw(st.booleans()):
        kernel = draw(st.integers(1, min(height, width) - 1))
        convolutions.append((draw(st.integers(1, 8)), kernel))
        height, width = (height - kernel + 1) // 2, (width - kernel + 1) // 2
    hidden = tuple(draw(st.lists(st.integers(1, 20), max_size=2)))
    classes = draw(st.integers(2, 9))
    return Network(input_shape=shape, convolutions=tuple(convolutions), hidden=hidden, classes=classes)


@given(networks(), st.data())
@settings(max_examples=40)
def test_every_equivalent_module_is_recognised(network, data):
    assert recognise(models.build_module(network), network.input_shape) == network
    blocks = [data.draw(st.sampled_from(sorted(BLOCKS))) for _ in network.convolutions]
    own = Written(network, data.draw(st.sampled_from(sorted(FLATTENS))), blocks)
    before = copy.deepcopy(own.state_dict())
    assert recognise(own, network.input_shape) == network
    assert all(torch.equal(before[key], value) for key, value in own.state_dict().items())


def images(shape=SHAPE, classes=3):
    rng = np.random.default_rng(0)
    pixels, labels = rng.random((60, *shape), np.float32), np.arange(60) % classes
    data = dataset("s", train_images=pixels, train_labels=labels, test_images=pixels[:9], test_labels=labels[:9])
    return data, partition(labels, 10, rng=rng)


def updates(engine, parameters):
    parts = [rows for _, rows in engine.updates(parameters, np.arange(10), steps=2, round_index=1)]
    found = np.concatenate(parts), engine.evaluate(parameters, *(images()[0].test_images, images()[0].test_labels))
    engine.close()
    return found


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_it_trains_with_the_bits_of_the_network_and_the_sums_of_torch(block, batch_size):
    network = Network(input_shape=SHAPE, convolutions=((5, 3), (4, 2)), hidden=(7,), classes=3)
    torch.manual_seed(1)
    own, options = Written(network, "size", [block] * 2), {"learning_rate": 0.1, "batch_size": batch_size, "seed": 4}
    start = models.flatten(own)
    auto, fused, plain = (
        make_engine(name, model, *images(), **options)
        for name, model in (("auto", own), ("fused", network), ("torch", own))
    )
    assert [engine.name for engine in (auto, fused, plain)] == ["fused", "fused", "torch"]
    assert auto.network == network
    (rows, printed), (expected, same), (truth, _) = (updates(engine, start) for engine in (auto, fused, plain))
    assert np.array_equal(rows, expected)
    assert printed == same
    assert np.linalg.norm(rows - truth) < 1e-5 * np.linalg.norm(truth)


def chain(*layers, **named):
    """Twelve pixels a side become 5 after a 3×3 convolution and its pool: 4·25 numbers."""
    parts = {
        "conv": nn.Conv2d(1, 4, 3),
        "pool": nn.MaxPool2d(2),
        "relu": nn.ReLU(),
        "flat": nn.Flatten(),
        "hidden": nn.Linear(100, 6),
        "act": nn.ReLU(),
        "last": nn.Linear(6, 3),
    } | named
    return nn.Sequential(*(part for part in parts.values() if part is not None), *layers)


def changed(change, module=None):
    module = module or chain()
    change(module)
    return module


class MyConv(nn.Conv2d):
    def forward(self, x):
        return super().forward(2 * x)


class Own(nn.Module):
    def __init__(self, forward=None):
        super().__init__()
        self.conv, self.hidden, self.last = nn.Conv2d(1, 4, 3), nn.Linear(100, 6), nn.Linear(6, 3)
        self.how = forward

    def features(self, x):
        return F.relu(F.max_pool2d(self.conv(x), 2))

    def forward(self, x):
        return self.how(self, x)


def head(own, x):
    return own.last(F.relu(own.hidden(x)))


class Backwards(Own):
    """A module whose parameters are in another order than its layers."""

    def __init__(self):
        super().__init__(lambda own, x: head(own, own.features(x).flatten(1)))
        del self.conv, self.hidden, self.last
        self.last, self.hidden, self.conv = nn.Linear(6, 3), nn.Linear(100, 6), nn.Conv2d(1, 4, 3)


class Swapped(nn.Module):
    """Two layers of one size, of which the second is used first."""

    def __init__(self):
        super().__init__()
        self.first, self.b, self.a, self.last = nn.Linear(144, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.b(self.a(self.first(x.flatten(1)).relu()).relu()).relu())


def skip_relu(own, x):
    inner = own.hidden(own.features(x).flatten(1))
    F.relu(inner)
    return own.last(inner)


def no_grad(module):
    module[0].weight.requires_grad_(False)


def replace_forward(module):
    module[-1].forward = lambda x: nn.functional.linear(x, module[-1].weight, module[-1].bias) + 1


UNLIKE = {
    "padding": chain(conv=nn.Conv2d(1, 4, 3, padding=1), hidden=nn.Linear(144, 6)),
    "stride": chain(conv=nn.Conv2d(1, 4, 3, stride=2), hidden=nn.Linear(16, 6)),
    "dilation": chain(conv=nn.Conv2d(1, 4, 3, dilation=2), hidden=nn.Linear(64, 6)),
    "oblong kernel": chain(conv=nn.Conv2d(1, 4, (3, 4)), hidden=nn.Linear(80, 6)),
    "no bias": chain(conv=nn.Conv2d(1, 4, 3, bias=False)),
    "no bias at the end": chain(last=nn.Linear(6, 3, bias=False)),
    "a convolution of one's own": chain(conv=MyConv(1, 4, 3)),
    "pool of 3": chain(pool=nn.MaxPool2d(3), hidden=nn.Linear(36, 6)),
    "overlapping pool": chain(pool=nn.MaxPool2d(2, stride=1), hidden=nn.Linear(324, 6)),
    "padded pool": chain(pool=nn.MaxPool2d(2, padding=1), hidden=nn.Linear(144, 6)),
    "dilated pool": chain(pool=nn.MaxPool2d(2, dilation=2), hidden=nn.Linear(64, 6)),
    "rounding pool": chain(conv=nn.Conv2d(1, 4, 4), pool=nn.MaxPool2d(2, ceil_mode=True)),
    "mean pool": chain(pool=nn.AvgPool2d(2)),
    "no pool": chain(pool=None, hidden=nn.Linear(400, 6)),
    "no relu": chain(relu=None),
    "leaky relu": chain(relu=nn.LeakyReLU()),
    "tanh": chain(act=nn.Tanh()),
    "no relu between linear layers": chain(act=None),
    "relu at the end": chain(nn.ReLU()),
    "softmax at the end": chain(nn.LogSoftmax(1)),
    "norm": chain(relu=nn.Sequential(nn.GroupNorm(1, 4), nn.ReLU())),
    "random": chain(act=nn.Sequential(nn.ReLU(), nn.Dropout(0.5))),
    "frozen": changed(no_grad),
    "hook": changed(lambda module: module[0].register_forward_hook(lambda part, inputs, output: 2 * output)),
    "backward hook": changed(lambda module: module[0].register_full_backward_hook(lambda part, inputs, output: None)),
    "forward replaced": changed(replace_forward),
    "weight norm": changed(lambda module: nn.utils.parametrizations.weight_norm(module[-1])),
    "unused parameter": changed(lambda module: module.register_parameter("more", nn.Parameter(torch.ones(2)))),
    "other order": Backwards(),
    "residual": Own(lambda own, x: head(own, own.features(x).flatten(1) + 0 * own.features(x).flatten(1))),
    "scaled": Own(lambda own, x: head(own, own.features(2 * x).flatten(1))),
    "rectified input": Own(lambda own, x: head(own, own.features(F.relu(x)).flatten(1))),
    "other input": Own(lambda own, x: head(own, own.features(x * x).flatten(1))),
    "looks at data": Own(lambda own, x: head(own, own.features(x).flatten(1)) if x.sum() > 0 else own.last(x)),
    "returns a list": Own(lambda own, x: [head(own, own.features(x).flatten(1))]),
    "returns what is inside": Own(
        lambda own, x: (lambda inner: (own.last(inner), inner)[1])(own.hidden(own.features(x).flatten(1)))
    ),
    "transposed": Own(lambda own, x: head(own, own.features(x.transpose(2, 3)).flatten(1))),
    "flattened the other way": Own(lambda own, x: head(own, own.features(x).permute(0, 2, 3, 1).flatten(1))),
    "shuffled into view": Own(lambda own, x: head(own, own.features(x).view(-1, 100, x.size(0))[..., 0])),
    "images mixed": Own(lambda own, x: head(own, own.features(x).view(-1, 50).repeat(1, 2))),
    "images that are counted": Own(lambda own, x: head(own, own.features(x).view(8, 100))),
    "relu not used": Own(skip_relu),
    "like layers in another order": Swapped(),
    "detached": Own(lambda own, x: head(own, own.features(x).detach().flatten(1))),
    "half precision": Own(lambda own, x: head(own, own.features(x).half().float().flatten(1))),
}


def test_the_plain_chain_is_known():
    network = Network(input_shape=SHAPE, convolutions=((4, 3),), hidden=(6,), classes=3)
    assert recognise(chain(), SHAPE) == network
    assert recognise(chain(act=nn.Sequential(nn.Identity(), nn.ReLU(inplace=True), nn.Dropout(0.0))), SHAPE) == network
    assert recognise(chain(relu=nn.Sequential(nn.ReLU(), nn.ReLU())), SHAPE) == network
    assert recognise(Own(lambda own, x: head(own, own.features(x).view(-1, 100))), SHAPE) == network


@pytest.mark.parametrize("name", UNLIKE)
def test_other_networks_are_not_recognised(name):
    with pytest.raises(NotRecognised) as reason:
        recognise(UNLIKE[name], SHAPE)
    assert "\n" not in str(reason.value)
    assert str(reason.value)[-1] != "."


@pytest.mark.parametrize("name", ["padding", "other order", "residual", "looks at data"])
def test_it_is_left_to_torch_with_the_reason(name, caplog):
    caplog.set_level(logging.INFO)
    engine = make_engine("auto", UNLIKE[name], *images(), learning_rate=0.1)
    engine.close()
    assert engine.name == "torch"
    assert "Using the torch engine: the model" in caplog.text
    with pytest.raises(ValueError, match="The fused engine cannot be used: the model"):
        make_engine("fused", UNLIKE[name], *images(), learning_rate=0.1)


class Doubling(nn.Sequential):
    """Its forward is the chain's; a call is not."""

    def __call__(self, x):
        return 2 * super().__call__(x)


class Slowing(nn.Sequential):
    """The same logits, half the gradient."""

    def __call__(self, x):
        out = super().__call__(x)
        return out.detach() + (out - out.detach()) / 2


class Cubing(nn.Sequential):
    """The same logits and gradients where the logits are zero."""

    def __call__(self, x):
        out = super().__call__(x)
        return out + out**3


class Failing(nn.Sequential):
    def __call__(self, x):
        if len(x) == 7:
            raise RuntimeError("not so many")
        return super().__call__(x)


class Ageing(nn.Module):
    """Another network once it was called so many times: a trace is one, the comparison 21."""

    def __init__(self, most):
        super().__init__()
        self.net, self.calls, self.most = chain(), 0, most

    def forward(self, x):
        self.calls += 1
        return self.net(x) if self.calls <= self.most else self.net(x).tanh()


ALIKE = {kind.__name__: kind(*chain()) for kind in (Doubling, Slowing, Failing)}
ALIKE |= {f"ageing after {most}": Ageing(most) for most in (1, 2, 22)}


@pytest.mark.parametrize("name", ALIKE)
def test_a_module_that_only_looks_equivalent_is_trained_by_torch(name, caplog):
    caplog.set_level(logging.INFO)
    own = ALIKE[name]
    engine = make_engine("auto", own, *images(), learning_rate=0.1)
    engine.close()
    assert engine.name == "torch"
    late = name == "ageing after 22"  # the comparison is over by then
    reason = "a call changes the state" if late else "the model computes other values than a network 4c3-6"
    assert f"Using the torch engine: {reason}" in caplog.text


def deep(width, outputs, *layers, act=nn.ReLU):
    """So deep that its biases outweigh the images."""
    inner = [part for _ in range(4) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(144, width), act(), *inner, nn.Linear(width, outputs), *layers)


@pytest.mark.parametrize("width", [1, 6])
def test_units_that_are_always_zero_or_always_positive_hide_nothing(width):
    for seed in range(20):
        torch.manual_seed(seed)
        recognise(deep(width, 2), SHAPE)
        for own in (deep(width, 2, nn.ReLU()), deep(width, 2, act=nn.Identity)):
            with pytest.raises(NotRecognised, match="computes other values"):
                recognise(own, SHAPE)


def test_a_forward_method_of_one_layer_is_not_recognised():
    own = chain()
    own[-1].forward = types.MethodType(lambda layer, x: F.linear(x.clamp(max=1e3), layer.weight, layer.bias), own[-1])
    with pytest.raises(NotRecognised, match="a forward method of a single object"):
        recognise(own, SHAPE)


def test_zeros_to_begin_with_hide_nothing():
    own = Cubing(*chain())
    for parameter in own.parameters():
        nn.init.zeros_(parameter)
    with pytest.raises(NotRecognised, match="computes other values"):
        recognise(own, SHAPE)


def test_no_global_state_is_touched():
    own = chain()
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    recognise(own, SHAPE)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads


NET = """
from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(1, 3, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(432, 10))

def padded():
    return nn.Sequential(nn.Conv2d(1, 3, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(588, 10))
"""


@pytest.fixture
def file(tmp_path):
    text = (Path(__file__).parents[1] / "eight.toml").read_text()
    text = text.replace('"quadratic"', '"mynet:net"').replace("dimension = 20", "images = 80")
    (tmp_path / "own.toml").write_text(text + "[policy]\nrounds = 2\n")
    (tmp_path / "mynet.py").write_text(NET)
    return tmp_path / "own.toml"


def test_a_run_prints_the_recognised_network(file, tmp_path, capsys):
    assert main(["run", str(file), "--out", str(tmp_path / "run")]) == 0
    assert "engine: fused (your model is a network 3c5)" in capsys.readouterr().out
    assert main(["run", str(file), "--out", str(tmp_path / "run"), "--resume"]) == 0
    file.write_text(file.read_text().replace("mynet:net", "mynet:padded"))
    assert main(["run", str(file), "--out", str(tmp_path / "padded")]) == 0
    assert "engine: torch ·" in capsys.readouterr().out


def test_torch_can_be_had(file):
    for engine, printed in (("auto", "fused (your model is a network 3c5)"), ("torch", "torch")):
        task = build_task(load(file).override({"run.engine": engine}))
        task.engine.close()
        assert (task.engine.name, task.trained_by) == (printed.partition(" ")[0], printed)
        assert list(task.named_tensors(task.initial_parameters)) == ["0.weight", "0.bias", "4.weight", "4.bias"]
