"""Recognise a torch module that is equivalent to a built-in `Network`: the same operations, shapes and values."""

from __future__ import annotations

import copy
import math
import operator
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn
from torch.nn import functional

from airfed.learning import models
from airfed.network import Network

_LAYERS: Final = (nn.Conv2d, nn.Linear, nn.MaxPool2d, nn.ReLU, nn.Flatten, nn.Identity)
_CALLS: Final = {
    *(functional.relu, torch.relu, torch.relu_, "relu", "relu_", functional.max_pool2d, torch.max_pool2d),
    *(torch.flatten, "flatten", "view", "reshape", torch.reshape, "size", getattr, operator.getitem),
}
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_RTOL: Final = 1e-4  # of logits and gradients; rounding gives 1e-6, another network 1
_DRAWS: Final = 20  # of the parameters; for one, every logit may be positive, or every unit of a layer zero
_IMAGES: Final = 7  # a prime, which no network is likely to expect


class NotRecognised(ValueError):
    """The module is not equivalent to a `Network`; the message is the reason, as a clause."""


def recognise(module: nn.Module, input_shape: tuple[int, int, int]) -> Network:
    """Return the equivalent network, with the same flat parameter vector; raise `NotRecognised` if there is none.

    >>> recognise(nn.Sequential(nn.Conv2d(1, 4, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(576, 10)),
    ...     (1, 28, 28)).convolutions
    ((4, 5),)
    """
    copied = copy.deepcopy(module).train()
    before = models.kept(copied)
    with torch.random.fork_rng(devices=[]), models.one_thread():
        _check_operations(copied)
        network = _shaped_alike(copied, input_shape)
        if not _agree(copied, network):
            raise NotRecognised(f"the model computes other values than a {network}")
    if models.kept(copied) != before:
        raise NotRecognised("a call changes the state of the model")
    return network


def _check_operations(module: nn.Module) -> None:
    """Raise `NotRecognised` unless the module only calls what a network needs, whatever the images are."""
    parts = dict(module.named_modules())
    if any(getattr(part, hooks) for part in parts.values() for hooks in _HOOKS):
        raise NotRecognised("the model has hooks")
    if any("forward" in vars(part) for part in parts.values()):
        raise NotRecognised("the model has a forward method of a single object")
    try:
        graph = fx.Tracer().trace(module)
    except Exception as error:  # user code can raise anything
        raise NotRecognised(f"the model cannot be traced ({type(error).__name__})") from None
    for node in graph.nodes:
        if node.op == "call_module":
            part = parts[str(node.target)]
            if type(part) not in _LAYERS and not (type(part) is nn.Dropout and part.p == 0):
                raise NotRecognised(f"the model has {str(part).splitlines()[0]}, which no built-in network has")
        elif node.op not in ("placeholder", "output") and node.target not in _CALLS:
            raise NotRecognised(f"the model has {node.name}, which no built-in network has")


def _shaped_alike(module: nn.Module, input_shape: tuple[int, int, int]) -> Network:
    """Return the network whose parameters have the shapes and the order of the module's."""
    held = list(module.parameters())
    shapes = [tuple(tensor.shape) for tensor in held]
    try:
        network = Network(
            input_shape=input_shape,
            convolutions=tuple((shape[0], shape[2]) for shape in shapes if len(shape) == 4),
            hidden=tuple(shape[0] for shape in shapes if len(shape) == 2)[:-1],
            classes=shapes[-1][0],
        )
    except (ValueError, IndexError) as error:
        raise NotRecognised(f"the model's parameters are not those of a network: {str(error).rstrip('.')}") from None
    if shapes != [tensor.shape for tensor in network.tensors] or not all(tensor.requires_grad for tensor in held):
        raise NotRecognised(
            "the model's parameters are not a weight and a bias of each layer in the order of the layers"
        )
    return network


def _agree(module: nn.Module, network: Network) -> bool:
    """Return whether both give the same logits and gradients."""
    rng, twin = np.random.default_rng(0), models.build_module(network)
    images = torch.tensor(rng.standard_normal((_IMAGES, *network.input_shape), np.float32))
    labels = torch.tensor(rng.integers(0, network.classes, _IMAGES))
    others = [
        np.concatenate([rng.uniform(-1, 1, tensor.size) / math.sqrt(tensor.fan_in) for tensor in network.tensors])
        for _ in range(_DRAWS)
    ]
    try:
        for parameters in (models.flatten(module), *np.asarray(others, np.float32)):
            pairs = zip(
                *(_logits_and_gradients(one, parameters, images, labels) for one in (module, twin)), strict=True
            )
            if not all(a.shape == b.shape and np.abs(a - b).max() <= _RTOL * np.abs(b).max() for a, b in pairs):
                return False
    except Exception:  # user code
        return False
    return True


def _logits_and_gradients(
    module: nn.Module, parameters: NDArray[np.float32], images: torch.Tensor, labels: torch.Tensor
) -> list[NDArray[np.float32]]:
    models.unflatten(module, parameters)
    logits = module(images)
    gradients = torch.autograd.grad(functional.cross_entropy(logits, labels), models.parameters_of(module))
    return [tensor.detach().numpy() for tensor in (logits, *gradients)]
