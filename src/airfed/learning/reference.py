"""Reference engine: [Yan23, (3)-(5)] line by line in plain PyTorch, slow and simple, the oracle of the fast engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from airfed.learning.engine import Devices, ImageEngine, Images, Labels, Parameters, Updates, check_round
from airfed.learning.models import Model, fresh, one_thread, parameters_of, unflatten


class ReferenceEngine(ImageEngine):
    """Sequential training in `dtype`, device by device and step by step; see `airfed.learning.engine.ImageEngine`."""

    name = "reference"

    def __init__(self, model: Model, *data: Any, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        super().__init__(*data, **options)
        self._module, self._l2 = self._module_of(model)
        self._module.to(dtype)
        self._dtype = dtype
        self.dimension = sum(p.numel() for p in parameters_of(self._module))

    def updates(self, parameters: Parameters, devices: Devices, *, steps: int, round_index: int) -> Updates:
        """Yield (devices, updates) chunk by chunk; see `Engine.updates`."""
        check_round(parameters, devices, dimension=self.dimension, num_devices=len(self._shards), steps=steps)
        parameters = parameters.copy()  # the caller may change it during a round
        for start in range(0, len(devices), self._chunk):
            part = devices[start : start + self._chunk]
            yield part, np.stack([self._update(parameters, int(k), steps, round_index) for k in part])

    @one_thread()
    def _update(self, parameters: Parameters, device: int, steps: int, round_index: int) -> NDArray[np.float32]:
        """Return g_k, the sum of the gradients of the local steps."""
        module = self._started(parameters)
        weights = parameters_of(module)
        images, labels = self._tensors(self._images[self._shards[device]], self._labels[self._shards[device]])
        picks = self._picks(device, steps, round_index)
        if picks is None:
            picks = np.tile(np.arange(len(labels)), (steps, 1))
        total = [torch.zeros_like(w) for w in weights]
        for pick in torch.tensor(picks):
            loss = self._loss(module, images[pick], labels[pick])
            gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
            with torch.no_grad():
                for weight, gradient, accumulated in zip(weights, gradients, total, strict=True):
                    weight.sub_(self._learning_rate * gradient)  # [Yan23, (3)]
                    accumulated.add_(gradient)  # [Yan23, (5)], with the sign corrected
        return torch.cat([t.reshape(-1) for t in total]).to(torch.float32).numpy()

    def _started(self, parameters: Parameters) -> torch.nn.Module:
        """Return a fresh model with these parameters, without state of other devices."""
        module = fresh(self._module)
        unflatten(module, parameters)
        return module

    def _loss(self, module: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return L_k on the images: mean cross-entropy plus (λ/2)‖w‖²."""
        loss = torch.nn.functional.cross_entropy(module(images), labels)
        if self._l2:
            loss = loss + self._l2 / 2 * sum((w**2).sum() for w in parameters_of(module))
        return loss

    def _tensors(self, images: Images, labels: Labels) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(images, dtype=self._dtype), torch.tensor(labels)

    @one_thread()
    def evaluate(self, parameters: Parameters, images: Images, labels: Labels) -> tuple[float, float]:
        """Return (mean loss, accuracy); see `Engine.evaluate`."""
        inputs, targets = self._tensors(images, labels)
        with torch.no_grad():
            loss = float(self._loss(self._started(parameters), inputs, targets))
            correct = self._started(parameters)(inputs).argmax(dim=1) == targets
        return loss, float(correct.double().mean())

    def close(self) -> None:
        """Do nothing."""
