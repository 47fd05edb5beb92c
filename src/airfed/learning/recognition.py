"""Recognise a torch module that is equivalent to a built-in `Network`, so that the fused engine can train it.

The trace of the module (torch.fx) must be the chain of layers of a `Network`. Then both must give the same logits and
gradients on random images.
"""

from __future__ import annotations

import copy
import logging
import math
import operator
import re
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn
from torch.nn import functional

from airfed.learning import models
from airfed.network import Network

_SHAPE: Final = re.compile(r"(c(pr|rp))*f(lr)*l")  # convolution, pool, relu, flatten, linear
_POOL: Final = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_FLATTEN: Final = ("start_dim", "end_dim")
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_RTOL: Final = 1e-4  # of logits and gradients; rounding gives 1e-6, another network 1
_IMAGES: Final = 8

_log = logging.getLogger(__name__)


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
        network = _read(copied, input_shape)
        if not _agree(copied, network):
            _log.warning("The model looks like a %s, but computes other values; torch trains it.", network)
            raise NotRecognised(f"the model looks like a {network}, but computes other values")
    if models.kept(copied) != before:
        raise NotRecognised("a call changes the state of the model")
    return network


def _read(module: nn.Module, input_shape: tuple[int, int, int]) -> Network:
    """Return the network in the trace."""
    if any(getattr(part, hooks) for part in module.modules() for hooks in _HOOKS):
        raise NotRecognised("the model has hooks")
    try:
        graph = fx.Tracer().trace(module)
    except Exception as error:  # user code can raise anything
        raise NotRecognised(f"the model cannot be traced ({type(error).__name__})") from None
    chain = _Chain(module)
    for node in graph.nodes:
        chain.add(node)
    if _SHAPE.fullmatch(chain.kinds) is None:
        raise NotRecognised(
            "the model is not [convolution, 2×2 max-pool, ReLU] repeated, flatten, [linear, ReLU] repeated, linear"
        )
    try:
        network = Network(
            input_shape=input_shape,
            convolutions=tuple((conv.out_channels, conv.kernel_size[0]) for conv in chain.convolutions),
            hidden=tuple(layer.out_features for layer in chain.linears[:-1]),
            classes=chain.linears[-1].out_features,
        )
    except ValueError as error:
        raise NotRecognised(str(error).rstrip(".")) from None
    used = [tensor for layer in (*chain.convolutions, *chain.linears) for tensor in (layer.weight, layer.bias)]
    held = list(module.parameters())
    if len(used) != len(held) or any(a is not b or not a.requires_grad for a, b in zip(used, held, strict=True)):
        raise NotRecognised(
            "the model's parameters are not a weight and a bias of each layer in the order of the layers"
        )
    if [tuple(tensor.shape) for tensor in held] != [tensor.shape for tensor in network.tensors]:
        raise NotRecognised("the model's layers do not fit the images")
    if chain.flat not in (None, network.dense_sizes[0][0]):
        raise NotRecognised("the model does not flatten image by image")
    return network


class _Chain:
    """Chain of layers, each a letter of `_SHAPE`, built from the nodes of a trace."""

    def __init__(self, module: nn.Module) -> None:
        self.kinds = ""
        self.convolutions: list[nn.Conv2d] = []
        self.linears: list[nn.Linear] = []
        self.flat: int | None = None  # argument of `view`
        self._parts = dict(module.named_modules())
        self._tensors: list[fx.Node] = []
        self._shapes: list[fx.Node] = []
        self._counts: list[fx.Node] = []  # of images in the batch

    def add(self, node: fx.Node) -> None:
        """Add a node; raise `NotRecognised` if it does not fit into the chain."""
        if node.op == "placeholder" and not self._tensors:
            self._tensors.append(node)
        elif node.op == "output":
            if node.args != (self._tensors[-1],):
                raise NotRecognised("the model does not return the outputs of its last layer")
        elif not self._records_size(node):
            if node.args[:1] != (self._tensors[-1],):
                raise NotRecognised(f"the model is not a chain of layers ({node.name})")
            self.kinds += self._module(node) if node.op == "call_module" else self._call(node)
            self._tensors.append(node)

    def _records_size(self, node: fx.Node) -> bool:
        """Record x.size(0), x.shape[0] and x.size()[0], the batch size, for `view`."""
        match (node.op, node.target, node.args):
            case ("call_method", "size", (tensor, 0)) if tensor in self._tensors:
                self._counts.append(node)
            case ("call_method", "size", (tensor,)) if tensor in self._tensors and not node.kwargs:
                self._shapes.append(node)
            case ("call_function", target, (tensor, "shape")) if target is getattr and tensor in self._tensors:
                self._shapes.append(node)
            case ("call_function", operator.getitem, (shape, 0)) if shape in self._shapes:
                self._counts.append(node)
            case _:
                return False
        return True

    def _module(self, node: fx.Node) -> str:
        part = self._parts[str(node.target)]
        if len(node.args) != 1 or node.kwargs or "forward" in vars(part):
            raise NotRecognised(f"the model calls {node.target} in an unusual way")
        match part:
            case nn.Conv2d(kernel_size=(a, b), stride=(1, 1), dilation=(1, 1), groups=1) if (
                type(part) is nn.Conv2d and a == b and part.padding in ((0, 0), "valid") and part.bias is not None
            ):
                self.convolutions.append(part)
                return "c"
            case nn.Linear() if type(part) is nn.Linear and part.bias is not None:
                self.linears.append(part)
                return "l"
            case nn.MaxPool2d() if type(part) is nn.MaxPool2d:
                return _pool({name: getattr(part, name) for name in _POOL})
            case nn.ReLU() if type(part) is nn.ReLU:
                return "r"
            case nn.Flatten() if type(part) is nn.Flatten:
                return _flatten({name: getattr(part, name) for name in _FLATTEN})
        if type(part) is nn.Identity or (type(part) is nn.Dropout and part.p == 0):
            return ""
        raise NotRecognised(f"the model has {str(part).splitlines()[0]}, which the fused engine does not support")

    def _call(self, node: fx.Node) -> str:
        """Return the letter of a function or method."""
        target: Any = node.target
        if target in (functional.relu, torch.relu, torch.relu_, "relu", "relu_"):
            return "r"
        if target in (functional.max_pool2d, torch.max_pool2d):
            return _pool({**dict(zip(_POOL, node.args[1:], strict=False)), **node.kwargs})
        if target in (torch.flatten, "flatten"):
            return _flatten({**dict(zip(_FLATTEN, node.args[1:], strict=False)), **node.kwargs})
        if target not in ("view", "reshape", torch.reshape):
            raise NotRecognised(f"the model has {node.name}, which the fused engine does not support")
        match node.args[1] if len(node.args) == 2 else node.args[1:]:
            case (first, -1) if first in self._counts:
                return "f"
            case (first, int(flat)) if (first == -1 or first in self._counts) and self.flat is None:
                self.flat = flat
                return "f"
        raise NotRecognised(f"the model has {node.name}, which does not flatten image by image")


def _pool(given: dict[str, Any]) -> str:
    same = {count: (count, (count, count), [count, count]) for count in range(3)}
    sizes = given.get("kernel_size") in same[2] and given.get("stride") in (*same[2], None, [])
    plain = given.get("padding", 0) in same[0] and given.get("dilation", 1) in same[1]
    if not (sizes and plain) or given.get("ceil_mode") or given.get("return_indices"):
        raise NotRecognised("the model has a max-pool that is not a plain 2×2")
    return "p"


def _flatten(given: dict[str, Any]) -> str:
    if given.get("start_dim") != 1 or given.get("end_dim", -1) not in (-1, 3):
        raise NotRecognised("the model does not flatten image by image")
    return "f"


def _agree(module: nn.Module, network: Network) -> bool:
    """Return whether both give the same logits and gradients, and the module still has the same trace."""
    rng, twin = np.random.default_rng(0), models.build_module(network)
    images = torch.tensor(rng.random((_IMAGES, *network.input_shape), np.float32))
    labels = torch.tensor(rng.integers(0, network.classes, _IMAGES))
    others = [rng.uniform(-1, 1, tensor.size) / math.sqrt(tensor.fan_in) for tensor in network.tensors]
    try:
        for parameters in (models.flatten(module), np.concatenate(others).astype(np.float32)):
            pairs = zip(
                *(_logits_and_gradients(one, parameters, images, labels) for one in (module, twin)), strict=True
            )
            if not all(a.shape == b.shape and np.abs(a - b).max() <= _RTOL * np.abs(b).max() for a, b in pairs):
                return False
        return _read(module, network.input_shape) == network
    except Exception:  # user code
        return False


def _logits_and_gradients(
    module: nn.Module, parameters: NDArray[np.float32], images: torch.Tensor, labels: torch.Tensor
) -> list[NDArray[np.float32]]:
    models.unflatten(module, parameters)
    logits = module(images)
    gradients = torch.autograd.grad(functional.cross_entropy(logits, labels), models.parameters_of(module))
    return [tensor.detach().numpy() for tensor in (logits, *gradients)]
