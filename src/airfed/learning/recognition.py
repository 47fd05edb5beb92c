"""Which network of the family a user's own torch module is, if it is one: then the fused engine can train it.

The module is traced (torch.fx), and the trace must be the family's chain of layers to the letter. What was found is
then put to the test: the network and the module must give the same logits and gradients on random images.
"""

from __future__ import annotations

import copy
import logging
import math
import operator
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn
from torch.nn import functional

from airfed.learning import models, state
from airfed.network import Network

_SHAPE: Final = re.compile(r"(c(pr|rp))*f(lr)*l")  # convolution, pool, relu, flatten, linear
_POOL: Final = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_FLATTEN: Final = ("start_dim", "end_dim")
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_RTOL: Final = 1e-4  # of logits and gradients; float32 gives 1e-6, another network 1
_IMAGES: Final = 8

_log = logging.getLogger(__name__)


class Unlike(ValueError):
    """The module is not a network of the family; the message says why, as the end of a sentence."""


def recognise(module: nn.Module, input_shape: tuple[int, int, int]) -> Network:
    """Return the network that the module is, its parameters in the same order in the flat vector.

    Args:
        module: of the user's; it is copied.
        input_shape: (channels, height, width) of the images.

    Raises:
        Unlike: it is none, or what looks like one computes something else (which is logged, too).

    >>> recognise(nn.Sequential(nn.Conv2d(1, 4, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(576, 10)),
    ...     (1, 28, 28)).convolutions
    ((4, 5),)
    """
    copied = copy.deepcopy(module).train()
    before = state.kept(copied)
    with torch.random.fork_rng(devices=[]), models.one_thread():
        network = _read(copied, input_shape)
        if not _agree(copied, network) or not _is_still(copied, network):
            _log.warning("The model looks like a %s, but does not compute what that does; torch trains it.", network)
            raise Unlike(f"the model looks like a {network}, but does not compute what that does")
    if state.kept(copied) != before:
        raise Unlike("the model changes, as by counting, when it is called")
    return network


def _read(module: nn.Module, input_shape: tuple[int, int, int]) -> Network:
    """The network that the trace says."""
    if any(getattr(part, hooks) for part in module.modules() for hooks in _HOOKS):
        raise Unlike("the model has hooks")
    try:
        graph = fx.Tracer().trace(module)
    except Exception as error:  # the user's code: anything can come out of it
        raise Unlike(f"the model cannot be traced ({type(error).__name__})") from None
    chain = _Chain(module)
    for node in graph.nodes:
        chain.add(node)
    if _SHAPE.fullmatch(chain.kinds) is None:
        raise Unlike(
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
        raise Unlike(str(error).rstrip(".")) from None
    used = [tensor for layer in (*chain.convolutions, *chain.linears) for tensor in (layer.weight, layer.bias)]
    held = list(module.parameters())
    if len(used) != len(held) or any(a is not b or not a.requires_grad for a, b in zip(used, held, strict=True)):
        raise Unlike("the model's parameters are not a weight and a bias of each layer in the order of the layers")
    if [tuple(tensor.shape) for tensor in held] != [tensor.shape for tensor in network.tensors]:
        raise Unlike("the model's layers do not fit the images")
    if chain.flat not in (None, network.dense_sizes[0][0]):
        raise Unlike("the model does not flatten image by image")
    return network


class _Chain:
    """Layers one after the other, each a letter of `_SHAPE`, as nodes of a trace come in."""

    def __init__(self, module: nn.Module) -> None:
        self.kinds = ""
        self.convolutions: list[nn.Conv2d] = []
        self.linears: list[nn.Linear] = []
        self.flat: int | None = None  # the number that `view` names
        self._parts = dict(module.named_modules())
        self._tensors: list[fx.Node] = []
        self._shapes: list[fx.Node] = []
        self._counts: list[fx.Node] = []  # of images in the batch

    def add(self, node: fx.Node) -> None:
        """Add a node.

        Raises:
            Unlike: it has no place in the chain.
        """
        if node.op == "placeholder" and not self._tensors:
            self._tensors.append(node)
        elif node.op == "output":
            if node.args != (self._tensors[-1],):
                raise Unlike("the model does not return its last layer's outputs")
        elif not self._asks_for_size(node):
            if node.args[:1] != (self._tensors[-1],):
                raise Unlike(f"the model is not a chain of layers ({node.name})")
            self.kinds += self._kind(node)
            self._tensors.append(node)

    def _asks_for_size(self, node: fx.Node) -> bool:
        """Take note of x.size(0), x.shape[0] and x.size()[0], for `view`; the batch is as large all along."""
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

    def _kind(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return self._module(node)
        if (kind := _CALLS.get(node.target)) is not None:
            return kind(self, node)
        raise Unlike(f"the model has {node.name}, which networks of the family have not")

    def _module(self, node: fx.Node) -> str:
        part = self._parts[str(node.target)]
        if len(node.args) != 1 or node.kwargs or "forward" in vars(part):
            raise Unlike(f"the model calls {node.target} in a way of its own")
        match part:
            case nn.Conv2d() if type(part) is nn.Conv2d and _is_plain(part):
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
        raise Unlike(f"the model has {str(part).splitlines()[0]}, which networks of the family have not")

    def view(self, node: fx.Node) -> str:
        """A tensor as (images in the batch, what is left)."""
        sizes = node.args[1] if len(node.args) == 2 else node.args[1:]
        match sizes:
            case (first, -1) if first in self._counts:
                return "f"
            case (first, int(flat)) if (first == -1 or first in self._counts) and self.flat is None:
                self.flat = flat
                return "f"
        raise Unlike(f"the model has {node.name}, which does not flatten image by image")


def _is_plain(part: nn.Conv2d) -> bool:
    return (
        part.kernel_size[0] == part.kernel_size[1]
        and part.stride == part.dilation == (1, 1)
        and part.padding in ((0, 0), "valid")
        and part.groups == 1
        and part.bias is not None
    )


def _pool(given: dict[str, Any]) -> str:
    two, none, one = (2, (2, 2), [2, 2]), (0, (0, 0), [0, 0]), (1, (1, 1), [1, 1])
    plain = (
        given.get("kernel_size") in two
        and given.get("stride") in (*two, None, [])
        and given.get("padding", 0) in none
        and given.get("dilation", 1) in one
        and not given.get("ceil_mode")
        and not given.get("return_indices")
    )
    if not plain:
        raise Unlike("the model has a max-pool that is not a plain 2×2")
    return "p"


def _flatten(given: dict[str, Any]) -> str:
    if given.get("start_dim") != 1 or given.get("end_dim", -1) not in (-1, 3):
        raise Unlike("the model does not flatten image by image")
    return "f"


def _given(node: fx.Node, names: tuple[str, ...]) -> dict[str, Any]:
    return {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}


def _relu(chain: _Chain, node: fx.Node) -> str:
    return "r"


def _pool_call(chain: _Chain, node: fx.Node) -> str:
    return _pool(_given(node, _POOL))


def _flatten_call(chain: _Chain, node: fx.Node) -> str:
    return _flatten(_given(node, _FLATTEN))


_CALLS: Final[dict[Any, Callable[[_Chain, fx.Node], str]]] = {
    **dict.fromkeys((functional.relu, torch.relu, torch.relu_, "relu", "relu_"), _relu),
    **dict.fromkeys((functional.max_pool2d, torch.max_pool2d), _pool_call),
    **dict.fromkeys((torch.flatten, "flatten"), _flatten_call),
    **dict.fromkeys(("view", "reshape", torch.reshape), _Chain.view),
}


def _is_still(module: nn.Module, network: Network) -> bool:
    """Whether the module is the same network after it was called: calls may change it."""
    try:
        return _read(module, network.input_shape) == network
    except Unlike:
        return False


def _agree(module: nn.Module, network: Network) -> bool:
    """Whether the network and the module give the same logits and gradients, for the module's parameters and others."""
    rng, twin = np.random.default_rng(0), models.build_module(network)
    images = torch.tensor(rng.random((_IMAGES, *network.input_shape), np.float32))
    labels = torch.tensor(rng.integers(0, network.classes, _IMAGES))
    others = [rng.uniform(-1, 1, tensor.size) / math.sqrt(tensor.fan_in) for tensor in network.tensors]
    for parameters in (models.flatten(module), np.concatenate(others).astype(np.float32)):
        pairs = []
        for one in (module, twin):
            models.unflatten(one, parameters)
            try:
                pairs.append(_outcome(one, images, labels))
            except Exception:  # the user's code
                return False
        if not all(_close(a, b) for a, b in zip(*pairs, strict=True)):
            return False
    return True


def _outcome(module: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> list[NDArray[np.float32]]:
    logits = module(images)
    gradients = torch.autograd.grad(functional.cross_entropy(logits, labels), models.parameters_of(module))
    return [tensor.detach().numpy() for tensor in (logits, *gradients)]


def _close(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    return a.shape == b.shape and bool(np.abs(a - b).max() <= _RTOL * np.abs(b).max())
