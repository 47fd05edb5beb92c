"""The state that a torch module keeps besides its trainable parameters: fresh copies of it, and a check that it rests.

Privacy is claimed for the clipped sum of updates, each computed from one device's data. A module that remembers what it
has seen carries data of one device into the update of the next, which no clip bounds.
"""

from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import nn

_PLAIN: Final = (bool, int, str, bytes, type(None))
_NOT_THE_MODULES: Final = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
_TORCHS_OWN: Final = ("_modules", "_parameters", "_buffers")  # dictionaries that torch keeps in every module


def fresh(module: nn.Module, trained: Sequence[nn.Parameter] = ()) -> nn.Module:
    """Return a copy of a module that was never called, with all of its state.

    Buffers, frozen parameters and attributes are copied. Functions, classes and global variables are not: whether they
    hold state is found by `airfed.learning.models.check_forward`.

    Args:
        module: the original.
        trained: those of its parameters whose memory, and whose gradients', the copy shares.
    """
    memo: dict[int, Any] = {}
    for parameter in trained:
        memo[id(parameter)] = shared = type(parameter)(parameter.data)
        shared.grad = parameter.grad
    for part in module.modules():  # torch keeps ten empty dictionaries in each: half of the time of a copy
        empty = [value for value in vars(part).values() if type(value) in (dict, OrderedDict) and not value]
        memo.update((id(value), type(value)()) for value in empty)
    return copy.deepcopy(module, memo)


def kept(module: nn.Module) -> dict[str, str | bytes]:
    """Return what the module keeps besides its trainable parameters, by name.

    Numbers that data can move (tensors, arrays, floats) are bytes; other values, such as counts and names, are text.

    >>> kept(nn.BatchNorm1d(2))["num_batches_tracked"] == kept(nn.BatchNorm1d(3))["num_batches_tracked"]
    True
    """
    trainable = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}
    found: dict[str, str | bytes] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", module)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, _PLAIN):
            found[name] = repr(value)
        elif id(value) in seen or isinstance(value, _NOT_THE_MODULES):
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


def moved(before: Mapping[str, str | bytes], after: Mapping[str, str | bytes]) -> str | None:
    """Return the name of a tensor, array or float that was there before and is another one after; None if all rest."""
    return next((name for name, value in before.items() if isinstance(value, bytes) and after.get(name) != value), None)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a container or an object holds, by name; torch's own dictionaries have none."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield str(key), part
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for index, part in enumerate(value):
            yield str(index), part
    else:
        for key, part in getattr(value, "__dict__", {}).items():
            yield "" if key in _TORCHS_OWN and isinstance(value, nn.Module) else key, part


def _digest(tensor: torch.Tensor) -> bytes:
    held = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    flat = held.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode() + flat.tobytes()).digest()
