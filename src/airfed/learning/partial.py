"""Training of a part of a torch module: named layers, and low-rank adapters (LoRA) of the others.

All other parameters are frozen: they are neither clipped nor sent nor charged, and d counts the trained ones only. An
adapter of rank r replaces the weight W of a linear or convolutional layer by W + BA, where A has r rows, and B = 0 at
the start, so that the model starts with the values it had.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import parametrize

from airfed.learning.models import unflatten

_ADAPTED: Final = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


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
    """Freeze all parameters but those under the names; with a rank, add adapters to the layers that are frozen.

    The module is modified in place. Names are as in `module.named_parameters()`, of modules or parameters: "head"
    includes "head.weight". Raises ValueError if a name is unknown, or no adapter of this rank fits.
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
