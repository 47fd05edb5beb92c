"""Engine for any torch model: a loop over devices in several threads, which share the images."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from airfed.learning.engine import Images, Labels, Parameters, ThreadedEngine, worker_count
from airfed.learning.models import Model, fresh, parameters_of


class TorchEngine(ThreadedEngine):
    """Local training of any torch model; see `airfed.learning.engine.ThreadedEngine`.

    Each device is trained by one thread, without threads of torch: the bits do not depend on `threads` (None is one per
    processor; a GPU has one) or `chunk`.
    """

    name = "torch"
    _piece = 500

    def __init__(
        self, model: Model, *data: Any, threads: int | None = None, device: str = "auto", **options: Any
    ) -> None:
        super().__init__(*data, **options)
        target = _find_device(device)
        module, self._l2 = self._module_of(model)
        self.dimension = sum(p.numel() for p in parameters_of(module))
        self._worker = _Worker(module, self._learning_rate, self._l2, target)
        self._pool = _single_threaded_pool(worker_count(threads) if target.type == "cpu" else 1)

    def _train(self, start: Parameters, device: int, steps: int, round_index: int, row: Any) -> None:
        shard = self._shards[device]
        images, labels = self._worker.to_device(self._images[shard], self._labels[shard])
        self._worker.train(start, images, labels, steps, self._picks(device, steps, round_index))
        torch.from_numpy(row).copy_(self._worker.total)

    def _measure(self, parameters: Parameters, images: Images, labels: Labels) -> tuple[float, float]:
        return self._worker.measure(parameters, *self._worker.to_device(images, labels))


class _Worker(threading.local):  # made anew in each thread
    """A copy of the model whose parameters and gradients are views into two flat vectors.

    Each device trains on a fresh copy of this copy, which is never called itself: state of a device cannot leak.
    """

    def __init__(self, module: nn.Module, learning_rate: float, l2: float, device: torch.device) -> None:
        self._module, self._device = deepcopy(module).to(device), device
        self._learning_rate, self._l2 = learning_rate, l2
        self._parameters = parameters_of(self._module)
        sizes = [p.numel() for p in self._parameters]
        self._weights, self._gradient, self.total = (torch.zeros(sum(sizes), device=device) for _ in range(3))
        parts = zip(
            self._parameters, *(torch.split(flat, sizes) for flat in (self._weights, self._gradient)), strict=True
        )
        for p, weights, gradient in parts:
            p.data, p.grad = weights.view(p.shape), gradient.view(p.shape)

    def to_device(self, images: Images, labels: Labels) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of the arrays on the torch device."""
        return torch.tensor(images, device=self._device), torch.tensor(labels, device=self._device)

    def train(
        self, start: Parameters, images: torch.Tensor, labels: torch.Tensor, steps: int, picks: NDArray[np.intp] | None
    ) -> None:
        """Run the local steps from `start` and leave the sum of their gradients in `total`."""
        module = self._started(start)
        self.total.zero_()
        order = None if picks is None else torch.tensor(picks, device=self._device)
        with _exact(self._device):
            for step in range(steps):
                inputs, targets = (images, labels) if order is None else (images[order[step]], labels[order[step]])
                self._gradient.zero_()  # backward adds to it
                loss = nn.functional.cross_entropy(module(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                if self._l2:
                    self._gradient.add_(self._weights, alpha=self._l2)
                self.total.add_(self._gradient)  # [Yan23, (5)], with the sign corrected
                self._weights.sub_(self._gradient, alpha=self._learning_rate)  # [Yan23, (3)]

    def measure(self, parameters: Parameters, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, int]:
        """Return the summed cross-entropy and the number of correct predictions."""
        module = self._started(parameters)
        with torch.no_grad(), _exact(self._device):
            logits = module(images)
            loss = nn.functional.cross_entropy(logits, labels, reduction="none")
            return float(loss.double().sum()), int((logits.argmax(dim=1) == labels).sum())

    def _started(self, parameters: Parameters) -> nn.Module:
        self._weights.copy_(torch.from_numpy(parameters))
        return fresh(self._module, self._parameters)


def _find_device(name: str) -> torch.device:
    """Return the torch device of that name; "auto" is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        with warnings.catch_warnings(action="ignore"):  # about deprecated names
            device = torch.device(name)
            torch.ones(1, device=device).cpu()  # a round trip: some devices cannot compute
    except (RuntimeError, AssertionError, ImportError):
        found = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        found += [kind for kind in ("mps", "xpu") if getattr(torch, kind).is_available()]
        raise ValueError(
            f"run.device must be available to torch on this machine ({', '.join(found)}), got {name!r}."
        ) from None
    return device


def _exact(device: torch.device) -> AbstractContextManager[None]:
    """Return a context with deterministic convolutions in full float32 on a GPU."""
    strict: Any = {"enabled": True, "benchmark": False, "deterministic": True, "allow_tf32": False}
    return torch.backends.cudnn.flags(**strict) if device.type == "cuda" else nullcontext()


def _single_threaded_pool(count: int) -> ThreadPoolExecutor:
    """Return a pool of threads in which torch uses one thread, without an effect on other threads."""

    def single() -> None:
        torch.get_num_threads()  # inherit the default now; later it would undo the next line
        torch.set_num_threads(1)

    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, thread_name_prefix="airfed-torch", initializer=single)
    barrier = threading.Barrier(count)  # one job per worker, so that every thread starts
    list(pool.map(lambda _: barrier.wait(), range(count)))
    torch.set_num_threads(before)
    return pool
