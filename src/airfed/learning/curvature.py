"""Loss of a training set, its gradient and Hessian-vector products, to estimate the constants of the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from airfed.learning.engine import Images, Labels
from airfed.learning.models import Model, as_module, one_thread

Vector = NDArray[np.float64]
SINGLE: Final = torch.float32

_PIECE = 500  # images at a time, which bounds the memory of the second derivative
_RTOL, _MOST = 2e-3, 60  # of the power iteration


class Loss:
    """L(w), ∇L(w) and ∇²L(w)·v of a model on labelled images (n, c, h, w); float32 gives three digits."""

    def __init__(
        self, model: Model, images: Images, labels: Labels, *, seed: int = 0, dtype: torch.dtype = torch.float64
    ) -> None:
        module, self.l2 = as_module(model, seed=seed)
        self.dtype, self.module = dtype, module.to(dtype)
        self.images, self.labels = torch.tensor(images, dtype=dtype), torch.tensor(labels)
        self.trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def value_and_gradient(self, parameters: Vector) -> tuple[float, Vector]:
        """Return L(w) and ∇L(w), including the regulariser (λ/2)‖w‖²."""
        point = torch.tensor(parameters, dtype=self.dtype, requires_grad=True)
        total, gradient = 0.0, torch.zeros_like(point)
        with one_thread():
            for loss in self._losses(point):
                gradient += torch.autograd.grad(loss, point)[0]
                total += loss.item()
        value = total + 0.5 * self.l2 * float(np.dot(parameters, parameters))
        return value, gradient.double().numpy() + self.l2 * parameters

    def hessian_product(self, parameters: Vector, direction: Vector) -> Vector:
        """Return ∇²L(w)·v by differentiating ⟨∇L(w), v⟩."""
        point = torch.tensor(parameters, dtype=self.dtype, requires_grad=True)
        along = torch.tensor(direction, dtype=self.dtype)
        product = torch.zeros_like(point)
        with one_thread():
            for loss in self._losses(point):
                gradient = torch.autograd.grad(loss, point, create_graph=True)[0]
                product += torch.autograd.grad(torch.dot(gradient, along), point)[0]
        return np.asarray(product.double().numpy() + self.l2 * direction)

    def _losses(self, point: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the contributions of batches of images to the mean cross-entropy."""
        for images, labels in zip(*(torch.split(part, _PIECE) for part in (self.images, self.labels)), strict=True):
            parts = torch.split(point, [p.numel() for p in self.trained.values()])
            named = {name: part.view_as(p) for (name, p), part in zip(self.trained.items(), parts, strict=True)}
            logits = torch.func.functional_call(self.module, named, (images,))
            yield functional.cross_entropy(logits, labels, reduction="sum") / len(self.labels)


def spectral_norm(
    product: Callable[[Vector], Vector], dimension: int, rng: np.random.Generator, start: Vector | None = None
) -> tuple[float, Vector, int]:
    """Return ‖A‖₂ of a symmetric matrix by power iteration on A·v, the last v, and the number of products.

    It has converged when it changes by less than `_RTOL` in three consecutive products. `rng` draws the first v, which
    is added with a small weight to `start`, if given.
    """
    direction = rng.standard_normal(dimension)
    direction /= np.linalg.norm(direction)
    if start is not None:
        direction = (mixed := start + 0.1 * direction) / np.linalg.norm(mixed)
    value, converged = 0.0, 0
    for count in range(1, _MOST + 1):
        image = product(direction)
        before, value = value, float(np.linalg.norm(image))
        if value == 0.0:
            return 0.0, direction, count
        direction = image / value
        converged = converged + 1 if abs(value - before) <= _RTOL * value else 0
        if converged == 3:
            return value, direction, count
    return value, direction, _MOST
