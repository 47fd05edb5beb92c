"""Torch modules: the built-in networks, the user's own, and their flat parameter vector."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from airfed import _usercode
from airfed.learning import state
from airfed.network import Network
from airfed.seeds import stream

Model = Network | nn.Module | str
"""A network of the family, a torch module, or the "module:callable" that makes one."""

_MOST_GROUPS: Final = 32  # of a GroupNorm, as its authors advise
_FEWEST_CHANNELS: Final = 4  # in a group: of one channel without width and height nothing would be left
_PROBES: Final = 2  # images per step of `check_forward`


def build_module(network: Network) -> nn.Sequential:
    """Return the network as a plain torch module: images (B, c, h, w) → logits (B, classes).

    Its parameters have the names, shapes and order of `network.tensors`; their values are torch's, so load
    some.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = network.input_shape[0]
    with torch.random.fork_rng(devices=[]):  # the layers' own initial values must not move the global generator
        for index, (outputs, kernel) in enumerate(network.convolutions):
            layers[f"conv{index}"] = nn.Conv2d(channels, outputs, kernel)
            layers[f"pool{index}"] = nn.MaxPool2d(2)
            layers[f"convrelu{index}"] = nn.ReLU()
            channels = outputs
        layers["flatten"] = nn.Flatten()
        for index, (inputs, outputs) in enumerate(network.dense_sizes):
            if index:
                layers[f"relu{index}"] = nn.ReLU()
            layers[f"dense{index}"] = nn.Linear(inputs, outputs)
    return nn.Sequential(layers)


@dataclass(frozen=True, kw_only=True, eq=False)
class UserModel:
    """A model made by the user's own code.

    Args:
        module: the torch module.
        digest: SHA-256 of the sources that it was made from.
    """

    module: nn.Module
    digest: str


def make_user_model(spec: str, *, folder: Path = Path(), seed: int = 0) -> UserModel:
    """Return the module made by the user's callable, its initial values from the stream "init" of `seed`.

    Args:
        spec: "module:callable"; the callable takes no arguments and returns a torch module that maps images
            (B, c, h, w) to logits (B, classes). A "folder/" before it says where the module lies.
        folder: the scenario's, where the module is looked for first; the working directory is next, then the
            installed packages.
        seed: of the run.

    Raises:
        ValueError: the module or the callable is missing, or what it returns cannot be trained privately.
    """
    code = _usercode.UserCode.parse(spec)
    with torch.random.fork_rng(devices=[]), _usercode.opened(code, folder, role="model") as own:
        torch.manual_seed(int(stream(seed, "init").integers(2**63)))
        made = own.call()
        digest = own.digest()
    if not isinstance(made, nn.Module):
        raise ValueError(f"Expected {spec!r} to return a torch module, got {type(made).__name__}.")
    check_module(made, name=spec)
    return UserModel(module=made, digest=digest)


def load_user_model(spec: str, *, folder: Path = Path(), seed: int = 0) -> nn.Module:
    """Return the module alone; see `make_user_model`."""
    return make_user_model(spec, folder=folder, seed=seed).module


def source_digest(spec: str, folder: Path) -> str:
    """Return the SHA-256 of the sources of a user's model, which is imported and not called; see `make_user_model`."""
    with _usercode.opened(_usercode.UserCode.parse(spec), folder, role="model") as own:
        return own.digest()


def check_module(module: nn.Module, *, name: str) -> None:
    """Raise unless all that the module learns is in float32 parameters.

    Raises:
        ValueError: no trainable parameters, other types than float32, or buffers.
    """
    trainable = parameters_of(module)
    if not trainable:
        raise ValueError(f"Expected model {name!r} to have trainable parameters; it has none.")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in trainable):
        raise ValueError(
            f"Expected model {name!r} to have layers of known sizes, got a lazy one: write its inputs down."
        )
    if odd := {str(p.dtype) for p in trainable if p.dtype != torch.float32}:
        raise ValueError(f"Expected model {name!r} to have float32 parameters, got {', '.join(sorted(odd))}.")
    if buffers := [key for key, _ in module.named_buffers()]:
        advice = "keep constants in plain attributes"
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
            advice = "replace BatchNorm by GroupNorm, as airfed.learning.models.with_group_norm(module) does"
        raise ValueError(
            f"Expected model {name!r} to have no buffers, got {', '.join(buffers[:4])}: what they learn (as "
            f"BatchNorm's running statistics) would escape the noise; {advice}."
        )


def with_group_norm(module: nn.Module) -> nn.Module:
    """Return the module with a GroupNorm in the place of every BatchNorm; it is changed in place where it can be.

    BatchNorm keeps running statistics of the data, which would escape the noise; GroupNorm normalises each image by
    itself and keeps nothing. Scale and shift, if there are any, are taken over. There are up to 32 groups of at least
    four channels.

    Args:
        module: with layers of known sizes.

    >>> with_group_norm(nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU()))[1].num_groups
    4
    """
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _group_norm(module)
    made: dict[nn.Module, nn.GroupNorm] = {}  # a layer that is used in two places stays one
    for part in list(module.modules()):
        for name, child in part._modules.items():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                if child not in made:
                    made[child] = _group_norm(child)
                part._modules[name] = made[child]
    return module


def _group_norm(layer: nn.modules.batchnorm._BatchNorm) -> nn.GroupNorm:
    channels = layer.num_features
    most = min(_MOST_GROUPS, channels // _FEWEST_CHANNELS)
    groups = next((count for count in range(most, 1, -1) if channels % count == 0), 1)
    made = nn.GroupNorm(groups, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        made.weight, made.bias = layer.weight, layer.bias
    return made.train(layer.training)


def probe_images(input_shape: tuple[int, int, int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return random images, and other ones, for `check_forward` where no data is at hand."""
    images = np.random.default_rng(0).random((2 * _PROBES, *input_shape), np.float32)
    return images[:_PROBES], images[_PROBES:]


def held_images(
    images: NDArray[np.float32], shards: NDArray[np.intp], batch_size: int | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return images of the first device, and of the last, for `check_forward`."""
    count = min(_PROBES, batch_size or _PROBES)
    return images[shards[0, :count]], images[shards[-1, :count]]


def check_forward(
    module: nn.Module, images: NDArray[np.float32], others: NDArray[np.float32], classes: int, *, name: str
) -> None:
    """Raise unless the module turns images into logits, draws no random numbers, and keeps nothing of what it saw.

    Random layers are refused because their draws would come from torch's global generator: results would
    depend on the number of threads, and a resumed run would not end as the uninterrupted one.

    State is refused because it would carry one device's data into another's update: a tensor, array or float in the
    module (or a frozen parameter) that a step changes, or anything at all that makes the same step from the same
    parameters on the same images give other bits after a step on other images.

    Args:
        module: in training mode; it is copied.
        images: a few of one device's, (B, c, h, w).
        others: of another device's.
        classes: number of classes in the labels.
        name: for the message.

    Raises:
        ValueError: as said.
    """
    with torch.random.fork_rng(devices=[]), one_thread():
        called = state.fresh(module)
        states, generator = [state.kept(called)], torch.get_rng_state()
        first = _step(called, images, classes, name=name)
        if not torch.equal(generator, torch.get_rng_state()):
            raise ValueError(
                f"Expected model {name!r} to draw no random numbers in training, as Dropout does: set its probability "
                "to 0."
            )
        states.append(state.kept(called))
        _step(called, others, classes, name=name)
        states.append(state.kept(called))
        again = _step(state.fresh(module), images, classes, name=name)
    for before, after in pairwise(states):
        if (changed := state.moved(before, after)) is not None:
            raise ValueError(
                f"Expected model {name!r} to keep no state; {changed} changes when the model is trained, and what it "
                "learns would escape the noise: keep such values in local variables."
            )
    if first != again:
        raise ValueError(
            f"Expected model {name!r} to give a device the same update whatever was trained before; its bits change "
            "after another device has trained: keep no state in global or class variables, and draw no random numbers."
        )


def _step(module: nn.Module, images: NDArray[np.float32], classes: int, *, name: str) -> list[bytes]:
    """Return the bits of the logits and gradients of one local step.

    Raises:
        ValueError: the module does not take the images, or returns no logits for so many classes.
    """
    inputs = torch.tensor(images)
    with _in_a_sentence(f"Expected model {name!r} to take images {tuple(inputs.shape)}"):
        logits = module(inputs)
    shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or logits.shape[0] != len(images):
        raise ValueError(f"Expected model {name!r} to return logits ({len(images)}, classes), got {shape}.")
    if logits.shape[1] < classes:
        raise ValueError(
            f"Expected model {name!r} to have at least {classes} outputs, one per class; got {logits.shape[1]}."
        )
    if not logits.requires_grad:
        raise ValueError(f"Expected the logits of model {name!r} to depend on its trainable parameters; they do not.")
    loss = nn.functional.cross_entropy(logits, torch.arange(len(images)) % classes)
    with _in_a_sentence(f"Expected model {name!r} to have gradients"):
        gradients = torch.autograd.grad(loss, parameters_of(module), materialize_grads=True)
    return [tensor.detach().numpy().tobytes() for tensor in (logits, *gradients)]


@contextmanager
def _in_a_sentence(expected: str) -> Iterator[None]:
    """Turn whatever the user's code raises into a ValueError."""
    try:
        yield
    except Exception as error:  # the user's code: anything can come out of it
        reason = f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(".")
        raise ValueError(f"{expected}; {reason}.") from None


def as_module(model: Model, *, seed: int = 0) -> tuple[nn.Module, float]:
    """Return a fresh module for the model, in training mode, and the λ of its loss term (λ/2)‖w‖²."""
    if isinstance(model, Network):
        return build_module(model).train(), model.l2
    if isinstance(model, str):
        return load_user_model(model, seed=seed).train(), 0.0
    check_module(model, name=type(model).__name__)
    return copy.deepcopy(model).train(), 0.0


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters in torch's order; together they are the flat vector."""
    return [p for p in module.parameters() if p.requires_grad]


def dimension(model: Model) -> int:
    """Return d, the number of trainable parameters."""
    if isinstance(model, Network):
        return model.dimension
    return sum(p.numel() for p in parameters_of(as_module(model)[0]))


def flatten(module: nn.Module) -> NDArray[np.float32]:
    """Return the trainable parameters as one new vector."""
    parts = [p.detach().reshape(-1).cpu() for p in parameters_of(module)]
    return np.asarray(torch.cat(parts).numpy(), np.float32)


def unflatten(module: nn.Module, parameters: NDArray[np.float32]) -> None:
    """Copy the vector into the module's trainable parameters.

    Raises:
        ValueError: the length is not the module's dimension.
    """
    trainable = parameters_of(module)
    sizes = [p.numel() for p in trainable]
    if parameters.shape != (sum(sizes),):
        raise ValueError(f"Expected {sum(sizes)} parameters, got shape {parameters.shape}.")
    with torch.no_grad():
        for target, part in zip(trainable, np.split(parameters, np.cumsum(sizes)[:-1]), strict=True):
            target.copy_(torch.tensor(part).view(target.shape))


def initial_parameters(model: Model, seed: int) -> NDArray[np.float32]:
    """Return the flat initial vector of the model under `seed`; a torch module starts from its own values."""
    if isinstance(model, Network):
        return model.initial_parameters(stream(seed, "init"))
    return flatten(as_module(model, seed=seed)[0])


def model_name(model: Model) -> str:
    """Return how messages call the model."""
    return model if isinstance(model, str) else type(model).__name__


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread.

    How many there are decides in which order it sums; and where the pieces of work are small, threads on a busy machine
    wait for each other.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
