"""Torch modules: built-in and user models, flat parameter vectors, a check for hidden state, training of a part.

The privacy claim needs each clipped update to depend on the data of one device only. A module with state would carry
data of one device into the update of the next.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import parametrize

from airfed import _usercode
from airfed.learning.engine import Images, Parameters
from airfed.network import Network
from airfed.seeds import stream

Model = Network | nn.Module | str
"""A built-in network, a torch module, or the "module:callable" that returns one."""

_MAX_GROUPS: Final = 32  # of a GroupNorm, as its authors recommend
_MIN_CHANNELS: Final = 4  # per group; normalising a single value would give 0
_ADAPTED: Final = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # layers that can have an adapter
_STATELESS: Final = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
_TORCH_DICTIONARIES: Final = ("_modules", "_parameters", "_buffers")


def build_module(network: Network) -> nn.Sequential:
    """Return the network as a torch module, whose parameters have the names, shapes and order of `network.tensors`."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = network.input_shape[0]
    with torch.random.fork_rng(devices=[]):  # do not advance the global generator
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


def make_user_model(spec: str, *, folder: Path = Path(), seed: int = 0) -> tuple[nn.Module, str]:
    """Return the module of user code ("module:callable"), and its sources' SHA-256; `seed` is of the initial values."""
    code = _usercode.UserCode.parse(spec)
    with torch.random.fork_rng(devices=[]), _usercode.opened(code, folder, role="model") as own:
        torch.manual_seed(int(stream(seed, "init").integers(2**63)))
        made = own.call()
        digest = own.digest()
    if not isinstance(made, nn.Module):
        raise ValueError(f"The model {spec!r} must return a torch module, got {type(made).__name__}.")
    check_module(made, name=spec)
    return made, digest


def source_digest(spec: str, folder: Path) -> str:
    """Return the SHA-256 of the sources of a user's model, which is imported but not called."""
    with _usercode.opened(_usercode.UserCode.parse(spec), folder, role="model") as own:
        return own.digest()


def check_module(module: nn.Module, *, name: str) -> None:
    """Raise ValueError unless the module has only float32 parameters to learn."""
    trainable = parameters_of(module)
    if not trainable:
        raise ValueError(f"The model {name!r} must have trainable parameters, got none.")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in trainable):
        raise ValueError(
            f"The model {name!r} must have layers of known sizes, got a lazy layer. Give its number of inputs."
        )
    if odd := {str(p.dtype) for p in trainable if p.dtype != torch.float32}:
        raise ValueError(f"The model {name!r} must have float32 parameters, got {', '.join(sorted(odd))}.")
    if buffers := [key for key, _ in module.named_buffers()]:
        advice = "Keep constants in plain attributes"
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
            advice = "Replace BatchNorm by GroupNorm with airfed.learning.models.with_group_norm(module)"
        raise ValueError(
            f"The model {name!r} must have no buffers, got {', '.join(buffers[:4])}: statistics in buffers (as in "
            f"BatchNorm) are not protected by the noise. {advice}."
        )


def with_group_norm(module: nn.Module) -> nn.Module:
    """Return the module with every BatchNorm replaced by a GroupNorm, which has no running statistics.

    It is modified in place if possible. There are up to 32 groups of at least four channels.

    >>> with_group_norm(nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU()))[1].num_groups
    4
    """
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _group_norm(module)
    made: dict[nn.Module, nn.GroupNorm] = {}  # a shared layer stays shared
    for part in list(module.modules()):
        for name, child in part._modules.items():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                part._modules[name] = made[child] = made.get(child) or _group_norm(child)
    return module


def _group_norm(layer: nn.modules.batchnorm._BatchNorm) -> nn.GroupNorm:
    most = min(_MAX_GROUPS, layer.num_features // _MIN_CHANNELS)
    groups = next((count for count in range(most, 1, -1) if layer.num_features % count == 0), 1)
    made = nn.GroupNorm(groups, layer.num_features, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        made.weight, made.bias = layer.weight, layer.bias
    return made.train(layer.training)


def as_module(model: Model, *, seed: int = 0) -> tuple[nn.Module, float]:
    """Return a new module for the model, in training mode, and λ of the regulariser (λ/2)‖w‖²."""
    if isinstance(model, Network):
        return build_module(model).train(), model.l2
    if isinstance(model, str):
        return make_user_model(model, seed=seed)[0].train(), 0.0
    check_module(model, name=type(model).__name__)
    return copy.deepcopy(model).train(), 0.0


def probe_images(input_shape: tuple[int, int, int]) -> tuple[Images, Images]:
    """Return two sets of random images for `check_forward`."""
    images = np.random.default_rng(0).random((4, *input_shape), np.float32)
    return images[:2], images[2:]


def check_forward(module: nn.Module, images: Images, others: Images, classes: int, *, name: str) -> None:
    """Raise ValueError unless the module maps images to logits, draws no random numbers, and has no state.

    State is a tensor, array, float or frozen parameter in the module that a step changes, or anything that changes the
    bits of a step on `images` after a step on `others`, the images of another device.
    """
    with torch.random.fork_rng(devices=[]), one_thread():
        called = fresh(module)
        states, generator = [kept(called)], torch.get_rng_state()
        first = _step(called, images, classes, name=name)
        if not torch.equal(generator, torch.get_rng_state()):
            raise ValueError(
                f"The model {name!r} must not draw random numbers in training, as Dropout does. Set the probability of "
                "Dropout to 0."
            )
        states.append(kept(called))
        _step(called, others, classes, name=name)
        states.append(kept(called))
        again = _step(fresh(module), images, classes, name=name)
    for before, after in pairwise(states):
        moved = (key for key, value in before.items() if isinstance(value, bytes) and after.get(key) != value)
        if (changed := next(moved, None)) is not None:
            raise ValueError(
                f"The model {name!r} must have no state, but {changed} changes in training, and the noise does not "
                "protect it. Keep such values in local variables."
            )
    if first != again:
        raise ValueError(
            f"The update of the model {name!r} must not depend on earlier training, but its bits change after another "
            "device has trained. Keep no state in global or class variables, and draw no random numbers."
        )


def _step(module: nn.Module, images: Images, classes: int, *, name: str) -> list[bytes]:
    """Return the bits of the logits and gradients of one local step."""
    inputs = torch.tensor(images)
    with _explained(f"The model {name!r} fails on images {tuple(inputs.shape)}"):
        logits = module(inputs)
    shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or logits.shape[0] != len(images):
        raise ValueError(f"The model {name!r} must return logits ({len(images)}, classes), got {shape}.")
    if logits.shape[1] < classes:
        raise ValueError(
            f"The model {name!r} must have at least {classes} outputs, one per class, got {logits.shape[1]}."
        )
    if not logits.requires_grad:
        raise ValueError(f"The logits of the model {name!r} must depend on its trainable parameters.")
    loss = nn.functional.cross_entropy(logits, torch.arange(len(images)) % classes)
    with _explained(f"The model {name!r} has no gradients"):
        gradients = torch.autograd.grad(loss, parameters_of(module), materialize_grads=True)
    return [tensor.detach().numpy().tobytes() for tensor in (logits, *gradients)]


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # user code can raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(".")
        raise ValueError(f"{problem}: {reason}.") from None


def fresh(module: nn.Module, trained: Sequence[nn.Parameter] = ()) -> nn.Module:
    """Return a copy of a module that was never called; the `trained` parameters share memory with the original."""
    memo: dict[int, Any] = {}
    for parameter in trained:
        memo[id(parameter)] = shared = type(parameter)(parameter.data)
        shared.grad = parameter.grad
    for part in module.modules():  # ten empty dictionaries each take half of the time of a copy
        empty = [value for value in vars(part).values() if type(value) in (dict, OrderedDict) and not value]
        memo.update((id(value), type(value)()) for value in empty)
    return copy.deepcopy(module, memo)


def kept(module: nn.Module) -> dict[str, str | bytes]:
    """Return the state besides the trainable parameters: tensors, arrays and floats as bytes, other values as text."""
    trainable = {id(parameter) for parameter in parameters_of(module)}
    found: dict[str, str | bytes] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", module)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, bool | int | str | bytes | None):
            found[name] = repr(value)
        elif id(value) in seen or isinstance(value, _STATELESS):
            continue
        elif isinstance(value, torch.Tensor):
            if id(value) not in trainable:
                found[name] = _digest(value)
        elif isinstance(value, float | complex | np.generic | np.ndarray):
            found[name] = _digest(torch.from_numpy(np.atleast_1d(value).view(np.uint8)))
        else:
            seen.add(id(value))
            waiting += [(f"{name}.{key}".lstrip(".") if key else name, part) for key, part in _parts(value)]
    return found


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Return the parts of a container or an object by name; the dictionaries of torch have no name."""
    if isinstance(value, Mapping):
        return [(str(key), part) for key, part in value.items()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [(str(index), part) for index, part in enumerate(value)]
    unnamed = _TORCH_DICTIONARIES if isinstance(value, nn.Module) else ()
    return [("" if key in unnamed else key, part) for key, part in getattr(value, "__dict__", {}).items()]


def _digest(tensor: torch.Tensor) -> bytes:
    held = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    flat = held.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode() + flat.tobytes()).digest()


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters in the order of torch, which is that of the flat vector."""
    return [p for p in module.parameters() if p.requires_grad]


def flatten(module: nn.Module) -> Parameters:
    """Return the trainable parameters as one new vector."""
    vector = nn.utils.parameters_to_vector(parameters_of(module))
    return np.asarray(vector.detach().cpu().numpy(), np.float32)


def unflatten(module: nn.Module, parameters: Parameters) -> None:
    """Copy the vector into the module's trainable parameters."""
    trainable = parameters_of(module)
    nn.utils.vector_to_parameters(torch.tensor(parameters, dtype=trainable[0].dtype), trainable)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread: the number of threads changes the order of sums, and small tasks gain nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class LowRank(nn.Module):
    """The parametrisation W → W + BA of a weight whose first axis is the outputs."""

    def __init__(self, weight: torch.Tensor, rank: int, rng: np.random.Generator) -> None:
        super().__init__()
        inputs = weight[0].numel()
        start = rng.uniform(-1, 1, (rank, inputs)) / math.sqrt(inputs)
        self.down = nn.Parameter(torch.tensor(start, dtype=torch.float32))  # A
        self.up = nn.Parameter(torch.zeros(len(weight), rank))  # B

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return W + BA."""
        return weight + (self.up @ self.down).view_as(weight)


def restrict(module: nn.Module, names: Sequence[str], rank: int | None, *, rng: np.random.Generator) -> None:
    """Freeze all parameters but those under the names; with a rank, add low-rank adapters (LoRA) to the frozen layers.

    The module is modified in place. A name is that of a module or a parameter: "head" includes "head.weight". An
    adapter of rank r replaces a weight W by W + BA, where A has r rows, and B = 0 at the start.
    """
    every = dict(module.named_parameters(remove_duplicate=False))
    known = list(dict.fromkeys(prefix for key in every for prefix in _prefixes(key)))
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, [*known, "lora:4"], n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known[:8])}."
            raise ValueError(f"learning.train must name layers or parameters of the model, got {name!r}; {hint}")
    for parameter in every.values():
        parameter.requires_grad_(False)
    for key, parameter in every.items():
        if not set(names).isdisjoint(_prefixes(key)):
            parameter.requires_grad_(True)
    if rank is None:
        return
    layers = [
        (key, layer)
        for key, layer in module.named_modules()
        if isinstance(layer, _ADAPTED) and not layer.weight.requires_grad
    ]
    if not layers:
        raise ValueError(f"learning.train = 'lora:{rank}' needs a frozen linear or convolutional layer, got none.")
    for key, layer in layers:
        weight = layer.weight
        if (most := min(len(weight), weight[0].numel())) < rank:
            raise ValueError(f"learning.train must have a rank of at most {most} for the layer {key}, got lora:{rank}.")
        if sum(parameter is weight for parameter in every.values()) > 1:
            raise ValueError(f"learning.train = 'lora:{rank}' cannot adapt {key}: another layer shares its weight.")
        parametrize.register_parametrization(layer, "weight", LowRank(weight, rank, rng))


def complete(module: nn.Module, parameters: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Return all parameters of a restricted module by their original names, with the adapters added to the weights."""
    unflatten(module, parameters)
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in _tensors(module)}


def _tensors(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    for key in (*module._parameters, *getattr(module, "parametrizations", ())):
        if (tensor := getattr(module, key)) is not None:
            yield f"{prefix}{key}", tensor
    for name, part in module.named_children():
        if not isinstance(part, nn.ModuleDict) or name != "parametrizations":
            yield from _tensors(part, f"{prefix}{name}.")


def _prefixes(key: str) -> list[str]:
    """Return the names under which a parameter can be named: "a", "a.b" and "a.b.weight" for "a.b.weight"."""
    return list(accumulate(key.split("."), "{}.{}".format))
