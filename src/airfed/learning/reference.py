"""The slow, obvious local training in plain PyTorch: the oracle of every fast engine.

It reads like [Yan23, (3)-(5)] and does nothing clever. float64 makes it an oracle for rounding as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from airfed.learning.engine import batches, check_round, check_shards
from airfed.learning.models import Model, checked_module, fresh, one_thread, parameters_of, unflatten


class ReferenceEngine:
    """One device after the other, one step after the other; see `airfed.learning.engine.Engine`.

    Args:
        model: a `Network`, a torch module or "module:callable".
        images: training images, float32 (n, c, h, w).
        labels: int64 (n,).
        shards: image indices of each device, (N, D).
        learning_rate: τ.
        batch_size: images per local step; None is the full batch.
        seed: keys the mini-batches.
        chunk: devices per yielded chunk.
        dtype: torch.float32 or torch.float64, in which all is computed; updates come back as float32.
    """

    name = "reference"

    def __init__(
        self,
        model: Model,
        images: NDArray[np.float32],
        labels: NDArray[np.int64],
        shards: NDArray[np.intp],
        *,
        learning_rate: float,
        batch_size: int | None = None,
        seed: int = 0,
        chunk: int = 32,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_shards(images, labels, shards, learning_rate=learning_rate, batch_size=batch_size, chunk=chunk)
        self._module, self._l2 = checked_module(model, images, labels, shards, batch_size=batch_size, seed=seed)
        self._module.to(dtype)
        self._images, self._labels, self._shards = images, labels, shards
        self._learning_rate, self._batch_size, self._seed = learning_rate, batch_size, seed
        self._chunk, self._dtype = chunk, dtype
        self.dimension = sum(p.numel() for p in parameters_of(self._module))

    def updates(
        self, parameters: NDArray[np.float32], devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """Yield (devices, updates) chunk by chunk; see `Engine.updates`."""
        check_round(parameters, devices, dimension=self.dimension, num_devices=len(self._shards), steps=steps)
        parameters = parameters.copy()  # a round in flight is not disturbed
        for start in range(0, len(devices), self._chunk):
            part = devices[start : start + self._chunk]
            yield part, np.stack([self._update(parameters, int(k), steps, round_index) for k in part])

    @one_thread()
    def _update(
        self, parameters: NDArray[np.float32], device: int, steps: int, round_index: int
    ) -> NDArray[np.float32]:
        """Return g_k, the sum of the gradients of the local steps."""
        module = self._started(parameters)
        weights = parameters_of(module)
        images, labels = self._tensors(self._images[self._shards[device]], self._labels[self._shards[device]])
        size = len(labels)
        picks = np.tile(np.arange(size), (steps, 1))
        if self._batch_size is not None:
            picks = batches(self._seed, round_index, device, steps=steps, size=size, batch_size=self._batch_size)
        total = [torch.zeros_like(w) for w in weights]
        for pick in torch.tensor(picks):
            loss = self._loss(module, images[pick], labels[pick])
            gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
            with torch.no_grad():
                for weight, gradient, accumulated in zip(weights, gradients, total, strict=True):
                    weight.sub_(self._learning_rate * gradient)  # [Yan23, (3)]
                    accumulated.add_(gradient)  # [Yan23, (5)], with the sign put right
        return torch.cat([t.reshape(-1) for t in total]).to(torch.float32).numpy()

    def _started(self, parameters: NDArray[np.float32]) -> torch.nn.Module:
        """Return the model with these parameters, and with no state of another device's."""
        module = fresh(self._module)
        unflatten(module, parameters)
        return module

    def _loss(self, module: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return L_k on the images: mean cross-entropy plus (λ/2)‖w‖²."""
        loss = torch.nn.functional.cross_entropy(module(images), labels)
        if self._l2:
            loss = loss + self._l2 / 2 * sum((w**2).sum() for w in parameters_of(module))
        return loss

    def _tensors(self, images: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(images, dtype=self._dtype), torch.tensor(labels)

    @one_thread()
    def evaluate(
        self, parameters: NDArray[np.float32], images: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> tuple[float, float]:
        """Return (mean loss, accuracy); see `Engine.evaluate`."""
        inputs, targets = self._tensors(images, labels)
        with torch.no_grad():
            loss = float(self._loss(self._started(parameters), inputs, targets))
            right = self._started(parameters)(inputs).argmax(dim=1) == targets
        return loss, float(right.double().mean())

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
